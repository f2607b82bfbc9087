//! What every call answers.

use vfs::Errno;

/// The answer to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Served<T> {
    /// The call has been made here; this is what it returns.
    Done(Result<T, Errno>),
    /// The call is not ours, or has become the kernel's: make the libc call as it stands.
    Kernel,
}

/// Why a call ends early, inside this crate.
///
/// Its tag is as wide as what a [`CallResult`] holds in the same place. With a narrow one, descriptions are stored in halves and
/// loaded whole, which stalls each read and write for as long as ten instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum CallStop {
    /// It fails.
    Errno(Errno),
    /// It is the kernel's.
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

/// Arguments are checked before paths are looked at; but whose call it is, is known only by then.
/// So: what a walk `found`, unless `arguments` are bad.
pub(crate) fn checked<T>(found: CallResult<T>, arguments: Result<(), Errno>) -> CallResult<T> {
    match found {
        Err(CallStop::Kernel) => Err(CallStop::Kernel),
        found => {
            arguments?;
            found
        }
    }
}
