//! The table of inodes. It records references, parents, and changes that are not durable.
//!
//! - **nodes-N1** A number means one identity from its assignment until the node is dropped.
//! - **nodes-N2** A node is kept while it is referenced, is the last known parent of another node,
//!   or has changes that are not durable and would be lost with it.
//! - **nodes-N3** A referenced node without a name keeps a descriptor, as a handle may not lead to
//!   it any more.

use crate::Identity;
use crate::sys::Handle;
use std::collections::{HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use vfs::{Errno, FileKind, Ino, ROOT, Result};

/// Device and inode number.
pub type Key = (u64, u64);

/// The first number for inodes that cannot have the file system's number.
const OWN_NUMBERS: u64 = 1 << 63;
/// The maximum number of nodes whose changes are remembered one by one.
const CHANGED_MAX: usize = 16_384;

/// An entry of the table.
pub struct BackingNode {
    /// A serial number, different for each node that has had the same inode number. Caches of
    /// descriptors use it as the key.
    pub serial: u64,
    /// The device and the inode number.
    pub key: Key,
    /// The kind of the inode.
    pub kind: FileKind,
    /// Its identity, the same as long as it exists.
    pub identity: Identity,
    /// Its handle, if that is too long for the identity.
    pub long_handle: Option<Arc<Handle>>,
    /// A descriptor that keeps the inode open if a handle cannot, or to save opening it.
    pub anchor: Option<Arc<OwnedFd>>,
    /// Whether the inode has no name any more, or none yet.
    pub is_nameless: bool,
    /// Whether only a record of the cache led to the inode, and no name since. Then each use must
    /// prove that it is in the tree.
    pub is_recorded: bool,
    /// The change time of the inode when it was found to be missing from the tree, in seconds and
    /// nanoseconds.
    pub left_at: Option<(i64, u32)>,
    /// Whether the directory is marked to report changes by other processes.
    is_marked: bool,
    /// The number of references given out.
    refs: u64,
    /// The number of nodes that need it as a parent or for their changes (nodes-N2).
    holds: u64,
    /// The directory and name under which it was met last.
    place: Option<(Ino, Box<[u8]>)>,
    changes: Option<Changes>,
}

/// The changes of an inode that are not durable.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// The directories in which its names changed.
    pub dirs: Vec<Ino>,
    /// Whether its attributes changed, or the names in it.
    pub attrs: bool,
    /// The time of the last change, by the table's count of changes.
    at: u64,
}

/// An inode that was just found.
pub struct FoundNode {
    /// A descriptor of it, with `O_PATH` or better.
    pub fd: Arc<OwnedFd>,
    /// The device and the inode number.
    pub key: Key,
    /// The kind of the inode.
    pub kind: FileKind,
    /// Its identity, the same as long as it exists.
    pub identity: Identity,
    /// Its handle, if that is too long for the identity.
    pub long_handle: Option<Arc<Handle>>,
}

/// The table.
pub struct Nodes {
    nodes: HashMap<Ino, BackingNode>,
    /// The numbers that are not the file system's own.
    aliases: HashMap<Key, Ino>,
    next_own: u64,
    next_serial: u64,
    root_dev: u64,
    changed: HashSet<Ino>,
    /// The number of changes so far.
    now: u64,
    /// The time when too many changes were last dropped, unless everything was made durable since.
    lost_at: Option<u64>,
    /// The serial numbers of dropped nodes, for the caches of descriptors.
    dropped: Vec<u64>,
}

impl Nodes {
    /// Makes a table with the root, which stays in it.
    pub fn new(root: FoundNode) -> Self {
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
        };
        nodes.insert(ROOT, root, true);
        nodes
    }

    /// Returns the node of a number; `ESTALE` if it is unknown.
    pub fn get(&self, ino: Ino) -> Result<&BackingNode> {
        self.nodes.get(&ino).ok_or(Errno::STALE)
    }

    /// Returns the number of a found inode, if it is known.
    pub fn find(&self, found: &FoundNode) -> Option<Ino> {
        let ino = self.number(found.key)?;
        (self.nodes.get(&ino)?.identity == found.identity).then_some(ino)
    }

    /// Returns the number that this inode has or would get from the file system; `None` if the
    /// table would have to assign one.
    pub fn number(&self, key: Key) -> Option<Ino> {
        let alias = self.aliases.get(&key).copied();
        let is_own = key.0 == self.root_dev && (2..OWN_NUMBERS).contains(&key.1);
        alias.or(is_own.then_some(Ino(key.1)))
    }

    /// As [`number`](Self::number), but assigns a number if the inode has no number yet.
    pub fn number_or_own(&mut self, key: Key) -> Ino {
        self.number(key).unwrap_or_else(|| self.give_number(key))
    }

    /// Returns a number of our own for an inode whose number in the file system is taken, and
    /// records it as an alias.
    fn give_number(&mut self, key: Key) -> Ino {
        let ino = Ino(self.next_own);
        self.next_own += 1;
        self.aliases.insert(key, ino);
        ino
    }

    /// Adds a reference to a found inode. A new one is entered, with its descriptor if
    /// `keeps_open`. Returns its number and its serial number.
    pub fn enter(&mut self, found: FoundNode, keeps_open: bool) -> (Ino, u64) {
        let mut ino = self.number_or_own(found.key);
        match self.nodes.get(&ino) {
            Some(node) if node.identity == found.identity => {}
            None => self.insert(ino, found, keeps_open),
            // The file system has reused the number for a new inode, while ours still means the old
            // one (nodes-N1).
            Some(_) => {
                ino = self.give_number(found.key);
                self.insert(ino, found, keeps_open);
            }
        }
        let node = self.node(ino);
        node.refs += 1;
        (ino, node.serial)
    }

    /// Adds a node without references. With `keeps_open`, it keeps the descriptor.
    fn insert(&mut self, ino: Ino, found: FoundNode, keeps_open: bool) {
        let serial = self.next_serial;
        self.next_serial += 1;
        let FoundNode { fd, key, kind, identity, long_handle } = found;
        let node = BackingNode {
            serial,
            key,
            kind,
            identity,
            long_handle,
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

    fn node(&mut self, ino: Ino) -> &mut BackingNode {
        self.nodes.get_mut(&ino).expect("a node that is held is in the table")
    }

    /// Notes whether an inode has names. One without names keeps `fd` (nodes-N3), or is dropped if
    /// it has no references. One with names keeps its descriptor only if `keeps`.
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

    /// Removes references.
    pub fn forget(&mut self, ino: Ino, refs: u64) {
        let Some(node) = self.nodes.get_mut(&ino).filter(|_| ino != ROOT) else { return };
        node.refs = node.refs.saturating_sub(refs);
        if node.refs == 0 {
            if node.is_nameless {
                // An inode without a name cannot be made durable any more.
                self.clear_changes(ino);
            }
            self.drop_unheld(ino);
        }
    }

    /// Returns the serial numbers of the nodes dropped since the last call.
    pub fn take_dropped(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.dropped)
    }

    /// Drops a node that nothing holds, and the nodes that only it held.
    fn drop_unheld(&mut self, ino: Ino) {
        let mut next = Some(ino);
        while let Some(ino) = next.take() {
            let is_held =
                |node: &BackingNode| node.refs > 0 || node.holds > 0 || node.changes.is_some();
            if ino == ROOT || self.nodes.get(&ino).is_none_or(is_held) {
                break;
            }
            let Some(node) = self.nodes.remove(&ino) else { break };
            self.dropped.push(node.serial);
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

    /// Notes that an inode was not in the tree when it had this change time.
    pub fn set_left(&mut self, ino: Ino, changed_at: (i64, u32)) {
        if let Some(node) = self.nodes.get_mut(&ino) {
            node.left_at = Some(changed_at);
        }
    }

    /// Notes that an inode lost this name.
    pub fn clear_place(&mut self, ino: Ino, dir: Ino, name: &[u8]) {
        let Some(node) = self.nodes.get_mut(&ino) else { return };
        let had = node.place.take_if(|(parent, last)| *parent == dir && **last == *name);
        self.unhold(had.map(|(parent, _)| parent));
    }

    /// Removes one hold from each of these nodes (nodes-N2).
    fn unhold(&mut self, dirs: impl IntoIterator<Item = Ino>) {
        for dir in dirs {
            self.node(dir).holds -= 1;
            self.drop_unheld(dir);
        }
    }

    /// Returns the path of a number, from the names under which it and the directories above it
    /// were met last.
    pub fn path(&self, ino: Ino) -> Option<Vec<u8>> {
        let mut names = Vec::new();
        let mut at = ino;
        while at != ROOT {
            let (parent, name) = self.nodes.get(&at)?.place.as_ref()?;
            names.push(&**name);
            at = *parent;
            // Directories that other processes moved may form a circle here.
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
        // Its link count changed, too; the sync of the directory makes that durable.
        if self.note(ino).is_none() || !self.nodes.contains_key(&dir) {
            return;
        }
        let changes = self.nodes.get_mut(&ino).and_then(|node| node.changes.as_mut());
        if let Some(changes) = changes.filter(|changes| !changes.dirs.contains(&dir)) {
            changes.dirs.push(dir);
            self.node(dir).holds += 1;
        }
    }

    /// Returns the changes of an inode, with the time advanced. If too many inodes have changes,
    /// forgets those of all, so that only a sync of everything makes them durable.
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

    /// Returns the changes of an inode that are not durable.
    pub fn changes(&self, ino: Ino) -> Option<Changes> {
        self.nodes.get(&ino)?.changes.clone()
    }

    /// Returns the time when changes were dropped that are not durable, if that happened.
    pub fn lost_at(&self) -> Option<u64> {
        self.lost_at
    }

    /// Returns the current time, by the count of changes.
    pub fn now(&self) -> u64 {
        self.now
    }

    /// Notes that all changes up to `then` are durable.
    pub fn all_is_durable(&mut self, then: u64) {
        self.lost_at = self.lost_at.filter(|at| *at > then);
        for ino in self.changed.clone() {
            let at = self.nodes.get(&ino).and_then(|node| node.changes.as_ref());
            if at.is_none_or(|changes| changes.at <= then) {
                self.clear_changes(ino);
            }
        }
    }

    /// Notes that these changes of an inode are durable, unless more were made since.
    pub fn is_durable(&mut self, ino: Ino, changes: &Changes) {
        if self.nodes.get(&ino).is_some_and(|node| node.changes.as_ref() == Some(changes)) {
            self.clear_changes(ino);
        }
    }

    /// Removes the changes of an inode, and drops nodes that only they held.
    fn clear_changes(&mut self, ino: Ino) {
        self.changed.remove(&ino);
        let Some(node) = self.nodes.get_mut(&ino) else { return };
        let changes = node.changes.take();
        self.unhold(changes.map(|changes| changes.dirs).unwrap_or_default());
        self.drop_unheld(ino);
    }

    /// Returns the number of nodes.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    // --- changes by others ----------------------------------------------------------------------

    /// Returns whether a directory has to be marked, which is once for each node, or if it is not
    /// known yet.
    pub fn begin_mark(&mut self, found: &FoundNode) -> bool {
        let known = self.find(found).and_then(|ino| self.nodes.get_mut(&ino));
        known.is_none_or(|node| !std::mem::replace(&mut node.is_marked, true))
    }
}
