//! The additional hardware for epochs, by the list of §4.4.1.

use super::config::HardwareConfig;
use crate::LINE;
use serde::Serialize;

/// Bytes of a group of cached lines for which the cache keeps a bit and a count for each epoch.
const GROUP: u64 = 4096;

/// Bits of the additional hardware. The capacitor is computed by [`crate::atomicity`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct EpochCost {
    /// Epoch counters: 64 bits for each hardware context.
    pub counter_bits: u64,
    /// Bits of a cache tag: the pointer to an epoch, and the persistence bit.
    pub tag_bits_per_line: u64,
    /// Bits of all tags, of both levels.
    pub tag_bits: u64,
    /// Bit vectors and counters of the L2 cache: for each epoch and each 4 KiB of cache, whether
    /// the epoch has lines there, and how many.
    pub l2_index_bits: u64,
    /// The same for all L1 caches.
    pub l1_index_bits: u64,
}

impl EpochCost {
    /// Computes the cost.
    pub fn of(config: &HardwareConfig) -> Self {
        let (cores, epochs) = (u64::from(config.cores), u64::from(config.epochs));
        let pointer = bits_to_count(epochs);
        let tag_bits_per_line = pointer + 1;
        let lines = cores * config.l1.lines() + config.l2.lines();
        // The bit records whether there are lines; the counter then counts from 1.
        let index = |bytes: u64| {
            let group = GROUP.min(bytes);
            bytes / group * epochs * (1 + bits_to_count(group / LINE))
        };
        Self {
            counter_bits: 64 * cores,
            tag_bits_per_line,
            tag_bits: lines * tag_bits_per_line,
            l2_index_bits: index(config.l2.bytes),
            l1_index_bits: cores * index(config.l1.bytes),
        }
    }

    /// Returns the sum in bytes.
    pub fn total_bytes(&self) -> u64 {
        let Self { counter_bits, tag_bits, l2_index_bits, l1_index_bits, .. } = self;
        (counter_bits + tag_bits + l2_index_bits + l1_index_bits).div_ceil(8)
    }
}

/// Returns the bits of a number that has `values` values.
fn bits_to_count(values: u64) -> u64 {
    u64::from(values.next_power_of_two().trailing_zeros())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// §4.4.1: 4 bits for each tag, 7 KB for the L2 cache, and approximately 40 KB in all.
    #[test]
    fn the_default_costs_what_the_paper_states() {
        let cost = EpochCost::of(&HardwareConfig::default());
        assert_eq!(cost.counter_bits, 128);
        assert_eq!(cost.tag_bits_per_line, 4);
        assert_eq!(cost.l2_index_bits, 7 * 1024 * 8);
        assert_eq!(cost.total_bytes(), 40_576);
        assert_eq!(cost.total_bytes().div_ceil(1024), 40);
    }
}
