//! Inodes that a call works with, and the directories in which it makes or removes names.
//!
//! - **held-H1** What a walk gives is held: the inode lives while the [`HeldInode`] does. Only where the caller
//!   wants to know what is there and no more ([`Want::Look`]) the last inode is not, and what is known
//!   of it is what was seen.

use crate::creds::{AccessMask, Caps, Credentials};
use crate::mount::ServedMount;
use crate::path_cache::Used;
use crate::table::OfdRef;
use crate::task::Task;
use smallvec::SmallVec;
use std::cell::OnceCell;
use vfs::{Attr, Errno, FileKind, FileSystem, Ino};

/// What keeps an inode alive.
enum HoldBy<'p> {
    /// The root needs nothing.
    Root,
    /// One reference, given back on drop.
    Reference,
    /// Nothing does: it was looked at.
    Nothing,
    /// The place where it is kept, in use.
    Kept(#[allow(dead_code)] Used<'p>),
    /// A description in use, which is only kept.
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
    /// A directory that the caller keeps alive by something else.
    pub fn held_elsewhere(mount_index: usize, mount: &'p ServedMount, ino: Ino) -> Self {
        Self { by: HoldBy::Nothing, mount, mount_index, ino, kind: FileKind::Dir }
    }

    /// The root of a mount.
    pub fn root(mount_index: usize, mount: &'p ServedMount) -> Self {
        let ino = mount.attached().fs.root();
        Self { by: HoldBy::Root, mount, mount_index, ino, kind: FileKind::Dir }
    }

    /// A directory that was walked to before.
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

    /// An inode with these attributes, on the mount of `self`.
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

/// An inode with what a call has seen of its attributes.
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

    /// What a call that creates returned, on the mount of `self`.
    pub fn beside(&self, attr: Attr) -> HeldInode<'p> {
        Self { inode: self.inode.beside(HoldBy::Reference, &attr), attr: OnceCell::from(attr) }
    }

    /// What was looked at on the mount of `self`.
    pub fn seen(&self, attr: Attr) -> HeldInode<'p> {
        Self { inode: self.inode.beside(HoldBy::Nothing, &attr), attr: OnceCell::from(attr) }
    }

    /// Turns the hold into an engine reference that somebody else gives back.
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

    /// What a name in this directory leads to, if it is there. A symbolic link is held in any case:
    /// it may have to be followed.
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

    /// The attributes, as they were when this call first saw them.
    pub fn attr(&self) -> Result<&Attr, Errno> {
        match self.attr.get() {
            Some(attr) => Ok(attr),
            None => {
                let attr = self.fs().getattr(self.ino)?;
                Ok(self.attr.get_or_init(|| attr))
            }
        }
    }

    /// Checks permission, and for changes whether the mount takes any.
    pub fn check(&self, creds: &Credentials, want: AccessMask) -> Result<(), Errno> {
        self.mount.check_change(self.kind, want)?;
        if self.kind == FileKind::Dir && creds.can(Caps::DAC_OVERRIDE) {
            return Ok(());
        }
        creds.check(self.fs(), self.attr()?, want)
    }

    /// Checks whether names may be made in a directory: `ENOENT` where it is removed (`may_create`).
    pub fn check_create(&self, creds: &Credentials) -> Result<(), Errno> {
        self.check(creds, AccessMask::WRITE | AccessMask::EXEC).map_err(|errno| match errno {
            Errno::ACCESS => self.refusal(errno),
            _ => errno,
        })
    }

    /// The error of a name in this directory that is refused with `errno`: the kernel looks first
    /// whether the directory is removed.
    pub fn refusal(&self, errno: Errno) -> Errno {
        match self.attr() {
            Ok(attr) if attr.nlink == 0 => Errno::NOENT,
            _ => errno,
        }
    }

    /// `EROFS` where the mount takes no changes.
    pub fn check_writable(&self) -> Result<(), Errno> {
        self.mount.check_writable()
    }

    /// Another hold of the same inode.
    pub fn again(&self) -> Result<Self, Errno> {
        Ok(self.beside(self.fs().lookup(self.ino, b".")?))
    }
}

/// What kind of component a path ends with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LastComponent {
    /// A name.
    Name,
    /// `.`, or nothing: the mount point itself.
    Dot,
    /// `..`
    DotDot,
}

/// Where a path leads.
pub(crate) struct Walked<'p> {
    /// The directory that the last component is in.
    pub dir: HeldInode<'p>,
    /// The last component.
    pub name: SmallVec<[u8; 64]>,
    /// What it is.
    pub last: LastComponent,
    /// Slashes follow it.
    pub slash: bool,
    /// What it names.
    pub found: Option<HeldInode<'p>>,
}

/// Where a name is to be made or removed (`Follow::Never`); as [`Walked`].
#[derive(Clone, Copy)]
pub(crate) struct ParentAndName<'w, 'p> {
    pub dir: &'w HeldInode<'p>,
    pub name: &'w [u8],
    pub last: LastComponent,
    pub slash: bool,
    pub found: Option<&'w HeldInode<'p>>,
}

impl ParentAndName<'_, '_> {
    /// `ENAMETOOLONG`
    pub fn check_name(&self) -> Result<(), Errno> {
        if self.name.len() > self.dir.mount.limits().name {
            Err(self.dir.refusal(Errno::NAMETOOLONG))
        } else {
            Ok(())
        }
    }
}

impl<'p> Walked<'p> {
    /// The last name and where it stands.
    pub fn parent_and_name(&self) -> ParentAndName<'_, 'p> {
        let (last, slash) = (self.last, self.slash);
        ParentAndName { dir: &self.dir, name: &self.name, last, slash, found: self.found.as_ref() }
    }

    /// What the path names: `ENOENT`; `ENOTDIR` where a slash follows something else than a
    /// directory.
    #[inline]
    pub fn existing(self) -> Result<HeldInode<'p>, Errno> {
        let found = self.found.ok_or(Errno::NOENT)?;
        if self.slash && found.kind != FileKind::Dir { Err(Errno::NOTDIR) } else { Ok(found) }
    }
}

/// What a caller wants with what a path names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Want {
    /// Work with it.
    Hold,
    /// See what it is.
    Look,
}
