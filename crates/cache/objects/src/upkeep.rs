//! Work in the background: renewing the lease, committing changes that no call syncs, deleting
//! unused objects.

use crate::commit::Core;
use crate::lock;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// The threads that do the work, until dropped.
pub struct Upkeep {
    stops: Vec<Sender<()>>,
    threads: Vec<JoinHandle<()>>,
}

impl Upkeep {
    /// Starts the threads.
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub fn start(core: &Arc<Core>) -> std::io::Result<Self> {
        let mut upkeep = Self { stops: Vec::new(), threads: Vec::new() };
        // It has a thread of its own, so that other work does not delay it.
        upkeep.spawn("lease", core.clone(), |core, stop| {
            while pauses(&stop, core.options.lease / 3) {
                core.renew();
            }
        })?;
        upkeep.spawn("upkeep", core.clone(), |core, stop| {
            while pauses(&stop, core.options.commit_after / 4) {
                // A failure was logged; the next round tries again.
                let _ = core.collect();
                let since = lock(&core.journal).since();
                if since.is_some_and(|since| since.elapsed() >= core.options.commit_after) {
                    let _ = core.commit();
                }
                core.delete_garbage();
            }
        })?;
        Ok(upkeep)
    }

    /// Starts a thread that runs `act`. The receiver is disconnected when the thread has to stop.
    fn spawn(
        &mut self,
        name: &str,
        core: Arc<Core>,
        act: impl FnOnce(Arc<Core>, Receiver<()>) + Send + 'static,
    ) -> std::io::Result<()> {
        let (stop, stopped) = channel();
        let thread = std::thread::Builder::new().name(name.to_owned());
        self.threads.push(thread.spawn(move || act(core, stopped))?);
        self.stops.push(stop);
        Ok(())
    }
}

impl Drop for Upkeep {
    fn drop(&mut self) {
        self.stops.clear();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Waits for `time`. Returns false if the thread has to stop.
fn pauses(stop: &Receiver<()>, time: Duration) -> bool {
    stop.recv_timeout(time) == Err(RecvTimeoutError::Timeout)
}
