//! Making a call, and expressing its outcome in terms that two implementations share.

use std::hash::{DefaultHasher, Hash, Hasher};

use crate::script::{self, Attrs, Driver, Given, HANDLES, Op, Stop, When};
use crate::{Attr, Errno, FileKind, FileSystem, Ino, Timestamp};

/// The handles of a sequence, and the directory that it takes for the root.
#[derive(Clone, Debug)]
pub struct Handles {
    root: Ino,
    held: script::Handles,
}

impl Handles {
    /// Makes handles that hold nothing, for paths that start at `root`.
    pub fn new(root: Ino) -> Self {
        Self { root, held: [None; HANDLES] }
    }

    /// Returns the inode that each handle holds.
    pub fn held(&self) -> &[Option<Ino>] {
        &self.held
    }

    /// Gives back every reference.
    pub fn release(&mut self, fs: &dyn FileSystem) {
        for ino in self.held.iter_mut().filter_map(Option::take) {
            fs.forget(ino, 1);
        }
    }

    /// Returns a driver that makes calls with these handles.
    pub(super) fn driver<'f>(&self, fs: &'f dyn FileSystem) -> Driver<'f> {
        Driver::confined(fs, self.root, self.held)
    }
}

/// The outcome of a call, without the parts that implementations may choose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The handle to be used was empty, or a name leads out of the root of the sequence.
    Skipped,
    /// Resolving the path to the target failed.
    Lost(Errno),
    /// The call failed.
    Failed(Errno),
    /// The call succeeded without a result.
    Done,
    /// Attributes.
    Attr(AttrView),
    /// A number of bytes, or an offset.
    Number(u64),
    /// Bytes: how many, and a digest.
    Bytes(usize, u64),
    /// Names with kinds, sorted.
    Names(Vec<(Vec<u8>, Option<FileKind>)>),
}

impl From<Stop> for Outcome {
    fn from(stop: Stop) -> Self {
        match stop {
            Stop::Skipped => Self::Skipped,
            Stop::Lost(errno) => Self::Lost(errno),
            Stop::Failed(errno) => Self::Failed(errno),
        }
    }
}

impl Outcome {
    fn bytes(bytes: &[u8]) -> Self {
        let mut hasher = DefaultHasher::new();
        bytes.hash(&mut hasher);
        Self::Bytes(bytes.len(), hasher.finish())
    }
}

/// The attributes that two implementations must agree on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttrView {
    /// Kind, permission bits, links, owner, group, device number.
    pub head: (FileKind, u32, u32, u32, u32, u32),
    /// In bytes; `None` for directories.
    pub size: Option<u64>,
    /// The root, and the handles, that are this inode.
    pub same_as: Vec<String>,
    /// Times that the call set to given values.
    pub times: [Option<Timestamp>; 3],
}

/// Makes the call `op`. Its number is always the same, so its written bytes depend only on its
/// words, even when other calls are left out.
pub fn apply(fs: &dyn FileSystem, handles: &mut Handles, op: &Op) -> Outcome {
    let mut driver = handles.driver(fs);
    let result = driver.call(op, 0);
    handles.held = driver.handles();
    let given = match result {
        Ok(given) => given,
        Err(stop) => return stop.into(),
    };
    match given {
        Given::Nothing => Outcome::Done,
        Given::Number(number) => Outcome::Number(number),
        Given::Bytes(bytes) => Outcome::bytes(&bytes),
        Given::Names(mut names) => {
            names.sort_unstable_by(|a, b| a.0.cmp(&b.0));
            Outcome::Names(names)
        }
        Given::Attr(attr) => {
            let times =
                if let Op::Setattr(_, set) = op { given_times(set, &attr) } else { [None; 3] };
            Outcome::Attr(view(handles, &attr, times))
        }
    }
}

fn view(handles: &Handles, attr: &Attr, times: [Option<Timestamp>; 3]) -> AttrView {
    let Attr { ino, kind, perm, nlink, uid, gid, rdev, size, .. } = *attr;
    let root = (ino == handles.root).then(|| "root".to_string());
    let held = handles.held.iter().enumerate().filter(|(_, held)| **held == Some(ino));
    AttrView {
        head: (kind, perm, nlink, uid, gid, rdev),
        size: (kind != FileKind::Dir).then_some(size),
        same_as: root.into_iter().chain(held.map(|(handle, _)| format!("%{handle}"))).collect(),
        times,
    }
}

/// Returns the times that were set to given values.
fn given_times(set: &Attrs, attr: &Attr) -> [Option<Timestamp>; 3] {
    let given = |when: Option<When>, got| when.and_then(|when| when.0).map(|_| got);
    let ctime = set.ctime.map(|_| attr.ctime);
    [given(set.atime, attr.atime), given(set.mtime, attr.mtime), ctime]
}
