//! Many or slow clients leave places and time for others.

#![allow(unsafe_code)]

use crate::common::{Client, SIZE, option_bytes, server};
use nbd::wire::{command, option, reply};
use nbd::{MemoryDevice, ServerOptions};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

/// A resolver without a certificate: a handshake fails once the client has sent all of its hello.
#[derive(Debug)]
struct NoCertificate;

impl ResolvesServerCert for NoCertificate {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        None
    }
}

fn tls() -> Arc<rustls::ServerConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ServerConfig::builder_with_provider(provider);
    let builder = builder.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
    Arc::new(builder.with_cert_resolver(Arc::new(NoCertificate)))
}

/// Each byte arrives within the time limit, but all of them together exceed it.
#[test]
fn a_tls_handshake_ends_in_time_whatever_trickles_in() {
    let handshake_time = Duration::from_millis(300);
    let options = ServerOptions { handshake_time, tls: Some(tls()), ..ServerOptions::default() };
    let server = server(MemoryDevice::new(SIZE), options);
    let mut client = Client::connect(&server);
    assert_eq!(client.option(option::STARTTLS, &[])[0].0, reply::ACK);
    // The head of a hello of 16 KiB.
    client.put(b"\x16\x03\x01\x3f\x00\x01\x00\x3e\xfc");
    let is_cut_off = (0..1000).any(|_| {
        std::thread::sleep(Duration::from_millis(20));
        client.stream.write_all(&[0]).is_err()
    });
    assert!(is_cut_off);
}

/// A client that does not receive its replies does not keep its place, either.
#[test]
fn negotiation_is_bounded_in_bytes() {
    let server = server(MemoryDevice::new(SIZE), ServerOptions::default());
    let mut client = Client::connect(&server);
    let mut writer = client.stream.try_clone().unwrap();
    let writer = std::thread::spawn(move || {
        let options = option_bytes(option::LIST, &[]).repeat(1000);
        let mut sent = 0;
        while sent < 64 << 20 && writer.write_all(&options).is_ok() {
            sent += options.len();
        }
        sent
    });
    let _ = client.stream.read_to_end(&mut Vec::new());
    let sent = writer.join().unwrap();
    assert!(sent < 8 << 20, "{sent} bytes of options were taken");
}

#[test]
fn clients_that_negotiate_make_room_for_those_that_come() {
    let options = ServerOptions { clients_max: 20, ..ServerOptions::default() };
    let server = server(MemoryDevice::new(SIZE), options);
    let mut session = Client::structured(&server);
    let silent: Vec<_> = (0..100).map(|_| Client::silent(&server)).collect();
    assert!(server.clients() <= 20);
    let mut new = Client::structured(&server);
    for client in [&mut new, &mut session] {
        assert_eq!(client.ask(command::READ, 0, 0, 512).error, 0);
    }
    drop(silent);
}

/// Needs root: other users are other peers.
#[test]
fn sessions_of_a_user_leave_places_for_others() {
    let options = ServerOptions { clients_max: 16, ..ServerOptions::default() };
    let server = server(MemoryDevice::new(SIZE), options);
    let mut kept = Vec::new();
    // Each user gets half of the free places: 8 of 16, then 4, 2, 1.
    for (uid, share) in [(12345, 8), (12346, 4), (12347, 2), (12348, 1)] {
        for place in 0..12 {
            let (ours, theirs) = of_user(uid);
            server.welcome(Some(theirs.into())).unwrap();
            let is_served = server.clients() > kept.len();
            assert_eq!(is_served, place < share, "place {place} of user {uid}");
            if is_served {
                let mut client = Client::greeted(ours);
                client.go("disk");
                kept.push(client);
            }
        }
    }
    let mut new = Client::structured(&server);
    assert_eq!(new.ask(command::READ, 0, 0, 512).error, 0);
}

/// Makes a connection as a user. Returns the client's end and the server's.
fn of_user(uid: u32) -> (UnixStream, UnixStream) {
    let pair = std::thread::spawn(move || {
        // SAFETY: the system call takes integers, and changes this thread only.
        assert_eq!(unsafe { libc::syscall(libc::SYS_setresuid, uid, uid, uid) }, 0);
        UnixStream::pair().unwrap()
    });
    pair.join().unwrap()
}
