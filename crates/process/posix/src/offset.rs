//! The offset of a description, which is in the family's memory or in the kernel (promote-M1 in
//! `promote`).

use crate::Errno;
use crate::family::{PROMOTED, Position};
use crate::promote::Promotions;
use crate::served::{CallResult, CallStop};
use crate::sys::Kernel;
use crate::table::OfdRef;
use vfs::FileKind;

/// An offset that a call has locked. Within the family, calls that move an offset follow one
/// another.
pub(crate) struct Offset<'a> {
    /// The locked offset in the family's memory. It counts if `kernel` is `None`.
    position: Position<'a>,
    /// The kernel and the descriptor by which it keeps the offset.
    kernel: Option<(&'a dyn Kernel, i32)>,
}

impl Promotions {
    /// Locks the offset of a description. `Kernel` if the kernel keeps the offset of something
    /// other than a regular file.
    #[inline]
    pub(crate) fn lock_offset<'a>(&'a self, ofd: &'a OfdRef<'_>) -> CallResult<Offset<'a>> {
        let position = ofd.hold_position();
        if ofd.is(PROMOTED) {
            return self.lock_promoted_offset(ofd, position);
        }
        Ok(Offset::private(position))
    }

    /// Returns the kernel's offset of a promoted description. `Kernel` if it is not a regular file.
    #[cold]
    fn lock_promoted_offset<'a>(
        &'a self,
        ofd: &OfdRef<'_>,
        position: Position<'a>,
    ) -> CallResult<Offset<'a>> {
        // If it was promoted since the call took it, the descriptor may still be a placeholder.
        self.adopt(ofd)?;
        if ofd.kind() != FileKind::File || ofd.fd() < 0 {
            return Err(CallStop::Kernel);
        }
        Ok(Offset::promoted(position, self.task().kernel.as_ref(), ofd.fd()))
    }
}

impl<'a> Offset<'a> {
    /// The offset of a private description.
    #[inline]
    pub fn private(position: Position<'a>) -> Self {
        Self { position, kernel: None }
    }

    /// The offset of a promoted description.
    pub fn promoted(position: Position<'a>, kernel: &'a dyn Kernel, fd: i32) -> Self {
        Self { position, kernel: Some((kernel, fd)) }
    }

    /// Whether the kernel keeps the offset.
    #[inline]
    pub fn is_promoted(&self) -> bool {
        self.kernel.is_some()
    }

    /// The offset now, in bytes.
    #[inline]
    pub fn get(&self) -> Result<u64, Errno> {
        match self.kernel {
            None => Ok(self.position.get()),
            Some((kernel, fd)) => kernel.seek_by(fd, 0),
        }
    }

    /// Sets the offset.
    #[inline]
    pub fn set(&self, offset: u64) -> Result<(), Errno> {
        match self.kernel {
            None => {
                self.position.set(offset);
                Ok(())
            }
            Some((kernel, fd)) => kernel.seek_to(fd, offset),
        }
    }

    /// Moves the offset by a number of bytes, in one step if the kernel keeps it. Returns the new
    /// offset.
    pub fn step(&self, by: i64) -> Result<i64, Errno> {
        match self.kernel {
            None => {
                let new = (self.position.get() as i64).checked_add(by).filter(|new| *new >= 0);
                let new = new.ok_or(Errno::INVAL)?;
                self.position.set(new as u64);
                Ok(new)
            }
            Some((kernel, fd)) => Ok(kernel.seek_by(fd, by)? as i64),
        }
    }

    /// Lets `transfer` move up to `len` bytes, from the offset that it receives. The range is
    /// reserved before: no other process that shares the offset gets the same bytes. Bytes that
    /// were not moved are given back.
    #[inline]
    pub fn advance(
        &self,
        len: usize,
        transfer: impl FnOnce(u64) -> Result<usize, Errno>,
    ) -> Result<usize, Errno> {
        let Some((kernel, fd)) = self.kernel else {
            let start = self.position.get();
            let moved = transfer(start)?;
            self.position.set(start + moved as u64);
            return Ok(moved);
        };
        let len = i64::try_from(len).map_err(|_| Errno::INVAL)?;
        let end = kernel.seek_by(fd, len)?;
        let moved = transfer(end - len as u64);
        let rest = len - moved.map_or(0, |moved| moved as i64);
        if rest > 0 {
            match kernel.seek_by(fd, -rest) {
                // Another process has set the offset to less than what is given back. Its offset
                // counts.
                Ok(_) | Err(Errno::INVAL) => {}
                Err(_) => kernel.seek_to(fd, end - rest as u64)?,
            }
        }
        moved
    }
}
