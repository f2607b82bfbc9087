//! System calls that bypass libc. In a program under `keepstone run`, libc's functions may be
//! interposed by our library, and they set the program's `errno`. `rustix` makes its calls without
//! libc, too. This module is for calls that it lacks, and for descriptors and memory of the
//! program, which may be invalid.

#![allow(unsafe_code)]

use rustix::io::Errno;
use rustix::thread::SecureComputingMode;
use std::ffi::c_long;

/// Makes one system call. Arguments that it does not need are ignored.
///
/// # Safety
/// 1. The arguments are what the call `number` takes; pointers are valid as it demands.
/// 2. The call does not take away memory or descriptors that Rust code still owns.
#[inline]
pub unsafe fn syscall(number: c_long, args: [usize; 5]) -> Result<usize, Errno> {
    let [a, b, c, d, e] = args;
    let ret: isize;
    // SAFETY: the convention of the kernel: rcx and r11 are clobbered; memory by 1.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") number as isize => ret,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") 0,
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    if ret < 0 { Err(Errno::from_raw_os_error(-ret as i32)) } else { Ok(ret as usize) }
}

/// Whether the calling thread has a filter of system calls (seccomp). The filters of systemd's
/// units end a process for calls that they do not list, so a call that can be done without is left
/// out.
pub fn are_filtered() -> bool {
    let mode = rustix::thread::secure_computing_mode();
    mode.is_ok_and(|mode| mode != SecureComputingMode::Disabled)
}

/// Makes the call `number` fail with `EPERM` in the calling thread, and in threads and processes
/// that it starts. For tests of programs that are confined (seccomp) after their start.
///
/// # Panics
/// If the kernel has no such filters.
#[cfg(feature = "forbid")]
pub fn forbid(number: c_long) {
    let op = |code: u32, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
    let is_it = op(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, number as u32);
    let mut filter = [
        op(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0),
        libc::sock_filter { jf: 1, ..is_it },
        op(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        op(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: a valid filter program, which concerns this thread only.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let mode = libc::SECCOMP_MODE_FILTER;
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const program), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::getpid;

    #[test]
    fn results_and_errors() {
        // `getpid` and `close` of x86-64. SAFETY: the first takes no arguments, the second a number
        // that is never a descriptor.
        let (pid, closed) = unsafe { (syscall(39, [0; 5]), syscall(3, [usize::MAX, 0, 0, 0, 0])) };
        assert_eq!(pid, Ok(getpid().as_raw_nonzero().get() as usize));
        assert_eq!(closed, Err(Errno::BADF));
    }
}
