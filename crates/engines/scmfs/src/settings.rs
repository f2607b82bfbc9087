//! The settings of a mount, common to all processes that share the pool. They are words of the
//! shared state that survive recoveries. The process that creates the state writes them. Processes
//! that join read them, and ignore their own options.
//!
//! A file can have its own write policy, in the extended attribute [`CACHE_ATTRIBUTE`] and two bits
//! of its state ([`crate::volatile`]).

use crate::prealloc::NULL_FILES_MAX;
use namespace::Tables;
use namespace::derived::SETTINGS;
use pmem::Domain;
use pool::{Consistency, MountOptions, PastCache, Prealloc, WritePolicy};
use vfs::{Errno, Result};

/// The attribute with a file's own write policy: the name of a [`WritePolicy`].
pub const CACHE_ATTRIBUTE: &[u8] = b"user.keepstone.cache";

/// The bit of the first word for [`Consistency::None`]; below it is the number of the policy.
const UNORDERED: u64 = 1 << 8;

/// The settings of a mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The policy of files without their own.
    pub write_policy: WritePolicy,
    /// The writes that bypass the cache, with [`WritePolicy::Auto`].
    pub past_cache: PastCache,
    pub consistency: Consistency,
    pub prealloc: Prealloc,
}

impl Settings {
    /// Returns the settings of a pool that is opened: the first process stores those of its
    /// options, the others load them.
    pub fn agree(v: &Tables, is_first: bool, domain: Domain, o: &MountOptions) -> Self {
        if is_first {
            v.set_settings(&Self::of(domain, o).pack());
        }
        Self::unpack(&v.settings())
    }

    /// Makes the settings of these options.
    fn of(domain: Domain, o: &MountOptions) -> Self {
        // For an ordinary file, a fence is a system call that writes to a disk: only for programs
        // that ask to wait for it.
        let has_fences = domain != Domain::PageCache;
        Self {
            write_policy: o.write_policy,
            past_cache: if has_fences { o.past_cache } else { PastCache::NEVER },
            consistency: o.consistency,
            prealloc: limited(&o.prealloc),
        }
    }

    /// Encodes them as shared words.
    fn pack(&self) -> [u64; SETTINGS] {
        let unordered = if self.consistency == Consistency::None { UNORDERED } else { 0 };
        let p = &self.prealloc;
        [
            u64::from(number(self.write_policy)) | unordered,
            p.enabled.into(),
            p.null_min,
            p.null_max,
            p.null_blocks,
            p.blocks_min,
            p.blocks_max,
            p.collect_above,
            p.collect_below,
            p.cold_after,
            p.step,
            p.relocate,
            p.wear.into(),
            p.whole_below,
            p.unit,
            self.past_cache.write,
            self.past_cache.file,
        ]
    }

    /// Decodes shared words.
    fn unpack(words: &[u64; SETTINGS]) -> Self {
        let word = |i: usize| words[i];
        let is_unordered = word(0) & UNORDERED != 0;
        Self {
            write_policy: numbered((word(0) & 3) as u32).unwrap_or_default(),
            past_cache: PastCache { write: word(15), file: word(16) },
            consistency: if is_unordered { Consistency::None } else { Consistency::Metadata },
            prealloc: Prealloc {
                enabled: word(1) != 0,
                null_min: word(2),
                null_max: word(3),
                null_blocks: word(4),
                blocks_min: word(5),
                blocks_max: word(6),
                collect_above: word(7),
                collect_below: word(8),
                cold_after: word(9),
                step: word(10),
                relocate: word(11),
                wear: word(12) != 0,
                whole_below: word(13),
                unit: word(14),
            },
        }
    }
}

/// Limits settings to valid values.
fn limited(asked: &Prealloc) -> Prealloc {
    let null_max = asked.null_max.min(NULL_FILES_MAX);
    Prealloc {
        null_max,
        null_min: asked.null_min.min(null_max),
        null_blocks: asked.null_blocks.max(1),
        blocks_min: asked.blocks_min.min(asked.blocks_max),
        collect_above: asked.collect_above.min(100),
        relocate: asked.relocate.min(100),
        whole_below: asked.whole_below.min(100),
        unit: asked.unit.max(1),
        ..asked.clone()
    }
}

/// Returns the number of a policy, from 1 to 3.
pub fn number(policy: WritePolicy) -> u32 {
    match policy {
        WritePolicy::Auto => 1,
        WritePolicy::Cached => 2,
        WritePolicy::Through => 3,
    }
}

/// Returns the policy of this number.
pub fn numbered(number: u32) -> Option<WritePolicy> {
    [WritePolicy::Auto, WritePolicy::Cached, WritePolicy::Through]
        .into_iter()
        .find(|policy| self::number(*policy) == number)
}

/// Returns whether a write of `bytes` bytes to a file of `size` bytes bypasses the cache.
#[inline]
pub fn goes_past_cache(policy: WritePolicy, bytes: usize, size: u64, from: PastCache) -> bool {
    match policy {
        WritePolicy::Auto => bytes as u64 >= from.write && size >= from.file,
        WritePolicy::Cached => false,
        WritePolicy::Through => true,
    }
}

/// Parses the value of [`CACHE_ATTRIBUTE`]. `EINVAL` if it names no policy.
pub fn policy_of(value: &[u8]) -> Result<WritePolicy> {
    let name = std::str::from_utf8(value).map_err(|_| Errno::INVAL)?;
    name.parse().map_err(|_| Errno::INVAL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_come_back() {
        for number in 1..=3 {
            let write_policy = numbered(number).unwrap();
            for consistency in [Consistency::Metadata, Consistency::None] {
                let prealloc =
                    Prealloc { wear: true, unit: 7, step: u64::MAX, ..Prealloc::default() };
                let past_cache = PastCache { write: 7 << 40, file: 9 << 40 };
                let settings = Settings { write_policy, past_cache, consistency, prealloc };
                assert_eq!(Settings::unpack(&settings.pack()), settings);
            }
            assert_eq!(policy_of(write_policy.to_string().as_bytes()), Ok(write_policy));
        }
        assert_eq!(numbered(0), None);
        let of_none = Settings::of(Domain::Volatile, &MountOptions::default());
        assert_eq!(of_none.prealloc, Prealloc::default());
        assert_eq!(policy_of(b"throughout"), Err(Errno::INVAL));
        assert_eq!(policy_of(b"\xff"), Err(Errno::INVAL));
    }
}
