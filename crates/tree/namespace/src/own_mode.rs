//! The mode of durability of one file, which can be stronger than that of its pool: the extended
//! attribute [`ATTRIBUTE`].
//!
//! - own-mode-O1: the modes are ordered by strength, and the stronger one of file and pool holds.
//!   So a program that relies on the mode of the pool gets at least that for each file.
//! - own-mode-O2: the attribute takes effect when the call that sets it returns: operations on the
//!   file have its lock, as the change of the attribute has.
//! - own-mode-O3: two bits of the inode's derived state repeat the attribute. A mount does not read
//!   the attributes of all inodes; the first operation that depends on the mode reads those of its
//!   inode.

use crate::fs::Core;
use crate::layout::Word;
use crate::store::Storage;
use crate::tables::VInode;
use crate::xattr::Attributes;
use std::sync::atomic::Ordering::Relaxed;
use vfs::{Errno, FileKind, Ino, Result};

/// The attribute with the mode of a file: the name of an [`OwnMode`].
pub const ATTRIBUTE: &[u8] = vfs::DATA;

/// State bit of an inode: it has attributes that were not read yet.
pub const MAY_HAVE_MODE: u32 = 1 << 23;
/// State bit of a file: [`OwnMode::Journal`], or a stronger mode.
const JOURNAL: u32 = 1 << 24;
/// State bit of a file: [`OwnMode::Through`].
const THROUGH: u32 = 1 << 25;
const ALL: u32 = MAY_HAVE_MODE | JOURNAL | THROUGH;

/// The mode of durability that a file has by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum OwnMode {
    /// Each operation on its content is durable in the pool when it returns.
    Journal,
    /// Each operation on its content is durable in the backing store when it returns.
    Through,
}

impl OwnMode {
    /// All modes, with the values of the attribute.
    const NAMES: [(Self, &[u8]); 2] = [(Self::Journal, b"journal"), (Self::Through, b"through")];

    /// Returns the mode of this name.
    fn named(name: &[u8]) -> Option<Self> {
        Self::NAMES.iter().find(|(_, known)| *known == name).map(|(mode, _)| *mode)
    }

    /// Returns the state bits of an inode with these attributes. A value that is no mode, which a
    /// backing store can have, counts as none.
    pub fn bits(attributes: &Attributes) -> u32 {
        match attributes.get(ATTRIBUTE).and_then(Self::named) {
            None => 0,
            Some(Self::Journal) => JOURNAL,
            Some(Self::Through) => JOURNAL | THROUGH,
        }
    }

    /// Returns the mode of an inode with these state bits.
    fn of(bits: u32) -> Option<Self> {
        match (bits & JOURNAL != 0, bits & THROUGH != 0) {
            (_, true) => Some(Self::Through),
            (true, false) => Some(Self::Journal),
            (false, false) => None,
        }
    }

    /// Checks a value for the attribute of an inode of a pool.
    ///
    /// # Errors
    /// `EINVAL` if it is no mode, if the pool cannot keep it, or if the inode is no regular file.
    pub fn check(value: &[u8], kind: FileKind, is_backed: bool) -> Result<()> {
        match Self::named(value) {
            Some(mode) if kind == FileKind::File && (is_backed || mode != Self::Through) => Ok(()),
            _ => Err(Errno::INVAL),
        }
    }
}

/// Repeats the attributes of an inode in its derived state (own-mode-O3). The caller holds its lock
/// exclusively.
pub fn note(v: &VInode, attributes: &Attributes) {
    v.state.fetch_and(!ALL, Relaxed);
    v.state.fetch_or(OwnMode::bits(attributes), Relaxed);
}

/// Returns the mode that a file has by itself. The caller holds its lock.
#[inline]
pub fn own_mode<S: Storage>(store: &S, v: &VInode) -> Result<Option<OwnMode>> {
    match v.state.load(Relaxed) {
        bits if bits & MAY_HAVE_MODE != 0 => look(store, v),
        bits => Ok(OwnMode::of(bits)),
    }
}

/// Reads the mode of an inode whose attributes were not read yet. Threads that share its lock may
/// do so at the same time.
#[cold]
fn look<S: Storage>(store: &S, v: &VInode) -> Result<Option<OwnMode>> {
    let bits = match store.load(v, Word::Xattr) {
        0 => 0,
        _ => OwnMode::bits(&store.attributes(v)?),
    };
    v.state.fetch_or(bits, Relaxed);
    v.state.fetch_and(!MAY_HAVE_MODE, Relaxed);
    Ok(OwnMode::of(bits))
}

impl<S: Storage> Core<S> {
    /// Implements [`vfs::Backed::is_through`].
    pub fn is_through(&self, ino: Ino) -> Result<bool> {
        if self.live(ino)?.state.load(Relaxed) & ALL == 0 {
            return Ok(false);
        }
        let _lock = self.tables().lock_shared(ino)?;
        Ok(own_mode(&**self, self.live(ino)?)? == Some(OwnMode::Through))
    }
}
