//! `keepstone send` and `keepstone receive`: snapshots as streams, to a file, a pipe, or another
//! pool.
//!
//! `send` only reads the pool, mounted or not. `receive` joins the processes that use the pool, as
//! `snapshot create` does.

mod receive;
mod send;

pub use receive::{ReceiveArgs, run as receive, token};
pub use send::{SendArgs, run as send};

use indicatif::{ProgressBar, ProgressStyle};

/// Makes a bar that shows bytes. It hides itself if stderr is not a terminal.
fn bar() -> ProgressBar {
    ProgressBar::new_spinner().with_style(
        ProgressStyle::with_template("{spinner} {bytes} {bytes_per_sec}")
            .expect("a valid template"),
    )
}
