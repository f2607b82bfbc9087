//! Damaged sessions: the server neither panics nor hangs, keeps serving other clients, and stores
//! nothing to a read-only export.
//!
//! The seed of a failure is printed; `KEEPSTONE_NBD_SEED` reruns it, `KEEPSTONE_NBD_SESSIONS` sets
//! the number of sessions. `make fuzz` goes on for longer, with coverage.

use crate::common::{Client, SIZE, context, go, option_bytes, request_bytes, server};
use nbd::wire::{command, flag, info, option};
use nbd::{MemoryDevice, ServerOptions};
use rng::Rng;
use std::io::{Read as _, Write as _};
use std::net::Shutdown;
use std::time::Duration;

/// Returns the bytes of a valid client, from its answer to the greeting on.
fn session(rng: &mut Rng) -> Vec<u8> {
    let mut bytes = rng.pick(&[3u32, 3, 3, 1, 0]).to_be_bytes().to_vec();
    let extended = rng.below(2) == 0;
    let upgrade = if extended { option::EXTENDED_HEADERS } else { option::STRUCTURED_REPLY };
    let name = rng.pick(&["disk", "disk", "rom", "", "nobody"]);
    let options = [
        option_bytes(upgrade, &[]),
        option_bytes(option::LIST, &[]),
        option_bytes(option::SET_META_CONTEXT, &context(name, &["base:allocation"])),
        option_bytes(option::LIST_META_CONTEXT, &context(name, &[])),
        option_bytes(option::INFO, &go(name, &[info::NAME])),
        option_bytes(option::STARTTLS, &[]),
    ];
    for option in &options {
        if rng.below(3) > 0 {
            bytes.extend(option);
        }
    }
    bytes.extend(option_bytes(option::GO, &go("disk", &[info::BLOCK_SIZE])));
    for cookie in 0..rng.below(40) {
        let kind = rng.below(9) as u16;
        let flags = rng.pick(&[0, 0, flag::FUA, flag::DF, flag::REQ_ONE, flag::NO_HOLE, 63]);
        let off = rng.pick(&[0, 512, 4096, SIZE / 2, SIZE - 512, SIZE, u64::MAX]);
        let len = rng.pick(&[0, 512, 4096, 65536, 1 << 20, 1 << 30]);
        let payload = if kind == command::WRITE { len.min(1 << 20) } else { 0 };
        bytes.extend(request_bytes(extended, kind, flags, cookie, off, len));
        bytes.extend(vec![0xaa; payload as usize]);
    }
    bytes
}

/// Damages the bytes at random places.
fn damage(rng: &mut Rng, bytes: &mut Vec<u8>) {
    for _ in 0..rng.below(4) {
        let at = rng.below(bytes.len() as u64) as usize;
        match rng.below(4) {
            0 => bytes[at] ^= 1 << rng.below(8),
            1 => bytes[at] = rng.pick(&[0, 0x7f, 0x80, 0xff]),
            2 => bytes.truncate(at.max(1)),
            _ => {
                let end = (at + rng.below(64) as usize).min(bytes.len());
                bytes.drain(at..end);
                if bytes.is_empty() {
                    bytes.push(0);
                }
            }
        }
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn damaged_sessions() {
    let device = MemoryDevice::new(SIZE);
    let options =
        ServerOptions { handshake_time: Duration::from_secs(5), ..ServerOptions::default() };
    let server = server(device, options);
    let sessions = number("KEEPSTONE_NBD_SESSIONS").unwrap_or(3000);
    let first = number("KEEPSTONE_NBD_SEED");
    for seed in first.map_or(1..=sessions, |seed| seed..=seed) {
        let mut rng = Rng::new(rng::hash(seed));
        let mut bytes = session(&mut rng);
        damage(&mut rng, &mut bytes);
        let client = Client::silent(&server);
        let mut stream = client.stream.try_clone().unwrap();
        let said = std::thread::spawn(move || {
            // The server may have closed the connection, which is allowed.
            let _ = stream.write_all(&bytes);
            let _ = stream.shutdown(Shutdown::Write);
        });
        let mut answer = Vec::new();
        let heard = (&client.stream).take(64 << 20).read_to_end(&mut answer);
        if let Err(err) = heard {
            let reset = err.kind() == std::io::ErrorKind::ConnectionReset;
            assert!(reset, "KEEPSTONE_NBD_SEED={seed}: the server is silent: {err}");
        }
        said.join().unwrap();
    }
    let mut sound = Client::structured(&server);
    assert_eq!(sound.ask(command::READ, 0, 0, 4096).error, 0);
    let rom = server.exports().find(b"rom").unwrap().device();
    let mut content = vec![0; 1 << 20];
    rom.read(0, &mut content).unwrap();
    assert!(content.iter().all(|byte| *byte == 0), "a read-only export was written");
    while server.clients() > 1 {
        std::thread::yield_now();
    }
}
