//! Redo records. They commit overwrites of a part of a block in place, data or pointers. They also
//! commit words that change together wherever they lie: in inodes, and in directories.
//!
//! To change more of a block than the CPU stores at once, shadow paging (§3.2) copies the whole
//! block. To change two blocks, it also copies all blocks above them. A record costs twice the
//! changed bytes, and one or two more fences.
//!
//! - redo-R1: a record is durable before any byte in place is stored. That is the commit.
//! - redo-R2: a record is durably cleared before the locks of the data it changes are given back.
//!   While it is valid, the locks protect its bytes, so no two valid records have a byte in common.
//!   So a mount can store valid records in any order.
//! - redo-R3: a record is valid if its checksum matches its content, so that its lines need no
//!   order.
//! - redo-R4: blocks that the bytes of a record lead to are durable before the record is stored,
//!   which may persist at any time from then on.

use crate::layout::{BLOCK, FIRST_INODES, records::*};
use namespace::Words;
use pmem::{Fenced, LINE, Medium, Pm, PmOff};
use smallvec::SmallVec;

/// The content of a record.
#[derive(Debug, PartialEq, Eq)]
pub enum RedoRecord {
    /// Bytes, and the place to which they go.
    Bytes(PmOff, Vec<u8>),
    /// Words, each with its place.
    Words(Words),
}

impl RedoRecord {
    /// Returns the bytes to store, with their places.
    pub fn bytes(&self) -> Vec<(PmOff, Vec<u8>)> {
        match self {
            Self::Bytes(at, data) => vec![(*at, data.clone())],
            Self::Words(words) => {
                words.iter().map(|(at, value)| (*at, value.to_le_bytes().to_vec())).collect()
            }
        }
    }
}

/// Returns the place of a record.
fn place_of(number: u64) -> PmOff {
    START + number % COUNT * BYTES
}

/// Packs the place and length of `len` bytes into one word. Words contain their places themselves,
/// and have [`WORDS`] here.
fn target(at: PmOff, len: usize) -> u64 {
    at.get() | (len as u64) << LEN_SHIFT
}

/// Marks a record of words, each behind its own place, instead of a place of bytes.
const WORDS: PmOff = PmOff::new(0);

/// Returns a bijective mix of the bits of `x`.
fn mix(x: u64) -> u64 {
    let x = x.wrapping_mul(0xd6e8_feb8_6659_fd93);
    x ^ x >> 32
}

/// Returns the checksum of the bytes that follow it in the record of this number; never 0. It is a
/// sum, so that the CPU can work on several words at once.
fn checksum(number: u64, rest: &[u8]) -> u64 {
    let words = rest.chunks_exact(8).map(|bytes| bytes.try_into().expect("eight bytes"));
    let place = |nth: u64| nth.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let terms = (1..).zip(words).map(|(nth, word)| mix(u64::from_le_bytes(word) ^ place(nth)));
    mix(terms.fold(number % COUNT, u64::wrapping_add)).max(1)
}

/// Returns the number of bytes of a record with this many bytes of data: whole lines.
fn lines_of(len: usize) -> usize {
    (HEADER as usize + len).next_multiple_of(LINE as usize)
}

/// Encodes a record; lines that its data does not reach are zeros.
fn encode(number: u64, at: PmOff, data: &[u8]) -> [u8; BYTES as usize] {
    let mut record = [0; BYTES as usize];
    record[8..16].copy_from_slice(&target(at, data.len()).to_le_bytes());
    record[HEADER as usize..][..data.len()].copy_from_slice(data);
    let checksum = checksum(number, &record[8..lines_of(data.len())]);
    record[..8].copy_from_slice(&checksum.to_le_bytes());
    record
}

/// Overwrites durable bytes by the record of this number, which no other thread or process uses
/// meanwhile. Blocks that the new bytes lead to are `ready`.
pub fn overwrite<M: Medium>(medium: &Pm<M>, number: u64, at: PmOff, data: &[u8], _ready: Fenced) {
    // The lines arrive while the record is being written.
    medium.prefetch(at, data.len() as u64);
    let place = place_of(number);
    // From here on, changes to the program's buffer have no effect.
    let record = encode(number, at, data);
    // Past the cache, because lines that were flushed last are not in it.
    medium.write_nt(place, &record[..lines_of(data.len())]);
    // The commit (redo-R1).
    let recorded = medium.fence();
    let stored = store(medium, at, &record[HEADER as usize..][..data.len()], recorded);
    clear(medium, place, stored);
}

/// Commits words together by the record of this number, which no other thread or process uses
/// meanwhile. The old words are durable; blocks that the new words lead to are `ready` (redo-R4).
pub fn commit<M: Medium>(medium: &Pm<M>, number: u64, words: &[(PmOff, u64)], _ready: Fenced) {
    let place = place_of(number);
    let mut data = SmallVec::<[u8; 8 * WORD_BYTES]>::new();
    for (at, value) in words {
        medium.prefetch(*at, 8);
        data.extend_from_slice(&at.get().to_le_bytes());
        data.extend_from_slice(&value.to_le_bytes());
    }
    medium.write_nt(place, &encode(number, WORDS, &data)[..lines_of(data.len())]);
    // The commit (redo-R1).
    let recorded = medium.fence();
    let stored = store_words(medium, words, recorded);
    clear(medium, place, stored);
}

/// Stores the words of a durable record in place, durably.
fn store_words<M: Medium>(medium: &Pm<M>, words: &[(PmOff, u64)], recorded: Fenced) -> Fenced {
    for (at, value) in words {
        medium.publish_word(*at, *value, recorded.for_another());
    }
    // Words of a line are consecutive.
    for line in words.chunk_by(|(one, _), (next, _)| one.line() == next.line()) {
        medium.flush(line[0].0, 8);
    }
    medium.fence()
}

/// Stores the bytes of a durable record in place, durably.
fn store<M: Medium>(medium: &Pm<M>, at: PmOff, data: &[u8], _recorded: Fenced) -> Fenced {
    medium.write(at, data);
    medium.flush(at, data.len() as u64);
    medium.fence()
}

/// Clears the first line of a record, durably, after its bytes were `stored` (redo-R2).
fn clear<M: Medium>(medium: &Pm<M>, place: PmOff, _stored: Fenced) {
    medium.write_nt(place, &[0; LINE as usize]);
    let _ = medium.fence();
}

/// Reads the record of this number; `None` if it is not valid (redo-R3).
fn read<M: Medium>(medium: &Pm<M>, number: u64, pool_bytes: u64) -> Option<RedoRecord> {
    let place = place_of(number);
    if medium.load_u64(place) == 0 {
        return None;
    }
    let mut record = [0; BYTES as usize];
    medium.read(place, &mut record);
    let word = |i: usize| u64::from_le_bytes(record[i..i + 8].try_into().expect("eight bytes"));
    let (at, len) = (word(8) & ((1 << LEN_SHIFT) - 1), (word(8) >> LEN_SHIFT) as usize);
    if !(1..=DATA_MAX).contains(&len) || word(0) != checksum(number, &record[8..lines_of(len)]) {
        return None;
    }
    let is_inside = |at: u64, len: usize| {
        (FIRST_INODES.at(0).get()..pool_bytes).contains(&at) && at % BLOCK + len as u64 <= BLOCK
    };
    let end = HEADER as usize + len;
    if at != WORDS.get() {
        let data = || record[HEADER as usize..end].to_vec();
        return is_inside(at, len).then(|| RedoRecord::Bytes(PmOff::new(at), data()));
    }
    let checked = |at: u64| (at.is_multiple_of(8) && is_inside(at, 8)).then(|| PmOff::new(at));
    let words = (HEADER as usize..end).step_by(WORD_BYTES);
    let words = words.map(|i| Some((checked(word(i))?, word(i + 8))));
    len.is_multiple_of(WORD_BYTES).then(|| words.collect::<Option<_>>())?.map(RedoRecord::Words)
}

/// Returns the valid records of a pool, with their numbers; no other process may be using the pool.
pub fn pending<M: Medium>(medium: &Pm<M>, pool_bytes: u64) -> Vec<(u64, RedoRecord)> {
    (0..COUNT).filter_map(|n| Some((n, read(medium, n, pool_bytes)?))).collect()
}

/// Stores the bytes of all valid records in place, durably, and clears the records.
pub fn replay<M: Medium>(medium: &Pm<M>, pool_bytes: u64) {
    for (number, record) in pending(medium, pool_bytes) {
        let recorded = Fenced::not_needed(
            "what a process has stored past the cache has arrived when it is dead",
        );
        let stored = match &record {
            RedoRecord::Bytes(at, data) => store(medium, *at, data, recorded),
            RedoRecord::Words(words) => store_words(medium, words, recorded),
        };
        clear(medium, place_of(number), stored);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Bpfs;
    use crate::layout::{FORMAT, INODE, Root};
    use pmem::Region;
    use pool::{CheckOptions, FormatOptions, MountOptions};
    use vfs::{Caller, FileSystem, NewKind, NewNode, ROOT};

    const POOL: u64 = 64 * BLOCK;

    fn bytes_at(region: &Region, at: PmOff, len: usize) -> Vec<u8> {
        let mut buf = vec![0; len];
        region.read(at.get(), &mut buf);
        buf
    }

    /// Leaves a record as an overwrite does that is interrupted before its bytes are stored.
    fn interrupted(medium: &Pm<Region>, number: u64, at: PmOff, data: &[u8]) {
        medium.write(place_of(number), &encode(number, at, data));
    }

    #[test]
    fn a_record_is_what_was_written_or_none() {
        let medium = Pm(Region::anonymous(POOL).unwrap());
        for (number, len) in [(33, DATA_MAX), (0, 1), (7, 9), (31, 64)] {
            let data: Vec<u8> = (1..=len).map(|i| i as u8).collect();
            let at = FIRST_INODES.at(5) + number * BLOCK / 2;
            overwrite(&medium, number, at, &data, Fenced::not_needed("they lead to nothing"));
            assert_eq!(bytes_at(&medium.0, at, len), data);
            assert!(pending(&medium, POOL).is_empty(), "cleared");
            // As if the power had failed before its bytes were stored.
            medium.write(at, &vec![0xee; len]);
            interrupted(&medium, number, at, &data);
            let record = RedoRecord::Bytes(at, data.clone());
            assert_eq!(pending(&medium, POOL), [(number % COUNT, record)]);
            replay(&medium, POOL);
            assert_eq!(bytes_at(&medium.0, at, len), data);
            assert!(pending(&medium, POOL).is_empty());
            // One of its bytes did not persist.
            interrupted(&medium, number, at, &data);
            let last = place_of(number) + HEADER + (len as u64 - 1);
            medium.write(last, &[!data[len - 1]]);
            assert!(pending(&medium, POOL).is_empty(), "{len}");
        }
    }

    /// Leaves a record of words as a commit does that is interrupted before they are stored.
    fn interrupted_words(medium: &Pm<Region>, number: u64, words: &[(u64, u64)]) {
        let data: Vec<u8> = words
            .iter()
            .flat_map(|(at, value)| [at.to_le_bytes(), value.to_le_bytes()])
            .flatten()
            .collect();
        medium.write(place_of(number), &encode(number, WORDS, &data));
    }

    #[test]
    fn words_are_all_stored_or_none() {
        let medium = Pm(Region::anonymous(POOL).unwrap());
        let base = FIRST_INODES.at(0).get();
        for (number, count) in [(0, 2), (31, 3), (40, 4), (5, DATA_MAX as u64 / 16)] {
            let words: Vec<_> = (0..count).map(|i| (base + i * 520 / 8 * 8, i + number)).collect();
            let placed: Vec<_> =
                words.iter().map(|(at, value)| (PmOff::new(*at), *value)).collect();
            commit(&medium, number, &placed, Fenced::not_needed("they lead to nothing"));
            let are_stored = || placed.iter().all(|(at, value)| medium.load_u64(*at) == *value);
            assert!(are_stored() && pending(&medium, POOL).is_empty());
            placed.iter().for_each(|(at, _)| medium.store_u64(*at, u64::MAX));
            interrupted_words(&medium, number, &words);
            let record = RedoRecord::Words(placed.iter().copied().collect());
            assert_eq!(pending(&medium, POOL), [(number % COUNT, record)]);
            replay(&medium, POOL);
            assert!(are_stored() && pending(&medium, POOL).is_empty());
        }
    }

    #[test]
    fn words_out_of_bounds_are_no_record() {
        let medium = Pm(Region::anonymous(POOL).unwrap());
        let base = FIRST_INODES.at(0).get();
        for at in [0, 8, base - 8, base + 4, POOL - 4, POOL, u64::MAX - 7] {
            interrupted_words(&medium, 9, &[(base, 1), (at, 2)]);
            assert!(pending(&medium, POOL).is_empty(), "{at:#x}");
        }
        interrupted_words(&medium, 9, &[(base, 1), (POOL - 8, 2)]);
        assert_eq!(pending(&medium, POOL).len(), 1);
        // Data of one and a half words.
        medium.write(place_of(9), &encode(9, WORDS, &[1; 24]));
        assert!(pending(&medium, POOL).is_empty());
    }

    #[test]
    fn a_record_out_of_bounds_is_none() {
        let medium = Pm(Region::anonymous(POOL).unwrap());
        let places =
            [START + 8, FIRST_INODES.at(0) - 1, PmOff::new(POOL), FIRST_INODES.at(BLOCK - 3)];
        for at in places.into_iter().chain([PmOff::new(u64::MAX >> 16)]) {
            interrupted(&medium, 3, at, &[1; 9]);
            assert!(pending(&medium, POOL).is_empty(), "{at:?}");
        }
        interrupted(&medium, 3, FIRST_INODES.at(0), &[1; 9]);
        // A record with another number, as if it had been moved there in a damaged pool.
        let moved = bytes_at(&medium.0, place_of(3), BYTES as usize);
        medium.write(place_of(4), &moved);
        assert_eq!(pending(&medium, POOL).len(), 1);
        let long = target(FIRST_INODES.at(0), DATA_MAX + 1);
        medium.store_u64(place_of(3) + 8, long);
        assert!(pending(&medium, POOL).is_empty());
    }

    const FILE: NewNode<'static> = NewNode { kind: NewKind::File, mode: 0o644, umask: 0 };
    const CONTENT: &[u8] = b"what a file holds that is overwritten";

    /// Makes a pool with a file; returns the place of the file's content.
    fn pool_with_file(region: Region) -> (Region, PmOff) {
        let fs = Bpfs::mount(region, &MountOptions::default()).unwrap();
        let file = fs.create(&Caller::ROOT, ROOT, b"f", &FILE).unwrap().ino;
        fs.write(file, 0, CONTENT).unwrap();
        let region = fs.into_medium();
        let place = |at: &u64| bytes_at(&region, PmOff::new(*at), CONTENT.len()) == CONTENT;
        let at = (0..region.len()).step_by(BLOCK as usize).find(place).unwrap();
        (region, PmOff::new(at))
    }

    fn content(fs: &Bpfs<Region>) -> Vec<u8> {
        let ino = fs.lookup(ROOT, b"f").unwrap().ino;
        let mut buf = vec![0; CONTENT.len()];
        fs.read(ino, 0, &mut buf).unwrap();
        buf
    }

    /// A check sees the state that a mount would make: here, one name of a directory and not two.
    #[test]
    fn an_interrupted_rename_is_done_for_who_checks() {
        let region = Region::anonymous(8 << 20).unwrap();
        crate::format(&region, &FormatOptions::default()).unwrap();
        let fs = Bpfs::mount(region, &MountOptions::default()).unwrap();
        let dir = NewNode { kind: NewKind::Dir, mode: 0o755, umask: 0 };
        let make = |at, name: &[u8]| fs.create(&Caller::ROOT, at, name, &dir).unwrap().ino;
        let (a, b) = (make(ROOT, b"a"), make(ROOT, b"b"));
        // The directory blocks exist before, so that the rename allocates none.
        make(b, b"x");
        make(a, b"d");
        let bytes =
            |fs: &Bpfs<Region>| bytes_at(fs.medium(), PmOff::new(0), fs.medium().len() as usize);
        let before = bytes(&fs);
        fs.rename((a, b"d"), (b, b"d"), vfs::RenameFlags::empty()).unwrap();
        let after = bytes(&fs);
        let word = |of: &[u8], at: usize| u64::from_le_bytes(of[at..at + 8].try_into().unwrap());
        let changed = (FIRST_INODES.at(0).get() as usize..before.len()).step_by(8);
        let changed = changed.filter(|at| word(&before, *at) != word(&after, *at));
        let words: Vec<_> = changed.map(|at| (at as u64, word(&after, at))).collect();
        let medium = Pm(Region::anonymous(8 << 20).unwrap());
        medium.write(PmOff::new(0), &before);
        interrupted_words(&medium, 1, &words);
        // The new entry is stored already; the old one is still there.
        for (at, value) in words.iter().filter(|(_, value)| *value != 0) {
            medium.store_u64(PmOff::new(*at), *value);
        }
        let check = || crate::check(&medium.0, &CheckOptions::default(), &|_, _| {}).unwrap();
        assert!(check().problems.is_empty(), "{:?}", check().problems);
        medium.write(place_of(1), &[0; 8]);
        assert!(!check().problems.is_empty(), "without the record");
    }

    #[test]
    fn what_was_interrupted_is_done_by_a_mount_for_writing() {
        let region = Region::anonymous(8 << 20).unwrap();
        crate::format(&region, &FormatOptions::default()).unwrap();
        let (region, at) = pool_with_file(region);
        let medium = Pm(region);
        interrupted(&medium, 5, at + 2, b"AT IT");
        let report = crate::check(&medium.0, &CheckOptions::default(), &|_, _| {}).unwrap();
        assert!(report.problems.is_empty(), "{:?}", report.problems);
        let bytes = bytes_at(&medium.0, PmOff::new(0), medium.0.len() as usize);

        let reading = MountOptions { read_only: true, ..MountOptions::default() };
        let refused = Bpfs::mount(medium.0, &reading).err().unwrap().to_string();
        assert!(refused.contains("interrupted"), "{refused}");

        let region = Region::anonymous(8 << 20).unwrap();
        region.write(0, &bytes);
        let fs = Bpfs::mount(region, &MountOptions::default()).unwrap();
        assert_eq!(content(&fs), b"whAT ITfile holds that is overwritten");
        let fs = Bpfs::mount(fs.into_medium(), &reading).unwrap();
        assert_eq!(content(&fs), b"whAT ITfile holds that is overwritten");
    }

    /// A pool in which a program without records of words has left a record that it would overlook.
    #[test]
    fn older_pools_are_refused_and_say_what_to_do() {
        let region = Region::anonymous(8 << 20).unwrap();
        let old = namespace::Format { version: 3, oldest: 3, ..FORMAT };
        let root = Root::new(Some(FIRST_INODES), 0).word();
        old.write(&region, &FormatOptions::default(), (FIRST_INODES, INODE), root).unwrap();
        let refused = Bpfs::mount(region, &MountOptions::default()).err().unwrap().to_string();
        assert!(refused.contains("version 3") && refused.contains("copy its files"), "{refused}");
    }
}
