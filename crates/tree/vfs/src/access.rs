//! Reads that are no access.
//!
//! `O_NOATIME` is a flag of an open file, and engines know no open files. A front end makes such a
//! call within [`unrecorded`]; an engine asks [`is_recorded`] before it records an access. Other
//! calls pay nothing for it.

use std::cell::Cell;

thread_local! {
    static IS_UNRECORDED: Cell<bool> = const { Cell::new(false) };
}

/// Makes a call that moves no access time.
pub fn unrecorded<T>(call: impl FnOnce() -> T) -> T {
    /// Ends it even if the call panics.
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

/// Returns whether this thread's call may move an access time.
pub fn is_recorded() -> bool {
    !IS_UNRECORDED.get()
}
