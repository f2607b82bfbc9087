//! A session of an NBD client from arbitrary bytes: negotiation, and requests up to their checks.
//!
//! Everything that looks at a client's bytes does so without a socket, and is what runs here. The first
//! byte of the input chooses the server's policy; the rest is what the client says.

#![no_main]

use libfuzzer_sys::fuzz_target;
use nbd::handshake::{Handshake, OPTION_BYTES_MAX, Step, TlsPolicy, option_head};
use nbd::request::{Limits, Mode, Unverified};
use nbd::{Export, Exports, MemoryDevice};
use std::sync::LazyLock;

static EXPORTS: LazyLock<Exports> = LazyLock::new(|| {
    let disk = Export::new("disk", "a disk", MemoryDevice::new(1 << 20), false);
    let rom = Export::new("rom", "", MemoryDevice::new(1 << 20), true);
    Exports::new([disk.expect("a short name"), rom.expect("a short name")]).expect("two names")
});

fuzz_target!(|bytes: &[u8]| {
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
                return requests(bytes, session.mode, session.block_status, session.export.is_read_only());
            }
            Ok(Step::End) | Err(_) => return,
        }
        assert!(out.len() < 1 << 20, "an answer is of the size of its question");
        out.clear();
    }
});

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
