//! A whole file system as a value that can be compared.
//!
//! [`tree`] walks any [`FileSystem`] through the contract alone: names, attributes, contents (by
//! digest, block by block, skipping holes), symbolic links, extended attributes, and which names
//! are one inode. On the way it checks what must hold of any file system: listings agree with
//! lookups, no name appears twice, `.` and `..` come first and are right, link counts match the
//! names.
//!
//! The value leaves out what implementations may choose: inode numbers, times, allocated space,
//! sizes of directories. The walk gives back every reference it takes. No other thread or process
//! should change the file system meanwhile.

use std::collections::BTreeMap;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};

use crate::{Attr, Errno, FileKind, FileSystem, Ino, Seek};

/// Digests are of blocks of this many bytes.
const BLOCK_SIZE: u64 = 4096;
const ZEROS: [u8; BLOCK_SIZE as usize] = [0; BLOCK_SIZE as usize];
/// Bytes per `read`.
const CHUNK: u64 = 256 * 1024;
/// Most bytes of one file that a walk reads. A file system that reports more data than this has
/// lost a hole.
const DATA_MAX: u64 = 1 << 30;
/// Most differences that [`diff`] lists.
const DIFFS_MAX: usize = 12;

/// The inode that a path leads to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Node {
    /// Kind of object.
    pub kind: FileKind,
    /// Permission bits, `0o7777`.
    pub perm: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number.
    pub rdev: u32,
    /// Link count.
    pub nlink: u32,
    /// Size in bytes; `None` for a directory.
    pub size: Option<u64>,
    /// Digest of each block that is not all zeros, by block index.
    pub content: BTreeMap<u64, u64>,
    /// Target of a symbolic link.
    pub target: Option<Vec<u8>>,
    /// Extended attributes.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// A path relative to the root of the walk, components joined by `/`; empty for that root.
pub type Path = Vec<u8>;

/// A file system, or a part of one, as a value.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Tree {
    nodes: BTreeMap<Path, Node>,
    /// For each path the first path of the same inode.
    same_as: BTreeMap<Path, Path>,
}

/// Why a walk stopped: the file system failed a call, or contradicted itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WalkError {
    /// The path at which it stopped.
    pub path: Path,
    /// The reason.
    pub what: String,
}

impl WalkError {
    fn new(path: &[u8], what: String) -> Self {
        Self { path: path.to_vec(), what }
    }
}

impl fmt::Display for WalkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "/{}: {}", self.path.escape_ascii(), self.what)
    }
}

impl std::error::Error for WalkError {}

impl Tree {
    /// Returns every path with its node; the root of the walk is the empty path.
    pub fn nodes(&self) -> &BTreeMap<Path, Node> {
        &self.nodes
    }

    /// Returns the same tree with empty files of the same sizes.
    #[must_use]
    pub fn without_content(&self) -> Self {
        let mut tree = self.clone();
        tree.nodes.values_mut().for_each(|node| node.content.clear());
        tree
    }

    /// Returns the first, in the order of bytes, of all paths that are the same inode as `path`.
    pub fn same_as(&self, path: &[u8]) -> Option<&[u8]> {
        self.same_as.get(path).map(Vec::as_slice)
    }
}

/// Reads all of `fs`.
pub fn tree(fs: &dyn FileSystem) -> Result<Tree, WalkError> {
    subtree(fs, fs.root())
}

/// Reads what is below the directory `root`, and `root` itself. Every name of every file must lie
/// below it, or link counts will not match.
pub fn subtree(fs: &dyn FileSystem, root: Ino) -> Result<Tree, WalkError> {
    read(fs, root, true)
}

/// Reads all of `fs` except the contents of files.
pub fn tree_without_content(fs: &dyn FileSystem) -> Result<Tree, WalkError> {
    read(fs, fs.root(), false)
}

/// Reads the tree below `root`, checks its links, and gives back all references.
fn read(fs: &dyn FileSystem, root: Ino, reads_content: bool) -> Result<Tree, WalkError> {
    let mut walk = TreeWalk { fs, reads_content, tree: Tree::default(), paths: BTreeMap::new() };
    let result = walk.run(root);
    walk.name_classes();
    for &ino in walk.paths.keys().filter(|&&ino| ino != root) {
        fs.forget(ino, 1);
    }
    result.and_then(|()| walk.tree.check_links())?;
    Ok(walk.tree)
}

/// Reads one inode.
pub fn node(fs: &dyn FileSystem, ino: Ino) -> Result<Node, WalkError> {
    read_node(fs, ino, &[], true)
}

/// Describes how `b` differs from `a`, one line for each difference; `None` if they are equal.
pub fn diff(a: &Tree, b: &Tree) -> Option<String> {
    let mut lines = Vec::new();
    for (path, x) in &a.nodes {
        let at = path.escape_ascii();
        match b.nodes.get(path) {
            None => lines.push(format!("/{at}: only on the left ({:?})", x.kind)),
            Some(y) => lines.extend(diff_nodes(x, y).map(|d| format!("/{at}: {d}"))),
        }
        if let (Some(x), Some(y)) = (a.same_as(path), b.same_as(path)) {
            let (x, y) = (x.escape_ascii().to_string(), y.escape_ascii().to_string());
            lines
                .extend((x != y).then(|| format!("/{at}: the inode of /{x} != the inode of /{y}")));
        }
    }
    for (path, y) in b.nodes.iter().filter(|(path, _)| !a.nodes.contains_key(*path)) {
        lines.push(format!("/{}: only on the right ({:?})", path.escape_ascii(), y.kind));
    }
    let more = lines.len().saturating_sub(DIFFS_MAX);
    lines.truncate(DIFFS_MAX);
    if more > 0 {
        lines.push(format!("… and {more} more"));
    }
    (!lines.is_empty()).then(|| lines.join("\n"))
}

/// Describes how `b` differs from `a`; `None` if they are equal.
pub fn diff_nodes(a: &Node, b: &Node) -> Option<String> {
    let mut parts = Vec::new();
    let mut field = |name: &str, x: &dyn fmt::Debug, y: &dyn fmt::Debug| {
        let (x, y) = (format!("{x:?}"), format!("{y:?}"));
        if x != y {
            parts.push(format!("{name} {x} != {y}"));
        }
    };
    field("kind", &a.kind, &b.kind);
    field("perm", &Octal(a.perm), &Octal(b.perm));
    field("uid", &a.uid, &b.uid);
    field("gid", &a.gid, &b.gid);
    field("rdev", &a.rdev, &b.rdev);
    field("nlink", &a.nlink, &b.nlink);
    field("size", &a.size, &b.size);
    field("target", &a.target.as_ref().map(Text), &b.target.as_ref().map(Text));
    for name in a.xattrs.keys().chain(b.xattrs.keys().filter(|n| !a.xattrs.contains_key(*n))) {
        let value = |node: &Node| node.xattrs.get(name).cloned();
        let (x, y) = (value(a), value(b));
        let label = format!("xattr {}", name.escape_ascii());
        field(&label, &x.as_ref().map(Text), &y.as_ref().map(Text));
    }
    let differs = |index: &&u64| a.content.get(index) != b.content.get(index);
    let blocks: Vec<u64> = {
        let new = b.content.keys().filter(|index| !a.content.contains_key(index));
        a.content.keys().chain(new).filter(differs).copied().collect()
    };
    if let Some(first) = blocks.iter().min() {
        let offset = first * BLOCK_SIZE;
        parts.push(format!("content of {} blocks, the first at offset {offset}", blocks.len()));
    }
    (!parts.is_empty()).then(|| parts.join("; "))
}

struct Octal(u32);

impl fmt::Debug for Octal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#o}", self.0)
    }
}

struct Text<'a>(&'a Vec<u8>);

impl fmt::Debug for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.get(..60) {
            Some(start) => write!(f, "\"{}…\" ({} bytes)", start.escape_ascii(), self.0.len()),
            None => write!(f, "\"{}\"", self.0.escape_ascii()),
        }
    }
}

struct TreeWalk<'a> {
    fs: &'a dyn FileSystem,
    reads_content: bool,
    tree: Tree,
    /// The paths of each inode, which holds one reference (the root of the walk none).
    paths: BTreeMap<Ino, Vec<Path>>,
}

impl TreeWalk<'_> {
    /// Reads all nodes below `root`. Each inode that it finds then holds one reference, even after
    /// an error.
    fn run(&mut self, root: Ino) -> Result<(), WalkError> {
        let parent = if root == self.fs.root() { Some(root) } else { None };
        self.paths.insert(root, vec![Path::new()]);
        let node = read_node(self.fs, root, &[], self.reads_content)?;
        self.tree.nodes.insert(Path::new(), node);
        let mut pending = vec![(root, parent, Path::new())];
        while let Some((dir, parent, path)) = pending.pop() {
            for (name, ino, kind) in list(self.fs, dir, parent, &path)? {
                let child = join(&path, &name);
                let found = self.fs.lookup(dir, &name).map_err(at(&child, "lookup"))?;
                let again = self.paths.contains_key(&found.ino);
                self.paths.entry(found.ino).or_default().push(child.clone());
                if again {
                    self.fs.forget(found.ino, 1);
                }
                if (found.ino, found.kind) != (ino, kind) {
                    let what = format!("listed as {ino} {kind:?}, found {found:?}");
                    return Err(WalkError::new(&child, what));
                }
                let node = read_node(self.fs, ino, &child, self.reads_content)?;
                self.tree.nodes.insert(child.clone(), node);
                if kind == FileKind::Dir {
                    if again {
                        return Err(WalkError::new(&child, "directory with two names".into()));
                    }
                    pending.push((ino, Some(dir), child));
                }
            }
        }
        Ok(())
    }

    /// Records which paths are one inode, by the first path in the order of bytes: the order of
    /// listings is the implementation's choice.
    fn name_classes(&mut self) {
        for paths in self.paths.values() {
            if let Some(first) = paths.iter().min() {
                let classes = paths.iter().map(|path| (path.clone(), first.clone()));
                self.tree.same_as.extend(classes);
            }
        }
    }
}

impl Tree {
    /// Checks link counts: of files the number of their names, of directories 2 plus their
    /// subdirectories.
    fn check_links(&self) -> Result<(), WalkError> {
        let mut expected: BTreeMap<&[u8], u32> = BTreeMap::new();
        for (path, node) in &self.nodes {
            if node.kind == FileKind::Dir {
                *expected.entry(path).or_default() += 2;
                if !path.is_empty() {
                    *expected.entry(parent_of(path)).or_default() += 1;
                }
            } else {
                *expected.entry(&self.same_as[path]).or_default() += 1;
            }
        }
        for (path, links) in expected {
            let nlink = self.nodes[path].nlink;
            if nlink != links {
                let what = format!("link count {nlink}, but {links} links");
                return Err(WalkError::new(path, what));
            }
        }
        Ok(())
    }
}

fn join(dir: &[u8], name: &[u8]) -> Path {
    if dir.is_empty() { name.to_vec() } else { [dir, b"/", name].concat() }
}

fn parent_of(path: &[u8]) -> &[u8] {
    path.iter().rposition(|&b| b == b'/').map_or(&[], |slash| &path[..slash])
}

fn at<'a>(path: &'a [u8], call: &'a str) -> impl Fn(Errno) -> WalkError + 'a {
    move |errno| WalkError::new(path, format!("{call}: {errno}"))
}

type Listed = (Vec<u8>, Ino, FileKind);

/// Returns the entries of a directory except `.` and `..`, which it checks (`..` if `parent` is
/// known).
fn list(
    fs: &dyn FileSystem,
    dir: Ino,
    parent: Option<Ino>,
    path: &[u8],
) -> Result<Vec<Listed>, WalkError> {
    let mut entries: Vec<Listed> = Vec::new();
    fs.readdir(dir, 0, &mut |entry| {
        entries.push((entry.name.to_vec(), entry.ino, entry.kind));
        true
    })
    .map_err(at(path, "readdir"))?;
    let wrong = |what: String| WalkError::new(path, what);
    let dots = entries.iter().take(2).map(|(name, ..)| name.as_slice());
    if !dots.eq([b".".as_slice(), b".."]) {
        return Err(wrong("listing does not start with . and ..".into()));
    }
    let entries_after = entries.split_off(2);
    if entries[0].1 != dir || parent.is_some_and(|parent| entries[1].1 != parent) {
        return Err(wrong(format!(". or .. of {dir} is wrong: {entries:?}")));
    }
    let mut names: Vec<_> = entries_after.iter().map(|(name, ..)| name).collect();
    names.sort();
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(wrong(format!("{} is listed twice", pair[0].escape_ascii()))),
        None => Ok(entries_after),
    }
}

/// Reads attributes, extended attributes and content of an inode; `path` is for errors.
fn read_node(
    fs: &dyn FileSystem,
    ino: Ino,
    path: &[u8],
    reads_content: bool,
) -> Result<Node, WalkError> {
    let attr = fs.getattr(ino).map_err(at(path, "getattr"))?;
    let mut xattrs = BTreeMap::new();
    for name in fs.listxattr(ino).map_err(at(path, "listxattr"))? {
        let value = fs.getxattr(ino, &name).map_err(at(path, "getxattr"))?;
        xattrs.insert(name, value);
    }
    let target = match attr.kind {
        FileKind::Symlink => Some(fs.readlink(ino).map_err(at(path, "readlink"))?),
        _ => None,
    };
    if target.as_ref().is_some_and(|target| target.len() as u64 != attr.size) {
        let what = format!("size {} is not the length of the target", attr.size);
        return Err(WalkError::new(path, what));
    }
    let content = match attr.kind {
        FileKind::File if reads_content => digests(fs, &attr, path)?,
        _ => BTreeMap::new(),
    };
    Ok(Node {
        kind: attr.kind,
        perm: attr.perm,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev,
        nlink: attr.nlink,
        size: (attr.kind != FileKind::Dir).then_some(attr.size),
        content,
        target,
        xattrs,
    })
}

/// Digests of the blocks that are not all zeros.
fn digests(fs: &dyn FileSystem, attr: &Attr, path: &[u8]) -> Result<BTreeMap<u64, u64>, WalkError> {
    let mut digests = BTreeMap::new();
    read_content(fs, attr, path, &mut |index, block| {
        let mut hasher = DefaultHasher::new();
        block.hash(&mut hasher);
        digests.insert(index, hasher.finish());
    })?;
    Ok(digests)
}

/// Calls `each` for the blocks of a file that are not all zeros, with their index; the last may be
/// shorter.
pub fn content(
    fs: &dyn FileSystem,
    ino: Ino,
    each: &mut dyn FnMut(u64, &[u8]),
) -> Result<(), WalkError> {
    let attr = fs.getattr(ino).map_err(at(&[], "getattr"))?;
    read_content(fs, &attr, &[], each)
}

/// Implements [`content`], with checks of `seek` and `read`.
fn read_content(
    fs: &dyn FileSystem,
    attr: &Attr,
    path: &[u8],
    each: &mut dyn FnMut(u64, &[u8]),
) -> Result<(), WalkError> {
    let wrong = |what: String| WalkError::new(path, what);
    let seek = |offset, whence| match fs.seek(attr.ino, offset, whence) {
        Ok(found) if found < offset || found > attr.size => {
            Err(wrong(format!("seek {whence:?} from {offset} found {found}")))
        }
        Ok(found) => Ok(Some(found)),
        Err(Errno::NXIO) => Ok(None),
        Err(errno) => Err(at(path, "seek")(errno)),
    };
    let mut buf = Vec::new();
    let (mut offset, mut total) = (0, 0);
    while offset < attr.size {
        let Some(data) = seek(offset, Seek::Data)? else { break };
        let Some(hole) = seek(data, Seek::Hole)? else {
            return Err(wrong(format!("no hole after the data at {data}")));
        };
        if hole == data {
            return Err(wrong(format!("{data} is data and a hole")));
        }
        offset = data - data % BLOCK_SIZE;
        let end = hole.next_multiple_of(BLOCK_SIZE).min(attr.size);
        total += end - offset;
        if total > DATA_MAX {
            return Err(wrong(format!("seek reports more than {DATA_MAX} bytes of data")));
        }
        while offset < end {
            let want = (end - offset).min(CHUNK) as usize;
            buf.resize(buf.len().max(want), 0);
            let got = fs.read(attr.ino, offset, &mut buf[..want]).map_err(at(path, "read"))?;
            if got != want {
                return Err(wrong(format!("read of {want} at {offset} gave {got}")));
            }
            for (index, block) in (offset / BLOCK_SIZE..).zip(buf[..want].chunks(4096)) {
                if *block != ZEROS[..block.len()] {
                    each(index, block);
                }
            }
            offset += want as u64;
        }
    }
    Ok(())
}
