//! The number of requests that a write is. Each request is atomic, a call of several is not
//! (docs/SEMANTICS.md).

use super::Mount;
use fuse::CountedOp;
use rustix::fs::{Advice, OFlags, fadvise};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};

const PAGE: usize = 4096;
/// Pages of the file.
const PAGES: usize = 300;
/// The most bytes in a request.
const REQUEST: usize = 256 * PAGE;

/// A file on a mount, with content that its kernel may have.
struct Written<'m> {
    mount: &'m Mount,
    file: File,
}

impl<'m> Written<'m> {
    fn new(mount: &'m Mount, flags: OFlags) -> Self {
        std::fs::write(mount.path("file"), vec![1; PAGES * PAGE]).unwrap();
        let mut options = OpenOptions::new();
        options.read(true).write(true).custom_flags(flags.bits() as i32);
        Self { mount, file: options.open(mount.path("file")).unwrap() }
    }

    /// Makes the kernel drop the pages, and returns the number of requests of a write.
    fn requests_of_dropped(&self, offset: usize, len: usize) -> u64 {
        fadvise(&self.file, 0, None, Advice::DontNeed).unwrap();
        self.requests(offset, len)
    }

    /// As `requests_of_dropped`, after a read of all pages.
    fn requests_of_kept(&self, offset: usize, len: usize) -> u64 {
        self.file.read_exact_at(&mut vec![0; PAGES * PAGE], 0).unwrap();
        self.requests(offset, len)
    }

    fn requests(&self, offset: usize, len: usize) -> u64 {
        let before = self.mount.counters.calls(CountedOp::Write);
        assert_eq!(self.file.write_at(&vec![2; len], offset as u64).unwrap(), len);
        self.mount.counters.calls(CountedOp::Write) - before
    }
}

#[test]
fn a_write_is_one_request_if_it_begins_at_a_page_or_in_one_that_the_kernel_has() {
    for mount in [Mount::new(true), Mount::alone()] {
        let written = Written::new(&mount, OFlags::empty());
        for len in [300, PAGE, 3 * PAGE + 100, REQUEST] {
            assert_eq!(written.requests_of_dropped(PAGE, len), 1, "{len}");
            assert_eq!(written.requests_of_kept(PAGE, len), 1, "{len}");
        }
        for len in [300, PAGE, 3 * PAGE + 100] {
            assert_eq!(written.requests_of_kept(PAGE - 100, len), 1, "{len}");
            // The end of the first page, and the rest: two with Linux 6.1 to 6.18.
            let split = written.requests_of_dropped(PAGE - 100, len);
            assert!((1..=2).contains(&split), "{split} of {len}");
        }
        // Within a page.
        assert_eq!(written.requests_of_dropped(PAGE + 100, 300), 1);
    }
}

#[test]
fn a_write_past_the_kernels_pages_is_one_request() {
    let (direct, exclusive) = (OFlags::DIRECT, Mount::new(true));
    for (mount, flags) in [(&Mount::shared(), OFlags::empty()), (&exclusive, direct)] {
        let written = Written::new(mount, flags);
        // The pages of the program's buffer count, which need not begin at a page.
        for (offset, len) in [(PAGE - 100, 300), (PAGE - 100, 3 * PAGE), (100, REQUEST - PAGE)] {
            assert_eq!(written.requests_of_dropped(offset, len), 1, "{offset} {len}");
        }
    }
}
