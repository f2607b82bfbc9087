//! Values that seldom change and are read without a lock.

#![allow(unsafe_code)]

use std::sync::atomic::{AtomicPtr, Ordering::*};

/// The values that something has had, with the current one. None goes away, because a call may still be
/// using it; one that comes back is found again.
pub(crate) struct Known<T> {
    current: AtomicPtr<Node<T>>,
    first: AtomicPtr<Node<T>>,
}

struct Node<T> {
    value: T,
    next: *mut Node<T>,
}

// SAFETY: what is known does not change and stays until the whole is dropped.
unsafe impl<T: Send + Sync> Send for Known<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Sync for Known<T> {}

impl<T: PartialEq> Known<T> {
    /// Begins with one.
    pub fn new(value: T) -> Self {
        let node = Box::into_raw(Box::new(Node { value, next: std::ptr::null_mut() }));
        Self { current: AtomicPtr::new(node), first: AtomicPtr::new(node) }
    }

    /// The current one.
    #[inline]
    pub fn current(&self) -> &T {
        // SAFETY: never null, never freed before `self`.
        unsafe { &(*self.current.load(Acquire)).value }
    }

    /// Whether there has been another one.
    pub fn has_changed(&self) -> bool {
        // SAFETY: as above.
        unsafe { !(*self.first.load(Acquire)).next.is_null() }
    }

    /// Makes a value the current one; returns whether it was not.
    pub fn change(&self, value: T) -> bool {
        if *self.current() == value {
            return false;
        }
        let mut at = self.first.load(Acquire);
        // SAFETY: the list ends with null and holds what is never freed before `self`.
        while let Some(node) = unsafe { at.as_ref() } {
            if node.value == value {
                self.current.store(at, Release);
                return true;
            }
            at = node.next;
        }
        let node = Box::into_raw(Box::new(Node { value, next: std::ptr::null_mut() }));
        let mut next = self.first.load(Acquire);
        loop {
            // SAFETY: nobody else sees it before the exchange below.
            unsafe { (*node).next = next };
            match self.first.compare_exchange(next, node, AcqRel, Acquire) {
                Ok(_) => break,
                Err(now) => next = now,
            }
        }
        self.current.store(node, Release);
        true
    }
}

impl<T> Drop for Known<T> {
    fn drop(&mut self) {
        let mut at = *self.first.get_mut();
        while !at.is_null() {
            // SAFETY: each came from a box and is on the list once; `&mut self`: nobody uses it.
            at = unsafe { Box::from_raw(at) }.next;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_back_is_found_again() {
        let known = Known::new(1);
        let first = &raw const *known.current();
        assert!(!known.change(1) && !known.has_changed());
        assert!(known.change(2));
        assert_eq!(*known.current(), 2);
        assert!(known.change(1) && known.has_changed());
        assert_eq!(&raw const *known.current(), first);
    }
}
