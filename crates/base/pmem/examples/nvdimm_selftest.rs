//! Writes, fences, reopens and verifies a region on real (or emulated) persistent memory, then
//! again with each protection.
//!
//! `nvdimm_selftest DOMAIN PATH`: PATH is a file to create, or a devdax device whose first MiB is
//! overwritten. Prints `ok DOMAIN`; exits with 1 if the domain found is another, or bytes differ.
//! `scripts/machine/nvdimm.sh` runs it in a machine that has an NVDIMM.

use pmem::{Access, Domain, Guarded, Medium, OpenOptions, Protection, Region, cpu, probe};
use std::error::Error;
use std::process::ExitCode;

const LEN: u64 = 8 << 20;
const WORD: u64 = 64;
const SMALL: u64 = 1000;
const BULK: u64 = 8192 + 13;
const COPY: u64 = 65536 + 7;
const ZERO: u64 = 3 * 8192;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [domain, path] = args.as_slice() else {
        eprintln!("usage: nvdimm_selftest DOMAIN PATH");
        return ExitCode::from(2);
    };
    match domain.parse().map_err(Into::into).and_then(|d| run(d, path)) {
        Ok(()) => {
            println!("ok {domain}");
            ExitCode::SUCCESS
        }
        Err(e) => {
            eprintln!("nvdimm_selftest: {e}");
            ExitCode::FAILURE
        }
    }
}

fn run(expected: Domain, path: &str) -> Result<(), Box<dyn Error>> {
    println!("{:?}", cpu::report());
    check("probe before", probe(path)?.domain, expected)?;
    let region = OpenOptions { populate: true, ..Default::default() }.create(path, LEN)?;
    check("created region", region.domain(), expected)?;
    let bulk = bulk();
    store(&region, &bulk);
    let counted = region.counters().snapshot();
    println!("{counted:?}");
    let flushes_expected = expected != Domain::CpuCache;
    if (counted.lines_flushed > 0) != flushes_expected {
        return Err(format!("{} lines flushed in domain {expected}", counted.lines_flushed).into());
    }
    verify(&region, &bulk)?;
    drop(region);

    println!("{:?}", probe(path)?);
    check("probe after", probe(path)?.domain, expected)?;
    for access in [Access::ReadOnly, Access::ReadWrite] {
        let region = Region::open(path, access)?;
        check("reopened region", region.domain(), expected)?;
        verify(&region, &bulk)?;
    }
    Protection::ALL.into_iter().try_for_each(|protection| protected(path, protection, &bulk))
}

/// Clears the region, and does the same through a [`Guarded`] region.
fn protected(path: &str, protection: Protection, bulk: &[u8]) -> Result<(), Box<dyn Error>> {
    let region = Region::open(path, Access::ReadWrite)?;
    region.zero_nt(0, COPY + bulk.len() as u64);
    let _ = region.fence();
    match Guarded::new(region, protection) {
        Ok(guarded) => {
            store(&guarded, bulk);
            guarded.health()?;
            verify(&guarded, bulk)?;
            println!("protected by {protection}, lifted {} times", guarded.tally().times());
        }
        // The CPU has no keys, or there is no file that can be written to.
        Err(e @ (pmem::Error::NoKeys(_) | pmem::Error::NoFile(_))) => println!("{protection}: {e}"),
        Err(e) => return Err(e.into()),
    }
    Ok(())
}

fn bulk() -> Vec<u8> {
    (0..10_000u32).map(|i| (i * 31 + i / 256) as u8).collect()
}

fn store(region: &impl Medium, bulk: &[u8]) {
    region.write(SMALL, b"through the cache");
    region.flush(SMALL, 17);
    region.write_nt(ZERO, &[0xff; 4096]);
    region.write_nt(BULK, bulk);
    let _ = region.fence();
    region.copy_nt(COPY, BULK, bulk.len() as u64);
    region.zero_nt(ZERO, 4096);
    let ready = region.fence();
    let _ = region.publish(WORD, COPY, ready);
}

fn verify(region: &impl Medium, bulk: &[u8]) -> Result<(), Box<dyn Error>> {
    let held = [
        ("word", region.load_u64(WORD) == COPY),
        ("small write", region.equals(SMALL, b"through the cache")),
        ("bulk write", region.equals(BULK, bulk)),
        ("bulk copy", region.equals(COPY, bulk)),
        ("zeroes", region.equals(ZERO, &[0; 4096])),
    ];
    match held.iter().find(|(_, holds)| !holds) {
        Some((what, _)) => Err(format!("{what}: bytes differ").into()),
        None => Ok(()),
    }
}

fn check(what: &str, found: Domain, expected: Domain) -> Result<(), Box<dyn Error>> {
    if found == expected {
        return Ok(());
    }
    Err(format!("{what}: domain {found}, expected {expected}").into())
}
