//! The persistency state machine: it determines the states that a power failure can leave.
//!
//! It applies the events of a trace, one by one, and knows at any moment which bytes are durable
//! and, as [`Unit`]s, which others may or may not be. Units are independent of each other; each
//! lists its possible contents. So the states of a crash point are the product of its units.
//!
//! Rules of x86 with ADR ([`Semantics::Adr`]; Intel SDM vol. 1 §11.10, vol. 3 §12.2):
//!
//! - persist-P1: an aligned 8-byte word is old or new, never mixed; a longer store tears at words.
//! - persist-P2: plain stores to one 64-byte line persist in program order: a prefix of them, the
//!   words of the last one in any combination (a `memcpy` has no order of its own).
//! - persist-P3: plain stores to different lines persist in any order, fenced or not, until their
//!   line has been flushed *and* the flushing thread has fenced: then they are durable.
//! - persist-P4: non-temporal words persist in any order until the storing thread's fence.
//! - persist-P5: a fence drains the flushes and non-temporal stores of its own thread only. `clwb`
//!   and `clflushopt` have no order among themselves; `clflush` would only remove states.
//!
//! - persist-P6: an aligned line stored whole (MOVDIR64B) is old or new, never mixed. Its order is
//!   that of non-temporal words.
//! - persist-P7: non-temporal stores of a thread that has died are durable. The thread entered the
//!   kernel to die, and that empties the write-combining buffers (vol. 3 §12.3.1). Its flushes get
//!   no such guarantee.
//!
//! If a line has both kinds of stores, persist-P2 and persist-P4 meet: the model lets non-temporal
//! words, and lines stored whole, persist without the plain stores before them. The hardware allows
//! fewer states.
//!
//! persist-P6 is for CPUs that have the instruction. [`Semantics::AdrWords`] is for those that do
//! not, and for programs that detect that.
//!
//! With eADR ([`Semantics::Eadr`]) plain stores are durable at once, in program order; flushes mean
//! nothing; persist-P4 stays. With an `msync` medium ([`Semantics::Msync`]) the kernel may write
//! any 512-byte sector at any time. So sectors take the place of lines, and whole calls that of
//! words. A fence of any thread makes everything durable.
//!
//! On the epoch hardware of BPFS ([`Semantics::Epoch`]) a fence is a barrier, and the rules are
//! those of [`crate::inflight`]. [`Semantics::EpochTorn`] is that hardware without the capacitor of
//! §4.3:
//!
//! - persist-P8: one word of the last store to a line that persists can be torn. Its lower or its
//!   upper bytes are new. The hardware could tear it at any bit, so this finds bugs and proves
//!   nothing.

use crate::image::WordNo;
use crate::inflight::{EpochCut, Epochs};
use crate::trace::{Action, Event, StoreKind, Trace};
use pmem::Domain;
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Contents of one unit that are listed at most. A line that has more (many overlapping plain and
/// non-temporal stores) is split, which adds impossible states.
const CONTENTS_MAX: usize = 4096;

/// The rules that decide which stores persist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Semantics {
    /// x86; the persistence domain starts at the memory controller.
    Adr,
    /// As `Adr`, on a CPU that cannot store a whole line at once.
    AdrWords,
    /// x86; the caches are inside the persistence domain.
    Eadr,
    /// An ordinary file, mapped; a fence is an `msync`.
    Msync,
    /// The epoch hardware of BPFS §4.4, with the capacitor that makes words atomic (§4.3).
    Epoch,
    /// The same without the capacitor.
    EpochTorn,
}

impl Semantics {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Adr, Self::AdrWords, Self::Eadr, Self::Msync, Self::Epoch, Self::EpochTorn];

    /// Those with atomic words, which engines need.
    pub const ATOMIC: [Self; 5] = [Self::Adr, Self::AdrWords, Self::Eadr, Self::Msync, Self::Epoch];

    /// Returns the name used on command lines.
    pub fn name(self) -> &'static str {
        match self {
            Self::Adr => "adr",
            Self::AdrWords => "adr-words",
            Self::Eadr => "eadr",
            Self::Msync => "msync",
            Self::Epoch => "epoch",
            Self::EpochTorn => "epoch-torn",
        }
    }

    /// Whether memory has [`pmem::Medium::store_line`].
    pub fn stores_lines(self) -> bool {
        matches!(self, Self::Adr | Self::Eadr)
    }

    /// Returns the persistence domain that memory under these rules reports.
    pub fn domain(self) -> Domain {
        match self {
            Self::Msync => Domain::PageCache,
            Self::Adr | Self::AdrWords | Self::Eadr | Self::Epoch | Self::EpochTorn => {
                Domain::DevDax
            }
        }
    }

    /// Whether fences only order stores. Operations that have returned may then be lost.
    pub fn has_epochs(self) -> bool {
        matches!(self, Self::Epoch | Self::EpochTorn)
    }

    /// Whether stores past the cache differ from others.
    fn passes_cache(self) -> bool {
        !self.has_epochs() && self != Self::Msync
    }

    /// Whether a store through the cache waits for a flush.
    fn heeds_flushes(self) -> bool {
        matches!(self, Self::Adr | Self::AdrWords)
    }

    /// Returns the words of a unit of memory that persists in order.
    fn granule_words(self) -> u32 {
        match self {
            Self::Msync => 64,
            _ => 8,
        }
    }
}

/// Words that depend on each other, and their possible contents after a crash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unit {
    /// The words.
    pub words: Vec<WordNo>,
    /// Possible values of the words, all different; the first is "nothing persisted".
    pub contents: Vec<Box<[u64]>>,
    /// Index of the content "everything persisted".
    pub all: usize,
    /// The line (or sector) of the words: strategies treat units of one line together.
    pub line: u32,
    /// Number of its last store ([`Persistency::stores`]).
    pub since: u32,
}

/// A store to (part of) one word that is not durable. It persists as one (persist-P1).
#[derive(Clone, Copy, Debug)]
struct PersistPiece {
    /// Stores of one call have one number.
    call: u32,
    word: WordNo,
    mask: u64,
    value: u64,
    nt: bool,
    /// Whether all pieces of its call persist, or none.
    whole: bool,
    /// Threads whose next fence makes it durable, one bit each.
    draining: u64,
    /// Its context and epoch, on epoch hardware.
    epoch: (u8, u32),
}

impl PersistPiece {
    fn over(&self, old: u64) -> u64 {
        old & !self.mask | self.value & self.mask
    }

    /// Returns what is left of it if its word tears (persist-P8).
    fn torn(&self) -> impl Iterator<Item = Self> + use<> {
        let all = *self;
        let lower = (1..8).map(|bytes| (1u64 << (bytes * 8)) - 1);
        let masks = lower.flat_map(|mask| [mask, !mask]);
        masks.map(move |mask| Self { mask: all.mask & mask, ..all })
    }
}

/// Returns the part of a word in the hash of an image. The hash combines all words, so that a
/// change of a word changes it in constant time.
pub(crate) fn mix(word: WordNo, value: u64) -> u64 {
    rng::hash(value ^ rng::hash(u64::from(word)))
}

/// The state machine.
#[derive(Debug)]
pub struct Persistency {
    semantics: Semantics,
    /// Pieces that are not durable, in program order, by line.
    lines: BTreeMap<u32, Vec<PersistPiece>>,
    calls: u32,
    epochs: Epochs,
    /// Whether ended epochs stay in flight. If not, they are durable at once.
    lags: bool,
    /// Words that became durable and that the caller has not taken yet.
    durable_words: Vec<(WordNo, u64)>,
    base: Vec<u64>,
    hash: u64,
}

/// Durable memory before the first event, in words.
#[derive(Clone, Debug)]
pub struct Initial {
    words: Vec<u64>,
    hash: u64,
}

impl Initial {
    /// Makes it of these bytes.
    pub fn of(bytes: &[u8]) -> Self {
        let mut hash = 0;
        let words = bytes.chunks_exact(8).enumerate().map(|(i, chunk)| {
            let value = u64::from_le_bytes(chunk.try_into().expect("eight bytes"));
            if value != 0 {
                hash ^= mix(i as WordNo, 0) ^ mix(i as WordNo, value);
            }
            value
        });
        Self { words: words.collect(), hash }
    }
}

impl Persistency {
    /// Starts before the first event, with zeros.
    pub fn new(semantics: Semantics, len: u64) -> Self {
        Self::over(semantics, Initial { words: vec![0; (len / 8) as usize], hash: 0 })
    }

    /// Starts before the first event, with this durable memory.
    pub fn over(semantics: Semantics, initial: Initial) -> Self {
        Self {
            semantics,
            lines: BTreeMap::new(),
            calls: 0,
            epochs: Epochs::default(),
            lags: false,
            durable_words: Vec::new(),
            base: initial.words,
            hash: initial.hash,
        }
    }

    /// Lets ended epochs stay in flight, for traces of several threads. One thread alone adds no
    /// states by that ([`crate::inflight`]).
    pub fn lagging(self) -> Self {
        Self { lags: self.semantics.has_epochs(), ..self }
    }

    /// Applies the next event.
    pub fn apply(&mut self, trace: &Trace, event: &Event) {
        let me = 1u64 << (event.thread % 64);
        match event.action {
            Action::Store { kind, addr, len, data } => {
                self.meet(event.thread, addr, len);
                self.store(kind, addr, trace.data(data, len), event.thread)
            }
            Action::Load { addr, len } => self.meet(event.thread, addr, len),
            Action::Fence if self.semantics.has_epochs() => {
                self.epochs.end(event.thread);
                if !self.lags
                    && let Some(newest) = self.epochs.newest(event.thread)
                {
                    self.commit_epochs(event.thread, newest);
                }
            }
            Action::Flush { addr, len } if self.semantics.heeds_flushes() && len > 0 => {
                for (_, pieces) in self.lines.range_mut(addr / 64..(addr + len).div_ceil(64)) {
                    for p in pieces.iter_mut().filter(|p| !p.nt) {
                        p.draining |= me;
                    }
                }
            }
            Action::Fence if self.semantics == Semantics::Msync => self.drain(|_| true),
            Action::Fence => self.drain(|p| p.draining & me != 0),
            // persist-P7.
            Action::Drain => self.drain(|p| p.nt && p.draining & me != 0),
            _ => {}
        }
    }

    /// Makes the epochs durable whose lines another context accesses (inflight-E3).
    fn meet(&mut self, context: u8, addr: u32, len: u32) {
        if !self.semantics.has_epochs() || len == 0 {
            return;
        }
        let lines = self.lines.range(addr / 64..(addr + len).div_ceil(64));
        let others = lines.flat_map(|(_, pieces)| pieces).map(|p| p.epoch);
        let others: Vec<_> = others.filter(|(owner, _)| *owner != context).collect();
        for (owner, id) in others {
            self.commit_epochs(owner, id);
        }
    }

    /// Makes the epochs of a context durable, up to this one.
    fn commit_epochs(&mut self, context: u8, last: u32) {
        for id in self.epochs.commit(context, last) {
            self.drain(|p| p.epoch.1 == id);
        }
    }

    /// Splits a store of a thread into pieces of one word. They stay undecided, except stores
    /// through the cache with eADR.
    fn store(&mut self, kind: StoreKind, addr: u32, data: &[u8], thread: u8) {
        self.calls += 1;
        let nt = kind.is_past_cache() && self.semantics.passes_cache();
        let epoch = match self.semantics.has_epochs() && !data.is_empty() {
            true => {
                let (epoch, oldest) = self.epochs.join(thread);
                if let Some(oldest) = oldest {
                    self.drain(|p| p.epoch.1 == oldest);
                }
                epoch
            }
            false => 0,
        };
        let end = addr + data.len() as u32;
        for word in addr / 8..end.div_ceil(8) {
            let (mut mask, mut value) = ([0u8; 8], [0u8; 8]);
            for i in (word * 8).max(addr)..(word * 8 + 8).min(end) {
                mask[(i % 8) as usize] = 0xff;
                value[(i % 8) as usize] = data[(i - addr) as usize];
            }
            let piece = PersistPiece {
                call: self.calls,
                word,
                mask: u64::from_le_bytes(mask),
                value: u64::from_le_bytes(value),
                nt,
                whole: nt && kind == StoreKind::Line,
                draining: if nt { 1 << (thread % 64) } else { 0 },
                epoch: (thread, epoch),
            };
            if self.semantics == Semantics::Eadr && !nt {
                self.supersede(&piece);
                self.make_durable(&piece);
            } else {
                let line = word / self.semantics.granule_words();
                self.lines.entry(line).or_default().push(piece);
            }
        }
    }

    /// Puts a piece into durable memory, and updates the hash.
    fn make_durable(&mut self, p: &PersistPiece) {
        let old = &mut self.base[p.word as usize];
        let new = p.over(*old);
        self.hash ^= mix(p.word, *old) ^ mix(p.word, new);
        *old = new;
        self.durable_words.push((p.word, *old));
    }

    /// Drops earlier stores to the bytes of a store that became durable: they no longer matter.
    fn supersede(&mut self, by: &PersistPiece) {
        let line = by.word / self.semantics.granule_words();
        if let Some(pieces) = self.lines.get_mut(&line) {
            for p in pieces.iter_mut().filter(|p| p.word == by.word && p.call < by.call) {
                p.mask &= !by.mask;
            }
            pieces.retain(|p| p.mask != 0);
        }
    }

    /// Makes the pieces durable for which `durable` is true; drops what they supersede.
    fn drain(&mut self, durable: impl Fn(&PersistPiece) -> bool) {
        let mut done: Vec<PersistPiece> = Vec::new();
        self.lines.retain(|_, pieces| {
            pieces.retain(|p| {
                let d = durable(p);
                if d {
                    done.push(*p);
                }
                !d
            });
            !pieces.is_empty()
        });
        for p in &done {
            self.supersede(p);
            self.make_durable(p);
        }
        self.lines.retain(|_, pieces| !pieces.is_empty());
    }

    /// Returns the words that became durable since the last call, in order, with their values.
    pub fn take_durable_words(&mut self) -> Vec<(WordNo, u64)> {
        std::mem::take(&mut self.durable_words)
    }

    /// Returns the durable value of a word.
    pub fn durable(&self, word: WordNo) -> u64 {
        self.base[word as usize]
    }

    /// Returns the number of stores so far.
    pub fn stores(&self) -> u32 {
        self.calls
    }

    /// Returns a hash of the durable bytes.
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// Returns the undecided units. If empty, the only state is the durable bytes.
    pub fn units(&self) -> Arc<[Unit]> {
        if self.semantics.has_epochs() {
            return self.units_of(&self.epochs.cuts(None)[0]);
        }
        let mut units = Vec::new();
        for (line, pieces) in &self.lines {
            self.units_of_line(*line, pieces, &mut units);
        }
        units.into()
    }

    /// Returns the undecided units of each of the ways in which contexts can lag behind this one,
    /// whose epoch ends. Without epochs nothing lags.
    pub fn ways(&self, thread: u8) -> Vec<Arc<[Unit]>> {
        match self.lags {
            false => vec![self.units()],
            true => self.epochs.cuts(Some(thread)).iter().map(|cut| self.units_of(cut)).collect(),
        }
    }

    /// Returns the units at a cut. A unit with one content has persisted.
    fn units_of(&self, cut: &EpochCut) -> Arc<[Unit]> {
        let mut units = Vec::new();
        for (line, pieces) in &self.lines {
            // Contexts do not share a line (inflight-E3).
            let at = |p: &PersistPiece| cut.of(p.epoch.0).map(|last| p.epoch.1.cmp(&last));
            let of = |order| pieces.iter().filter(move |p| at(p) == Some(order)).copied();
            let past: Vec<_> = of(Ordering::Less).collect();
            let now: Vec<_> = of(Ordering::Equal).collect();
            let sets = self.subsets(&now, &[]).into_iter();
            let sets = sets.map(|set| [past.clone(), set].concat()).collect();
            let pieces = [past.clone(), now].concat();
            units.extend(self.unit(*line, &pieces, sets, !past.is_empty()));
        }
        units.into()
    }

    /// Adds the undecided units of a line. Stores through the cache are one unit, as they persist
    /// in order. Stores past it have a unit for each word, unless both kinds meet in a word.
    fn units_of_line(&self, line: u32, pieces: &[PersistPiece], units: &mut Vec<Unit>) {
        let (nt, plain): (Vec<PersistPiece>, Vec<PersistPiece>) =
            pieces.iter().copied().partition(|p| p.nt);
        let meet = nt.iter().any(|n| n.whole || plain.iter().any(|p| p.word == n.word));
        if meet {
            let sets = self.subsets(&plain, &nt);
            if sets.len() <= CONTENTS_MAX {
                units.extend(self.unit(line, pieces, sets, false));
                return;
            }
        }
        if !plain.is_empty() {
            let sets = self.subsets(&plain, &[]);
            units.extend(self.unit(line, &plain, sets, false));
        }
        let mut words: Vec<WordNo> = nt.iter().map(|p| p.word).collect();
        words.sort_unstable();
        words.dedup();
        for word in words {
            let of: Vec<PersistPiece> = nt.iter().filter(|p| p.word == word).copied().collect();
            let sets = self.subsets(&[], &of);
            units.extend(self.unit(line, &of, sets, false));
        }
    }

    /// Returns the sets of stores that can persist, each in program order. The first is empty, the
    /// last has all.
    fn subsets(&self, plain: &[PersistPiece], nt: &[PersistPiece]) -> Vec<Vec<PersistPiece>> {
        let mut prefixes: Vec<Vec<PersistPiece>> = vec![Vec::new()];
        let mut whole: Vec<PersistPiece> = Vec::new();
        for call in plain.chunk_by(|a, b| a.call == b.call) {
            let n = call.len();
            let whole_only = self.semantics == Semantics::Msync || n > 8;
            if self.semantics == Semantics::EpochTorn {
                let torn = call.iter().flat_map(PersistPiece::torn);
                prefixes.extend(torn.map(|piece| [whole.clone(), vec![piece]].concat()));
            }
            let first = if whole_only { (1u32 << n.min(8)) - 1 } else { 1 };
            for some in first..1u32 << n.min(8) {
                let taken = call.iter().enumerate();
                let taken = taken.filter(|(i, _)| whole_only || some & 1 << i != 0);
                let mut set = whole.clone();
                set.extend(taken.map(|(_, p)| *p));
                prefixes.push(set);
            }
            whole.extend_from_slice(call);
        }
        for together in nt.chunk_by(|a, b| a.whole && a.call == b.call) {
            if prefixes.len() > CONTENTS_MAX {
                break;
            }
            let with = prefixes.clone().into_iter().map(|mut set| {
                set.extend_from_slice(together);
                set
            });
            prefixes.extend(with.collect::<Vec<_>>());
        }
        for set in &mut prefixes {
            set.sort_by_key(|p| p.call);
        }
        prefixes
    }

    /// Makes a unit from the sets of stores that can persist. Returns `None` if all sets give the
    /// same content, unless that `is_ahead` of the durable one.
    fn unit(
        &self,
        line: u32,
        pieces: &[PersistPiece],
        sets: Vec<Vec<PersistPiece>>,
        is_ahead: bool,
    ) -> Option<Unit> {
        let mut words: Vec<WordNo> = pieces.iter().map(|p| p.word).collect();
        words.sort_unstable();
        words.dedup();
        let old: Box<[u64]> = words.iter().map(|w| self.durable(*w)).collect();
        let mut contents: Vec<Box<[u64]>> = Vec::new();
        let mut seen = std::collections::HashMap::new();
        let mut all = 0;
        for set in sets {
            let mut values = old.clone();
            for p in &set {
                let i = words.binary_search(&p.word).expect("a word of the unit");
                values[i] = p.over(values[i]);
            }
            all = *seen.entry(values.clone()).or_insert_with(|| {
                contents.push(values);
                contents.len() - 1
            });
        }
        (contents.len() > 1 || is_ahead).then_some(Unit {
            words,
            contents,
            all,
            line,
            since: pieces.iter().map(|p| p.call).max().unwrap_or(0),
        })
    }
}
