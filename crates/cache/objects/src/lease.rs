//! The lease of the process that may write: an object with a counter that its holder increments.
//!
//! - **lease-L1** A process may take the lease if no lease exists, if it was given back, or if its
//!   holder is known to be dead. It may also take it if the counter has not changed for the
//!   duration of the lease, by the taker's clock. Clocks of two machines are never compared.
//! - **lease-L2** The lease only decides which process tries to write. If two processes believe to
//!   hold it, the manifest keeps one of them from writing (manifest-M2).

use crate::Error;
use crate::format::{Kind, Lease, SMALL_MAX, encode};
use crate::store::{Failure, RemoteStore};
use object_store::UpdateVersion;
use std::time::{Duration, Instant};
use vfs::Timestamp;

/// The object's name.
pub const NAME: &str = "lease";
/// Attempts to take a lease that other processes try to take, too.
const TRIES: usize = 8;

/// A lease that is held.
pub struct HeldLease {
    lease: Lease,
    version: UpdateVersion,
}

/// The reason why a lease is lost, or may be.
pub enum LeaseLost {
    /// Another process holds it.
    To(Box<Lease>),
    /// The store has failed.
    Unknown(Failure),
}

impl HeldLease {
    /// Takes the lease of a tree, with the duration `lasts` (lease-L1), and checks that the store
    /// honours conditions.
    ///
    /// # Errors
    /// [`Error::Held`], [`Error::NotConditional`], or those of the store.
    pub fn take(store: &RemoteStore, lasts: Duration) -> Result<Self, Error> {
        let mut lease = new_lease(lasts);
        for _ in 0..TRIES {
            let found = store.get(NAME, SMALL_MAX).map_err(|err| Error::store(NAME, err))?;
            let Some(found) = found else {
                match store.create(NAME, encode(Kind::Lease, &lease)) {
                    Err(Failure::AlreadyExists { .. }) => continue,
                    version => return Self { version: conditional(version)?, lease }.proven(store),
                }
            };
            let other = Lease::decode(&found.bytes, NAME)?;
            if other.holder == lease.holder {
                // The answer to an earlier attempt was lost.
                return Self { version: found.version, lease: other }.proven(store);
            }
            if !other.is_released && !is_dead(&other) {
                match wait_for(store, &other)? {
                    Stands::Still => {}
                    Stands::Moves => return Err(Error::held(&other)),
                    Stands::Changed => continue,
                }
            }
            lease.since = Timestamp::now();
            match store.update(NAME, encode(Kind::Lease, &lease), &found.version) {
                Err(Failure::Precondition { .. }) => {}
                version => return Self { version: conditional(version)?, lease }.proven(store),
            }
        }
        let found = store.get(NAME, SMALL_MAX).map_err(|err| Error::store(NAME, err))?;
        let other = found.map(|found| Lease::decode(&found.bytes, NAME)).transpose()?;
        Err(other.map_or(Error::NotConditional, |other| Error::held(&other)))
    }

    /// Checks that the store refuses puts whose condition fails: some stores ignore conditions.
    fn proven(mut self, store: &RemoteStore) -> Result<Self, Error> {
        let old = self.version.clone();
        self.renew(store).map_err(|lost| match lost {
            LeaseLost::To(other) => Error::held(&other),
            LeaseLost::Unknown(err) => refusal(err),
        })?;
        let bytes = encode(Kind::Lease, &self.lease);
        match store.create(NAME, bytes.clone()) {
            Err(Failure::AlreadyExists { .. }) => {}
            Ok(_) => return Err(Error::NotConditional),
            Err(err) => return Err(Error::store(NAME, err)),
        }
        match store.update(NAME, bytes, &old) {
            Err(Failure::Precondition { .. }) => Ok(self),
            Ok(_) => Err(Error::NotConditional),
            Err(err) => Err(Error::store(NAME, err)),
        }
    }

    /// Returns the holder's ID.
    pub fn holder(&self) -> [u8; 16] {
        self.lease.holder
    }

    /// Increments the counter.
    pub fn renew(&mut self, store: &RemoteStore) -> Result<(), LeaseLost> {
        self.put(store, Lease { counter: self.lease.counter + 1, ..self.lease.clone() })
    }

    /// Gives it back.
    pub fn release(&mut self, store: &RemoteStore) -> Result<(), LeaseLost> {
        let counter = self.lease.counter + 1;
        self.put(store, Lease { counter, is_released: true, ..self.lease.clone() })
    }

    /// Replaces the lease of this process by `lease`. If an earlier attempt succeeded without an
    /// answer, takes up its version. [`LeaseLost::To`] if another process has the lease.
    fn put(&mut self, store: &RemoteStore, lease: Lease) -> Result<(), LeaseLost> {
        let bytes = encode(Kind::Lease, &lease);
        let err = match store.update(NAME, bytes, &self.version) {
            Ok(version) => {
                (self.version, self.lease) = (version, lease);
                return Ok(());
            }
            Err(err) => err,
        };
        if !matches!(err, Failure::Precondition { .. }) {
            return Err(LeaseLost::Unknown(err));
        }
        // Another process has it, or the answer to an earlier attempt was lost.
        let found = store.get(NAME, SMALL_MAX).map_err(LeaseLost::Unknown)?;
        let Some(found) = found else { return Err(LeaseLost::Unknown(err)) };
        match Lease::decode(&found.bytes, NAME) {
            Ok(now) if now.holder == self.lease.holder => {
                (self.version, self.lease) = (found.version, now);
                if self.lease.is_released == lease.is_released {
                    Ok(())
                } else {
                    self.put(store, lease)
                }
            }
            Ok(other) => Err(LeaseLost::To(Box::new(other))),
            Err(_) => Err(LeaseLost::Unknown(err)),
        }
    }
}

/// The change of a lease while it was watched.
enum Stands {
    /// None during its duration.
    Still,
    /// The counter: its holder lives.
    Moves,
    /// It was given back, or taken by another process.
    Changed,
}

/// Watches a lease for its duration.
fn wait_for(store: &RemoteStore, lease: &Lease) -> Result<Stands, Error> {
    let lasts = Duration::from_millis(lease.duration_ms);
    let began = Instant::now();
    let pause = (lasts / 10).clamp(Duration::from_millis(1), Duration::from_secs(1));
    while began.elapsed() <= lasts {
        std::thread::sleep(pause);
        let found = store.get(NAME, SMALL_MAX).map_err(|err| Error::store(NAME, err))?;
        let Some(found) = found else { return Ok(Stands::Changed) };
        let now = Lease::decode(&found.bytes, NAME)?;
        if now.holder != lease.holder || now.is_released {
            return Ok(Stands::Changed);
        }
        if now.counter != lease.counter {
            return Ok(Stands::Moves);
        }
    }
    Ok(Stands::Still)
}

/// Returns the version that a put gave; [`Error::NotConditional`] if the store gives none.
fn conditional(put: Result<UpdateVersion, Failure>) -> Result<UpdateVersion, Error> {
    match put.map_err(refusal)? {
        UpdateVersion { e_tag: None, version: None } => Err(Error::NotConditional),
        version => Ok(version),
    }
}

/// Makes the error of a refused put; [`Error::NotConditional`] if the store has no conditional
/// puts.
fn refusal(err: Failure) -> Error {
    match err {
        Failure::NotImplemented { .. } | Failure::NotSupported { .. } => Error::NotConditional,
        err => Error::store(NAME, err),
    }
}

/// Makes a lease of this process, which names its host and start. It is not in the store yet.
fn new_lease(lasts: Duration) -> Lease {
    let pid = std::process::id();
    Lease {
        holder: *uuid::Uuid::new_v4().as_bytes(),
        host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
        place: place().unwrap_or_default(),
        pid,
        started: started(pid).unwrap_or_default(),
        since: Timestamp::now(),
        counter: 0,
        duration_ms: lasts.as_millis() as u64,
        is_released: false,
    }
}

/// Whether the holder was a process on this machine and in this PID namespace that no longer lives.
fn is_dead(lease: &Lease) -> bool {
    let is_here = place().is_some_and(|place| place == lease.place);
    is_here && started(lease.pid) != Some(lease.started)
}

/// Returns the boot ID of the machine and the PID namespace.
fn place() -> Option<String> {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let processes = std::fs::read_link("/proc/self/ns/pid").ok()?;
    Some(format!("{} {}", boot.trim(), processes.display()))
}

/// Returns the start time of a process, in ticks since the boot of the machine; `None` if there is
/// no such process.
fn started(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name before it may have any characters. A zombie counts as dead.
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = fields.next()?;
    if matches!(state, "Z" | "X") { None } else { fields.nth(18)?.parse().ok() }
}
