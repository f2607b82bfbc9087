//! A second process that works at the same time: this program again, which receives its work over a
//! pipe.

use crate::posix::Libc;
use crate::store::Store;
use crate::workload::{Buffer, FILE_BYTES, numbered, overwrite_file, read_file};
use anyhow::{Context as _, Result, bail};
use rng::Rng;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use vfs::Errno;

/// The environment variable that names the directory of a helper's file.
const DIR: &str = "KEEPSTONE_BENCH_HELPER";

/// The work of a helper on random blocks of its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Reads them.
    Read,
    /// Overwrites them.
    Overwrite,
}

/// A helper, which ends when it is dropped.
pub struct Helper {
    child: Child,
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Helper {
    /// Starts a helper for the second file of a [`Bed`](crate::workload::Bed) in `dir`.
    pub fn start(dir: &Path) -> Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(std::env::args_os().skip(1))
            .env(DIR, dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start a second process")?;
        let orders = child.stdin.take();
        let answers = BufReader::new(child.stdout.take().expect("it was asked for"));
        Ok(Self { child, orders, answers })
    }

    /// Lets it do `ops` operations on blocks of `len` bytes, while `meanwhile` runs here.
    pub fn beside(
        &mut self,
        work: Work,
        (len, ops): (usize, u64),
        meanwhile: impl FnOnce() -> vfs::Result<()>,
    ) -> vfs::Result<()> {
        let failed = |_| Errno::PIPE;
        let word = if work == Work::Read { "read" } else { "overwrite" };
        let orders = self.orders.as_mut().expect("open until it is dropped");
        writeln!(orders, "{word} {len} {ops}").map_err(failed)?;
        meanwhile()?;
        let mut answer = String::new();
        self.answers.read_line(&mut answer).map_err(failed)?;
        if answer == "done\n" { Ok(()) } else { Err(Errno::IO) }
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        drop(self.orders.take());
        let _ = self.child.wait();
    }
}

/// If this process is a helper, serves requests until the pipe ends. Returns whether it was.
pub fn serve_if_asked() -> Result<bool> {
    let Some(dir) = std::env::var_os(DIR) else { return Ok(false) };
    let store = Libc::new(Path::new(&dir), false)?;
    let file = store.open(&store.root()?, &numbered(1))?;
    let mut rng = Rng::new(7);
    for order in std::io::stdin().lines() {
        let order = order?;
        let words: Vec<&str> = order.split(' ').collect();
        let [work, len, ops] = words[..] else { bail!("not an order: {order}") };
        let (mut buf, ops) = (Buffer::new(len.parse()?), ops.parse()?);
        match work {
            "read" => read_file(&store, (&file, FILE_BYTES), &mut rng, buf.get_mut(), ops)?,
            _ => overwrite_file(&store, (&file, FILE_BYTES), &mut rng, buf.get(), ops)?,
        }
        say!("done");
    }
    Ok(true)
}
