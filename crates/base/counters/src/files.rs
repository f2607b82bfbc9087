//! The list of files that went through the mount, for `run --explain`: path, reason, calls and
//! bytes.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::Reason;
use crate::label::Label;

/// The most files in the list.
const FILES: usize = 1024;
/// The number of bytes kept of a path: its last ones.
const PATH_BYTES: usize = 480;

#[repr(C)]
pub(crate) struct CountedFiles([CountedFile; FILES]);

#[repr(C)]
struct CountedFile {
    /// The path, and the reason.
    label: Label<PATH_BYTES>,
    calls: AtomicU64,
    bytes: AtomicU64,
}

/// A file, or a program, with the reason why it is listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileCalls {
    /// Its path; only the end of a long one.
    pub path: Vec<u8>,
    /// The reason why its calls went to the kernel.
    pub reason: Reason,
    /// The number of calls.
    pub calls: u64,
    /// The bytes that they have moved.
    pub bytes: u64,
}

impl CountedFiles {
    /// Adds calls and bytes to the entry of this file and reason. Makes the entry if necessary;
    /// does nothing if the list is full.
    pub fn add(&self, path: &[u8], reason: Reason, calls: u64, bytes: u64) {
        let path = &path[path.len().saturating_sub(PATH_BYTES)..];
        let hash = path.iter().fold(reason as u64, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        });
        let start = hash as usize % FILES;
        for file in self.0[start..].iter().chain(&self.0[..start]) {
            if file.label.is_or_becomes(path, reason as u8) {
                file.calls.fetch_add(calls, Relaxed);
                file.bytes.fetch_add(bytes, Relaxed);
                return;
            }
        }
    }

    /// Returns all entries, sorted by path: one for each file and reason.
    pub fn list(&self) -> Vec<FileCalls> {
        let mut found: Vec<FileCalls> = Vec::new();
        for file in &self.0 {
            let Some((path, number)) = file.label.read() else { continue };
            let Some(reason) = Reason::from_number(number) else { continue };
            let (calls, bytes) = (file.calls.load(Relaxed), file.bytes.load(Relaxed));
            match found.iter_mut().find(|found| found.path == path && found.reason == reason) {
                Some(same) => (same.calls, same.bytes) = (same.calls + calls, same.bytes + bytes),
                None => found.push(FileCalls { path, reason, calls, bytes }),
            }
        }
        found.sort_by(|a, b| a.path.cmp(&b.path));
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_listed_once_for_each_reason() {
        // SAFETY: atomics, whose zeros are values.
        #[allow(unsafe_code)]
        let files: Box<CountedFiles> = unsafe { Box::new_zeroed().assume_init() };
        let long = [b'x'; 600];
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    files.add(b"/pool/b", Reason::Libc, 1, 10);
                    files.add(b"/pool/b", Reason::KernelOnly, 1, 0);
                    files.add(b"/pool/a", Reason::Libc, 2, 5);
                    files.add(&long, Reason::Libc, 1, 0);
                });
            }
        });
        let listed = files.list();
        let a = FileCalls { path: b"/pool/a".to_vec(), reason: Reason::Libc, calls: 8, bytes: 20 };
        assert_eq!(listed[0], a);
        assert_eq!(listed.len(), 4);
        assert_eq!(listed[3].path, &long[..PATH_BYTES]);
        for i in 0..2 * FILES {
            files.add(i.to_string().as_bytes(), Reason::Libc, 1, 0);
        }
        assert_eq!(files.list().len(), FILES);
    }
}
