//! Output to stdout and stderr. The reader of a pipe may be gone while targets are set up: these
//! functions do not panic as `println!` does, so that everything is removed.

use std::fmt::Arguments;
use std::io::{self, ErrorKind, Write as _};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Prints on stdout, as `print!` does.
macro_rules! say_part {
    ($($arg:tt)*) => { $crate::output::print(format_args!($($arg)*)) };
}

/// Prints a line on stdout, as `println!` does.
macro_rules! say {
    () => { say_part!("\n") };
    ($($arg:tt)*) => { say_part!("{}\n", format_args!($($arg)*)) };
}

/// Prints on stderr, as `eprint!` does.
macro_rules! tell_part {
    ($($arg:tt)*) => { $crate::output::print_error(format_args!($($arg)*)) };
}

/// Prints a line on stderr, as `eprintln!` does.
macro_rules! tell {
    ($($arg:tt)*) => { tell_part!("{}\n", format_args!($($arg)*)) };
}

/// Whether output could not be written although its reader still exists.
static LOST: AtomicBool = AtomicBool::new(false);

/// Prints a text on stdout, for the macros.
pub fn print(text: Arguments<'_>) {
    let mut stdout = io::stdout().lock();
    match stdout.write_fmt(text).and_then(|()| stdout.flush()) {
        Err(err) if err.kind() != ErrorKind::BrokenPipe && !LOST.swap(true, Relaxed) => {
            print_error(format_args!("cannot write to standard output: {err}\n"));
        }
        _ => {}
    }
}

/// Prints a text on stderr, for the macros.
pub fn print_error(text: Arguments<'_>) {
    let _ = io::stderr().lock().write_fmt(text);
}

/// Returns whether output was lost, for example because a disk is full.
pub fn is_lost() -> bool {
    LOST.load(Relaxed)
}
