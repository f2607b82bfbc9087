//! Operations as lines of text.

use vfs::conformance::gen_ops;
use vfs::model::Model;
use vfs::script::{Driver, Op, escape, parse, unescape};
use vfs::{Errno, FileSystem};

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
    // As in scripts written before there were escapes.
    assert_eq!(unescape(r"a\b\x4g\"), &br"a\b\x4g\"[..]);
}

#[test]
fn options_follow_in_any_order_and_can_be_left_out() {
    let all = [
        "create /a by=1000:100 mode=2755 umask=27 keep=5",
        "lookup /d/\\e keep=0",
        "tmpfile /d 1 mode=600",
        "setattr %1 mode=4755 uid=1 gid=2 size=3 atime=now mtime=-4 ctime=5",
        "write /a end-1 10 fill=0",
        "read /a at=limit+1 len=9",
        "setxattr /a user.x 10 fill=7 how=create",
        "setacl /a perms=75400 plain=true how=replace",
        "list / batch=3",
        "statfs",
    ];
    for line in all {
        assert_eq!(line.parse::<Op>().unwrap().to_string(), line);
    }
    let swapped = "create /a umask=27 mode=2755 by=1000:100 keep=5";
    assert_eq!(swapped.parse::<Op>(), all[0].parse());
    assert_eq!("create /a".parse::<Op>().unwrap(), Op::create("/a"));
    for bad in
        ["create /a keep=5 mode=1", "create /a size=1", "write /a 0 1 fill=", "write /a fin-1 1"]
    {
        assert!(bad.parse::<Op>().is_err(), "{bad}");
    }
}

#[test]
fn generated_sequences_are_scripts() {
    for seed in 0..20 {
        let ops = gen_ops(seed, 300);
        let script: String = ops.iter().map(|op| format!("{op}\n")).collect();
        assert_eq!(parse::<Op>(&script).unwrap(), ops);
    }
}

#[test]
fn names_are_as_long_as_they_can_be() {
    let fs = Model::new();
    let mut driver = Driver::new(&fs);
    let mut run = |line: &str| driver.run(&line.parse().unwrap(), 0);
    assert_eq!(run(r"create /a\max"), Ok(()));
    assert_eq!(run(&format!("unlink /{}", "a".repeat(fs.limits().name))), Ok(()));
    assert_eq!(run(r"create /a\over"), Err(Errno::NAMETOOLONG));
    assert_eq!(run(r"create /\x61\x20b"), Ok(()));
    assert!(fs.peek(fs.root(), b"a b").is_ok());
}
