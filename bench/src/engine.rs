//! The engine against the kernel's file systems and against bare copies, in one process.

use crate::pool::{Backing, Pool};
use crate::ramdisk;
use crate::raw;
use crate::rounds::{Case, Contender, Outcome, Plan};
use crate::store::{Durable, Engine, Kernel, Store, open_dir};
use crate::workload::{APPEND_BYTES, Bed, NAMES};
use anyhow::Result;
use bpfs::{Bpfs, MountOptions};
use pmem::{Medium as _, Region};
use std::path::Path;

const POOL_BYTES: u64 = 1 << 30;
const SUBJECT: &str = "keepstone";

/// Runs the cases. Files are made in `dir`, which should be a tmpfs.
pub fn run(plan: &Plan, backing: Backing, dir: &Path) -> Result<Vec<Outcome>> {
    let Pool { region, spare } = Pool::create(backing, dir, POOL_BYTES)?;
    let engine = Engine(Bpfs::mount(region, &MountOptions::default())?);
    let region = engine.0.medium();

    let tmp = tempfile::Builder::new().prefix("keepstone-bench-").tempdir_in(dir)?;
    let tmpfs = Kernel::new(open_dir(tmp.path())?, Durable::Never);
    let disk = if rustix::process::geteuid().is_root() {
        Some(ramdisk::ext4(dir, POOL_BYTES)?)
    } else {
        tell!("not root: without ext4 on a RAM disk");
        None
    };
    let ext4s = match &disk {
        None => None,
        Some(root) => {
            let plain = rustix::io::fcntl_dupfd_cloexec(root, 0)?;
            let plain = Kernel::new(plain, Durable::Never);
            let synced = plain.mkdir(&plain.root()?, c"synced")?;
            Some((plain, Kernel::new(synced, Durable::Each)))
        }
    };

    let beds = Beds {
        subject: Bed::new(SUBJECT, &engine, NAMES)?,
        tmpfs: Bed::new("tmpfs", &tmpfs, NAMES)?,
        ext4: ext4s.as_ref().map(|e| Bed::new("ext4", &e.0, NAMES)).transpose()?,
        ext4_synced: ext4s.as_ref().map(|e| Bed::new("ext4 + fsync", &e.1, NAMES)).transpose()?,
    };

    let mut outcomes = Vec::new();
    let counters = region.counters();
    for (len, target) in [(4 << 10, 0.8), (1 << 20, 0.9)] {
        let case = beds.reads(region, "read", len).target("raw memcpy", target);
        plan.run(case, &mut outcomes)?;
    }
    for (len, target) in [
        (8, None),
        (64, Some(1.0)),
        (512, Some(1.0)),
        (4 << 10, Some(2.5)),
        (8 << 10, None),
        (9000, Some(1.0)),
        (64 << 10, None),
        (1 << 20, None),
    ] {
        let mut case = beds
            .case(
                format!("overwrite/{}", size(len)),
                format!("{} at a random place in 128 MiB", size(len)),
                |bed| bed.overwrite(len),
                |bed| bed.overwrite(len),
            )
            .bytes(len as u64)
            .counters(counters)
            .with(raw::nt_copy_to(region, spare, len));
        if len >= 4 << 10 {
            case = case.with(raw::shadow_to(region, spare, len));
        }
        if len == 8 {
            case = case.with(raw::word_to(region, spare));
        }
        if let Some(at_least) = target {
            case = case.target("tmpfs", at_least);
        }
        plan.run(case, &mut outcomes)?;
    }
    // By now the blocks of the engine's file lie where the overwrites have put them.
    plan.run(beds.reads(region, "read-scattered", 1 << 20), &mut outcomes)?;
    for len in [64, 4 << 10] {
        let case = Case::new(
            format!("append/{}", size(len)),
            format!("{} at the end of a growing file", size(len)),
        )
        .bytes(len as u64)
        .ops_max(APPEND_BYTES / len as u64)
        .with(beds.subject.append(len)?)
        .with(beds.tmpfs.append(len)?)
        .with(beds.ext4.as_ref().map(|b| b.append(len)).transpose()?)
        .with(beds.ext4_synced.as_ref().map(|b| b.append(len)).transpose()?)
        .with(raw::nt_copy_to(region, spare, len))
        .counters(counters);
        plan.run(case, &mut outcomes)?;
    }
    let case = beds
        .case(
            "create+unlink",
            "create, close and unlink a file",
            Bed::create_unlink,
            Bed::create_unlink,
        )
        .counters(counters)
        .target("tmpfs", 6.0);
    plan.run(case, &mut outcomes)?;
    for (name, across) in [("rename/within", false), ("rename/across", true)] {
        let case = Case::new(name, "rename a file, there and back in turn")
            .with(beds.subject.rename(across)?)
            .with(beds.tmpfs.rename(across)?)
            .with(beds.ext4.as_ref().map(|b| b.rename(across)).transpose()?)
            .with(beds.ext4_synced.as_ref().map(|b| b.rename(across)).transpose()?)
            .counters(counters);
        plan.run(case, &mut outcomes)?;
    }
    let case = Case::new("stat", "look up one name of 10 000 and read its attributes")
        .with(beds.subject.stat())
        .with(beds.tmpfs.stat())
        .with(beds.ext4.as_ref().map(Bed::stat))
        .counters(counters);
    plan.run(case, &mut outcomes)?;
    let case = Case::new("readdir", "list a directory of 10 000 names")
        .with(beds.subject.list())
        .with(beds.tmpfs.list())
        .with(beds.ext4.as_ref().map(Bed::list))
        .counters(counters);
    plan.run(case, &mut outcomes)?;
    by_two(plan, &beds, &mut outcomes)?;
    Ok(outcomes)
}

struct Beds<'s> {
    subject: Bed<'s, Engine>,
    tmpfs: Bed<'s, Kernel>,
    ext4: Option<Bed<'s, Kernel>>,
    ext4_synced: Option<Bed<'s, Kernel>>,
}

impl<'s> Beds<'s> {
    /// A case in which all take part.
    fn case<'a>(
        &'a self,
        name: impl Into<String>,
        what: impl Into<String>,
        subject: impl Fn(&'a Bed<'s, Engine>) -> Contender<'a>,
        peer: impl Fn(&'a Bed<'s, Kernel>) -> Contender<'a>,
    ) -> Case<'a> {
        Case::new(name, what)
            .with(subject(&self.subject))
            .with(peer(&self.tmpfs))
            .with(self.ext4.as_ref().map(&peer))
            .with(self.ext4_synced.as_ref().map(&peer))
    }

    /// Reads, and bare copies from the same mapping.
    fn reads<'a>(&'a self, region: &'a Region, name: &str, len: usize) -> Case<'a> {
        let what = format!("{} from a random place in 128 MiB", size(len));
        Case::new(format!("{name}/{}", size(len)), what)
            .bytes(len as u64)
            .with(self.subject.read(len))
            .with(raw::memcpy_from(region, len))
            .with(raw::memcpy_in_turn(region, len))
            .with(self.tmpfs.read(len))
            .with(self.ext4.as_ref().map(|b| b.read(len)))
            .counters(region.counters())
    }
}

/// Two threads against one, of the engine and of tmpfs.
fn by_two(plan: &Plan, beds: &Beds<'_>, outcomes: &mut Vec<Outcome>) -> Result<()> {
    let len = 4 << 10;
    let case = Case::new("two-threads/overwrite", "4 KiB, each thread in its own file")
        .bytes(len as u64)
        .with(beds.subject.overwrite_by_two(len))
        .with(beds.subject.overwrite(len))
        .with(beds.tmpfs.overwrite_by_two(len))
        .with(beds.tmpfs.overwrite(len));
    plan.run(case, outcomes)?;
    let case = Case::new("two-threads/read", "4 KiB, each thread from its own file")
        .bytes(len as u64)
        .with(beds.subject.read_by_two(len))
        .with(beds.subject.read(len))
        .with(beds.tmpfs.read_by_two(len))
        .with(beds.tmpfs.read(len));
    plan.run(case, outcomes)?;
    let case = Case::new("two-threads/create+unlink", "each thread in its own directory")
        .with(beds.subject.create_unlink_by_two())
        .with(beds.subject.create_unlink())
        .with(beds.tmpfs.create_unlink_by_two())
        .with(beds.tmpfs.create_unlink());
    plan.run(case, outcomes)
}

/// `8B`, `4K`, `1M`.
pub fn size(bytes: usize) -> String {
    match bytes {
        b if b >= 1 << 20 => format!("{}M", b >> 20),
        b if b >= 1 << 10 && b.is_multiple_of(1 << 10) => format!("{}K", b >> 10),
        b => format!("{b}B"),
    }
}
