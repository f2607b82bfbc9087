//! Bytes that are lent in the file's mapping (Chell §6).

#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_int, c_void};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

const FUSE_MAGIC: u64 = 0x6573_5546;

type Get = unsafe extern "C" fn(c_int, usize, i64, *mut *const c_void) -> isize;
type Put = unsafe extern "C" fn(*const c_void) -> c_int;

/// Finds a function of the library under which this process runs.
fn symbol(name: &CStr) -> *mut c_void {
    // SAFETY: a string.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    assert!(!found.is_null(), "{name:?} is not exported");
    found
}

fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap()
}

/// Borrows bytes, writes meanwhile, closes, gives the bytes back.
pub fn run(dir: &Path) {
    const LEN: usize = 5 << 20;
    let content: Vec<u8> = (0..LEN).map(|i| (i / 100) as u8).collect();
    std::fs::write(dir.join("lent"), &content).unwrap();
    std::fs::File::create(dir.join("sparse")).unwrap().set_len(LEN as u64).unwrap();
    let path = |name: &str| CString::new(dir.join(name).as_os_str().as_bytes()).unwrap();
    // SAFETY: the functions have these types in include/keepstone.h; buffers are read only while
    // they are lent.
    unsafe {
        let get: Get = std::mem::transmute::<*mut c_void, Get>(symbol(c"ks_fd_get_read_buf"));
        let put: Put = std::mem::transmute::<*mut c_void, Put>(symbol(c"ks_fd_put_read_buf"));
        let fd = libc::open(path("lent").as_ptr(), libc::O_RDWR);
        let mut buf = std::ptr::null();

        // Up to the end of a chunk, and to the end of the file.
        assert_eq!(get(fd, 9000, (2 << 20) - 5000, &mut buf), 5000);
        let lent = std::slice::from_raw_parts(buf.cast::<u8>(), 5000);
        assert!(lent == &content[(2 << 20) - 5000..2 << 20]);
        let mut tail = std::ptr::null();
        assert_eq!(get(fd, 9000, LEN as i64 - 100, &mut tail), 100);
        assert_eq!(put(tail), 0);
        assert_eq!(get(fd, 9000, LEN as i64, &mut tail), 0);

        // Lent bytes show what is written; the descriptor may be closed.
        assert_eq!(libc::pwrite(fd, [7u8; 10].as_ptr().cast(), 10, (2 << 20) - 5000), 10);
        assert_eq!(lent[..10], [7; 10]);
        assert_eq!(libc::close(fd), 0);
        assert!(lent[10..] == content[(2 << 20) - 4990..2 << 20]);
        assert_eq!(put(buf), 0);
        assert_eq!((put(buf), errno()), (-1, libc::EINVAL));

        // Holes stay holes (DAX lends zeros for them, tmpfs would have to allocate), except for
        // blocks that a cache has of them; a descriptor that cannot be read is refused.
        let fd = libc::open(path("sparse").as_ptr(), libc::O_RDONLY);
        match get(fd, 4096, 0, &mut buf) {
            -1 => assert_eq!(errno(), libc::ENOTSUP),
            len => {
                assert_eq!(std::slice::from_raw_parts(buf.cast::<u8>(), len as usize), [0; 4096])
            }
        }
        let blocks = std::os::linux::fs::MetadataExt::st_blocks(
            &std::fs::metadata(dir.join("sparse")).unwrap(),
        );
        let is_cache = rustix::fs::statfs(dir).unwrap().f_type as u64 == FUSE_MAGIC;
        assert!(blocks == 0 || is_cache, "{blocks}");
        let fd = libc::open(path("lent").as_ptr(), libc::O_WRONLY);
        // In a cache, a descriptor for writing only is the kernel's.
        let refused = if is_cache { libc::ENOTSUP } else { libc::EBADF };
        assert_eq!((get(fd, 4096, 0, &mut buf), errno()), (-1, refused));
        assert_eq!((get(0, 4096, 0, &mut buf), errno()), (-1, libc::ENOTSUP));
    }
    println!("\n# done");
}
