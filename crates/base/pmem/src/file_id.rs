//! The file that a region maps.

/// The identity and owner of the file or device of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileId {
    /// Device that holds the file; of a devdax device, its own number.
    pub device: u64,
    /// Inode number.
    pub inode: u64,
    /// Owner.
    pub owner: u32,
    /// Group.
    pub group: u32,
    /// Permission bits.
    pub mode: u32,
}
