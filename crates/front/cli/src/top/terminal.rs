//! The terminal of a view that is redrawn in place: an alternate screen, keys without echo, and
//! signals received by `signalfd`.

use std::io::{self, IsTerminal as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};

use fuse::StopSignals;
use rustix::event::{PollFd, PollFlags};
use rustix::process::{Signal, getpid, kill_process};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};

/// Switches to the alternate screen, without a cursor and without line wrapping.
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[?7l";

/// Switches back to the previous screen.
const LEAVE: &str = "\x1b[?7h\x1b[?25h\x1b[?1049l";

/// Columns and lines of a terminal that does not report its size.
pub const DEFAULT_SIZE: (usize, usize) = (80, 24);

/// An action of the user.
pub enum TerminalEvent {
    /// Ends the view.
    Quit,
    /// Has changed the size of the terminal, or brought the view back to the foreground.
    Redraw,
}

/// The terminal on standard output. Dropping this restores its state.
pub struct Terminal {
    signals: OwnedFd,
    /// Whether the alternate screen is shown.
    entered: bool,
    /// Whether to read keys.
    keys: bool,
    /// The mode of the terminal before.
    before: Option<Termios>,
}

/// Returns whether a view can be redrawn in place.
pub fn can_redraw() -> bool {
    io::stdout().is_terminal() && std::env::var_os("TERM").is_none_or(|name| name != "dumb")
}

/// Returns the columns and lines of the terminal on standard output; `None` if that is not a
/// terminal.
pub fn size() -> Option<(usize, usize)> {
    let size = tcgetwinsize(io::stdout()).ok()?;
    let sides = (usize::from(size.ws_col), usize::from(size.ws_row));
    Some(if sides.0 == 0 || sides.1 == 0 { DEFAULT_SIZE } else { sides })
}

impl Terminal {
    /// Blocks signals and receives them from now on. Call this before any thread exists: a thread
    /// that does not block them would end the process.
    pub fn begin() -> io::Result<Self> {
        let more = [libc::SIGQUIT, libc::SIGWINCH, libc::SIGTSTP, libc::SIGCONT];
        Ok(Self {
            signals: StopSignals::block_with(&more)?.descriptor()?,
            entered: false,
            keys: io::stdin().is_terminal(),
            before: None,
        })
    }

    /// Shows these lines and nothing else.
    pub fn draw(&mut self, lines: &[String]) -> io::Result<()> {
        self.enter()?;
        // Each line clears what is left of an older one.
        let lines: Vec<_> = lines.iter().map(|line| format!("{line}\x1b[K")).collect();
        put(&format!("\x1b[H{}\x1b[J", lines.join("\n")))
    }

    /// Returns the descriptors to poll: for signals and keys.
    pub fn waited_for<'a>(&'a self, stdin: &'a io::Stdin) -> Vec<PollFd<'a>> {
        let keys = self.keys.then(|| PollFd::from_borrowed_fd(stdin.as_fd(), PollFlags::IN));
        let signals = PollFd::new(&self.signals, PollFlags::IN);
        [signals].into_iter().chain(keys).collect()
    }

    /// Returns the event, if any, after a descriptor of [`waited_for`](Self::waited_for) has become
    /// readable.
    pub fn event(&mut self, ready: &[bool]) -> io::Result<Option<TerminalEvent>> {
        if ready.get(1) == Some(&true) && self.is_quit_typed() {
            return Ok(Some(TerminalEvent::Quit));
        }
        if ready.first() != Some(&true) {
            return Ok(None);
        }
        // `signalfd_siginfo` begins with the signal's number and has 128 bytes.
        let mut info = [0; 128];
        rustix::io::read(&self.signals, &mut info)?;
        let signal = i32::from_ne_bytes([info[0], info[1], info[2], info[3]]);
        match signal {
            libc::SIGWINCH => {}
            libc::SIGTSTP => {
                self.leave()?;
                kill_process(getpid(), Signal::STOP)?;
            }
            libc::SIGCONT => {}
            _ => return Ok(Some(TerminalEvent::Quit)),
        }
        Ok(Some(TerminalEvent::Redraw))
    }

    fn is_quit_typed(&mut self) -> bool {
        let mut typed = [0; 64];
        match rustix::io::read(io::stdin(), &mut typed) {
            Ok(0) | Err(_) => {
                self.keys = false;
                false
            }
            Ok(len) => typed[..len].iter().any(|key| b"qQ".contains(key)),
        }
    }

    fn enter(&mut self) -> io::Result<()> {
        if self.entered {
            return Ok(());
        }
        if self.keys {
            let before = tcgetattr(io::stdin())?;
            let mut modes = before.clone();
            modes.local_modes -= LocalModes::ICANON | LocalModes::ECHO;
            tcsetattr(io::stdin(), OptionalActions::Drain, &modes)?;
            self.before = Some(before);
        }
        self.entered = true;
        put(ENTER)
    }

    /// Restores the terminal. The next [`draw`](Self::draw) takes it again.
    pub fn leave(&mut self) -> io::Result<()> {
        if !std::mem::take(&mut self.entered) {
            return Ok(());
        }
        let left = put(LEAVE);
        if let Some(before) = self.before.take() {
            tcsetattr(io::stdin(), OptionalActions::Flush, &before)?;
        }
        left
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.leave();
    }
}

fn put(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    stdout.flush()
}
