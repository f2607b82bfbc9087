//! Tokens: positions in a stream, as text.

use super::StreamPosition;
use std::fmt;
use std::str::FromStr;

/// Names the position up to which a receiver has a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamToken {
    /// Creation of the snapshot.
    pub created_ns: u64,
    /// Creation of the base; 0: the stream is full.
    pub base_created_ns: u64,
    /// The position.
    pub position: StreamPosition,
}

impl StreamToken {
    fn words(&self) -> [u64; 4] {
        let StreamPosition { ino, offset } = self.position;
        [self.created_ns, self.base_created_ns, ino, offset]
    }
}

/// Computes the last word of a token.
fn checksum(words: &[u64]) -> u64 {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    super::CRC.checksum(&bytes)
}

impl fmt::Display for StreamToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = self.words();
        for word in words.into_iter().chain([checksum(&words)]) {
            write!(f, "{:016x}", word.swap_bytes())?;
        }
        Ok(())
    }
}

impl FromStr for StreamToken {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const BAD: &str = "it is no token: copy all 80 digits that `keepstone receive` has printed";
        if text.len() != 80 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(BAD);
        }
        let word = |i: usize| {
            let digits = &text[i * 16..(i + 1) * 16];
            u64::from_str_radix(digits, 16).map(u64::swap_bytes).map_err(|_| BAD)
        };
        let words = [word(0)?, word(1)?, word(2)?, word(3)?];
        if checksum(&words) != word(4)? {
            return Err(BAD);
        }
        let [created_ns, base_created_ns, ino, offset] = words;
        Ok(Self { created_ns, base_created_ns, position: StreamPosition { ino, offset } })
    }
}
