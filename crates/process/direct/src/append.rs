//! Writes to the end of a file, by descriptors with `O_APPEND`.
//!
//! The kernel makes them, so only the kernel knows the offset afterwards. It stays the kernel's
//! until the library asks for it (direct-O1).

use crate::calls::Call;
use crate::descriptions::Description;
use crate::epoch::InsideEpoch;
use crate::parts::Parts;
use crate::position::OffsetOwner;
use crate::{Answer, Direct};
use vfs::Errno;

impl Direct {
    /// Does `write` and `writev`, which move the offset, or `pwrite` and `pwritev` with an offset,
    /// of which Linux uses only the sign. The caller is outside.
    pub(crate) fn append(
        &self,
        fd: i32,
        parts: &Parts<'_>,
        offset: Option<u64>,
        call: &Call,
    ) -> Answer<usize> {
        if self.is_served(fd, parts.len)
            && let Some(_inside) = InsideEpoch::enter()
            && let Some((_, description)) = self.get(fd)
        {
            return Answer::Asked(match offset {
                Some(offset) => call.ask_at(offset),
                None => ask(description, call),
            });
        }
        Answer::Kernel
    }
}

/// Lets the kernel append at an offset of its own.
fn ask(description: &Description, call: &Call) -> Result<usize, Errno> {
    let mut locked = description.position.lock();
    let result = call.ask();
    if result.is_ok_and(|done| done > 0) && locked.owner != OffsetOwner::Shared {
        locked.owner = OffsetOwner::Kernel;
    }
    result
}
