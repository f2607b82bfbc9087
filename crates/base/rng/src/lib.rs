//! Pseudo-random numbers for tests, workloads and the crash explorer: SplitMix64 (Steele, Lea,
//! Flood, OOPSLA 2014). The same seed gives the same numbers on every machine and in every version,
//! as documents and replay lines contain seeds. Not for secrets.

/// The increment of the state: 2^64 divided by the golden ratio, made odd.
const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

/// Returns the first number of the sequence with seed `x`: a hash of which every bit depends on
/// every bit of `x`.
pub fn hash(x: u64) -> u64 {
    let z = x.wrapping_add(GAMMA);
    let z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

/// Hashes bytes and their number, by [`hash`].
pub fn hash_bytes(bytes: &[u8]) -> u64 {
    let mut words = bytes.chunks_exact(8);
    let word = |bytes: &[u8]| {
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        u64::from_le_bytes(word)
    };
    // A sum of hashes, so that the CPU computes several at once.
    let terms =
        words.by_ref().zip(1_u64..).map(|(bytes, nth)| hash(word(bytes) ^ nth.wrapping_mul(GAMMA)));
    let sum = terms.fold(hash(bytes.len() as u64), u64::wrapping_add);
    hash(sum ^ hash(word(words.remainder())))
}

/// A sequence of numbers that its seed determines.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// Makes the sequence of `seed`. Sequences of seeds that differ by a small multiple of the
    /// increment overlap. Those of small seeds overlap only after more numbers than any program
    /// draws.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns the next 64 bits.
    #[expect(clippy::should_implement_trait, reason = "it has no end, and nobody iterates over it")]
    pub fn next(&mut self) -> u64 {
        let number = hash(self.0);
        self.0 = self.0.wrapping_add(GAMMA);
        number
    }

    /// Returns a number below `bound`, which must not be 0. Smaller numbers are more frequent by at
    /// most `bound` / 2^64.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// As [`below`](Self::below), with different numbers: by a multiplication instead of a
    /// division, for timed loops.
    pub fn below_fast(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    /// Returns an index into a sequence of length `len`, which must not be 0.
    pub fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    /// Returns a number from 0 to below 1.
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Returns true in one of `n` cases.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// Returns true in `percent` of 100 cases.
    pub fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// Returns one of `choices`, of which there must be at least one.
    pub fn pick<T: Clone>(&mut self, choices: &[T]) -> T {
        choices[self.index(choices.len())].clone()
    }

    /// Returns one of `choices`, with a probability in proportion to its weight (the number). The
    /// sum of the weights must not be 0.
    pub fn weighted<T: Clone>(&mut self, choices: &[(u64, T)]) -> T {
        let mut at = self.below(choices.iter().map(|(weight, _)| weight).sum());
        for (weight, choice) in choices {
            match at.checked_sub(*weight) {
                Some(rest) => at = rest,
                None => return choice.clone(),
            }
        }
        unreachable!("the number is below the sum of the weights")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first numbers of seed 1234567, from the reference implementation
    /// (<https://prng.di.unimi.it/splitmix64.c>).
    #[test]
    fn sequences_are_fixed() {
        let mut rng = Rng::new(1_234_567);
        let expected = [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
            4_593_380_528_125_082_431,
            16_408_922_859_458_223_821,
        ];
        assert_eq!(expected, [(); 5].map(|()| rng.next()));
        assert_eq!(hash(1_234_567), expected[0]);
    }

    #[test]
    fn numbers_of_a_range_are_fixed() {
        let mut rng = Rng::new(1);
        assert_eq!([(); 6].map(|()| rng.below(100)), [65, 19, 90, 35, 61, 48]);
        assert_eq!([(); 6].map(|()| rng.below_fast(100)), [87, 52, 28, 79, 40, 60]);
        assert_eq!([(); 6].map(|()| rng.pick(&["a", "b", "c"])), ["c", "b", "b", "c", "a", "c"]);
        let weights = [(1, 'x'), (0, 'y'), (3, 'z')];
        assert_eq!([(); 6].map(|()| rng.weighted(&weights)), ['z', 'x', 'z', 'x', 'z', 'x']);
        assert_eq!(Rng::new(1).unit(), 0.566_561_575_172_280_9);
    }
}
