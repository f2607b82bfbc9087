//! Copies that may fault (direct-C1, direct-C2).
//!
//! A copy notes its stack pointer in the thread's [`ThreadState`]. The front end's handler of
//! SIGSEGV and SIGBUS asks [`recover`] first, which ends the copy at that point.

#![allow(unsafe_code)]

use crate::epoch::{self, ThreadState};
use libc::{c_void, ucontext_t};
use std::sync::atomic::Ordering::*;

/// A function that copies, as `memcpy` does: to, from, bytes. A fault may end it anywhere, so it
/// must hold nothing that has to be given back. Its result does not matter.
pub type Copier = unsafe extern "C" fn(*mut c_void, *const c_void, usize) -> *mut c_void;

// rdi = to, rsi = from, rdx = bytes, rcx = copier, r8 = where to note the stack pointer, r9 = a
// byte to load afterwards; eax = 0, or 1 after a fault. The stack keeps the registers that a copier
// must preserve; they are restored from it in both cases.
std::arch::global_asm!(
    ".hidden ks_direct_copy",
    ".hidden ks_direct_fault",
    ".globl ks_direct_copy, ks_direct_fault",
    "ks_direct_copy:",
    "push rbx",
    "push rbp",
    "push r12",
    "push r13",
    "push r14",
    "push r15",
    "sub rsp, 8",
    "mov rbx, r8",
    "mov r12, r9",
    "mov [rbx], rsp",
    "call rcx",
    "movzx eax, byte ptr [r12]",
    "mov qword ptr [rbx], 0",
    "xor eax, eax",
    "jmp 2f",
    "ks_direct_fault:",
    "mov eax, 1",
    "2:",
    "add rsp, 8",
    "pop r15",
    "pop r14",
    "pop r13",
    "pop r12",
    "pop rbp",
    "pop rbx",
    "ret",
);

unsafe extern "C" {
    static ks_direct_fault: u8;
    fn ks_direct_copy(
        to: *mut u8,
        from: *const u8,
        len: usize,
        copier: Copier,
        stack: *mut usize,
        witness: *const u8,
    ) -> u32;
}

/// Copies, then loads from `witness`; `false` after a fault, which may leave any part copied.
///
/// # Safety
/// 1. The mapped parts of both ranges may be read and written as bytes, and do not overlap.
/// 2. `copier` only reads the one, writes the other, and holds nothing that has to be given back.
/// 3. `slot` is the calling thread's.
#[inline]
pub unsafe fn copy(
    slot: &ThreadState,
    to: *mut u8,
    from: *const u8,
    len: usize,
    copier: Copier,
    witness: *const u8,
) -> bool {
    // SAFETY: by 1 and 2, or it ends by `recover`; by 3 only this thread uses the place of the
    // stack pointer.
    unsafe { ks_direct_copy(to, from, len, copier, slot.stack.as_ptr(), witness) == 0 }
}

/// Ends a copy of this thread that a fault has interrupted. For the handler of SIGSEGV and SIGBUS,
/// on signals that an instruction has raised.
pub fn recover(context: &mut ucontext_t) -> bool {
    let Some(slot) = epoch::own() else { return false };
    let stack = slot.stack.swap(0, Relaxed);
    if stack == 0 {
        return false;
    }
    let registers = &mut context.uc_mcontext.gregs;
    registers[libc::REG_RSP as usize] = stack as i64;
    registers[libc::REG_RIP as usize] = &raw const ks_direct_fault as i64;
    true
}
