//! The redo journal: words that one operation changes together.
//!
//! - journal-J1: what the words of a record make visible is durable before the record is stored, which may persist at any time
//!   from then on. It is durable before any of its words is stored. That is the commit.
//! - journal-J2: a record is durably cleared before the locks of what it changes are given back. So no two valid
//!   records have a word in common, and in which order a mount stores them makes no difference.
//! - journal-J3: a record is valid if its checksum matches what it holds, so that its lines need no order.

use crate::layout::{BLOCK, fnv1a, journal::*};
use namespace::Words;
use pmem::{Fenced, Medium, Pm, PmOff};
use smallvec::SmallVec;

/// Where a record lies.
fn place_of(number: u64) -> PmOff {
    START + number % RECORDS * RECORD
}

/// The bytes of a record behind its checksum.
fn encode(words: &[(PmOff, u64)]) -> SmallVec<[u8; RECORD as usize]> {
    let mut bytes = SmallVec::new();
    bytes.extend_from_slice(&(words.len() as u64).to_le_bytes());
    for (at, value) in words {
        bytes.extend_from_slice(&at.get().to_le_bytes());
        bytes.extend_from_slice(&value.to_le_bytes());
    }
    bytes
}

/// Never 0, and another one for the same words in another record.
fn checksum(number: u64, bytes: &[u8]) -> u64 {
    (fnv1a(bytes) ^ fnv1a(&number.to_le_bytes())).max(1)
}

/// Commits words together, in the record of this number, which nobody else uses meanwhile. `ready` proves that what they make
/// visible is durable (journal-J1); on return they are, too.
pub fn commit<M: Medium>(medium: &Pm<M>, number: u64, words: &[(PmOff, u64)], ready: Fenced) {
    assert!(words.len() <= WORDS_MAX, "an operation changes too many words at once");
    let (at, number) = (place_of(number), number % RECORDS);
    let bytes = encode(words);
    medium.write(at + 8, &bytes);
    // Whether the record itself is whole, its checksum tells (journal-J3).
    medium.publish_word(at, checksum(number, &bytes), ready);
    medium.flush(at, 8 + bytes.len() as u64);
    // journal-J1.
    let recorded = medium.fence();
    let stored = store(medium, words, &recorded);
    clear(medium, at, stored);
}

/// Stores what a record says, which is durable, and makes that durable, too.
fn store<M: Medium>(medium: &Pm<M>, words: &[(PmOff, u64)], recorded: &Fenced) -> Fenced {
    for (at, value) in words {
        medium.publish_word(*at, *value, recorded.for_another());
    }
    for (at, _) in words {
        medium.flush(*at, 8);
    }
    medium.fence()
}

/// Clears a record, durably, whose words are `stored` (journal-J2).
fn clear<M: Medium>(medium: &Pm<M>, at: PmOff, stored: Fenced) {
    let _ = medium.publish(at, 0, stored);
}

/// What the record of this number says; `None` where there is none (journal-J3).
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

/// No record changes what lies before: the superblock's static fields, and the journal.
const FIRST: PmOff = PmOff::new(START.get() + BLOCKS * BLOCK);

/// What all valid records of a pool say: as others must not be bothered meanwhile, nobody may be using it.
pub fn pending<M: Medium>(medium: &Pm<M>, pool_bytes: u64) -> Vec<(u64, Words)> {
    let records = (0..RECORDS).filter_map(|n| Some((n, read(medium, n, pool_bytes)?)));
    records.collect()
}

/// Does what all valid records say, durably, and clears them; how many there were. What is no record is flushed as it is:
/// who stored it may not have lived to do so, and a power failure must not bring it back.
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
        // Torn, of another number, or out of bounds.
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
