//! Files that front ends have opened.

use crate::Ino;

/// Notices of a front end about files that a program may map through the kernel. The default methods ignore them.
pub trait Openings {
    /// A front end has opened a file for somebody who may map it by the kernel, until [`closed`](Self::closed).
    fn opened(&self, _ino: Ino) {}

    /// What was [`opened`](Self::opened) is closed, and mapped no more.
    fn closed(&self, _ino: Ino) {}
}
