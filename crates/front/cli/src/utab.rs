//! The table of mount(8), `/run/mount/utab`, by which `umount(8)` finds its helper.
//!
//! `umount DIR` makes the system call at once, without a helper, unless its table has an entry for
//! DIR (libmount, `has_utab_entry`). Then it calls `umount.fuse.keepstone`, or the helper that the
//! entry names. Programs of mount(8) change the table here, because its format is their own.

use std::path::Path;
use std::process::{Command, Stdio};

/// The helper that entries name. Without it no entries are made.
const HELPER: &str = "/sbin/umount.keepstone";

/// Makes the entry of a mount. A failure leaves a mount that `umount(8)` ends without waiting for
/// its server.
pub fn register(pool: &Path, dir: &Path) {
    let mut mount = Command::new("mount");
    mount.args(["--internal-only", "--fake", "-t", "fuse.keepstone", "-o", "uhelper=keepstone"]);
    run(mount.arg("--").arg(pool).arg(dir));
}

/// Removes the entry of a mount, which exists still.
pub fn forget(dir: &Path) {
    run(Command::new("umount").args(["--internal-only", "--fake", "--"]).arg(dir));
}

fn run(command: &mut Command) {
    if !rustix::process::geteuid().is_root() || !Path::new(HELPER).exists() {
        return;
    }
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    if !status.as_ref().is_ok_and(|status| status.success()) {
        tracing::info!("/run/mount/utab: {command:?}: {status:?}");
    }
}
