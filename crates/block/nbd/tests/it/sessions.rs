//! Sessions of correct and incorrect clients.

use crate::common::{Client, SIZE, context, go, request_bytes, server};
use nbd::wire::{self, Code, STATE_HOLE, STATE_ZERO, command, export, flag, info, option, reply};
use nbd::{MemoryDevice, Server, ServerOptions};
use pmbd::{BlockDevice as _, Durability};
use rustix::event::{PollFd, PollFlags, poll};
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

fn disk() -> (Arc<MemoryDevice>, Arc<Server>) {
    let device = MemoryDevice::new(SIZE);
    let server = server(device.clone(), ServerOptions::default());
    (device, server)
}

/// Returns a pattern of nonzero bytes.
fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i / 7) as u8 ^ seed | 1).collect()
}

#[test]
fn negotiation_tells_what_there_is() {
    let (_, server) = disk();
    let mut client = Client::connect(&server);
    let list = client.option(option::LIST, &[]);
    assert_eq!(list.len(), 3);
    assert_eq!(list[0], (reply::SERVER, b"\0\0\0\x04diska disk".to_vec()));
    assert_eq!(list[2].0, reply::ACK);

    let facts = client.option(option::INFO, &go("rom", &[info::NAME, info::DESCRIPTION]));
    assert_eq!(facts[0].1[..2], info::EXPORT.to_be_bytes());
    assert_eq!(facts[0].1[2..10], SIZE.to_be_bytes());
    let flags = u16::from_be_bytes(*facts[0].1.last_chunk().unwrap());
    assert_ne!(flags & export::READ_ONLY, 0);
    assert_eq!(flags & (export::SEND_DF | export::SEND_TRIM), 0, "nothing was negotiated");
    assert_eq!(facts[2].1, b"\0\x01rom");
    assert_eq!(facts.len(), 4, "it has no description");

    let no_such = client.option(option::GO, &go("nobody", &[]));
    assert_eq!(no_such[0].0, reply::ERR_UNKNOWN);
    assert_eq!(client.option(77, b"?")[0].0, reply::ERR_UNSUP);
    assert_eq!(client.option(option::STARTTLS, &[])[0].0, reply::ERR_POLICY);
    assert_eq!(client.option(option::LIST, b"?")[0].0, reply::ERR_INVALID);
    assert_eq!(client.option(option::GO, b"\0\0\0\x09disk")[0].0, reply::ERR_INVALID);
    assert_eq!(client.option(option::INFO, &vec![0; 1 << 20])[0].0, reply::ERR_TOO_BIG);
    assert_eq!(client.option(option::ABORT, &[])[0].0, reply::ACK);
    assert!(client.is_over());
}

#[test]
fn contexts_are_of_one_export_and_need_structured_replies() {
    let (_, server) = disk();
    let mut client = Client::connect(&server);
    let wanted = context("disk", &["base:allocation", "qemu:dirty-bitmap:x"]);
    assert_eq!(client.option(option::SET_META_CONTEXT, &wanted)[0].0, reply::ERR_INVALID);
    client.option(option::STRUCTURED_REPLY, &[]);
    for queries in [&[][..], &["base:"], &["base:allocation"]] {
        let list = client.option(option::LIST_META_CONTEXT, &context("disk", queries));
        assert_eq!(list[0], (reply::META_CONTEXT, b"\0\0\0\0base:allocation".to_vec()));
    }
    let chosen = client.option(option::SET_META_CONTEXT, &wanted);
    assert_eq!(chosen[0], (reply::META_CONTEXT, b"\0\0\0\x01base:allocation".to_vec()));
    assert_eq!(chosen.len(), 2);
    // The context belongs to another export than the one in use.
    client.go("rom");
    let answer = client.ask(command::BLOCK_STATUS, 0, 0, 4096);
    assert_eq!(answer.error, Code::Inval as u32);
}

#[test]
fn an_old_client_uses_the_first_export() {
    let (_, server) = disk();
    let mut client = Client::connect(&server);
    client.put(&crate::common::option_bytes(option::EXPORT_NAME, b""));
    let reply: [u8; 10] = client.get();
    assert_eq!(reply[..8], SIZE.to_be_bytes());
    assert_eq!(client.write(0, 512, &pattern(512, 3)).error, 0);
    assert_eq!(client.ask(command::READ, 0, 512, 512).content(0, 512), pattern(512, 3));
    client.put(&request_bytes(false, command::DISC, 0, 0, 0, 0));
    assert!(client.is_over());
}

#[test]
fn content_comes_back_in_every_dialect() {
    for shows in [true, false] {
        let mut device = MemoryDevice::of(SIZE);
        device.shows = shows;
        let server = server(Arc::new(device), ServerOptions::default());
        let simple = || {
            let mut client = Client::connect(&server);
            client.go("disk");
            client
        };
        for mut client in [simple(), Client::structured(&server), Client::extended(&server)] {
            // Some requests are longer than the device's limit or any buffer, or are not whole
            // pages.
            for (off, len) in [(0, 512), (4096, 4096), (512, 1 << 20), (1536, 700 * 512)] {
                let data = pattern(len, len as u8);
                assert_eq!(client.write(0, off, &data).error, 0);
                let read = client.ask(command::READ, 0, off, len as u64);
                assert_eq!(read.error, 0);
                let base = if read.data[0].0 == 0 { 0 } else { off };
                assert_eq!(read.content(base, len), data, "{len} bytes at {off}");
            }
        }
    }
}

#[test]
fn reads_and_status_know_holes() {
    let (_, server) = disk();
    for mut client in [Client::structured(&server), Client::extended(&server)] {
        assert_eq!(client.ask(command::TRIM, 0, 0, SIZE).error, 0);
        client.write(0, 64 << 10, &[7; 4096]);
        let hole = u64::from(STATE_HOLE | STATE_ZERO);
        let status = client.ask(command::BLOCK_STATUS, 0, 0, 1 << 20).extents;
        assert_eq!(status, [(64 << 10, hole), (4096, 0), ((1 << 20) - (68 << 10), hole)]);
        let first = client.ask(command::BLOCK_STATUS, flag::REQ_ONE, 4096, 1 << 20).extents;
        assert_eq!(first, [(60 << 10, hole)]);

        let read = client.ask(command::READ, 0, 0, 128 << 10);
        assert_eq!(read.holes, [(0, 64 << 10), (68 << 10, 60 << 10)]);
        assert_eq!(read.data, [(64 << 10, vec![7; 4096])]);
        let whole = client.ask(command::READ, flag::DF, 0, 128 << 10);
        assert_eq!((whole.data.len(), whole.holes.len()), (1, 0));
        assert_eq!(whole.content(0, 128 << 10), read.content(0, 128 << 10));
    }
}

#[test]
fn errors_carry_code_and_reason_and_the_session_goes_on() {
    let (device, server) = disk();
    // Unwritten parts need not be read.
    for off in (SIZE - (1 << 20)..SIZE).step_by(1 << 16) {
        device.write(off, &[1; 1 << 16], Durability::AtBarrier).unwrap();
    }
    device.broken_from.store(SIZE - 4096, Ordering::Relaxed);
    for mut client in [Client::structured(&server), Client::extended(&server)] {
        let beyond = client.ask(command::READ, 0, SIZE, 512);
        assert_eq!(beyond.error, Code::Inval as u32);
        assert!(beyond.message.contains("beyond the end"), "{}", beyond.message);
        assert_eq!(client.write(0, SIZE - 512, &[1; 1024]).error, Code::NoSpc as u32);
        assert_eq!(client.ask(command::READ, 0, SIZE - 512, 512).error, Code::Io as u32);
        assert_eq!(client.write(0, SIZE - 512, &[1; 512]).error, Code::Io as u32);
        // The first half can be read, but not the second.
        let half = client.ask(command::READ, 0, SIZE - (1 << 20), 1 << 20);
        assert_eq!(half.error, Code::Io as u32);
        let fast = flag::FAST_ZERO | flag::NO_HOLE;
        assert_eq!(client.ask(command::WRITE_ZEROES, fast, 0, 4096).error, Code::NotSup as u32);
        assert_eq!(client.ask(99, 0, 0, 0).error, Code::Inval as u32);
        assert_eq!(client.ask(command::READ, flag::FAST_ZERO, 0, 512).error, Code::Inval as u32);
        assert_eq!(client.ask(command::READ, 0, 100, 512).error, Code::Inval as u32);
        assert_eq!(client.ask(command::READ, 0, 0, 512).error, 0);
    }
    let mut rom = Client::connect(&server);
    rom.go("rom");
    assert_eq!(rom.write(0, 0, &[1; 512]).error, Code::Perm as u32);
    assert_eq!(rom.ask(command::READ, 0, 0, 512).content(0, 512), [0; 512]);
}

#[test]
fn durability_reaches_the_device() {
    let (device, server) = disk();
    let mut client = Client::structured(&server);
    let persisted = || device.persisted.load(Ordering::Relaxed);
    client.write(0, 0, &[1; 4096]);
    assert_eq!(persisted(), 0);
    client.write(flag::FUA, 0, &[1; 4096]);
    assert_eq!(persisted(), 1);
    client.ask(command::FLUSH, 0, 0, 0);
    assert_eq!(persisted(), 2);
    client.ask(command::TRIM, flag::FUA, 0, 4096);
    assert_eq!(persisted(), 3);
    client.ask(command::WRITE_ZEROES, flag::FUA, 0, 4096);
    assert_eq!(persisted(), 4);
}

#[test]
fn many_requests_share_a_reply() {
    let (_, server) = disk();
    let mut client = Client::structured(&server);
    let mut bytes = Vec::new();
    for cookie in 100..132 {
        bytes.extend(request_bytes(false, command::READ, 0, cookie, cookie * 4096, 4096));
    }
    client.put(&bytes);
    for cookie in 100..132 {
        let answer = client.answer(cookie, 0);
        assert_eq!(answer.content(cookie * 4096, 4096), [0; 4096]);
    }
    client.put(&request_bytes(false, command::DISC, 0, 0, 0, 0));
    assert!(client.is_over());
    let counts = server.exports().find(b"disk").unwrap().counters.snapshot();
    assert_eq!((counts.reads, counts.read_bytes), (32, 32 * 4096));
    assert_eq!(counts.sends, 1);
}

#[test]
fn lost_clients_are_turned_out() {
    let (_, server) = disk();
    // Unknown flags, no magic number, an unknown export, requests that do not follow the protocol.
    let mut client = Client::silent(&server);
    client.put(&u32::MAX.to_be_bytes());
    let _: [u8; 18] = client.get();
    assert!(client.is_over());
    let mut client = Client::connect(&server);
    client.put(&[0; 16]);
    assert!(client.is_over());
    let mut client = Client::connect(&server);
    client.put(&crate::common::option_bytes(option::EXPORT_NAME, b"nobody"));
    assert!(client.is_over());
    let mut client = Client::structured(&server);
    client.put(b"GET ");
    assert!(client.is_over());
    // A payload that is too long to be discarded.
    let mut client = Client::extended(&server);
    client.send(command::WRITE, flag::PAYLOAD_LEN, 0, 1 << 40, &[]);
    assert!(client.is_over());
}

#[test]
fn a_refused_payload_is_not_taken_for_requests() {
    let (_, server) = disk();
    let mut client = Client::extended(&server);
    let bait = request_bytes(true, command::DISC, 0, 0, 0, 0);
    let cookie = client.send(command::FLUSH, flag::PAYLOAD_LEN, 0, bait.len() as u64, &bait);
    assert_eq!(client.answer(cookie, 0).error, Code::Inval as u32);
    assert_eq!(client.ask(command::READ, 0, 0, 512).error, 0);
}

#[test]
fn silence_during_negotiation_ends_the_session() {
    let handshake_time = Duration::from_millis(200);
    let options = ServerOptions { handshake_time, ..ServerOptions::default() };
    let server = server(MemoryDevice::new(SIZE), options);
    // The client gets at most a greeting.
    let mut client = Client::silent(&server);
    assert!(client.stream.read_to_end(&mut Vec::new()).unwrap() <= 18);
    // Occasional options do not prolong the time limit.
    let mut client = Client::silent(&server);
    let flags = u32::from(wire::handshake::FIXED_NEWSTYLE);
    let _ = client.stream.write_all(&flags.to_be_bytes());
    while client.stream_is_open() {
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The server waits without a time limit for a client that has a session: its socket has no
/// timeout.
#[test]
fn silence_during_a_session_is_fine() {
    let server = server(MemoryDevice::new(SIZE), ServerOptions::default());
    let (ours, theirs) = UnixStream::pair().unwrap();
    let watched = theirs.try_clone().unwrap();
    server.welcome(Some(theirs.into())).unwrap();
    let mut client = Client::greeted(ours);
    assert_eq!(client.option(option::STRUCTURED_REPLY, &[]), [(reply::ACK, vec![])]);
    client.use_disk();
    assert_eq!(client.ask(command::READ, 0, 0, 512).error, 0);
    assert_eq!(watched.read_timeout().unwrap(), None);
    assert_eq!(watched.write_timeout().unwrap(), None);
}

impl Client {
    /// Sends a harmless option. Returns false if the server has closed the connection.
    fn stream_is_open(&mut self) -> bool {
        let option = crate::common::option_bytes(77, &[]);
        self.stream.write_all(&option).is_ok()
    }
}

#[test]
fn clients_beyond_the_limit_are_turned_away() {
    let options = ServerOptions { clients_max: 2, ..ServerOptions::default() };
    let server = server(MemoryDevice::new(SIZE), options);
    let _first = Client::structured(&server);
    let second = Client::structured(&server);
    assert!(Client::silent(&server).is_over());
    drop(second);
    while server.clients() == 2 {
        std::thread::yield_now();
    }
    let mut third = Client::structured(&server);
    assert_eq!(third.ask(command::READ, 0, 0, 512).error, 0);
}

#[test]
fn a_server_that_ends_answers_what_was_asked() {
    let (device, server) = disk();
    let mut busy = Client::structured(&server);
    let mut idle = Client::structured(&server);
    assert_eq!(busy.write(0, 0, &[5; 4096]).error, 0);
    let before = device.persisted.load(Ordering::Relaxed);
    server.stop(Duration::from_secs(10)).unwrap();
    assert!(busy.is_over());
    assert!(idle.is_over());
    assert!(Client::silent(&server).is_over());
    assert_eq!(server.clients(), 0);
    assert!(device.persisted.load(Ordering::Relaxed) > before, "everything is durable");
}

/// `NBD_CMD_DISC` has no reply, also if it arrives while the server ends.
#[test]
fn a_disconnect_gets_no_reply_from_a_server_that_ends() {
    let (_, server) = disk();
    let mut client = Client::structured(&server);
    let data = pattern(1 << 20, 3);
    assert_eq!(client.write(0, 0, &data).error, 0);
    // When the reply to the read begins, the server waits for the client to receive more of it.
    let read = request_bytes(false, command::READ, 0, 100, 0, 1 << 20);
    client.put(&[read, request_bytes(false, command::DISC, 0, 101, 0, 0)].concat());
    poll(&mut [PollFd::new(&client.stream, PollFlags::IN)], None).unwrap();
    std::thread::scope(|scope| {
        let stop = scope.spawn(|| server.stop(Duration::from_secs(10)));
        while !Client::silent(&server).is_over() {}
        assert!(client.answer(100, 0).content(0, 1 << 20) == data);
        assert!(client.is_over());
        stop.join().unwrap().unwrap();
    });
}

#[test]
fn an_export_grows_for_clients_that_come_later() {
    let (device, server) = disk();
    let mut early = Client::structured(&server);
    device.grow(2 * SIZE).unwrap();
    let mut late = Client::connect(&server);
    let facts = late.option(option::INFO, &go("disk", &[]));
    assert_eq!(facts[0].1[2..10], (2 * SIZE).to_be_bytes());
    late.go("disk");
    assert_eq!(late.write(0, SIZE, &[9; 512]).error, 0);
    assert_eq!(early.ask(command::READ, 0, SIZE, 512).content(SIZE, 512), [9; 512]);
}

#[test]
fn unusual_blocks_must_be_asked_for() {
    let mut device = MemoryDevice::of(SIZE);
    device.sizes.minimum = 4096;
    let server = server(Arc::new(device), ServerOptions::default());
    let mut client = Client::connect(&server);
    assert_eq!(client.option(option::GO, &go("disk", &[]))[0].0, reply::ERR_BLOCK_SIZE_REQD);
    client.go("disk");
    assert_eq!(client.ask(command::READ, 0, 512, 512).error, Code::Inval as u32);
    assert_eq!(client.ask(command::READ, 0, 4096, 4096).error, 0);
    assert_eq!(wire::STRING_BYTES_MAX, 4096);
}
