//! Writes to the end of a file, by descriptors with `O_APPEND`.
//!
//! In a pool, one operation does it (`Delegations::append_delegated`); it returns the offset of the
//! bytes. If the kernel makes the call, only the kernel knows that offset. So the offset is the
//! kernel's until the library asks for it (direct-O1).

#![allow(unsafe_code)]

use crate::calls::{Call, PoolUse};
use crate::delegation::may_use;
use crate::descriptions::Description;
use crate::epoch::InsideEpoch;
use crate::file::{FileSystemKind, MAPPABLE_BYTES};
use crate::parts::{self, NO_PARTS, Parts};
use crate::position::OffsetOwner;
use crate::table::borrow;
use crate::{Answer, Direct};
use libc::{iovec, off_t};
use rustix::fs::{AtFlags, StatxFlags};
use std::ffi::c_int;
use vfs::Errno;

impl Direct {
    /// Serves `pwritev2` with `RWF_APPEND`, at an offset, or at that of the description, which
    /// moves. After [`Answer::Kernel`] the caller makes the call.
    ///
    /// # Safety
    /// As [`read`](Self::read), for the list and each part of it.
    pub unsafe fn append_once(
        &self,
        fd: i32,
        list: *const iovec,
        count: c_int,
        offset: Option<off_t>,
    ) -> Answer<usize> {
        if !self.is_served(fd, 0) {
            return Answer::Kernel;
        }
        let mut room = NO_PARTS;
        // SAFETY: the caller's.
        let parts = unsafe { parts::of_list(list, count, &mut room) };
        let answer = self.append(fd, &parts, offset.map(|offset| offset as u64), None);
        if answer == Answer::Kernel {
            // The kernel appends at the size that it knows, and sends the server of a cache only
            // that offset. So it has to ask for the size first.
            look_for_size(fd);
        }
        answer
    }

    /// Does `write` and `writev`, which move the offset, or `pwrite` and `pwritev` with an offset,
    /// of which Linux uses only the sign. The caller is outside. Without a `call`, the caller has
    /// to make the kernel's call.
    pub(crate) fn append(
        &self,
        fd: i32,
        parts: &Parts<'_>,
        offset: Option<u64>,
        call: Option<&Call>,
    ) -> Answer<usize> {
        let mut pool = PoolUse::default();
        while self.is_served(fd, parts.len) {
            let Some(inside) = InsideEpoch::enter() else { break };
            let Some((_, description)) = self.get(fd) else { break };
            let is_ours = !pool.is_given_up
                && parts.fit_pool()
                && offset.is_none_or(|offset| offset < MAPPABLE_BYTES);
            let Some(by) = may_use::<true>(description).filter(|_| is_ours) else {
                if pool.may_ask() && self.wants_delegation::<true>(description, false, parts.len) {
                    drop(inside);
                    self.delegate(fd, false);
                    continue;
                }
                let Some(call) = call else { break };
                return Answer::Asked(match offset {
                    Some(offset) => call.ask_at(offset),
                    None => ask(fd, description, call),
                });
            };
            let mut locked = offset.is_none().then(|| description.position.lock());
            if locked.as_ref().is_some_and(|locked| locked.owner == OffsetOwner::Shared) {
                break;
            }
            match self.append_by_delegation(&inside, (fd, description), by, parts) {
                Ok(end) => {
                    if let Some(locked) = &mut locked {
                        locked.owner = OffsetOwner::Ours(end);
                    }
                    return Answer::Copied(parts.len);
                }
                Err(hurdle) => {
                    drop(locked);
                    let size = description.file().size();
                    drop(inside);
                    self.clear(fd, (by, hurdle), size, &mut pool);
                }
            }
        }
        Answer::Kernel
    }
}

/// Lets the kernel append at an offset of its own. For a file of a cache, the server knows the end,
/// and the offset depends on the end that the kernel knows. So the kernel first asks, by a request
/// only if others may have written without it.
fn ask(fd: i32, description: &Description, call: &Call) -> Result<usize, Errno> {
    let mut locked = description.position.lock();
    if description.file().kind() == FileSystemKind::Cached {
        look_for_size(fd);
    }
    let result = call.ask();
    if result.is_ok_and(|done| done > 0) && locked.owner != OffsetOwner::Shared {
        locked.owner = OffsetOwner::Kernel;
    }
    result
}

/// Makes the kernel ask for the size of a file.
fn look_for_size(fd: i32) {
    let _ = rustix::fs::statx(borrow(fd), c"", AtFlags::EMPTY_PATH, StatxFlags::SIZE);
}
