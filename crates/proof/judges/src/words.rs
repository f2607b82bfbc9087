//! Names for the words of inodes and directories in an image, which all engines lay out in the same
//! way. It decodes them as `docs/format/bpfs.md` describes, without the engines' code.

use namespace::layout::{BLOCK, DIRENT_HEADER, DIRENT_MIN, DirentWord};

/// Reads the word at byte `at` of an image; 0 beyond its end.
pub fn load(image: &[u8], at: u64) -> u64 {
    let at = at as usize;
    image.get(at..at + 8).map_or(0, |b| u64::from_le_bytes(b.try_into().expect("eight bytes")))
}

/// Names the field of an inode at an offset. `first` is the name of the first field, which depends
/// on the engine.
pub fn inode_field(off: u64, first: &'static str) -> &'static str {
    match off {
        0 => first,
        8 => "size",
        16 => "mtime",
        24 => "ctime",
        32 => "atime",
        40 => "attributes",
        48 => "owner",
        56 => "mode, generation",
        64 => "btime",
        72 => "rdev, generation",
        _ => "reserved",
    }
}

/// Describes the word at offset `off` of a directory block.
pub fn dirent(image: &[u8], block: u64, off: u64) -> String {
    let mut at = 0;
    while at < BLOCK {
        let word = DirentWord::unpack(load(image, block + at + 8));
        let len = word.len.max(DIRENT_MIN);
        if off < at + len {
            let name = (block + at + DIRENT_HEADER) as usize;
            let bytes = image.get(name..name + word.name_len).unwrap_or_default();
            let field = match off - at {
                0 => "inode number, generation",
                8 => "lengths",
                _ => "name or free",
            };
            return format!("entry at {at} {:?}: {field}", bytes.escape_ascii().to_string());
        }
        at += len;
    }
    "beyond the entries".into()
}
