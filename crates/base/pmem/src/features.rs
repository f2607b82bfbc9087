//! Instructions that this CPU has.
//!
//! CPUID traps in a virtual machine, which takes some microseconds, and every program that uses a
//! pool needs it. So the C library is asked first: it executed CPUID when the program was loaded
//! (glibc 2.33 and later).

#![allow(unsafe_code)]

use std::arch::x86_64::{__cpuid, __cpuid_count, CpuidResult};
use std::sync::OnceLock;

/// The instructions for persistent memory that this CPU has and the kernel allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Features {
    pub(crate) clflush: bool,
    pub(crate) clflushopt: bool,
    pub(crate) clwb: bool,
    pub(crate) movdir64b: bool,
    /// Fast `rep movsb` by microcode: in CPUs since 2012 (Intel) and 2020 (AMD).
    pub(crate) erms: bool,
    pub(crate) avx2: bool,
    pub(crate) avx512f: bool,
}

/// Returns the features of this machine.
pub(crate) fn features() -> Features {
    static FOUND: OnceLock<Features> = OnceLock::new();
    *FOUND.get_or_init(|| Features::from_libc().unwrap_or_else(Features::from_cpu))
}

/// `struct cpuid_feature` of glibc's `sys/platform/x86.h`.
#[repr(C)]
struct Leaf {
    /// EAX, EBX, ECX, EDX.
    there: [u32; 4],
    /// The usable ones, in the same registers.
    usable: [u32; 4],
}

impl Features {
    /// Decodes the results of CPUID: EDX of leaf 1 (`clflush` is bit 19), and leaf 7. `avx2`
    /// and `avx512f` are passed in, because the kernel has to enable these registers, too.
    fn new(leaf1_edx: u32, leaf7: CpuidResult, avx2: bool, avx512f: bool) -> Self {
        Self {
            clflush: leaf1_edx & (1 << 19) != 0,
            clflushopt: leaf7.ebx & (1 << 23) != 0,
            clwb: leaf7.ebx & (1 << 24) != 0,
            movdir64b: leaf7.ecx & (1 << 28) != 0,
            erms: leaf7.ebx & (1 << 9) != 0,
            avx2,
            avx512f,
        }
    }

    /// Asks glibc for the features. `None` if it cannot tell.
    fn from_libc() -> Option<Self> {
        const LEAF_1: u32 = 0;
        const LEAF_7: u32 = 1;
        // SAFETY: the name is a C string.
        let found =
            unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__x86_get_cpuid_feature_leaf".as_ptr()) };
        if found.is_null() {
            return None;
        }
        // SAFETY: glibc's function of that name; it returns constants, and zeros for leaves that it
        // does not know.
        let (leaf1, leaf7) = unsafe {
            let leaf = std::mem::transmute::<
                *mut libc::c_void,
                unsafe extern "C" fn(u32) -> *const Leaf,
            >(found);
            (leaf(LEAF_1).as_ref()?, leaf(LEAF_7).as_ref()?)
        };
        let [eax, ebx, ecx, edx] = leaf7.there;
        let usable = |bit: u32| leaf7.usable[1] & (1 << bit) != 0;
        let leaf7 = CpuidResult { eax, ebx, ecx, edx };
        // Leaf 1 of a processor is never zero.
        (leaf1.there[3] != 0).then(|| Self::new(leaf1.there[3], leaf7, usable(5), usable(16)))
    }

    /// Executes CPUID.
    fn from_cpu() -> Self {
        let none = CpuidResult { eax: 0, ebx: 0, ecx: 0, edx: 0 };
        let leaf7 = if __cpuid(0).eax >= 7 { __cpuid_count(7, 0) } else { none };
        let (avx2, avx512f) =
            (is_x86_feature_detected!("avx2"), is_x86_feature_detected!("avx512f"));
        Self::new(__cpuid(1).edx, leaf7, avx2, avx512f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libc_and_cpu_say_the_same() {
        let from_cpu = Features::from_cpu();
        assert_eq!(Features::from_libc().unwrap_or(from_cpu), from_cpu);
        assert_eq!(features(), from_cpu);
    }
}
