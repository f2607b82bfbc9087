//! Instruments of a region: around each access, they notify its observer, and wait as long as
//! slower memory would take.

use crate::counters::Counters;
use crate::emulation::{Emulation, Emulator};
use crate::observe::{Observed, SharedObserver};

/// The instruments of a region that has any.
#[derive(Debug)]
pub(super) struct Instruments {
    emulator: Option<Emulator>,
    observer: Option<SharedObserver>,
}

impl Instruments {
    /// Returns the instruments of a region of up to `len` bytes, if there are any.
    pub(super) fn new(
        emulation: Option<Emulation>,
        observer: Option<SharedObserver>,
        len: u64,
    ) -> Option<Box<Self>> {
        if let Some(observer) = &observer {
            observer.open(len);
        }
        let emulator = emulation.map(|e| Emulator::new(&e));
        let has_any = emulator.is_some() || observer.is_some();
        has_any.then(|| Box::new(Self { emulator, observer }))
    }

    /// Whether the observer wants the bytes of copies.
    pub(super) fn wants_data(&self) -> bool {
        self.observer.as_ref().is_some_and(|observer| observer.wants_data())
    }

    /// Does `op`, which is `access`.
    #[cold]
    #[inline(never)]
    pub(super) fn around<R>(
        &self,
        access: &Observed<'_>,
        counters: &Counters,
        op: impl FnOnce() -> R,
    ) -> R {
        if let Some(observer) = &self.observer {
            observer.begin(access);
        }
        let result = match &self.emulator {
            None => op(),
            Some(emulator) => emulator.slowed(access.direction(), access.moved(), counters, op),
        };
        if let Some(observer) = &self.observer {
            observer.end();
        }
        result
    }
}
