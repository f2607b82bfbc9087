//! Identities of inodes in the backing store.

use crate::backed::{BLOCK, load_range, remount, with_file};
use bpfs::Bpfs;
use pmem::Region;
use suite::FILE;
use vfs::{Backed as _, Caller, Errno, FileSystem as _, ROOT};

#[test]
fn an_identity_changes_only_without_marks() {
    let (fs, f) = with_file(16 << 20, 2 * BLOCK);
    let set = |identity: &[u8]| fs.set_identity(f, identity);
    assert_eq!((set(b""), set(&[1; 40])), (Err(Errno::INVAL), Err(Errno::INVAL)));
    assert_eq!(set(b"some object"), Ok(()), "it has this one");
    assert_eq!(set(b"another object"), Err(Errno::BUSY), "all is absent");
    load_range(&fs, f, 0..2 * BLOCK);
    fs.write(f, 0, &[1; 4096]).unwrap();
    assert_eq!(set(b"another object"), Err(Errno::BUSY), "a block is clean");
    fs.write(f, BLOCK, &[1; 4096]).unwrap();
    assert_eq!(set(b"another object"), Ok(()));
    let new = fs.create(&Caller::ROOT, ROOT, b"new", &FILE).unwrap().ino;
    let version = fs.version(new).unwrap();
    assert_eq!(fs.clean_inode(new, version), Err(Errno::INVAL), "it has no object");
    assert_eq!(fs.clean_content(new, 0..BLOCK, version), Err(Errno::INVAL));
    fs.set_identity(new, &[7; 39]).unwrap();
    let seen = |fs: &Bpfs<Region>| {
        let mut seen = vec![];
        fs.each_inode(&mut |ino, identity| seen.push((ino, identity.to_vec()))).unwrap();
        seen
    };
    let all = seen(&fs);
    assert_eq!(all[1..], [(f, b"another object".to_vec()), (new, vec![7; 39])]);
    fs.forget(new, 1);
    assert_eq!(seen(&remount(fs)), all);
}
