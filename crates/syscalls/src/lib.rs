//! System calls past libc. Inside a program that is served, libc's functions are those that the program calls: they
//! may be ours, and they set its `errno`. What `rustix` has, it makes that way already; this is for what it has not,
//! and for descriptors and memory of the program's, of which nobody knows whether they are there.

#![allow(unsafe_code)]

use rustix::io::Errno;
use std::ffi::c_long;

/// One system call; what is not needed of `args` is ignored.
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

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::getpid;

    #[test]
    fn results_and_errors() {
        // `getpid` and `close` of x86-64.
        // SAFETY: the first takes nothing, the second a number that is never a descriptor.
        let (pid, closed) = unsafe { (syscall(39, [0; 5]), syscall(3, [usize::MAX, 0, 0, 0, 0])) };
        assert_eq!(pid, Ok(getpid().as_raw_nonzero().get() as usize));
        assert_eq!(closed, Err(Errno::BADF));
    }
}
