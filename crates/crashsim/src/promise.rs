//! What engines promise of unsynced content: legal states as a predicate over the history of a workload.
//!
//! An engine that is durable on return has few legal trees, which the oracle compares whole. One whose content is
//! durable on `fsync` ([`Durability::MetadataOnReturn`], [`Durability::OnSync`]) may leave any mixture of what its
//! files were:
//!
//! - promise-H1: names, attributes and sizes are those of one moment of the history: of now, or for `OnSync` of any since the
//!   last sync.
//! - promise-H2: each byte of a file is what it was in some moment since the file was last synced, or, in flight, will be. Where
//!   a file had not been written, or had ended before, its bytes were zeros.
//! - promise-H3: so no byte is foreign: whatever its blocks held before, for another file or none, is not in it.

use crate::op::Driver;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use vfs::tree::{Path, Tree, diff};
use vfs::{Durability, FileKind, FileSystem, Ino};

/// Bytes of a block of [`Contents`].
const BLOCK: u64 = 4096;

/// Blocks of a file that are not all zeros, by index; the last may be shorter.
type Blocks = BTreeMap<u64, Vec<u8>>;

/// The content of all files, by path.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Contents(BTreeMap<Path, (Ino, Blocks)>);

impl Contents {
    /// Reads what `tree`, of the same file system, says is not zeros.
    pub fn read(fs: &dyn FileSystem, tree: &Tree) -> Result<Self, String> {
        let driver = Driver::new(fs);
        let mut contents = BTreeMap::new();
        for (path, node) in tree.nodes().iter().filter(|(_, node)| node.kind == FileKind::File) {
            let content = driver.with(&format!("/{}", String::from_utf8_lossy(path)), |ino| {
                let size = node.size.unwrap_or(0);
                let mut blocks = Blocks::new();
                for &index in node.content.keys() {
                    let mut block = vec![0; (size - index * BLOCK).min(BLOCK) as usize];
                    fs.read(ino, index * BLOCK, &mut block)?;
                    blocks.insert(index, block);
                }
                Ok((ino, blocks))
            });
            let failed = |e: vfs::Errno| format!("reading /{}: {e}", path.escape_ascii());
            contents.insert(path.clone(), content.map_err(failed)?);
        }
        Ok(Self(contents))
    }
}

/// The file system between two operations, as the contract's model has it.
#[derive(Clone, Debug, Hash)]
pub struct Moment {
    /// Without content.
    tree: Tree,
    contents: Contents,
    /// What the operation before it made durable.
    syncs: Syncs,
}

/// What an operation makes durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Syncs {
    /// Nothing in particular.
    Nothing,
    /// The content of a file of the model, and what was done before.
    File(Ino),
    /// Everything.
    All,
}

/// What a workload did, moment by moment.
#[derive(Clone, Debug, Default)]
pub struct History(Vec<Moment>);

impl History {
    /// Notes the model after an operation that made `syncs` durable; at first what was there before any: all of it is.
    pub fn note(&mut self, model: &dyn FileSystem, syncs: Syncs) -> Result<(), String> {
        let tree = vfs::tree::tree(model).map_err(|e| format!("the model: {e}"))?;
        let contents = Contents::read(model, &tree)?;
        self.0.push(Moment { tree: tree.without_content(), contents, syncs });
        Ok(())
    }

    /// Up to a moment.
    pub fn until(&self, last: usize) -> &[Moment] {
        &self.0[..=last]
    }

    /// Whether a crash between the moments `now` may leave `tree` with `contents`; an error says why not.
    pub fn allows(
        &self,
        durability: Durability,
        now: RangeInclusive<usize>,
        tree: &Tree,
        contents: &Contents,
    ) -> Result<(), String> {
        let last = *now.end();
        let metadata = match durability {
            Durability::OnReturn | Durability::MetadataOnReturn => now,
            // What precedes a sync is durable.
            Durability::OnSync => self.last(*now.start(), |syncs| syncs != Syncs::Nothing)..=last,
        };
        let bare = tree.without_content();
        let mut whys = BTreeSet::new();
        for at in metadata {
            let moment = &self.0[at];
            match diff(&moment.tree, &bare) {
                Some(why) => drop(whys.insert(format!("the tree is none that is allowed: {why}"))),
                // promise-H1 holds for this moment.
                None => match self.foreign(at, last, contents) {
                    Some(why) => drop(whys.insert(why)),
                    None => return Ok(()),
                },
            }
        }
        Err(whys.into_iter().collect::<Vec<_>>().join("\n  or: "))
    }

    /// The last moment until `at` when what was made durable is as asked for.
    fn last(&self, at: usize, is_it: impl Fn(Syncs) -> bool) -> usize {
        self.0[..=at].iter().rposition(|moment| is_it(moment.syncs)).unwrap_or(0)
    }

    /// The first byte that no moment until `last` explains (promise-H2), where the names are those of the moment `at`.
    fn foreign(&self, at: usize, last: usize, contents: &Contents) -> Option<String> {
        contents.0.iter().find_map(|(path, (_, found))| {
            let (ino, _) = self.0[at].contents.0.get(path)?;
            let versions = self.versions(*ino, at, last);
            let known = versions.iter().flat_map(|blocks| blocks.keys());
            let indexes: BTreeSet<u64> = known.chain(found.keys()).copied().collect();
            indexes.into_iter().find_map(|index| {
                let size = self.0[at].tree.nodes()[path].size.unwrap_or(0);
                let end = size.saturating_sub(index * BLOCK).min(BLOCK);
                let byte = |blocks: &Blocks, i: u64| {
                    blocks.get(&index).and_then(|b| b.get(i as usize)).copied().unwrap_or(0)
                };
                let is_foreign =
                    |&i: &u64| !versions.iter().any(|blocks| byte(blocks, i) == byte(found, i));
                let i = (0..end).find(is_foreign)?;
                Some(format!(
                    "/{}: the byte at {} is {:#04x}, which it was in none of {} moments",
                    path.escape_ascii(),
                    index * BLOCK + i,
                    byte(found, i),
                    versions.len()
                ))
            })
        })
    }

    /// What an inode of the model held in each moment since it was synced before `at`, until `last`. A file that was
    /// not there yet held nothing.
    fn versions(&self, ino: Ino, at: usize, last: usize) -> Vec<&Blocks> {
        const NOTHING: &Blocks = &BTreeMap::new();
        let first = self.last(at, |syncs| syncs == Syncs::All || syncs == Syncs::File(ino));
        self.0[first..=last]
            .iter()
            .map(|moment| {
                let mut files = moment.contents.0.values();
                files.find(|(known, _)| *known == ino).map_or(NOTHING, |(_, blocks)| blocks)
            })
            .collect()
    }
}
