//! xdd's mixes (Chell, Figures 4 and 7): threads in one file, and a percentage of their calls are
//! reads; and orders of the places of calls.

use crate::chell::{Calls, libc_open};
use crate::rounds::{Case, Contender};
use crate::store::whole;
use crate::workload::{Buffer, by_threads};
use anyhow::Result;
use rng::Rng;
use std::path::{Path, PathBuf};

/// Bytes of a call.
const LEN: usize = 4096;

/// A contender: its name, its calls, and the file that it writes to.
pub type Place = (&'static str, Calls, PathBuf);

/// The order of the places of calls, by the names of IOzone.
#[derive(Clone, Copy)]
pub enum Pattern {
    /// At random.
    Random,
    /// One after the other.
    Sequential,
    /// From the end to the beginning.
    Backward,
    /// Every seventeenth place.
    Strided,
    /// The same place each time.
    Same,
}

impl Pattern {
    /// Returns the `i`th place of `places`.
    pub fn place(self, i: u64, places: u64, rng: &mut Rng) -> u64 {
        match self {
            Self::Random => rng.below_fast(places),
            Self::Sequential => i % places,
            Self::Backward => places - 1 - i % places,
            Self::Strided => i * 17 % places,
            Self::Same => 0,
        }
    }
}

/// Returns the cases: both orders, 100, 50 and 1 % reads, and 1, 4 and 16 threads, in the first
/// `bytes` of the files of `places`. `gain` returns the speed to reach against `peer`.
pub fn mixes(
    places: &[&Place],
    bytes: usize,
    peer: &str,
    gain: impl Fn(Pattern, u64, u64) -> Option<f64>,
) -> Result<Vec<Case<'static>>> {
    let mut cases = Vec::new();
    for (order, pattern) in [("random", Pattern::Random), ("sequential", Pattern::Sequential)] {
        for reads in [100, 50, 1] {
            for threads in [1, 4, 16] {
                let name = format!("xdd/{order}/{reads}% reads/{threads}");
                let what = format!("4 KiB, by {threads} threads");
                let target = gain(pattern, reads, threads);
                let mut case = Case::new(name, what).bytes(LEN as u64).target(peer, target);
                for (name, calls, path) in places {
                    let load = (pattern, reads, bytes);
                    case = case.with(mixed(name, *calls, path, load, threads)?);
                }
                cases.push(case);
            }
        }
    }
    Ok(cases)
}

/// Returns a contender whose threads read and write a file. In order, each starts at a place of its
/// own.
fn mixed(
    name: &'static str,
    calls: Calls,
    path: &Path,
    (pattern, reads, bytes): (Pattern, u64, usize),
    threads: u64,
) -> Result<Contender<'static>> {
    let file = libc_open(path)?;
    let (places, mut done) = ((bytes / LEN) as u64, 0);
    Ok(Contender::new(name, move |ops| {
        let each = ops.div_ceil(threads);
        let begun = done;
        done += each;
        by_threads(threads, |thread| {
            let (mut buf, mut rng) = (Buffer::new(LEN), Rng::new(begun * threads + thread + 1));
            for i in begun..begun + each {
                let first = places / threads * thread;
                let at = (first + pattern.place(i, places, &mut rng)) % places * LEN as u64;
                if rng.below_fast(100) < reads {
                    whole((calls.pread)(&file, buf.get_mut(), at)?, LEN)?;
                } else {
                    whole((calls.pwrite)(&file, buf.get_mut(), at)?, LEN)?;
                }
            }
            Ok(())
        })
    }))
}
