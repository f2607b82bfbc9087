//! What is chosen at a mount, for all who share the pool: one word of the shared state, written by who makes it. Those who
//! join read it, whatever their own options say.
//!
//! What a file says for itself is an extended attribute, [`CACHE_ATTRIBUTE`], and two bits of its state ([`crate::volatile`]).

use pool::{Consistency, MountOptions, WritePolicy};
use vfs::{Errno, Result};

/// The attribute by which a file says how writes to it reach the medium: the name of a [`WritePolicy`].
pub const CACHE_ATTRIBUTE: &[u8] = b"user.keepstone.cache";

/// Writes of so many bytes go past the cache, where nobody has chosen: they take 0.7 of the time, measured with 1 MiB, and
/// push nothing out of it.
pub const PAST_CACHE: usize = 64 << 10;

/// The bit of the word that says [`Consistency::None`]; below it is the number of the policy.
const UNORDERED: u64 = 1 << 8;

/// What was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Of files that say nothing for themselves.
    pub write_policy: WritePolicy,
    pub consistency: Consistency,
}

impl Settings {
    /// What options choose.
    pub fn of(o: &MountOptions) -> Self {
        Self { write_policy: o.write_policy, consistency: o.consistency }
    }

    /// As it is shared.
    pub fn pack(self) -> u64 {
        let unordered = if self.consistency == Consistency::None { UNORDERED } else { 0 };
        u64::from(number(self.write_policy)) | unordered
    }

    /// From what is shared.
    pub fn unpack(word: u64) -> Self {
        let is_unordered = word & UNORDERED != 0;
        Self {
            write_policy: numbered((word & 3) as u32).unwrap_or_default(),
            consistency: if is_unordered { Consistency::None } else { Consistency::Metadata },
        }
    }
}

/// The number of a policy, from 1 to 3.
pub fn number(policy: WritePolicy) -> u32 {
    match policy {
        WritePolicy::Auto => 1,
        WritePolicy::Cached => 2,
        WritePolicy::Through => 3,
    }
}

/// The policy of this number.
pub fn numbered(number: u32) -> Option<WritePolicy> {
    [WritePolicy::Auto, WritePolicy::Cached, WritePolicy::Through]
        .into_iter()
        .find(|policy| self::number(*policy) == number)
}

/// Whether a write of so many bytes goes past the cache.
#[inline]
pub fn goes_past_cache(policy: WritePolicy, bytes: usize) -> bool {
    match policy {
        WritePolicy::Auto => bytes >= PAST_CACHE,
        WritePolicy::Cached => false,
        WritePolicy::Through => true,
    }
}

/// What the value of [`CACHE_ATTRIBUTE`] means. `EINVAL` where it means nothing.
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
                let settings = Settings { write_policy, consistency };
                assert_eq!(Settings::unpack(settings.pack()), settings);
            }
            assert_eq!(policy_of(write_policy.to_string().as_bytes()), Ok(write_policy));
        }
        assert_eq!(numbered(0), None);
        assert_eq!(Settings::unpack(0), Settings::of(&MountOptions::default()));
        assert_eq!(policy_of(b"throughout"), Err(Errno::INVAL));
        assert_eq!(policy_of(b"\xff"), Err(Errno::INVAL));
    }
}
