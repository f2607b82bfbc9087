//! Calls after which the process layer has to read its state again: the credentials of the process,
//! its limits, and the start of its paths.

#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_long, c_uint, c_ulong, c_void};

use ::direct::Direct;
use libc::{gid_t, mode_t, pid_t, rlimit, size_t, uid_t};
use posix::Process;

use crate::serve::{fail, give_to_kernel};
use crate::start::{forget_table, process};
use crate::{direct, fork, guard, real};

/// Notifies the process layer after a call that succeeded. It only notes the change, so a signal
/// handler may do that, too.
fn then(result: c_int, tell: impl FnOnce(&Process)) -> c_int {
    if result == 0
        && let Some(process) = process()
    {
        guard::run(|| tell(process));
    }
    result
}

/// Notes after a call that the calling thread's credentials may have changed, and those of no other
/// thread. Most functions of libc change all threads, the system calls change one.
fn then_thread<T>(result: T) -> T {
    if let Some(process) = process() {
        process.thread_credentials_changed();
    }
    result
}

/// Makes a call by number that changes the credentials of the calling thread.
///
/// # Safety
/// As of the call.
pub unsafe fn by_number(number: c_long, arguments: [c_long; 6]) -> c_long {
    let [a, b, c, d, e, f] = arguments;
    // SAFETY: the caller's.
    then_thread(unsafe { real::syscall(number, a, b, c, d, e, f) })
}

/// Notes that a thread has restricted itself (Landlock, seccomp): only the kernel knows what it may
/// still open. Open files stay as they are, as with the kernel.
pub fn restricted(result: c_long) -> c_long {
    if result >= 0
        && let Some(process) = process()
    {
        process.namespace_changed();
    }
    result
}

/// Notes that limits may have changed.
fn limits_changed(result: c_int) -> c_int {
    direct::tell(Direct::limits_changed);
    then(result, Process::limits_changed)
}

/// `fsconfig` remounts.
const FSCONFIG_CMD_RECONFIGURE: c_uint = 7;

/// Flag: `nftw` changes the working directory as it goes.
const FTW_CHDIR: c_int = 4;
/// Flag: `fts_open` does not change the working directory.
const FTS_NOCHDIR: c_int = 4;

/// Notes that libc is about to walk a tree. If it changes the working directory on the way, in
/// system calls of its own, relative paths are the kernel's from now on.
fn walks(changing_directory: bool) {
    if let Some(process) = process().filter(|_| changing_directory) {
        process.namespace_changed();
    }
}

export! {
    fn setuid (uid: uid_t) -> c_int {
        then(real::setuid(uid), Process::credentials_changed)
    }

    fn seteuid (uid: uid_t) -> c_int {
        then(real::seteuid(uid), Process::credentials_changed)
    }

    fn setreuid (real_id: uid_t, effective: uid_t) -> c_int {
        then(real::setreuid(real_id, effective), Process::credentials_changed)
    }

    fn setresuid (real_id: uid_t, effective: uid_t, saved: uid_t) -> c_int {
        then(real::setresuid(real_id, effective, saved), Process::credentials_changed)
    }

    fn setfsuid (uid: uid_t) -> c_int {
        then_thread(real::setfsuid(uid))
    }

    fn setgid (gid: gid_t) -> c_int {
        then(real::setgid(gid), Process::credentials_changed)
    }

    fn setegid (gid: gid_t) -> c_int {
        then(real::setegid(gid), Process::credentials_changed)
    }

    fn setregid (real_id: gid_t, effective: gid_t) -> c_int {
        then(real::setregid(real_id, effective), Process::credentials_changed)
    }

    fn setresgid (real_id: gid_t, effective: gid_t, saved: gid_t) -> c_int {
        then(real::setresgid(real_id, effective, saved), Process::credentials_changed)
    }

    fn setfsgid (gid: gid_t) -> c_int {
        then_thread(real::setfsgid(gid))
    }

    fn setgroups (count: size_t, list: *const gid_t) -> c_int {
        then(real::setgroups(count, list), Process::credentials_changed)
    }

    fn initgroups (user: *const c_char, group: gid_t) -> c_int {
        then(real::initgroups(user, group), Process::credentials_changed)
    }

    fn capset (header: *mut c_void, data: *const c_void) -> c_int {
        then_thread(real::capset(header, data))
    }

    fn prctl (
        option: c_int, a: c_ulong, b: c_ulong, c: c_ulong, d: c_ulong
    ) -> c_int {
        let result = real::prctl(option, a, b, c, d);
        match option {
            libc::PR_SET_SECCOMP => restricted(result.into()) as c_int,
            // It changes the permissions that `access` checks.
            libc::PR_SET_SECUREBITS => then_thread(result),
            _ => result,
        }
    }

    fn setrlimit | setrlimit64 (resource: c_uint, limit: *const rlimit) -> c_int {
        limits_changed(real::setrlimit(resource, limit))
    }

    fn prlimit | prlimit64 (
        pid: pid_t, resource: c_uint, new: *const rlimit, old: *mut rlimit
    ) -> c_int {
        limits_changed(real::prlimit(pid, resource, new, old))
    }

    fn umask (mask: mode_t) -> mode_t {
        let before = real::umask(mask);
        then(0, |process| process.task().umask(mask));
        before
    }

    fn chroot (path: *const c_char) -> c_int {
        then(real::chroot(path), Process::namespace_changed)
    }

    fn pivot_root (new: *const c_char, old: *const c_char) -> c_int {
        then(real::pivot_root(new, old), Process::namespace_changed)
    }

    fn unshare (flags: c_int) -> c_int {
        if flags & libc::CLONE_FILES != 0 {
            direct::stop();
            forget_table();
        }
        if flags & libc::CLONE_NEWUSER != 0 {
            // IDs get another meaning.
            fork::leave_table_to_kernel();
        }
        let result = real::unshare(flags);
        let paths = libc::CLONE_NEWNS | libc::CLONE_NEWUSER | libc::CLONE_FS;
        if flags & paths != 0 {
            then(result, |process| {
                process.namespace_changed();
                process.task().umask_is_unshared();
                process.thread_credentials_changed();
            });
        }
        result
    }

    fn setns (fd: c_int, kind: c_int) -> c_int {
        const NS_GET_NSTYPE: c_long = 0xb703;
        let of_fd = || real::syscall(libc::SYS_ioctl, fd.into(), NS_GET_NSTYPE, 0, 0, 0, 0);
        let kinds = if kind == 0 { of_fd() as c_int } else { kind };
        if kinds & libc::CLONE_NEWUSER != 0 {
            // IDs get another meaning.
            fork::leave_table_to_kernel();
        }
        then(real::setns(fd, kind), |process| {
            process.namespace_changed();
            process.thread_credentials_changed();
        })
    }

    fn mount (
        source: *const c_char, target: *const c_char, kind: *const c_char, flags: c_ulong,
        data: *const c_void
    ) -> c_int {
        then(real::mount(source, target, kind, flags, data), Process::mounts_changed)
    }

    fn move_mount (
        from_dirfd: c_int, from: *const c_char, to_dirfd: c_int, to: *const c_char, flags: c_uint
    ) -> c_int {
        if let Err(err) = give_to_kernel(&[from_dirfd, to_dirfd]) {
            return fail::<()>(err);
        }
        then(real::move_mount(from_dirfd, from, to_dirfd, to, flags), Process::mounts_changed)
    }

    fn mount_setattr (
        dirfd: c_int, path: *const c_char, flags: c_uint, attributes: *mut c_void, size: size_t
    ) -> c_int {
        if let Err(err) = give_to_kernel(&[dirfd]) {
            return fail::<()>(err);
        }
        then(
            real::mount_setattr(dirfd, path, flags, attributes, size),
            Process::mounts_changed,
        )
    }

    fn fsconfig (
        fd: c_int, command: c_uint, key: *const c_char, value: *const c_void, aux: c_int
    ) -> c_int {
        // Some commands take a descriptor in `aux`.
        if let Err(err) = give_to_kernel(&[aux]) {
            return fail::<()>(err);
        }
        let result = real::fsconfig(fd, command, key, value, aux);
        if command == FSCONFIG_CMD_RECONFIGURE {
            then(result, Process::mounts_changed);
        }
        result
    }

    fn nftw | nftw64 (
        path: *const c_char, visit: *const c_void, depth: c_int, flags: c_int
    ) -> c_int {
        walks(flags & FTW_CHDIR != 0);
        real::nftw(path, visit, depth, flags)
    }

    fn fts_open | fts64_open (
        paths: *const *const c_char, options: c_int, compare: *const c_void
    ) -> *mut c_void {
        walks(options & FTS_NOCHDIR == 0);
        real::fts_open(paths, options, compare)
    }

    fn umount (target: *const c_char) -> c_int {
        direct::names_change();
        then(real::umount(target), Process::mounts_changed)
    }

    fn umount2 (target: *const c_char, flags: c_int) -> c_int {
        direct::names_change();
        then(real::umount2(target, flags), Process::mounts_changed)
    }
}
