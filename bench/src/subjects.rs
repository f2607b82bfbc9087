//! The engines that are compared, and how their pools are mounted: the only list of them.

use crate::inprocess::Pool;
use anyhow::{Context as _, Result};
use engines::Layout;
use pool::{Consistency, MountOptions, Prealloc, WritePolicy};
use std::path::Path;

/// Pages of the memory that a pool is in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pages {
    /// 2 MiB, as a DAX device has.
    #[default]
    Huge,
    /// 4 KiB, as the paper's SCMFS has, which turns off huge pages (§4.2, Figure 8).
    Small,
}

/// The rule by which reading changes access times (§3.6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Atime {
    /// As `relatime`.
    #[default]
    Relative,
    /// Each time, as in the paper's SCMFS.
    Strict,
    /// Never.
    Off,
}

/// An engine with options.
#[derive(Clone)]
pub struct Subject {
    /// Its name in results.
    pub name: &'static str,
    /// The layout of its pools.
    pub layout: Layout,
    /// Their mount options.
    pub options: MountOptions,
    /// The pages of their memory.
    pub pages: Pages,
    /// The rule for access times.
    pub atime: Atime,
}

fn subject(name: &'static str, layout: Layout, options: MountOptions) -> Subject {
    Subject { name, layout, options, pages: Pages::default(), atime: Atime::default() }
}

fn scmfs(name: &'static str) -> Subject {
    subject(name, Layout::Scmfs, MountOptions::default())
}

/// Returns SCMFS in small pages.
pub fn in_small_pages() -> Subject {
    Subject { pages: Pages::Small, ..scmfs("scmfs, 4 KiB pages") }
}

/// Returns SCMFS-3 with other access times, to see what these cost its reads (§4.3).
pub fn by_atime() -> [Subject; 2] {
    [
        Subject { atime: Atime::Strict, ..scmfs("scmfs, strictatime") },
        Subject { atime: Atime::Off, ..scmfs("scmfs, noatime") },
    ]
}

/// Returns SCMFS as it is mounted by default, without pre-allocation, and with spare space for
/// files but no null files.
pub fn by_prealloc() -> [Subject; 3] {
    let with = |name, prealloc| {
        let options = MountOptions { prealloc, ..MountOptions::default() };
        Subject { options, ..scmfs(name) }
    };
    [
        with("scmfs", Prealloc::default()),
        with("no pre-allocation", Prealloc::off()),
        with("no null files", Prealloc { null_min: 0, null_max: 0, ..Prealloc::default() }),
    ]
}

/// Returns SCMFS that writes always through the cache, and SCMFS that always bypasses it.
pub fn by_write_policy() -> [Subject; 2] {
    let with = |name, write_policy| {
        let options = MountOptions { write_policy, ..MountOptions::default() };
        Subject { options, ..scmfs(name) }
    };
    [
        with("scmfs, through the cache", WritePolicy::Cached),
        with("scmfs, past the cache", WritePolicy::Through),
    ]
}

/// Returns all subjects. Configurations of the paper (§4.3) are lines here.
pub fn all() -> Vec<Subject> {
    let unordered = |prealloc| {
        let consistency = Consistency::None;
        MountOptions { prealloc, consistency, ..MountOptions::default() }
    };
    vec![
        // SCMFS-3: with pre-allocation and consistency.
        subject("scmfs", Layout::Scmfs, MountOptions::default()),
        subject("scmfs-2", Layout::Scmfs, unordered(Prealloc::default())),
        subject("scmfs-1", Layout::Scmfs, unordered(Prealloc::off())),
        subject("bpfs", Layout::Bpfs, MountOptions::default()),
    ]
}

/// Returns all subjects, those of `layout` first. The first is compared with the rest.
pub fn first_of(layout: &str) -> Result<Vec<Subject>> {
    let layout = measured(layout)?;
    let (mut first, others): (Vec<_>, Vec<_>) =
        all().into_iter().partition(|subject| subject.layout == layout);
    first.extend(others);
    Ok(first)
}

/// Returns the subjects of `layout`, or all without a layout.
pub fn only(layout: Option<&str>) -> Result<Vec<Subject>> {
    let Some(layout) = layout else { return Ok(all()) };
    let layout = measured(layout)?;
    Ok(all().into_iter().filter(|subject| subject.layout == layout).collect())
}

/// Returns the layout of that name, if it is measured; else the error names those that are.
fn measured(name: &str) -> Result<Layout> {
    let layout = Layout::named(name).filter(|layout| all().iter().any(|s| s.layout == *layout));
    layout.with_context(|| {
        let mut names: Vec<_> = all().iter().map(|subject| subject.layout.name()).collect();
        names.dedup();
        format!("{name}: not a layout that is measured here; there are {}", names.join(", "))
    })
}

impl Subject {
    /// Makes a pool of `bytes` in `dir`, used through the process layer.
    pub fn pool(&self, dir: &Path, bytes: u64) -> Result<Pool> {
        Pool::new(self, dir, bytes)
            .with_context(|| format!("{}: a pool of {bytes} bytes", self.name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_layout_that_is_asked_for_comes_first() {
        let names = |subjects: Vec<Subject>| subjects.iter().map(|s| s.name).collect::<Vec<_>>();
        assert_eq!(names(first_of("bpfs").unwrap())[0], "bpfs");
        assert_eq!(names(first_of("scmfs").unwrap()).len(), all().len());
        assert_eq!(names(only(Some("bpfs")).unwrap()), ["bpfs"]);
        assert_eq!(only(None).unwrap().len(), all().len());
        assert!(first_of("model").is_err());
        assert!(only(Some("nothing")).is_err());
    }
}
