//! Contents that nobody syncs are written back all the same, now and then (SCMFS §3.6).
//!
//! A round is a sync: where nothing was stored since the last one, the engine looks at one word; else it takes one file after the
//! other, shared with those who read it. It serves programs beside the mount as well, as what is not durable is known to all.

use std::sync::Weak;
use std::time::Duration;

use ::pool::Engine;

/// Writes back every so many seconds, in the background, as long as somebody uses `fs`; never if 0.
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
