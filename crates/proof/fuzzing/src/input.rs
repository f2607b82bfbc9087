//! Takes an input apart. An input that ends early gives zeros.

/// The rest of an input.
pub struct Input<'b>(pub &'b [u8]);

impl<'b> Input<'b> {
    /// Whether nothing is left.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes the next byte.
    pub fn byte(&mut self) -> u8 {
        let [byte] = self.array();
        byte
    }

    /// Takes the next four bytes as a little-endian number.
    pub fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }

    /// Takes the next eight bytes as a little-endian number.
    pub fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }

    /// Takes up to `len` bytes: fewer if the input ends.
    pub fn bytes(&mut self, len: usize) -> &'b [u8] {
        let (bytes, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        bytes
    }

    /// Takes a piece, after its length in two bytes (little-endian).
    pub fn piece(&mut self) -> &'b [u8] {
        let len = u16::from_le_bytes(self.array());
        self.bytes(len.into())
    }

    fn array<const N: usize>(&mut self) -> [u8; N] {
        let bytes = self.bytes(N);
        let mut array = [0; N];
        array[..bytes.len()].copy_from_slice(bytes);
        array
    }
}

/// Encodes a piece for [`Input::piece`].
///
/// # Panics
/// If it has 64 KiB or more.
pub fn piece(bytes: &[u8]) -> Vec<u8> {
    let len = u16::try_from(bytes.len()).expect("seeds are short");
    [&len.to_le_bytes(), bytes].concat()
}
