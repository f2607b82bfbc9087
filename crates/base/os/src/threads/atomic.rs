//! Traits of atomic words, for protocols that are generic over them. std's atomics implement them,
//! and with the feature `loom` the model checker's, so that it checks the code used in production.

use std::sync::atomic::Ordering;

/// An atomic word.
pub trait Atomic: Default + Send + Sync {
    /// The type of its value.
    type Value: Copy + Eq;

    /// As of std.
    fn load(&self, order: Ordering) -> Self::Value;

    /// As of std.
    fn store(&self, value: Self::Value, order: Ordering);

    /// As of std.
    fn swap(&self, value: Self::Value, order: Ordering) -> Self::Value;

    /// As of std.
    ///
    /// # Errors
    /// As of std.
    fn compare_exchange(
        &self,
        current: Self::Value,
        new: Self::Value,
        success: Ordering,
        failure: Ordering,
    ) -> Result<Self::Value, Self::Value>;
}

/// An atomic number.
pub trait AtomicNumber: Atomic {
    /// As of std.
    fn fetch_sub(&self, value: Self::Value, order: Ordering) -> Self::Value;

    /// As of std.
    fn fetch_or(&self, value: Self::Value, order: Ordering) -> Self::Value;

    /// As of std.
    fn fetch_and(&self, value: Self::Value, order: Ordering) -> Self::Value;
}

macro_rules! atomics {
    ($($path:ident)::+, $name:ident, $value:ty) => {
        impl Atomic for $($path)::+::$name {
            type Value = $value;

            #[inline]
            fn load(&self, order: Ordering) -> $value {
                self.load(order)
            }
            #[inline]
            fn store(&self, value: $value, order: Ordering) {
                self.store(value, order);
            }
            #[inline]
            fn swap(&self, value: $value, order: Ordering) -> $value {
                self.swap(value, order)
            }
            #[inline]
            fn compare_exchange(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                self.compare_exchange(current, new, success, failure)
            }
        }
    };
    ($($path:ident)::+, $name:ident, $value:ty, number) => {
        atomics!($($path)::+, $name, $value);

        impl AtomicNumber for $($path)::+::$name {
            #[inline]
            fn fetch_sub(&self, value: $value, order: Ordering) -> $value {
                self.fetch_sub(value, order)
            }
            #[inline]
            fn fetch_or(&self, value: $value, order: Ordering) -> $value {
                self.fetch_or(value, order)
            }
            #[inline]
            fn fetch_and(&self, value: $value, order: Ordering) -> $value {
                self.fetch_and(value, order)
            }
        }
    };
}

atomics!(std::sync::atomic, AtomicBool, bool);
atomics!(std::sync::atomic, AtomicU32, u32, number);
atomics!(std::sync::atomic, AtomicU64, u64, number);
#[cfg(feature = "loom")]
atomics!(loom::sync::atomic, AtomicBool, bool);
#[cfg(feature = "loom")]
atomics!(loom::sync::atomic, AtomicU32, u32, number);
#[cfg(feature = "loom")]
atomics!(loom::sync::atomic, AtomicU64, u64, number);
