//! The format of a cache in its pool: `docs/format/pmcache.md` in Rust.

use serde::{Deserialize, Serialize};
use vfs::{Attr, Errno, Result, SetAttr, Timestamp};
use zerocopy::byteorder::little_endian::{I64, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Name of the file that marks a pool as the cache of a directory.
pub const MARK: &[u8] = b"cache";
/// Name of the directory of shadow files.
pub const NODES: &[u8] = b"nodes";
/// Name of the directory of bitmaps.
pub const DIRTY: &[u8] = b"dirty";
/// The attribute of a shadow file that holds its [`Record`].
pub const RECORD: &[u8] = b"user.keepstone.cnode";
/// The attribute of a shadow file that holds its [`Birth`].
pub const BIRTH: &[u8] = b"user.keepstone.birth";
/// The attribute of a shadow file that holds its [`ShownCtime`].
pub const CTIME: &[u8] = b"user.keepstone.ctime";
/// Version of this format.
pub const VERSION: u32 = 1;
/// The maximum size of a mark, in bytes.
pub const MARK_MAX: u64 = 16 << 10;
/// The maximum size of a kernel file, in bytes.
pub const OFFSET_MAX: u64 = i64::MAX as u64;
/// The maximum length of a path in a record, in bytes; longer ones are not stored.
pub const HINT_MAX: usize = 2048;

/// The content of [`MARK`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    /// [`VERSION`].
    pub version: u32,
    /// Path of the directory when the pool became its cache, for messages.
    pub directory: String,
    /// Identity of its root, in hexadecimal.
    pub root: String,
}

/// The record of a backing file in its shadow file: a *Cnode* (Chell §4.1.1) without the map of its
/// pages, which is the shadow's own tree of blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The operations under way.
    pub state: Flags,
    /// The backing file as the cache left it.
    pub left: Fingerprint,
    /// A change of the backing file that has to be repeated after a crash.
    pub intent: Option<Punch>,
    /// The identity of the file.
    pub identity: Vec<u8>,
    /// Its last known path, relative to the root.
    pub hint: Vec<u8>,
}

bitflags::bitflags! {
    /// States of a backing file.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Flags: u32 {
        /// The cache is changing it: the fingerprint may be from before or after the change.
        const BUSY = 1;
        /// Its last name was or is being removed through the cache.
        const ORPHAN = 2;
        /// Another process has changed it while the cache had data that was not written back.
        const CONFLICT = 4;
        /// It is pinned.
        const PINNED = 8;
        /// It is not known to be synced as the fingerprint describes: a power failure may bring
        /// back an earlier state.
        const UNSYNCED = 16;
    }
}

/// The attributes by which the cache detects that another process has changed a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fingerprint {
    /// The size in bytes.
    pub size: u64,
    /// The time of the last change of the content.
    pub mtime: Timestamp,
    /// The time of the last change of the inode.
    pub ctime: Timestamp,
}

/// A range of a file that is replaced by zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Punch {
    /// Its first byte.
    pub offset: u64,
    /// The number of bytes; not 0.
    pub len: u64,
}

/// The time of the last change of a file, stored if writing it back changed the backing file's
/// time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShownCtime {
    /// The backing file's time. If that has another time, this value is invalid.
    pub left: Timestamp,
    /// The time of the last change of the file.
    pub shown: Timestamp,
}

impl ShownCtime {
    /// Returns the stored form.
    pub fn to_bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.left.0.to_le_bytes());
        bytes[8..].copy_from_slice(&self.shown.0.to_le_bytes());
        bytes
    }

    /// Parses the stored form; `None` if it is invalid.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (left, shown) = bytes.split_at_checked(8)?;
        let time = |bytes: &[u8]| Some(Timestamp(i64::from_le_bytes(bytes.try_into().ok()?)));
        Some(Self { left: time(left)?, shown: time(shown)? })
    }
}

impl Fingerprint {
    /// Makes the fingerprint of a file with these attributes.
    pub fn of(attr: &Attr) -> Self {
        Self { size: attr.size, mtime: attr.mtime, ctime: attr.ctime }
    }

    /// Returns whether the content is the same. If only `ctime` differs, only the inode has
    /// changed. But a program that restores `mtime` goes unnoticed.
    pub fn has_same_content(&self, other: &Self) -> bool {
        (self.size, self.mtime) == (other.size, other.mtime)
    }
}

/// The bytes of a [`Record`] before its hint.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Bytes {
    version: U32,
    flags: U32,
    size: U64,
    mtime: I64,
    ctime: I64,
    punch_offset: U64,
    punch_len: U64,
    identity_len: U64,
}

impl Record {
    /// Returns whether a backing file with this fingerprint after a crash is in a state that the
    /// cache left, at the end or since the last sync of the backing store. The change time
    /// distinguishes older states from changes by other processes: it only grows, and programs
    /// cannot set it.
    pub fn may_have_left(&self, found: &Fingerprint) -> bool {
        let is_older = || found.ctime <= self.left.ctime;
        self.state.contains(Flags::BUSY)
            || found.has_same_content(&self.left)
            || self.state.contains(Flags::UNSYNCED) && is_older()
    }

    /// Returns the stored form.
    pub fn to_bytes(&self) -> Vec<u8> {
        let punch = self.intent.unwrap_or(Punch { offset: 0, len: 0 });
        let bytes = Bytes {
            version: VERSION.into(),
            flags: self.state.bits().into(),
            size: self.left.size.into(),
            mtime: self.left.mtime.0.into(),
            ctime: self.left.ctime.0.into(),
            punch_offset: punch.offset.into(),
            punch_len: punch.len.into(),
            identity_len: (self.identity.len() as u64).into(),
        };
        let hint = if self.hint.len() <= HINT_MAX { &self.hint[..] } else { &[] };
        [bytes.as_bytes(), &self.identity, hint].concat()
    }

    /// Parses the stored form.
    ///
    /// # Errors
    /// `EUCLEAN` if they are not a record.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let (bytes, rest) = Bytes::read_from_prefix(bytes).map_err(|_| Errno::UCLEAN)?;
        let parts =
            usize::try_from(bytes.identity_len.get()).ok().and_then(|n| rest.split_at_checked(n));
        let (identity, hint) = parts.ok_or(Errno::UCLEAN)?;
        let state = Flags::from_bits(bytes.flags.get()).ok_or(Errno::UCLEAN)?;
        let punch = Punch { offset: bytes.punch_offset.get(), len: bytes.punch_len.get() };
        let is_sound = bytes.version.get() == VERSION
            && (1..=backing::Identity::LEN_MAX).contains(&identity.len())
            && hint.len() <= HINT_MAX
            && bytes.size.get() <= OFFSET_MAX
            && punch.offset.checked_add(punch.len).is_some_and(|end| end <= OFFSET_MAX);
        if !is_sound {
            return Err(Errno::UCLEAN);
        }
        let left = Fingerprint {
            size: bytes.size.get(),
            mtime: Timestamp(bytes.mtime.get()),
            ctime: Timestamp(bytes.ctime.get()),
        };
        let intent = (punch.len > 0).then_some(punch);
        Ok(Self { state, left, intent, identity: identity.to_vec(), hint: hint.to_vec() })
    }
}

/// The creation of a file that may not be durable in the backing store, with all that is needed to
/// create the file again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Birth {
    /// Permissions, without set-user-ID, set-group-ID and sticky bits.
    pub perm: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Identity of the directory.
    pub parent: Vec<u8>,
    /// Name in it.
    pub name: Vec<u8>,
    /// Identity of the file that was created again with all of the content; empty before that.
    pub again: Vec<u8>,
}

/// The bytes of a [`Birth`] before its identities and its name.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct BirthBytes {
    version: U32,
    perm: U32,
    uid: U32,
    gid: U32,
    parent_len: U32,
    name_len: U32,
    again_len: U32,
}

impl Birth {
    /// Returns whether a file has the recorded permissions and owner.
    pub fn is_of(&self, attr: &Attr) -> bool {
        (self.perm, self.uid, self.gid) == (attr.perm, attr.uid, attr.gid)
    }

    /// Returns the same creation with the current permissions and owner of the file.
    #[must_use]
    pub fn with(self, attr: &Attr) -> Self {
        Self { perm: attr.perm, uid: attr.uid, gid: attr.gid, ..self }
    }

    /// Returns the change that gives a file the recorded permissions and owner.
    pub fn to_set(&self) -> SetAttr {
        SetAttr {
            perm: Some(self.perm),
            uid: Some(self.uid),
            gid: Some(self.gid),
            ..SetAttr::default()
        }
    }

    /// Returns the stored form.
    pub fn to_bytes(&self) -> Vec<u8> {
        let len = |bytes: &[u8]| (bytes.len() as u32).into();
        let bytes = BirthBytes {
            version: VERSION.into(),
            perm: self.perm.into(),
            uid: self.uid.into(),
            gid: self.gid.into(),
            parent_len: len(&self.parent),
            name_len: len(&self.name),
            again_len: len(&self.again),
        };
        [bytes.as_bytes(), &self.parent, &self.name, &self.again].concat()
    }

    /// Parses the stored form.
    ///
    /// # Errors
    /// `EUCLEAN` if they are not a birth.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let (bytes, rest) = BirthBytes::read_from_prefix(bytes).map_err(|_| Errno::UCLEAN)?;
        let split = |from: &'_ [u8], len: U32| {
            let parts = from.split_at_checked(len.get() as usize).ok_or(Errno::UCLEAN)?;
            Ok::<_, Errno>((parts.0.to_vec(), parts.1.to_vec()))
        };
        let (parent, rest) = split(rest, bytes.parent_len)?;
        let (name, rest) = split(&rest, bytes.name_len)?;
        let (again, rest) = split(&rest, bytes.again_len)?;
        let most = backing::Identity::LEN_MAX;
        let is_sound = bytes.version.get() == VERSION
            && bytes.perm.get() & !0o777 == 0
            && (1..=most).contains(&parent.len())
            && again.len() <= most
            && rest.is_empty()
            && (1..=255).contains(&name.len())
            && !matches!(&name[..], b"." | b"..")
            && !name.iter().any(|byte| matches!(byte, b'/' | 0));
        let (perm, uid, gid) = (bytes.perm.get(), bytes.uid.get(), bytes.gid.get());
        is_sound.then_some(Self { perm, uid, gid, parent, name, again }).ok_or(Errno::UCLEAN)
    }
}

/// Returns the name of the shadow file and of the bitmap for a file with this identity. It has four
/// letters for three bytes, so that 160 bytes fit into a name.
pub fn name_of(identity: &[u8]) -> Vec<u8> {
    const DIGITS: &[u8; 64] = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_-";
    let mut name = Vec::with_capacity(identity.len().div_ceil(3) * 4);
    for three in identity.chunks(3) {
        let bits = three.iter().fold(0u32, |bits, byte| bits << 8 | u32::from(*byte));
        let bits = bits << (8 * (3 - three.len()));
        let digits = (0..=three.len()).map(|i| DIGITS[(bits >> (18 - 6 * i) & 63) as usize]);
        name.extend(digits);
    }
    name
}

/// Returns the identity from which [`name_of`] made a name.
pub fn identity_of(name: &[u8]) -> Option<Vec<u8>> {
    let value = |digit: u8| match digit {
        b'0'..=b'9' => Some(u32::from(digit - b'0')),
        b'a'..=b'z' => Some(u32::from(digit - b'a') + 10),
        b'A'..=b'Z' => Some(u32::from(digit - b'A') + 36),
        b'_' => Some(62),
        b'-' => Some(63),
        _ => None,
    };
    let mut identity = Vec::with_capacity(name.len() / 4 * 3 + 3);
    for four in name.chunks(4) {
        if four.len() == 1 {
            return None;
        }
        let mut bits = 0;
        for (i, digit) in four.iter().enumerate() {
            bits |= value(*digit)? << (18 - 6 * i);
        }
        identity.extend_from_slice(&bits.to_be_bytes()[1..four.len()]);
    }
    (name_of(&identity) == name).then_some(identity)
}

/// Returns a path or a name for display, with control characters escaped.
pub fn shown(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let plain = |letter: char| match letter.is_control() {
        true => letter.escape_default().to_string(),
        false => letter.to_string(),
    };
    text.chars().map(plain).collect()
}

/// Returns bytes as hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_by_others_are_told_from_older_states() {
        let print = |size, mtime, ctime| Fingerprint {
            size,
            mtime: Timestamp(mtime),
            ctime: Timestamp(ctime),
        };
        let [left, attributes] = [print(7, 20, 20), print(7, 20, 30)];
        let [older, later, dated] = [print(5, 10, 10), print(9, 30, 30), print(5, 10, 30)];
        for (state, ours) in [
            (Flags::empty(), &[left, attributes][..]),
            (Flags::ORPHAN, &[left, attributes]),
            (Flags::UNSYNCED, &[left, attributes, older]),
            (Flags::BUSY, &[left, attributes, older, later, dated]),
        ] {
            let (identity, hint) = (vec![1], vec![]);
            let record = Record { state, left, intent: None, identity, hint };
            for found in [left, attributes, older, later, dated] {
                assert_eq!(record.may_have_left(&found), ours.contains(&found), "{state:?}");
            }
        }
    }

    #[test]
    fn times_of_change_survive() {
        let kept = ShownCtime { left: Timestamp(7), shown: Timestamp(-5) };
        assert_eq!(ShownCtime::from_bytes(&kept.to_bytes()), Some(kept));
        for len in [0, 7, 8, 15, 17] {
            assert_eq!(ShownCtime::from_bytes(&vec![1; len]), None, "{len}");
        }
    }

    #[test]
    fn records_come_back() {
        let left = Fingerprint { size: 7, mtime: Timestamp(-5), ctime: Timestamp(9) };
        let intent = Some(Punch { offset: 4096, len: 1 });
        let record = Record {
            state: Flags::BUSY,
            left,
            intent,
            identity: vec![1, 2],
            hint: b"a/b".to_vec(),
        };
        assert_eq!(Record::from_bytes(&record.to_bytes()), Ok(record.clone()));
        let long = Record { hint: vec![b'x'; HINT_MAX + 1], ..record.clone() };
        assert_eq!(Record::from_bytes(&long.to_bytes()).unwrap().hint, b"");
        for cut in 0..size_of::<Bytes>() {
            assert_eq!(Record::from_bytes(&record.to_bytes()[..cut]), Err(Errno::UCLEAN));
        }
        let mut wrong = record.to_bytes();
        wrong[4] = 0xff;
        assert_eq!(Record::from_bytes(&wrong), Err(Errno::UCLEAN));
    }

    #[test]
    fn no_record_leads_beyond_what_files_have() {
        let record = Record {
            state: Flags::empty(),
            left: Fingerprint::default(),
            intent: Some(Punch { offset: 1, len: OFFSET_MAX - 1 }),
            identity: vec![1],
            hint: vec![],
        };
        assert!(Record::from_bytes(&record.to_bytes()).is_ok());
        let punch = Some(Punch { offset: 2, len: OFFSET_MAX - 1 });
        let wrong = Record { intent: punch, ..record.clone() };
        assert_eq!(Record::from_bytes(&wrong.to_bytes()), Err(Errno::UCLEAN));
        let left = Fingerprint { size: OFFSET_MAX + 1, ..Fingerprint::default() };
        let wrong = Record { left, ..record };
        assert_eq!(Record::from_bytes(&wrong.to_bytes()), Err(Errno::UCLEAN));
        // Arbitrary bytes are parsed or refused.
        for seed in 0..2000u64 {
            let mut word = seed;
            let bytes: Vec<u8> = (0..seed as usize % 300)
                .map(|_| {
                    word = word.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    (word >> 33) as u8 & [0xff, 1, 0][(word >> 60) as usize % 3]
                })
                .collect();
            let _ = (Record::from_bytes(&bytes), Birth::from_bytes(&bytes), identity_of(&bytes));
        }
        assert_eq!(shown(b"a\n\x1b[2Jb\xff"), "a\\n\\u{1b}[2Jb\u{fffd}");
    }

    fn birth() -> Birth {
        Birth {
            perm: 0o640,
            uid: 1,
            gid: 2,
            parent: vec![3; 20],
            name: b"name".to_vec(),
            again: vec![4; 7],
        }
    }

    /// Records can be those of another user's pool, which root has copied.
    #[test]
    fn no_record_gives_a_file_set_user_id() {
        for perm in [0o4755, 0o2755, 0o1777, 0o7000, 0o10_0755] {
            let wrong = Birth { perm, ..birth() };
            assert_eq!(Birth::from_bytes(&wrong.to_bytes()), Err(Errno::UCLEAN), "{perm:o}");
        }
    }

    #[test]
    fn births_come_back() {
        let birth = birth();
        let bytes = birth.to_bytes();
        assert_eq!(Birth::from_bytes(&bytes), Ok(birth.clone()));
        for cut in 0..bytes.len() {
            assert_eq!(Birth::from_bytes(&bytes[..cut]), Err(Errno::UCLEAN), "{cut}");
        }
        for name in [&b""[..], b".", b"..", b"a/b", b"a\0b", &[b'x'; 256]] {
            let wrong = Birth { name: name.to_vec(), ..birth.clone() };
            assert_eq!(Birth::from_bytes(&wrong.to_bytes()), Err(Errno::UCLEAN), "{name:?}");
        }
        let wrong = Birth { parent: vec![], ..birth };
        assert_eq!(Birth::from_bytes(&wrong.to_bytes()), Err(Errno::UCLEAN));
    }

    #[test]
    fn names_come_back_and_are_names() {
        for len in 1..=160 {
            let identity: Vec<u8> = (0..len).map(|i| (i * 37 + len) as u8).collect();
            let name = name_of(&identity);
            assert!(name.len() <= 255 && !name.contains(&b'/'), "{len}");
            assert_eq!(identity_of(&name), Some(identity));
        }
        for wrong in [&b"0"[..], b"!!!!", b"0001a", b"01"] {
            assert_eq!(identity_of(wrong), None, "{wrong:?}");
        }
    }
}
