//! Forwarding calls to another file system.

/// Implements methods of [`FileSystem`](crate::FileSystem) by calling the same method of another
/// file system. It serves file systems that change or watch only some calls. The expression is
/// evaluated in each call; if it ends in `?`, its error is the call's.
///
/// ```
/// use vfs::{FileSystem, Result, model::Model};
///
/// /// A file system that never syncs.
/// struct Careless(Model);
///
/// impl FileSystem for Careless {
///     vfs::forward!(self => self.0; root, durability, kernel_cache, limits, lookup, forget, getattr, setattr,
///         create, tmpfile, readlink, unlink, rmdir, link, rename, rename_whiteout, readdir, read, write, append,
///         drop_privileges, fallocate, seek, copy_range, clone_range, fsync,
///         getxattr, setxattr, listxattr, removexattr, statfs);
///
///     fn sync(&self) -> Result<()> {
///         Ok(())
///     }
/// }
///
/// impl vfs::Mappings for Careless {}
/// impl vfs::Openings for Careless {}
///
/// assert_eq!(Careless(Model::new()).root(), vfs::ROOT);
/// ```
#[macro_export]
macro_rules! forward {
    ($this:ident => $to:expr; $first:ident $(, $more:ident)+ $(,)?) => {
        $crate::forward!($this => $to; $first);
        $( $crate::forward!($this => $to; $more); )+
    };
    ($this:ident => $to:expr; root) => {
        fn root(&$this) -> $crate::Ino {
            $to.root()
        }
    };
    ($this:ident => $to:expr; durability) => {
        fn durability(&$this) -> $crate::Durability {
            $to.durability()
        }
    };
    ($this:ident => $to:expr; kernel_cache) => {
        fn kernel_cache(&$this) -> $crate::KernelCache {
            $to.kernel_cache()
        }
    };
    ($this:ident => $to:expr; limits) => {
        fn limits(&$this) -> &'static $crate::Limits {
            $to.limits()
        }
    };
    ($this:ident => $to:expr; lookup) => {
        fn lookup(&$this, dir: $crate::Ino, name: &[u8]) -> $crate::Result<$crate::Entry> {
            $to.lookup(dir, name)
        }
    };
    ($this:ident => $to:expr; forget) => {
        fn forget(&$this, ino: $crate::Ino, refs: u64) {
            $to.forget(ino, refs);
        }
    };
    ($this:ident => $to:expr; getattr) => {
        fn getattr(&$this, ino: $crate::Ino) -> $crate::Result<$crate::Attr> {
            $to.getattr(ino)
        }
    };
    ($this:ident => $to:expr; setattr) => {
        fn setattr(
            &$this,
            caller: &$crate::Caller,
            ino: $crate::Ino,
            set: &$crate::SetAttr,
        ) -> $crate::Result<$crate::Attr> {
            $to.setattr(caller, ino, set)
        }
    };
    ($this:ident => $to:expr; create) => {
        fn create(
            &$this,
            caller: &$crate::Caller,
            dir: $crate::Ino,
            name: &[u8],
            node: &$crate::NewNode<'_>,
        ) -> $crate::Result<$crate::Entry> {
            $to.create(caller, dir, name, node)
        }
    };
    ($this:ident => $to:expr; tmpfile) => {
        fn tmpfile(
            &$this,
            caller: &$crate::Caller,
            dir: $crate::Ino,
            mode: u32,
            umask: u32,
        ) -> $crate::Result<$crate::Entry> {
            $to.tmpfile(caller, dir, mode, umask)
        }
    };
    ($this:ident => $to:expr; readlink) => {
        fn readlink(&$this, ino: $crate::Ino) -> $crate::Result<Vec<u8>> {
            $to.readlink(ino)
        }
    };
    ($this:ident => $to:expr; unlink) => {
        fn unlink(&$this, dir: $crate::Ino, name: &[u8]) -> $crate::Result<()> {
            $to.unlink(dir, name)
        }
    };
    ($this:ident => $to:expr; rmdir) => {
        fn rmdir(&$this, dir: $crate::Ino, name: &[u8]) -> $crate::Result<()> {
            $to.rmdir(dir, name)
        }
    };
    ($this:ident => $to:expr; link) => {
        fn link(
            &$this,
            ino: $crate::Ino,
            dir: $crate::Ino,
            name: &[u8],
        ) -> $crate::Result<$crate::Entry> {
            $to.link(ino, dir, name)
        }
    };
    ($this:ident => $to:expr; rename) => {
        fn rename(
            &$this,
            from: ($crate::Ino, &[u8]),
            to: ($crate::Ino, &[u8]),
            flags: $crate::RenameFlags,
        ) -> $crate::Result<()> {
            $to.rename(from, to, flags)
        }
    };
    ($this:ident => $to:expr; rename_whiteout) => {
        fn rename_whiteout(
            &$this,
            caller: &$crate::Caller,
            from: ($crate::Ino, &[u8]),
            to: ($crate::Ino, &[u8]),
            flags: $crate::RenameFlags,
        ) -> $crate::Result<()> {
            $to.rename_whiteout(caller, from, to, flags)
        }
    };
    ($this:ident => $to:expr; readdir) => {
        fn readdir(
            &$this,
            dir: $crate::Ino,
            cookie: u64,
            emit: &mut dyn FnMut(&$crate::DirEntry<'_>) -> bool,
        ) -> $crate::Result<()> {
            $to.readdir(dir, cookie, emit)
        }
    };
    ($this:ident => $to:expr; read) => {
        fn read(&$this, ino: $crate::Ino, offset: u64, buf: &mut [u8]) -> $crate::Result<usize> {
            $to.read(ino, offset, buf)
        }
    };
    ($this:ident => $to:expr; write) => {
        fn write(&$this, ino: $crate::Ino, offset: u64, data: &[u8]) -> $crate::Result<()> {
            $to.write(ino, offset, data)
        }
    };
    ($this:ident => $to:expr; append) => {
        fn append(&$this, ino: $crate::Ino, data: &[u8]) -> $crate::Result<u64> {
            $to.append(ino, data)
        }
    };
    ($this:ident => $to:expr; drop_privileges) => {
        fn drop_privileges(&$this, ino: $crate::Ino) -> $crate::Result<()> {
            $to.drop_privileges(ino)
        }
    };
    ($this:ident => $to:expr; fallocate) => {
        fn fallocate(
            &$this,
            ino: $crate::Ino,
            mode: $crate::Fallocate,
            offset: u64,
            len: u64,
        ) -> $crate::Result<()> {
            $to.fallocate(ino, mode, offset, len)
        }
    };
    ($this:ident => $to:expr; seek) => {
        fn seek(&$this, ino: $crate::Ino, offset: u64, whence: $crate::Seek) -> $crate::Result<u64> {
            $to.seek(ino, offset, whence)
        }
    };
    ($this:ident => $to:expr; copy_range) => {
        fn copy_range(
            &$this,
            from: ($crate::Ino, u64),
            to: ($crate::Ino, u64),
            len: u64,
        ) -> $crate::Result<u64> {
            $to.copy_range(from, to, len)
        }
    };
    ($this:ident => $to:expr; clone_range) => {
        fn clone_range(
            &$this,
            from: ($crate::Ino, u64),
            to: ($crate::Ino, u64),
            len: u64,
        ) -> $crate::Result<()> {
            $to.clone_range(from, to, len)
        }
    };
    ($this:ident => $to:expr; fsync) => {
        fn fsync(&$this, ino: $crate::Ino) -> $crate::Result<()> {
            $to.fsync(ino)
        }
    };
    ($this:ident => $to:expr; sync) => {
        fn sync(&$this) -> $crate::Result<()> {
            $to.sync()
        }
    };
    ($this:ident => $to:expr; getxattr) => {
        fn getxattr(&$this, ino: $crate::Ino, name: &[u8]) -> $crate::Result<Vec<u8>> {
            $to.getxattr(ino, name)
        }
    };
    ($this:ident => $to:expr; setxattr) => {
        fn setxattr(
            &$this,
            ino: $crate::Ino,
            name: &[u8],
            value: &[u8],
            mode: $crate::SetXattr,
        ) -> $crate::Result<()> {
            $to.setxattr(ino, name, value, mode)
        }
    };
    ($this:ident => $to:expr; listxattr) => {
        fn listxattr(&$this, ino: $crate::Ino) -> $crate::Result<Vec<Vec<u8>>> {
            $to.listxattr(ino)
        }
    };
    ($this:ident => $to:expr; removexattr) => {
        fn removexattr(&$this, ino: $crate::Ino, name: &[u8]) -> $crate::Result<()> {
            $to.removexattr(ino, name)
        }
    };
    ($this:ident => $to:expr; statfs) => {
        fn statfs(&$this) -> $crate::StatFs {
            $to.statfs()
        }
    };
    ($this:ident => $to:expr; lookup_into) => {
        fn lookup_into(
            &$this,
            dir: $crate::Ino,
            name: &[u8],
            entry: &mut $crate::Entry,
        ) -> $crate::Result<()> {
            $to.lookup_into(dir, name, entry)
        }
    };
    ($this:ident => $to:expr; peek_into) => {
        fn peek_into(
            &$this,
            dir: $crate::Ino,
            name: &[u8],
            attr: &mut $crate::Attr,
        ) -> $crate::Result<()> {
            $to.peek_into(dir, name, attr)
        }
    };
    ($this:ident => $to:expr; map_range) => {
        fn map_range(
            &$this,
            ino: $crate::Ino,
            range: std::ops::Range<u64>,
            stores: bool,
        ) -> $crate::Result<Vec<$crate::Extent>> {
            $to.map_range(ino, range, stores)
        }
    };
    ($this:ident => $to:expr; unmap_range) => {
        fn unmap_range(&$this, ino: $crate::Ino, stores: bool, is_durable: bool) {
            $to.unmap_range(ino, stores, is_durable);
        }
    };
    ($this:ident => $to:expr; sync_range) => {
        fn sync_range(
            &$this,
            ino: $crate::Ino,
            range: std::ops::Range<u64>,
            stores: bool,
        ) -> $crate::Result<()> {
            $to.sync_range(ino, range, stores)
        }
    };
    ($this:ident => $to:expr; version) => {
        fn version(&$this, ino: $crate::Ino) -> Option<u64> {
            $to.version(ino)
        }
    };
    ($this:ident => $to:expr; close) => {
        fn close(&$this) -> $crate::Result<()> {
            $to.close()
        }
    };
}
