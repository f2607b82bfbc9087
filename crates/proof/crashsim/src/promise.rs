//! The promises of engines about unsynced content: a predicate over the history of a workload
//! defines the legal states.
//!
//! An engine that is durable on return has few legal trees, which the oracle compares whole. One
//! whose content is durable on `fsync` ([`Durability::MetadataOnReturn`], [`Durability::OnSync`])
//! may leave any mixture of earlier contents of its files:
//!
//! - promise-H1: names, attributes and sizes are those of one moment of the history: of now, or for
//!   `OnSync` of any since the last sync.
//! - promise-H2: each byte of a file has its value in some moment since the file was last synced,
//!   or the value that an operation in flight gives it. If a file had not been written, or had
//!   ended before, its bytes were zeros.
//! - promise-H3: so no byte is foreign: earlier contents of its blocks, for another file or none,
//!   never appear in it.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};
use std::ops::{Range, RangeInclusive};
use std::sync::Arc;
use vfs::script::{Driver, Handles, Op, escape};
use vfs::tree::{Path, Tree, diff, tree_without_content};
use vfs::{Durability, FileKind, FileSystem, Ino};

/// Bytes of a block of [`Contents`].
const BLOCK: u64 = 4096;

/// Blocks of a file that are not all zeros, by index; the last may be shorter.
type Blocks = BTreeMap<u64, Block>;

/// The bytes of a block, with a digest: many blocks are compared, and few differ.
#[derive(Clone, Debug)]
struct Block {
    digest: u64,
    bytes: Arc<[u8]>,
}

impl Block {
    fn of(bytes: &[u8]) -> Self {
        Self { digest: rng::hash_bytes(bytes), bytes: bytes.into() }
    }

    /// Returns some of its bytes; those beyond its end are zeros.
    fn piece(block: Option<&Self>, range: Range<usize>) -> [u8; PIECE] {
        let mut piece = [0; PIECE];
        if let Some(bytes) = block.and_then(|block| block.bytes.get(range.start..)) {
            let have = bytes.len().min(range.len());
            piece[..have].copy_from_slice(&bytes[..have]);
        }
        piece
    }
}

impl PartialEq for Block {
    fn eq(&self, other: &Self) -> bool {
        self.digest == other.digest
    }
}

impl Eq for Block {}

impl Hash for Block {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.digest.hash(state);
    }
}

/// Bytes that are compared at once.
const PIECE: usize = 64;

/// The content of all files, by path.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Contents(BTreeMap<Path, (Ino, Blocks)>);

impl Contents {
    /// Reads the non-zero bytes of the files of `tree`, which is of the same file system.
    pub fn read(fs: &dyn FileSystem, tree: &Tree) -> Result<Self, String> {
        let driver = Driver::new(fs);
        let mut contents = BTreeMap::new();
        for (path, _) in tree.nodes().iter().filter(|(_, node)| node.kind == FileKind::File) {
            let content = driver.with(&format!("/{}", escape(path)), |ino| {
                Ok(blocks_of(fs, ino).map(|blocks| (ino, blocks)))
            });
            let failed = |e: String| format!("reading /{}: {e}", path.escape_ascii());
            let content = content.map_err(|e| failed(e.to_string()))?;
            contents.insert(path.clone(), content.map_err(failed)?);
        }
        Ok(Self(contents))
    }

    /// Returns the content of an inode, if it has a name.
    fn of(&self, ino: Ino) -> Option<&Blocks> {
        self.0.values().find(|(known, _)| *known == ino).map(|(_, blocks)| blocks)
    }
}

/// Reads the non-zero bytes of a file.
fn blocks_of(fs: &dyn FileSystem, ino: Ino) -> Result<Blocks, String> {
    let mut blocks = Blocks::new();
    let mut note = |index, block: &[u8]| drop(blocks.insert(index, Block::of(block)));
    vfs::tree::content(fs, ino, &mut note).map_err(|e| e.to_string())?;
    Ok(blocks)
}

/// The file system between two operations, as in the contract's model.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Moment {
    /// The tree, without content.
    tree: Tree,
    contents: Contents,
    /// The content of open files without a name: they may get one.
    nameless: BTreeMap<Ino, Blocks>,
    /// The part that the operation before it made durable.
    syncs: Syncs,
}

impl Moment {
    /// Captures the file system now, with these open handles.
    pub fn of(model: &dyn FileSystem, open: Handles, syncs: Syncs) -> Result<Self, String> {
        let tree = tree_without_content(model).map_err(|e| format!("the model: {e}"))?;
        let contents = Contents::read(model, &tree)?;
        let mut nameless = BTreeMap::new();
        for ino in open.into_iter().flatten().filter(|ino| contents.of(*ino).is_none()) {
            let attr = model.getattr(ino).map_err(|e| format!("the model: {e}"))?;
            if attr.kind == FileKind::File {
                nameless.insert(ino, blocks_of(model, ino)?);
            }
        }
        Ok(Self { tree, contents, nameless, syncs })
    }
}

/// The part of a file system that an operation makes durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Syncs {
    /// No particular part.
    Nothing,
    /// The content of a file of the model, and all earlier operations.
    File(Ino),
    /// Everything.
    All,
}

impl Syncs {
    /// Returns the part made durable by an operation that `driver` has just done.
    pub fn by(op: &Op, driver: &Driver<'_>) -> Self {
        match op {
            Op::Fsync(place) => driver.with(place, Ok).map_or(Self::Nothing, Self::File),
            Op::Remount | Op::Sync => Self::All,
            _ => Self::Nothing,
        }
    }
}

/// The moments of a workload.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct History {
    moments: Vec<Moment>,
    /// The tree between the two steps of an operation, by the moment before it.
    between: BTreeMap<usize, Tree>,
}

impl History {
    /// Notes the model after an operation that made `syncs` durable. The first call notes the state
    /// before any operation: all of it is durable.
    pub fn note(
        &mut self,
        model: &dyn FileSystem,
        open: Handles,
        syncs: Syncs,
    ) -> Result<(), String> {
        self.moments.push(Moment::of(model, open, syncs)?);
        Ok(())
    }

    /// Makes a history of these moments: of one order of a workload's operations or, if nothing was
    /// synced, of all orders together.
    pub fn of_moments(moments: Vec<Moment>) -> Self {
        Self { moments, between: BTreeMap::new() }
    }

    /// Notes that the operation after the last moment has two steps. `tree`, without content, is
    /// between them; the content is that of the last moment.
    pub fn note_between(&mut self, tree: &Tree) {
        self.between.insert(self.moments.len() - 1, tree.clone());
    }

    /// Returns the moments up to `last`.
    pub fn until(&self, last: usize) -> &[Moment] {
        &self.moments[..=last]
    }

    /// Checks whether a crash between the moments `now` may leave `tree`, which is without content,
    /// with each of `contents`; an error has the reason.
    pub fn allows(
        &self,
        durability: Durability,
        now: RangeInclusive<usize>,
        tree: &Tree,
        contents: &[Contents],
    ) -> Result<(), String> {
        let last = *now.end();
        let metadata = match durability {
            Durability::OnReturn | Durability::MetadataOnReturn => now,
            // Operations before a sync are durable.
            Durability::OnSync => self.last(*now.start(), |syncs| syncs != Syncs::Nothing)..=last,
        };
        let mut whys = BTreeSet::new();
        let between = self.between.range(*metadata.start()..*metadata.end());
        let moments = metadata.map(|at| (at, &self.moments[at].tree));
        for (at, legal) in moments.chain(between.map(|(at, tree)| (*at, tree))) {
            match diff(legal, tree) {
                Some(why) => drop(whys.insert(format!("the tree is none that is allowed: {why}"))),
                // promise-H1 holds for this moment.
                None => match contents.iter().find_map(|of| self.foreign(at, last, of)) {
                    Some(why) => drop(whys.insert(why)),
                    None => return Ok(()),
                },
            }
        }
        Err(whys.into_iter().collect::<Vec<_>>().join("\n  or: "))
    }

    /// Returns the last moment until `at` whose `syncs` satisfies `is_it`.
    fn last(&self, at: usize, is_it: impl Fn(Syncs) -> bool) -> usize {
        self.moments[..=at].iter().rposition(|moment| is_it(moment.syncs)).unwrap_or(0)
    }

    /// Finds the first byte that no moment until `last` explains (promise-H2). The names are those
    /// of the moment `at`.
    fn foreign(&self, at: usize, last: usize, contents: &Contents) -> Option<String> {
        contents.0.iter().find_map(|(path, (_, found))| {
            let (ino, _) = self.moments[at].contents.0.get(path)?;
            let versions = self.versions(*ino, at, last);
            let known = versions.iter().flat_map(|blocks| blocks.keys());
            let indexes: BTreeSet<u64> = known.chain(found.keys()).copied().collect();
            indexes.into_iter().find_map(|index| {
                let size = self.moments[at].tree.nodes()[path].size.unwrap_or(0);
                let end = size.saturating_sub(index * BLOCK).min(BLOCK);
                let is = found.get(&index);
                let were: Vec<_> = versions.iter().map(|blocks| blocks.get(&index)).collect();
                // Usually the block equals one of them.
                if were.contains(&is) {
                    return None;
                }
                let (at, byte) = first_foreign(is, &were, end as usize)?;
                Some(format!(
                    "/{}: the byte at {} is {byte:#04x}, which it was in none of {} moments",
                    path.escape_ascii(),
                    index * BLOCK + at as u64,
                    versions.len()
                ))
            })
        })
    }

    /// Returns the content of an inode of the model in each moment since its last sync before `at`,
    /// until `last`. A file that did not exist yet had none.
    fn versions(&self, ino: Ino, at: usize, last: usize) -> Vec<&Blocks> {
        const NOTHING: &Blocks = &BTreeMap::new();
        let first = self.last(at, |syncs| syncs == Syncs::All || syncs == Syncs::File(ino));
        self.moments[first..=last]
            .iter()
            .map(|moment| {
                let named = moment.contents.of(ino);
                named.or_else(|| moment.nameless.get(&ino)).unwrap_or(NOTHING)
            })
            .collect()
    }
}

/// Finds the first byte below `end` that a block has and none of `were` had, and its place.
fn first_foreign(is: Option<&Block>, were: &[Option<&Block>], end: usize) -> Option<(usize, u8)> {
    (0..end).step_by(PIECE).find_map(|start| {
        let range = start..end.min(start + PIECE);
        let piece = Block::piece(is, range.clone());
        let pieces = || were.iter().map(|block| Block::piece(*block, range.clone()));
        if pieces().any(|were| were == piece) {
            return None;
        }
        let is_foreign = |&i: &usize| pieces().all(|were| were[i] != piece[i]);
        let i = (0..range.len()).find(is_foreign)?;
        Some((start + i, piece[i]))
    })
}
