//! Atomics in an arena at which tests can switch threads.
//!
//! They are std's atomics, unless debug assertions or `--cfg atomic_steps` are on. Then each method
//! that changes a word first calls the function that a scheduler passed to [`on_change`]. So
//! another thread can run between a load and a store, but not in the middle of an exchange. The
//! structures of this crate use other atomics (`sync`), which loom explores.

use std::sync::atomic;

#[cfg(not(any(debug_assertions, atomic_steps)))]
pub use atomic::{AtomicU32, AtomicU64};
#[cfg(any(debug_assertions, atomic_steps))]
pub use stepping::{AtomicU32, AtomicU64};

/// Whether each change of these words calls the scheduler.
pub const ARE_STEPS: bool = cfg!(any(debug_assertions, atomic_steps));

/// Has `step` called before each change of a word in this process. Only the first call of this
/// function has an effect.
pub fn on_change(step: fn()) {
    #[cfg(any(debug_assertions, atomic_steps))]
    let _ = stepping::STEP.set(step);
    #[cfg(not(any(debug_assertions, atomic_steps)))]
    let _ = step;
}

/// Returns the word as std's type, which futex calls need.
#[inline]
pub fn futex(word: &AtomicU32) -> &atomic::AtomicU32 {
    #[cfg(any(debug_assertions, atomic_steps))]
    return &word.0;
    #[cfg(not(any(debug_assertions, atomic_steps)))]
    word
}

#[cfg(any(debug_assertions, atomic_steps))]
mod stepping {
    use std::sync::OnceLock;
    use std::sync::atomic::{self, Ordering};

    pub(super) static STEP: OnceLock<fn()> = OnceLock::new();

    fn step() {
        if let Some(step) = STEP.get() {
            step();
        }
    }

    /// Defines an atomic with std's methods; those that change the word call `step` first.
    macro_rules! stepping {
        ($name:ident, $of:ty, $($change:ident),*) => {
            /// std's atomic of this name, with a scheduler's step before each change.
            #[derive(Debug, Default)]
            #[repr(transparent)]
            pub struct $name(pub(super) atomic::$name);

            #[allow(missing_docs, reason = "as std's")]
            impl $name {
                #[inline]
                pub const fn new(value: $of) -> Self {
                    Self(atomic::$name::new(value))
                }

                #[inline]
                pub fn load(&self, order: Ordering) -> $of {
                    self.0.load(order)
                }

                #[inline]
                pub fn store(&self, value: $of, order: Ordering) {
                    step();
                    self.0.store(value, order);
                }

                #[inline]
                pub fn compare_exchange(
                    &self,
                    from: $of,
                    to: $of,
                    success: Ordering,
                    failure: Ordering,
                ) -> Result<$of, $of> {
                    step();
                    self.0.compare_exchange(from, to, success, failure)
                }

                #[inline]
                pub fn fetch_update(
                    &self,
                    set: Ordering,
                    fetch: Ordering,
                    to: impl FnMut($of) -> Option<$of>,
                ) -> Result<$of, $of> {
                    step();
                    self.0.fetch_update(set, fetch, to)
                }

                $(
                    #[inline]
                    pub fn $change(&self, with: $of, order: Ordering) -> $of {
                        step();
                        self.0.$change(with, order)
                    }
                )*
            }
        };
    }

    stepping!(AtomicU32, u32, swap, fetch_add, fetch_sub, fetch_and, fetch_or);
    stepping!(AtomicU64, u64, swap, fetch_add, fetch_sub, fetch_and, fetch_or);
}
