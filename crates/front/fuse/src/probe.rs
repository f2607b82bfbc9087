//! Finds out what the running kernel's FUSE offers.

use std::io;
use std::sync::{Arc, Mutex};

use fuser::{KernelConfig, Request};
use serde::Serialize;

use crate::mount::{self, MountAccess, MountOptions};

/// The offer of the kernel in `FUSE_INIT`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct KernelFuse {
    /// Protocol version, such as `7.45`.
    pub abi: String,
    /// Names of the capabilities offered, such as `FUSE_POSIX_ACL`.
    pub capabilities: Vec<String>,
}

struct Probe(Arc<Mutex<KernelFuse>>);

impl fuser::Filesystem for Probe {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let mut found = self.0.lock().expect("no holder panics");
        found.abi = config.kernel_abi().to_string();
        let names = config.capabilities().iter_names();
        found.capabilities = names.map(|(name, _)| name.to_owned()).collect();
        Ok(())
    }
}

/// Mounts an empty file system on a private directory for a moment and returns the kernel's offer.
/// Fails if this process may not mount, with the reason.
pub fn probe_kernel() -> io::Result<KernelFuse> {
    let dir = tempfile::Builder::new().prefix("keepstone-probe-").tempdir()?;
    let found = Arc::new(Mutex::new(KernelFuse::default()));
    let options = MountOptions {
        source: "keepstone-probe".into(),
        access: MountAccess::Owner,
        flags: mount::MountFlags::NOSUID | mount::MountFlags::NODEV,
        threads: 1,
    };
    let session = mount::attach(Probe(found.clone()), dir.path(), 0o40000, &options)?;
    let unmounted = mount::unmount(dir.path(), true);
    drop(session);
    unmounted?;
    let found = found.lock().expect("no holder panics").clone();
    Ok(found)
}
