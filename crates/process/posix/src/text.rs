//! Text without allocation.

use std::fmt::{self, Write};

struct Cursor<'a> {
    buf: &'a mut [u8],
    len: usize,
}

impl Write for Cursor<'_> {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        let room = self.buf.get_mut(self.len..self.len + s.len()).ok_or(fmt::Error)?;
        room.copy_from_slice(s.as_bytes());
        self.len += s.len();
        Ok(())
    }
}

/// Formats into `buf`, and cuts the rest.
pub fn format<'a>(buf: &'a mut [u8], text: fmt::Arguments<'_>) -> &'a [u8] {
    let mut cursor = Cursor { buf, len: 0 };
    let _ = cursor.write_fmt(text);
    let len = cursor.len;
    &buf[..len]
}
