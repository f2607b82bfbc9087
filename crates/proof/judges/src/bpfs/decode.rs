//! Describes words of a BPFS pool. It walks the trees of an image from the superblock, as
//! `docs/format/bpfs.md` describes.

use crate::words::{dirent, inode_field, load};
use bpfs::layout::*;
use std::collections::HashMap;

/// The use of a block.
#[derive(Clone, Debug)]
enum Role {
    Pointers(String),
    Inodes(u64),
    Dir(u64),
    Data(String),
}

struct Walk<'a> {
    image: &'a [u8],
    roles: HashMap<u64, Role>,
}

impl Walk<'_> {
    /// Notes the roles of the blocks of a tree of `height` whose top is at offset `block`. It holds
    /// the bytes of `of` from `base` on; `leaf` returns a leaf's role by its first byte. Skips
    /// blocks that are outside or have a role.
    fn tree(&mut self, block: u64, base: u64, height: u8, of: &str, leaf: &dyn Fn(u64) -> Role) {
        let inside = block != 0 && block.is_multiple_of(BLOCK) && block < self.image.len() as u64;
        if !inside || self.roles.contains_key(&block) {
            return;
        }
        if height == 0 {
            self.roles.insert(block, leaf(base));
            return;
        }
        self.roles.insert(block, Role::Pointers(of.to_owned()));
        for i in 0..FANOUT {
            let child = load(self.image, block + i * 8);
            if child != 0 {
                self.tree(child, base + i * span(height - 1), height - 1, of, leaf);
            }
        }
    }

    /// Walks the tree of a root word, as [`tree`](Self::tree) does.
    fn root(&mut self, word: u64, of: &str, leaf: &dyn Fn(u64) -> Role) {
        let (top, height) = split_root(word);
        if height <= HEIGHT_MAX {
            self.tree(top.word(), 0, height, of, leaf);
        }
    }
}

/// Returns the role of each block in use, by its offset in bytes.
fn roles(image: &[u8]) -> HashMap<u64, Role> {
    let mut w = Walk { image, roles: HashMap::new() };
    w.root(load(image, 64), "the inode file", &|base| Role::Inodes(base / INODE));
    let mut leaves: Vec<(u64, u64)> = w
        .roles
        .iter()
        .filter_map(|(b, r)| match r {
            Role::Inodes(first) => Some((*b, *first)),
            _ => None,
        })
        .collect();
    leaves.sort_unstable();
    for (block, first) in leaves {
        for i in 0..INODES_PER_BLOCK {
            let (at, ino) = (block + i * INODE, first + i);
            let mode = load(image, at + 56) as u32;
            let of = format!("inode {ino}");
            let is_dir = mode & 0o170000 == 0o040000;
            w.root(load(image, at), &of, &|base| match is_dir {
                true => Role::Dir(ino),
                false => Role::Data(format!("inode {ino}, byte {base}")),
            });
            let of = format!("attributes of inode {ino}");
            w.root(load(image, at + 40), &of, &|_| Role::Data(of.clone()));
        }
    }
    w.roles
}

/// Counts the blocks that are reachable from the superblock, and the fixed ones. Valid only if no
/// inode was freed.
pub fn blocks_reached(image: &[u8]) -> u64 {
    roles(image).len() as u64 + FIRST_INODES.get()
}

/// Describes a word of an image.
pub fn word(image: &[u8], word: u32) -> String {
    let at = u64::from(word) * 8;
    let (block, off) = (at - at % BLOCK, at % BLOCK);
    if block == 0 {
        return match off {
            64 => "superblock: root of the inode file".into(),
            72 => "superblock: size of the inode file".into(),
            _ => format!("superblock, byte {off}"),
        };
    }
    if block < FIRST_INODES.at(0).get() {
        let (record, off) = ((at - records::START.get()) / records::BYTES, at % records::BYTES);
        return match off {
            0 => format!("redo record {record}: checksum"),
            8 => format!("redo record {record}: where and how many"),
            _ => format!("redo record {record}: byte {}", off - records::HEADER),
        };
    }
    match roles(image).get(&block) {
        None => "in no tree".into(),
        Some(Role::Data(of)) => format!("data of {of}, + {off}"),
        Some(Role::Pointers(of)) => format!("pointer {} in a block of {of}", off / 8),
        Some(Role::Inodes(first)) => {
            let field = inode_field(off % INODE, "root");
            format!("inode {}: {field}", first + off / INODE)
        }
        Some(Role::Dir(ino)) => format!("directory inode {ino}, {}", dirent(image, block, off)),
    }
}
