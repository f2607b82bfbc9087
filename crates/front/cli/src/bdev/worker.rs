//! A worker of `keepstone bdev serve --workers`: a process that serves clients, and the channel
//! over which its supervisor passes them.
//!
//! An order has one byte, and the descriptor of the client if it needs one. Answers are lines of
//! JSON.

use std::io::{BufRead as _, BufReader, IoSlice, IoSliceMut, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;

use anyhow::{Context as _, Result, bail};
use nbd::{Server, ServerOptions};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};
use serde::{Deserialize, Serialize};

use super::devices::{self, Opened};
use super::serve::STOP_GRACE;
use super::status::ExportNumbers;

/// An order from the supervisor.
#[derive(Debug)]
pub enum Order {
    /// Serve this client.
    Serve(OwnedFd),
    /// Report the counters: [`Numbers`].
    Tell,
    /// Answer requests in progress, make everything durable, and end.
    Stop,
}

const SERVE: u8 = b'c';
const TELL: u8 = b't';
const STOP: u8 = b's';

/// The counters of a worker.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Numbers {
    /// Clients that are connected now.
    pub clients: usize,
    /// Counters of each export.
    pub exports: Vec<ExportNumbers>,
}

impl Numbers {
    /// Returns the counters of a server in this process.
    pub fn of(server: &Server) -> Result<Self> {
        let exports = server.exports().iter().map(|export| ExportNumbers::of(export));
        Ok(Self { clients: server.clients(), exports: exports.collect::<Result<_>>()? })
    }

    /// Adds the counters of another process that serves the same exports.
    pub fn plus(mut self, other: Self) -> Self {
        self.clients += other.clients;
        for (sum, more) in self.exports.iter_mut().zip(&other.exports) {
            sum.add(more);
        }
        self
    }
}

/// Sends an order. Its descriptor then belongs to the worker.
pub fn order(channel: &UnixStream, order: Order) -> Result<()> {
    let (code, client) = match order {
        Order::Serve(client) => (SERVE, Some(client)),
        Order::Tell => (TELL, None),
        Order::Stop => (STOP, None),
    };
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut along = SendAncillaryBuffer::new(&mut room);
    let client = client.as_ref().map(|client| [client.as_fd()]);
    if let Some(client) = &client {
        along.push(SendAncillaryMessage::ScmRights(client));
    }
    sendmsg(channel, &[IoSlice::new(&[code])], &mut along, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Asks a worker for its numbers.
pub fn ask(channel: &UnixStream) -> Result<Numbers> {
    order(channel, Order::Tell)?;
    let mut line = String::new();
    BufReader::new(channel).read_line(&mut line)?;
    serde_json::from_str(&line).context("a worker gave no answer")
}

/// Receives the next order; `None` if the supervisor has closed the channel.
fn next(channel: &UnixStream) -> Result<Option<Order>> {
    let mut code = [0];
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut along = RecvAncillaryBuffer::new(&mut room);
    let received = loop {
        let into = &mut [IoSliceMut::new(&mut code)];
        match recvmsg(channel, into, &mut along, RecvFlags::CMSG_CLOEXEC) {
            Err(rustix::io::Errno::INTR) => {}
            received => break received?,
        }
    };
    let client = along.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    Ok(match (received.bytes, code, client) {
        (0, ..) => None,
        (_, [SERVE], Some(client)) => Some(Order::Serve(client)),
        (_, [TELL], _) => Some(Order::Tell),
        (_, [STOP], _) => Some(Order::Stop),
        (_, [code], _) => bail!("an unknown order: {code}"),
    })
}

/// Runs a worker, forked by `supervisor`, until an order stops it.
pub fn work(
    channel: &UnixStream,
    opened: &[Opened],
    options: ServerOptions,
    supervisor: Pid,
) -> Result<()> {
    // workers-S4: without a supervisor, no process would restart the other workers when one of them
    // dies.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    if getppid() != Some(supervisor) {
        return Ok(());
    }
    pmem::stray::after_fork()?;
    let server = Server::new(devices::exports(opened)?, options)?;
    while let Some(order) = next(channel)? {
        match order {
            Order::Serve(client) => {
                if let Err(err) = server.welcome(Some(client)) {
                    tracing::error!("cannot serve a client: {err}");
                }
            }
            Order::Tell => {
                let mut line = serde_json::to_string(&Numbers::of(&server)?)?;
                line.push('\n');
                (&*channel).write_all(line.as_bytes())?;
            }
            Order::Stop => {
                return server.stop(STOP_GRACE).context("cannot make everything durable");
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;

    #[test]
    fn orders_arrive_with_what_is_given_along() {
        let (supervisor, worker) = UnixStream::pair().unwrap();
        let (mut client, given) = UnixStream::pair().unwrap();
        order(&supervisor, Order::Tell).unwrap();
        order(&supervisor, Order::Serve(given.into())).unwrap();
        order(&supervisor, Order::Stop).unwrap();
        drop(supervisor);
        assert!(matches!(next(&worker).unwrap(), Some(Order::Tell)));
        let Some(Order::Serve(given)) = next(&worker).unwrap() else { panic!("no client") };
        assert!(matches!(next(&worker).unwrap(), Some(Order::Stop)));
        assert!(next(&worker).unwrap().is_none());
        UnixStream::from(given).write_all(b"hello").unwrap();
        let mut heard = String::new();
        client.read_to_string(&mut heard).unwrap();
        assert_eq!(heard, "hello");
    }
}
