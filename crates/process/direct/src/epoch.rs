//! Records which threads are inside (direct-E1), and the stack of a thread that copies (direct-C2).
//!
//! A thread records in a cache line of its own that it is inside, by a plain store. A thread that
//! waits for others to come out makes every CPU of the process fence (`membarrier(2)`).

#![allow(unsafe_code)]

use crate::seat::{self, Machine, Seat};
use rustix::thread::{MembarrierCommand, membarrier};
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering::*, compiler_fence, fence};
use vfs::Errno;

/// The state of a thread that other threads see.
#[repr(align(64))]
#[derive(Default)]
pub struct ThreadState {
    seat: Seat,
    /// Stack pointer to restore after a fault in a copy; 0 outside of copies.
    pub stack: AtomicUsize,
    next: AtomicPtr<ThreadState>,
}

/// Fences of this process: the light one needs no instruction, as `membarrier` makes the CPUs
/// fence.
struct Process;

impl Machine for Process {
    #[inline]
    fn fence_lightly() {
        compiler_fence(SeqCst);
    }
    fn fence_all() -> bool {
        membarrier(MembarrierCommand::PrivateExpedited).is_ok()
    }
    fn fence() {
        fence(SeqCst);
    }
    fn give_way() {
        rustix::thread::sched_yield();
    }
}

static SLOTS: AtomicPtr<ThreadState> = AtomicPtr::new(std::ptr::null_mut());
/// A key whose destructor gives slots back: one more than the key; 0 before it is made.
static KEY: AtomicUsize = AtomicUsize::new(0);

os::thread_cell! {
    /// Returns the thread's slot; `None` before its first entry.
    fn own_cell -> Option<&'static ThreadState>, "ks_direct_slot", 8
}

/// Returns the slot of the calling thread, if it has one.
#[inline]
pub fn own() -> Option<&'static ThreadState> {
    own_cell().get()
}

extern "C" fn give_back(slot: *mut libc::c_void) {
    own_cell().set(None);
    // SAFETY: the value of the key is a slot, and slots stay.
    unsafe { &*slot.cast::<ThreadState>() }.seat.give_back();
}

/// Prepares the process. `ENOSYS` if the kernel has no `membarrier`.
pub fn start() -> Result<(), Errno> {
    membarrier(MembarrierCommand::RegisterPrivateExpedited)?;
    if KEY.load(Acquire) == 0 {
        let mut key = 0;
        // SAFETY: room for a key, and a destructor that stays.
        match unsafe { libc::pthread_key_create(&mut key, Some(give_back)) } {
            0 => KEY.store(key as usize + 1, Release),
            err => return Err(Errno::from_raw_os_error(err)),
        }
    }
    Ok(())
}

/// Prepares the child of a fork: this thread is its only one.
pub fn start_in_child() {
    // The child usually inherits the registration. If this fails, each `fence_all` fails, too, and
    // that is noticed.
    let _ = membarrier(MembarrierCommand::RegisterPrivateExpedited);
    let own = own().map(std::ptr::from_ref);
    for slot in slots().filter(|slot| Some(std::ptr::from_ref(*slot)) != own) {
        slot.stack.store(0, Relaxed);
        slot.seat.clear();
    }
}

/// Returns the slots of all threads, in use or not.
fn slots() -> impl Iterator<Item = &'static ThreadState> {
    let mut at = SLOTS.load(Acquire);
    std::iter::from_fn(move || {
        // SAFETY: null, or a slot; slots stay.
        let slot = unsafe { at.as_ref() }?;
        at = slot.next.load(Relaxed);
        Some(slot)
    })
}

/// A token: the thread is inside until this is dropped.
pub struct InsideEpoch {
    pub slot: &'static ThreadState,
}

impl InsideEpoch {
    /// Enters; `None` if there is no memory for a new thread.
    #[inline]
    pub fn enter() -> Option<Self> {
        let slot = match own() {
            Some(slot) => slot,
            None => first()?,
        };
        slot.seat.enter::<Process>();
        Some(Self { slot })
    }
}

impl Drop for InsideEpoch {
    #[inline]
    fn drop(&mut self) {
        self.slot.seat.leave();
    }
}

/// Takes a slot for the calling thread: a free one, or a new one. `None` without memory.
#[cold]
fn first() -> Option<&'static ThreadState> {
    let slot = match slots().find(|slot| slot.seat.take::<Process>()) {
        Some(slot) => slot,
        None => {
            // A page for each slot: threads are few, and rarely start.
            let place: *mut ThreadState =
                crate::slab::reserve(size_of::<ThreadState>()).ok()?.cast();
            // SAFETY: new zeroed memory, page-aligned, which is a slot; it stays.
            let slot = unsafe { &*place };
            let mut head = SLOTS.load(Relaxed);
            loop {
                slot.next.store(head, Relaxed);
                match SLOTS.compare_exchange(head, place, AcqRel, Relaxed) {
                    Ok(_) => break,
                    Err(now) => head = now,
                }
            }
            // Another thread may have taken it already.
            return if slot.seat.take::<Process>() { keep(slot) } else { first() };
        }
    };
    keep(slot)
}

/// Keeps a slot for the calling thread until that ends.
fn keep(slot: &'static ThreadState) -> Option<&'static ThreadState> {
    let key = KEY.load(Acquire).checked_sub(1)? as libc::pthread_key_t;
    // SAFETY: the key exists. If this fails, the slot is this thread's for good.
    unsafe { libc::pthread_setspecific(key, std::ptr::from_ref(slot).cast()) };
    own_cell().set(Some(slot));
    Some(slot)
}

/// Returns the seats of other threads, taken or not.
fn others() -> impl Iterator<Item = &'static Seat> {
    let own = own().map(std::ptr::from_ref);
    slots().filter(move |slot| Some(std::ptr::from_ref(*slot)) != own).map(|slot| &slot.seat)
}

/// Whether no other thread that still lives has ever been inside.
pub fn is_alone() -> bool {
    seat::is_alone::<_, _, Process>(others())
}

/// Waits until every thread that is inside now has come out once. The caller is outside, or counts
/// as outside. `false` if that cannot be known: a filter (seccomp) forbids `membarrier` by now.
#[must_use]
pub fn wait_for_others() -> bool {
    seat::wait_for::<_, _, Process, _>(others)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, Direct};
    use rustix::fd::AsRawFd as _;
    use std::sync::mpsc;

    /// Starts another thread, which goes inside, comes out, and lives until the result is dropped.
    fn another() -> mpsc::Sender<()> {
        let (ends, end) = mpsc::channel::<()>();
        let (went, wait) = mpsc::channel();
        std::thread::spawn(move || {
            drop(InsideEpoch::enter().unwrap());
            went.send(()).unwrap();
            let _ = end.recv();
        });
        wait.recv().unwrap();
        ends
    }

    /// Makes a file of one chunk and maps it. Its only descriptor can write, so closing that unmaps
    /// the chunk.
    fn mapped(direct: &Direct, name: &str) -> std::fs::File {
        let path = format!("/dev/shm/keepstone-epoch-{name}-{}", std::process::id());
        let open = std::fs::File::options().read(true).write(true).create_new(true).open(&path);
        let file = open.unwrap();
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &[7; 8192], 0).unwrap();
        direct.opened(file.as_raw_fd(), libc::O_RDWR);
        file
    }

    fn touch(direct: &Direct, file: &std::fs::File) -> Result<*const u8, Errno> {
        let (bytes, _) = direct.get_read_buf(file.as_raw_fd(), 4096, 0)?;
        direct.put_read_buf(bytes)?;
        Ok(bytes)
    }

    fn direct() -> Direct {
        Direct::new(Config::new(vec![b"/dev/shm".to_vec()], libc::memcpy)).unwrap()
    }

    #[test]
    fn a_chunk_is_unmapped_when_others_have_come_out() {
        let direct = direct();
        let _other = another();
        let file = mapped(&direct, "unmapped");
        touch(&direct, &file).unwrap();
        assert_eq!(direct.mapped_chunks(), 1);
        direct.closing(file.as_raw_fd());
        assert_eq!(direct.mapped_chunks(), 0);
    }

    #[test]
    fn where_others_cannot_be_made_to_fence_chunks_stay_and_no_more_come() {
        let direct = direct();
        let _other = another();
        let files = ["one", "two"].map(|name| mapped(&direct, name));
        let bytes = touch(&direct, &files[0]).unwrap();
        os::syscalls::forbid(libc::SYS_membarrier);
        direct.closing(files[0].as_raw_fd());
        assert_eq!(direct.mapped_chunks(), 1);
        // SAFETY: it is still mapped, and the file has that byte.
        assert_eq!(unsafe { bytes.read_volatile() }, 7);
        assert_eq!(touch(&direct, &files[1]), Err(Errno::NOTSUP));
        direct.names_change();
        assert_eq!(direct.mapped_chunks(), 1);
    }
}
