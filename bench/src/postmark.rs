//! PostMark (Katcher, NetApp TR3022, 1997) as SCMFS §4.3 has it: 10 000 files of 4 to 40 KB in 100
//! directories, then 400 000 transactions, then all files are removed.
//!
//! A transaction is two steps: it reads a file from start to end or appends to one, and it creates
//! a file or removes one. Biases of 0 to 10 are the likelihood of the first of each. The paper has
//! read-intensive and write-intensive loads but not their biases: here they are 9 and 1. Calls have
//! 4096 bytes, to which buffered I/O collects PostMark's 512. This implements the description and
//! takes nothing from its program.

use crate::engine::size;
use crate::kernels::Kernels;
use crate::rounds::{Case, Contender, Outcome, Plan};
use crate::store::Store;
use crate::subjects::{Subject, by_atime};
use crate::workload::{Buffer, numbered};
use anyhow::Result;
use rng::Rng;
use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;

/// Bytes of a call.
const CALL: usize = 4096;

/// The amount of work.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    /// Files at the start.
    pub files: usize,
    /// Directories that they are spread over.
    pub dirs: usize,
    /// Transactions.
    pub transactions: u64,
    /// Rounds of each phase.
    pub rounds: usize,
}

impl Scale {
    /// The paper's scale.
    pub const FULL: Self = Self { files: 10_000, dirs: 100, transactions: 400_000, rounds: 40 };
    /// The scale for a first look.
    pub const QUICK: Self = Self { files: 10_000, dirs: 100, transactions: 30_000, rounds: 15 };
    /// The scale for tests.
    pub const TINY: Self = Self { files: 40, dirs: 4, transactions: 200, rounds: 2 };
}

/// A load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mix {
    /// Its name in cases.
    pub name: &'static str,
    /// Of ten transactions, those that read; the others append.
    pub reads: u64,
    /// Of ten transactions, those that create; the others remove.
    pub creates: u64,
}

/// The paper's loads.
pub const MIXES: [Mix; 2] = [
    Mix { name: "read-intensive", reads: 9, creates: 5 },
    Mix { name: "write-intensive", reads: 1, creates: 5 },
];

/// Smallest and largest files.
const SIZES: std::ops::RangeInclusive<u64> = 4_000..=40_000;

/// A step of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Reads all of a file, which has `len` bytes.
    Read { file: usize, len: u64 },
    /// Appends `len` bytes to a file of `end` bytes.
    Append { file: usize, end: u64, len: u64 },
    /// Creates a file of `len` bytes.
    Create { file: usize, len: u64 },
    /// Removes a file.
    Remove { file: usize },
}

/// The files and the next steps: the same for every system, as it does not depend on them.
struct Script {
    mix: Mix,
    rng: Rng,
    /// Bytes of files by number; `None`: removed.
    sizes: Vec<Option<u64>>,
    /// Numbers of the files that exist.
    live: Vec<usize>,
    /// Numbers that are free.
    free: Vec<usize>,
}

impl Script {
    fn new(mix: Mix, scale: Scale) -> Self {
        let files = scale.files;
        Self {
            mix,
            rng: Rng::new(42),
            sizes: vec![None; 0],
            live: Vec::with_capacity(files),
            free: vec![],
        }
    }

    fn between(&mut self, least: u64, most: u64) -> u64 {
        least + self.rng.below_fast(most - least + 1)
    }

    fn create(&mut self) -> Step {
        let file = self.free.pop().unwrap_or_else(|| {
            self.sizes.push(None);
            self.sizes.len() - 1
        });
        let len = self.between(*SIZES.start(), *SIZES.end());
        self.sizes[file] = Some(len);
        self.live.push(file);
        Step::Create { file, len }
    }

    /// Removes a file at random; `None` if no file is left.
    fn remove(&mut self) -> Option<Step> {
        let place = self.rng.below_fast(self.live.len().max(1) as u64) as usize;
        let file = (!self.live.is_empty()).then(|| self.live.swap_remove(place))?;
        self.sizes[file] = None;
        self.free.push(file);
        Some(Step::Remove { file })
    }

    /// Reads a file or appends to one; a file that has its full size is read.
    fn use_file(&mut self) -> Option<Step> {
        let place = self.rng.below_fast(self.live.len().max(1) as u64) as usize;
        let file = *self.live.get(place)?;
        let end = self.sizes[file]?;
        let reads = self.rng.below_fast(10) < self.mix.reads;
        if reads || end >= *SIZES.end() {
            return Some(Step::Read { file, len: end });
        }
        let len = self.between(1, SIZES.end() - end);
        self.sizes[file] = Some(end + len);
        Some(Step::Append { file, end, len })
    }

    /// Returns the steps of one transaction.
    fn transaction(&mut self) -> [Option<Step>; 2] {
        let used = self.use_file();
        let creates = self.rng.below_fast(10) < self.mix.creates || self.live.is_empty();
        [used, if creates { Some(self.create()) } else { self.remove() }]
    }
}

/// A system that the load runs on.
pub struct Postmark<'s, S: Store> {
    store: &'s S,
    dirs: Vec<S::Dir>,
    script: Script,
    buf: Buffer,
}

impl<'s, S: Store> Postmark<'s, S> {
    /// Makes the directories, in one with the name of the mix.
    pub fn new(store: &'s S, mix: Mix, scale: Scale) -> Result<Self> {
        let name = std::ffi::CString::new(mix.name)?;
        let top = store.mkdir(&store.root()?, &name)?;
        let dirs =
            (0..scale.dirs).map(|i| store.mkdir(&top, &numbered(i))).collect::<vfs::Result<_>>()?;
        Ok(Self { store, dirs, script: Script::new(mix, scale), buf: Buffer::new(CALL) })
    }

    /// Creates `files` files.
    pub fn create(&mut self, files: u64) -> vfs::Result<()> {
        for _ in 0..files {
            let step = self.script.create();
            self.play(step)?;
        }
        Ok(())
    }

    /// Does `transactions` transactions.
    pub fn transact(&mut self, transactions: u64) -> vfs::Result<()> {
        for _ in 0..transactions {
            for step in self.script.transaction().into_iter().flatten() {
                self.play(step)?;
            }
        }
        Ok(())
    }

    /// Removes up to `files` files.
    pub fn remove(&mut self, files: u64) -> vfs::Result<()> {
        for _ in 0..files {
            match self.script.remove() {
                Some(step) => self.play(step)?,
                None => break,
            }
        }
        Ok(())
    }

    /// Does a step on the system.
    fn play(&mut self, step: Step) -> vfs::Result<()> {
        let dir = |file: usize| &self.dirs[file % self.dirs.len()];
        match step {
            Step::Read { file, len } => {
                let open = self.store.open(dir(file), &numbered(file))?;
                for at in (0..len).step_by(CALL) {
                    let part = (len - at).min(CALL as u64) as usize;
                    self.store.read(&open, at, &mut self.buf.get_mut()[..part])?;
                }
                self.store.close(open);
            }
            Step::Append { file, end, len } => {
                let open = self.store.open(dir(file), &numbered(file))?;
                self.write(&open, end, len)?;
                self.store.close(open);
            }
            Step::Create { file, len } => {
                let open = self.store.create(dir(file), &numbered(file))?;
                self.write(&open, 0, len)?;
                self.store.close(open);
            }
            Step::Remove { file } => self.store.unlink(dir(file), &numbered(file))?,
        }
        Ok(())
    }

    fn write(&self, file: &S::File, start: u64, len: u64) -> vfs::Result<()> {
        for at in (0..len).step_by(CALL) {
            let part = (len - at).min(CALL as u64) as usize;
            self.store.append(file, start + at, &self.buf.get()[..part])?;
        }
        Ok(())
    }
}

/// A contender for each phase; they share the files.
struct Phases<'a> {
    create: Contender<'a>,
    transact: Contender<'a>,
    remove: Contender<'a>,
}

/// Makes the contenders of one system.
fn phases<'a, S: Store>(name: &str, store: &'a S, mix: Mix, scale: Scale) -> Result<Phases<'a>> {
    let shared = Rc::new(RefCell::new(Postmark::new(store, mix, scale)?));
    let phase = |step: fn(&mut Postmark<'a, S>, u64) -> vfs::Result<()>| {
        let shared = shared.clone();
        Contender::new(name, move |ops| step(&mut shared.borrow_mut(), ops))
    };
    Ok(Phases {
        create: phase(Postmark::create),
        transact: phase(Postmark::transact),
        remove: phase(Postmark::remove),
    })
}

/// Runs both loads: the first subject against all others. Pools and files are made in `dir`, which
/// should be a tmpfs.
pub fn run(plan: &Plan, subjects: &[Subject], scale: Scale, dir: &Path) -> Result<Vec<Outcome>> {
    // Files grow, but not all of them to their full size.
    let room = (scale.files as u64 * 2 * SIZES.end()).next_multiple_of(2 << 20).max(64 << 20);
    let others = by_atime();
    let pools: Vec<_> = subjects
        .iter()
        .chain(&others)
        .map(|s| Ok((s.name, s.pool(dir, room)?)))
        .collect::<Result<_>>()?;
    let kernels = Kernels::mounted(dir, room)?;
    let mut outcomes = Vec::new();
    for mix in MIXES {
        let names =
            ["create", "transactions", "remove"].map(|p| format!("postmark/{}/{p}", mix.name));
        if !names.iter().any(|name| plan.wants(name)) {
            continue;
        }
        let mut systems = Vec::new();
        for (name, pool) in &pools {
            systems.push(phases(name, pool, mix, scale)?);
        }
        for (name, kernel, _) in &kernels.each {
            systems.push(phases(name, kernel, mix, scale)?);
        }
        let files = scale.files as u64;
        let rounds = (scale.rounds / 2).max(2);
        let about = format!("files of {} to {} bytes", SIZES.start(), SIZES.end());
        let [create, transact, remove] = names;
        let mut created =
            Case::new(create, format!("{about}: create one")).fixed(files / rounds as u64, rounds);
        let what = format!("a transaction by calls of {}", size(CALL));
        let mut transacted =
            Case::new(transact, what).fixed(scale.transactions / scale.rounds as u64, scale.rounds);
        let mut removed = Case::new(remove, format!("{about}: remove one"))
            .fixed(files / rounds as u64 / 2, rounds);
        for phases in systems {
            created = created.with(phases.create);
            transacted = transacted.with(phases.transact);
            removed = removed.with(phases.remove);
        }
        transacted = transacted.target("tmpfs", 3.0);
        // §4.3: SCMFS with consistency writes 22 % faster than ext2.
        transacted = transacted.target("ext2", if mix.reads < 5 { 1.22 } else { 1.0 });
        // Each phase needs the one before, so all run, whatever the filter.
        let all = Plan { filter: Vec::new(), ..*plan };
        let mut found = Vec::new();
        for case in [created, transacted, removed] {
            all.run(case, &mut found)?;
        }
        outcomes.extend(found.into_iter().filter(|outcome| plan.wants(&outcome.name)));
    }
    Ok(outcomes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn script(mix: Mix) -> Script {
        let mut script = Script::new(mix, Scale::TINY);
        for _ in 0..500 {
            script.create();
        }
        script
    }

    #[test]
    fn mixes_are_as_biased_as_they_say() {
        for mix in MIXES {
            let mut script = script(mix);
            let (mut reads, mut appends, mut creates, mut removes) = (0, 0, 0, 0);
            for _ in 0..10_000 {
                for step in script.transaction().into_iter().flatten() {
                    match step {
                        Step::Read { .. } => reads += 1,
                        Step::Append { .. } => appends += 1,
                        Step::Create { .. } => creates += 1,
                        Step::Remove { .. } => removes += 1,
                    }
                }
            }
            let share = f64::from(reads) / f64::from(reads + appends);
            // Files that are full are read.
            let least = mix.reads as f64 / 10.0;
            assert!((least - 0.02..least + 0.15).contains(&share), "{mix:?}: {share}");
            assert!((f64::from(creates) / f64::from(removes) - 1.0).abs() < 0.1, "{mix:?}");
        }
    }

    #[test]
    fn files_keep_to_their_sizes_and_steps_to_files_that_are_there() {
        let mut script = script(MIXES[1]);
        let mut lens = std::collections::BTreeMap::new();
        for (file, len) in script.sizes.iter().enumerate() {
            lens.insert(file, len.unwrap());
        }
        for _ in 0..10_000 {
            for step in script.transaction().into_iter().flatten() {
                match step {
                    Step::Read { file, len } => assert_eq!(lens[&file], len),
                    Step::Append { file, end, len } => {
                        assert_eq!(lens.insert(file, end + len), Some(end));
                        assert!(len > 0 && end + len <= *SIZES.end());
                    }
                    Step::Create { file, len } => {
                        assert!(SIZES.contains(&len));
                        assert_eq!(lens.insert(file, len), None);
                    }
                    Step::Remove { file } => assert!(lens.remove(&file).is_some()),
                }
            }
        }
    }

    #[test]
    fn all_files_can_be_removed() {
        let mut script = script(MIXES[0]);
        let removed = std::iter::from_fn(|| script.remove()).count();
        assert_eq!(removed, 500);
        assert_eq!(script.use_file(), None);
    }

    #[test]
    fn rounds_make_up_the_published_run() {
        let full = Scale::FULL;
        assert_eq!((full.files, full.dirs, full.transactions), (10_000, 100, 400_000));
        assert_eq!(full.transactions % full.rounds as u64, 0);
    }
}
