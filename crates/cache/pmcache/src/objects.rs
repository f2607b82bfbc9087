//! Objects of the backing store, as the pool compares and loads them.

use backing::Backing;
use vfs::{
    Attr, Backed, Entry, Errno, FileKind, FileSystem, Ino, LoadedObject, Residence, Result,
    SetXattr,
};

/// An inode of the backing store, with a reference.
pub(crate) struct Below<'a, B: Backing>(pub &'a B, pub Entry);

impl<B: Backing> Drop for Below<'_, B> {
    fn drop(&mut self) {
        self.0.forget(self.1.ino, 1);
    }
}

/// A referenced inode of the pool.
pub(crate) struct PoolRef<'a, P: Backed>(pub &'a P, pub Ino);

impl<P: Backed> Drop for PoolRef<'_, P> {
    fn drop(&mut self) {
        self.0.forget(self.1, 1);
    }
}

/// Returns a value that is another one when an object has changed, and is not 0.
pub(crate) fn stamp(object: &Attr) -> u32 {
    let size = if object.kind == FileKind::File { object.size } else { 0 };
    let changed = object.ctime.0 as u64;
    // The high bits of a product depend on all bits of its factors.
    let mixed = (changed ^ size.rotate_left(40)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((mixed >> 32) as u32).max(1)
}

/// Whether others have changed an object since it equalled its inode.
pub(crate) fn has_changed(inode: &Residence, object: &Attr) -> bool {
    !inode.is_busy && inode.stamp != 0 && inode.stamp != stamp(object)
}

/// Calls `each` with each name in a directory of the backing store, and its inode. Leaves out names
/// on other mounts (`EXDEV`).
pub(crate) fn each_entry<'b, B: Backing>(
    backing: &'b B,
    dir: Ino,
    mut each: impl FnMut(&[u8], &Below<'b, B>) -> Result<()>,
) -> Result<()> {
    for name in vfs::names_in(backing, dir)? {
        match backing.lookup(dir, &name) {
            Ok(entry) => each(&name, &Below(backing, entry))?,
            // Removed meanwhile, or on a mount within the directory.
            Err(Errno::NOENT | Errno::XDEV) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Gives an inode the extended attributes of another one.
pub(crate) fn copy_xattrs<F: FileSystem, T: FileSystem>(
    from: (&F, Ino),
    (fs, ino): (&T, Ino),
) -> Result<()> {
    let (wanted, found) = (xattrs(from.0, from.1)?, xattrs(fs, ino)?);
    for (name, _) in &found {
        if !wanted.iter().any(|(wanted, _)| wanted == name) {
            fs.removexattr(ino, name)?;
        }
    }
    for (name, value) in wanted.iter().filter(|xattr| !found.contains(xattr)) {
        fs.setxattr(ino, name, value, SetXattr::Any)?;
    }
    Ok(())
}

/// The parts of an object besides its attributes and its content.
pub(crate) struct ObjectParts {
    target: Vec<u8>,
    xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

impl ObjectParts {
    /// Reads them from the backing store.
    pub fn of(backing: &impl Backing, attr: &Attr) -> Result<Self> {
        let target = match attr.kind {
            FileKind::Symlink => backing.readlink(attr.ino)?,
            _ => Vec::new(),
        };
        Ok(Self { target, xattrs: xattrs(backing, attr.ino)? })
    }

    /// Returns the object, as an engine gets it. Its attributes were read before.
    pub fn loaded<'p>(&'p self, attr: &Attr, identity: &'p [u8]) -> LoadedObject<'p> {
        let (target, xattrs) = (&self.target[..], &self.xattrs[..]);
        LoadedObject { attr: *attr, identity, stamp: stamp(attr), target, xattrs }
    }
}

/// Returns all extended attributes of an inode.
pub(crate) fn xattrs(fs: &impl FileSystem, ino: Ino) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let names = fs.listxattr(ino)?.into_iter();
    let value = |name: Vec<u8>| Ok((name.clone(), fs.getxattr(ino, &name)?));
    names.map(value).collect()
}
