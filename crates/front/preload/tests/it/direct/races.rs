//! Another process cuts files off and makes holes in them while we copy: nobody is killed, and every
//! byte that is read is one that was there, or zero where a hole may have been.

#![allow(unsafe_code)]

use rng::Rng;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

const SIZE: usize = 3 << 20;
const CALLS: u64 = 15_000;

/// What every byte of the file is, where it is not a hole.
fn pattern(offset: usize) -> u8 {
    (offset / 512 % 255) as u8 + 1
}

/// Runs both sides on a file in a directory, and says what was seen.
pub fn run(dir: &Path) {
    let path = CString::new(dir.join("raced").as_os_str().as_bytes()).unwrap();
    let whole: Vec<u8> = (0..SIZE).map(pattern).collect();
    std::fs::write(dir.join("raced"), &whole).unwrap();
    // SAFETY: system calls on a path and on buffers of the lengths that are said.
    unsafe {
        let fd = libc::open(path.as_ptr(), libc::O_RDWR);
        assert!(fd >= 0);
        let other = libc::fork();
        if other == 0 {
            disturb(&path, &whole);
        }
        let mut rng = Rng::new(9);
        let mut buf = vec![0u8; 70_000];
        for call in 0..CALLS {
            let offset = rng.below(SIZE as u64) as usize;
            let len = rng.below(if call % 8 == 0 { 70_000 } else { 5000 }) as usize;
            if call % 3 == 0 {
                let data = &whole[offset..(offset + len).min(SIZE)];
                let n = libc::pwrite(fd, data.as_ptr().cast(), data.len(), offset as i64);
                assert_eq!(n, data.len() as isize);
            } else {
                let n = libc::pread(fd, buf.as_mut_ptr().cast(), len, offset as i64);
                assert!((0..=len as isize).contains(&n));
                for (i, byte) in buf[..n as usize].iter().enumerate() {
                    assert!([0, pattern(offset + i)].contains(byte), "byte {}", offset + i);
                }
            }
        }
        libc::kill(other, libc::SIGKILL);
        let mut status = 0;
        assert_eq!(libc::waitpid(other, &mut status, 0), other);
        assert!(libc::WIFSIGNALED(status), "the other process has failed");
        // Undisturbed again, what was written is there.
        assert_eq!(libc::pwrite(fd, whole.as_ptr().cast(), SIZE, 0), SIZE as isize);
        assert_eq!(libc::ftruncate(fd, SIZE as i64), 0);
    }
    assert!(std::fs::read(dir.join("raced")).unwrap() == whole);
    println!("\n# done");
}

/// The other process: changes the size again and again, makes holes, writes by the kernel.
fn disturb(path: &CString, whole: &[u8]) -> ! {
    let mut rng = Rng::new(10);
    // SAFETY: as in `run`.
    unsafe {
        let fd = libc::open(path.as_ptr(), libc::O_RDWR);
        loop {
            let at = rng.below(SIZE as u64) as i64;
            match rng.below(4) {
                0 => libc::truncate(path.as_ptr(), at),
                1 => {
                    let mode = libc::FALLOC_FL_KEEP_SIZE | libc::FALLOC_FL_PUNCH_HOLE;
                    libc::fallocate(fd, mode, at & !4095, 16_384)
                }
                _ => libc::pwrite(fd, whole.as_ptr().cast(), SIZE, 0) as i32,
            };
        }
    }
}
