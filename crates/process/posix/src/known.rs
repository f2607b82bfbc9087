//! Values that seldom change and are read without a lock.

#![allow(unsafe_code)]

use std::sync::atomic::{AtomicPtr, Ordering::*};

/// All values that something has had. None is freed, because a call may still be using it. A value
/// that comes back is found again.
pub(crate) struct Values<T>(AtomicPtr<ValueNode<T>>);

/// [`Values`] with the one that holds now.
pub(crate) struct CurrentValue<T> {
    current: AtomicPtr<T>,
    values: Values<T>,
}

struct ValueNode<T> {
    value: T,
    next: *mut ValueNode<T>,
}

// SAFETY: a value does not change, and stays until the whole list is dropped.
unsafe impl<T: Send + Sync> Send for Values<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Sync for Values<T> {}

impl<T> Default for Values<T> {
    fn default() -> Self {
        Self(AtomicPtr::new(std::ptr::null_mut()))
    }
}

impl<T: PartialEq> Values<T> {
    /// Whether there is more than one.
    pub fn are_several(&self) -> bool {
        // SAFETY: null, or on the list, of which nothing is freed before `self`.
        unsafe { self.0.load(Acquire).as_ref() }.is_some_and(|last| !last.next.is_null())
    }

    /// Returns the value that equals this one, which is added if no other does.
    pub fn keep(&self, value: T) -> &T {
        let mut at = self.0.load(Acquire);
        // SAFETY: the list ends with null and holds what is never freed before `self`.
        while let Some(node) = unsafe { at.as_ref() } {
            if node.value == value {
                return &node.value;
            }
            at = node.next;
        }
        let node = Box::into_raw(Box::new(ValueNode { value, next: std::ptr::null_mut() }));
        let mut next = self.0.load(Acquire);
        loop {
            // SAFETY: no other thread sees it before the exchange below.
            unsafe { (*node).next = next };
            match self.0.compare_exchange(next, node, AcqRel, Acquire) {
                // SAFETY: on the list, so it stays.
                Ok(_) => return unsafe { &(*node).value },
                Err(now) => next = now,
            }
        }
    }
}

impl<T: PartialEq> CurrentValue<T> {
    /// Creates the list with one value, the current one.
    pub fn new(value: T) -> Self {
        let values = Values::default();
        let current = AtomicPtr::new(std::ptr::from_ref(values.keep(value)).cast_mut());
        Self { current, values }
    }

    /// The value that holds now.
    #[inline]
    pub fn current(&self) -> &T {
        // SAFETY: never null, never freed before `self`.
        unsafe { &*self.current.load(Acquire) }
    }

    /// Makes a value the current one. Returns whether it was another before.
    pub fn change(&self, value: T) -> bool {
        if *self.current() == value {
            return false;
        }
        self.current.store(std::ptr::from_ref(self.values.keep(value)).cast_mut(), Release);
        true
    }
}

impl<T> Drop for Values<T> {
    fn drop(&mut self) {
        let mut at = *self.0.get_mut();
        while !at.is_null() {
            // SAFETY: each came from a box and is on the list once; `&mut self`: no thread uses it.
            at = unsafe { Box::from_raw(at) }.next;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_back_is_found_again() {
        let known = CurrentValue::new(1);
        let first = &raw const *known.current();
        assert!(!known.change(1) && !known.values.are_several());
        assert!(known.change(2));
        assert_eq!(*known.current(), 2);
        assert!(known.change(1) && known.values.are_several());
        assert_eq!(&raw const *known.current(), first);
    }
}
