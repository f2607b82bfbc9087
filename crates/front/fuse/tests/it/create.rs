//! `open(O_CREAT)` of a name that the kernel knows to be absent, and that another process has made
//! since.

use std::fs;
use std::io::Read as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use vfs::{Caller, FileSystem as _, NewKind, NewNode};

use crate::mount::Mount;

const STRANGER: u32 = 65_534;

fn open(mount: &Mount, name: &str, flags: i32) -> std::io::Result<fs::File> {
    let mut options = fs::OpenOptions::new();
    options.read(true).write(true).create(true).custom_flags(flags).open(mount.path(name))
}

/// Makes a mount whose kernel knows `name` to be absent, while the engine has it, with content.
fn made_since(name: &str, kind: NewKind<'_>, (uid, mode): (u32, u32)) -> Mount {
    let mount = Mount::asked_to_create();
    assert!(fs::metadata(mount.path(name)).is_err());
    let model = mount.model();
    let caller = Caller { uid, gid: uid };
    let node = NewNode { kind, mode, umask: 0 };
    let made = model.create(&caller, vfs::ROOT, name.as_bytes(), &node).unwrap();
    if kind == NewKind::File {
        model.write(made.ino, 0, b"made").unwrap();
    }
    mount
}

fn content(mut file: fs::File) -> String {
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn a_file_that_was_made_since_is_opened() {
    for owner in [0, STRANGER] {
        let mount = made_since("name", NewKind::File, (owner, 0o600));
        assert_eq!(content(open(&mount, "name", 0).unwrap()), "made", "of {owner}");
        assert_eq!(fs::read_to_string(mount.path("name")).unwrap(), "made");
    }
}

#[test]
fn it_is_truncated_where_the_program_asks_for_that() {
    for owner in [0, STRANGER] {
        let mount = made_since("name", NewKind::File, (owner, 0o600));
        assert_eq!(content(open(&mount, "name", libc::O_TRUNC).unwrap()), "", "of {owner}");
        assert_eq!(fs::metadata(mount.path("name")).unwrap().len(), 0);
    }
}

#[test]
fn with_o_excl_it_exists() {
    let mount = made_since("name", NewKind::File, (0, 0o600));
    let failed = open(&mount, "name", libc::O_EXCL).unwrap_err();
    assert_eq!(failed.raw_os_error(), Some(libc::EEXIST));
}

/// The kernel applies the rules of an existing file.
#[test]
fn others_files_are_opened_as_their_modes_allow() {
    for (owner, mode, expected) in
        [(0, 0o600, 1), (0, 0o666, 0), (STRANGER, 0o600, 0), (STRANGER, 0o400, 1)]
    {
        let mount = made_since("name", NewKind::File, (owner, mode));
        fs::set_permissions(&mount.dir, std::os::unix::fs::PermissionsExt::from_mode(0o777))
            .unwrap();
        let mut shell = Command::new("sh");
        shell.args(["-c", ": >>\"$0\""]).arg(mount.path("name")).uid(STRANGER).gid(STRANGER);
        let status = shell.stderr(std::process::Stdio::null()).status().unwrap();
        assert_eq!(i32::from(!status.success()), expected, "{owner} {mode:o}");
    }
}

#[test]
fn a_directory_is_a_directory_and_a_link_is_followed() {
    let mount = made_since("name", NewKind::Dir, (0, 0o755));
    let failed = open(&mount, "name", 0).unwrap_err();
    assert_eq!(failed.raw_os_error(), Some(libc::EISDIR));

    let mount = made_since("name", NewKind::Symlink(b"target"), (0, 0o777));
    drop(open(&mount, "name", 0).unwrap());
    assert!(fs::symlink_metadata(mount.path("target")).unwrap().is_file());
}
