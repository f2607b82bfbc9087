//! The offset of a description, wherever it is kept: in the family's memory, or by the kernel (promote-M1 in `promote`).

use crate::Errno;
use crate::family::{PROMOTED, Position};
use crate::promote::Promotions;
use crate::served::{CallResult, CallStop};
use crate::sys::Kernel;
use crate::table::OfdRef;
use vfs::FileKind;

/// An offset that a call has taken; within the family, calls that move it follow one another.
pub(crate) struct Offset<'a> {
    /// Held. Its value counts where `kernel` is none.
    position: Position<'a>,
    /// Who keeps it otherwise, and by which descriptor.
    kernel: Option<(&'a dyn Kernel, i32)>,
}

impl Promotions {
    /// The offset of a description, wherever it is kept. `Kernel` where the kernel keeps that of something else than a
    /// regular file.
    #[inline]
    pub(crate) fn lock_offset<'a>(&'a self, ofd: &'a OfdRef<'_>) -> CallResult<Offset<'a>> {
        let position = ofd.hold_position();
        if ofd.is(PROMOTED) {
            return self.lock_promoted_offset(ofd, position);
        }
        Ok(Offset::private(position))
    }

    #[cold]
    fn lock_promoted_offset<'a>(
        &'a self,
        ofd: &OfdRef<'_>,
        position: Position<'a>,
    ) -> CallResult<Offset<'a>> {
        // Where it has been promoted since it was taken, the descriptor may be a placeholder still.
        self.adopt(ofd)?;
        if ofd.kind() != FileKind::File || ofd.fd() < 0 {
            return Err(CallStop::Kernel);
        }
        Ok(Offset::promoted(position, self.task().kernel.as_ref(), ofd.fd()))
    }
}

impl<'a> Offset<'a> {
    /// That of a private description.
    #[inline]
    pub fn private(position: Position<'a>) -> Self {
        Self { position, kernel: None }
    }

    /// That of a promoted one.
    pub fn promoted(position: Position<'a>, kernel: &'a dyn Kernel, fd: i32) -> Self {
        Self { position, kernel: Some((kernel, fd)) }
    }

    /// Whether the kernel keeps it.
    #[inline]
    pub fn is_promoted(&self) -> bool {
        self.kernel.is_some()
    }

    /// Where it is now, in bytes.
    #[inline]
    pub fn get(&self) -> Result<u64, Errno> {
        match self.kernel {
            None => Ok(self.position.get()),
            Some((kernel, fd)) => kernel.seek_by(fd, 0),
        }
    }

    /// Moves it.
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

    /// Moves it by so many bytes, in one step where the kernel keeps it; returns where it is then.
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

    /// Lets `transfer` move up to `len` bytes from the offset on, which it is told. They are reserved before: nobody else
    /// who shares the offset gets the same ones. What was not moved is given back.
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
                // Somebody has set it to less than what is given back: that is where it is.
                Ok(_) | Err(Errno::INVAL) => {}
                Err(_) => kernel.seek_to(fd, end - rest as u64)?,
            }
        }
        moved
    }
}
