//! Translates requests of the kernel to requests to a device.

use libublk::sys;
use pmbd::{BlockDevice, Durability, Error, TimedRequest, Zeroing};

use crate::bdev::devices::errno;

/// Bytes of a sector, the kernel's unit for any block size.
const SECTOR_BYTES: u64 = 512;

/// Number of low bits in the first word of a request that hold the operation. The other bits hold
/// its flags.
const OPERATION_BITS: u32 = 8;

/// Returns the kind of a request whose time is recorded.
pub fn timed(request: &sys::ublksrv_io_desc) -> Option<TimedRequest> {
    match operation(request) {
        sys::UBLK_IO_OP_READ => Some(TimedRequest::Read),
        sys::UBLK_IO_OP_WRITE => Some(TimedRequest::Write),
        sys::UBLK_IO_OP_FLUSH => Some(TimedRequest::Flush),
        sys::UBLK_IO_OP_DISCARD => Some(TimedRequest::Discard),
        sys::UBLK_IO_OP_WRITE_ZEROES => Some(TimedRequest::Zero),
        _ => None,
    }
}

fn operation(request: &sys::ublksrv_io_desc) -> u32 {
    request.op_flags & ((1 << OPERATION_BITS) - 1)
}

/// Serves `request`, with its payload at the start of `content`. Returns the answer for the kernel:
/// the number of bytes, or a negative error number.
pub fn answer(device: &dyn BlockDevice, request: &sys::ublksrv_io_desc, content: &mut [u8]) -> i32 {
    match serve(device, request, content) {
        Ok(len) => len,
        Err(err) => -errno(&err),
    }
}

fn serve(
    device: &dyn BlockDevice,
    request: &sys::ublksrv_io_desc,
    content: &mut [u8],
) -> Result<i32, Error> {
    let off = request.start_sector.saturating_mul(SECTOR_BYTES);
    let len = u64::from(request.nr_sectors) * SECTOR_BYTES;
    let has = |flag: u32| request.op_flags & flag != 0;
    let durability = match has(sys::UBLK_IO_F_FUA) {
        true => Durability::Now,
        false => Durability::AtBarrier,
    };
    match operation(request) {
        sys::UBLK_IO_OP_READ => device.read(off, part(content, len)?)?,
        sys::UBLK_IO_OP_WRITE => device.write(off, part(content, len)?, durability)?,
        sys::UBLK_IO_OP_FLUSH => device.barrier()?,
        sys::UBLK_IO_OP_DISCARD => device.discard(off, len)?,
        sys::UBLK_IO_OP_WRITE_ZEROES => {
            let keep_space = has(sys::UBLK_IO_F_NOUNMAP);
            device.write_zeroes(off, len, Zeroing { keep_space, only_fast: false }, durability)?;
        }
        _ => return Err(Error::NotSupported),
    }
    // For requests without payload the kernel only checks for failure.
    Ok(len.try_into().unwrap_or(0))
}

/// Returns the first `len` bytes. The kernel does not ask for more than the limits that it was
/// given.
fn part(content: &mut [u8], len: u64) -> Result<&mut [u8], Error> {
    let len = usize::try_from(len).map_err(|_| Error::NotSupported)?;
    content.get_mut(..len).ok_or(Error::NotSupported)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    const SIZE: u64 = 1 << 20;

    fn device(read_only: bool) -> (tempfile::TempDir, Arc<dyn BlockDevice>) {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("disk");
        pmbd::create(&path, SIZE, None).expect("a pool");
        let options = pmbd::Options { read_only, ..pmbd::Options::default() };
        let device = pmbd::open(&path, &options).expect("a device");
        (dir, device)
    }

    fn request(op_flags: u32, start_sector: u64, nr_sectors: u32) -> sys::ublksrv_io_desc {
        sys::ublksrv_io_desc { op_flags, start_sector, nr_sectors, addr: 0 }
    }

    #[test]
    fn content_goes_where_the_kernel_says() {
        let (_dir, device) = device(false);
        let mut content = vec![7; 8192];
        let ask = |op, start, sectors, content: &mut [u8]| {
            answer(&*device, &request(op, start, sectors), content)
        };
        assert_eq!(ask(sys::UBLK_IO_OP_WRITE, 8, 8, &mut content), 4096);
        content.fill(1);
        assert_eq!(ask(sys::UBLK_IO_OP_READ, 7, 10, &mut content), 5120);
        assert!(content[..512].iter().chain(&content[4608..5120]).all(|byte| *byte == 0));
        assert!(content[512..4608].iter().all(|byte| *byte == 7));
        assert!(content[5120..].iter().all(|byte| *byte == 1), "beyond the request");
    }

    #[test]
    fn zeroing_and_discarding_need_no_content() {
        let (_dir, device) = device(false);
        for op in [
            sys::UBLK_IO_OP_WRITE_ZEROES,
            sys::UBLK_IO_OP_WRITE_ZEROES | sys::UBLK_IO_F_NOUNMAP,
            sys::UBLK_IO_OP_DISCARD,
        ] {
            device.write(0, &[7; 8192], Durability::AtBarrier).expect("room");
            assert_eq!(answer(&*device, &request(op, 8, 8), &mut []), 4096);
            let mut back = [1; 8192];
            device.read(0, &mut back).expect("content");
            assert!(back[..4096].iter().all(|byte| *byte == 7));
            let zeros = back[4096..].iter().all(|byte| *byte == 0);
            assert!(zeros || op == sys::UBLK_IO_OP_DISCARD, "{op:#x}");
        }
    }

    #[test]
    fn flushes_and_forced_unit_access_reach_the_device() {
        let (_dir, device) = device(false);
        assert_eq!(answer(&*device, &request(sys::UBLK_IO_OP_FLUSH, 0, 0), &mut []), 0);
        assert_eq!(device.stats().barriers, 1);
        let forced = request(sys::UBLK_IO_OP_WRITE | sys::UBLK_IO_F_FUA, 0, 1);
        assert_eq!(answer(&*device, &forced, &mut [7; 512]), 512);
        assert_eq!(device.stats().fua_writes, 1);
    }

    #[test]
    fn nothing_that_a_kernel_may_send_does_harm() {
        let (_dir, device) = device(true);
        let ask =
            |op, start, sectors| answer(&*device, &request(op, start, sectors), &mut [0; 4096]);
        assert_eq!(ask(sys::UBLK_IO_OP_WRITE, 0, 8), -libc::EROFS);
        assert_eq!(ask(sys::UBLK_IO_OP_READ, SIZE / SECTOR_BYTES, 1), -libc::ENOSPC);
        assert_eq!(ask(sys::UBLK_IO_OP_READ, u64::MAX, 8), -libc::ENOSPC);
        assert_eq!(ask(sys::UBLK_IO_OP_READ, 0, u32::MAX), -libc::EOPNOTSUPP);
        assert_eq!(ask(sys::UBLK_IO_OP_ZONE_OPEN, 0, 8), -libc::EOPNOTSUPP);
    }
}
