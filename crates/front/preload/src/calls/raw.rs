//! `syscall`: the calls a program makes by number.
//!
//! A call that has an exported function of the same meaning goes to that function. For other calls,
//! their descriptors first become the kernel's.
//!
//! The longest function of this crate, `syscall`, consists of a single flat `match`: a table from
//! numbers to functions, of which a reader looks up one line.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_int, c_long};

use posix::Errno;

use super::{
    attributes, content, copying, descriptors, listing, locking, mapping, names, requests, waiting,
    xattr,
};
use crate::credentials::{self, restricted};
use crate::serve::{before_fd, fail, give_pool_files_to_kernel};
use crate::start::{serve_no_more, serves, table};
use crate::{direct, exec, exit, fork, memory, real};

/// Whether a call neither takes nor returns descriptors, whatever its arguments look like. These
/// are calls that libraries make by number, some of them often: futexes belong to the locks of C++
/// and Rust.
fn concerns_no_descriptor(number: c_long) -> bool {
    matches!(
        number,
        libc::SYS_futex
            | libc::SYS_futex_waitv
            | libc::SYS_set_robust_list
            | libc::SYS_get_robust_list
            | libc::SYS_membarrier
            | libc::SYS_rseq
            | libc::SYS_sched_yield
            | libc::SYS_sched_setaffinity
            | libc::SYS_sched_getaffinity
            | libc::SYS_sched_setattr
            | libc::SYS_sched_getattr
            | libc::SYS_ioprio_set
            | libc::SYS_ioprio_get
            | libc::SYS_getcpu
            | libc::SYS_getpid
            | libc::SYS_getppid
            | libc::SYS_gettid
            | libc::SYS_getuid
            | libc::SYS_geteuid
            | libc::SYS_getgid
            | libc::SYS_getegid
            | libc::SYS_kill
            | libc::SYS_tkill
            | libc::SYS_tgkill
            | libc::SYS_rt_sigqueueinfo
            | libc::SYS_rt_tgsigqueueinfo
            | libc::SYS_rt_sigprocmask
            | libc::SYS_getrandom
            | libc::SYS_clock_gettime
            | libc::SYS_clock_getres
            | libc::SYS_clock_nanosleep
            | libc::SYS_nanosleep
            | libc::SYS_gettimeofday
            | libc::SYS_mbind
            | libc::SYS_set_mempolicy
            | libc::SYS_get_mempolicy
            | libc::SYS_move_pages
            | libc::SYS_arch_prctl
            | libc::SYS_capget
            | libc::SYS_getrusage
            | libc::SYS_sysinfo
    )
}

/// Whether a call returns a descriptor and takes none.
fn takes_no_descriptor(number: c_long) -> bool {
    matches!(
        number,
        libc::SYS_memfd_create
            | libc::SYS_memfd_secret
            | libc::SYS_pidfd_open
            | libc::SYS_eventfd2
            | libc::SYS_epoll_create1
            | libc::SYS_timerfd_create
            | libc::SYS_inotify_init1
            | libc::SYS_userfaultfd
            | libc::SYS_socket
            | libc::SYS_bpf
    )
}

/// Returns the positions of the arguments that are descriptors, of calls that only the kernel
/// makes. For a call that is not listed, the first and the third count as descriptors. A number
/// that names no file of ours has no effect. An integer that only looks like a descriptor makes
/// that descriptor the kernel's needlessly.
fn places_of_descriptors(number: c_long) -> &'static [usize] {
    match number {
        libc::SYS_tee | libc::SYS_kexec_file_load => &[0, 1],
        // The second is a descriptor of another process, which may be this one.
        libc::SYS_pidfd_getfd => &[0, 1],
        libc::SYS_perf_event_open => &[3],
        _ => &[0, 2],
    }
}

/// `landlock_add_rule`: the rule lies in memory and names a directory.
fn give_landlocked(rule: c_long) {
    /// Offset of the field in `struct landlock_path_beneath_attr`.
    const PARENT_FD: usize = 8;
    let at = rule as usize + PARENT_FD;
    if let Ok(fd) = memory::load(at as *const [u8; 4]) {
        let _ = give_pool_files_to_kernel(&[c_int::from_ne_bytes(fd)]);
    }
}

export! {
    fn syscall (
        number: c_long, a: c_long, b: c_long, c: c_long, d: c_long, e: c_long, f: c_long
    ) -> c_long {
        if !serves() && table().is_none() {
            return real::syscall(number, a, b, c, d, e, f);
        }
        let fd = a as c_int;
        match number {
            libc::SYS_read => content::read(fd, b as _, c as _) as c_long,
            libc::SYS_write => content::write(fd, b as _, c as _) as c_long,
            libc::SYS_pread64 => content::pread(fd, b as _, c as _, d) as c_long,
            libc::SYS_pwrite64 => content::pwrite(fd, b as _, c as _, d) as c_long,
            libc::SYS_readv => content::readv(fd, b as _, c as _) as c_long,
            libc::SYS_writev => content::writev(fd, b as _, c as _) as c_long,
            libc::SYS_preadv => content::preadv(fd, b as _, c as _, d) as c_long,
            libc::SYS_pwritev => content::pwritev(fd, b as _, c as _, d) as c_long,
            libc::SYS_preadv2 => content::preadv2(fd, b as _, c as _, d, f as _) as c_long,
            libc::SYS_pwritev2 => content::pwritev2(fd, b as _, c as _, d, f as _) as c_long,
            libc::SYS_lseek => content::lseek(fd, b, c as _),
            libc::SYS_ftruncate => content::ftruncate(fd, b).into(),
            libc::SYS_fallocate => content::fallocate(fd, b as _, c, d).into(),
            libc::SYS_fsync => content::fsync(fd).into(),
            libc::SYS_fdatasync => content::fdatasync(fd).into(),
            libc::SYS_syncfs => content::syncfs(fd).into(),
            libc::SYS_sync => {
                content::sync();
                0
            }
            libc::SYS_copy_file_range => {
                content::copy_file_range(fd, b as _, c as _, d as _, e as _, f as _) as c_long
            }
            libc::SYS_sendfile => content::sendfile(fd, b as _, c as _, d as _) as c_long,
            libc::SYS_mlockall => locking::mlockall(a as _).into(),
            libc::SYS_poll => waiting::poll(a as _, b as _, c as _).into(),
            // The kernel changes the timeout, libc's functions do not.
            libc::SYS_ppoll => {
                waiting::give_polled(a as _, b as _);
                real::syscall(number, a, b, c, d, e, f)
            }
            libc::SYS_select | libc::SYS_pselect6 => {
                match waiting::give_selected(fd, [b, c, d].map(|set| set as _)) {
                    Ok(()) => real::syscall(number, a, b, c, d, e, f),
                    Err(err) => fail::<c_int>(err).into(),
                }
            }
            libc::SYS_epoll_ctl => waiting::epoll_ctl(fd, b as _, c as _, d as _).into(),
            libc::SYS_fadvise64 => match content::posix_fadvise(fd, b, c, d as _) {
                0 => 0,
                error => fail::<c_int>(Errno::from_raw_os_error(error)).into(),
            },
            libc::SYS_splice => {
                copying::splice(fd, b as _, c as _, d as _, e as _, f as _) as c_long
            }
            libc::SYS_name_to_handle_at => {
                copying::name_to_handle_at(fd, b as _, c as _, d as _, e as _).into()
            }
            libc::SYS_open_by_handle_at => copying::open_by_handle_at(fd, b as _, c as _).into(),
            libc::SYS_fanotify_mark => {
                copying::fanotify_mark(fd, b as _, c as _, d as _, e as _).into()
            }
            libc::SYS_getcwd => {
                let len = real::syscall(number, a, b, c, d, e, f);
                // The path of a directory outside of the root does not begin with `/`; for a null
                // address, libc would allocate.
                if a == 0 || len > 0 && *(a as *const u8) != b'/' {
                    return len;
                }
                let path = names::getcwd(a as _, b as _);
                // The system call counts the NUL.
                if path.is_null() { -1 } else { CStr::from_ptr(path).count_bytes() as c_long + 1 }
            }
            libc::SYS_sendmsg => waiting::sendmsg(fd, b as _, c as _) as c_long,
            libc::SYS_sendmmsg => waiting::sendmmsg(fd, b as _, c as _, d as _).into(),
            libc::SYS_kcmp => {
                // The kernel would find duplicates of a placeholder equal.
                const FILE: c_long = 0;
                let own = c_long::from(libc::getpid());
                let compared = [(a, d), (b, e)].into_iter().filter(|(who, _)| *who == own);
                for (_, fd) in compared.filter(|_| c == FILE) {
                    let _ = give_pool_files_to_kernel(&[fd as c_int]);
                }
                real::syscall(number, a, b, c, d, e, f)
            }
            libc::SYS_mmap => {
                mapping::mmap(a as _, b as _, c as _, d as _, e as _, f) as c_long
            }
            libc::SYS_munmap => mapping::munmap(a as _, b as _).into(),
            libc::SYS_mremap => {
                mapping::mremap(a as _, b as _, c as _, d as _, e as _) as c_long
            }
            libc::SYS_msync => mapping::msync(a as _, b as _, c as _).into(),
            libc::SYS_mprotect => mapping::mprotect(a as _, b as _, c as _).into(),
            libc::SYS_pkey_mprotect => {
                mapping::pkey_mprotect(a as _, b as _, c as _, d as _).into()
            }
            libc::SYS_madvise => mapping::madvise(a as _, b as _, c as _).into(),
            libc::SYS_remap_file_pages => {
                mapping::remap_file_pages(a as _, b as _, c as _, d as _, e as _).into()
            }
            libc::SYS_open => descriptors::open(a as _, b as _, c as _).into(),
            libc::SYS_openat => descriptors::openat(fd, b as _, c as _, d as _).into(),
            libc::SYS_close => descriptors::close(fd).into(),
            libc::SYS_close_range => {
                descriptors::close_range(a as _, b as _, c as _).into()
            }
            libc::SYS_dup => descriptors::dup(fd).into(),
            libc::SYS_dup2 => descriptors::dup2(fd, b as _).into(),
            libc::SYS_dup3 => descriptors::dup3(fd, b as _, c as _).into(),
            libc::SYS_fcntl => descriptors::fcntl(fd, b as _, c).into(),
            libc::SYS_ioctl => descriptors::ioctl(fd, b as _, c).into(),
            libc::SYS_flock => descriptors::flock(fd, b as _).into(),
            libc::SYS_stat => attributes::stat(a as _, b as _).into(),
            libc::SYS_lstat => attributes::lstat(a as _, b as _).into(),
            libc::SYS_fstat => attributes::fstat(fd, b as _).into(),
            libc::SYS_newfstatat => attributes::fstatat(fd, b as _, c as _, d as _).into(),
            libc::SYS_statx => attributes::statx(fd, b as _, c as _, d as _, e as _).into(),
            libc::SYS_faccessat => attributes::faccessat(fd, b as _, c as _, 0).into(),
            libc::SYS_faccessat2 => attributes::faccessat(fd, b as _, c as _, d as _).into(),
            libc::SYS_fchmod => attributes::fchmod(fd, b as _).into(),
            libc::SYS_fchmodat => attributes::fchmodat(fd, b as _, c as _, 0).into(),
            libc::SYS_fchown => attributes::fchown(fd, b as _, c as _).into(),
            libc::SYS_fchownat => {
                attributes::fchownat(fd, b as _, c as _, d as _, e as _).into()
            }
            // The kernel takes a null path for the descriptor itself; libc does not.
            libc::SYS_utimensat if b == 0 && d == 0 && fd != libc::AT_FDCWD => {
                attributes::futimens(fd, c as _).into()
            }
            libc::SYS_utimensat if b == 0 => real::syscall(number, a, b, c, d, e, f),
            libc::SYS_utimensat => {
                attributes::utimensat(fd, b as _, c as _, d as _).into()
            }
            libc::SYS_getdents64 => listing::getdents64(fd, b as _, c as _) as c_long,
            libc::SYS_mkdirat => names::mkdirat(fd, b as _, c as _).into(),
            libc::SYS_mknodat => names::mknodat(fd, b as _, c as _, d as _).into(),
            libc::SYS_unlinkat => names::unlinkat(fd, b as _, c as _).into(),
            libc::SYS_renameat2 => {
                names::renameat2(fd, b as _, c as _, d as _, e as _).into()
            }
            libc::SYS_linkat => names::linkat(fd, b as _, c as _, d as _, e as _).into(),
            libc::SYS_symlinkat => names::symlinkat(a as _, b as _, c as _).into(),
            libc::SYS_readlinkat => names::readlinkat(fd, b as _, c as _, d as _) as c_long,
            libc::SYS_access => attributes::access(a as _, b as _).into(),
            libc::SYS_chmod => attributes::chmod(a as _, b as _).into(),
            libc::SYS_chown => attributes::chown(a as _, b as _, c as _).into(),
            libc::SYS_lchown => attributes::lchown(a as _, b as _, c as _).into(),
            libc::SYS_utime => attributes::utime(a as _, b as _).into(),
            libc::SYS_utimes => attributes::utimes(a as _, b as _).into(),
            // Without a path the two have different meanings, as with `utimensat`.
            libc::SYS_futimesat if b != 0 => {
                attributes::futimesat(fd, b as _, c as _).into()
            }
            libc::SYS_statfs => attributes::statfs(a as _, b as _).into(),
            libc::SYS_fstatfs => attributes::fstatfs(fd, b as _).into(),
            libc::SYS_truncate => content::truncate(a as _, b).into(),
            libc::SYS_readahead => content::readahead(fd, b, c as _) as c_long,
            libc::SYS_sync_file_range => {
                content::sync_file_range(fd, b, c, d as _).into()
            }
            libc::SYS_creat => descriptors::creat(a as _, b as _).into(),
            libc::SYS_mkdir => names::mkdir(a as _, b as _).into(),
            libc::SYS_mknod => names::mknod(a as _, b as _, c as _).into(),
            libc::SYS_rmdir => names::rmdir(a as _).into(),
            libc::SYS_unlink => names::unlink(a as _).into(),
            libc::SYS_rename => names::rename(a as _, b as _).into(),
            libc::SYS_renameat => names::renameat(fd, b as _, c as _, d as _).into(),
            libc::SYS_link => names::link(a as _, b as _).into(),
            libc::SYS_symlink => names::symlink(a as _, b as _).into(),
            libc::SYS_readlink => names::readlink(a as _, b as _, c as _) as c_long,
            libc::SYS_getxattr => xattr::getxattr(a as _, b as _, c as _, d as _) as c_long,
            libc::SYS_lgetxattr => xattr::lgetxattr(a as _, b as _, c as _, d as _) as c_long,
            libc::SYS_fgetxattr => xattr::fgetxattr(fd, b as _, c as _, d as _) as c_long,
            libc::SYS_setxattr => {
                xattr::setxattr(a as _, b as _, c as _, d as _, e as _).into()
            }
            libc::SYS_lsetxattr => {
                xattr::lsetxattr(a as _, b as _, c as _, d as _, e as _).into()
            }
            libc::SYS_fsetxattr => {
                xattr::fsetxattr(fd, b as _, c as _, d as _, e as _).into()
            }
            libc::SYS_listxattr => xattr::listxattr(a as _, b as _, c as _) as c_long,
            libc::SYS_llistxattr => xattr::llistxattr(a as _, b as _, c as _) as c_long,
            libc::SYS_flistxattr => xattr::flistxattr(fd, b as _, c as _) as c_long,
            libc::SYS_removexattr => xattr::removexattr(a as _, b as _).into(),
            libc::SYS_lremovexattr => xattr::lremovexattr(a as _, b as _).into(),
            libc::SYS_fremovexattr => xattr::fremovexattr(fd, b as _).into(),
            libc::SYS_chdir => names::chdir(a as _).into(),
            libc::SYS_fchdir => names::fchdir(fd).into(),
            libc::SYS_execve => exec::execve(a as _, b as _, c as _).into(),
            libc::SYS_execveat => {
                exec::execveat(fd, b as _, c as _, d as _, e as _).into()
            }
            libc::SYS_fork | libc::SYS_vfork => fork::fork().into(),
            libc::SYS_clone | libc::SYS_clone3 => {
                // If the arguments cannot be read, the kernel refuses the call.
                let flags = match number {
                    libc::SYS_clone => a,
                    _ => memory::load(a as *const i64).unwrap_or(0),
                };
                let shares_memory = flags & i64::from(libc::CLONE_VM) != 0;
                fork::before_thread(flags as u64);
                fork::before_clone(flags as u64);
                let child = real::syscall(number, a, b, c, d, e, f);
                if child == 0 && !shares_memory {
                    serve_no_more(flags as u64);
                } else {
                    fork::after_clone(flags as u64);
                }
                child
            }
            libc::SYS_exit_group => {
                exit::leave();
                real::syscall(number, a, b, c, d, e, f)
            }
            libc::SYS_umask => credentials::umask(a as _).into(),
            libc::SYS_prctl => credentials::prctl(fd, b as _, c as _, d as _, e as _).into(),
            libc::SYS_setrlimit => credentials::setrlimit(a as _, b as _).into(),
            libc::SYS_prlimit64 => credentials::prlimit(fd, b as _, c as _, d as _).into(),
            // The system calls change this thread only; libc's functions change all threads.
            libc::SYS_setuid | libc::SYS_setgid | libc::SYS_setreuid | libc::SYS_setregid
            | libc::SYS_setresuid | libc::SYS_setresgid | libc::SYS_setfsuid
            | libc::SYS_setfsgid | libc::SYS_setgroups | libc::SYS_capset => {
                credentials::by_number(number, [a, b, c, d, e, f])
            }
            libc::SYS_chroot => credentials::chroot(a as _).into(),
            libc::SYS_pivot_root => credentials::pivot_root(a as _, b as _).into(),
            libc::SYS_unshare => credentials::unshare(a as _).into(),
            libc::SYS_setns => credentials::setns(fd, b as _).into(),
            libc::SYS_mount => {
                credentials::mount(a as _, b as _, c as _, d as _, e as _).into()
            }
            libc::SYS_umount2 => credentials::umount2(a as _, b as _).into(),
            libc::SYS_move_mount => {
                credentials::move_mount(fd, b as _, c as _, d as _, e as _).into()
            }
            libc::SYS_mount_setattr => {
                credentials::mount_setattr(fd, b as _, c as _, d as _, e as _).into()
            }
            libc::SYS_fsconfig => {
                credentials::fsconfig(fd, b as _, c as _, d as _, e as _).into()
            }
            libc::SYS_landlock_restrict_self => {
                restricted(real::syscall(number, a, b, c, d, e, f))
            }
            // The first two operations set filters, the others only query.
            libc::SYS_seccomp if a <= 1 => restricted(real::syscall(number, a, b, c, d, e, f)),
            libc::SYS_io_submit => requests::submit(a, b, c as _),
            libc::SYS_io_uring_setup => {
                // The program fills the ring itself, so the library cannot see its descriptors
                // (requests-Q3).
                fork::leave_table_to_kernel();
                real::syscall(number, a, b, c, d, e, f)
            }
            _ if concerns_no_descriptor(number) => {
                real::syscall(number, a, b, c, d, e, f)
            }
            _ if takes_no_descriptor(number) => {
                before_fd();
                real::syscall(number, a, b, c, d, e, f)
            }
            _ => {
                before_fd();
                if number == libc::SYS_landlock_add_rule {
                    give_landlocked(c);
                }
                for &place in places_of_descriptors(number) {
                    if let Ok(fd) = c_int::try_from([a, b, c, d, e, f][place]) {
                        direct::offset_known(fd);
                        let _ = give_pool_files_to_kernel(&[fd]);
                    }
                }
                real::syscall(number, a, b, c, d, e, f)
            }
        }
    }
}
