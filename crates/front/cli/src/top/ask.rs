//! Queries to servers, without waiting for servers that do not answer.
//!
//! Each query has a thread, because a query to a mount is a system call, which blocks for as long
//! as the server is stopped.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use anyhow::{Error, Result};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use serde_json::Value;

use super::source::Source;
use crate::bdev::control::{self, BdevServer};
use crate::locks::LockFiles;
use crate::{output, stats};

/// Longest time for the server of a mount to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(60);

/// The result of a query.
pub enum Answer {
    /// Statistics of the server of a mount, and the number of other processes that have the pool
    /// open, if they may.
    Mount(Value, Option<usize>),
    /// The status of a server of block devices.
    Devices(Box<BdevServer>),
    /// This user may not query the server.
    Forbidden,
    /// The mount exists, but its server has died.
    Died,
    /// Mount and server are gone.
    Gone,
    /// The server did not answer in time.
    Silent,
    /// The server, or the connection to it, failed.
    Failed(String),
}

/// An answer, with its source and the time at which it came.
pub type Heard = (Source, Instant, Answer);

/// The queries in progress.
pub struct Questions {
    sender: mpsc::Sender<Heard>,
    receiver: mpsc::Receiver<Heard>,
    /// An eventfd that counts answers.
    bell: Arc<OwnedFd>,
}

impl Questions {
    /// Creates an empty set of queries.
    pub fn new() -> Result<Self> {
        let (sender, receiver) = mpsc::channel();
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { sender, receiver, bell: Arc::new(bell) })
    }

    /// Queries a server. [`heard`](Self::heard) returns its answer later.
    pub fn ask(&self, source: &Source) -> Result<()> {
        let (source, sender, bell) = (source.clone(), self.sender.clone(), self.bell.clone());
        std::thread::Builder::new().name("ask".into()).spawn(move || {
            let answer = ask(&source);
            let _ = sender.send((source, Instant::now(), answer));
            let _ = rustix::io::write(&bell, &1u64.to_ne_bytes());
        })?;
        Ok(())
    }

    /// Returns the next answer, if one has come.
    pub fn heard(&self) -> Option<Heard> {
        let heard = self.receiver.try_recv().ok();
        if heard.is_none() {
            let _ = rustix::io::read(&self.bell, &mut [0; 8]);
            // An answer that came meanwhile was counted before the counter was read.
            return self.receiver.try_recv().ok();
        }
        heard
    }
}

impl AsFd for Questions {
    /// Becomes readable when an answer comes.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

/// Queries a server, in the calling thread. Waits for a mount until it answers, up to
/// `ANSWER_WITHIN`.
fn ask(source: &Source) -> Answer {
    match source {
        Source::Mount { dir, pool } => match stats::read(dir, ANSWER_WITHIN) {
            Ok(stats) => {
                let users = users(pool, &stats);
                Answer::Mount(stats, users)
            }
            Err(err) => why_no_mount(&err),
        },
        Source::Socket(path) => match BdevServer::at(path) {
            Ok(server) => Answer::Devices(Box::new(server)),
            Err(err) => why_no_socket(&err),
        },
    }
}

/// Counts the processes other than the server that have a pool open, by their locks of its file.
/// Forked processes that inherited it are not counted. Returns `None` if the server's statistics
/// show no direct access.
fn users(pool: &Path, stats: &Value) -> Option<usize> {
    let is_direct = stats["direct"].as_bool()?;
    let locks = LockFiles::read().on(pool);
    let mut others: Vec<_> = locks.iter().map(|lock| u64::from(lock.pid)).collect();
    others.retain(|pid| stats["pid"].as_u64() != Some(*pid));
    is_direct.then_some(others.len())
}

/// Classifies the error of a query to a mount.
fn why_no_mount(err: &Error) -> Answer {
    // A server that is about to end may send an answer that is not JSON.
    let Some(&errno) = err.downcast_ref::<Errno>() else { return Answer::Gone };
    match errno {
        Errno::ACCESS | Errno::PERM => Answer::Forbidden,
        Errno::TIMEDOUT => Answer::Silent,
        errno if fuse::is_of_dead_server(errno) => Answer::Died,
        // It was unmounted, or hidden by a mount over a directory above it.
        Errno::NOENT | Errno::NOTDIR | Errno::NODATA | Errno::OPNOTSUPP => Answer::Gone,
        _ => Answer::Failed(output::in_a_line(err)),
    }
}

/// Classifies the error of a query to a control socket.
fn why_no_socket(err: &Error) -> Answer {
    use std::io::ErrorKind;
    if control::is_gone(err) {
        return Answer::Gone;
    }
    match err.downcast_ref().map(std::io::Error::kind) {
        Some(ErrorKind::PermissionDenied) => Answer::Forbidden,
        Some(ErrorKind::WouldBlock | ErrorKind::TimedOut) => Answer::Silent,
        Some(ErrorKind::ConnectionReset | ErrorKind::BrokenPipe) => Answer::Gone,
        // A server that ends breaks its answer off.
        None if err.downcast_ref::<serde_json::Error>().is_some() => Answer::Gone,
        _ => Answer::Failed(output::in_a_line(err)),
    }
}
