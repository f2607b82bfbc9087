//! Inodes that a call works with, and the directories in which it makes or removes names.
//!
//! - **held-H1** A walk holds the inodes that it returns: an inode lives while its [`HeldInode`]
//!   does. The exception is the last inode of a walk whose caller only looks ([`Want::Look`]): it
//!   is not held, and its attributes are those of the look.

use crate::creds::{AccessMask, Caps, Credentials};
use crate::mount::ServedMount;
use crate::path_cache::Used;
use crate::table::OfdRef;
use crate::task::Task;
use smallvec::SmallVec;
use std::cell::OnceCell;
use vfs::{Attr, Errno, FileKind, FileSystem, Ino};

/// The reason why an inode stays alive.
enum HoldBy<'p> {
    /// It is the root, which always stays.
    Root,
    /// A reference, given back on drop.
    Reference,
    /// No reason: a call has only looked at it.
    Nothing,
    /// An entry of the path cache, in use.
    Kept(#[allow(dead_code)] Used<'p>),
    /// A description in use.
    Description(#[allow(dead_code)] OfdRef<'p>),
}

/// An inode that a call works with (held-H1).
pub(crate) struct InodeHold<'p> {
    by: HoldBy<'p>,
    pub mount: &'p ServedMount,
    pub mount_index: usize,
    pub ino: Ino,
    pub kind: FileKind,
}

impl<'p> InodeHold<'p> {
    /// Makes a hold of a directory that the caller keeps alive by something else.
    pub fn held_elsewhere(mount_index: usize, mount: &'p ServedMount, ino: Ino) -> Self {
        Self { by: HoldBy::Nothing, mount, mount_index, ino, kind: FileKind::Dir }
    }

    /// The root of a mount.
    pub fn root(mount_index: usize, mount: &'p ServedMount) -> Self {
        let ino = mount.attached().fs.root();
        Self { by: HoldBy::Root, mount, mount_index, ino, kind: FileKind::Dir }
    }

    /// Makes a hold of a directory from the path cache.
    pub fn kept(task: &'p Task, used: Used<'p>) -> Self {
        let (mount_index, ino) = used.dir();
        let mount = task.mount(mount_index);
        Self { by: HoldBy::Kept(used), mount, mount_index, ino, kind: FileKind::Dir }
    }

    /// The inode of a description.
    pub fn description(task: &'p Task, ofd: OfdRef<'p>) -> Self {
        let (ino, kind, mount_index) = (ofd.ino(), ofd.kind(), ofd.mount_index());
        let mount = task.mount(mount_index);
        Self { by: HoldBy::Description(ofd), mount, mount_index, ino, kind }
    }

    /// Makes a hold of an inode with these attributes, on the mount of `self`.
    fn beside(&self, by: HoldBy<'p>, attr: &Attr) -> Self {
        let (mount, mount_index) = (self.mount, self.mount_index);
        Self { by, mount, mount_index, ino: attr.ino, kind: attr.kind }
    }

    /// The engine.
    #[inline]
    pub fn fs(&self) -> &'p dyn FileSystem {
        self.mount.attached().fs.as_ref()
    }
}

impl Drop for InodeHold<'_> {
    #[inline]
    fn drop(&mut self) {
        if let HoldBy::Reference = self.by {
            self.fs().forget(self.ino, 1);
        }
    }
}

/// An inode with the attributes that a call has seen of it, if any.
pub(crate) struct HeldInode<'p> {
    inode: InodeHold<'p>,
    attr: OnceCell<Attr>,
}

impl<'p> std::ops::Deref for HeldInode<'p> {
    type Target = InodeHold<'p>;
    #[inline]
    fn deref(&self) -> &InodeHold<'p> {
        &self.inode
    }
}

impl<'p> From<InodeHold<'p>> for HeldInode<'p> {
    fn from(inode: InodeHold<'p>) -> Self {
        Self { inode, attr: OnceCell::new() }
    }
}

impl<'p> HeldInode<'p> {
    /// The inode of a description.
    pub fn description(task: &'p Task, ofd: OfdRef<'p>) -> Self {
        InodeHold::description(task, ofd).into()
    }

    /// Holds an inode of the mount of `self` whose reference the caller has. `attr` comes with the
    /// reference.
    pub fn beside(&self, attr: Attr) -> HeldInode<'p> {
        Self { inode: self.inode.beside(HoldBy::Reference, &attr), attr: OnceCell::from(attr) }
    }

    /// Wraps an inode of the mount of `self` at which the caller has only looked. `attr` comes from
    /// the look.
    pub fn seen(&self, attr: Attr) -> HeldInode<'p> {
        Self { inode: self.inode.beside(HoldBy::Nothing, &attr), attr: OnceCell::from(attr) }
    }

    /// Turns the hold into an engine reference, which the caller has to give back.
    pub fn into_reference(self) -> Result<(), Errno> {
        debug_assert!(!matches!(self.by, HoldBy::Nothing), "held-H1");
        if let HoldBy::Description(_) | HoldBy::Kept(_) = self.by {
            self.fs().lookup(self.ino, b".")?;
        }
        if let HoldBy::Reference = self.by {
            std::mem::forget(self);
        }
        Ok(())
    }

    /// Returns the inode that a name in this directory leads to, if the name exists. A symbolic
    /// link is always held, because it may have to be followed.
    pub fn child(&self, name: &[u8], want: Want) -> Result<Option<HeldInode<'p>>, Errno> {
        let found = match want {
            Want::Look => self.fs().peek(self.ino, name),
            Want::Hold => self.fs().lookup(self.ino, name),
        };
        match found {
            Ok(attr) if want == Want::Look && attr.kind != FileKind::Symlink => {
                Ok(Some(self.seen(attr)))
            }
            Ok(_) if want == Want::Look => self.child(name, Want::Hold),
            Ok(attr) => Ok(Some(self.beside(attr))),
            Err(Errno::NOENT) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// The attributes, as this call first saw them.
    pub fn attr(&self) -> Result<&Attr, Errno> {
        match self.attr.get() {
            Some(attr) => Ok(attr),
            None => {
                let attr = self.fs().getattr(self.ino)?;
                Ok(self.attr.get_or_init(|| attr))
            }
        }
    }

    /// Checks permission and, for a change, that the mount is writable.
    pub fn check(&self, creds: &Credentials, want: AccessMask) -> Result<(), Errno> {
        self.mount.check_change(self.kind, want)?;
        if self.kind == FileKind::Dir && creds.can(Caps::DAC_OVERRIDE) {
            return Ok(());
        }
        creds.check(self.fs(), self.attr()?, want)
    }

    /// Checks whether names may be made in a directory (`may_create`). `ENOENT` if the directory
    /// was removed.
    pub fn check_create(&self, creds: &Credentials) -> Result<(), Errno> {
        self.check(creds, AccessMask::WRITE | AccessMask::EXEC).map_err(|errno| match errno {
            Errno::ACCESS => self.refusal(errno),
            _ => errno,
        })
    }

    /// Returns the error for a name in this directory that is refused with `errno`. The kernel
    /// first checks whether the directory was removed.
    pub fn refusal(&self, errno: Errno) -> Errno {
        match self.attr() {
            Ok(attr) if attr.nlink == 0 => Errno::NOENT,
            _ => errno,
        }
    }

    /// Returns `EROFS` if the mount is read-only.
    pub fn check_writable(&self) -> Result<(), Errno> {
        self.mount.check_writable()
    }

    /// Makes another hold of the same inode.
    pub fn again(&self) -> Result<Self, Errno> {
        Ok(self.beside(self.fs().lookup(self.ino, b".")?))
    }
}

/// The kind of component that a path ends with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LastComponent {
    /// A name.
    Name,
    /// `.`, or nothing: the mount point itself.
    Dot,
    /// `..`
    DotDot,
}

/// The result of a walk.
pub(crate) struct Walked<'p> {
    /// The directory of the last component.
    pub dir: HeldInode<'p>,
    /// The last component.
    pub name: SmallVec<[u8; 64]>,
    /// The kind of the last component.
    pub last: LastComponent,
    /// Whether slashes follow it.
    pub slash: bool,
    /// The inode that it names, if it exists.
    pub found: Option<HeldInode<'p>>,
}

/// The place where a name is to be made or removed (`Follow::Never`). Fields as in [`Walked`].
#[derive(Clone, Copy)]
pub(crate) struct ParentAndName<'w, 'p> {
    pub dir: &'w HeldInode<'p>,
    pub name: &'w [u8],
    pub last: LastComponent,
    pub slash: bool,
    pub found: Option<&'w HeldInode<'p>>,
}

impl ParentAndName<'_, '_> {
    /// Returns `ENAMETOOLONG` if the name is too long.
    pub fn check_name(&self) -> Result<(), Errno> {
        if self.name.len() > self.dir.mount.limits().name {
            Err(self.dir.refusal(Errno::NAMETOOLONG))
        } else {
            Ok(())
        }
    }
}

impl<'p> Walked<'p> {
    /// The last name and its directory.
    pub fn parent_and_name(&self) -> ParentAndName<'_, 'p> {
        let (last, slash) = (self.last, self.slash);
        ParentAndName { dir: &self.dir, name: &self.name, last, slash, found: self.found.as_ref() }
    }

    /// Returns the inode that the path names. `ENOENT` if it names no inode; `ENOTDIR` if a slash
    /// follows the name of another inode than a directory.
    #[inline]
    pub fn existing(self) -> Result<HeldInode<'p>, Errno> {
        let found = self.found.ok_or(Errno::NOENT)?;
        if self.slash && found.kind != FileKind::Dir { Err(Errno::NOTDIR) } else { Ok(found) }
    }
}

/// The purpose for which a caller looks up a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Want {
    /// To work with the inode.
    Hold,
    /// To see its attributes.
    Look,
}
