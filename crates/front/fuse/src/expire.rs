//! Makes the kernel ask again for names, without dropping their inodes: `FUSE_EXPIRE_ONLY`, which
//! `fuser` does not know.

use std::ffi::OsStr;
use std::io::IoSlice;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;

use fuser::INodeNo;
use rustix::io::Errno;

/// `FUSE_NOTIFY_INVAL_ENTRY` of the kernel's `fuse.h`.
const INVAL_ENTRY: u32 = 3;
/// `FUSE_EXPIRE_ONLY`, one of its flags.
const EXPIRE_ONLY: u32 = 1;
/// First Linux that knows the flag, and whose direct writes drop pages that others have of the
/// file.
const SINCE: (u32, u32) = (6, 6);
/// Bytes of `fuse_out_header` and of `fuse_notify_inval_entry_out`.
const HEADER: u32 = 16 + 16;

/// A connection by which names of one mount are made to expire.
pub(crate) struct Expirer(OwnedFd);

impl Expirer {
    /// Makes it for the mount whose requests come from this device; `None` if the kernel cannot do
    /// that.
    pub fn new(device: OwnedFd) -> Option<Self> {
        is_known().then_some(Self(device))
    }

    /// Makes the kernel ask again for a name that it knows, or knows to be absent.
    pub fn expire(&self, parent: INodeNo, name: &OsStr) {
        let len = HEADER + name.len() as u32 + 1;
        let mut head = [0; HEADER as usize];
        head[0..4].copy_from_slice(&len.to_ne_bytes());
        head[4..8].copy_from_slice(&INVAL_ENTRY.to_ne_bytes());
        head[16..24].copy_from_slice(&parent.0.to_ne_bytes());
        head[24..28].copy_from_slice(&(name.len() as u32).to_ne_bytes());
        head[28..32].copy_from_slice(&EXPIRE_ONLY.to_ne_bytes());
        let parts = [&head[..], name.as_bytes(), &[0]].map(IoSlice::new);
        match rustix::io::writev(&self.0, &parts) {
            // The kernel does not know the name.
            Ok(_) | Err(Errno::NOENT) => {}
            Err(err) => tracing::error!("the kernel may keep a name in {parent}: {err}"),
        }
    }
}

/// Whether this kernel can do that, and so cache for a mount whose pool others may use any time.
pub fn is_known() -> bool {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    version(&release).is_some_and(|version| version >= SINCE)
}

/// Returns the first two numbers of a release.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_begin_with_two_numbers() {
        assert_eq!(version("6.18.44-fc-v769"), Some((6, 18)));
        assert_eq!(version("6.1.0-28-amd64"), Some((6, 1)));
        assert_eq!(version("6.2-rc1"), Some((6, 2)));
        assert_eq!(version("unknown"), None);
    }
}
