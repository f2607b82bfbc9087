//! Many threads at once on shared directories, compared with tmpfs.
//!
//! All workers change the same directories. Each plays its own seeded sequence with names of its
//! own, so that the final tree does not depend on their order. The same sequences on tmpfs are the
//! reference.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};

use crate::common::{PermissionsExt, Sandbox, on_each_engine};
use rng::Rng;

on_each_engine!(many_workers, many_workers_without_cache,);

const WORKERS: u64 = 8;
const STEPS: usize = 1500;
/// Directories that all workers share.
const SHARED: [&str; 3] = ["x", "y", "x/z"];

/// Plays one worker's sequence. An operation that fails (for example because a name is missing)
/// fails on both file systems.
fn play(root: &Path, worker: u64) {
    let mut rng = Rng::new(worker);
    for step in 0..STEPS {
        let mut name = || -> PathBuf {
            let dir = SHARED[rng.below(3) as usize];
            root.join(dir).join(format!("w{worker}-{}", rng.below(12)))
        };
        let (a, b) = (name(), name());
        let _ = one_step(&mut rng, step, &a, &b);
    }
}

fn one_step(rng: &mut Rng, step: usize, a: &Path, b: &Path) -> io::Result<()> {
    let data = vec![step as u8; 1 + rng.below(20_000) as usize];
    let at = rng.below(60_000);
    match rng.below(16) {
        0..4 => open(a)?.write_all_at(&data, at),
        4 => fs::write(a, &data),
        5 => open(a)?.set_len(at),
        6 => fs::rename(a, b),
        7 => fs::hard_link(a, b),
        // The target is a name of the same worker, which may be absent, a file, or the link itself.
        8 => symlink(b.file_name().unwrap(), a),
        9 => fs::create_dir(a),
        10 => fs::remove_dir(a),
        11 => fs::remove_file(a),
        12 => fs::set_permissions(a, PermissionsExt::from_mode(0o600 + at as u32 % 0o200)),
        13 => fs::copy(a, b).map(drop),
        14 => {
            let exchange = rustix::fs::RenameFlags::EXCHANGE;
            let cwd = rustix::fs::CWD;
            Ok(rustix::fs::renameat_with(cwd, a, cwd, b, exchange)?)
        }
        _ => {
            let flags = rustix::fs::XattrFlags::empty();
            Ok(rustix::fs::lsetxattr(a, "trusted.step", &data[..data.len().min(500)], flags)?)
        }
    }
}

fn open(path: &Path) -> io::Result<fs::File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)
}

/// Returns everything that a program can see of a tree, except times.
fn tree(root: &Path) -> BTreeMap<PathBuf, String> {
    let mut seen = BTreeMap::new();
    let mut inodes = BTreeMap::new();
    let mut left = vec![root.to_owned()];
    while let Some(dir) = left.pop() {
        for entry in fs::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            let meta = fs::symlink_metadata(&path).unwrap();
            let name = path.strip_prefix(root).unwrap().to_owned();
            let mut text = format!("{:o} nlink {}", meta.mode(), meta.nlink());
            if meta.is_dir() {
                left.push(path.clone());
            } else if meta.is_symlink() {
                text += &format!(" -> {}", fs::read_link(&path).unwrap().display());
            } else {
                let content = fs::read(&path).unwrap();
                text += &format!(" size {} {:x}", content.len(), hash(&content));
                inodes.entry(meta.ino()).or_insert_with(Vec::new).push(name.clone());
            }
            let mut value = vec![0; 1000];
            if let Ok(len) = rustix::fs::lgetxattr(&path, "trusted.step", value.as_mut_slice()) {
                text += &format!(" xattr {:x}", hash(&value[..len]));
            }
            seen.insert(name, text);
        }
    }
    // Lists the names of one file together, whatever its inode number.
    for mut names in inodes.into_values() {
        names.sort();
        let all = format!("{names:?}");
        names.iter().for_each(|name| seen.get_mut(name).unwrap().push_str(&all));
    }
    seen
}

fn hash(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3))
}

fn play_all(root: &Path) {
    for dir in SHARED {
        fs::create_dir(root.join(dir)).unwrap();
    }
    std::thread::scope(|scope| {
        for worker in 0..WORKERS {
            scope.spawn(move || play(root, worker));
        }
    });
}

fn same_as_tmpfs(layout: &str, options: &[&str]) {
    let mut s = Sandbox::mounted_as(layout, options);
    let reference = tempfile::tempdir_in("/dev/shm").unwrap();
    play_all(reference.path());
    play_all(&s.dir);
    let expected = tree(reference.path());
    assert!(expected.len() > 100);
    let compare = |found: BTreeMap<PathBuf, String>, when: &str| {
        for (name, text) in &expected {
            assert_eq!(found.get(name), Some(text), "{} {when}", name.display());
        }
        assert_eq!(found.len(), expected.len(), "{when}");
    };
    compare(tree(&s.dir), "at once");
    assert_eq!(s.stats()["panics"], 0);
    s.signal_server(rustix::process::Signal::KILL);
    s.server_ends();
    s.mount(options);
    compare(tree(&s.dir), "after the server was killed");
    s.umount();
    assert!(s.ok(["check", s.pool_str()]).contains("clean"));
}

fn many_workers(layout: &str) {
    same_as_tmpfs(layout, &["--threads", "4"]);
}

fn many_workers_without_cache(layout: &str) {
    same_as_tmpfs(layout, &["--threads", "4", "--no-cache"]);
}

#[test]
fn many_workers_whose_opens_are_asked_for() {
    same_as_tmpfs("bpfs", &["--threads", "4", "-o", "ask_open"]);
}
