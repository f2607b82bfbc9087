//! A model as bytes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use serde::{Deserialize, Deserializer, Serialize as _, Serializer};

use super::data::BLOCK_SIZE;
use super::names::{COOKIE_DOTDOT, Dir, NameEntry};
use super::{Inode, Model, Node, State};
use crate::acl::{ACL_ACCESS, ACL_DEFAULT, Acl};
use crate::{FileKind, Ino, Limits, ROOT, Timestamp};

/// Most inodes ever made, and most places in a listing: too many to reach in practice.
const COUNT_MAX: u64 = 1 << 62;

type Blocks = BTreeMap<u64, Arc<[u8; BLOCK_SIZE as usize]>>;

/// Saves blocks without the zeros at their ends.
pub(super) fn save_blocks<S: Serializer>(blocks: &Blocks, to: S) -> Result<S::Ok, S::Error> {
    let trimmed = |block: &[u8]| block.iter().rposition(|byte| *byte != 0).map_or(0, |n| n + 1);
    to.collect_seq(blocks.iter().map(|(n, block)| (n, &block[..trimmed(&**block)])))
}

pub(super) fn load_blocks<'d, D: Deserializer<'d>>(from: D) -> Result<Blocks, D::Error> {
    let saved = Vec::<(u64, Vec<u8>)>::deserialize(from)?;
    let whole = |(n, bytes): (u64, Vec<u8>)| {
        let mut block = [0; BLOCK_SIZE as usize];
        let to = block.get_mut(..bytes.len());
        to.ok_or_else(|| serde::de::Error::custom("a block is too long"))?.copy_from_slice(&bytes);
        Ok((n, Arc::new(block)))
    };
    saved.into_iter().map(whole).collect()
}

/// Times have one length, so that a removal never makes the saved model longer.
pub(super) fn save_time<S: Serializer>(time: &Timestamp, to: S) -> Result<S::Ok, S::Error> {
    time.0.to_le_bytes().serialize(to)
}

pub(super) fn load_time<'d, D: Deserializer<'d>>(from: D) -> Result<Timestamp, D::Error> {
    <[u8; 8]>::deserialize(from).map(|bytes| Timestamp(i64::from_le_bytes(bytes)))
}

impl Model {
    /// Saves all inodes that have a name, as bytes for [`load`](Self::load).
    pub fn save(&self) -> Vec<u8> {
        let mut state = self.state().clone();
        state.forget_all();
        postcard::to_allocvec(&state).expect("the model is plain data")
    }

    /// Returns the most bytes that [`save`](Self::save) would take if all inodes that are held
    /// without a name had names.
    pub fn saved_len_with_held(&self) -> u64 {
        postcard::to_allocvec(&*self.state()).expect("the model is plain data").len() as u64
    }

    /// Loads a saved model, [durable on return](crate::Durability::OnReturn). The bytes need not be
    /// trusted.
    ///
    /// # Errors
    /// The reason why the bytes are not a valid model: they do not parse, or an invariant
    /// (model-M1–M5) does not hold.
    pub fn load(
        saved: &[u8],
        clock: impl Fn() -> Timestamp + Send + Sync + 'static,
    ) -> Result<Self, String> {
        let state: State = postcard::from_bytes(saved).map_err(|e| format!("no model: {e}"))?;
        state.check().map_err(|(ino, what)| format!("{ino}: {what}"))?;
        Ok(Self { state: Mutex::new(state), clock: Arc::new(clock), durable: None })
    }

    /// Saves all inodes that have a name or are held without one, as bytes for
    /// [`load_held`](Self::load_held). Calls that were made after the save can be repeated on the
    /// loaded model.
    pub fn save_held(&self) -> Vec<u8> {
        let state = self.state();
        let linkable = state.inodes.iter().filter(|(_, inode)| inode.linkable);
        let linkable: Vec<Ino> = linkable.map(|(&ino, _)| ino).collect();
        postcard::to_allocvec(&(&*state, linkable)).expect("the model is plain data")
    }

    /// As [`load`](Self::load), for bytes from [`save_held`](Self::save_held). An inode without a
    /// name has one reference.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn load_held(
        saved: &[u8],
        clock: impl Fn() -> Timestamp + Send + Sync + 'static,
    ) -> Result<Self, String> {
        let (mut state, linkable): (State, Vec<Ino>) =
            postcard::from_bytes(saved).map_err(|e| format!("no model: {e}"))?;
        state.check_held().map_err(|(ino, what)| format!("{ino}: {what}"))?;
        for inode in state.inodes.values_mut().filter(|inode| inode.nlink == 0) {
            inode.refs = 1;
        }
        for ino in linkable {
            let inode = state.inodes.get_mut(&ino);
            let inode = inode.filter(|inode| inode.nlink == 0 && !inode.is_dir());
            inode.ok_or_else(|| format!("{ino}: it cannot get a first name"))?.linkable = true;
        }
        Ok(Self { state: Mutex::new(state), clock: Arc::new(clock), durable: None })
    }
}

/// Fails with `what` unless `holds`.
fn require(holds: bool, what: &'static str) -> Result<(), &'static str> {
    if holds { Ok(()) } else { Err(what) }
}

impl State {
    /// Checks model-M1–M5 and all limits, when no inode has a reference.
    fn check(&self) -> Result<(), (Ino, &'static str)> {
        self.check_held()?;
        let nameless = self.inodes.iter().find(|(_, inode)| inode.nlink == 0);
        nameless.map_or(Ok(()), |(&ino, _)| Err((ino, "its link count is wrong")))
    }

    /// The same check, when inodes without a name may be held.
    fn check_held(&self) -> Result<(), (Ino, &'static str)> {
        let mut names: BTreeMap<Ino, Vec<Ino>> = BTreeMap::new();
        for (&ino, inode) in &self.inodes {
            let Node::Dir(dir) = &inode.node else { continue };
            dir.check(self.limits).map_err(|what| (ino, what))?;
            let inos = dir.entries.values().map(|slot| slot.ino);
            inos.for_each(|named| names.entry(named).or_default().push(ino));
        }
        if let Some(missing) = names.keys().find(|ino| !self.inodes.contains_key(ino)) {
            return Err((*missing, "it has a name and does not exist"));
        }
        let root = self.inodes.get(&ROOT).ok_or((ROOT, "there is no root"))?;
        let is_root = matches!(&root.node, Node::Dir(dir) if dir.parent == Some(ROOT));
        require(is_root, "the root is not its own parent").map_err(|what| (ROOT, what))?;
        for (&ino, inode) in &self.inodes {
            let names = names.get(&ino).map_or(&[][..], |dirs| dirs);
            self.check_inode(ino, inode, names).map_err(|what| (ino, what))?;
        }
        Ok(())
    }

    /// Checks an inode that these directories name.
    fn check_inode(&self, ino: Ino, inode: &Inode, names: &[Ino]) -> Result<(), &'static str> {
        require((1..self.next_ino.min(COUNT_MAX)).contains(&ino.0), "its number was never given")?;
        require(inode.perm <= 0o7777, "its mode has bits that do not exist")?;
        match &inode.node {
            Node::Dir(dir) if inode.nlink == 0 => {
                let is_removed = dir.parent.is_none() && dir.entries.is_empty();
                require(is_removed && names.is_empty(), "a removed directory has names")?;
            }
            Node::Dir(dir) => {
                let parent = dir.parent.filter(|_| ino != ROOT);
                require(names == parent.as_slice(), "a directory has one name, in its parent")?;
                require(self.is_below_root(ino), "its parents do not lead to the root")?;
                let is_dir =
                    |slot: &&NameEntry| self.inodes.get(&slot.ino).is_some_and(Inode::is_dir);
                let links = 2 + dir.entries.values().filter(is_dir).count();
                require(inode.nlink as usize == links, "its link count is wrong")?;
            }
            Node::File(data) => data.check(self.limits)?,
            Node::Symlink(target) => {
                require(self.limits.check_target(target).is_ok(), "its target has no such length")?;
            }
            Node::Special(kind, _) => {
                let is_special =
                    !matches!(kind, FileKind::File | FileKind::Dir | FileKind::Symlink);
                require(is_special, "its kind has content")?;
            }
        }
        if !inode.is_dir() {
            let is_counted =
                inode.nlink as usize == names.len() && inode.nlink <= self.limits.links;
            require(is_counted, "its link count is wrong")?;
        }
        let xattrs = inode.xattrs.iter();
        let list: usize = xattrs.clone().map(|(name, _)| name.len() + 1).sum();
        require(list <= self.limits.xattr_list, "its list of attributes is too long")?;
        for (name, value) in xattrs {
            let is_acl = name == ACL_ACCESS || name == ACL_DEFAULT;
            let is_allowed = self.limits.check_xattr(inode.kind(), name, value.len()).is_ok();
            require(
                is_allowed && (!is_acl || Acl::parse_valid(value).is_ok()),
                "an attribute is none",
            )?;
        }
        Ok(())
    }

    /// Returns whether the parents of a directory lead to the root (model-M4).
    fn is_below_root(&self, ino: Ino) -> bool {
        let (mut at, mut met) = (ino, BTreeSet::new());
        while at != ROOT && met.insert(at) {
            let Some(Node::Dir(dir)) = self.inodes.get(&at).map(|inode| &inode.node) else {
                return false;
            };
            let Some(parent) = dir.parent else { return false };
            at = parent;
        }
        at == ROOT
    }
}

impl Dir {
    /// Checks names and places of entries.
    fn check(&self, limits: &Limits) -> Result<(), &'static str> {
        let mut places: Vec<u64> = self.entries.values().map(|slot| slot.cookie).collect();
        places.sort_unstable();
        let are_free = places.first().is_none_or(|place| *place > COOKIE_DOTDOT);
        require(
            are_free && places.windows(2).all(|two| two[0] < two[1]),
            "two entries have one place",
        )?;
        let last = places.last().copied().unwrap_or_default();
        require((last..COUNT_MAX).contains(&self.last_cookie), "a place was never given")?;
        require(
            self.entries.keys().all(|name| limits.check_name(name).is_ok()),
            "a name cannot be one",
        )
    }
}

impl super::data::Sparse {
    /// Checks model-M5.
    fn check(&self, limits: &Limits) -> Result<(), &'static str> {
        require(self.size() <= limits.file_size, "it is larger than files can be")?;
        require(self.is_zero_beyond_end(), "it has bytes beyond its end")
    }
}
