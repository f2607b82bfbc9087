//! New programs in this process, and new processes with other programs.
//!
//! A new program finds only descriptors of the kernel open, so first the kernel gets the library's
//! descriptors that it inherits. If the caller has removed variables that `keepstone run` set, they
//! are put back into the environment.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::pid_t;
use posix::Errno;

use crate::serve::{give_to_kernel, set_errno};
use crate::start::process;
use crate::{direct, engine, environment, fork, guard, real, record, stats};

type Strings = *const *const c_char;

/// `NAME=` of the library's own entries.
const PRELOAD: &[u8] = b"LD_PRELOAD=";
const OURS: &[u8] = b"KEEPSTONE_";
/// Options of AddressSanitizer, and the one by which programs start that load its runtime behind
/// this library.
const ASAN_OPTIONS: &[u8] = b"ASAN_OPTIONS=";
const ASAN_ANY_ORDER: &[u8] = b"verify_asan_link_order=0";

/// The program that libc executes for `system` and `popen`.
const SHELL: &CStr = c"/bin/sh";

/// The entries that `keepstone run` put into the environment, and the library's path.
#[derive(Debug)]
struct Inherited {
    entries: Vec<&'static CStr>,
    library: Vec<u8>,
}

static INHERITED: AtomicPtr<Inherited> = AtomicPtr::new(std::ptr::null_mut());

unsafe extern "C" {
    static environ: Strings;
}

/// Remembers the entries that `keepstone run` put into the environment. `KEEPSTONE_RUN`, the path
/// of this library, marks them.
pub fn start() {
    if !environment::is_set(c"KEEPSTONE_RUN") {
        return;
    }
    // SAFETY: `environ` is a list of strings that no thread changes this early.
    let entries = unsafe { strings(environ) };
    let run = entries.iter().find_map(|e| e.to_bytes().strip_prefix(b"KEEPSTONE_RUN="));
    let Some(library) = run.map(<[u8]>::to_vec) else {
        return;
    };
    let ours = entries.iter().filter(|entry| entry.to_bytes().starts_with(OURS));
    // The program may overwrite its environment.
    let entries = ours.map(|&entry| &*Box::leak(entry.to_owned().into_boxed_c_str())).collect();
    let inherited = Box::new(Inherited { entries, library });
    INHERITED.store(Box::into_raw(inherited), Ordering::Release);
}

/// # Safety
/// `list` is null, or a list of strings that ends with a null pointer.
unsafe fn strings<'a>(list: Strings) -> Vec<&'a CStr> {
    let mut found = Vec::new();
    if !list.is_null() {
        // SAFETY: the caller's.
        unsafe {
            let mut at = list;
            while !(*at).is_null() {
                found.push(CStr::from_ptr(*at));
                at = at.add(1);
            }
        }
    }
    found
}

/// An environment with the library's entries put back.
struct Environment {
    pointers: Vec<*const c_char>,
    /// Entries that pointers may point to.
    _made: Vec<Vec<u8>>,
}

/// Returns the value of the variable whose `NAME=` this is.
fn value<'a>(entries: &[&'a CStr], name: &[u8]) -> Option<&'a [u8]> {
    entries.iter().find_map(|entry| entry.to_bytes().strip_prefix(name))
}

/// Makes the entry of `LD_PRELOAD` with the library last: other preloaded libraries see the
/// program's calls first. `None` if the list is like that already.
fn with_library(list: &[u8], library: &[u8]) -> Option<Vec<u8>> {
    let libraries = list.split(|b| matches!(b, b':' | b' ')).filter(|path| !path.is_empty());
    if libraries.clone().next_back() == Some(library) {
        return None;
    }
    let all: Vec<_> = libraries.filter(|&path| path != library).chain([library]).collect();
    Some([PRELOAD, &all.join(&b':'), b"\0"].concat())
}

/// Makes the entry of `ASAN_OPTIONS` that ends with the option for any order of libraries. `None`
/// if it ends so already.
fn with_any_order(options: &[u8]) -> Option<Vec<u8>> {
    if options.ends_with(ASAN_ANY_ORDER) {
        return None;
    }
    let colon: &[u8] = if options.is_empty() { b"" } else { b":" };
    Some([ASAN_OPTIONS, options, colon, ASAN_ANY_ORDER, b"\0"].concat())
}

impl Environment {
    /// `None`: `given` is good as it is.
    ///
    /// # Safety
    /// As [`strings`].
    unsafe fn restored(given: Strings) -> Option<Self> {
        // SAFETY: null, or a box that is never dropped.
        let inherited = unsafe { INHERITED.load(Ordering::Acquire).as_ref() }?;
        // SAFETY: the caller's.
        let given = unsafe { strings(given) };
        let name_len = |e: &CStr| e.to_bytes().iter().position(|&b| b == b'=').unwrap_or(0);
        let names = |a: &CStr, b: &CStr| {
            let len = name_len(a);
            len > 0 && len == name_len(b) && a.to_bytes()[..len] == b.to_bytes()[..len]
        };
        let preload = with_library(value(&given, PRELOAD).unwrap_or(b""), &inherited.library);
        let options = with_any_order(value(&given, ASAN_OPTIONS).unwrap_or(b""));
        let lacking: Vec<_> = inherited
            .entries
            .iter()
            .filter(|ours| !given.iter().any(|entry| names(entry, ours)))
            .map(|entry| entry.as_ptr())
            .collect();
        let replaced: Vec<_> = [(PRELOAD, &preload), (ASAN_OPTIONS, &options)]
            .into_iter()
            .filter_map(|(name, entry)| entry.is_some().then_some(name))
            .collect();
        if replaced.is_empty() && lacking.is_empty() {
            return None;
        }
        let stays = |e: &CStr| !replaced.iter().any(|name| e.to_bytes().starts_with(name));
        let made: Vec<_> = preload.into_iter().chain(options).collect();
        let pointers = given
            .iter()
            .filter(|entry| stays(entry))
            .map(|entry| entry.as_ptr())
            .chain(lacking)
            .chain(made.iter().map(|entry| entry.as_ptr().cast::<c_char>()))
            .chain([std::ptr::null()])
            .collect();
        Some(Self { pointers, _made: made })
    }
}

/// Gives the kernel the descriptors that a new program finds open.
fn give_inherited_to_kernel() -> Result<(), Errno> {
    direct::tell(::direct::Direct::before_exec);
    match process().filter(|_| !guard::is_inside()) {
        Some(process) => guard::run(|| process.before_exec()).unwrap_or(Err(Errno::IO)),
        None => Ok(()),
    }
}

/// Calls `f` with the environment for the new program, after giving its descriptors to the kernel.
///
/// # Safety
/// `given` as for [`strings`].
unsafe fn with_environment<T>(given: Strings, f: impl FnOnce(Strings) -> T) -> Result<T, Errno> {
    give_inherited_to_kernel()?;
    // SAFETY: the caller's.
    let restored = guard::run(|| unsafe { Environment::restored(given) }).flatten();
    Ok(f(restored.as_ref().map_or(given, |environment| environment.pointers.as_ptr())))
}

/// Converts a result for the functions that set `errno`.
fn or_errno(result: Result<c_int, Errno>) -> c_int {
    result.unwrap_or_else(|err| {
        set_errno(err);
        -1
    })
}

/// Converts a result for the functions that return the error number.
fn or_fd(result: Result<c_int, Errno>) -> c_int {
    result.unwrap_or_else(|err| err.raw_os_error())
}

/// Calls a function of the `exec` family, which ends the other threads if it succeeds.
///
/// # Safety
/// As [`strings`].
unsafe fn replace_image(
    path: *const c_char,
    given: Strings,
    exec: impl FnOnce(Strings) -> c_int,
) -> c_int {
    let replace = |envp| {
        if !fork::owns_memory() {
            // The threads and mappings of this memory are the parent's, and stay.
            return stats::executing(path, || exec(envp), |_| true);
        }
        process().map(|process| guard::run(|| process.before_image_ends()));
        guard::run(record::end);
        let exec = || engine::while_others_wait(|| exec(envp));
        let failed = stats::executing(path, exec, |_| true);
        process().map(|process| guard::run(|| process.exec_failed()));
        failed
    };
    // SAFETY: the caller's.
    or_errno(unsafe { with_environment(given, replace) })
}

export! {
    fn execve (path: *const c_char, argv: Strings, envp: Strings) -> c_int {
        replace_image(path, envp, |envp| real::execve(path, argv, envp))
    }

    fn execv (path: *const c_char, argv: Strings) -> c_int {
        execve(path, argv, environ)
    }

    fn execvpe (file: *const c_char, argv: Strings, envp: Strings) -> c_int {
        replace_image(file, envp, |envp| real::execvpe(file, argv, envp))
    }

    fn execvp (file: *const c_char, argv: Strings) -> c_int {
        execvpe(file, argv, environ)
    }

    fn execveat (
        dirfd: c_int, path: *const c_char, argv: Strings, envp: Strings, flags: c_int
    ) -> c_int {
        if let Err(err) = give_to_kernel(&[dirfd]) {
            return or_errno(Err(err));
        }
        replace_image(path, envp, |envp| real::execveat(dirfd, path, argv, envp, flags))
    }

    fn fexecve (fd: c_int, argv: Strings, envp: Strings) -> c_int {
        if let Err(err) = give_to_kernel(&[fd]) {
            return or_errno(Err(err));
        }
        replace_image(std::ptr::null(), envp, |envp| real::fexecve(fd, argv, envp))
    }

    fn posix_spawn (
        pid: *mut pid_t, path: *const c_char, actions: *const c_void, attributes: *const c_void,
        argv: Strings, envp: Strings
    ) -> c_int {
        or_fd(with_environment(envp, |envp| {
            let spawn = || real::posix_spawn(pid, path, actions, attributes, argv, envp);
            stats::executing(path, spawn, |error| *error != 0)
        }))
    }

    fn posix_spawnp (
        pid: *mut pid_t, file: *const c_char, actions: *const c_void, attributes: *const c_void,
        argv: Strings, envp: Strings
    ) -> c_int {
        or_fd(with_environment(envp, |envp| {
            let spawn = || real::posix_spawnp(pid, file, actions, attributes, argv, envp);
            stats::executing(file, spawn, |error| *error != 0)
        }))
    }

    fn pidfd_spawn (
        pidfd: *mut c_int, path: *const c_char, actions: *const c_void,
        attributes: *const c_void, argv: Strings, envp: Strings
    ) -> c_int {
        or_fd(with_environment(envp, |envp| {
            let spawn = || real::pidfd_spawn(pidfd, path, actions, attributes, argv, envp);
            stats::executing(path, spawn, |error| *error != 0)
        }))
    }

    fn pidfd_spawnp (
        pidfd: *mut c_int, file: *const c_char, actions: *const c_void,
        attributes: *const c_void, argv: Strings, envp: Strings
    ) -> c_int {
        or_fd(with_environment(envp, |envp| {
            let spawn = || real::pidfd_spawnp(pidfd, file, actions, attributes, argv, envp);
            stats::executing(file, spawn, |error| *error != 0)
        }))
    }

    fn posix_spawn_file_actions_adddup2 (actions: *mut c_void, fd: c_int, new: c_int) -> c_int {
        // The new process makes the duplicate, without the library.
        match give_to_kernel(&[fd]) {
            Ok(()) => real::posix_spawn_file_actions_adddup2(actions, fd, new),
            Err(err) => err.raw_os_error(),
        }
    }

    fn posix_spawn_file_actions_addfchdir_np (actions: *mut c_void, fd: c_int) -> c_int {
        match give_to_kernel(&[fd]) {
            Ok(()) => real::posix_spawn_file_actions_addfchdir_np(actions, fd),
            Err(err) => err.raw_os_error(),
        }
    }

    fn system | __libc_system (command: *const c_char) -> c_int {
        or_errno(give_inherited_to_kernel().map(|()| {
            if command.is_null() {
                return real::system(command);
            }
            stats::executing(SHELL.as_ptr(), || real::system(command), |status| *status == -1)
        }))
    }

    fn popen | _IO_popen (command: *const c_char, mode: *const c_char) -> *mut libc::FILE {
        let open = || real::popen(command, mode);
        let executed = || stats::executing(SHELL.as_ptr(), open, |stream| stream.is_null());
        give_inherited_to_kernel().map(|()| executed()).unwrap_or_else(|err| {
            set_errno(err);
            std::ptr::null_mut()
        })
    }
}

/// The arguments of a variadic call, as they lie on the stack of a trampoline: six registers first.
/// The rest follows above the trampoline's return address.
struct Variadic {
    registers: *const *const c_char,
}

impl Variadic {
    /// Distance from the first register to the first argument on the stack, in words: six
    /// registers, one word of alignment, the return address.
    const STACK: usize = 8;

    /// # Safety
    /// The call has an argument `index`.
    unsafe fn get(&self, index: usize) -> *const c_char {
        let word = if index < 6 { index } else { index - 6 + Self::STACK };
        // SAFETY: the caller's; see the trampoline for the layout.
        unsafe { *self.registers.add(word) }
    }

    /// Returns the list from the second argument to the null pointer, and the index of that
    /// pointer.
    ///
    /// # Safety
    /// The call ends its list with a null pointer.
    unsafe fn list(&self) -> (Vec<*const c_char>, usize) {
        let mut list = Vec::new();
        let mut index = 1;
        loop {
            // SAFETY: the list has not ended yet.
            let argument = unsafe { self.get(index) };
            list.push(argument);
            if argument.is_null() {
                return (list, index);
            }
            index += 1;
        }
    }
}

unsafe extern "C-unwind" fn execl_with(registers: *const *const c_char) -> c_int {
    let call = Variadic { registers };
    // SAFETY: `execl(path, argument, …, NULL)`.
    unsafe { execv(call.get(0), call.list().0.as_ptr()) }
}

unsafe extern "C-unwind" fn execlp_with(registers: *const *const c_char) -> c_int {
    let call = Variadic { registers };
    // SAFETY: `execlp(file, argument, …, NULL)`.
    unsafe { execvp(call.get(0), call.list().0.as_ptr()) }
}

unsafe extern "C-unwind" fn execle_with(registers: *const *const c_char) -> c_int {
    let call = Variadic { registers };
    // SAFETY: `execle(path, argument, …, NULL, envp)`.
    unsafe {
        let (argv, last) = call.list();
        execve(call.get(0), argv.as_ptr(), call.get(last + 1).cast())
    }
}

macro_rules! variadic {
    ($($name:ident => $with:ident;)*) => {$(
        #[doc = concat!("`", stringify!($name), "` of libc.")]
        ///
        /// # Safety
        /// As libc's.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name() -> c_int {
            // Lays the registers out as `Variadic` expects them.
            std::arch::naked_asm!(
                "sub rsp, 8",
                "push r9",
                "push r8",
                "push rcx",
                "push rdx",
                "push rsi",
                "push rdi",
                "mov rdi, rsp",
                "call {with}",
                "add rsp, 56",
                "ret",
                with = sym $with,
            )
        }
    )*};
}

variadic! {
    execl => execl_with;
    execlp => execlp_with;
    execle => execle_with;
}
