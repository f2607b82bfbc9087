//! Processes that are ending.
//!
//! A process that was killed keeps its files, and locks on them, until the kernel has released its
//! memory. That can take seconds. A process that finds such a lock waits for its holder to end.

use std::fs;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Longest time for a killed process to release its files.
pub const ENDS_WITHIN: Duration = Duration::from_secs(10);

/// Time between two attempts to get what an ending process has.
const PAUSE: Duration = Duration::from_millis(5);

/// Returns whether a process has ended or is ending.
pub fn is_ending(pid: u32) -> bool {
    let process = PathBuf::from(format!("/proc/{pid}"));
    // The kernel removes the signal from the pending ones before it sets the flags below. So the
    // flags are read last.
    let status = fs::read_to_string(process.join("status")).unwrap_or_default();
    match fs::read_to_string(process.join("stat")) {
        Ok(stat) => is_killed(&status) || has_ended(&stat),
        Err(_) => true,
    }
}

/// Returns whether the text of `/proc/PID/status` names SIGKILL among the pending signals.
fn is_killed(status: &str) -> bool {
    const SIGKILL: u64 = 1 << 8;
    let pending = |line: &str| {
        let set = line.strip_prefix("SigPnd:").or_else(|| line.strip_prefix("ShdPnd:"))?;
        u64::from_str_radix(set.trim(), 16).ok()
    };
    status.lines().filter_map(pending).any(|set| set & SIGKILL != 0)
}

/// Returns whether the text of `/proc/PID/stat` is of a process that is dead, that exits, or that a
/// signal has ended.
fn has_ended(stat: &str) -> bool {
    const PF_EXITING: u64 = 0x4;
    const PF_SIGNALED: u64 = 0x400;
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let mut fields = fields.split_ascii_whitespace();
    let is_dead = matches!(fields.next(), Some("Z" | "X"));
    let flags: u64 = fields.nth(5).and_then(|flags| flags.parse().ok()).unwrap_or(0);
    is_dead || flags & (PF_EXITING | PF_SIGNALED) != 0
}

/// Makes an attempt to get something, and repeats it while an ending process has it, for at most
/// [`ENDS_WITHIN`]. `is_taken` recognizes the error of an attempt that found it taken, and
/// `is_ending` returns whether one of the processes that have it is ending.
///
/// # Errors
/// That of the last attempt.
pub fn after_ending<T, E>(
    is_taken: impl Fn(&E) -> bool,
    is_ending: impl Fn() -> bool,
    mut attempt: impl FnMut() -> Result<T, E>,
) -> Result<T, E> {
    let deadline = Instant::now() + ENDS_WITHIN;
    let mut done = attempt();
    while done.as_ref().is_err_and(&is_taken) && Instant::now() < deadline {
        // The process may end between an attempt and this look, so one more attempt follows.
        let waits = is_ending();
        done = attempt();
        if !waits {
            break;
        }
        sleep(PAUSE);
    }
    done
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn ending_processes_are_recognized() {
        assert!(!is_ending(std::process::id()));
        assert!(is_ending(u32::MAX));
        let stat = |state: &str, flags: u64| format!("1 (a) b) {state} 1 1 1 0 -1 {flags} 0 0");
        assert!(!has_ended(&stat("S", 0x40_0000)));
        assert!(has_ended(&stat("Z", 0)) && has_ended(&stat("R", 4)));
        assert!(has_ended(&stat("D", 0x40_0400)));
        assert!(is_killed("Name:\tx\nSigPnd:\t0000000000000100\nShdPnd:\t0000000000000000\n"));
        assert!(is_killed("SigPnd:\t0000000000000000\nShdPnd:\t0000000000000100\n"));
        assert!(!is_killed("SigPnd:\t0000000000000080\nSigBlk:\t0000000000000100\n"));
    }

    #[test]
    fn attempts_are_repeated_while_a_holder_is_ending() {
        let (attempts, looks) = (Cell::new(0), Cell::new(0));
        let get = |free_after: u32, ending_for: u32| {
            attempts.set(0);
            looks.set(0);
            let attempt = || {
                attempts.set(attempts.get() + 1);
                if attempts.get() > free_after { Ok(()) } else { Err("taken") }
            };
            let is_ending = || {
                looks.set(looks.get() + 1);
                looks.get() <= ending_for
            };
            after_ending(|err| *err == "taken", is_ending, attempt)
        };
        assert_eq!((get(0, 0), attempts.get()), (Ok(()), 1));
        // It was released before the look.
        assert_eq!((get(1, 0), attempts.get()), (Ok(()), 2));
        assert_eq!((get(3, 5), attempts.get()), (Ok(()), 4));
        // Its holder lives.
        assert_eq!((get(9, 2), attempts.get()), (Err("taken"), 4));
        let other: Result<(), _> = after_ending(|_| false, || true, || Err("denied"));
        assert_eq!(other, Err("denied"));
    }
}
