//! The root of a tree, and its replacement, which is the commit.
//!
//! - **manifest-M1** The objects that a manifest names are in the store before it is put. They stay
//!   at least until a manifest that does not name them was put.
//! - **manifest-M2** A manifest replaces only one of the same holder, with one exception: the first
//!   one of a process that has taken the lease. So a process that lost the lease cannot commit,
//!   however late it notices.

use crate::Error;
use crate::format::{Contents, Id, Kind, Manifest, Part, SMALL_MAX, encode, seal};
use crate::replay::{Clock, Loaded};
use crate::store::{Failure, RemoteStore};
use object_store::UpdateVersion;
use std::collections::HashSet;
use vfs::model::Model;
use vfs::{Caller, FileSystem as _, ROOT, SetAttr, Timestamp};

/// The object's name.
pub const NAME: &str = "manifest";
/// Attempts to replace a manifest that other processes replace, too.
const TRIES: usize = 8;
/// The first snapshot of a new tree. It may exist already, from a creation that was not finished.
const FIRST: Id = Id { epoch: 0, number: 0 };

/// The needed objects of each folder.
pub type Needed = [(&'static str, HashSet<Id>); 3];

/// The committed state, as far as it is known.
pub struct Committed {
    /// The last manifest that certainly was put.
    pub manifest: Manifest,
    version: UpdateVersion,
}

/// The reason why a manifest was not put.
pub enum Refused {
    /// Another process holds the lease.
    Fenced,
    /// The store has failed; the manifest may have been put or not.
    Failed(Failure),
}

impl Committed {
    /// Loads the tree in a store, or makes a new one with this size of chunks, and puts a manifest
    /// of this holder (manifest-M2).
    ///
    /// # Errors
    /// As [`Loaded::get`], or those of the store.
    pub fn begin(
        store: &RemoteStore,
        holder: [u8; 16],
        chunk_bytes: u32,
    ) -> Result<(Self, Loaded), Error> {
        let failed = |err| Error::store(NAME, err);
        for _ in 0..TRIES {
            let Some(found) = store.get(NAME, SMALL_MAX).map_err(failed)? else {
                return make(store, holder, chunk_bytes);
            };
            let last = Manifest::decode(&found.bytes, NAME)?;
            let loaded = match Loaded::get(store, &last) {
                Err(err @ Error::Damaged { .. }) => {
                    // The previous holder may have committed meanwhile, and deleted objects that it
                    // replaced.
                    let again = store.get(NAME, SMALL_MAX).map_err(failed)?;
                    if again.is_some_and(|again| again.version != found.version) {
                        continue;
                    }
                    return Err(err);
                }
                loaded => loaded?,
            };
            let (epoch, sequence) = (last.epoch + 1, last.sequence + 1);
            let manifest = Manifest { epoch, sequence, holder, ..last };
            match store.update(NAME, encode(Kind::Manifest, &manifest), &found.version) {
                Err(Failure::Precondition { .. }) => {}
                version => {
                    return Ok((Self { manifest, version: version.map_err(failed)? }, loaded));
                }
            }
        }
        Err(Error::NotConditional)
    }

    /// Puts the next manifest, which names existing objects (manifest-M1).
    pub fn publish(&mut self, store: &RemoteStore, next: Manifest) -> Result<(), Refused> {
        let bytes = encode(Kind::Manifest, &next);
        let mut last = None;
        for _ in 0..TRIES {
            match store.update(NAME, bytes.clone(), &self.version) {
                Ok(version) => {
                    (self.manifest, self.version) = (next, version);
                    return Ok(());
                }
                Err(err @ Failure::Precondition { .. }) => last = Some(err),
                Err(err) => return Err(Refused::Failed(err)),
            }
            let found = store.get(NAME, SMALL_MAX).map_err(Refused::Failed)?;
            let Some(found) = found else { break };
            let Ok(now) = Manifest::decode(&found.bytes, NAME) else { break };
            if now.holder != next.holder {
                return Err(Refused::Fenced);
            }
            // It is a manifest of this process, of which the put seemed to fail.
            self.version = found.version;
            if now == next {
                self.manifest = next;
                return Ok(());
            }
        }
        let failure =
            || Failure::NotSupported { source: "its conditions contradict themselves".into() };
        Err(Refused::Failed(last.unwrap_or_else(failure)))
    }

    /// Returns the objects that the tree needs, by folder.
    pub fn needed(&self, contents: &Contents) -> Needed {
        let data = contents.files.values().flat_map(|chunks| chunks.values().map(|chunk| chunk.id));
        let logs = self.manifest.logs.iter().map(|part| part.id);
        let snapshot = HashSet::from([self.manifest.snapshot.id]);
        [("data", data.collect()), ("log", logs.collect()), ("snapshot", snapshot)]
    }
}

/// Checks that the prefix has a manifest, or no objects except those that an unfinished creation of
/// a tree leaves: a lease and the first snapshot.
///
/// # Errors
/// [`Error::Occupied`] with the name of another object, or those of the store.
pub fn check_prefix(store: &RemoteStore) -> Result<(), Error> {
    let failed = |err| Error::store(NAME, err);
    if store.get(NAME, SMALL_MAX).map_err(failed)?.is_some() {
        return Ok(());
    }
    let known = [crate::lease::NAME, &FIRST.name("snapshot")];
    let stranger = store.stranger(&known).map_err(failed)?;
    stranger.map_or(Ok(()), |stranger| Err(Error::Occupied(stranger)))
}

/// Makes a new tree at an empty prefix.
fn make(
    store: &RemoteStore,
    holder: [u8; 16],
    chunk_bytes: u32,
) -> Result<(Committed, Loaded), Error> {
    let clock = Clock::default();
    clock.set(Timestamp::now());
    let tree = Model::with_clock(clock.reader());
    let ids = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let owner = SetAttr { uid: Some(ids.0), gid: Some(ids.1), ..SetAttr::default() };
    tree.setattr(&Caller::ROOT, ROOT, &owner).expect("there is a root");
    let contents = Contents::default();
    let object = snapshot(&tree, &contents);
    let part = Part::put(store, Kind::Snapshot, FIRST, object)
        .map_err(|err| Error::store(FIRST.name("snapshot"), err))?;
    let manifest = Manifest {
        tree: *uuid::Uuid::new_v4().as_bytes(),
        epoch: 1,
        holder,
        sequence: 1,
        chunk_bytes,
        snapshot: part,
        logs: Vec::new(),
    };
    let version = store
        .create(NAME, encode(Kind::Manifest, &manifest))
        .map_err(|err| Error::store(NAME, err))?;
    Ok((Committed { manifest, version }, Loaded { tree, clock, contents }))
}

/// Encodes a whole tree as an object.
pub fn snapshot(tree: &Model, contents: &Contents) -> Vec<u8> {
    let mut payload = postcard::to_allocvec(contents).expect("it is plain data");
    payload.extend(tree.save_held());
    seal(Kind::Snapshot, &payload)
}
