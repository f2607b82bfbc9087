//! Loading a tree from its objects in the store.
//!
//! - **replay-R1** A record is a call of the contract on the tree before it, at the recorded time
//!   and with the recorded result. If the tree refuses the call, the record is invalid.

use crate::Error;
use crate::format::{self, Contents, Kind, Manifest, Op, Record, caller};
use crate::store::RemoteStore;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use vfs::model::Model;
use vfs::{
    Caller, Errno, FileKind, FileSystem as _, Ino, Limits, NewNode, RenameFlags, SetAttr, SetTime,
    SetXattr, Timestamp,
};

/// Every change of content removes this attribute (vfs-C5).
pub(crate) const CAPABILITY: &[u8] = b"security.capability";

/// The time of calls on a tree.
#[derive(Clone, Default)]
pub struct Clock(Arc<AtomicI64>);

impl Clock {
    /// Sets the time.
    pub fn set(&self, time: Timestamp) {
        self.0.store(time.0, Relaxed);
    }

    /// Returns the function by which the tree reads the time.
    pub fn reader(&self) -> impl Fn() -> Timestamp + Send + Sync + use<> {
        let time = self.0.clone();
        move || Timestamp(time.load(Relaxed))
    }
}

/// A loaded tree: names and attributes, and the objects with the contents of files.
pub struct Loaded {
    /// Files in it have sizes and no bytes.
    pub tree: Model,
    /// The clock of the tree.
    pub clock: Clock,
    /// The objects of files.
    pub contents: Contents,
}

impl Loaded {
    /// Loads the tree of a manifest.
    ///
    /// # Errors
    /// As [`RemoteStore::get_parts`]; [`Error::Damaged`] if the objects are not a valid tree.
    pub(crate) fn get(store: &RemoteStore, manifest: &Manifest) -> Result<Self, Error> {
        let name = manifest.snapshot.id.name("snapshot");
        let mut object = store.get_parts("snapshot", std::slice::from_ref(&manifest.snapshot))?;
        let object = object.pop().expect("one was asked for");
        let mut loaded = Self::from_snapshot(format::open(Kind::Snapshot, &object, &name)?)
            .map_err(|what| Error::Damaged { object: name, what })?;
        drop(object);
        let logs = store.get_parts("log", &manifest.logs)?;
        for (part, object) in manifest.logs.iter().zip(logs) {
            let name = part.id.name("log");
            loaded
                .replay(format::open(Kind::Log, &object, &name)?, manifest.chunk_bytes)
                .map_err(|what| Error::Damaged { object: name, what })?;
        }
        loaded.forget_held();
        let object = "manifest".to_owned();
        loaded.check(manifest.chunk_bytes).map_err(|what| Error::Damaged { object, what })?;
        Ok(loaded)
    }

    /// Loads the payload of a snapshot.
    ///
    /// # Errors
    /// A description of the fault.
    pub fn from_snapshot(payload: &[u8]) -> Result<Self, String> {
        let (contents, saved) =
            postcard::take_from_bytes(payload).map_err(|err| err.to_string())?;
        let clock = Clock::default();
        let tree = Model::load_held(saved, clock.reader())?;
        Ok(Self { tree, clock, contents })
    }

    /// Replays the payload of a log.
    ///
    /// # Errors
    /// A description of the fault.
    pub fn replay(&mut self, mut payload: &[u8], chunk_bytes: u32) -> Result<(), String> {
        let mut number = 0;
        while !payload.is_empty() {
            let (record, rest): (Record, _) = postcard::take_from_bytes(payload)
                .map_err(|err| format!("record {number}: {err}"))?;
            self.clock.set(record.time);
            self.apply(record.op, chunk_bytes).map_err(|err| format!("record {number}: {err}"))?;
            (payload, number) = (rest, number + 1);
        }
        Ok(())
    }

    /// Removes inodes without a name: after loading there are no references to them.
    pub fn forget_held(&mut self) {
        self.tree = self.tree.after_kill();
        self.contents.files.retain(|ino, _| self.tree.getattr(*ino).is_ok());
    }

    /// Checks the objects of files.
    fn check(&self, chunk_bytes: u32) -> Result<(), String> {
        for (ino, chunks) in &self.contents.files {
            let attr = self.tree.getattr(*ino).map_err(|err| format!("{ino}: {err}"))?;
            if attr.kind != FileKind::File {
                return Err(format!("{ino} has content and is no file"));
            }
            for (index, object) in chunks {
                let end = index.checked_mul(chunk_bytes.into());
                let end = end.and_then(|base| base.checked_add(object.end()));
                if !object.fits(chunk_bytes) || end.is_none_or(|end| end > attr.size) {
                    return Err(format!("{ino}: chunk {index} does not fit into it"));
                }
            }
        }
        Ok(())
    }

    /// Makes the call that a record describes on the tree (replay-R1). Holds inodes that lose their
    /// name until [`forget_held`](Self::forget_held): they may have been open, and later records
    /// may use them.
    ///
    /// # Errors
    /// The reason why the record is invalid.
    fn apply(&mut self, op: Op, chunk_bytes: u32) -> Result<(), String> {
        let tree = &self.tree;
        let hold = |dir: Ino, name: &[u8]| tree.lookup(dir, name).map(drop);
        let made = |wanted: Ino, made: vfs::Entry| {
            if made.ino == wanted {
                Ok(())
            } else {
                Err(format!("it made {}, not {wanted}", made.ino))
            }
        };
        let done = match op {
            Op::Setattr { ino, set } => {
                tree.setattr(&Caller::ROOT, ino, &SetAttr::from(&set)).map(drop)
            }
            Op::Create { ino, owner, dir, name, node } => {
                let entry = tree.create(&caller(owner), dir, &name, &NewNode::from(&node));
                return made(ino, entry.map_err(said)?);
            }
            Op::Tmpfile { ino, owner, dir, mode, umask } => {
                let entry = tree.tmpfile(&caller(owner), dir, mode, umask);
                return made(ino, entry.map_err(said)?);
            }
            Op::Unlink { dir, name } => hold(dir, &name).and_then(|()| tree.unlink(dir, &name)),
            Op::Rmdir { dir, name } => hold(dir, &name).and_then(|()| tree.rmdir(dir, &name)),
            Op::Link { ino, dir, name } => tree.link(ino, dir, &name).map(drop),
            Op::Rename { from, to, flags } => {
                // The target need not exist.
                let _ = hold(to.0, &to.1);
                let flags = RenameFlags::from_bits_retain(flags);
                tree.rename((from.0, &from.1), (to.0, &to.1), flags)
            }
            Op::DropPrivileges { ino } => tree.drop_privileges(ino),
            Op::Setxattr { ino, name, value } => tree.setxattr(ino, &name, &value, SetXattr::Any),
            Op::Removexattr { ino, name } => tree.removexattr(ino, &name),
            Op::Content { ino, size, mtime, ctime, chunks } => {
                set_content(tree, ino, (size, mtime, ctime)).map_err(said)?;
                let file = self.contents.files.entry(ino).or_default();
                for (index, object) in chunks {
                    let is_placed = index <= Limits::MAX.file_size / u64::from(chunk_bytes);
                    if !is_placed || object.is_some_and(|object| !object.fits(chunk_bytes)) {
                        return Err(format!("{ino}: chunk {index} cannot be"));
                    }
                    match object {
                        Some(object) => file.insert(index, object),
                        None => file.remove(&index),
                    };
                }
                return Ok(());
            }
        };
        done.map_err(said)
    }
}

/// Describes a refusal of the tree.
fn said(errno: Errno) -> String {
    format!("the tree refuses it: {errno}")
}

/// Sets the attributes that belong to a file's content. Keeps a capability: if a change of content
/// removed it, that has a record of its own.
pub(crate) fn set_content(
    tree: &Model,
    ino: Ino,
    (size, mtime, ctime): (u64, Timestamp, Timestamp),
) -> vfs::Result<()> {
    let capability = tree.getxattr(ino, CAPABILITY).ok();
    let set = SetAttr {
        size: Some(size),
        mtime: Some(SetTime::At(mtime)),
        ctime: Some(ctime),
        ..SetAttr::default()
    };
    tree.setattr(&Caller::ROOT, ino, &set)?;
    if let Some(value) = capability {
        tree.setxattr(ino, CAPABILITY, &value, SetXattr::Any)?;
        let set = SetAttr { ctime: Some(ctime), ..SetAttr::default() };
        tree.setattr(&Caller::ROOT, ino, &set)?;
    }
    Ok(())
}
