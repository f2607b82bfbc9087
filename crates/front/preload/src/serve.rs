//! Turns an exported function into a call of the process layer, or of libc.

#![allow(unsafe_code)]

use std::ffi::{c_char, c_int};

use posix::{Errno, Process, Served};

use crate::start::process;
use crate::stats::{Class, Reason};
use crate::{cancel, direct, guard, inherited, memory, stats};

/// Defines exported functions, each with its other names:
/// `fn name | alias (arguments) -> type { body }`.
///
/// They unwind, because a thread may be cancelled within libc's function; their frames own nothing
/// then. All are `unsafe` like the functions of C they stand for: the body may use every pointer as
/// the manual page of the function allows.
macro_rules! export {
    ($(fn $name:ident $(| $alias:ident)* ($($arguments:tt)*) -> $result:ty $body:block)*) => {
        $(
            export!(@function {#[unsafe(no_mangle)]} $name ($($arguments)*) -> $result $body);
            export!(@aliases [$($alias)*] $name ($($arguments)*) -> $result);
        )*
    };
    (@aliases [] $($rest:tt)*) => {};
    (@aliases [$alias:ident $($others:ident)*] $name:ident $arguments:tt -> $result:ty) => {
        export!(@alias $alias $name $arguments -> $result);
        export!(@aliases [$($others)*] $name $arguments -> $result);
    };
    (@function {$($attributes:tt)*} $name:ident ($($argument:ident : $type:ty),* $(,)?)
        -> $result:ty $body:block) => {
        #[doc = concat!("`", stringify!($name), "` for programs.")]
        ///
        /// # Safety
        /// As the manual page, or the header, demands.
        $($attributes)*
        #[allow(clippy::undocumented_unsafe_blocks, clippy::diverging_sub_expression)]
        pub unsafe extern "C-unwind" fn $name($($argument: $type),*) -> $result {
            // Not inlined: cancellation at any instruction (`cancel`, cancel-X1) needs a frame that
            // owns nothing.
            #[inline(never)]
            unsafe extern "C-unwind" fn called($($argument: $type),*) -> $result {
                // SAFETY: the caller answers for the obligations of the function.
                #[allow(unused_unsafe)]
                unsafe { $body }
            }
            if $crate::guard::is_careful() {
                // SAFETY: the same call.
                return $crate::cancel::careful(|| unsafe { called($($argument),*) });
            }
            // SAFETY: the same call.
            unsafe { called($($argument),*) }
        }
    };
    (@alias $alias:ident $name:ident ($($argument:ident : $type:ty),* $(,)?) -> $result:ty) => {
        #[doc = concat!("Another name of `", stringify!($name), "`.")]
        ///
        /// # Safety
        /// As libc's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $alias($($argument: $type),*) -> $result {
            // SAFETY: the same function.
            unsafe { $name($($argument),*) }
        }
    };
}

/// As [`export!`], for functions of the C interface, whose symbols have a version.
///
/// The linker gives a version only to symbols that the compiler does not list itself (it lists all
/// that are `no_mangle`, as without a version). So the symbol is a jump to the function, and
/// `libkeepstone.map` lists it.
macro_rules! export_versioned {
    ($(fn $name:ident ($($arguments:tt)*) -> $result:ty $body:block)*) => {
        $(
            export!(@function {} $name ($($arguments)*) -> $result $body);
            std::arch::global_asm!(
                concat!(".globl ", stringify!($name)),
                concat!(".type ", stringify!($name), ", @function"),
                concat!(stringify!($name), ": jmp {}"),
                concat!(".size ", stringify!($name), ", . - ", stringify!($name)),
                sym $name,
            );
        )*
    };
}

/// The result of a call, and its form in C.
pub trait Returned {
    /// The type in C.
    type C;
    /// The value of a failure, with the error in `errno`.
    const FAILED: Self::C;
    /// Returns the value of a success.
    fn to_c(self) -> Self::C;
    /// Returns the same as a number: the bytes moved, for calls that return them.
    fn number(value: &Self::C) -> i64;
    /// Returns the bytes that a successful call has moved, if its class moves any.
    fn moved(&self) -> u64;
}

macro_rules! returned {
    ($($rust:ty => $c:ty, $value:expr, $moved:expr;)*) => {$(
        impl Returned for $rust {
            type C = $c;
            const FAILED: $c = -1;
            fn to_c(self) -> $c {
                let to_c: fn($rust) -> $c = $value;
                to_c(self)
            }
            #[inline]
            fn number(value: &$c) -> i64 {
                *value as i64
            }
            #[inline]
            fn moved(&self) -> u64 {
                let moved: fn(&$rust) -> u64 = $moved;
                moved(self)
            }
        }
    )*};
}

returned! {
    () => c_int, |()| 0, |()| 0;
    i32 => c_int, |value| value, |_| 0;
    usize => isize, |value| value as isize, |value| *value as u64;
    i64 => i64, |value| value, |_| 0;
}

/// Sets `errno`.
pub fn set_errno(err: Errno) {
    // SAFETY: the place is the thread's own.
    unsafe { *libc::__errno_location() = err.raw_os_error() };
}

/// Makes a call fail.
pub fn fail<T: Returned>(err: Errno) -> T::C {
    set_errno(err);
    T::FAILED
}

/// Converts a result to C.
pub fn to_c<T: Returned>(result: Result<T, Errno>) -> T::C {
    match result {
        Ok(value) => value.to_c(),
        Err(err) => fail::<T>(err),
    }
}

/// Lets the process layer answer. `None`: libc has to do the call (preload-P1), and the kernel has
/// the descriptors in `fds`.
#[inline]
pub fn answer<T>(
    process: &Process,
    class: Class,
    fds: &[c_int],
    f: impl FnOnce(&Process) -> Served<T>,
) -> Option<Result<T, Errno>> {
    answer_moving(process, class, fds, |_| 0, f)
}

/// As [`answer`], for calls that move bytes: `moved` returns their number.
#[inline]
pub fn answer_moving<T>(
    process: &Process,
    class: Class,
    fds: &[c_int],
    moved: impl FnOnce(&T) -> u64,
    f: impl FnOnce(&Process) -> Served<T>,
) -> Option<Result<T, Errno>> {
    if class.is_cancellation_point() {
        cancel::test();
    }
    let begun = stats::begin();
    match guard::run(|| f(process)) {
        Some(Served::Done(result)) => {
            stats::served(class, begun, result.as_ref().map_or(0, moved));
            Some(result)
        }
        Some(Served::Kernel) | None => {
            let result = promote(process, class, fds);
            result.err().map(Err)
        }
    }
}

#[cold]
fn promote(process: &Process, class: Class, fds: &[c_int]) -> Result<(), Errno> {
    for &fd in fds {
        if process.table().owns(fd) {
            stats::left_to_kernel(class, fd, Reason::KernelOnly);
            guard::run(|| process.promotions().promote(fd)).unwrap_or(Err(Errno::IO))?;
        }
    }
    Ok(())
}

/// Answers a call on a descriptor. `None`: it is not ours (any more), and libc has to answer.
#[inline]
pub fn on_fd<T: Returned>(
    class: Class,
    fd: c_int,
    f: impl FnOnce(&Process) -> Served<T>,
) -> Option<T::C> {
    let process = process()?;
    if !process.table().owns(fd) && !inherited::is_served_now(process, class, fd) {
        stats::unserved(class, fd);
        return None;
    }
    let moved = |value: &T| if class.moves_bytes() { value.moved() } else { 0 };
    answer_moving(process, class, &[fd], moved, f).map(to_c)
}

/// Answers a call with a path, relative to `dirfd`. `None`: libc has to answer.
pub fn on_path<T: Returned>(
    class: Class,
    dirfd: c_int,
    path: *const c_char,
    f: impl FnOnce(&Process, &[u8]) -> Served<T>,
) -> Option<T::C> {
    on_path_for(class, dirfd, path, f).map(to_c)
}

/// As [`on_path`], without converting the result.
pub fn on_path_for<T>(
    class: Class,
    dirfd: c_int,
    path: *const c_char,
    f: impl FnOnce(&Process, &[u8]) -> Served<T>,
) -> Option<Result<T, Errno>> {
    let process = process()?;
    if guard::is_inside() {
        return None;
    }
    // If the path cannot be read or is too long, libc refuses it.
    let path = memory::string(path).ok()?;
    if let Some(fd) = names_descriptor(path).filter(|&fd| process.table().owns(fd)) {
        return promote(process, class, &[fd]).err().map(Err);
    }
    let answered = answer(process, class, &[dirfd], |process| f(process, path));
    // An opening is counted when the kernel has opened the file.
    if answered.is_none() && class != Class::Open && process.contents().leaves_to_kernel() {
        path_by_kernel(process, class, dirfd, path);
    }
    answered
}

#[cold]
fn path_by_kernel(process: &Process, class: Class, dirfd: c_int, path: &[u8]) {
    if path.first() != Some(&b'/') {
        stats::unserved(class, dirfd);
    } else if process.contents().leads_to_pool(path) {
        stats::path_by_kernel(class, path);
    }
}

/// Answers a call with two paths. `None`: libc has to answer.
pub fn on_paths<T: Returned>(
    class: Class,
    from: (c_int, *const c_char),
    to: (c_int, *const c_char),
    f: impl FnOnce(&Process, &[u8], &[u8]) -> Served<T>,
) -> Option<T::C> {
    let process = process()?;
    if guard::is_inside() {
        return None;
    }
    let (from_path, to_path) = match (memory::string(from.1), memory::string(to.1)) {
        (Ok(from_path), Ok(to_path)) => (from_path, to_path),
        // libc would begin with the other path, relative to a placeholder.
        (Err(err), _) | (_, Err(err))
            if process.table().owns(from.0) || process.table().owns(to.0) =>
        {
            return Some(fail::<T>(err));
        }
        _ => return None,
    };
    answer(process, class, &[from.0, to.0], |process| f(process, from_path, to_path)).map(to_c)
}

/// Returns the descriptor of this process that a path of `/proc` or `/dev` names. The kernel would
/// find the placeholder there.
fn names_descriptor(path: &[u8]) -> Option<c_int> {
    posix::proc_fd(path).filter(|(_, rest)| rest.is_empty()).map(|(fd, _)| fd)
}

/// Closes parked descriptors before the kernel gives the program a descriptor, as the kernel has to
/// know which numbers are free. Costs one load if none is parked.
#[inline]
pub fn before_fd() {
    if let Some(process) = process().filter(|process| process.fd_allocator().has_parked())
        && !guard::is_inside()
    {
        guard::run(|| process.fd_allocator().unpark());
    }
}

/// Notes that the kernel has closed a descriptor without the process layer, or several from there
/// on.
#[inline]
pub fn fd_freed(fd: c_int) {
    if let Some(process) = process() {
        process.fd_allocator().fd_freed(fd);
    }
}

/// Gives descriptors to the kernel before a call that only it can make. They are served as before.
pub fn give_to_kernel(fds: &[c_int]) -> Result<(), Errno> {
    fds.iter().for_each(|&fd| direct::forget(fd));
    give_pool_files_to_kernel(fds)
}

/// As [`give_to_kernel`], if the kernel has the offsets of files outside pools anyway.
pub fn give_pool_files_to_kernel(fds: &[c_int]) -> Result<(), Errno> {
    match process() {
        Some(process) if !guard::is_inside() => promote(process, Class::Other, fds),
        _ => Ok(()),
    }
}

/// Makes a descriptor the kernel's for good, before libc uses and closes it by calls of its own.
pub fn leave_to_kernel(fd: c_int) -> Result<(), Errno> {
    direct::forget(fd);
    match process().filter(|process| process.table().owns(fd) && !guard::is_inside()) {
        Some(process) => {
            stats::left_to_kernel(Class::Other, fd, Reason::Libc);
            stats::mark(fd, Some(Reason::Libc));
            guard::run(|| process.promotions().leave_to_kernel(fd)).unwrap_or(Err(Errno::IO))
        }
        None => Ok(()),
    }
}

/// As [`leave_to_kernel`], for standard input, output and error, before libc replaces them.
pub fn leave_streams_to_kernel() {
    // If that fails, calls on them are answered as before.
    for fd in 0..=2 {
        let _ = leave_to_kernel(fd);
    }
}
