//! Reads that are no access.
//!
//! `O_NOATIME` belongs to who has opened a file, and engines know no openings. A front end makes such a call within
//! [`unrecorded`]; an engine that is about to record an access asks [`is_recorded`]. Others pay nothing for it.

use std::cell::Cell;

thread_local! {
    static IS_UNRECORDED: Cell<bool> = const { Cell::new(false) };
}

/// Makes a call that moves no access time.
pub fn unrecorded<T>(call: impl FnOnce() -> T) -> T {
    /// Ends it also where the call panics.
    struct End;
    impl Drop for End {
        fn drop(&mut self) {
            IS_UNRECORDED.set(false);
        }
    }
    IS_UNRECORDED.set(true);
    let _end = End;
    call()
}

/// Whether this thread's call may move an access time.
pub fn is_recorded() -> bool {
    !IS_UNRECORDED.get()
}
