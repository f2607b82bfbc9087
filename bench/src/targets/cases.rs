//! The cases of `run`: loads for any directory, and those of them that a device can do.

use crate::engine::size;
use crate::loads::{Order, PAGE};
use crate::rounds::Contender;
use crate::store::Store;
use crate::workload::{APPEND_BYTES, Bed};
use vfs::Result;

/// The objects that the calls of a case change, on which their durability depends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changes {
    /// Reads only.
    Nothing,
    /// Contents of files.
    Contents,
    /// Names and attributes.
    Names,
}

/// The work of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    Read(Order, usize),
    Write(Order, usize),
    WriteSync(usize),
    Append(usize),
    AppendSync(usize),
    Journal,
    Replace(usize),
    CreateUnlink,
    MakeDir,
    Rename,
    OpenClose,
    Stat,
    List,
    SmallFiles,
}

/// A case.
#[derive(Clone, Copy, Debug)]
pub struct Case(Work);

/// All cases, in the order of reports.
pub fn all() -> Vec<Case> {
    use Order::{InOrder, Random};
    let mut works = vec![
        Work::WriteSync(PAGE),
        Work::AppendSync(PAGE),
        Work::Journal,
        Work::Replace(PAGE),
        Work::CreateUnlink,
        Work::MakeDir,
        Work::Rename,
        Work::OpenClose,
        Work::Stat,
        Work::List,
        Work::SmallFiles,
        Work::Append(PAGE),
    ];
    let sizes = [4 << 10, 64 << 10, 1 << 20];
    for order in [Random, InOrder] {
        works.extend(sizes.map(|len| Work::Read(order, len)));
        works.extend(sizes.map(|len| Work::Write(order, len)));
    }
    works.into_iter().map(Case).collect()
}

/// Returns the case of this name.
pub fn named(name: &str) -> Option<Case> {
    all().into_iter().find(|case| case.name() == name)
}

impl Case {
    /// Returns its name.
    pub fn name(self) -> String {
        let by = |order| if order == Order::Random { "random" } else { "in-order" };
        match self.0 {
            Work::Read(order, len) => format!("read/{}/{}", by(order), size(len)),
            Work::Write(order, len) => format!("write/{}/{}", by(order), size(len)),
            Work::WriteSync(len) => format!("write+fsync/{}", size(len)),
            Work::Append(len) => format!("append/{}", size(len)),
            Work::AppendSync(len) => format!("append+fsync/{}", size(len)),
            Work::Journal => "journal/4K".to_owned(),
            Work::Replace(len) => format!("replace/{}", size(len)),
            Work::CreateUnlink => "create+unlink".to_owned(),
            Work::MakeDir => "mkdir+rmdir".to_owned(),
            Work::Rename => "rename".to_owned(),
            Work::OpenClose => "open+close".to_owned(),
            Work::Stat => "stat".to_owned(),
            Work::List => "list".to_owned(),
            Work::SmallFiles => "small-files".to_owned(),
        }
    }

    /// Describes one operation.
    pub fn what(self) -> &'static str {
        match self.0 {
            Work::Read(Order::Random, _) => "pread at random",
            Work::Read(Order::InOrder, _) => "pread from start to end",
            Work::Write(Order::Random, _) => "pwrite at random",
            Work::Write(Order::InOrder, _) => "pwrite from start to end",
            Work::WriteSync(_) => "pwrite at random, then fdatasync",
            Work::Append(_) => "pwrite at the end of a growing file",
            Work::AppendSync(_) => "a record at the end of a log, then fdatasync",
            Work::Journal => "a page of a database, with a rollback journal as SQLite's",
            Work::Replace(_) => "a new file, fdatasync, renamed over the old one",
            Work::CreateUnlink => "create, close and unlink a file",
            Work::MakeDir => "mkdir and rmdir",
            Work::Rename => "rename a file, there and back alternately",
            Work::OpenClose => "open and close one of many files",
            Work::Stat => "stat one of many files",
            Work::List => "list the directory of many files",
            Work::SmallFiles => "read or append to a file of up to 10 KB; create or remove one",
        }
    }

    /// Returns the bytes that one operation moves; 0 if its time does not depend on bytes.
    pub fn bytes(self) -> u64 {
        match self.0 {
            Work::Read(_, len) | Work::Write(_, len) => len as u64,
            Work::WriteSync(len) | Work::Append(len) | Work::AppendSync(len) => len as u64,
            _ => 0,
        }
    }

    /// Returns the objects that it changes.
    pub fn changes(self) -> Changes {
        match self.0 {
            Work::Read(..) | Work::OpenClose | Work::Stat | Work::List => Changes::Nothing,
            Work::CreateUnlink | Work::MakeDir | Work::Rename => Changes::Names,
            _ => Changes::Contents,
        }
    }

    /// Returns whether each operation syncs the contents that it changes.
    pub fn syncs(self) -> bool {
        let kinds = [Work::Journal, Work::WriteSync(PAGE), Work::AppendSync(PAGE)];
        kinds.contains(&self.0) || matches!(self.0, Work::Replace(_))
    }

    /// Returns whether a device can do it, which has no names and no end that moves.
    pub fn is_for_devices(self) -> bool {
        matches!(self.0, Work::Read(..) | Work::Write(..) | Work::WriteSync(_))
    }

    /// Returns the operations that its contender does at once at least: a rename has its way back.
    pub fn unit(self) -> u64 {
        if self.0 == Work::Rename { 2 } else { 1 }
    }

    /// Returns the most operations of a round.
    pub fn ops_max(self) -> u64 {
        match self.0 {
            Work::Append(len) | Work::AppendSync(len) => APPEND_BYTES / len as u64,
            _ => 1 << 20,
        }
    }

    /// Makes the contender that does its operations on a bed.
    pub fn on<'a, S: Store>(self, bed: &'a Bed<'_, S>) -> Result<Contender<'a>> {
        Ok(match self.0 {
            Work::Read(order, len) => bed.read_by(order, len),
            Work::Write(order, len) => bed.write_by(order, len, false),
            Work::WriteSync(len) => bed.write_by(Order::Random, len, true),
            Work::Append(len) => bed.append(len)?,
            Work::AppendSync(len) => bed.append_sync(len)?,
            Work::Journal => bed.journal(),
            Work::Replace(len) => bed.replace(len),
            Work::CreateUnlink => bed.create_unlink(),
            Work::MakeDir => bed.make_dir(),
            Work::Rename => bed.rename(false)?,
            Work::OpenClose => bed.open_close(),
            Work::Stat => bed.stat(),
            Work::List => bed.list(),
            Work::SmallFiles => bed.postmark()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_back_to_their_cases() {
        for case in all() {
            assert_eq!(named(&case.name()).map(Case::name), Some(case.name()));
            assert!(!case.syncs() || case.changes() == Changes::Contents);
        }
        assert!(named("nothing").is_none());
    }
}
