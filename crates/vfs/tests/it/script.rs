//! Operations as lines of text.

use vfs::script::{Op, escape, parse, unescape};

#[test]
fn lines_are_read_as_they_are_written() {
    let lines = "create /d/a\nlink /a %0/n\nwrite %1 0 5000\ncopy /a 1 /b 2 3\nchmod /b 6755\nsetall /a 9 600 5\nclose 3\n\
        rename-noreplace /a /b\nsetxattr /a user.x 10\nremount";
    let ops: Vec<Op> = parse(lines).unwrap();
    let again: Vec<String> = ops.iter().map(Op::to_string).collect();
    assert_eq!(again.join("\n"), lines);
    for bad in ["", "creat /a", "create", "create /a /b", "chmod /a 9", "write /a 0", "remount 1"] {
        assert!(bad.parse::<Op>().is_err(), "{bad}");
    }
}

#[test]
fn scripts_have_several_operations_a_line_and_comments() {
    let script = "# first; not read\ncreate /a; mkdir /d  # then\n\n ;unlink /a#b ; #last";
    let expected = ["create /a", "mkdir /d", "unlink /a#b"].map(|line| line.parse().unwrap());
    assert_eq!(parse::<Op>(script).unwrap(), expected);
}

#[test]
fn every_name_is_one_word() {
    let all: Vec<u8> = (0..=255).collect();
    for name in [
        &all[..],
        b"",
        b"a",
        b"..",
        b"a b",
        b"\\x41",
        b"\\e",
        b"#",
        b"%0",
        b"a;b|c",
        b"\xff\xfe",
        b"nul\0",
    ] {
        let word = escape(name);
        assert!(word.bytes().all(|b| b.is_ascii_graphic() && !b";|".contains(&b)), "{word}");
        assert_eq!(unescape(&word), name, "{word}");
    }
    // As scripts have them that know of no escapes.
    assert_eq!(unescape(r"a\b\x4g\"), &br"a\b\x4g\"[..]);
}
