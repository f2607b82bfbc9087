//! Errors of opening and making pools.

use std::io;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

/// The reason that a pool was not opened or made. Its text names the pool and the known remedy.
#[derive(Debug, thiserror::Error)]
#[error("{}: {source}", .path.display())]
pub struct PoolError {
    path: PathBuf,
    source: Box<dyn std::error::Error + Send + Sync>,
}

impl PoolError {
    pub(crate) fn new(
        path: &Path,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self { path: path.to_owned(), source: source.into() }
    }

    /// Returns the path of the pool.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the error number: that of the kernel if it refused the file (`ENOENT`, `EACCES`, …),
    /// `EINVAL` if the file is no pool, `EUCLEAN` if the pool is damaged, `EBUSY` if a mount has it
    /// for itself, `EOPNOTSUPP` if it is a cache.
    pub fn errno(&self) -> i32 {
        errno_of(&*self.source).raw_os_error()
    }
}

impl From<PoolError> for io::Error {
    fn from(err: PoolError) -> Self {
        let kind = io::Error::from_raw_os_error(err.errno()).kind();
        io::Error::new(kind, err)
    }
}

/// Returns the error number for a pool that cannot be opened.
#[doc(hidden)]
pub fn errno_of(err: &(dyn std::error::Error + 'static)) -> Errno {
    let of = |err: &io::Error| Errno::from_io_error(err).unwrap_or(Errno::IO);
    if let Some(err) = err.downcast_ref::<pmem::Error>() {
        return Errno::from_raw_os_error(err.errno());
    }
    if let Some(err) = err.downcast_ref::<io::Error>() {
        return of(err);
    }
    match err.downcast_ref::<pool::Error>() {
        Some(pool::Error::NotAPool(_) | pool::Error::Unformattable(_)) => Errno::INVAL,
        Some(pool::Error::NoSnapshot(_)) => Errno::NOENT,
        Some(pool::Error::Damaged(_)) => Errno::UCLEAN,
        Some(pool::Error::Memory(err) | pool::Error::Shared(err)) => of(err),
        Some(pool::Error::Errno(errno)) => *errno,
        _ => Errno::IO,
    }
}
