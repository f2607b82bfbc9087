//! Tests that the suite finds breaches of the contract: it must catch each fault here, wrapped
//! around the model.

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use vfs::conformance::{Failure, compare, gen_ops, ops, stress};
use vfs::model::Model;
use vfs::script::parse;
use vfs::{
    Attr, Caller, DirEntry, Entry, Errno, Fallocate, FileSystem, Ino, Mappings, NewNode, Openings,
    RenameFlags, Result, Seek, SetAttr, SetXattr,
};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    None,
    WriteLosesBlockCrossing,
    NoSpaceAfterChanging,
    GrowthIsNotZero,
    SeekSkipsData,
    SeekSeesHoleInData,
    ListsTwice,
    ExchangeReplaces,
    WhiteoutForgotten,
    LinkCopiesMode,
    CollapseForgetsTail,
    UmaskForgotten,
    XattrTruncated,
    ForgetDropsAll,
    PanicsOnTmpfile,
    /// Only other threads can observe it.
    TornWrite,
    /// Not a fault: the order of listings is free.
    ListsBackwards,
}

const FAULTS: [Fault; 14] = [
    Fault::WriteLosesBlockCrossing,
    Fault::NoSpaceAfterChanging,
    Fault::GrowthIsNotZero,
    Fault::SeekSkipsData,
    Fault::SeekSeesHoleInData,
    Fault::ListsTwice,
    Fault::ExchangeReplaces,
    Fault::WhiteoutForgotten,
    Fault::LinkCopiesMode,
    Fault::CollapseForgetsTail,
    Fault::UmaskForgotten,
    Fault::XattrTruncated,
    Fault::ForgetDropsAll,
    Fault::PanicsOnTmpfile,
];

struct Faulty(Model, Fault);

impl Faulty {
    fn boxed(fault: Fault) -> Box<dyn FileSystem> {
        Box::new(Self(Model::new(), fault))
    }

    fn list_backwards(
        &self,
        dir: Ino,
        cookie: u64,
        emit: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let mut entries = Vec::new();
        self.0.readdir(dir, 0, &mut |entry| {
            entries.push((entry.ino, entry.kind, entry.name.to_vec()));
            true
        })?;
        entries[2..].reverse();
        for ((ino, kind, name), place) in entries.iter().zip(1..).skip(cookie as usize) {
            if !emit(&DirEntry { ino: *ino, kind: *kind, name, cookie: place }) {
                break;
            }
        }
        Ok(())
    }
}

impl FileSystem for Faulty {
    vfs::forward!(self => self.0; root, durability, kernel_cache, limits, lookup, getattr,
        readlink, unlink, rmdir, read, append, drop_privileges, copy_range, clone_range, fsync, sync,
        getxattr, listxattr, removexattr, statfs);

    fn forget(&self, ino: Ino, refs: u64) {
        let all = self.1 == Fault::ForgetDropsAll;
        self.0.forget(ino, if all { u64::MAX } else { refs });
    }
    fn setattr(&self, caller: &Caller, ino: Ino, set: &SetAttr) -> Result<Attr> {
        let before = self.0.getattr(ino)?;
        let after = self.0.setattr(caller, ino, set)?;
        if self.1 == Fault::GrowthIsNotZero && after.size > before.size {
            self.0.write(ino, before.size, b"x")?;
        }
        Ok(after)
    }
    fn create(&self, caller: &Caller, dir: Ino, name: &[u8], node: &NewNode<'_>) -> Result<Entry> {
        let umask = if self.1 == Fault::UmaskForgotten { 0 } else { node.umask };
        self.0.create(caller, dir, name, &NewNode { umask, ..*node })
    }
    fn tmpfile(&self, caller: &Caller, dir: Ino, mode: u32, umask: u32) -> Result<Entry> {
        assert!(self.1 != Fault::PanicsOnTmpfile, "injected");
        self.0.tmpfile(caller, dir, mode, umask)
    }
    fn link(&self, ino: Ino, dir: Ino, name: &[u8]) -> Result<Entry> {
        let linked = self.0.link(ino, dir, name)?;
        if self.1 == Fault::LinkCopiesMode {
            let set = SetAttr { gid: Some(77), ..SetAttr::default() };
            self.0.setattr(&Caller::ROOT, ino, &set)?;
        }
        Ok(linked)
    }
    fn rename(&self, from: (Ino, &[u8]), to: (Ino, &[u8]), flags: RenameFlags) -> Result<()> {
        let replace = self.1 == Fault::ExchangeReplaces && flags == RenameFlags::EXCHANGE;
        self.0.rename(from, to, if replace { RenameFlags::empty() } else { flags })
    }
    fn rename_whiteout(
        &self,
        caller: &Caller,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        flags: RenameFlags,
    ) -> Result<()> {
        if self.1 == Fault::WhiteoutForgotten {
            return self.0.rename(from, to, flags);
        }
        self.0.rename_whiteout(caller, from, to, flags)
    }
    fn readdir(
        &self,
        dir: Ino,
        cookie: u64,
        emit: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> Result<()> {
        if self.1 == Fault::ListsBackwards {
            return self.list_backwards(dir, cookie, emit);
        }
        let twice = self.1 == Fault::ListsTwice;
        self.0.readdir(dir, cookie, &mut |entry| emit(entry) && (!twice || emit(entry)))
    }
    fn write(&self, ino: Ino, offset: u64, data: &[u8]) -> Result<()> {
        if self.1 == Fault::TornWrite && data.len() > 4096 {
            self.0.write(ino, offset, &data[..4096])?;
            std::thread::sleep(std::time::Duration::from_micros(100));
        }
        let lost = match self.1 {
            Fault::WriteLosesBlockCrossing => (offset + data.len() as u64).saturating_sub(4096),
            _ => 0,
        };
        let kept = if lost > 0 && offset < 4096 { data.len() - 1 } else { data.len() };
        self.0.write(ino, offset, &data[..kept.min(data.len())])?;
        match self.1 {
            Fault::NoSpaceAfterChanging if data.len() > 4096 => Err(Errno::NOSPC),
            _ => Ok(()),
        }
    }
    fn fallocate(&self, ino: Ino, mode: Fallocate, offset: u64, len: u64) -> Result<()> {
        self.0.fallocate(ino, mode, offset, len)?;
        if self.1 == Fault::CollapseForgetsTail && mode == Fallocate::Collapse {
            let size = Some(self.0.getattr(ino)?.size & !4095);
            self.0.setattr(&Caller::ROOT, ino, &SetAttr { size, ..SetAttr::default() })?;
        }
        Ok(())
    }
    fn seek(&self, ino: Ino, offset: u64, whence: Seek) -> Result<u64> {
        let found = self.0.seek(ino, offset, whence)?;
        match (self.1, whence) {
            (Fault::SeekSkipsData, Seek::Data) => self.0.seek(ino, found + 4096, whence),
            (Fault::SeekSeesHoleInData, Seek::Hole) => Ok(found.min((offset / 4096 + 1) * 4096)),
            _ => Ok(found),
        }
    }
    fn setxattr(&self, ino: Ino, name: &[u8], value: &[u8], mode: SetXattr) -> Result<()> {
        let cut = self.1 == Fault::XattrTruncated && value.len() > 4096 && value.len() < 65_536;
        self.0.setxattr(ino, name, if cut { &value[..4096] } else { value }, mode)
    }
}

impl Mappings for Faulty {}

impl Openings for Faulty {}

/// Returns the first failure that a few seeds find.
fn find(fault: Fault) -> Failure {
    let seeds = 0..40;
    let run = |seed| compare(Faulty::boxed(fault).as_ref(), &gen_ops(seed, 300)).err();
    seeds.into_iter().find_map(run).unwrap_or_else(|| panic!("{fault:?} was not found"))
}

#[test]
fn every_fault_is_found_and_minimised() {
    for fault in FAULTS {
        let found = find(fault);
        let small = found.clone().minimise(|| Faulty::boxed(fault));
        assert!(small.ops.len() <= 8, "{fault:?}: {small}");
        let replayed: Vec<_> = parse(&small.script()).unwrap();
        assert_eq!(replayed, small.ops);
        compare(Faulty::boxed(fault).as_ref(), &replayed).unwrap_err();
        compare(Faulty::boxed(Fault::None).as_ref(), &replayed).unwrap();
    }
}

#[test]
fn torn_writes_are_found_by_threads() {
    let torn = |seed| stress(Faulty::boxed(Fault::TornWrite).as_ref(), 4, 300, seed).is_err();
    assert!((0..30).any(torn));
    compare(Faulty::boxed(Fault::TornWrite).as_ref(), &gen_ops(1, 300)).unwrap();
}

#[test]
fn what_is_free_is_not_a_fault() {
    for seed in 0..20 {
        let fs = Faulty::boxed(Fault::ListsBackwards);
        compare(fs.as_ref(), &gen_ops(seed, 300)).unwrap_or_else(|failure| panic!("{failure}"));
    }
}

#[test]
fn generated_sequences_depend_on_the_seed_alone() {
    assert_eq!(gen_ops(7, 200), gen_ops(7, 200));
    assert_ne!(gen_ops(7, 200), gen_ops(8, 200));
}

#[test]
fn proptest_shrinks_by_leaving_calls_out() {
    let fails = |ops: &[_]| compare(Faulty::boxed(Fault::UmaskForgotten).as_ref(), ops).is_err();
    let mut runner = TestRunner::deterministic();
    let strategy = ops(200);
    let trees = std::iter::repeat_with(|| strategy.new_tree(&mut runner).unwrap());
    let mut tree = trees.take(50).find(|tree| fails(&tree.current())).unwrap();
    let before = tree.current();
    while tree.simplify() {
        if !fails(&tree.current()) && !tree.complicate() {
            break;
        }
    }
    let after = tree.current();
    assert!(after.len() < before.len().min(10), "{after:?}");
    assert!(after.iter().all(|op| before.contains(op)));
}
