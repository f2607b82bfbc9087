//! Set-user-ID of a file that also has a capability.

use std::fs;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _};

use rustix::fs::{XattrFlags, getxattr, setxattr};

use crate::mount::Mount;

/// A capability of version 2, with one bit permitted.
const CAPABILITY: [u8; 20] = [1, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

#[test]
fn a_write_by_root_takes_the_capability_alone() {
    for mount in [Mount::new(true), Mount::alone(), Mount::shared()] {
        let path = mount.path("program");
        fs::write(&path, "content").unwrap();
        let mode = || fs::metadata(&path).unwrap().mode() & 0o7777;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o6755)).unwrap();
        for _ in 0..2 {
            setxattr(&path, "security.capability", &CAPABILITY, XattrFlags::empty()).unwrap();
            let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
            file.write_all_at(b"x", 0).unwrap();
            assert_eq!(mode(), 0o6755);
            assert!(getxattr(&path, "security.capability", &mut [0; 32]).is_err());
        }
        // A change to the same owner clears the bits.
        std::os::unix::fs::chown(&path, None, None).unwrap();
        assert_eq!(mode(), 0o755);
    }
}
