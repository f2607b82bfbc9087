//! Periodic write-back of contents that no program syncs (SCMFS §3.6).
//!
//! A round is a sync. If nothing was stored since the last one, the engine only reads one word.
//! Otherwise it syncs file after file, each under a lock shared with its readers. Write-back also
//! covers programs with direct access, because all processes share the record of what is not
//! durable.

use std::sync::Weak;
use std::time::Duration;

use ::pool::Engine;

/// Starts a thread that writes back every `interval_s` seconds, for as long as `fs` exists; none if
/// 0.
pub fn begin(fs: Weak<dyn Engine>, interval_s: u32) {
    if interval_s == 0 {
        return;
    }
    let interval = Duration::from_secs(interval_s.into());
    std::thread::spawn(move || {
        loop {
            std::thread::sleep(interval);
            let Some(fs) = fs.upgrade() else { return };
            if let Err(err) = fs.sync() {
                tracing::error!("cannot write back what was changed: {err}");
            }
        }
    });
}
