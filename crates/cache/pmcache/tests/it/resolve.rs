//! Conflicts that are resolved by keeping one side.

use crate::changes::{conflicts, content, move_below, remove, sweep};
use crate::common::Below;
use crate::loading::{BLOCK, Tested, again, empty, fail_at, find, fresh, make};
use crate::writeback::{compare_below, file, write_back};
use pmcache::KeptSide;
use vfs::{Backed as _, Caller, Errno, FileSystem as _, NewKind, ROOT, SetAttr, SetXattr};

const SIDES: [KeptSide; 2] = [KeptSide::Cache, KeptSide::Directory];

/// Resolves a conflict. Afterwards no conflict is left, and both sides are equal.
fn resolve(fs: Tested, path: &str, keep: KeptSide) -> Tested {
    let command = match keep {
        KeptSide::Cache => "keepstone.cache.keep-cache",
        KeptSide::Directory => "keepstone.cache.keep-directory",
    };
    let ino = find(&fs, path);
    let done = fs.setxattr(ino, command.as_bytes(), b"", SetXattr::Any);
    assert_eq!(done, Ok(()), "{path} {keep:?}");
    check_resolved(&fs, path);
    fs
}

fn check_resolved(fs: &Tested, path: &str) {
    assert_eq!(conflicts(fs), Vec::<String>::new(), "{path}");
    assert_eq!(fs.status().troubles, []);
    sweep(fs);
    write_back(fs, path);
    compare_below(fs, path);
}

#[test]
fn a_file_that_both_have_changed() {
    for keep in SIDES {
        let below = empty();
        let f = file(&below, ROOT, "f", &vec![1; 5 * BLOCK as usize]);
        let fs = fresh(&below);
        content(&fs, "f");
        fs.write(find(&fs, "f"), BLOCK, b"ours").unwrap();
        assert_eq!(fs.resolve(find(&fs, "f"), keep), Err(Errno::ALREADY), "no conflict");
        below.write(f, 0, &vec![2; 3 * BLOCK as usize]).unwrap();
        let set = SetAttr { perm: Some(0o604), ..SetAttr::default() };
        below.setattr(&Caller::ROOT, f, &set).unwrap();
        sweep(&fs);
        assert_eq!(conflicts(&fs), ["f"]);
        // Others may change it once more.
        let set = SetAttr { size: Some(4 * BLOCK), ..SetAttr::default() };
        below.setattr(&Caller::ROOT, f, &set).unwrap();
        let fs = resolve(fs, "f", keep);
        let mut ours = vec![1; 5 * BLOCK as usize];
        ours[BLOCK as usize..][..4].copy_from_slice(b"ours");
        let mut theirs = vec![2; 3 * BLOCK as usize];
        theirs.extend([1; BLOCK as usize]);
        let kept = if keep == KeptSide::Cache { ours } else { theirs };
        assert!(content(&fs, "f") == kept && content(&*below, "f") == kept, "{keep:?}");
        assert!(content(&again(fs), "f") == kept);
    }
}

/// resolve-V2.
#[test]
fn what_the_cache_has_in_part_cannot_be_kept() {
    let below = empty();
    let f = file(&below, ROOT, "f", &vec![1; 5 * BLOCK as usize]);
    let fs = fresh(&below);
    fs.write(find(&fs, "f"), 0, &vec![3; BLOCK as usize]).unwrap();
    fs.pool().evict_content(find(&fs, "f"), 0..u64::MAX).unwrap();
    below.write(f, 2 * BLOCK, b"theirs").unwrap();
    sweep(&fs);
    assert_eq!(fs.resolve(find(&fs, "f"), KeptSide::Cache), Err(Errno::IO));
    assert_eq!(conflicts(&fs), ["f"], "both sides are as they were");
    assert_eq!(&content(&*below, "f")[2 * BLOCK as usize..][..6], b"theirs");
    let fs = resolve(fs, "f", KeptSide::Directory);
    assert_eq!(&content(&fs, "f")[..6], [1; 6]);
}

#[test]
fn a_file_that_others_have_removed_or_replaced() {
    for is_replaced in [false, true] {
        for keep in SIDES {
            let below = empty();
            let dir = make(&below, ROOT, "dir", NewKind::Dir);
            file(&below, dir, "f", b"first");
            file(&below, dir, "other", b"beside");
            let fs = fresh(&below);
            content(&fs, "dir/f");
            fs.write(find(&fs, "dir/f"), 0, b"OURS!").unwrap();
            file(&below, dir, "new", b"theirs");
            if is_replaced {
                file(&below, dir, "t", b"theirs");
                move_below(&*below, "dir/t", "dir/f");
            } else {
                remove(&*below, "dir/f");
            }
            fs.look_behind(find(&fs, "dir/f")).unwrap();
            let fs = resolve(fs, "dir/f", keep);
            let seen = fs.peek(find(&fs, "dir"), b"f").is_ok().then(|| content(&fs, "dir/f"));
            let kept: Option<&[u8]> = match (keep, is_replaced) {
                (KeptSide::Cache, _) => Some(b"OURS!"),
                (KeptSide::Directory, true) => Some(b"theirs"),
                (KeptSide::Directory, false) => None,
            };
            assert_eq!(seen.as_deref(), kept, "{keep:?} {is_replaced}");
            assert_eq!(content(&*below, "dir/new"), b"theirs", "the rest follows");
            assert_eq!(content(&fs, "dir/other"), b"beside");
            again(fs);
        }
    }
}

/// A file that was removed in the pool does not come back when others have replaced it.
#[test]
fn a_removal_beside_a_conflict_stays() {
    for keep in SIDES {
        let below = empty();
        file(&below, ROOT, "f", b"first");
        file(&below, ROOT, "removed", b"first");
        let fs = fresh(&below);
        content(&fs, "f");
        fs.write(find(&fs, "f"), 0, b"OURS!").unwrap();
        remove(&fs, "removed");
        file(&below, ROOT, "t", b"theirs");
        move_below(&*below, "t", "f");
        sweep(&fs);
        fs.resolve(find(&fs, "f"), keep).unwrap();
        assert!(fs.peek(ROOT, b"removed").is_err(), "{keep:?}");
        assert!(below.peek(ROOT, b"removed").is_ok(), "the directory is a conflict of its own");
        // Nothing gets a name in it before.
        let left: &[&str] = if keep == KeptSide::Cache { &["", "f"] } else { &[""] };
        assert_eq!(conflicts(&fs), left);
        let fs = resolve(fs, "", KeptSide::Cache);
        assert!(below.peek(ROOT, b"removed").is_err());
        assert_eq!(
            content(&fs, "f"),
            if keep == KeptSide::Cache { b"OURS!".to_vec() } else { b"theirs".into() }
        );
    }
}

#[test]
fn a_directory_that_both_have_changed() {
    for keep in SIDES {
        let below = empty();
        let dir = make(&below, ROOT, "dir", NewKind::Dir);
        for name in ["here", "ours goes", "theirs goes", "both"] {
            file(&below, dir, name, name.as_bytes());
        }
        let fs = fresh(&below);
        let ours = find(&fs, "dir");
        content(&fs, "dir/theirs goes");
        remove(&fs, "dir/ours goes");
        file(&fs, ours, "ours", b"ours");
        file(&fs, ours, "twice", b"ours");
        file(&below, dir, "twice", b"theirs");
        let sub = make(&below, dir, "sub", NewKind::Dir);
        file(&below, sub, "deep", b"theirs");
        remove(&*below, "dir/theirs goes");
        let set = SetAttr { perm: Some(0o711), ..SetAttr::default() };
        below.setattr(&Caller::ROOT, dir, &set).unwrap();
        sweep(&fs);
        assert_eq!(conflicts(&fs), ["dir"]);
        let fs = resolve(fs, "dir", keep);
        let mut names = vec![];
        fs.readdir(find(&fs, "dir"), 0, &mut |e| {
            names.push(String::from_utf8(e.name.to_vec()).unwrap());
            true
        })
        .unwrap();
        names.retain(|name| !name.starts_with('.'));
        names.sort();
        let (kept, perm): (&[&str], _) = match keep {
            KeptSide::Cache => (&["both", "here", "ours", "theirs goes", "twice"], 0o755),
            KeptSide::Directory => (&["both", "here", "ours", "ours goes", "sub", "twice"], 0o711),
        };
        assert_eq!(
            (&names[..], fs.getattr(find(&fs, "dir")).unwrap().perm),
            (&kept.iter().map(|n| n.to_string()).collect::<Vec<_>>()[..], perm)
        );
        let twice = if keep == KeptSide::Cache { "ours" } else { "theirs" };
        assert_eq!(content(&fs, "dir/twice"), twice.as_bytes());
        again(fs);
    }
}

#[test]
fn a_directory_that_others_have_removed() {
    for keep in SIDES {
        let below = empty();
        let dir = make(&below, ROOT, "dir", NewKind::Dir);
        let sub = make(&below, dir, "sub", NewKind::Dir);
        file(&below, sub, "f", b"first");
        file(&below, dir, "g", b"first");
        let fs = fresh(&below);
        content(&fs, "dir/sub/f");
        fs.write(find(&fs, "dir/sub/f"), 0, b"OURS!").unwrap();
        remove_all(&below);
        sweep(&fs);
        let f = find(&fs, "dir/sub/f");
        assert_eq!(fs.resolve(f, keep), Err(Errno::NOENT), "its directory is gone");
        if keep == KeptSide::Cache {
            assert_eq!(fs.resolve(find(&fs, "dir"), keep), Err(Errno::IO), "`g` is absent");
            // The user gives it up.
            let dir = find(&fs, "dir");
            fs.pool().begin_names(dir).unwrap();
            assert!(fs.pool().unload_name(dir, b"g", find_in(&fs, dir, b"g")).unwrap());
            fs.pool().finish_names(dir).unwrap();
        }
        let fs = resolve(fs, "dir", keep);
        match keep {
            KeptSide::Cache => assert_eq!(content(&*below, "dir/sub/f"), b"OURS!"),
            KeptSide::Directory => assert!(fs.peek(ROOT, b"dir").is_err()),
        }
        again(fs);
    }
}

fn find_in(fs: &Tested, dir: vfs::Ino, wanted: &[u8]) -> vfs::Ino {
    let mut found = None;
    fs.pool()
        .each_name(dir, &mut |name, ino, _| found = found.or((name == wanted).then_some(ino)))
        .unwrap();
    found.unwrap()
}

fn remove_all(below: &Below) {
    remove(&**below, "dir/sub/f");
    remove(&**below, "dir/g");
    below.rmdir(find(&**below, "dir"), b"sub").unwrap();
    below.rmdir(ROOT, b"dir").unwrap();
}

/// resolve-V1: the server dies at each call of the backing store. Then there is the conflict still,
/// or the side that was to be kept.
#[test]
fn a_resolution_that_is_interrupted_is_repeated() {
    for (keep, kind) in SIDES.into_iter().flat_map(|keep| (0..3).map(move |kind| (keep, kind))) {
        let mut interrupted = 0;
        for calls in 1.. {
            let below = empty();
            let dir = make(&below, ROOT, "dir", NewKind::Dir);
            let f = file(&below, dir, "f", b"first");
            let fs = fresh(&below);
            content(&fs, "dir/f");
            fs.write(find(&fs, "dir/f"), 0, b"OURS!").unwrap();
            match kind {
                0 => below.write(f, 0, b"theirs").unwrap(),
                1 => {
                    file(&below, dir, "t", b"theirs");
                    move_below(&*below, "dir/t", "dir/f");
                }
                _ => remove(&*below, "dir/f"),
            }
            fs.look_behind(find(&fs, "dir/f")).unwrap();
            fail_at(&below, calls);
            let is_done = fs.resolve(find_in(&fs, find(&fs, "dir"), b"f"), keep).is_ok();
            below.fail_where(|_| None);
            let fs = again(fs);
            sweep(&fs);
            let dir = find(&fs, "dir");
            let path = "dir/f";
            if fs.peek(dir, b"f").is_ok() {
                match fs.resolve(find(&fs, path), keep) {
                    Ok(()) => interrupted += 1,
                    done => assert_eq!(done, Err(Errno::ALREADY), "{keep:?} {kind} {calls}"),
                }
            }
            check_resolved(&fs, path);
            let seen = fs.peek(dir, b"f").is_ok().then(|| content(&fs, path));
            let kept: Option<&[u8]> = match (keep, kind) {
                (KeptSide::Cache, _) => Some(b"OURS!"),
                (KeptSide::Directory, 2) => None,
                (KeptSide::Directory, _) => Some(b"theirs"),
            };
            assert_eq!(seen.as_deref(), kept, "{keep:?} {kind} {calls}");
            if is_done && calls > 40 {
                break;
            }
        }
        assert!(interrupted > 0, "{keep:?} {kind}");
    }
}
