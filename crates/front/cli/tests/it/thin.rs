//! Pools that take space when they need it, and give it back.

use std::os::unix::fs::MetadataExt as _;
use std::process::Command;

use crate::common::{Sandbox, on_each_engine, wait_until};

on_each_engine! {
    space_comes_and_goes,
    a_full_file_system_below_is_an_error_and_nothing_more,
    pools_get_other_sizes,
    pools_get_other_sizes_beside_programs,
}

/// Returns the bytes that a pool's file takes.
fn taken(s: &Sandbox) -> u64 {
    s.pool.metadata().unwrap().blocks() * 512
}

fn space_comes_and_goes(layout: &str) {
    let mut s = Sandbox::formatted_as(layout);
    assert!(taken(&s) < 1 << 20, "{}", taken(&s));
    assert!(s.ok(["info", s.pool_str(), "--json"]).contains("\"is_thin\": true"));
    s.mount(&[]);
    let script = "for i in $(seq 1000); do head -c 65536 /dev/zero > small-$i; done";
    let made = s.served_script(&[], script).status().unwrap();
    assert!(made.success());
    std::fs::write(s.path("kept"), vec![7; 5 << 20]).unwrap();
    let full = taken(&s);
    assert!((69 << 20..110 << 20).contains(&full), "{full}");
    for i in 1..=1000 {
        std::fs::remove_file(s.path(&format!("small-{i}"))).unwrap();
    }
    // The server gives back what is free for some time.
    wait_until("the server has given space back", || taken(&s) < 64 << 20);
    s.ok(["trim", s.dir_str()]);
    // The server may have taken some for new files again.
    assert!(taken(&s) < (5 << 20) * 102 / 100 + (12 << 20), "{}", taken(&s));
    assert_eq!(std::fs::read(s.path("kept")).unwrap(), vec![7; 5 << 20]);
    s.umount();
    s.ok(["check", s.pool_str()]);
    s.ok(["trim", s.pool_str()]);
    // Formatted again, it takes nothing.
    s.ok(["mkfs", s.pool_str(), "--force", "--layout", layout]);
    assert!(taken(&s) < 1 << 20, "{}", taken(&s));
    s.ok(["mkfs", s.pool_str(), "--force", "--thick", "--layout", layout]);
    assert!(taken(&s) >= 256 << 20);
    let refused = s.fails(["trim", s.pool_str()], 1);
    assert!(refused.contains("--thick"), "{refused}");
}

fn a_full_file_system_below_is_an_error_and_nothing_more(layout: &str) {
    let mut s = Sandbox::empty();
    let below = s.outside("below");
    std::fs::create_dir(&below).unwrap();
    let mount = ["-t", "tmpfs", "-o", "size=32M", "none", below.to_str().unwrap()];
    assert!(Command::new("mount").args(mount).status().unwrap().success());
    s.pool = below.join("pool");
    s.ok(["mkfs", s.pool_str(), "--size", "256M", "--layout", layout]);
    s.mount(&[]);
    // In a program, and through the mount.
    let script = "head -c 20000000 /dev/zero > first; ! head -c 30000000 /dev/zero > second";
    let full = s.served_script(&[], script).output().unwrap();
    assert!(full.status.success(), "{full:?}");
    assert!(String::from_utf8_lossy(&full.stderr).contains("No space"), "{full:?}");
    let more = std::fs::write(s.path("third"), vec![1; 20 << 20]).unwrap_err();
    assert_eq!(more.kind(), std::io::ErrorKind::StorageFull);
    assert_eq!(std::fs::read(s.path("first")).unwrap(), vec![0; 20_000_000]);
    for name in ["second", "third"] {
        std::fs::remove_file(s.path(name)).unwrap();
    }
    let again = s.served_script(&[], "head -c 5000000 /dev/zero > again").status().unwrap();
    assert!(again.success());
    s.umount();
    s.ok(["check", s.pool_str()]);
    std::fs::remove_file(&s.pool).unwrap();
    assert!(Command::new("umount").arg(&below).status().unwrap().success());
}

fn pools_get_other_sizes(layout: &str) {
    let mut s = Sandbox::formatted_as(layout);
    s.mount(&[]);
    std::fs::write(s.path("kept"), vec![7; 5 << 20]).unwrap();
    let refused = s.fails(["resize", s.pool_str(), "2G"], 1);
    assert!(refused.contains("at most 1 GiB") && refused.contains("in use by"), "{refused}");
    s.umount();
    let length = |s: &Sandbox| s.pool.metadata().unwrap().len();
    assert_eq!(length(&s), 1 << 30);
    // The first three while the pool has its length, the last ones with another.
    for (size, want) in [
        ("16M", 16_u64 << 20),
        ("1G", 1 << 30),
        ("20000000", 19_988_480),
        ("2G", 2 << 30),
        ("20000000", 19_988_480),
    ] {
        let resized = s.ok(["resize", s.pool_str(), size, "--json"]);
        assert!(resized.contains(&format!("\"size_bytes\": {want}")), "{resized}");
        s.ok(["check", s.pool_str()]);
    }
    assert_eq!(length(&s), 8 << 30);
    for (size, code) in [("4M", 1), ("20T", 2)] {
        s.fails(["resize", s.pool_str(), size], code);
        assert_eq!(length(&s), 8 << 30);
    }
    s.mount(&[]);
    assert_eq!(std::fs::read(s.path("kept")).unwrap(), vec![7; 5 << 20]);
    s.umount();
    // A file that is formatted again keeps its size and its length.
    s.ok(["mkfs", s.pool_str(), "--force", "--layout", layout]);
    let info = s.ok(["info", s.pool_str(), "--json"]);
    assert!(info.contains("\"size_bytes\": 19988480,"), "{info}");
    assert!(info.contains(&format!("\"max_size_bytes\": {},", 8_u64 << 30)), "{info}");
    // A pool that takes its space at once takes that of the longer part, too.
    s.ok(["mkfs", s.pool_str(), "--force", "--thick", "--size", "16M", "--layout", layout]);
    assert_eq!(length(&s), 16 << 20);
    s.mount(&[]);
    let refused = s.fails(["resize", s.pool_str(), "32M"], 1);
    assert!(refused.contains("only if it is thin") && refused.contains("in use by"), "{refused}");
    s.umount();
    s.ok(["resize", s.pool_str(), "32M"]);
    assert!(taken(&s) >= 32 << 20);
    for wrong in [&["--size", "64M", "--max-size", "32M"][..], &["--max-size", "20T"]] {
        s.fails([&["mkfs", s.pool_str(), "--force", "--layout", layout], wrong].concat(), 2);
    }
}

/// Programs under `run` and plain ones write and remove files while the pool gets other sizes.
fn pools_get_other_sizes_beside_programs(layout: &str) {
    let mut s = Sandbox::empty();
    let new = ["mkfs", s.pool_str(), "--size", "64M", "--max-size", "512M", "--layout", layout];
    s.ok(new);
    s.mount(&[]);
    let script = "i=0
        while [ ! -e ../stop-$1 ]; do
            head -c 3000000 /dev/zero > $1-$((i % 4)) && i=$((i + 1))
            [ $((i % 3)) != 0 ] || rm -f $1-$((i % 4))
        done
        cmp -n 3000000 $1-$(((i - 1) % 4)) /dev/zero";
    let plain = ["-c", script, "sh", "plain"];
    let stop = |name: &str| s.dir.parent().unwrap().join(format!("stop-{name}"));
    std::fs::create_dir(s.path("served")).unwrap();
    let mut writers = [
        Command::new("sh").args(plain).current_dir(&s.dir).spawn().unwrap(),
        s.served_script(&[], &script.replace("$1", "served")).spawn().unwrap(),
    ];
    for size in ["128M", "48M", "512M", "64M", "256M"] {
        s.ok(["resize", s.dir_str(), size]);
        let df = Command::new("df").args(["--output=size", "-BM", s.dir_str()]).output().unwrap();
        let df = String::from_utf8_lossy(&df.stdout).into_owned();
        assert!(df.contains(size), "{df}");
    }
    for name in ["plain", "served"] {
        std::fs::write(stop(name), "").unwrap();
    }
    for writer in &mut writers {
        assert!(writer.wait().unwrap().success());
    }
    // All of the new size can be used, and no more.
    std::fs::write(s.path("large"), vec![1; 200 << 20]).unwrap();
    let more = std::fs::write(s.path("more"), vec![1; 60 << 20]).unwrap_err();
    assert_eq!(more.kind(), std::io::ErrorKind::StorageFull);
    let refused = s.fails(["resize", s.dir_str(), "100M"], 1);
    assert!(refused.contains("does not fit") && refused.contains("in use by"), "{refused}");
    assert!(taken(&s) <= 256 << 20, "{}", taken(&s));
    s.umount();
    s.ok(["check", s.pool_str()]);
    let info = s.ok(["info", s.pool_str()]);
    assert!(info.contains("256 MiB") && info.contains("up to 512 MiB"), "{info}");
}

#[test]
fn a_disk_in_memory_survives_a_reboot() {
    let mut s = Sandbox::empty();
    let saved = s.outside("saved");
    let file = saved.to_str().unwrap().to_owned();
    let options =
        ["--create", "--size", "64M", "--layout", "scmfs", "--save", &file, "--restore", &file];
    s.mount(&options);
    std::fs::write(s.path("kept"), vec![7; 3 << 20]).unwrap();
    s.umount();
    s.server_ends();
    let found = saved.metadata().unwrap();
    assert_eq!(found.len(), 256 << 20);
    assert!(found.blocks() * 512 < 8 << 20, "{}", found.blocks());
    s.ok(["check", &file]);
    // The memory is gone; by options of fstab it comes back, and is saved again.
    std::fs::remove_file(&s.pool).unwrap();
    let list = format!("create,size=64M,save={file},restore={file}");
    s.mount(&["-o", &list]);
    assert_eq!(std::fs::read(s.path("kept")).unwrap(), vec![7; 3 << 20]);
    std::fs::write(s.path("more"), "more").unwrap();
    s.umount();
    s.server_ends();
    std::fs::remove_file(&s.pool).unwrap();
    s.mount(&["--restore", &file]);
    assert_eq!(std::fs::read(s.path("more")).unwrap(), b"more");
    s.umount();
    s.server_ends();
    // Nothing else is overwritten, nor taken for a pool.
    std::fs::write(&saved, "precious").unwrap();
    let refused = s.fails(["mount", "--save", &file, s.pool_str(), s.dir_str()], 1);
    assert!(refused.contains("no saved copy"), "{refused}");
    std::fs::remove_file(&s.pool).unwrap();
    let refused = s.fails(["mount", "--restore", &file, s.pool_str(), s.dir_str()], 1);
    assert!(refused.contains("is no pool"), "{refused}");
    assert_eq!(std::fs::read(&saved).unwrap(), b"precious");
    assert!(!s.pool.exists());
    let missing = ["mount", "--restore", "/nowhere/saved", s.pool_str(), s.dir_str()];
    assert!(s.fails(missing, 1).contains("--create"));
    let nowhere = ["mount", "--save", "/nowhere/saved", s.pool_str(), s.dir_str()];
    let refused = s.fails([&nowhere[..], &["--create", "--size", "64M"]].concat(), 1);
    assert!(refused.contains("/nowhere"), "{refused}");
    let sizeless = s.fails(["mount", "--create", s.pool_str(), s.dir_str()], 2);
    assert!(sizeless.contains("--size"), "{sizeless}");
}

#[test]
fn an_unmount_tells_that_there_is_no_copy() {
    let mut s = Sandbox::formatted();
    let place = s.outside("place");
    std::fs::create_dir(&place).unwrap();
    let file = place.join("saved").to_str().unwrap().to_owned();
    for options in [&["umount"][..], &["--json", "umount"]] {
        s.mount(&["--save", &file]);
        assert_eq!(s.stats()["save"], *file);
        std::fs::remove_dir(&place).unwrap();
        let output = s.run([options, &[s.dir_str()]].concat());
        let told = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        assert_eq!(output.status.code(), Some(1), "{told}");
        assert!(told.contains("cannot be saved") && told.contains(&file), "{told}");
        std::fs::create_dir(&place).unwrap();
    }
    // The next copy is complete, and nothing tells of the last one.
    s.mount(&["--save", &file]);
    let told: serde_json::Value =
        serde_json::from_str(&s.ok(["umount", "--json", s.dir_str()])).unwrap();
    assert_eq!((&told["saved"], &told["not_saved"]), (&file.into(), &serde_json::Value::Null));
}
