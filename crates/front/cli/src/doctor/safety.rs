//! Set-ups that let other users do more than they should (SECURITY.md).
//!
//! Each check takes its object as an argument: a table of mounts, a directory, a command line.
//! [`of_machine`] and [`of_pool`] pass those of this machine.

use std::ffi::OsStr;
use std::fs::{self, Metadata};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use mounts::{Line, unescape};
use nbd::TlsFiles;

use super::Report;
use crate::background;

const FUSE_CONF: &str = "/etc/fuse.conf";
const SHM: &str = "/dev/shm";
/// Directories of systemd units and of the files of variables that they read.
const UNITS: [&str; 3] = ["/etc/systemd/system", "/etc/default", "/etc/sysconfig"];
/// Parts of names of variables and options whose values are secrets.
const SECRETS: [&str; 6] =
    ["SECRET", "SESSION_TOKEN", "ACCOUNT_KEY", "SAS_TOKEN", "ACCESS_TOKEN", "PASSWORD"];
/// Largest unit file that is read, in bytes.
const UNIT_MAX: u64 = 1 << 20;

/// Checks the machine. Asks no server, so that no server can delay it.
pub fn of_machine(report: &mut Report) {
    fuse_conf(report, &fs::read_to_string(FUSE_CONF).unwrap_or_default());
    mounted(report, &fs::read(fuse::TABLE).unwrap_or_default());
    shared_memory(report, Path::new(SHM));
    runtime_dir(report, &background::runtime_dir());
    for unit in UNITS {
        units(report, Path::new(unit));
    }
    for server in servers() {
        server_process(report, &server);
    }
}

/// Describes the owner, group and mode of a file, for a message.
fn mode_of(meta: &Metadata) -> String {
    format!("owner {}, group {}, mode {:03o}", meta.uid(), meta.gid(), meta.mode() & 0o7777)
}

/// Escapes a path that a stranger may have chosen, so that it adds no lines and no terminal
/// sequences.
fn shown(path: &Path) -> String {
    path.to_string_lossy().escape_debug().to_string()
}

/// Describes the users other than root and this one that may write a file; `None` if there are
/// none.
fn other_writers(meta: &Metadata) -> Option<String> {
    let mut others = Vec::new();
    if meta.uid() != 0 && meta.uid() != rustix::process::geteuid().as_raw() {
        others.push(format!("user {}", meta.uid()));
    }
    if meta.mode() & 0o020 != 0 {
        others.push(format!("group {}", meta.gid()));
    }
    if meta.mode() & 0o002 != 0 {
        others.push("every user".to_owned());
    }
    (!others.is_empty()).then(|| others.join(" and "))
}

fn fuse_conf(report: &mut Report, text: &str) {
    if text.lines().any(|line| line.trim() == "user_allow_other") {
        report.unsafe_setup(
            "allow_other",
            format!("users may let others, root among them, into their FUSE mounts (user_allow_other in {FUSE_CONF})"),
            "remove `user_allow_other`: a user's server can hold up and mislead every program that looks into its mount",
        );
    } else {
        report.ok(
            "allow_other",
            format!("only root may share mounts (no user_allow_other in {FUSE_CONF})"),
        );
    }
}

/// Checks mounts of Keepstone's types, and FUSE mounts of users that admit others.
fn mounted(report: &mut Report, table: &[u8]) {
    let own = rustix::process::geteuid().as_raw();
    for line in table.split(|&byte| byte == b'\n').filter_map(Line::parse) {
        let options: Vec<_> = line.super_options.split(|&byte| byte == b',').collect();
        let maker = options.iter().find_map(|option| {
            std::str::from_utf8(option.strip_prefix(b"user_id=")?).ok()?.parse::<u32>().ok()
        });
        let Some(maker) = maker.filter(|_| line.fs_type.starts_with(b"fuse")) else { continue };
        let dir = PathBuf::from(OsStr::from_bytes(&unescape(line.dir)));
        let is_ours = line.fs_type.starts_with(mounts::FS_TYPE.as_bytes());
        if is_ours && maker != 0 && maker != own {
            report.unsafe_setup(
                "foreign mount",
                format!(
                    "{}: user {maker} has made it, so programs of others do not use its pool",
                    shown(&dir)
                ),
                "if that is no pool of this user's, `umount -l` it, and ask the user",
            );
        } else if maker != 0 && options.contains(&&b"allow_other"[..]) {
            report.unsafe_setup(
                "foreign mount",
                format!(
                    "{}: a server of user {maker} answers the calls of all users (allow_other)",
                    shown(&dir)
                ),
                "remove `user_allow_other` from /etc/fuse.conf, then unmount it",
            );
        }
        if is_ours && (maker == 0 || maker == own) {
            let pool = PathBuf::from(OsStr::from_bytes(&unescape(line.source)));
            mounted_pool(report, &dir, &crate::pool::of_source(pool), line.options);
        }
    }
}

/// Checks whether other users may write a mounted pool, and what its mount then allows them.
fn mounted_pool(report: &mut Report, dir: &Path, pool: &Path, options: &[u8]) {
    let Ok(meta) = fs::metadata(pool) else { return };
    let Some(others) = other_writers(&meta) else { return };
    let is_cache = crate::pool::info(pool).is_ok_and(|(info, _)| info.has_backing_store);
    let (dir, pool) = (shown(dir), shown(pool));
    if is_cache {
        report.unsafe_setup(
            "cache",
            format!(
                "{pool}, the cache on {dir}: {others} may write it, and so what is written below it"
            ),
            &format!("`chmod 600 {pool}`; a cache's pool is its user's alone"),
        );
        return;
    }
    let has = |flag: &[u8]| options.split(|&byte| byte == b',').any(|option| option == flag);
    let lost: Vec<_> = [("suid", has(b"nosuid")), ("dev", has(b"nodev"))]
        .into_iter()
        .filter(|(_, off)| !off)
        .collect();
    if !lost.is_empty() {
        let honoured = lost.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(" and ");
        report.unsafe_setup(
            "mount flags",
            format!("{dir}: {others} may write {pool}, and the mount honours {honoured}: a member becomes root"),
            "mount it again with `-o nosuid,nodev`",
        );
    }
}

/// Checks the mode of a pool.
pub fn of_pool(report: &mut Report, pool: &Path) {
    let Ok(meta) = fs::metadata(pool) else { return };
    if !meta.is_file() {
        return;
    }
    if meta.mode() & 0o002 != 0 {
        report.unsafe_setup(
            "pool",
            format!(
                "{}: every user may write it, and so every file in it ({})",
                shown(pool),
                mode_of(&meta)
            ),
            "`chmod o-rw`; give members a group (docs/SERVICES.md)",
        );
    } else if meta.mode() & 0o004 != 0 {
        report.unsafe_setup(
            "pool",
            format!(
                "{}: every user may read all of its files, whatever their modes ({})",
                shown(pool),
                mode_of(&meta)
            ),
            "`chmod o-r`",
        );
    } else if meta.mode() & 0o020 != 0 {
        report.advice(
            "pool",
            format!(
                "{}: members of group {} trust each other with all of its content",
                shown(pool),
                meta.gid()
            ),
            "as intended for a service's own group; else `chmod g-rw`",
        );
    }
}

/// Checks entries in /dev/shm that other users have made under Keepstone's names. The directory
/// `keepstone-UID` of user UID is normal: that user's own pools need it.
fn shared_memory(report: &mut Report, dir: &Path) {
    let own = rustix::process::geteuid().as_raw();
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let is_named = entry.file_name().as_bytes().starts_with(b"keepstone");
        let Ok(meta) = entry.path().symlink_metadata() else { continue };
        let is_theirs = meta.is_dir() && entry.file_name() == *format!("keepstone-{}", meta.uid());
        let is_sound = is_theirs && meta.mode() & 0o022 == 0;
        if !is_named || meta.uid() == 0 || meta.uid() == own || is_sound {
            continue;
        }
        let found = format!("{}: of user {}", shown(&entry.path()), meta.uid());
        if meta.is_file() && meta.mode() & 0o002 == 0 {
            report.advice(
                "/dev/shm",
                found,
                "of that user's own pools; if it has none mounted, remove it",
            );
        } else {
            let kind = if meta.is_file() { "writable by every user" } else { "no regular file" };
            report.unsafe_setup(
                "/dev/shm",
                format!("{found}, {kind}"),
                "remove it, and ask the user",
            );
        }
    }
}

/// Checks the directory of the sockets and logs of servers.
fn runtime_dir(report: &mut Report, dir: &Path) {
    let own = rustix::process::geteuid().as_raw();
    let Ok(meta) = dir.symlink_metadata() else { return };
    if !meta.is_dir() || meta.uid() != own || meta.mode() & 0o022 != 0 {
        report.unsafe_setup(
            "runtime directory",
            format!("{}: others may put sockets and logs there ({})", shown(dir), mode_of(&meta)),
            "`chown` it to the user of the servers, and `chmod 700`",
        );
    }
    for (path, meta) in files_below(dir) {
        if meta.file_type().is_socket() && meta.mode() & 0o002 != 0 {
            report.unsafe_setup(
                "socket",
                format!("{}: every user may connect, and write the device", shown(&path)),
                "`chmod 600` it, or give it a group",
            );
        } else if meta.is_file() && (meta.uid() != own || meta.mode() & 0o044 != 0) {
            report.unsafe_setup(
                "log",
                format!(
                    "{}: others may read names of files there ({})",
                    shown(&path),
                    mode_of(&meta)
                ),
                "`chmod 600` it",
            );
        }
    }
}

/// Returns everything in a directory and below that is not a directory. Does not follow symbolic
/// links.
fn files_below(dir: &Path) -> Vec<(PathBuf, Metadata)> {
    let (mut dirs, mut files) = (vec![dir.to_owned()], Vec::new());
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
            let path = entry.path();
            match path.symlink_metadata() {
                Ok(meta) if meta.is_dir() => dirs.push(path),
                Ok(meta) => files.push((path, meta)),
                Err(_) => {}
            }
        }
    }
    files
}

/// Finds files below a directory of units that contain secrets of object stores and that other
/// users may read. Systemd shows variables of `Environment=` to every user.
fn units(report: &mut Report, dir: &Path) {
    for (path, meta) in files_below(dir) {
        if meta.is_file()
            && meta.len() <= UNIT_MAX
            && let Ok(text) = fs::read_to_string(&path)
            && (text.contains("keepstone") || path.to_string_lossy().contains("keepstone"))
        {
            unit(report, &path, &text, &meta);
        }
    }
}

fn unit(report: &mut Report, path: &Path, text: &str, meta: &Metadata) {
    let lines = text.lines().map(str::trim).filter(|line| !line.starts_with(['#', ';']));
    let mut is_told = false;
    for line in lines {
        let (key, value) = line.split_once('=').unwrap_or((line, ""));
        let is_shown = key == "Environment" && names_secret(value);
        let is_readable = names_secret(line) && meta.mode() & 0o004 != 0;
        if (is_shown || is_readable) && !is_told {
            is_told = true;
            let why =
                if is_shown { "systemd shows it to every user" } else { "every user may read it" };
            report.unsafe_setup(
                "credentials",
                format!("{}: a secret of an object store; {why}", shown(path)),
                "put it into a file of mode 600, and name that by `EnvironmentFile=` or `LoadCredential=`",
            );
        }
        let file = value.trim_start_matches('-');
        if key == "EnvironmentFile"
            && let Ok(file_meta) = fs::metadata(file)
            && file_meta.mode() & 0o044 != 0
            && fs::read_to_string(file).is_ok_and(|text| names_secret(&text))
        {
            report.unsafe_setup(
                "credentials",
                format!(
                    "{file}: a secret of an object store; others may read it ({})",
                    mode_of(&file_meta)
                ),
                "`chmod 600` it",
            );
        }
    }
}

/// Returns whether text assigns a value to the name of a secret.
fn names_secret(text: &str) -> bool {
    let assigned = text.split(|c: char| c.is_whitespace() || c == '"' || c == '\'');
    assigned.filter_map(|word| word.split_once('=')).any(|(name, value)| {
        let name = name.to_ascii_uppercase();
        !value.is_empty() && SECRETS.iter().any(|secret| name.contains(secret))
    })
}

/// A running process of this program.
struct ServerProcess {
    pid: u32,
    /// The path of its program, as the kernel reports it.
    program: PathBuf,
    args: Vec<String>,
}

/// Finds the servers of root and of this user only. Paths in the arguments of other users' servers
/// may lead to a mount that never answers.
fn servers() -> Vec<ServerProcess> {
    let own = rustix::process::geteuid().as_raw();
    let is_believed = |meta: &Metadata| meta.uid() == 0 || meta.uid() == own;
    let pids = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let of = |pid: u32| {
        fs::metadata(format!("/proc/{pid}")).ok().filter(is_believed)?;
        let program = fs::read_link(format!("/proc/{pid}/exe")).ok()?;
        let name = program.file_name()?.to_str()?;
        let is_ours = name.trim_end_matches(" (deleted)") == "keepstone";
        let args = fs::read(format!("/proc/{pid}/cmdline")).ok().filter(|_| is_ours)?;
        let args =
            args.split(|&byte| byte == 0).map(|arg| String::from_utf8_lossy(arg).into_owned());
        Some(ServerProcess { pid, args: args.collect(), program })
    };
    pids.filter(|pid| *pid != std::process::id()).filter_map(of).collect()
}

fn server_process(report: &mut Report, server: &ServerProcess) {
    let pid = server.pid;
    if server.program.to_string_lossy().ends_with(" (deleted)") {
        report.advice(
            "server",
            format!("process {pid} runs a program that has been replaced since"),
            "unmount and mount again, or restart its unit: until then it lacks what the new one repairs",
        );
    }
    if server.args.iter().any(|arg| names_secret(arg)) {
        report.unsafe_setup(
            "credentials",
            format!("the arguments of process {pid} carry a secret; every user may list them"),
            "give it by the environment (AWS_SECRET_ACCESS_KEY, …), and replace the secret",
        );
    }
    let after = |option: &str| {
        let at = server.args.iter().position(|arg| arg == option)?;
        server.args.get(at + 1).map(PathBuf::from)
    };
    if let Some(dir) = after("--tls-certificates") {
        tls_key(report, &dir);
    }
    if let Some(socket) = after("--socket")
        && fs::symlink_metadata(&socket).is_ok_and(|meta| meta.mode() & 0o002 != 0)
    {
        report.unsafe_setup(
            "socket",
            format!("{}: every user may connect, and write the device", shown(&socket)),
            "`chmod 600` it, or give it a group",
        );
    }
}

/// Checks the private key in a directory of certificates.
fn tls_key(report: &mut Report, dir: &Path) {
    let key = TlsFiles::in_dir(dir, false).key;
    if let Ok(meta) = fs::metadata(&key)
        && meta.mode() & 0o044 != 0
    {
        report.unsafe_setup(
            "TLS key",
            format!("{}: others may read it ({})", shown(&key), mode_of(&meta)),
            "`chmod 600` it, and replace the key and its certificate",
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{Permissions, set_permissions};
    use std::os::unix::fs::PermissionsExt as _;

    /// Returns the subjects of the unsafe findings of a check.
    fn unsafe_in(check: impl FnOnce(&mut Report)) -> Vec<&'static str> {
        let mut report = Report::default();
        check(&mut report);
        for finding in &report.findings {
            assert_eq!(finding.level == super::super::Level::Ok, finding.remedy.is_empty());
        }
        let findings = report.findings.iter();
        let is_unsafe = |level| level == super::super::Level::Unsafe;
        findings.filter(|finding| is_unsafe(finding.level)).map(|finding| finding.subject).collect()
    }

    /// Creates a file with a mode in a directory.
    fn file(dir: &Path, name: &str, text: &str, mode: u32) -> PathBuf {
        let path = dir.join(name);
        fs::write(&path, text).unwrap();
        set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        path
    }

    #[test]
    fn users_that_share_mounts() {
        assert_eq!(unsafe_in(|r| fuse_conf(r, "# x\nuser_allow_other\n")), ["allow_other"]);
        assert!(unsafe_in(|r| fuse_conf(r, "#user_allow_other\n")).is_empty());
    }

    #[test]
    fn mounts_of_others() {
        let line = |options: &str, kind: &str, source: &str, own: &str| {
            format!("36 35 0:98 / /mnt/x {options} - {kind} {source} rw,{own}\n").into_bytes()
        };
        let found = |line: Vec<u8>| unsafe_in(|report| mounted(report, &line));
        let dir = tempfile::tempdir().unwrap();
        let shared = file(dir.path(), "shared", "", 0o660).display().to_string();
        let private = file(dir.path(), "private", "", 0o600).display().to_string();
        let pool = "fuse.keepstone";
        assert_eq!(found(line("rw", pool, "/p", "user_id=61002")), ["foreign mount"]);
        assert_eq!(found(line("rw", pool, "/p", "user_id=61002,allow_other")), ["foreign mount"]);
        assert_eq!(
            found(line("rw", "fuse.sshfs", "h", "user_id=61002,allow_other")),
            ["foreign mount"]
        );
        assert!(found(line("rw", "fuse.sshfs", "h", "user_id=61002")).is_empty());
        assert_eq!(found(line("rw", pool, &shared, "user_id=0")), ["mount flags"]);
        assert_eq!(found(line("rw,nosuid", pool, &shared, "user_id=0")), ["mount flags"]);
        assert!(found(line("rw,nosuid,nodev", pool, &shared, "user_id=0")).is_empty());
        assert!(found(line("rw", pool, &private, "user_id=0,allow_other")).is_empty());
    }

    #[test]
    fn modes_of_pools() {
        let dir = tempfile::tempdir().unwrap();
        for (mode, expected) in [(0o600, 0), (0o660, 0), (0o606, 1), (0o644, 1), (0o666, 1)] {
            let pool = file(dir.path(), "pool", "", mode);
            assert_eq!(unsafe_in(|report| of_pool(report, &pool)).len(), expected, "{mode:o}");
        }
    }

    #[test]
    fn sockets_and_logs() {
        let dir = tempfile::tempdir().unwrap();
        let found = || unsafe_in(|report| runtime_dir(report, dir.path()));
        set_permissions(dir.path(), Permissions::from_mode(0o700)).unwrap();
        file(dir.path(), "a.log", "", 0o600);
        assert!(found().is_empty());
        set_permissions(dir.path(), Permissions::from_mode(0o770)).unwrap();
        assert_eq!(found(), ["runtime directory"]);
        set_permissions(dir.path(), Permissions::from_mode(0o700)).unwrap();
        file(dir.path(), "a.log", "", 0o644);
        assert_eq!(found(), ["log"]);
        file(dir.path(), "a.log", "", 0o600);
        let socket = dir.path().join("disk.sock");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        set_permissions(&socket, Permissions::from_mode(0o666)).unwrap();
        assert_eq!(found(), ["socket"]);
        set_permissions(&socket, Permissions::from_mode(0o600)).unwrap();
        assert!(found().is_empty());
    }

    #[test]
    fn secrets_of_object_stores() {
        let dir = tempfile::tempdir().unwrap();
        let found = || unsafe_in(|report| units(report, dir.path()));
        let secret = "AWS_SECRET_ACCESS_KEY=k";
        let variables = file(dir.path(), "variables", secret, 0o600);
        let unit = |text: &str, mode| drop(file(dir.path(), "cache.service", text, mode));
        let run = "ExecStart=/usr/local/bin/keepstone attach";
        unit(run, 0o644);
        assert!(found().is_empty());
        unit(&format!("{run}\nEnvironment=\"{secret}\""), 0o600);
        assert_eq!(found(), ["credentials"]);
        unit(&format!("{run}\nEnvironmentFile=-{}", variables.display()), 0o644);
        assert!(found().is_empty());
        set_permissions(&variables, Permissions::from_mode(0o640)).unwrap();
        assert_eq!(found(), ["credentials"]);
        set_permissions(&variables, Permissions::from_mode(0o600)).unwrap();
        unit(&format!("{run}\n# Environment={secret}"), 0o644);
        assert!(found().is_empty());
    }

    #[test]
    fn servers_that_were_replaced_or_show_secrets() {
        let dir = tempfile::tempdir().unwrap();
        file(dir.path(), "server-key.pem", "", 0o644);
        let server = |program: &str, args: &[&str]| ServerProcess {
            pid: 1,
            program: program.into(),
            args: args.iter().map(|arg| (*arg).to_owned()).collect(),
        };
        let found = |server: &ServerProcess| unsafe_in(|report| server_process(report, server));
        let mut report = Report::default();
        server_process(&mut report, &server("/usr/bin/keepstone (deleted)", &[]));
        assert_eq!(report.findings.len(), 1);
        let args = ["attach", "--store-option", "aws_secret_access_key=k"];
        assert_eq!(found(&server("/usr/bin/keepstone", &args)), ["credentials"]);
        let args = ["bdev", "serve", "--tls-certificates", dir.path().to_str().unwrap()];
        assert_eq!(found(&server("/usr/bin/keepstone", &args)), ["TLS key"]);
        assert!(found(&server("/usr/bin/keepstone", &["mount", "/dev/shm/p", "/mnt"])).is_empty());
    }
}
