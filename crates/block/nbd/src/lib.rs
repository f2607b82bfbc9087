//! A block device served to other programs and machines: the server's side of the NBD protocol.
//!
//! Specification: NetworkBlockDevice/nbd, `doc/proto.md`. The server supports fixed newstyle
//! negotiation with `GO`, `INFO` and block sizes, TLS, structured replies with sparse reads, and
//! extended headers. It supports `base:allocation` block status, forced unit access, trim, fast
//! zeroing, and flushes that cover all connections.
//!
//! It does not support oldstyle negotiation, which the specification discourages, nor resizing
//! under a client, which it only sketches. If an export grows, later sessions get its new size.
//! Older sessions are not notified, but their requests may use it.
//!
//! Reading order: [`wire`] (bytes), [`request`] and [`handshake`] (their meaning, without a
//! socket), `connection` (a session), [`server`](Server) (all sessions). [`client`] is the client's
//! side.

#![deny(clippy::unwrap_used)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod client;
mod connection;
mod export;
pub mod handshake;
mod listen;
mod memory;
mod outbox;
mod peer;
pub mod request;
mod server;
mod status;
mod stream;
mod tls;
pub mod wire;

pub use export::{BadExport, Export, ExportCounters, ExportCounts, Exports};
pub use listen::Listener;
pub use memory::MemoryDevice;
pub use server::{Server, ServerOptions};
pub use tls::{TlsError, TlsFiles};
