//! The table of inodes: which are referenced, what they are below, and what of them is not durable.
//!
//! - **nodes-N1** A number means one identity from when it is given until the node is dropped.
//! - **nodes-N2** A node is kept while it is referenced, is the last known parent of another, or has changes that are not
//!   durable and would be lost with it.
//! - **nodes-N3** A referenced node without a name has a descriptor: no handle leads to it for sure.

use crate::Identity;
use std::collections::{HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use vfs::{Errno, FileKind, Ino, ROOT, Result};

/// Device and inode number.
pub type Key = (u64, u64);

/// Numbers of inodes that cannot have those of the file system begin here.
const OWN_NUMBERS: u64 = 1 << 63;
/// So many nodes with changes are remembered one by one.
const CHANGED_MAX: usize = 16_384;

/// What is known of an inode.
pub struct Node {
    /// Another for each life of a number: what caches of descriptors know it by.
    pub serial: u64,
    /// What the file system calls it.
    pub key: Key,
    /// What it is.
    pub kind: FileKind,
    /// What it is called for as long as it exists.
    pub identity: Identity,
    /// Holds the inode where a handle cannot, or need not be asked.
    pub anchor: Option<Arc<OwnedFd>>,
    /// Has no name any more, or none yet.
    pub is_nameless: bool,
    /// A record of what is above this led to it, and no name since: whether it is in the tree is to be proven at each use.
    pub is_recorded: bool,
    /// When it was changed last as it was found not to be there: seconds and nanoseconds.
    pub left_at: Option<(i64, u32)>,
    /// A directory of which changes by others are told.
    is_marked: bool,
    /// References given out.
    refs: u64,
    /// How often it is a parent or has changes (nodes-N2).
    holds: u64,
    /// Where it was met last.
    place: Option<(Ino, Box<[u8]>)>,
    changes: Option<Changes>,
}

/// What is not durable.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Directories in which its names changed.
    pub dirs: Vec<Ino>,
    /// Whether its attributes did, or the names in it.
    pub attrs: bool,
    /// When, by the table's count of changes.
    at: u64,
}

/// An inode that was just found.
pub struct Found {
    /// Open on it, `O_PATH` or better.
    pub fd: Arc<OwnedFd>,
    /// What the file system calls it.
    pub key: Key,
    /// What it is.
    pub kind: FileKind,
    /// What it is called for as long as it exists.
    pub identity: Identity,
}

/// The table.
pub struct Nodes {
    nodes: HashMap<Ino, Node>,
    /// Numbers that are not the file system's own.
    aliases: HashMap<Key, Ino>,
    next_own: u64,
    next_serial: u64,
    root_dev: u64,
    changed: HashSet<Ino>,
    /// Counts changes.
    now: u64,
    /// When changes were last dropped that were too many, if nothing made all durable since.
    lost_at: Option<u64>,
    /// Serial numbers of nodes that were dropped, for the caches.
    dropped: Vec<u64>,
    /// Numbers by what is told of, where somebody is to be told (`fanotify`): the kind and the bytes of a handle.
    told: Option<Told>,
}

/// How the key of an identity that has one is made, and the index.
struct Told {
    key: fn(&Identity) -> Option<Box<[u8]>>,
    numbers: HashMap<Box<[u8]>, Ino>,
}

impl Nodes {
    /// With the root, which stays.
    pub fn new(root: Found) -> Self {
        let mut nodes = Self {
            nodes: HashMap::new(),
            aliases: HashMap::from([(root.key, ROOT)]),
            next_own: OWN_NUMBERS,
            next_serial: 1,
            root_dev: root.key.0,
            changed: HashSet::new(),
            now: 0,
            lost_at: None,
            dropped: Vec::new(),
            told: None,
        };
        nodes.insert(ROOT, root, true);
        nodes
    }

    /// What is known of a number. `ESTALE` where nothing is.
    pub fn get(&self, ino: Ino) -> Result<&Node> {
        self.nodes.get(&ino).ok_or(Errno::STALE)
    }

    /// The number of what was found, if it is known.
    pub fn find(&self, found: &Found) -> Option<Ino> {
        let ino = self.number(found.key)?;
        (self.nodes.get(&ino)?.identity == found.identity).then_some(ino)
    }

    /// The number that this inode has, or would have; `None` where it would be given one.
    pub fn number(&self, key: Key) -> Option<Ino> {
        let alias = self.aliases.get(&key).copied();
        let is_own = key.0 == self.root_dev && (2..OWN_NUMBERS).contains(&key.1);
        alias.or(is_own.then_some(Ino(key.1)))
    }

    /// As [`number`](Self::number), and it is given one where it has none.
    pub fn number_or_own(&mut self, key: Key) -> Ino {
        self.number(key).unwrap_or_else(|| self.give_number(key))
    }

    fn give_number(&mut self, key: Key) -> Ino {
        let ino = Ino(self.next_own);
        self.next_own += 1;
        self.aliases.insert(key, ino);
        ino
    }

    /// Adds a reference to what was found, which is entered where it is new (with its descriptor where `keeps_open`). Returns
    /// its number and its serial number.
    pub fn enter(&mut self, found: Found, keeps_open: bool) -> (Ino, u64) {
        let mut ino = self.number_or_own(found.key);
        match self.nodes.get(&ino) {
            Some(node) if node.identity == found.identity => {}
            None => self.insert(ino, found, keeps_open),
            // Another life of the file system's number, while ours still means the last one (nodes-N1).
            Some(_) => {
                ino = self.give_number(found.key);
                self.insert(ino, found, keeps_open);
            }
        }
        let node = self.node(ino);
        node.refs += 1;
        (ino, node.serial)
    }

    fn insert(&mut self, ino: Ino, found: Found, keeps_open: bool) {
        let serial = self.next_serial;
        self.next_serial += 1;
        let Found { fd, key, kind, identity } = found;
        if let Some(told) = &mut self.told {
            told.enter(ino, &identity);
        }
        let node = Node {
            serial,
            key,
            kind,
            identity,
            anchor: keeps_open.then_some(fd),
            is_nameless: false,
            is_recorded: false,
            left_at: None,
            is_marked: false,
            refs: 0,
            holds: 0,
            place: None,
            changes: None,
        };
        self.nodes.insert(ino, node);
    }

    fn node(&mut self, ino: Ino) -> &mut Node {
        self.nodes.get_mut(&ino).expect("a node that is held is in the table")
    }

    /// Notes whether an inode has names: what has none keeps `fd` (nodes-N3), and is dropped where nobody references it; what
    /// has one keeps a descriptor where it always does.
    pub fn set_nameless(&mut self, ino: Ino, fd: &Arc<OwnedFd>, is_nameless: bool, keeps: bool) {
        let Some(node) = self.nodes.get_mut(&ino) else { return };
        node.is_nameless = is_nameless;
        if !is_nameless {
            node.anchor.take_if(|_| !keeps);
        } else if node.refs > 0 {
            node.anchor.get_or_insert_with(|| fd.clone());
        } else {
            self.clear_changes(ino);
        }
    }

    /// Gives references back.
    pub fn forget(&mut self, ino: Ino, refs: u64) {
        let Some(node) = self.nodes.get_mut(&ino).filter(|_| ino != ROOT) else { return };
        node.refs = node.refs.saturating_sub(refs);
        if node.refs == 0 {
            if node.is_nameless {
                // Nothing of it can be made durable any more.
                self.clear_changes(ino);
            }
            self.drop_unheld(ino);
        }
    }

    /// Serial numbers of nodes dropped since the last time.
    pub fn take_dropped(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.dropped)
    }

    /// Drops a node that nothing holds, and those that only it held.
    fn drop_unheld(&mut self, ino: Ino) {
        let mut next = Some(ino);
        while let Some(ino) = next.take() {
            let is_held = |node: &Node| node.refs > 0 || node.holds > 0 || node.changes.is_some();
            if ino == ROOT || self.nodes.get(&ino).is_none_or(is_held) {
                break;
            }
            let Some(node) = self.nodes.remove(&ino) else { break };
            self.dropped.push(node.serial);
            if let Some(told) = &mut self.told {
                told.leave(ino, &node.identity);
            }
            if self.aliases.get(&node.key) == Some(&ino) {
                self.aliases.remove(&node.key);
            }
            if let Some((parent, _)) = node.place {
                self.node(parent).holds -= 1;
                next = Some(parent);
            }
        }
    }

    /// Notes that an inode was met under this name.
    pub fn set_place(&mut self, ino: Ino, dir: Ino, name: &[u8]) {
        if ino == ROOT || ino == dir || !self.nodes.contains_key(&dir) {
            return;
        }
        let Some(node) = self.nodes.get_mut(&ino) else { return };
        let old = node.place.replace((dir, name.into()));
        (node.is_recorded, node.left_at) = (false, None);
        self.node(dir).holds += 1;
        self.unhold(old.map(|(parent, _)| parent));
    }

    /// Notes that only a record has led to an inode.
    pub fn set_recorded(&mut self, ino: Ino) {
        if let Some(node) = self.nodes.get_mut(&ino).filter(|_| ino != ROOT) {
            node.is_recorded = true;
        }
    }

    /// Notes that an inode was not in the tree when it was changed last, at this time.
    pub fn set_left(&mut self, ino: Ino, changed_at: (i64, u32)) {
        if let Some(node) = self.nodes.get_mut(&ino) {
            node.left_at = Some(changed_at);
        }
    }

    /// Notes that an inode has this name no more.
    pub fn clear_place(&mut self, ino: Ino, dir: Ino, name: &[u8]) {
        let Some(node) = self.nodes.get_mut(&ino) else { return };
        let had = node.place.take_if(|(parent, last)| *parent == dir && **last == *name);
        self.unhold(had.map(|(parent, _)| parent));
    }

    fn unhold(&mut self, dirs: impl IntoIterator<Item = Ino>) {
        for dir in dirs {
            self.node(dir).holds -= 1;
            self.drop_unheld(dir);
        }
    }

    /// The path of a number, by where it and those above it were met last.
    pub fn path(&self, ino: Ino) -> Option<Vec<u8>> {
        let mut names = Vec::new();
        let mut at = ino;
        while at != ROOT {
            let (parent, name) = self.nodes.get(&at)?.place.as_ref()?;
            names.push(&**name);
            at = *parent;
            // Directories moved by others may have been met in a circle.
            if names.len() > 4096 {
                return None;
            }
        }
        names.reverse();
        Some(names.join(&b'/'))
    }

    /// Notes that an inode's attributes changed, or names in it.
    pub fn note_attrs(&mut self, ino: Ino) {
        if let Some(changes) = self.note(ino) {
            changes.attrs = true;
        }
    }

    /// Notes that a name of an inode changed in `dir`, which changes, too.
    pub fn note_name(&mut self, ino: Ino, dir: Ino) {
        self.note_attrs(dir);
        // Its link count changed, too: that is made durable with the directory.
        if self.note(ino).is_none() || !self.nodes.contains_key(&dir) {
            return;
        }
        let changes = self.nodes.get_mut(&ino).and_then(|node| node.changes.as_mut());
        if let Some(changes) = changes.filter(|changes| !changes.dirs.contains(&dir)) {
            changes.dirs.push(dir);
            self.node(dir).holds += 1;
        }
    }

    fn note(&mut self, ino: Ino) -> Option<&mut Changes> {
        self.now += 1;
        if self.changed.len() >= CHANGED_MAX && !self.changed.contains(&ino) {
            self.lost_at = Some(self.now);
            self.changed.clone().into_iter().for_each(|changed| self.clear_changes(changed));
        }
        let node = self.nodes.get_mut(&ino)?;
        self.changed.insert(ino);
        let changes = node.changes.get_or_insert_default();
        changes.at = self.now;
        Some(changes)
    }

    /// What is not durable of an inode.
    pub fn changes(&self, ino: Ino) -> Option<Changes> {
        self.nodes.get(&ino)?.changes.clone()
    }

    /// When changes were dropped that are not durable.
    pub fn lost_at(&self) -> Option<u64> {
        self.lost_at
    }

    /// Now, by the count of changes.
    pub fn now(&self) -> u64 {
        self.now
    }

    /// All changes up to then are durable.
    pub fn all_is_durable(&mut self, then: u64) {
        self.lost_at = self.lost_at.filter(|at| *at > then);
        for ino in self.changed.clone() {
            let at = self.nodes.get(&ino).and_then(|node| node.changes.as_ref());
            if at.is_none_or(|changes| changes.at <= then) {
                self.clear_changes(ino);
            }
        }
    }

    /// These changes of an inode are durable; others may have been made since.
    pub fn is_durable(&mut self, ino: Ino, changes: &Changes) {
        if self.nodes.get(&ino).is_some_and(|node| node.changes.as_ref() == Some(changes)) {
            self.clear_changes(ino);
        }
    }

    fn clear_changes(&mut self, ino: Ino) {
        self.changed.remove(&ino);
        let Some(node) = self.nodes.get_mut(&ino) else { return };
        let changes = node.changes.take();
        self.unhold(changes.map(|changes| changes.dirs).unwrap_or_default());
        self.drop_unheld(ino);
    }

    /// How many nodes there are.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    // --- what others change ---------------------------------------------------------------------

    /// From now on nodes can be [found](Self::told) by the key that `key` makes of an identity.
    pub fn index(&mut self, key: fn(&Identity) -> Option<Box<[u8]>>) {
        let mut told = Told { key, numbers: HashMap::new() };
        self.nodes.iter().for_each(|(ino, node)| told.enter(*ino, &node.identity));
        self.told = Some(told);
    }

    /// The number of what is told of by this key, if it is known.
    pub fn told(&self, key: &[u8]) -> Option<Ino> {
        self.told.as_ref()?.numbers.get(key).copied()
    }

    /// Whether a directory is to be marked: once in its life. One that is not known yet is.
    pub fn begin_mark(&mut self, found: &Found) -> bool {
        let known = self.find(found).and_then(|ino| self.nodes.get_mut(&ino));
        known.is_none_or(|node| !std::mem::replace(&mut node.is_marked, true))
    }

    /// All numbers.
    pub fn numbers(&self) -> impl Iterator<Item = Ino> {
        self.nodes.keys().copied()
    }

    /// All names by which inodes were met last, each with its directory.
    pub fn places(&self) -> impl Iterator<Item = (Ino, &[u8])> {
        let places = self.nodes.values().filter_map(|node| node.place.as_ref());
        places.map(|(dir, name)| (*dir, &**name))
    }
}

impl Told {
    fn enter(&mut self, ino: Ino, identity: &Identity) {
        self.numbers.extend((self.key)(identity).map(|key| (key, ino)));
    }

    fn leave(&mut self, ino: Ino, identity: &Identity) {
        if let Some(key) = (self.key)(identity).filter(|key| self.numbers.get(key) == Some(&ino)) {
            self.numbers.remove(&key);
        }
    }
}
