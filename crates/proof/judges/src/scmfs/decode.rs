//! Describes words of an SCMFS pool. It follows the maps of an image from the superblock, as
//! `docs/format/scmfs.md` describes.

use crate::words::{dirent, inode_field, load};
use pmem::PmOff;
use scmfs::layout::*;
use std::collections::HashMap;

/// The number of inodes in a block.
const INODES_PER_BLOCK: u64 = BLOCK / INODE;

/// The use of a block.
#[derive(Clone, Debug)]
enum Role {
    Table(String),
    Inodes(u64),
    Dir(u64),
    Data(String),
}

struct Walk<'a> {
    image: &'a [u8],
    roles: HashMap<u64, Role>,
}

impl Walk<'_> {
    /// Notes the roles of the blocks that a map word leads to. It maps the bytes of `of` from
    /// `base` on; `role` returns a content block's role by its first byte.
    fn map(&mut self, word: u64, base: u64, of: &str, role: &dyn Fn(u64) -> Role) {
        let inside = |block: u64| block < self.image.len() as u64 / BLOCK;
        match Unverified::unpack(word) {
            Unverified::Hole => {}
            Unverified::Run { start, count } if !inside(start + count - 1) => {}
            Unverified::Run { start, count } => {
                for i in 0..count {
                    self.roles.entry(start + i).or_insert_with(|| role(base + i * BLOCK));
                }
            }
            Unverified::Table { block, level } => {
                let is_sound = inside(block) && (1..=LEVEL_MAX).contains(&level);
                if !is_sound || self.roles.contains_key(&block) {
                    return;
                }
                self.roles.insert(block, Role::Table(of.to_owned()));
                for i in 0..FANOUT {
                    let word = load(self.image, block * BLOCK + i * 8);
                    self.map(word, base + i * word_bytes(level), of, role);
                }
            }
        }
    }
}

/// Returns the role of each block in use, by its number.
fn roles(image: &[u8]) -> HashMap<u64, Role> {
    let mut w = Walk { image, roles: HashMap::new() };
    w.map(load(image, INODE_MAP.get()), 0, "the inode table", &|base| Role::Inodes(base / INODE));
    let is_inodes = |(block, role): (&u64, &Role)| match role {
        Role::Inodes(first) => Some((*block, *first)),
        _ => None,
    };
    let mut leaves: Vec<(u64, u64)> = w.roles.iter().filter_map(is_inodes).collect();
    leaves.sort_unstable();
    for (block, first) in leaves {
        for i in 0..INODES_PER_BLOCK {
            let (at, ino) = (block * BLOCK + i * INODE, first + i);
            let mode = load(image, at + 56) as u32;
            let of = format!("inode {ino}");
            let is_dir = mode & 0o170000 == 0o040000;
            w.map(load(image, at), 0, &of, &|base| match is_dir {
                true => Role::Dir(ino),
                false => Role::Data(format!("inode {ino}, byte {base}")),
            });
            let of = format!("attributes of inode {ino}");
            w.map(load(image, at + 40), 0, &of, &|_| Role::Data(of.clone()));
        }
    }
    w.roles
}

/// Counts the blocks that are reachable from the superblock, and the fixed ones. Valid only if no
/// inode was freed.
pub fn blocks_reached(image: &[u8]) -> u64 {
    roles(image).len() as u64 + FIRST_BLOCK
}

/// Describes a word of an image.
pub fn word(image: &[u8], word: u32) -> String {
    let at = u64::from(word) * 8;
    let (block, off) = (at / BLOCK, at % BLOCK);
    match block {
        0 => match PmOff::new(at) {
            INODE_MAP => return "superblock: map of the inode table".into(),
            INODE_SIZE => return "superblock: size of the inode table".into(),
            _ => return format!("superblock, byte {off}"),
        },
        1..FIRST_BLOCK => {
            let (record, off) = ((at - BLOCK) / journal::RECORD, at % journal::RECORD);
            return match off {
                0 => format!("journal, record {record}: checksum"),
                8 => format!("journal, record {record}: number of words"),
                _ => format!("journal, record {record}: word {}", (off - 16) / 16),
            };
        }
        _ => {}
    }
    match roles(image).get(&block) {
        None => "in no map".into(),
        Some(Role::Data(of)) => format!("data of {of}, + {off}"),
        Some(Role::Table(of)) => format!("word {} in a table of {of}", off / 8),
        Some(Role::Inodes(first)) => {
            let field = inode_field(off % INODE, "map");
            format!("inode {}: {field}", first + off / INODE)
        }
        Some(Role::Dir(ino)) => {
            format!("directory inode {ino}, {}", dirent(image, block * BLOCK, off))
        }
    }
}
