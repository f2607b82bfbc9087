//! Sessions of NBD clients: negotiation, requests up to their checks, and the handshake of TLS.

use nbd::handshake::{Handshake, OPTION_BYTES_MAX, Step, TlsPolicy, option_head};
use nbd::request::{Limits, Mode, Unverified};
use nbd::{Export, Exports, MemoryDevice, Server, ServerOptions, TlsFiles};
use std::io::{Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, LazyLock};

/// The client's flags: fixed newstyle, no zeroes.
const FLAGS: [u8; 4] = [0, 0, 0, 3];
/// Longest answer to an option, in bytes.
const ANSWER_MAX: usize = 1 << 20;

fn exports() -> Exports {
    let disk = Export::new("disk", "a disk", MemoryDevice::new(1 << 20), false);
    let rom = Export::new("rom", "", MemoryDevice::new(1 << 20), true);
    Exports::new([disk.expect("a short name"), rom.expect("a short name")]).expect("two names")
}

static EXPORTS: LazyLock<Exports> = LazyLock::new(exports);

/// Runs a session without its socket. The first byte chooses the server's policy on TLS; the rest
/// is what the client sends.
pub fn session(bytes: &[u8]) {
    let Some((choice, bytes)) = bytes.split_first() else { return };
    let policy = [TlsPolicy::Off, TlsPolicy::Offered, TlsPolicy::Required][usize::from(choice % 3)];
    let Some((flags, mut bytes)) = bytes.split_first_chunk() else { return };
    let Ok(mut handshake) = Handshake::new(&EXPORTS, policy, u32::from_be_bytes(*flags)) else {
        return;
    };
    let mut out = Vec::new();
    while let Ok(Some((code, len))) = option_head(bytes) {
        let Some((data, rest)) = bytes[16..].split_at_checked(len.min(OPTION_BYTES_MAX)) else {
            return;
        };
        bytes = rest;
        match handshake.option(code, data, &mut out) {
            Ok(Step::Next) => {}
            Ok(Step::StartTls) => handshake.secured(),
            Ok(Step::Transmit(session)) => {
                let read_only = session.export.is_read_only();
                return requests(bytes, session.mode, session.block_status, read_only);
            }
            Ok(Step::End) | Err(_) => return,
        }
        assert!(out.len() < ANSWER_MAX, "an answer is of the size of its question");
        out.clear();
    }
}

/// Parses requests and checks them against the limits of an export. No device serves them.
fn requests(mut bytes: &[u8], mode: Mode, block_status: bool, read_only: bool) {
    let limits =
        Limits { mode, size: 1 << 20, block: 512, len_max: 1 << 16, read_only, block_status };
    while let Ok(Some((request, len))) = Unverified::parse(bytes, mode) {
        let payload = request.payload_len(mode).min((bytes.len() - len) as u64) as usize;
        bytes = &bytes[len + payload..];
        if let Ok(request) = request.check(&limits) {
            let _ = request.off.checked_add(request.len);
        }
    }
}

static TLS: LazyLock<Arc<Server>> = LazyLock::new(|| {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("data");
    let tls = TlsFiles::in_dir(&dir, false).load().expect("certificates of this crate");
    let options = ServerOptions { tls: Some(tls), ..ServerOptions::default() };
    Server::new(exports(), options).expect("a server")
});

/// Connects a client that requests TLS, and then sends the bytes.
pub fn tls(bytes: &[u8]) {
    let (mut client, server) = UnixStream::pair().expect("a pair of sockets");
    TLS.welcome(Some(server.into())).expect("a thread for the client");
    // The server may hang up in the middle.
    let sent = client.write_all(&[&FLAGS[..], &option(5, &[])].concat());
    let _ = sent.and_then(|()| client.write_all(bytes));
    let _ = client.shutdown(Shutdown::Write);
    let mut answer = Vec::new();
    let _ = (&client).take(1 << 20).read_to_end(&mut answer);
    assert!(answer.len() < ANSWER_MAX, "an endless answer to a handshake");
}

fn option(code: u32, data: &[u8]) -> Vec<u8> {
    let len = data.len() as u32;
    [b"IHAVEOPT", &code.to_be_bytes()[..], &len.to_be_bytes(), data].concat()
}

/// Returns the data of an option that names an export: its name and a list of requests for
/// information.
fn go(name: &str, requests: &[u16]) -> Vec<u8> {
    let mut data = (name.len() as u32).to_be_bytes().to_vec();
    data.extend(name.as_bytes());
    data.extend((requests.len() as u16).to_be_bytes());
    requests.iter().for_each(|request| data.extend(request.to_be_bytes()));
    data
}

fn context(name: &str, queries: &[&str]) -> Vec<u8> {
    let text = |text: &str| [&(text.len() as u32).to_be_bytes()[..], text.as_bytes()].concat();
    let count = (queries.len() as u32).to_be_bytes();
    [text(name), count.to_vec(), queries.iter().flat_map(|query| text(query)).collect()].concat()
}

/// Returns one session for each policy and form of replies.
pub fn session_seeds() -> Vec<Vec<u8>> {
    let request = |kind: u16, off: u64, len: u32| {
        let head = [0x25, 0x60, 0x95, 0x13, 0, 0];
        [&head[..], &kind.to_be_bytes(), &[7; 8], &off.to_be_bytes(), &len.to_be_bytes()].concat()
    };
    let extended = |kind: u16, off: u64, len: u64| {
        let head = [0x21, 0xe4, 0x1c, 0x71, 0, 0];
        [&head[..], &kind.to_be_bytes(), &[7; 8], &off.to_be_bytes(), &len.to_be_bytes()].concat()
    };
    let mut seeds = Vec::new();
    for choice in 0..3_u8 {
        for upgrade in [8_u32, 11] {
            let mut bytes = [&[choice], &FLAGS[..], &option(5, &[])].concat();
            bytes.extend(option(3, &[]));
            bytes.extend(option(upgrade, &[]));
            bytes.extend(option(9, &context("disk", &["base:", "base:allocation"])));
            bytes.extend(option(10, &context("disk", &["base:allocation"])));
            bytes.extend(option(6, &go("rom", &[1, 2, 3])));
            bytes.extend(option(7, &go("disk", &[3])));
            for kind in 0..8 {
                if upgrade == 11 {
                    bytes.extend(extended(kind, 4096, 512));
                } else {
                    bytes.extend(request(kind, 4096, 512));
                }
                if kind == 1 {
                    bytes.extend([0xaa; 512]);
                }
            }
            seeds.push(bytes);
        }
    }
    seeds
}

/// Returns the first bytes of a client under TLS, for versions 1.3 and 1.2.
pub fn tls_seeds() -> Vec<Vec<u8>> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let versions = [&rustls::version::TLS13, &rustls::version::TLS12];
    versions
        .into_iter()
        .map(|version| {
            let config = rustls::ClientConfig::builder_with_provider(provider.clone())
                .with_protocol_versions(&[version])
                .expect("the provider has it")
                .with_root_certificates(rustls::RootCertStore::empty())
                .with_no_client_auth();
            let name = "localhost".try_into().expect("a name");
            let mut client = rustls::ClientConnection::new(config.into(), name).expect("a client");
            let mut hello = Vec::new();
            client.write_tls(&mut hello).expect("a vector takes all");
            hello
        })
        .collect()
}
