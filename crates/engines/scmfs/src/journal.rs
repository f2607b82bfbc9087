//! The redo journal: words that one operation changes together.
//!
//! - journal-J1: blocks that the words of a record make visible are durable before the record is
//!   stored, which may persist at any time from then on. The record is durable before any of its
//!   words is stored. That is the commit.
//! - journal-J2: a record is durably cleared before the locks of the inodes it changes are given
//!   back. So no two valid records have a word in common, and a mount can store them in any order.
//! - journal-J3: a record is valid if its checksum matches its content, so that its lines need no
//!   order.

use crate::layout::{BLOCK, fnv1a, journal::*};
use namespace::Words;
use pmem::{Fenced, Medium, Pm, PmOff};
use smallvec::SmallVec;

/// Returns the place of a record.
fn place_of(number: u64) -> PmOff {
    START + number % RECORDS * RECORD
}

/// Returns the bytes of a record behind its checksum.
fn encode(words: &[(PmOff, u64)]) -> SmallVec<[u8; RECORD as usize]> {
    let mut bytes = SmallVec::new();
    bytes.extend_from_slice(&(words.len() as u64).to_le_bytes());
    for (at, value) in words {
        bytes.extend_from_slice(&at.get().to_le_bytes());
        bytes.extend_from_slice(&value.to_le_bytes());
    }
    bytes
}

/// Returns the checksum of a record: never 0, and different for the same words in another record.
fn checksum(number: u64, bytes: &[u8]) -> u64 {
    (fnv1a(bytes) ^ fnv1a(&number.to_le_bytes())).max(1)
}

/// Commits words together by the record of this number, which no other thread or process uses
/// meanwhile. `ready` proves that the blocks they make visible are durable (journal-J1); on return
/// the words are durable, too.
pub fn commit<M: Medium>(medium: &Pm<M>, number: u64, words: &[(PmOff, u64)], ready: Fenced) {
    assert!(words.len() <= WORDS_MAX, "an operation changes too many words at once");
    let (at, number) = (place_of(number), number % RECORDS);
    let bytes = encode(words);
    medium.write(at + 8, &bytes);
    // The checksum shows whether the record is complete (journal-J3).
    medium.publish_word(at, checksum(number, &bytes), ready);
    medium.flush(at, 8 + bytes.len() as u64);
    // The commit (journal-J1).
    let recorded = medium.fence();
    let stored = store(medium, words, &recorded);
    clear(medium, at, stored);
}

/// Stores the words of a durable record in place, durably.
fn store<M: Medium>(medium: &Pm<M>, words: &[(PmOff, u64)], recorded: &Fenced) -> Fenced {
    for (at, value) in words {
        medium.publish_word(*at, *value, recorded.for_another());
    }
    for (at, _) in words {
        medium.flush(*at, 8);
    }
    medium.fence()
}

/// Clears a record, durably, after its words were `stored` (journal-J2).
fn clear<M: Medium>(medium: &Pm<M>, at: PmOff, stored: Fenced) {
    let _ = medium.publish(at, 0, stored);
}

/// Reads the record of this number; `None` if it is not valid (journal-J3).
fn read<M: Medium>(medium: &Pm<M>, number: u64, pool_bytes: u64) -> Option<Words> {
    let at = place_of(number);
    if medium.load_u64(at) == 0 {
        return None;
    }
    let mut record = [0; RECORD as usize];
    medium.read(at, &mut record);
    let word = |i: usize| u64::from_le_bytes(record[i..i + 8].try_into().expect("eight bytes"));
    let count = usize::try_from(word(8)).ok().filter(|n| (1..=WORDS_MAX).contains(n))?;
    let end = 16 + 16 * count;
    if word(0) != checksum(number, &record[8..end]) {
        return None;
    }
    let may_be = |at: u64| at.is_multiple_of(8) && at >= FIRST.get() && at + 8 <= pool_bytes;
    let checked = |at: u64| may_be(at).then(|| PmOff::new(at));
    (16..end).step_by(16).map(|i| Some((checked(word(i))?, word(i + 8)))).collect()
}

/// The first place that a record may change: behind the superblock's static fields, and the
/// journal.
const FIRST: PmOff = PmOff::new(START.get() + BLOCKS * BLOCK);

/// Returns the valid records of a pool, with their numbers. No other process may be using the pool.
pub fn pending<M: Medium>(medium: &Pm<M>, pool_bytes: u64) -> Vec<(u64, Words)> {
    let records = (0..RECORDS).filter_map(|n| Some((n, read(medium, n, pool_bytes)?)));
    records.collect()
}

/// Stores the words of all valid records in place, durably, and clears the records; returns their
/// number. Invalid records are flushed as they are: the process that stored or cleared one may have
/// been killed before its flush, and a power failure must not bring an old record back.
pub fn replay<M: Medium>(medium: &Pm<M>, pool_bytes: u64) -> u64 {
    medium.flush(START, BLOCKS * BLOCK);
    let recorded = medium.fence();
    let pending = pending(medium, pool_bytes);
    for (number, words) in &pending {
        let stored = store(medium, words, &recorded);
        clear(medium, place_of(*number), stored);
    }
    pending.len() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use pmem::Region;

    #[test]
    fn a_record_is_what_was_written_or_none() {
        let medium = Pm(Region::anonymous(64 * BLOCK).unwrap());
        let words = [(FIRST, 1), (FIRST + 64, u64::MAX)];
        commit(&medium, 33, &words, medium.fence());
        assert_eq!((medium.load_u64(FIRST), medium.load_u64(FIRST + 64)), (1, u64::MAX));
        assert!(pending(&medium, 64 * BLOCK).is_empty(), "cleared");
        // As if the power had failed before its words were stored.
        let at = place_of(1);
        medium.store_u64(FIRST, 7);
        medium.store_u64(at, checksum(1, &encode(&words)));
        assert_eq!(pending(&medium, 64 * BLOCK), [(1, Words::from_slice(&words))]);
        assert_eq!(replay(&medium, 64 * BLOCK), 1);
        assert_eq!(medium.load_u64(FIRST), 1);
        assert_eq!(replay(&medium, 64 * BLOCK), 0);
        // Records that are torn, have another number, or have words out of bounds.
        for (checksum_of, words) in
            [(1, &[(FIRST, 1)][..]), (2, &words[..]), (1, &[(START, 1), (FIRST, 2)][..])]
        {
            let bytes = encode(words);
            let torn = words.len() == 1;
            medium.write(at + 8, &encode(&[(FIRST, 9); 2]));
            medium.write(at + 8, &bytes[..if torn { 8 } else { bytes.len() }]);
            medium.store_u64(at, checksum(checksum_of, &bytes));
            assert!(pending(&medium, 64 * BLOCK).is_empty(), "{words:?}");
        }
    }
}
