//! The control attributes of files in a cache.

use crate::input::{Input, piece};
use crate::needs::{below, mount};
use pmcache::{Command, Loading};
use pmem::Region;
use pool::FormatOptions;
use vfs::{FileSystem, ROOT, SetXattr};

const POOL: u64 = 2 << 20;

/// Calls a cache with extended attributes whose names and values a user chooses, among writes.
pub fn control(bytes: &[u8]) {
    let region = Region::anonymous(POOL).expect("there is memory");
    let options = FormatOptions { is_backed: true, ..FormatOptions::default() };
    bpfs::format(&region, &options).expect("it is large enough");
    let cache = Loading::attach(mount(region).expect("it is sound"), below()).expect("it is new");
    let dir = cache.lookup(ROOT, b"dir").expect("it lies below").ino;
    let file = cache.lookup(dir, b"file").expect("it lies below").ino;
    let empty = cache.lookup(ROOT, b"empty").expect("it lies below").ino;
    let mut input = Input(bytes);
    let mut calls = 0;
    while !input.is_empty() && calls < 64 {
        calls += 1;
        let choice = input.byte();
        let (name, value) = (input.piece(), input.piece());
        let ino = [file, dir, empty, ROOT][usize::from(choice & 3)];
        match choice >> 2 & 7 {
            0 | 1 => drop(cache.getxattr(ino, name)),
            2 | 3 => drop(cache.setxattr(ino, name, value, SetXattr::Any)),
            4 => drop(cache.removexattr(ino, name)),
            5 => drop(cache.write(ino, u64::from(choice) * 500, value)),
            6 => drop(cache.listxattr(ino)),
            _ => drop(cache.fsync(ino)),
        }
    }
    cache.close().expect("the model takes everything");
}

/// Returns calls with each command's attribute, and with other attributes.
pub fn control_seeds() -> Vec<Vec<u8>> {
    let names = Command::NAMES.iter().map(|(command, _)| command.attribute());
    let names = names.chain(["user.name", "user.keepstone.stats"].map(String::from));
    let seed = |name: String| {
        let call = |choice: u8, value: &[u8]| {
            [vec![choice], piece(name.as_bytes()), piece(value)].concat()
        };
        [call(0, b""), call(8, b"1"), call(20, b"content"), call(9, b"1"), call(16, b"")].concat()
    };
    names.map(seed).collect()
}
