//! Helpers of several tests: a campaign that has to survive, and engines with bugs. These are BPFS
//! on a medium that does not do all that the engine requests.

use crashsim::campaign::{self, CampaignOptions, Family, Report};
use crashsim::run::Base;
use crashsim::stats::Distinct;
use crashsim::target::{Mounted, Strength, Target};
use judges::bpfs::Bpfs;
use pmem::{Counters, Domain, Fenced, Line, Medium};
use vfs::Durability;

/// Runs a family on these pools; panics at a violation, with a line for `--replay`.
pub fn explore<T: Target>(
    target: &T,
    bases: &[Base],
    family: Family,
    options: &CampaignOptions,
) -> Report {
    let report =
        campaign::run(target, bases, &family, options, &Distinct::default(), &|_, _, _| {});
    let Report { workloads, stats, seconds, .. } = &report;
    println!("{}: {workloads} workloads, {stats:?}, {seconds:.1} s", report.family);
    for f in &report.findings {
        println!("{}\n  {}\n  --replay '{}'", f.what, f.detail.join("\n  "), f.replay);
    }
    assert_eq!(report.violations, 0);
    assert_eq!(report.stats.unsteady, 0, "recovery is not deterministic");
    report
}

/// Replacements for stores, flushes and fences of a medium.
pub trait Wrapped: Send + Sync {
    fn write_nt(&self, medium: &dyn Medium, off: u64, data: &[u8]) {
        medium.write_nt(off, data);
    }
    fn flush(&self, medium: &dyn Medium, off: u64, len: u64) {
        medium.flush(off, len);
    }
    fn wrote_nt(&self) {}
    fn store_line(&self, medium: &dyn Medium, off: u64, line: &Line) {
        medium.store_line(off, line);
    }
    fn fence(&self, medium: &dyn Medium) -> Fenced {
        medium.fence()
    }
    fn set_ordered(&self, medium: &dyn Medium, ordered: bool) -> bool {
        medium.set_ordered(ordered)
    }
}

/// A medium with such replacements.
pub struct Wrapper<'m, M>(pub Box<dyn Wrapped>, pub &'m M);

impl<M: Medium> Medium for Wrapper<'_, M> {
    fn len(&self) -> u64 {
        self.1.len()
    }
    fn domain(&self) -> Domain {
        self.1.domain()
    }
    fn set_ordered(&self, ordered: bool) -> bool {
        self.0.set_ordered(self.1, ordered)
    }
    fn counters(&self) -> &Counters {
        self.1.counters()
    }
    fn read(&self, off: u64, buf: &mut [u8]) {
        self.1.read(off, buf);
    }
    fn load_u64(&self, off: u64) -> u64 {
        self.1.load_u64(off)
    }
    fn equals(&self, off: u64, bytes: &[u8]) -> bool {
        self.1.equals(off, bytes)
    }
    fn write(&self, off: u64, data: &[u8]) {
        self.1.write(off, data);
    }
    fn write_nt(&self, off: u64, data: &[u8]) {
        self.0.write_nt(self.1, off, data);
        self.0.wrote_nt();
    }
    fn copy_nt(&self, dst: u64, src: u64, len: u64) {
        self.1.copy_nt(dst, src, len);
        self.0.wrote_nt();
    }
    fn zero_nt(&self, off: u64, len: u64) {
        self.1.zero_nt(off, len);
        self.0.wrote_nt();
    }
    fn store_u64(&self, off: u64, value: u64) {
        self.1.store_u64(off, value);
    }
    fn stores_lines(&self) -> bool {
        self.1.stores_lines()
    }
    fn store_line(&self, off: u64, line: &Line) {
        self.0.store_line(self.1, off, line);
        self.0.wrote_nt();
    }
    fn flush(&self, off: u64, len: u64) {
        self.0.flush(self.1, off, len);
    }
    fn fence(&self) -> Fenced {
        self.0.fence(self.1)
    }
}

/// BPFS on a [`Wrapper`].
pub struct WrappedBpfs {
    /// The durability that the explorer demands.
    pub durability: Durability,
    /// The reason why stores need not be flushed; `None` if they must be.
    pub argued: Option<&'static str>,
    /// Makes the layer between the engine and its medium for each mount. This is not a type
    /// parameter, as the explorer would be compiled for each type.
    pub wrapped: fn() -> Box<dyn Wrapped>,
}

impl WrappedBpfs {
    /// Makes an engine of which the explorer demands all that BPFS promises.
    pub fn of<W: Wrapped + Default + 'static>() -> Self {
        let wrapped = || -> Box<dyn Wrapped> { Box::new(W::default()) };
        Self { durability: Durability::OnReturn, argued: None, wrapped }
    }

    /// Makes an engine of which the explorer demands another durability. Stores may stay in the
    /// caches as far as it permits that.
    pub fn promising<W: Wrapped + Default + 'static>(durability: Durability) -> Self {
        Self { durability, argued: Some("content is durable on fsync"), ..Self::of::<W>() }
    }
}

impl Target for WrappedBpfs {
    crashsim::forward_target!(Bpfs; format, is_pool, check, blocks_of_fresh, repair, describe, harmless);

    fn strength(&self) -> Strength {
        Strength { durability: self.durability, ..Bpfs.strength() }
    }
    fn mount<'m, M: Medium>(&self, medium: &'m M) -> Result<Mounted<'m>, String> {
        Bpfs::mount_owned(Wrapper((self.wrapped)(), medium))
    }
    fn may_stay_unflushed(&self, site: &str) -> Option<&'static str> {
        self.argued.or_else(|| Bpfs.may_stay_unflushed(site))
    }
}
