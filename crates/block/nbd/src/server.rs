//! The server: sockets, a thread for each client, and an orderly end.

use crate::connection::{self, Common, Ended};
use crate::export::Exports;
use crate::handshake::TlsPolicy;
use crate::listen::Listener;
use crate::peer::{self, Peer};
use crate::stream::Stream;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::net::Shutdown;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The options of a server.
#[derive(Clone)]
pub struct ServerOptions {
    /// Certificates, if there are any.
    pub tls: Option<Arc<rustls::ServerConfig>>,
    /// Whether clients must use them.
    pub tls_required: bool,
    /// The time limit of negotiation.
    pub handshake_time: Duration,
    /// The most clients at the same time. A client beyond that replaces the oldest one that is
    /// still negotiating, or is refused. One user of this machine, or one address, has at most half
    /// of the places that others leave free (`peer.rs`).
    pub clients_max: usize,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            tls: None,
            tls_required: false,
            handshake_time: Duration::from_secs(10),
            clients_max: 256,
        }
    }
}

/// An NBD server.
pub struct Server {
    common: Common,
    clients_max: usize,
    /// Becomes readable when the server ends.
    stop: OwnedFd,
    clients: Mutex<Clients>,
    /// Notified when a client has gone.
    gone: Condvar,
}

#[derive(Default)]
struct Clients {
    next: u64,
    /// The clients by age.
    all: BTreeMap<u64, Client>,
}

struct Client {
    /// A second descriptor of its socket, to interrupt the thread that waits for it.
    socket: OwnedFd,
    peer: Peer,
    /// Whether negotiation has led to a session.
    is_agreed: bool,
}

impl Clients {
    /// Makes room for a client of `peer`, of `max` in all. Returns whether there is room. A client
    /// that has agreed on a session keeps its place.
    fn make_room(&mut self, peer: Peer, max: usize) -> bool {
        let own = self.all.values().filter(|client| client.peer == peer).count();
        let is_over_share = own >= peer::share(max, self.all.len() - own);
        if !is_over_share && self.all.len() < max {
            return true;
        }
        let is_replaceable =
            |client: &Client| !client.is_agreed && (!is_over_share || client.peer == peer);
        let oldest = self.all.iter().find(|(_, client)| is_replaceable(client));
        let Some(client) = oldest.map(|(id, _)| *id).and_then(|id| self.all.remove(&id)) else {
            return false;
        };
        let _ = rustix::net::shutdown(&client.socket, Shutdown::Both);
        true
    }
}

impl Server {
    /// Makes a server of `exports`.
    pub fn new(exports: Exports, options: ServerOptions) -> io::Result<Arc<Self>> {
        let tls_policy = match (&options.tls, options.tls_required) {
            (None, _) => TlsPolicy::Off,
            (Some(_), false) => TlsPolicy::Offered,
            (Some(_), true) => TlsPolicy::Required,
        };
        Ok(Arc::new(Self {
            common: Common {
                exports,
                tls: options.tls,
                tls_policy,
                handshake_time: options.handshake_time,
                stopping: AtomicBool::new(false),
            },
            clients_max: options.clients_max,
            stop: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            clients: Mutex::default(),
            gone: Condvar::new(),
        }))
    }

    /// Returns the exports.
    pub fn exports(&self) -> &Exports {
        &self.common.exports
    }

    /// Returns the current number of clients.
    pub fn clients(&self) -> usize {
        self.lock().all.len()
    }

    /// Serves clients until [`stop`](Self::stop) is called.
    pub fn run(self: &Arc<Self>, listeners: &[Listener]) -> io::Result<()> {
        loop {
            let stop = PollFd::new(&self.stop, PollFlags::IN);
            let sockets = listeners.iter().map(|l| PollFd::new(l, PollFlags::IN));
            let mut waiting: Vec<_> = std::iter::once(stop).chain(sockets).collect();
            match poll(&mut waiting, None) {
                Err(rustix::io::Errno::INTR) => continue,
                result => result?,
            };
            if self.common.stopping.load(Ordering::Relaxed) {
                return Ok(());
            }
            for (listener, waited) in listeners.iter().zip(&waiting[1..]) {
                if waited.revents().is_empty() {
                    continue;
                }
                if let Err(err) = listener.accept().and_then(|socket| self.welcome(socket)) {
                    // For example, no descriptor is free. Clients that wait stay in the queue
                    // meanwhile.
                    tracing::error!("{}: cannot take a client: {err}", listener.address());
                    std::thread::sleep(Duration::from_millis(100));
                }
            }
        }
    }

    /// Starts a thread that serves the client at the other end of `socket`; `None` does nothing.
    /// Closes the socket instead if there is no room for the client, or if the server is stopping.
    pub fn welcome(self: &Arc<Self>, socket: Option<OwnedFd>) -> io::Result<()> {
        let Some(socket) = socket else { return Ok(()) };
        let peer = Peer::of(&socket);
        let id = {
            let mut clients = self.lock();
            if self.common.stopping.load(Ordering::Relaxed) {
                return Ok(());
            }
            if !clients.make_room(peer, self.clients_max) {
                tracing::warn!("a client of {peer} was turned away: all its places are taken");
                return Ok(());
            }
            let id = clients.next;
            clients.next += 1;
            let client = Client { socket: socket.try_clone()?, peer, is_agreed: false };
            clients.all.insert(id, client);
            id
        };
        let member = Member { server: self.clone(), id };
        std::thread::Builder::new().name(format!("client {id}")).spawn(move || {
            let agreed = || {
                if let Some(client) = member.server.lock().all.get_mut(&id) {
                    client.is_agreed = true;
                }
            };
            match connection::serve(&member.server.common, Stream::new(socket), agreed) {
                Ok(()) => tracing::debug!("client {id} has left"),
                Err(Ended::Io(err)) => tracing::info!("client {id} was cut off: {err}"),
                Err(err) => tracing::warn!("client {id} was turned out: {err}"),
            }
        })?;
        Ok(())
    }

    /// Ends the server. Accepts no more clients, answers requests that have arrived and refuses
    /// later ones. Waits up to `grace` for that, then makes all data durable.
    pub fn stop(&self, grace: Duration) -> Result<(), pmbd::Error> {
        self.common.stopping.store(true, Ordering::Relaxed);
        let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
        let deadline = Instant::now() + grace;
        let mut clients = self.lock();
        for Client { socket, .. } in clients.all.values() {
            // Data that has arrived can still be read; then the stream ends.
            let _ = rustix::net::shutdown(socket, Shutdown::Read);
        }
        while !clients.all.is_empty() {
            let Some(left) = deadline.checked_duration_since(Instant::now()) else {
                break;
            };
            clients = self
                .gone
                .wait_timeout(clients, left)
                .map_or_else(|broken| broken.into_inner().0, |(clients, _)| clients);
        }
        for Client { socket, .. } in clients.all.values() {
            // The client does not receive its replies.
            let _ = rustix::net::shutdown(socket, Shutdown::Both);
        }
        drop(clients);
        self.common.exports.iter().try_for_each(|export| export.device().barrier())
    }

    fn lock(&self) -> MutexGuard<'_, Clients> {
        // A thread that panics while it holds the lock leaves no half-done change.
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Removes a client's entry from the list when its thread ends, also by a panic.
struct Member {
    server: Arc<Server>,
    id: u64,
}

impl Drop for Member {
    fn drop(&mut self) {
        self.server.lock().all.remove(&self.id);
        self.server.gone.notify_all();
    }
}
