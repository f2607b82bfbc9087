//! `--buffers`: fewer changes of protection, and a flush that covers the content of the buffers.

use super::served::{BLOCK, Served, keepstone};

/// Number of pages that does not fill two buffers of 1 MiB to their high mark.
const FEW: u64 = 128;

/// Number of pages that is more than the buffers hold.
const MANY: u64 = 512;

#[test]
fn buffers_collect_writes_until_a_flush() {
    let changes = |pages: u64, options: &[&str]| {
        let served = Served::start("/dev/shm", &[&["--protect", "pages"], options].concat());
        let mut client = served.client();
        for page in (0..pages).rev() {
            client.write(page, &[page as u8; BLOCK]).unwrap();
        }
        let before = served.status()["exports"][0]["device"]["windows_opened"].as_u64().unwrap();
        client.flush().unwrap();
        let device = &served.status()["exports"][0]["device"];
        assert_eq!(device["writes"], pages);
        for page in 0..pages {
            assert_eq!(client.read(page).unwrap(), [page as u8; BLOCK]);
        }
        [before, device["windows_opened"].as_u64().unwrap()]
    };
    let size = ["--buffers", "2", "--buffer-size", "1M"];
    assert_eq!(changes(FEW, &[]), [FEW, FEW]);
    assert_eq!(changes(FEW, &size), [0, 2], "one for the pages of each buffer");
    assert_eq!(changes(FEW, &[&size[..], &["--buffer-unsorted"]].concat()), [0, FEW]);
    let [early, all] = changes(MANY, &[&size[..], &["--buffer-marks", "50,10"]].concat());
    assert!(0 < early && all < MANY / 2, "{early} without a flush, {all} with it");
}

#[test]
fn buffers_that_cannot_be_are_refused() {
    for options in [
        &["--buffers", "2", "--workers", "2"][..],
        &["--buffers", "0"],
        &["--buffers", "2", "--buffer-marks", "30,70"],
        &["--buffers", "2", "--buffer-marks", "130,70"],
        &["--buffer-size", "1M"],
        &["--buffers", "2", "--atomic", "8192", "--create", "--size", "1M"],
    ] {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let (pool, socket) = (dir.path().join("disk"), dir.path().join("socket"));
        let [pool, socket] = [&pool, &socket].map(|path| path.to_str().unwrap());
        let output = keepstone(&[&["bdev", "serve", pool, "--socket", socket], options].concat());
        assert!(!output.status.success(), "{options:?}");
    }
}
