//! One call of the contract as a value that can be printed, stored and replayed.

use rng::Rng;
use serde::{Deserialize, Serialize};

use crate::acl::{ACL_ACCESS, ACL_DEFAULT, Acl, AclEntry, Tag};
use crate::{Fallocate, Limits, Seek, SetAttr, SetXattr};

/// How many inodes a sequence can hold open.
pub const SLOTS: u8 = 6;

/// Index into a universe of few names, so that calls meet: 0 to 3 are mostly directories, 4 to 7
/// mostly something else, from 8 on come names that calls refuse or treat specially.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Name(pub u8);

impl Name {
    pub(super) const DIRS: u8 = 4;
    pub(super) const ODD: u8 = 8;
    const DOTDOT: u8 = 9;
    pub(super) const COUNT: u8 = 14;

    /// The name itself, in a file system with these limits.
    pub fn bytes(self, limits: &Limits) -> Vec<u8> {
        match self.0 {
            0 => b"d".to_vec(),
            1 => b"sub".to_vec(),
            2 => vec![b'n'; limits.name],
            3 => b"\xff\xfe".to_vec(),
            4 => b"f".to_vec(),
            5 => b"file".to_vec(),
            6 => b"a longer name that takes more room".to_vec(),
            7 => b"g".to_vec(),
            Self::ODD => b".".to_vec(),
            Self::DOTDOT => b"..".to_vec(),
            10 => Vec::new(),
            11 => b"d/f".to_vec(),
            12 => b"nul\0".to_vec(),
            _ => vec![b'x'; limits.name + 1],
        }
    }

    /// Whether this is among the names that are mostly directories.
    pub(super) fn is_for_dirs(self) -> bool {
        self.0 < Self::DIRS
    }

    /// Whether this is `..`, which leads out of a directory that stands for a root.
    pub(super) fn is_dotdot(self) -> bool {
        self.0 == Self::DOTDOT
    }
}

/// Which inode a call is about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// The one that these names lead to from the root.
    Path(Vec<Name>),
    /// The one that this slot holds open.
    Slot(u8),
}

/// A name in a directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntryName {
    /// The directory.
    pub dir: Target,
    /// The name in it.
    pub name: Name,
}

/// A place in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pos {
    /// Bytes from the start.
    At(u64),
    /// Bytes from the end.
    End(i64),
    /// Bytes from where the largest file ends.
    Limit(i64),
}

/// A kind to create.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Make {
    /// Regular file.
    File,
    /// Directory.
    Dir,
    /// Symbolic link with a target of this many bytes.
    Symlink(u16),
    /// Named pipe.
    Fifo,
    /// Unix-domain socket.
    Socket,
    /// Character device with this number.
    Char(u32),
    /// Block device with this number.
    Block(u32),
}

/// Name of an extended attribute, from a universe of few.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Attribute {
    /// `user.<n>`
    User(u8),
    /// `trusted.a`
    Trusted,
    /// `security.capability`
    Capability,
    /// The access ACL.
    Access,
    /// The default ACL.
    Default,
    /// One in no known namespace.
    Unknown,
}

impl Attribute {
    /// The name itself.
    pub fn bytes(self) -> Vec<u8> {
        match self {
            Self::User(n) => format!("user.{n}").into_bytes(),
            Self::Trusted => b"trusted.a".to_vec(),
            Self::Capability => b"security.capability".to_vec(),
            Self::Access => ACL_ACCESS.to_vec(),
            Self::Default => ACL_DEFAULT.to_vec(),
            Self::Unknown => b"nobody.knows".to_vec(),
        }
    }
}

/// Bytes to write: `len` of them, which `fill` decides; all zeros where it is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Data {
    /// How many.
    pub len: u32,
    /// Which.
    pub fill: u32,
}

impl Data {
    /// The bytes themselves.
    pub fn bytes(self) -> Vec<u8> {
        if self.fill == 0 {
            return vec![0; self.len as usize];
        }
        let mut rng = Rng::new(u64::from(self.fill));
        let words = (0..self.len.div_ceil(8)).flat_map(|_| rng.next().to_le_bytes());
        words.take(self.len as usize).collect()
    }
}

/// The value of an extended attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Value {
    /// Any bytes.
    Data(Data),
    /// A valid ACL: permissions of owner, user 1000, group, mask, others, three bits each; without
    /// the user and the mask where `plain`.
    Acl {
        /// The permissions.
        perms: u16,
        /// Says no more than a mode.
        plain: bool,
    },
}

impl Value {
    /// The value itself.
    pub fn bytes(self) -> Vec<u8> {
        let (perms, plain) = match self {
            Self::Data(data) => return data.bytes(),
            Self::Acl { perms, plain } => (perms, plain),
        };
        let tags = [Tag::UserObj, Tag::User(1000), Tag::GroupObj, Tag::Mask, Tag::Other];
        let entries = tags.into_iter().zip([12, 9, 6, 3, 0]);
        let entries = entries.map(|(tag, shift)| AclEntry { tag, perm: perms >> shift & 7 });
        let kept = entries.filter(|e| !plain || !matches!(e.tag, Tag::User(_) | Tag::Mask));
        Acl::new(kept).to_bytes()
    }
}

/// Who calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Who {
    /// 0:0
    Root,
    /// 1000:100
    User,
}

/// One call. What it returns can be kept in a slot, from which a later call takes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the variants are the methods of FileSystem, the fields arguments")]
pub enum Op {
    Lookup { at: EntryName, keep: Option<u8> },
    Forget { slot: u8 },
    Getattr { of: Target },
    Setattr { of: Target, set: SetAttr },
    Truncate { of: Target, size: Pos },
    Create { who: Who, at: EntryName, make: Make, mode: u32, umask: u32, keep: Option<u8> },
    Tmpfile { who: Who, dir: Target, mode: u32, umask: u32, keep: u8 },
    Readlink { of: Target },
    Unlink { at: EntryName },
    Rmdir { at: EntryName },
    Link { of: Target, at: EntryName },
    Rename { from: EntryName, to: EntryName, flags: u32 },
    Readdir { of: Target, batch: u8 },
    Read { of: Target, offset: Pos, len: u32 },
    Write { of: Target, offset: Pos, data: Data },
    Append { of: Target, data: Data },
    DropPrivileges { of: Target },
    Fallocate { of: Target, mode: Fallocate, offset: Pos, len: u64 },
    Seek { of: Target, offset: Pos, whence: Seek },
    CopyRange { from: Target, from_offset: Pos, to: Target, to_offset: Pos, len: u64 },
    Fsync { of: Target },
    Getxattr { of: Target, name: Attribute },
    Setxattr { of: Target, name: Attribute, value: Value, mode: SetXattr },
    Listxattr { of: Target },
    Removexattr { of: Target, name: Attribute },
    Statfs,
}
