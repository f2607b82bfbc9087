//! Asking the kernel about single mounts (`statmount(2)`, `listmount(2)`, Linux 6.8): this takes a
//! twentieth of the time to read the table. All functions return `None` if the kernel does not know
//! the calls, or a sandbox may forbid them.

#![allow(unsafe_code)]

use crate::table::{self, FS_TYPE};
use crate::{MountState, ST_NOSYMFOLLOW};
use linux_raw_sys::general as linux;
use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags, statx};
use std::ffi::CString;
use std::mem::offset_of;

/// Bytes of an answer of `statmount`: its fixed part, two paths, and options.
const ANSWER: usize = size_of::<linux::statmount>() + 2 * libc::PATH_MAX as usize + 1024;
/// Fields that are requested for every mount.
const STATE: u32 =
    linux::STATMOUNT_SB_BASIC | linux::STATMOUNT_MNT_BASIC | linux::STATMOUNT_MNT_POINT;
/// Fields that identify a mount (Linux 6.13).
const IDENTITY: u32 = linux::STATMOUNT_MNT_ROOT
    | linux::STATMOUNT_FS_TYPE
    | linux::STATMOUNT_FS_SUBTYPE
    | linux::STATMOUNT_SB_SOURCE
    | linux::STATMOUNT_MNT_OPTS;
/// With this number of mounts below a pool's mount or more, the table is read instead.
const NESTED: usize = 16;

/// Returns the number of the newest mount of this process's namespace: while it is the same, no
/// mount has been added. Numbers are never used again (`mnt_id` of `statmount`).
pub fn newest_mount() -> Option<u64> {
    let mut newest = [0];
    // If the newest mount is gone, or another namespace is entered, the newest number is another
    // one.
    (list(linux::LSMT_ROOT as u64, &mut newest, linux::LISTMOUNT_REVERSE)? == 1)
        .then_some(newest[0])
}

/// The identity of a mount.
pub(crate) struct Identified {
    /// The pool, as the mount names it.
    pub source: Vec<u8>,
    /// The user who has mounted it, if it is a FUSE mount.
    pub user: Option<u32>,
    /// The state, which may change.
    pub state: MountState,
}

/// Returns the flags of the mount of `device` at the path `dir`, and the mounts below it, if `dir`
/// leads to its root.
pub fn mount_state(dir: &[u8], device: (u32, u32)) -> Option<MountState> {
    let mount = mount_at(dir, device)?;
    state(mount, &MountAnswer::about(mount, STATE)?)
}

/// Returns the identity and state of a mount of a whole pool.
pub(crate) fn identify(dir: &[u8], device: (u32, u32)) -> Option<Identified> {
    let mount = mount_at(dir, device)?;
    let answer = MountAnswer::about(mount, STATE | IDENTITY)?;
    let text = |at: usize| answer.text(at);
    let fs_type = [
        text(offset_of!(linux::statmount, fs_type)),
        text(offset_of!(linux::statmount, fs_subtype)),
    ];
    let is_pool = fs_type.join(&b'.') == FS_TYPE.as_bytes();
    let is_whole = text(offset_of!(linux::statmount, mnt_root)) == b"/";
    let user = table::user(&text(offset_of!(linux::statmount, mnt_opts)));
    let source = text(offset_of!(linux::statmount, sb_source));
    let state = state(mount, &answer)?;
    (is_pool && is_whole).then_some(Identified { source, user, state })
}

/// Returns the number of the mount of `device` whose root is at the path `dir`.
fn mount_at(dir: &[u8], device: (u32, u32)) -> Option<u64> {
    let id = StatxFlags::from_bits_retain(linux::STATX_MNT_ID_UNIQUE);
    // These flags ask nothing of the mount's server.
    let flags = AtFlags::from_bits_retain(linux::AT_STATX_DONT_SYNC) | AtFlags::NO_AUTOMOUNT;
    let root = statx(CWD, CString::new(dir).ok()?, flags, id).ok()?;
    let is_root = root.stx_attributes.contains(StatxAttributes::MOUNT_ROOT);
    let is_it = is_root
        && root.stx_mask & linux::STATX_MNT_ID_UNIQUE != 0
        && (root.stx_dev_major, root.stx_dev_minor) == device;
    is_it.then_some(root.stx_mnt_id)
}

/// Returns the state of a mount: the flags in the kernel's `answer`, and the mounts below it.
/// `None` also if there are [`NESTED`] or more of these.
fn state(mount: u64, answer: &MountAnswer) -> Option<MountState> {
    let mut nested = [0; NESTED];
    let count = list(mount, &mut nested, 0)?;
    if count == NESTED {
        return None;
    }
    let nested =
        nested[..count].iter().map(|&below| MountAnswer::about(below, STATE)?.mount_point());
    Some(MountState { flags: answer.flags()?, nested: nested.collect::<Option<_>>()? })
}

/// Lists mounts below `mount`, at any depth; returns the number found.
fn list(mount: u64, to: &mut [u64], flags: u32) -> Option<usize> {
    let (address, len) = (to.as_mut_ptr(), to.len());
    // SAFETY: the kernel stores at most that many numbers.
    unsafe { ask(linux::__NR_listmount, mount, 0, address.expose_provenance(), len, flags) }
}

/// # Safety
/// The call may store `len` elements of its kind at `to`.
unsafe fn ask(
    call: u32,
    mount: u64,
    param: u64,
    to: usize,
    len: usize,
    flags: u32,
) -> Option<usize> {
    let request = linux::mnt_id_req {
        size: linux::MNT_ID_REQ_SIZE_VER0,
        spare: 0,
        mnt_id: mount,
        param,
        mnt_ns_id: 0,
    };
    let args = [(&raw const request).expose_provenance(), to, len, flags as usize, 0];
    // Valgrind hides the vDSO from programs, and warns users of system calls that it does not know.
    // SAFETY: no preconditions.
    let has_vdso = unsafe { libc::getauxval(libc::AT_SYSINFO_EHDR) } != 0;
    // SAFETY: the request is valid, and the caller answers for the rest.
    (has_vdso && !os::syscalls::are_filtered())
        .then(|| unsafe { os::syscalls::syscall(call.into(), args) })?
        .ok()
}

/// The answer of `statmount`.
struct MountAnswer(Box<[u64; ANSWER.div_ceil(8)]>);

impl MountAnswer {
    /// Asks the kernel for the fields `what` (`STATMOUNT_*`) of a mount. `None` if it lacks one of
    /// them.
    fn about(mount: u64, what: u32) -> Option<Self> {
        let mut answer = Self(Box::new([0; ANSWER.div_ceil(8)]));
        let to = answer.0.as_mut_ptr().expose_provenance();
        // SAFETY: there is room for that many bytes.
        unsafe { ask(linux::__NR_statmount, mount, what.into(), to, ANSWER, 0)? };
        let said = answer.word(offset_of!(linux::statmount, mask));
        (said & u64::from(what) == u64::from(what)).then_some(answer)
    }

    fn bytes(&self) -> impl Iterator<Item = u8> {
        self.0.iter().flat_map(|word| word.to_ne_bytes())
    }

    fn word(&self, at: usize) -> u64 {
        self.0[at / 8]
    }

    /// Reads half a word.
    fn half(&self, at: usize) -> u32 {
        (self.word(at) >> (at % 8 * 8)) as u32
    }

    /// Returns the flags as `ST_*` of `statvfs`.
    fn flags(&self) -> Option<u64> {
        let attributes = u32::try_from(self.word(offset_of!(linux::statmount, mnt_attr))).ok()?;
        let superblock = u64::from(self.half(offset_of!(linux::statmount, sb_flags)));
        let of_superblock = superblock & (libc::MS_RDONLY | libc::MS_SYNCHRONOUS);
        let set = [
            (linux::MOUNT_ATTR_RDONLY, libc::ST_RDONLY),
            (linux::MOUNT_ATTR_NOSUID, libc::ST_NOSUID),
            (linux::MOUNT_ATTR_NODEV, libc::ST_NODEV),
            (linux::MOUNT_ATTR_NOEXEC, libc::ST_NOEXEC),
            (linux::MOUNT_ATTR_NOATIME, libc::ST_NOATIME),
            (linux::MOUNT_ATTR_NODIRATIME, libc::ST_NODIRATIME),
            (linux::MOUNT_ATTR_NOSYMFOLLOW, ST_NOSYMFOLLOW),
        ];
        let set = set.into_iter().filter(|(attribute, _)| attributes & attribute != 0);
        let is_relative = attributes & linux::MOUNT_ATTR__ATIME == linux::MOUNT_ATTR_RELATIME;
        let relative = if is_relative { libc::ST_RELATIME } else { 0 };
        Some(set.fold(of_superblock | relative, |flags, (_, flag)| flags | flag))
    }

    fn mount_point(&self) -> Option<Vec<u8>> {
        let path = self.text(offset_of!(linux::statmount, mnt_point));
        path.starts_with(b"/").then_some(path)
    }

    /// Returns the text to which the field at this offset points.
    fn text(&self, field: usize) -> Vec<u8> {
        let at = size_of::<linux::statmount>() + self.half(field) as usize;
        self.bytes().skip(at).take_while(|&byte| byte != 0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pools::tests::all;

    #[test]
    fn the_kernel_and_its_table_say_the_same() {
        let table = std::fs::read("/proc/self/mountinfo").unwrap();
        let mounts = all(&table);
        let known: Vec<_> =
            mounts.iter().filter_map(|m| Some((m, mount_state(&m.dir, m.device)?))).collect();
        assert!(
            newest_mount().is_none() || known.len() > mounts.len() / 2,
            "{} known",
            known.len()
        );
        for (mount, state) in known {
            assert_eq!((&mount.dir, &mount.state), (&mount.dir, &state));
        }
    }

    #[test]
    fn who_is_no_mount_has_no_state() {
        assert_eq!(mount_state(b"/proc/self", (0, 0)), None);
        assert_eq!(mount_state(b"/nowhere", (0, 0)), None);
        assert_eq!(mount_state(b"", (0, 0)), None);
    }
}
