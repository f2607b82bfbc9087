//! A block device served to other programs and machines: the server's side of the NBD protocol.
//!
//! Specification: NetworkBlockDevice/nbd, `doc/proto.md`. Spoken are fixed newstyle negotiation with
//! `GO`, `INFO` and block sizes, TLS, structured replies with sparse reads, `base:allocation` block
//! status, extended headers, forced unit access, trim, fast zeroing, and flushes that cover all
//! connections.
//!
//! Left out: oldstyle negotiation, which the specification discourages; and resizing under a client,
//! which it only sketches: an export that grows has its new size for sessions that begin after that,
//! and does not refuse it to older ones.
//!
//! Reading order: [`wire`] (bytes), [`request`] and [`handshake`] (what they mean, without a socket),
//! `connection` (a session), [`server`](Server) (all of them); [`client`] is the other side.

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

pub use export::{BadExport, Counters, Counts, Export, Exports};
pub use listen::Listener;
pub use memory::MemoryDevice;
pub use server::{Server, ServerOptions};
pub use tls::{TlsError, TlsFiles};
