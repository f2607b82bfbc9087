//! Conditions that must hold after recovery.
//!
//! - oracle-O1: the engine mounts and finds nothing wrong.
//! - oracle-O2: the model allows its tree at this moment.
//! - oracle-O3: it is usable: creating, writing, linking, renaming and deleting work.
//! - oracle-O4: nothing leaks: a fresh check finds the counts of the mount. It does so again after
//!   everything was deleted; then little more than a fresh pool's blocks may be in use, all others
//!   are free, and only the root's inode is taken.
//! - oracle-O5: a crash inside recovery changes nothing ([`crate::run`] explores it).
//! - oracle-O6: if the engine promises durability on return, even of names and attributes only, the
//!   stores of a returned operation are durable. The engine may justify exceptions. ([`crate::run`]
//!   checks the trace for it.)
//!
//! oracle-O3 and oracle-O4 are checked once for each pair of tree and block count of a crash point.

use crate::image::CrashImage;
use crate::promise::Contents;
use crate::run::Fresh;
use crate::target::{Mounted, Target};
use std::cell::RefCell;
use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use vfs::FileSystem;
use vfs::script::{Driver, Op};
use vfs::tree::Tree;

/// The result of a recovery.
#[derive(Clone, Debug)]
pub struct FoundState {
    /// The tree; without content if not all is durable on return.
    pub tree: Arc<Tree>,
    /// In that case, the possible contents of files: with one choice of the undecided words, and
    /// with others. Each undecided word has each of its values in one of them.
    pub contents: Arc<[Contents]>,
    /// Whether recovery stored anything.
    pub stored: bool,
}

/// Results that were found to be allowed at a crash point. Many recoveries find the same, of which
/// an [`Oracle`] keeps one copy. So the address identifies it.
#[derive(Debug, Default)]
pub struct Allowed(RefCell<HashMap<(*const Tree, *const Contents), FoundState>>);

impl Allowed {
    /// Whether `found` is allowed: calls `ask` when it is met first.
    pub fn admits(
        &self,
        found: &FoundState,
        ask: impl FnOnce() -> Result<(), String>,
    ) -> Result<(), String> {
        let key = (Arc::as_ptr(&found.tree), found.contents.as_ptr());
        if !self.0.borrow().contains_key(&key) {
            ask()?;
            self.0.borrow_mut().insert(key, found.clone());
        }
        Ok(())
    }
}

/// The oracle: judges images of one workload.
pub struct Oracle<'t, T> {
    target: &'t T,
    /// The state of a fresh pool.
    fresh: Fresh,
    /// Trees met, one copy of each.
    trees: RefCell<Vec<Arc<Tree>>>,
    /// Contents met, one copy of each, by their hash: many states share few contents.
    contents: RefCell<HashMap<u64, Arc<[Contents]>>>,
    /// Trees and block counts for which oracle-O3 and oracle-O4 have been checked.
    probed: RefCell<Vec<(Arc<Tree>, u64)>>,
}

impl<'t, T: Target> Oracle<'t, T> {
    /// Makes an oracle for pools that are `fresh` when just formatted.
    pub fn new(target: &'t T, fresh: Fresh) -> Self {
        Self {
            target,
            fresh,
            trees: RefCell::default(),
            contents: RefCell::default(),
            probed: RefCell::default(),
        }
    }

    /// Forgets the results of probes before the next crash point.
    pub fn next_point(&self) {
        self.probed.borrow_mut().clear();
    }

    /// Recovers an image; an error is a violation, whatever the model allows.
    pub fn recover(&self, image: &CrashImage) -> Result<FoundState, String> {
        let ended = catch_unwind(AssertUnwindSafe(|| self.examine(image)));
        ended.unwrap_or_else(|panic| {
            let text = panic
                .downcast_ref::<String>()
                .map(String::as_str)
                .or_else(|| panic.downcast_ref::<&str>().copied());
            Err(format!("recovery panicked: {}", text.unwrap_or("?")))
        })
    }

    /// Checks oracle-O1. The caller, which knows the trees allowed at this moment, checks the
    /// result (oracle-O2).
    fn examine(&self, image: &CrashImage) -> Result<FoundState, String> {
        let mounted = self.target.mount(image).map_err(|e| format!("mount: {e}"))?;
        let stored = image.stores() > 0;
        let strength = self.target.strength();
        let tree = strength.read(&*mounted.fs).map_err(|e| format!("walk: {e}"))?;
        let tree = self.intern(tree);
        let contents = match strength.is_ordered() {
            true => Arc::default(),
            false => self.intern_contents(contents(image, &*mounted.fs, &tree)?),
        };
        let key = (tree.clone(), mounted.blocks_used);
        let known = |(t, used): &(Arc<Tree>, u64)| Arc::ptr_eq(t, &key.0) && *used == key.1;
        if !self.probed.borrow().iter().any(known) {
            self.probed.borrow_mut().push(key);
            image.stop_watching();
            self.probe(image, mounted)?;
        }
        Ok(FoundState { tree, contents, stored })
    }

    /// Returns the one copy of this tree.
    fn intern(&self, tree: Tree) -> Arc<Tree> {
        let mut trees = self.trees.borrow_mut();
        if let Some(known) = trees.iter().find(|t| ***t == tree) {
            return known.clone();
        }
        trees.push(Arc::new(tree));
        trees[trees.len() - 1].clone()
    }

    /// Returns the one copy of these contents.
    fn intern_contents(&self, contents: Vec<Contents>) -> Arc<[Contents]> {
        let hash = BuildHasherDefault::<DefaultHasher>::new().hash_one(&contents);
        let mut known = self.contents.borrow_mut();
        match known.get(&hash) {
            Some(known) if **known == *contents => known.clone(),
            _ => {
                let contents: Arc<[Contents]> = contents.into();
                known.insert(hash, contents.clone());
                contents
            }
        }
    }

    /// Checks oracle-O3 and oracle-O4.
    fn probe(&self, image: &CrashImage, mounted: Mounted<'_>) -> Result<(), String> {
        let check = || self.target.check(image).map_err(|e| format!("check: {e}"));
        let usage = check()?;
        if usage.blocks_used != mounted.blocks_used {
            let (m, c) = (mounted.blocks_used, usage.blocks_used);
            return Err(format!("leak: mounting counts {m} blocks in use, a check {c}"));
        }
        self.use_it(&*mounted.fs)?;
        let stat = mounted.fs.statfs();
        drop(mounted);
        let usage = check().map_err(|e| format!("after deleting everything: {e}"))?;
        if usage.inodes != 1 {
            let n = usage.inodes;
            return Err(format!("leak: {n} inodes live after deleting everything"));
        }
        let keep = self.target.strength().residue_blocks;
        if usage.blocks_used > self.fresh.blocks_used + keep {
            let (n, fresh) = (usage.blocks_used, self.fresh.blocks_used);
            return Err(format!(
                "leak: {n} blocks in use after deleting everything, {fresh} in a fresh pool"
            ));
        }
        let (free, used) = (stat.blocks_free, usage.blocks_used);
        if free + used != self.fresh.blocks {
            let blocks = self.fresh.blocks;
            return Err(format!(
                "space: {free} blocks are free and {used} in use, together not {blocks}"
            ));
        }
        let inodes_used = stat.inodes - stat.inodes_free;
        if inodes_used != usage.inodes {
            return Err(format!(
                "space: {inodes_used} inodes are taken, and a check finds {}",
                usage.inodes
            ));
        }
        Ok(())
    }

    /// Makes and changes files, then deletes everything in the pool. `ENOSPC` is no error.
    fn use_it(&self, fs: &dyn FileSystem) -> Result<(), String> {
        let mut d = Driver::new(fs);
        let script = [
            Op::mkdir("/probe"),
            Op::create("/probe/f"),
            Op::write("/probe/f", 0, 5000),
            Op::write("/probe/f", 4000, 3000),
            Op::Link("/probe/f".into(), "/probe/g".into()),
            Op::Rename("/probe/g".into(), "/probe-g".into()),
            Op::truncate("/probe/f", 10),
        ];
        for op in &script {
            match d.run(op, 1) {
                Ok(()) | Err(vfs::Errno::NOSPC) => {}
                // A full pool could not make the file.
                Err(vfs::Errno::NOENT) => break,
                Err(e) => return Err(format!("unusable: {op}: {e}")),
            }
        }
        delete_all(fs, fs.root())
    }
}

/// Returns the possible contents of files. An undecided word only decides its own bytes, and
/// whether these are legal does not depend on others (promise-H2). So each value has to occur only
/// once.
fn contents(image: &CrashImage, fs: &dyn FileSystem, tree: &Tree) -> Result<Vec<Contents>, String> {
    let variants = 0..image.count_variants();
    let read = |variant| {
        image.take_variant(variant);
        Contents::read(fs, tree)
    };
    variants.map(read).collect()
}

/// Removes everything below a directory.
fn delete_all(fs: &dyn FileSystem, dir: vfs::Ino) -> Result<(), String> {
    let mut names = Vec::new();
    let listed = fs.readdir(dir, 0, &mut |e| {
        if e.name != b"." && e.name != b".." {
            names.push((e.name.to_vec(), e.kind, e.ino));
        }
        true
    });
    listed.map_err(|e| format!("unusable: readdir: {e}"))?;
    for (name, kind, ino) in names {
        let removed = if kind == vfs::FileKind::Dir {
            delete_all(fs, ino)?;
            fs.rmdir(dir, &name)
        } else {
            fs.unlink(dir, &name)
        };
        removed.map_err(|e| format!("unusable: removing {}: {e}", name.escape_ascii()))?;
    }
    Ok(())
}
