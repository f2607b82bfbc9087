//! The log of this process, on standard error; for a server, standard error is a file. Other users
//! can cause lines in it, so its length is bounded here, for all crates.
//!
//! - **log-L1** Of each kind of line (the place in the program that writes it), at most [`BURST`]
//!   are written at once and [`PER_SECOND`] in the long run. The next written line of the kind
//!   reports the number of lines that were left out.
//! - **log-L2** A line has no line breaks, no terminal sequences, and at most [`LINE_BYTES_MAX`]
//!   bytes.
//! - **log-L3** The file of a server has at most [`FILE_BYTES_MAX`] bytes plus one line. Then it is
//!   renamed to `.old`, which replaces the previous one, and a new file begins.

use std::collections::HashMap;
use std::fmt;
use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Instant;

use tracing::callsite::Identifier;
use tracing::{Event, Subscriber};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::format::{Format, Writer};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::shown;

const BURST: f64 = 20.0;
const PER_SECOND: f64 = 2.0;
const LINE_BYTES_MAX: usize = 4096;
const FILE_BYTES_MAX: u64 = 8 << 20;

/// The file behind standard error, for a server.
static FILE: OnceLock<PathBuf> = OnceLock::new();

/// Begins to log to standard error: the levels that `KEEPSTONE_LOG` names, else warnings.
pub fn init() {
    let named = std::env::var("KEEPSTONE_LOG").ok().and_then(|levels| levels.parse().ok());
    let levels = named.unwrap_or_else(|| Targets::new().with_default(LevelFilter::WARN));
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(Output::default)
        .with_ansi(false)
        .event_format(Lines {
            inner: Format::default().with_target(false),
            limits: LogLimits::default(),
        });
    tracing_subscriber::registry().with(levels).with(lines).init();
}

/// Bounds the file behind standard error from now on, and writes panics as ordinary lines of the
/// log.
pub fn serve() {
    if let Ok(path) = std::fs::read_link("/proc/self/fd/2")
        && std::fs::metadata(&path).is_ok_and(|found| found.is_file())
    {
        let _ = FILE.set(path);
    }
    std::panic::set_hook(Box::new(|panic| tracing::error!("{panic}")));
}

/// A formatter that bounds lines.
struct Lines {
    inner: Format,
    limits: LogLimits,
}

impl<S, N> FormatEvent<S, N> for Lines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let Some(left_out) = self.limits.admit(&event.metadata().callsite(), Instant::now()) else {
            return Ok(());
        };
        let mut text = String::new();
        self.inner.format_event(context, Writer::new(&mut text), event)?;
        // log-L2.
        writer.write_str(&shown::line(text.trim_end(), LINE_BYTES_MAX))?;
        if left_out > 0 {
            write!(writer, " ({left_out} more of these were left out)")?;
        }
        writeln!(writer)
    }
}

/// The limits on lines of each kind (log-L1).
#[derive(Default)]
struct LogLimits(Mutex<HashMap<Identifier, RowKind>>);

/// Lines of one kind.
struct RowKind {
    /// Number of lines that may be written now.
    tokens: f64,
    since: Instant,
    left_out: u64,
}

impl LogLimits {
    /// Decides whether a line may be written. If so, returns the number of lines left out before
    /// it.
    fn admit(&self, kind: &Identifier, now: Instant) -> Option<u64> {
        let mut kinds = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let new = RowKind { tokens: BURST, since: now, left_out: 0 };
        let kind = kinds.entry(kind.clone()).or_insert(new);
        let more = now.saturating_duration_since(kind.since).as_secs_f64() * PER_SECOND;
        (kind.tokens, kind.since) = ((kind.tokens + more).min(BURST), now);
        if kind.tokens < 1.0 {
            kind.left_out += 1;
            return None;
        }
        kind.tokens -= 1.0;
        Some(std::mem::take(&mut kind.left_out))
    }
}

/// A writer to standard error that replaces the file behind it when that is full.
#[derive(Default)]
struct Output;

impl io::Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // If a new file cannot be created, writing continues in the old one.
        if let Some(path) = FILE.get()
            && let Ok(Some(file)) = successor(rustix::stdio::stderr(), path, FILE_BYTES_MAX)
        {
            let _ = rustix::stdio::dup2_stderr(file);
        }
        io::stderr().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

/// Opens the next file if `own` has more than `len_max` bytes (log-L3). Another process that writes
/// to the same file may have created it already.
fn successor(own: impl AsFd, path: &Path, len_max: u64) -> io::Result<Option<File>> {
    let own = rustix::fs::fstat(own)?;
    if own.st_size as u64 <= len_max {
        return Ok(None);
    }
    let is_own = |found: Metadata| (found.dev(), found.ino()) == (own.st_dev, own.st_ino);
    if std::fs::symlink_metadata(path).is_ok_and(is_own) {
        std::fs::rename(path, path.with_extension("log.old"))?;
    }
    let mut options = OpenOptions::new();
    options.create(true).append(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
    options.open(path).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;
    use std::time::Duration;

    #[test]
    fn lines_of_a_kind_are_limited_and_those_left_out_are_counted() {
        let (limits, start) = (LogLimits::default(), Instant::now());
        let identifiers: Vec<_> = kinds().iter().map(|kind| kind.callsite()).collect();
        let admit = |kind: usize, ms: u64| {
            limits.admit(&identifiers[kind], start + Duration::from_millis(ms))
        };
        let written = (0..100_000).filter(|_| admit(0, 0).is_some()).count();
        assert_eq!(written, BURST as usize);
        assert_eq!(admit(1, 0), Some(0), "others are not affected");
        assert_eq!(admit(0, 1000), Some(100_000 - BURST as u64));
        let written = (0..60_000).filter(|ms| admit(0, 1000 + ms).is_some()).count();
        assert!((100..=125).contains(&written), "{written} in a minute");
    }

    #[test]
    fn a_long_log_is_followed_by_a_new_one() {
        let dir = tempfile::tempdir().unwrap();
        let (path, old) = (dir.path().join("x.log"), dir.path().join("x.log.old"));
        let open = || OpenOptions::new().create(true).append(true).open(&path).unwrap();
        // Descriptors as of two processes.
        let (mut first, mut second) = (open(), open());
        for round in 1..=3 {
            first.write_all(&[b'0' + round; 100]).unwrap();
            assert!(successor(&first, &path, 100).unwrap().is_none());
            first.write_all(b"\n").unwrap();
            first = successor(&first, &path, 100).unwrap().expect("it is too long");
            second =
                successor(&second, &path, 100).unwrap().expect("the first has begun a new one");
            second.write_all(b"").unwrap();
            assert_eq!(std::fs::read(&old).unwrap()[0], b'0' + round);
            assert_eq!(std::fs::metadata(&path).unwrap().len(), 0);
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2);
    }

    /// Returns the metadata of two places in the program.
    fn kinds() -> [&'static tracing::Metadata<'static>; 2] {
        let of = |span: tracing::Span| span.metadata();
        tracing::subscriber::with_default(tracing_subscriber::registry(), || {
            [of(tracing::error_span!("a")), of(tracing::error_span!("b"))]
                .map(|kind| kind.expect("the subscriber is there"))
        })
    }
}
