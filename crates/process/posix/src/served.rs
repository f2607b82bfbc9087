//! Answers to calls.

use vfs::Errno;

/// The answer to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Served<T> {
    /// The call has been made here, with this result.
    Done(Result<T, Errno>),
    /// The call is not ours, or is left to the kernel: make the libc call as it stands.
    Kernel,
}

/// The reason why a call ends early, inside this crate.
///
/// Its tag is as wide as the value that a [`CallResult`] holds in the same place. With a narrow
/// tag, descriptions are stored in halves and loaded whole, which stalls each read and write for as
/// long as ten instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum CallStop {
    /// It fails.
    Errno(Errno),
    /// It is left to the kernel.
    Kernel,
}

/// A call on its way to [`Served`].
pub(crate) type CallResult<T> = Result<T, CallStop>;

impl From<Errno> for CallStop {
    fn from(errno: Errno) -> Self {
        Self::Errno(errno)
    }
}

impl<T> From<CallResult<T>> for Served<T> {
    fn from(call: CallResult<T>) -> Self {
        match call {
            Ok(value) => Self::Done(Ok(value)),
            Err(CallStop::Errno(errno)) => Self::Done(Err(errno)),
            Err(CallStop::Kernel) => Self::Kernel,
        }
    }
}

/// Returns the error of `arguments`, if they are bad, else the result of a walk. Arguments are
/// checked before paths, but only the walk shows whether the call is the kernel's.
pub(crate) fn checked<T>(found: CallResult<T>, arguments: Result<(), Errno>) -> CallResult<T> {
    match found {
        Err(CallStop::Kernel) => Err(CallStop::Kernel),
        found => {
            arguments?;
            found
        }
    }
}
