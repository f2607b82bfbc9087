//! Walking paths below the root of a file system, for callers without a mount, and so without a
//! kernel that walks them.
//!
//! These functions do not check permission. The process layer has its own walk, which checks
//! permission at each step, caches its results, and leaves to the kernel the paths that lead
//! outside.

use crate::{Entry, Errno, FileKind, FileSystem, Ino, Result};

/// The most symbolic links that one path may lead through (the kernel's limit).
pub const LINKS_MAX: u32 = 40;
/// Longest path, in bytes, with the NUL behind it (the kernel's `PATH_MAX`).
pub const PATH_MAX: usize = 4096;

/// Returns the names in a path.
pub fn names(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|&byte| byte == b'/').filter(|name| !name.is_empty())
}

/// Calls `act` with the directory that holds the last name of `path`, and that name: `.` for the
/// root. Absolute and relative paths both begin at the root. Symbolic links on the way are
/// followed, but not one at the end.
///
/// # Errors
/// `ENOENT` for an empty path, `ENAMETOOLONG` from [`PATH_MAX`] on, `ELOOP` beyond [`LINKS_MAX`];
/// of [`FileSystem::lookup`]; of `act`.
pub fn at<F, T>(fs: &F, path: &[u8], act: impl FnOnce(Ino, &[u8]) -> Result<T>) -> Result<T>
where
    F: FileSystem + ?Sized,
{
    if path.is_empty() {
        return Err(Errno::NOENT);
    }
    let (dir, name) = parent(fs, fs.root(), path, &mut 0)?;
    let result = act(dir, name);
    fs.forget(dir, 1);
    result
}

/// Resolves a name in a directory, following symbolic links to the end; adds a reference.
///
/// # Errors
/// As [`at`].
pub fn follow<F: FileSystem + ?Sized>(fs: &F, dir: Ino, name: &[u8]) -> Result<Entry> {
    follow_more(fs, dir, name, &mut 0)
}

/// Returns the directory that holds the last name of a path that begins in `dir`, with a reference,
/// and the name.
fn parent<'p, F: FileSystem + ?Sized>(
    fs: &F,
    dir: Ino,
    path: &'p [u8],
    links: &mut u32,
) -> Result<(Ino, &'p [u8])> {
    if path.len() >= PATH_MAX {
        return Err(Errno::NAMETOOLONG);
    }
    let mut at = if path.first() == Some(&b'/') { fs.root() } else { dir };
    let mut names = names(path).peekable();
    fs.lookup(at, b".")?;
    while let Some(name) = names.next() {
        if names.peek().is_none() {
            return Ok((at, name));
        }
        let next = follow_more(fs, at, name, links);
        fs.forget(at, 1);
        at = next?.ino;
    }
    Ok((at, b"."))
}

/// Looks up a name and follows symbolic links, which it adds to `links`. Adds a reference. `ELOOP`
/// for more than [`LINKS_MAX`].
fn follow_more<F: FileSystem + ?Sized>(
    fs: &F,
    dir: Ino,
    name: &[u8],
    links: &mut u32,
) -> Result<Entry> {
    let entry = fs.lookup(dir, name)?;
    if entry.kind != FileKind::Symlink {
        return Ok(entry);
    }
    let target = fs.readlink(entry.ino);
    fs.forget(entry.ino, 1);
    *links += 1;
    if *links > LINKS_MAX {
        return Err(Errno::LOOP);
    }
    let target = target?;
    let (parent, last) = parent(fs, dir, &target, links)?;
    let found = follow_more(fs, parent, last, links);
    fs.forget(parent, 1);
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Model;
    use crate::{Caller, NewKind, NewNode, ROOT};

    fn make(fs: &Model, dir: Ino, name: &str, kind: NewKind<'_>) -> Ino {
        let node = NewNode { kind, mode: 0o755, umask: 0 };
        let made = fs.create(&Caller::ROOT, dir, name.as_bytes(), &node).unwrap();
        made.ino
    }

    fn find(fs: &Model, path: &str) -> Result<Ino> {
        let found = at(fs, path.as_bytes(), |dir, name| follow(fs, dir, name))?;
        fs.forget(found.ino, 1);
        Ok(found.ino)
    }

    #[test]
    fn paths_lead_where_the_kernel_would_go() {
        let fs = Model::new();
        let d = make(&fs, ROOT, "d", NewKind::Dir);
        let e = make(&fs, d, "e", NewKind::Dir);
        let f = make(&fs, e, "f", NewKind::File);
        make(&fs, ROOT, "to-e", NewKind::Symlink(b"d/./e/"));
        make(&fs, d, "to-f", NewKind::Symlink(b"../to-e/f"));
        make(&fs, e, "absolute", NewKind::Symlink(b"/d/to-f"));
        make(&fs, ROOT, "nowhere", NewKind::Symlink(b"none/f"));
        make(&fs, ROOT, "loop", NewKind::Symlink(b"d/../loop"));
        for path in ["d/e/f", "/d/e/f", "//d///e/f", "to-e/f", "d/to-f", "to-e/absolute"] {
            assert_eq!(find(&fs, path), Ok(f), "{path}");
        }
        for (path, dir) in [("/", ROOT), ("d/..", ROOT), ("d/e/..", d), ("to-e/", e), (".", ROOT)] {
            assert_eq!(find(&fs, path), Ok(dir), "{path}");
        }
        assert_eq!(find(&fs, ""), Err(Errno::NOENT));
        assert_eq!(find(&fs, "nowhere"), Err(Errno::NOENT));
        assert_eq!(find(&fs, "loop"), Err(Errno::LOOP));
        assert_eq!(find(&fs, "d/e/f/g"), Err(Errno::NOTDIR));
        assert_eq!(find(&fs, &"d/../".repeat(PATH_MAX / 5 + 1)), Err(Errno::NAMETOOLONG));
        // `at` does not follow a link at the end of the path.
        assert_eq!(
            at(&fs, b"to-e", |dir, name| Ok((dir, name.to_vec()))),
            Ok((ROOT, b"to-e".to_vec()))
        );
    }

    #[test]
    fn all_references_are_given_back() {
        let fs = Model::new();
        let d = make(&fs, ROOT, "d", NewKind::Dir);
        let f = make(&fs, d, "f", NewKind::File);
        make(&fs, ROOT, "link", NewKind::Symlink(b"d/f"));
        make(&fs, ROOT, "loop", NewKind::Symlink(b"loop"));
        for path in ["link", "d/f", "d/none", "loop", "link/x"] {
            let _ = find(&fs, path);
        }
        fs.forget(d, 1);
        fs.forget(f, 1);
        fs.unlink(d, b"f").unwrap();
        fs.rmdir(ROOT, b"d").unwrap();
        assert_eq!(fs.getattr(f), Err(Errno::STALE));
        assert_eq!(fs.getattr(d), Err(Errno::STALE));
    }
}
