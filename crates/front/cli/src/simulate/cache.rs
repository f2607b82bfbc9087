//! `keepstone simulate cache`: compares eviction policies. It runs traces of accesses, from files
//! or generated, through caches of several sizes, and prints the hit ratios.

use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;

use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use eviction::generate::{GeneratedWorkload, Sizes};
use eviction::simulate::{BLOCK, Cache, Footprint, Subject, Survey};
use eviction::trace::{Access, TraceFile};
use serde::Serialize;

use crate::{crashtest, output, size};

/// Accesses between two moves of the progress bar.
const STEP: u64 = 1 << 16;

/// `keepstone simulate cache`
#[derive(Debug, Args)]
pub struct CacheArgs {
    /// A file of accesses. The format, text or oracleGeneral, is detected from its content.
    #[arg(conflicts_with = "zipf")]
    pub trace: Option<PathBuf>,
    /// Generate accesses instead: the object of rank n is accessed in proportion to n^-ALPHA.
    #[arg(long, value_name = "ALPHA", value_parser = alpha)]
    pub zipf: Option<f64>,
    /// Percentage of accesses in bursts that read all objects in order, as a backup does.
    #[arg(long, value_name = "PERCENT", default_value_t = 0, requires = "zipf", value_parser = percent())]
    pub scans: u32,
    /// Percentage of the rest that loop over other objects, a tenth as many.
    #[arg(long, value_name = "PERCENT", default_value_t = 0, requires = "zipf", value_parser = percent())]
    pub loops: u32,
    /// Percentage of the rest that go to objects which are accessed only once.
    #[arg(long, value_name = "PERCENT", default_value_t = 0, requires = "zipf", value_parser = percent())]
    pub once: u32,
    /// Make other objects popular after every N accesses; 0: never.
    #[arg(long, value_name = "N", default_value_t = 0, requires = "zipf")]
    pub shift: u64,
    /// Number of objects of a generated trace.
    #[arg(long, value_name = "N", default_value_t = 100_000, conflicts_with = "trace",
        value_parser = clap::value_parser!(u64).range(1..=1 << 26))]
    pub objects: u64,
    /// Number of accesses of a generated trace.
    #[arg(long, value_name = "N", default_value_t = 1_000_000, conflicts_with = "trace")]
    pub accesses: u64,
    /// Sizes of generated objects: files (log-normal, half of them below 13 KiB, 270 KB on
    /// average), or a number of bytes for each.
    #[arg(long, value_name = "SIZES", default_value = "files", conflicts_with = "trace", value_parser = sizes)]
    pub sizes: Sizes,
    /// Seed of all random choices.
    #[arg(long, default_value_t = 1, conflicts_with = "trace")]
    pub seed: u64,
    /// Policies to compare. lru is only for comparison: no cache of Keepstone uses it, because each
    /// hit would take a lock.
    #[arg(long, value_name = "POLICIES", value_delimiter = ',', default_value = "all", value_parser = policies())]
    pub policy: Vec<Policies>,
    /// Sizes of the cache: in bytes, with K, M, G, T, or as percentages of all objects of the
    /// trace.
    #[arg(long, value_name = "SIZES", value_delimiter = ',', default_value = "0.1%,1%,10%")]
    pub cache: Vec<CacheSize>,
}

fn percent() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(0..=100)
}

fn alpha(text: &str) -> Result<f64> {
    let alpha: f64 = text.parse()?;
    ensure!((0.0..=10.0).contains(&alpha), "an exponent between 0 and 10, for example 1.0");
    Ok(alpha)
}

fn sizes(text: &str) -> Result<Sizes> {
    if text == "files" { Ok(Sizes::Files) } else { size::parse(text).map(Sizes::Fixed) }
}

/// One eviction policy, or all (`None`).
#[derive(Debug, Clone, Copy)]
pub struct Policies(Option<Subject>);

/// Parses `all` or the name of an eviction policy.
fn policies() -> impl TypedValueParser<Value = Policies> {
    let names = Subject::ALL.map(Subject::name);
    PossibleValuesParser::new(["all"].into_iter().chain(names))
        .map(|name| Policies(name.parse().ok()))
}

/// The size of a cache.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum CacheSize {
    Bytes(u64),
    /// Percentage of the bytes of all objects.
    Percent(f64),
}

impl FromStr for CacheSize {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let Some(number) = text.strip_suffix('%') else {
            return size::parse(text).map(CacheSize::Bytes);
        };
        match number.trim().parse() {
            Ok(percent) if percent > 0.0 && percent <= 100.0 => Ok(CacheSize::Percent(percent)),
            _ => bail!("`{text}` is no part of a trace: write for example 1% or 0.1%"),
        }
    }
}

impl CacheSize {
    fn bytes(self, footprint: Footprint) -> u64 {
        let bytes = match self {
            CacheSize::Bytes(bytes) => bytes,
            CacheSize::Percent(percent) => (footprint.bytes as f64 * percent / 100.0) as u64,
        };
        bytes.max(BLOCK)
    }

    fn label(self, footprint: Footprint) -> String {
        let bytes = size::show(self.bytes(footprint));
        match self {
            CacheSize::Bytes(_) => bytes,
            CacheSize::Percent(percent) => format!("{percent} % ({bytes})"),
        }
    }
}

/// The source of accesses.
enum Source {
    File(PathBuf),
    Generated(String, GeneratedWorkload),
}

type Accesses = Box<dyn Iterator<Item = Result<Access>>>;

impl Source {
    fn name(&self) -> String {
        match self {
            Source::File(path) => path.display().to_string(),
            Source::Generated(name, _) => name.clone(),
        }
    }

    /// Returns the accesses from the beginning, the same each time.
    fn accesses(&self) -> Result<Accesses> {
        let name = self.name();
        Ok(match self {
            Source::File(path) => {
                let file = TraceFile::open(path).with_context(|| name.clone())?;
                Box::new(file.map(move |access| access.with_context(|| name.clone())))
            }
            Source::Generated(_, workload) => Box::new(workload.generate().map(Ok)),
        })
    }
}

/// The results of caches on a trace.
#[derive(Debug, Serialize)]
struct Comparison {
    trace: String,
    #[serde(flatten)]
    footprint: Footprint,
    caches: Vec<Outcome>,
}

/// The result of one cache.
#[derive(Debug, Serialize)]
struct Outcome {
    policy: Subject,
    #[serde(skip)]
    label: String,
    cache_bytes: u64,
    accesses: u64,
    hits: u64,
    evictions: u64,
    /// Share of accesses that hit, 0 to 1.
    hit_ratio: f64,
    /// Share of bytes that hit, 0 to 1.
    byte_hit_ratio: f64,
    /// Objects in the cache at the end.
    objects_cached: usize,
    /// Memory of the policy for these objects, in bytes.
    policy_memory_bytes: usize,
}

pub fn run(args: &CacheArgs, json: bool) -> Result<ExitCode> {
    let sources = sources(args);
    let comparisons: Vec<_> =
        sources.iter().map(|source| compare(source, args)).collect::<Result<_>>()?;
    if json {
        output::json(&serde_json::json!({ "traces": comparisons }))?;
        return Ok(ExitCode::SUCCESS);
    }
    for comparison in &comparisons {
        print(comparison);
    }
    if comparisons.len() > 1 {
        print_mean(&comparisons);
    }
    say!("Hits in percent of accesses / of bytes.");
    Ok(ExitCode::SUCCESS)
}

fn sources(args: &CacheArgs) -> Vec<Source> {
    if let Some(path) = &args.trace {
        return vec![Source::File(path.clone())];
    }
    let described = |name: String, workload| {
        let workload = GeneratedWorkload { sizes: args.sizes, seed: args.seed, ..workload };
        Source::Generated(name, workload)
    };
    let Some(alpha) = args.zipf else {
        let standard = GeneratedWorkload::standard(args.objects, args.accesses);
        return standard.into_iter().map(|(name, w)| described(name.to_owned(), w)).collect();
    };
    let workload = GeneratedWorkload {
        scan_percent: args.scans,
        loop_percent: args.loops,
        single_percent: args.once,
        shift_every: args.shift,
        ..GeneratedWorkload::zipf(alpha, args.objects, args.accesses)
    };
    vec![described(format!("zipf {alpha}"), workload)]
}

/// Returns the requested policies, each once.
fn subjects(args: &CacheArgs) -> Vec<Subject> {
    let is_asked = |subject: &Subject| {
        args.policy.iter().any(|Policies(one)| one.is_none_or(|one| one == *subject))
    };
    Subject::ALL.into_iter().filter(is_asked).collect()
}

/// Reads a trace twice: first to measure it, then to simulate the caches.
fn compare(source: &Source, args: &CacheArgs) -> Result<Comparison> {
    let mut survey = Survey::default();
    let bar = crashtest::bar(&source.name());
    bar.set_message("first pass");
    for access in source.accesses()? {
        survey.access(access?);
    }
    let footprint = survey.footprint();
    ensure!(footprint.accesses > 0, "{}: no accesses", source.name());
    bar.set_message("");
    bar.set_length(footprint.accesses);
    let mut caches = Vec::new();
    for size in &args.cache {
        let of = |subject| (*size, subject, Cache::new(subject, size.bytes(footprint)));
        caches.extend(subjects(args).into_iter().map(of));
    }
    for (access, at) in source.accesses()?.zip(1..) {
        let access = access?;
        caches.iter_mut().for_each(|(.., cache)| cache.access(access));
        if at % STEP == 0 {
            bar.set_position(at);
        }
    }
    bar.finish_and_clear();
    let outcome = |(size, policy, cache): &(CacheSize, Subject, Cache)| {
        let counts = cache.counts();
        Outcome {
            policy: *policy,
            label: size.label(footprint),
            cache_bytes: size.bytes(footprint),
            accesses: counts.accesses,
            hits: counts.hits,
            evictions: counts.evictions,
            hit_ratio: counts.hit_ratio(),
            byte_hit_ratio: counts.byte_hit_ratio(),
            objects_cached: cache.len(),
            policy_memory_bytes: cache.bytes_of_memory(),
        }
    };
    let caches = caches.iter().map(outcome).collect();
    Ok(Comparison { trace: source.name(), footprint, caches })
}

/// Prints a line for each size of the cache, with a column for each policy.
fn print(comparison: &Comparison) {
    let Footprint { accesses, objects, bytes } = comparison.footprint;
    let trace = &comparison.trace;
    say!("{trace}: {accesses} accesses, {objects} objects, {}", size::show(bytes));
    let columns = comparison.caches.iter().take_while({
        let first = &comparison.caches[0].label;
        move |outcome| outcome.label == *first
    });
    let columns: Vec<_> = columns.map(|outcome| outcome.policy).collect();
    say!("  {:24}{}", "cache", columns.iter().map(|c| format!("{c:>14}")).collect::<String>());
    for line in comparison.caches.chunks(columns.len()) {
        let cells = line.iter().map(|o| cell(o.hit_ratio, o.byte_hit_ratio));
        say!("  {:24}{}", line[0].label, cells.collect::<String>());
    }
    say!();
}

fn cell(hits: f64, bytes: f64) -> String {
    format!("{:>14}", format!("{:.1} / {:.1}", hits * 100.0, bytes * 100.0))
}

/// Prints the mean of all traces and sizes for each policy.
fn print_mean(comparisons: &[Comparison]) {
    say!("mean of all");
    for subject in Subject::ALL {
        let outcomes = comparisons.iter().flat_map(|comparison| &comparison.caches);
        let of: Vec<_> = outcomes.filter(|outcome| outcome.policy == subject).collect();
        if !of.is_empty() {
            let mean = |ratio: fn(&Outcome) -> f64| {
                of.iter().map(|outcome| ratio(outcome)).sum::<f64>() / of.len() as f64
            };
            say!("  {subject:24}{}", cell(mean(|o| o.hit_ratio), mean(|o| o.byte_hit_ratio)));
        }
    }
    say!();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_bytes_or_parts() {
        let footprint = Footprint { accesses: 1, objects: 1, bytes: 1 << 30 };
        for (text, bytes) in [("64M", 64 << 20), ("50%", 1 << 29), ("0.0000001%", BLOCK)] {
            assert_eq!(text.parse::<CacheSize>().unwrap().bytes(footprint), bytes, "{text}");
        }
        for text in ["", "%", "0%", "101%", "x%", "-1%", "NaN%"] {
            assert!(text.parse::<CacheSize>().is_err(), "{text}");
        }
    }
}
