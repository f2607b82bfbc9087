//! The programs that count, by name, and the number of processes of each.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::label::Label;

/// The most programs that are counted separately, including the one that stands for all others.
pub(crate) const PROGRAMS: usize = 64;
/// The number of bytes kept of a name: its first ones.
const NAME_BYTES: usize = 32;
/// The name of the entry for all programs that have no entry of their own.
const OTHERS: &str = "others";

/// The programs of a run. The first entry stands for all programs without one of their own.
#[repr(C)]
pub(crate) struct Programs([Program; PROGRAMS]);

#[repr(C)]
struct Program {
    name: Label<NAME_BYTES>,
    processes: AtomicU64,
}

/// A program of a run, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProgramIndex(u32);

impl ProgramIndex {
    pub(crate) const fn number(self) -> u32 {
        self.0
    }

    /// Converts to a number that is not 0, for a variable of a process.
    pub const fn to_word(self) -> u32 {
        self.0 + 1
    }

    /// Converts the number of [`to_word`](Self::to_word) back; `None` for 0.
    pub fn from_word(word: u32) -> Option<Self> {
        Some(Self(word.checked_sub(1)? % PROGRAMS as u32))
    }
}

impl Programs {
    /// Returns the program of this name, or the one for all others if there is no room.
    pub fn find(&self, name: &[u8]) -> ProgramIndex {
        let name = &name[..name.len().min(NAME_BYTES)];
        let mut named = self.0.iter().skip(1);
        let found = named.position(|program| program.name.is_or_becomes(name, 0));
        ProgramIndex(found.map_or(0, |before| before as u32 + 1))
    }

    /// Counts a process of the program.
    pub fn add_process(&self, program: ProgramIndex) {
        self.0[program.0 as usize].processes.fetch_add(1, Relaxed);
    }

    /// Lists the programs that have processes: number, name, and number of processes. In names,
    /// replaces characters that would disturb a terminal or a JSON string.
    pub fn list(&self) -> impl Iterator<Item = (ProgramIndex, String, u64)> {
        let printed = |c: char| if c.is_control() || "\"\\".contains(c) { '?' } else { c };
        (0..).zip(&self.0).filter_map(move |(number, program)| {
            let processes = program.processes.load(Relaxed);
            if processes == 0 {
                return None;
            }
            let name = match number {
                0 => OTHERS.to_owned(),
                _ => {
                    String::from_utf8_lossy(&program.name.read()?.0).chars().map(printed).collect()
                }
            };
            Some((ProgramIndex(number), name, processes))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_have_names_and_those_beyond_are_counted_together() {
        // SAFETY: atomics, whose zeros are values.
        #[allow(unsafe_code)]
        let programs: Box<Programs> = unsafe { Box::new_zeroed().assume_init() };
        let long = [b'x'; 2 * NAME_BYTES];
        let sh = programs.find(b"sh");
        assert_ne!(sh, programs.find(&long));
        assert_eq!((sh, programs.find(b"sh")), (programs.find(b"sh"), ProgramIndex(1)));
        assert_eq!(ProgramIndex::from_word(sh.to_word()), Some(sh));
        assert_eq!(ProgramIndex::from_word(0), None);
        let odd = programs.find(b"a\"\n\xff");
        for i in 4..PROGRAMS as u32 {
            assert_eq!(programs.find(i.to_string().as_bytes()), ProgramIndex(i));
        }
        assert_eq!(programs.find(b"one too many"), ProgramIndex(0));
        let counting = [ProgramIndex(0), sh, sh, programs.find(&long), odd];
        counting.into_iter().for_each(|program| programs.add_process(program));
        let listed: Vec<_> = programs.list().collect();
        assert_eq!(listed.len(), 4);
        assert_eq!(listed[0], (ProgramIndex(0), OTHERS.to_owned(), 1));
        assert_eq!(listed[1], (sh, "sh".to_owned(), 2));
        assert_eq!(listed[2].1.as_bytes(), &long[..NAME_BYTES]);
        assert_eq!(listed[3].1, "a??\u{fffd}");
    }
}
