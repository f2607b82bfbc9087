//! A smoke test: the operations work, survive a remount, and leave a clean pool.

use crate::{DIR, Engine, formatted, mount};
use pool::CheckOptions;
use vfs::*;

fn file(mode: u32) -> NewNode<'static> {
    NewNode { kind: NewKind::File, mode, umask: 0 }
}

/// Tests that written data is there after a remount, and that the pool is sound.
pub fn survives_remount<E: Engine>() {
    let mut region = formatted::<E>(16 << 20);
    let body: Vec<u8> = (0..300_000u32).map(|i| (i % 251) as u8).collect();
    {
        let fs = mount::<E, _>(region);
        let dir = fs.create(&Caller::ROOT, ROOT, b"d", &DIR).unwrap();
        for i in 0..1000 {
            let name = format!("file-{i}");
            let f = fs.create(&Caller::ROOT, dir.ino, name.as_bytes(), &file(0o644)).unwrap();
            fs.write(f.ino, 0, &body[..i * 10]).unwrap();
        }
        for i in (0..1000).step_by(3) {
            fs.unlink(dir.ino, format!("file-{i}").as_bytes()).unwrap();
        }
        for i in (1..1000).step_by(3) {
            fs.rename(
                (dir.ino, format!("file-{i}").as_bytes()),
                (ROOT, format!("moved-{i}").as_bytes()),
                RenameFlags::empty(),
            )
            .unwrap();
        }
        let big = fs.create(&Caller::ROOT, ROOT, b"big", &file(0o600)).unwrap();
        fs.write(big.ino, 5_000_000, &body).unwrap();
        fs.write(big.ino, 5_100_000, b"overwritten").unwrap();
        fs.write(big.ino, 5_299_990, b"across the end of it").unwrap();
        region = fs.into_medium();
    }
    let report = E::check(&region, &CheckOptions::default()).unwrap();
    assert!(report.clean(), "{:?}", report.problems);
    let fs = mount::<E, _>(region);
    let dir = fs.lookup(ROOT, b"d").unwrap();
    let mut names = vec![];
    fs.readdir(dir.ino, 0, &mut |e| {
        names.push(String::from_utf8(e.name.to_vec()).unwrap());
        true
    })
    .unwrap();
    assert_eq!(names.len(), 2 + 333);
    for i in (1..1000).step_by(3) {
        let f = fs.lookup(ROOT, format!("moved-{i}").as_bytes()).unwrap();
        let mut buf = vec![0; 20_000];
        let n = fs.read(f.ino, 0, &mut buf).unwrap();
        assert_eq!(&buf[..n], &body[..i * 10]);
    }
    let big = fs.lookup(ROOT, b"big").unwrap();
    let mut buf = vec![1; 400_000];
    assert_eq!(fs.read(big.ino, 4_999_000, &mut buf).unwrap(), 301_010);
    assert!(buf[..1000].iter().all(|b| *b == 0));
    assert_eq!(&buf[1000..101_000], &body[..100_000]);
    assert_eq!(&buf[101_000..101_011], b"overwritten");
    assert_eq!(&buf[300_990..301_010], b"across the end of it");
}
