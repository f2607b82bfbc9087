//! Calls that only the kernel can make on a descriptor. The descriptor becomes the kernel's first.

#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_uint, c_void};

use libc::{off_t, size_t, ssize_t};

use crate::serve::{before_fd, give_to_kernel, set_errno};
use crate::start::process;
use crate::{direct, guard, real, streams};

/// Gives `fds` to the kernel, then calls; or returns `failed` with `errno` set.
pub(super) fn by_kernel<T>(fds: &[c_int], failed: T, call: impl FnOnce() -> T) -> T {
    match give_to_kernel(fds) {
        Ok(()) => call(),
        Err(err) => {
            set_errno(err);
            failed
        }
    }
}

/// Makes sure that the kernel has the size of a served file that it is to copy from: it may have
/// had the file since before a change that was made here.
pub(super) fn update_kernel_size(fd: c_int) {
    if let Some(process) = process().filter(|process| process.table().owns(fd))
        && !guard::is_inside()
    {
        guard::run(|| process.contents().update_kernel_size(fd));
    }
}

export! {
    fn splice (
        from: c_int, from_offset: *mut off_t, to: c_int, to_offset: *mut off_t, len: size_t,
        flags: c_uint
    ) -> ssize_t {
        by_kernel(&[from, to], -1, || {
            update_kernel_size(from);
            direct::splice(from, from_offset, to, to_offset, len, flags)
        })
    }

    fn tee (from: c_int, to: c_int, len: size_t, flags: c_uint) -> ssize_t {
        by_kernel(&[from, to], -1, || real::tee(from, to, len, flags))
    }

    fn name_to_handle_at (
        dirfd: c_int, path: *const c_char, handle: *mut c_void, id: *mut c_int, flags: c_int
    ) -> c_int {
        by_kernel(&[dirfd], -1, || real::name_to_handle_at(dirfd, path, handle, id, flags))
    }

    fn open_by_handle_at (mount: c_int, handle: *mut c_void, flags: c_int) -> c_int {
        before_fd();
        by_kernel(&[mount], -1, || real::open_by_handle_at(mount, handle, flags))
    }

    fn fanotify_mark (
        fanotify: c_int, flags: c_uint, mask: u64, dirfd: c_int, path: *const c_char
    ) -> c_int {
        by_kernel(&[dirfd], -1, || real::fanotify_mark(fanotify, flags, mask, dirfd, path))
    }

    fn aio_read | aio_read64 (control: *mut libc::aiocb) -> c_int {
        by_kernel(&[(*control).aio_fildes], -1, || real::aio_read(control))
    }

    fn aio_write | aio_write64 (control: *mut libc::aiocb) -> c_int {
        by_kernel(&[(*control).aio_fildes], -1, || real::aio_write(control))
    }

    fn aio_fsync | aio_fsync64 (operation: c_int, control: *mut libc::aiocb) -> c_int {
        by_kernel(&[(*control).aio_fildes], -1, || real::aio_fsync(operation, control))
    }

    fn lio_listio | lio_listio64 (
        mode: c_int, list: *const *mut libc::aiocb, count: c_int, event: *mut c_void
    ) -> c_int {
        let controls = (0..usize::try_from(count).unwrap_or(0)).map(|index| *list.add(index));
        for control in controls.filter(|control| !control.is_null()) {
            if let Err(err) = give_to_kernel(&[(*control).aio_fildes]) {
                set_errno(err);
                return -1;
            }
        }
        real::lio_listio(mode, list, count, event)
    }
}

/// Gives the kernel a descriptor before libc prints to it; called by the trampolines of such
/// functions.
extern "C" fn about_to_print(fd: c_int) {
    if !streams::are_served_at(fd) {
        // If it fails, the placeholder gives EBADF.
        let _ = give_to_kernel(&[fd]);
    }
}

macro_rules! printing {
    ($($name:ident;)*) => {$(
        #[doc = concat!("`", stringify!($name), "` of libc.")]
        ///
        /// # Safety
        /// As libc's.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name() {
            // Saves every register that can hold an argument, then jumps to libc's function.
            std::arch::naked_asm!(
                "push rdi",
                "push rsi",
                "push rdx",
                "push rcx",
                "push r8",
                "push r9",
                "push rax",
                "sub rsp, 128",
                "movups [rsp], xmm0",
                "movups [rsp + 16], xmm1",
                "movups [rsp + 32], xmm2",
                "movups [rsp + 48], xmm3",
                "movups [rsp + 64], xmm4",
                "movups [rsp + 80], xmm5",
                "movups [rsp + 96], xmm6",
                "movups [rsp + 112], xmm7",
                "call {about_to_print}",
                "call {address}",
                "mov r11, rax",
                "movups xmm0, [rsp]",
                "movups xmm1, [rsp + 16]",
                "movups xmm2, [rsp + 32]",
                "movups xmm3, [rsp + 48]",
                "movups xmm4, [rsp + 64]",
                "movups xmm5, [rsp + 80]",
                "movups xmm6, [rsp + 96]",
                "movups xmm7, [rsp + 112]",
                "add rsp, 128",
                "pop rax",
                "pop r9",
                "pop r8",
                "pop rcx",
                "pop rdx",
                "pop rsi",
                "pop rdi",
                "jmp r11",
                about_to_print = sym about_to_print,
                address = sym real::address_of::$name,
            )
        }
    )*};
}

printing! {
    dprintf;
    vdprintf;
    __dprintf_chk;
    __vdprintf_chk;
}
