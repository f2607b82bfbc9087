//! Instructions of this CPU for persistent memory, and its time-stamp counter.

#![allow(unsafe_code)]

use crate::copy::NtWidth;
use crate::flush::FlushInstruction;
use crate::host::PlatformDomain;
use crate::line;
use serde::Serialize;
use std::arch::x86_64::{__cpuid, _rdtsc};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Features of CPU and platform, for `keepstone doctor`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CpuReport {
    /// The flush instruction in use.
    pub flush: FlushInstruction,
    /// Whether there is `clwb`.
    pub clwb: bool,
    /// Whether there is `clflushopt`.
    pub clflushopt: bool,
    /// Whether there is `clflush`.
    pub clflush: bool,
    /// The non-temporal stores in use.
    pub nt_width: NtWidth,
    /// Bytes per non-temporal store.
    pub nt_bytes: u64,
    /// Whether there is `movdir64b`, which stores a line whole.
    pub movdir64b: bool,
    /// The persistence domain of each NVDIMM region; empty if there are no such regions.
    pub regions: Vec<RegionDomain>,
    /// Whether there are NVDIMM regions and all of them have caches in the persistence domain.
    pub eadr: bool,
    /// Whether the time-stamp counter runs at a constant rate in all power states. If not, emulated
    /// speeds are unreliable.
    pub tsc_invariant: bool,
    /// Rate of the time-stamp counter in MHz, as measured.
    pub tsc_mhz: u64,
}

/// The persistence domain of one NVDIMM region.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RegionDomain {
    /// Its name below `/sys/bus/nd/devices`.
    pub name: String,
    /// Its domain.
    pub domain: PlatformDomain,
}

/// Reports the features. Takes some 10 ms the first time, to measure the TSC rate.
pub fn report() -> CpuReport {
    let regions: Vec<_> = PlatformDomain::all()
        .into_iter()
        .map(|(name, domain)| RegionDomain { name, domain })
        .collect();
    let eadr = !regions.is_empty() && regions.iter().all(|r| r.domain == PlatformDomain::CpuCache);
    CpuReport {
        flush: FlushInstruction::detect(),
        clwb: FlushInstruction::Clwb.available(),
        clflushopt: FlushInstruction::ClflushOpt.available(),
        clflush: FlushInstruction::Clflush.available(),
        nt_width: NtWidth::detect(),
        nt_bytes: NtWidth::detect().bytes(),
        movdir64b: line::available(),
        regions,
        eadr,
        tsc_invariant: tsc_invariant(),
        tsc_mhz: (cycles_per_ns() * 1000.0).round() as u64,
    }
}

/// Reads the time-stamp counter, in cycles. The read is not ordered with surrounding instructions.
#[inline]
pub fn tsc() -> u64 {
    // SAFETY: every x86-64 CPU has rdtsc, and Linux lets user space execute it.
    unsafe { _rdtsc() }
}

fn tsc_invariant() -> bool {
    // CPUID.80000007H:EDX[8]
    __cpuid(0x8000_0000).eax >= 0x8000_0007 && __cpuid(0x8000_0007).edx & (1 << 8) != 0
}

/// Returns the cycles of the time-stamp counter per nanosecond. Measures them once against the
/// monotonic clock (some 10 ms).
pub fn cycles_per_ns() -> f64 {
    static RATE: OnceLock<f64> = OnceLock::new();
    *RATE.get_or_init(|| {
        // A preemption between the readings of the two clocks spoils a sample, but not the median
        // of several short samples.
        let mut samples: Vec<f64> = (0..5).map(|_| sample_rate(Duration::from_millis(2))).collect();
        samples.sort_by(f64::total_cmp);
        samples[samples.len() / 2]
    })
}

/// Measures the cycles of the time-stamp counter per nanosecond, for at least this time.
fn sample_rate(for_at_least: Duration) -> f64 {
    let (clock, start) = (Instant::now(), tsc());
    loop {
        let (elapsed, end) = (clock.elapsed(), tsc());
        if elapsed >= for_at_least {
            return end.saturating_sub(start) as f64 / elapsed.as_nanos() as f64;
        }
        std::hint::spin_loop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_agrees_with_detection() {
        let report = report();
        assert!(report.clflush, "every x86-64 CPU has clflush");
        assert!(report.flush.available() && report.nt_width.available());
        assert_eq!(report.clwb, report.flush == FlushInstruction::Clwb);
        assert!(report.tsc_mhz > 100);
    }
}
