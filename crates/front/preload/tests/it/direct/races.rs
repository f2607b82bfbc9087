//! Another process truncates files and makes holes in them while this one copies. Neither process
//! dies, and every byte that is read was in the file before, or is zero if a hole may have been
//! there.

#![allow(unsafe_code)]

use rng::Rng;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

const SIZE: usize = 3 << 20;
const CALLS: u64 = 15_000;

/// Returns the value of a byte of the file outside of holes.
fn pattern(offset: usize) -> u8 {
    (offset / 512 % 255) as u8 + 1
}

/// Runs both processes on a file in a directory, and returns what was seen.
pub fn run(dir: &Path) {
    let path = CString::new(dir.join("raced").as_os_str().as_bytes()).unwrap();
    let whole: Vec<u8> = (0..SIZE).map(pattern).collect();
    std::fs::write(dir.join("raced"), &whole).unwrap();
    // SAFETY: system calls on a path and on buffers of the lengths that are passed.
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
        // After the disturbance, the file has what is written to it.
        assert_eq!(libc::pwrite(fd, whole.as_ptr().cast(), SIZE, 0), SIZE as isize);
        assert_eq!(libc::ftruncate(fd, SIZE as i64), 0);
    }
    assert!(std::fs::read(dir.join("raced")).unwrap() == whole);
    println!("\n# done");
}

/// Is the other process: changes the size again and again, makes holes, writes by the kernel.
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
