//! Files that front ends have opened.

use crate::Ino;

/// Notices of a front end about files that a program may map through the kernel. The default
/// methods ignore them.
pub trait Openings {
    /// Notes that a front end has opened a file for a program that may map it through the kernel,
    /// until [`closed`](Self::closed).
    fn opened(&self, _ino: Ino) {}

    /// Notes that a file that was [`opened`](Self::opened) is closed, and no longer mapped.
    fn closed(&self, _ino: Ino) {}
}
