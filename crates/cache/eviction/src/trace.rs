//! Traces of accesses to objects, with the size of each object at the access.
//!
//! - text: a line `key [size]` for each access, size in bytes (default 4096). A key is a number
//!   below 2^64, or any other word, which is hashed. Empty lines, and those that begin with `#`,
//!   are ignored.
//! - oracleGeneral: records of 24 bytes, little-endian: time (u32), key (u64), size in bytes (u32),
//!   and the time of the next access to the key (i64). The traces of the papers on S3-FIFO and
//!   SIEVE are published in this format, compressed.

use std::fs::File;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::{BufRead as _, BufReader, Error, ErrorKind, Read, Result, Seek as _};
use std::path::Path;

/// The size of an oracleGeneral record in bytes.
const RECORD: usize = 24;
/// The first bytes of a file that zstd compressed.
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// The size of an object if a text gives none, in bytes.
const SIZE: u64 = 4096;
/// The number of bytes at the beginning that identify the format of a file.
const HEAD: u64 = 4096;

/// An access to an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Access {
    /// The key of the object.
    pub key: u64,
    /// Its size, in bytes.
    pub size: u64,
}

/// A file of accesses, read from its beginning.
pub struct TraceFile {
    input: BufReader<File>,
    is_text: bool,
    /// The number of bytes of records read so far.
    at: u64,
    len: u64,
    line: String,
    line_number: u64,
}

impl TraceFile {
    /// Opens a trace and detects its format from its first bytes.
    pub fn open(path: &Path) -> Result<Self> {
        let mut file = File::open(path)?;
        if !file.metadata()?.is_file() {
            return Err(Error::new(ErrorKind::InvalidInput, "a trace has to be a regular file"));
        }
        let mut head = Vec::new();
        file.by_ref().take(HEAD).read_to_end(&mut head)?;
        file.rewind()?;
        let len = file.metadata()?.len();
        let is_text = is_text(&head);
        if head.starts_with(&ZSTD) {
            return invalid("it is compressed: use `zstd -d` on it first");
        }
        if !is_text && !len.is_multiple_of(RECORD as u64) {
            return invalid(
                "neither lines of text `key [size]` nor oracleGeneral records of 24 bytes",
            );
        }
        let input = BufReader::with_capacity(1 << 16, file);
        Ok(TraceFile { input, is_text, at: 0, len, line: String::new(), line_number: 0 })
    }

    /// Reads the next binary record; `None` at the end.
    fn next_record(&mut self) -> Result<Option<Access>> {
        let mut record = [0; RECORD];
        if self.at == self.len {
            return Ok(None);
        }
        self.input.read_exact(&mut record)?;
        self.at += RECORD as u64;
        let key = u64::from_le_bytes(record[4..12].try_into().expect("8 bytes"));
        let size = u32::from_le_bytes(record[12..16].try_into().expect("4 bytes"));
        Ok(Some(Access { key, size: size.into() }))
    }

    /// Reads the next line with an access; `None` at the end. `InvalidData` for a line that does
    /// not parse.
    fn next_line(&mut self) -> Result<Option<Access>> {
        loop {
            self.line.clear();
            let read = self.input.read_line(&mut self.line)?;
            if read == 0 {
                return Ok(None);
            }
            self.line_number += 1;
            let line = self.line.trim();
            if !line.is_empty() && !line.starts_with('#') {
                let access = parse(line).ok_or_else(|| {
                    let number = self.line_number;
                    let what = format!("line {number}: `{line}` is not `key [size]`");
                    Error::new(ErrorKind::InvalidData, what)
                });
                return access.map(Some);
            }
        }
    }
}

impl Iterator for TraceFile {
    type Item = Result<Access>;

    fn next(&mut self) -> Option<Result<Access>> {
        if self.is_text { self.next_line().transpose() } else { self.next_record().transpose() }
    }
}

fn invalid<T>(what: &str) -> Result<T> {
    Err(Error::new(ErrorKind::InvalidData, what))
}

/// Returns whether a file is text. Text has no control characters; a record has some, as its size
/// fills four bytes.
fn is_text(head: &[u8]) -> bool {
    head.iter().all(|byte| *byte >= b' ' || b"\t\r\n".contains(byte))
}

/// Parses `key [size]`, the size in bytes. `None` if the line has another form.
fn parse(line: &str) -> Option<Access> {
    let mut words = line.split_ascii_whitespace();
    let key = words.next().filter(|word| !is_row(word)).map(key_of)?;
    let size = words.next().map_or(Some(SIZE), |size| size.parse().ok())?;
    words.next().is_none().then_some(Access { key, size })
}

/// Returns whether a word is a list of numbers separated by commas, which is not a key.
fn is_row(word: &str) -> bool {
    word.contains(',') && word.bytes().all(|byte| byte.is_ascii_digit() || byte == b',')
}

/// Returns a number as it is, and the hash of any other word.
fn key_of(word: &str) -> u64 {
    word.parse().unwrap_or_else(|_| {
        let mut hasher = DefaultHasher::new();
        word.hash(&mut hasher);
        hasher.finish()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_keys_and_sizes() {
        assert_eq!(parse("7"), Some(Access { key: 7, size: 4096 }));
        assert_eq!(parse("7\t100"), Some(Access { key: 7, size: 100 }));
        assert_eq!(parse("7,100"), None);
        assert!(parse("a,b 1").is_some());
        assert_eq!(parse("/etc/passwd 1"), parse("/etc/passwd 1"));
        assert_ne!(parse("/etc/passwd"), parse("/etc/group"));
        for line in ["7 x", "7 -1", "7 1 1"] {
            assert_eq!(parse(line), None, "{line}");
        }
    }
}
