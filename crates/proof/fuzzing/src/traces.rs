//! Traces of programs: of our recorders, of pmemcheck and of Vinter.

use crashsim::trace::Trace;
use crashsim::{pmemcheck, vinter};
use std::io::Write as _;

/// Text of our own format. A trace that was read must be written in the same way.
pub fn text(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(trace) = text.parse::<Trace>() {
        same_again(&trace);
    }
}

/// A log of pmemcheck.
pub fn log(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(trace) = pmemcheck::parse(text, Some("list")) {
        same_again(&trace);
    }
}

/// The entries of a trace of Vinter, which are compressed here, and a file that need not be one.
pub fn entries(bytes: &[u8]) {
    let mut file = snap::write::FrameEncoder::new(Vec::new());
    file.write_all(bytes).expect("memory takes it");
    let file = file.into_inner().expect("memory takes it");
    for (file, len) in [(&*file, None), (&*file, Some(0x1800)), (bytes, None)] {
        if let Ok(trace) = vinter::parse(file, len) {
            same_again(&trace);
        }
    }
}

fn same_again(trace: &Trace) {
    let text = trace.to_string();
    let again: Trace = text.parse().expect("what was read can be read again");
    assert_eq!(again.to_string(), text);
}

/// Seeds of [`text`].
pub fn text_seeds() -> Vec<Vec<u8>> {
    let text = "keepstone-trace 1 0x80
0 begin 0
0 store 0x40 0700000000000000 list.c:5
1 nt 0x0 0100 list.c:6
0 word 0x8 0200000000000000 -
0 load 0x8 8 -
0 flush 0x0 128 list.c:7
0 fence list.c:7
1 drain -
0 end 0
";
    vec![text.into()]
}

/// Seeds of [`log`].
pub fn log_seeds() -> Vec<Vec<u8>> {
    let text = "START|REGISTER_FILE;/tmp/list;0x4000;0x1000;0x0|crashtest.BEGIN\
|STORE;0x4040;0x7;0x8;append (list.c:5)|FLUSH;0x4040;0x40|FENCE|crashtest.END|STOP";
    vec![text.into()]
}

/// Seeds of [`entries`].
pub fn entries_seeds() -> Vec<Vec<u8>> {
    let place = b"\xfb\x10\x20\x01\x01\x07";
    let entries: [&[u8]; 9] = [
        b"\x00\x09\xfb\x40\x10\x04\x04\x01\x02\x03\x04\x01",
        place,
        b"\x04\x09\x0acheckpoint\x011",
        b"\x02\x09\x07clflush\x40",
        place,
        b"\x01\x09\x06sfence",
        place,
        b"\x03\x09\x40\x01\x01\x05",
        b"\x04\x09\x07success\x00",
    ];
    vec![entries.concat()]
}
