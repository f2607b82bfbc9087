//! Asking servers without waiting for those that do not answer.
//!
//! Each question has a thread: of a mount it is a system call, which waits for as long as the server is stopped.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use anyhow::{Error, Result};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use serde_json::Value;

use super::source::Source;
use crate::bdev::control::{self, Server};
use crate::locks::Locks;
use crate::{output, stats};

/// How long the server of a mount may take to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(60);

/// What came of a question.
pub enum Answer {
    /// What the server of a mount says, and how many other processes have the pool open, where they may.
    Mount(Value, Option<usize>),
    /// What a server of block devices says.
    Devices(Box<Server>),
    /// This user may not ask it.
    Forbidden,
    /// The mount is there, its server is not.
    Died,
    /// Neither is.
    Gone,
    /// It did not answer in time.
    Silent,
    /// It, or the way to it, failed.
    Failed(String),
}

/// An answer, from whom and when it came.
pub type Heard = (Source, Instant, Answer);

/// Questions that were asked.
pub struct Questions {
    sender: mpsc::Sender<Heard>,
    receiver: mpsc::Receiver<Heard>,
    /// Counts answers.
    bell: Arc<OwnedFd>,
}

impl Questions {
    /// None yet.
    pub fn new() -> Result<Self> {
        let (sender, receiver) = mpsc::channel();
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { sender, receiver, bell: Arc::new(bell) })
    }

    /// Asks a server, which will be [`heard`](Self::heard).
    pub fn ask(&self, source: &Source) -> Result<()> {
        let (source, sender, bell) = (source.clone(), self.sender.clone(), self.bell.clone());
        std::thread::Builder::new().name("ask".into()).spawn(move || {
            let answer = ask(&source);
            let _ = sender.send((source, Instant::now(), answer));
            let _ = rustix::io::write(&bell, &1u64.to_ne_bytes());
        })?;
        Ok(())
    }

    /// The next answer, if one has come.
    pub fn heard(&self) -> Option<Heard> {
        let heard = self.receiver.try_recv().ok();
        if heard.is_none() {
            let _ = rustix::io::read(&self.bell, &mut [0; 8]);
            // One that came meanwhile has rung before.
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

fn ask(source: &Source) -> Answer {
    match source {
        Source::Mount { dir, pool } => match stats::read(dir, ANSWER_WITHIN) {
            Ok(stats) => {
                let users = users(pool, &stats);
                Answer::Mount(stats, users)
            }
            Err(err) => why_no_mount(&err),
        },
        Source::Socket(path) => match Server::at(path) {
            Ok(server) => Answer::Devices(Box::new(server)),
            Err(err) => why_no_socket(&err),
        },
    }
}

/// The processes that have a pool open beside its server; those that were forked with it are not counted.
fn users(pool: &Path, stats: &Value) -> Option<usize> {
    let is_direct = stats["direct"].as_bool()?;
    let locks = Locks::read().on(pool);
    let mut others: Vec<_> = locks.iter().map(|lock| u64::from(lock.pid)).collect();
    others.retain(|pid| stats["pid"].as_u64() != Some(*pid));
    is_direct.then_some(others.len())
}

fn why_no_mount(err: &Error) -> Answer {
    // What is not JSON is what a server says that is about to end.
    let Some(&errno) = err.downcast_ref::<Errno>() else { return Answer::Gone };
    match errno {
        Errno::ACCESS | Errno::PERM => Answer::Forbidden,
        Errno::TIMEDOUT => Answer::Silent,
        errno if fuse::is_of_dead_server(errno) => Answer::Died,
        // It was unmounted, or something is mounted over what is above it.
        Errno::NOENT | Errno::NOTDIR | Errno::NODATA | Errno::OPNOTSUPP => Answer::Gone,
        _ => Answer::Failed(output::in_a_line(err)),
    }
}

fn why_no_socket(err: &Error) -> Answer {
    use std::io::ErrorKind;
    if control::is_gone(err) {
        return Answer::Gone;
    }
    match err.downcast_ref().map(std::io::Error::kind) {
        Some(ErrorKind::PermissionDenied) => Answer::Forbidden,
        Some(ErrorKind::WouldBlock | ErrorKind::TimedOut) => Answer::Silent,
        Some(ErrorKind::ConnectionReset | ErrorKind::BrokenPipe) => Answer::Gone,
        // An answer that breaks off is that of a server that ends.
        None if err.downcast_ref::<serde_json::Error>().is_some() => Answer::Gone,
        _ => Answer::Failed(output::in_a_line(err)),
    }
}
