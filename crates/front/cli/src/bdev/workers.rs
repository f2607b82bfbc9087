//! `keepstone bdev serve --workers`: a supervisor and the processes that serve.
//!
//! The supervisor opens the devices, which the workers that it forks then share. It accepts
//! clients, and passes each to the worker that has the fewest. Protection by `mmap` and `mprotect`
//! locks the address space; each worker has its own.
//!
//! - **workers-S1** The supervisor has one thread of its own, and its operations on devices start
//!   no others, so a forked worker finds no lock taken. That thread waits for all events in one
//!   `poll`.
//! - **workers-S2** The supervisor stores nothing to devices, so a forked worker finds no window
//!   open.
//! - **workers-S3** When a worker has died, the supervisor ends all others, because they may wait
//!   for its requests or locks. It closes the devices and opens them again, which derives the state
//!   in DRAM again. It makes confirmed writes durable before it starts new workers. Clients connect
//!   again.
//! - **workers-S4** The workers die with the supervisor.
//!
//! A stray write thus interrupts the service only for a moment.

#![allow(unsafe_code)]

use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use fuse::StopSignals;
use nbd::{Listener, ServerOptions};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, WaitStatus, getpid, kill_process, pidfd_open, waitpid,
};
use serde_json::Value;

use super::args::DeviceArgs;
use super::control::{Control, ControlRequest};
use super::devices::{self, Opened};
use super::serve::Served;
use super::status::{WorkerStatus, WorkersStatus};
use super::worker::{self, Numbers, Order};

/// A worker that does not answer within this time counts as dead.
const PATIENCE: Duration = Duration::from_secs(10);

/// Shortest time between two starts of the workers, in case they die at once.
const LIVES_MIN: Duration = Duration::from_millis(200);

/// Longest time for all workers to end, including their own grace period.
const END_MAX: Duration = Duration::from_secs(30);

/// A process that serves.
struct Worker {
    pid: Pid,
    /// Becomes readable when the process ends.
    end: OwnedFd,
    channel: UnixStream,
}

/// The process that holds sockets and devices.
pub struct Supervisor<'a> {
    /// Options for opening the devices.
    args: &'a DeviceArgs,
    options: ServerOptions,
    served: Served,
    /// `count` workers, unless a restart failed.
    workers: Vec<Worker>,
    count: usize,
    /// Time of the last start of the workers, and the number of restarts.
    started: Instant,
    restarts: u32,
}

impl<'a> Supervisor<'a> {
    /// Starts `count` workers.
    pub fn start(
        args: &'a DeviceArgs,
        count: usize,
        options: ServerOptions,
        served: Served,
    ) -> Result<Self> {
        let mut supervisor = Self {
            args,
            options,
            served,
            workers: Vec::new(),
            count,
            started: Instant::now(),
            restarts: 0,
        };
        supervisor.fork_all()?;
        Ok(supervisor)
    }

    /// Serves until a signal to stop.
    pub fn run(
        &mut self,
        stop: &StopSignals,
        listeners: &[Listener],
        control: &Control,
    ) -> Result<()> {
        let signal = stop.descriptor()?;
        loop {
            ensure!(self.workers.len() == self.count, "workers could not be restarted");
            let fixed = [signal.as_fd(), control.as_fd()];
            let ends = self.workers.iter().map(|worker| worker.end.as_fd());
            let clients = listeners.iter().map(|listener| listener.as_fd());
            let all: Vec<_> = fixed.into_iter().chain(clients).chain(ends).collect();
            let mut waiting: Vec<_> = all.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
            match poll(&mut waiting, None) {
                Err(rustix::io::Errno::INTR) => continue,
                result => result?,
            };
            let ready: Vec<bool> = waiting.iter().map(|fd| !fd.revents().is_empty()).collect();
            let (fixed, rest) = ready.split_at(fixed.len());
            let (clients, ends) = rest.split_at(listeners.len());
            if fixed[0] {
                return Ok(());
            }
            if ends.contains(&true) {
                self.start_anew()?; // workers-S3
                continue;
            }
            if fixed[1] {
                control.answer_next(|request| self.answer(&request));
            }
            for (listener, _) in listeners.iter().zip(clients).filter(|(_, ready)| **ready) {
                if let Err(err) = self.take_client(listener) {
                    tracing::error!("{}: cannot take a client: {err:#}", listener.address());
                    std::thread::sleep(Duration::from_millis(100));
                }
            }
        }
    }

    /// Passes a client to the worker that has the fewest.
    fn take_client(&mut self, listener: &Listener) -> Result<()> {
        let Some(client) = listener.accept()? else { return Ok(()) };
        let numbers = self.numbers()?;
        let fewest = self.workers.iter().zip(&numbers).min_by_key(|(_, of)| of.clients);
        let (worker, _) = fewest.context("there is no worker")?;
        worker::order(&worker.channel, Order::Serve(client))
    }

    /// Returns the counters of each worker. If a worker does not answer, restarts all and asks
    /// again.
    fn numbers(&mut self) -> Result<Vec<Numbers>> {
        match self.ask_all() {
            Err(err) => {
                tracing::error!("{err:#}");
                self.start_anew()?;
                self.ask_all()
            }
            numbers => numbers,
        }
    }

    fn ask_all(&self) -> Result<Vec<Numbers>> {
        let ask = |worker: &Worker| {
            let answer = worker::ask(&worker.channel);
            answer.with_context(|| format!("worker {} does not answer", worker.pid))
        };
        self.workers.iter().map(ask).collect()
    }

    fn answer(&mut self, request: &ControlRequest) -> Result<Value> {
        match request {
            ControlRequest::Status => {
                let numbers = self.numbers()?;
                let processes = self.workers.iter().zip(&numbers).map(|(worker, of)| {
                    WorkerStatus { pid: worker.pid.as_raw_nonzero().get(), clients: of.clients }
                });
                let processes = processes.collect();
                let status = WorkersStatus { processes, restarts: self.restarts };
                let sum = numbers.into_iter().reduce(Numbers::plus).unwrap_or_default();
                self.served.status(sum, Some(status))
            }
            ControlRequest::Grow { export, size } => self.served.grow(export, *size),
            ControlRequest::Stop => Ok(Value::Null),
        }
    }

    /// Ends all workers, opens the devices again and starts the same number of workers
    /// (workers-S3).
    fn start_anew(&mut self) -> Result<()> {
        self.end_workers();
        std::thread::sleep(LIVES_MIN.saturating_sub(self.started.elapsed()));
        self.open_anew()?;
        self.restarts += 1;
        self.fork_all()
    }

    /// Opens the devices as they are after a death, and makes confirmed writes durable.
    fn open_anew(&mut self) -> Result<()> {
        // Closed first: a region has one owner.
        let reports: Vec<_> = self.served.opened.drain(..).map(|opened| opened.report).collect();
        for report in reports {
            let opened: Opened = devices::open_after_death(report, self.args)?;
            opened.device.barrier()?;
            self.served.opened.push(opened);
        }
        Ok(())
    }

    fn fork_all(&mut self) -> Result<()> {
        self.started = Instant::now();
        for _ in 0..self.count {
            let worker = self.fork()?;
            self.workers.push(worker);
        }
        Ok(())
    }

    fn fork(&self) -> Result<Worker> {
        let (channel, theirs) = UnixStream::pair()?;
        channel.set_read_timeout(Some(PATIENCE))?;
        let supervisor = getpid();
        // SAFETY: workers-S1: no thread of this process holds a lock that the child could wait for.
        // (That of `pmem::stray` sleeps until this process strays.)
        match unsafe { libc::fork() } {
            0 => {
                drop(channel);
                // Each worker rejects clients beyond its share of the limit.
                let clients_max = self.options.clients_max.div_ceil(self.count);
                let options = ServerOptions { clients_max, ..self.options.clone() };
                let work = || worker::work(&theirs, &self.served.opened, options, supervisor);
                // Exits here, so that the child does not run the callers' cleanup.
                std::process::exit(match catch_unwind(AssertUnwindSafe(work)) {
                    Ok(Ok(())) => 0,
                    Ok(Err(err)) => {
                        tracing::error!("worker {}: {err:#}", getpid());
                        1
                    }
                    Err(_) => 1,
                })
            }
            pid => {
                let forked = Pid::from_raw(pid).filter(|_| pid > 0);
                let pid = forked.ok_or_else(std::io::Error::last_os_error);
                let pid = pid.context("cannot start a worker")?;
                Ok(Worker { pid, end: pidfd_open(pid, PidfdFlags::empty())?, channel })
            }
        }
    }

    /// Logs how workers have ended, and kills the others.
    fn end_workers(&mut self) {
        self.workers.retain(|worker| {
            let Some(status) = worker.ended() else { return true };
            let how = match status.terminating_signal() {
                Some(signal) => format!("signal {signal}"),
                None => format!("status {}", status.exit_status().unwrap_or(0)),
            };
            tracing::error!("worker {} has ended: {how}; the others end too", worker.pid);
            false
        });
        for worker in &self.workers {
            let _ = kill_process(worker.pid, Signal::KILL);
        }
        for worker in self.workers.drain(..) {
            let _ = waitpid(Some(worker.pid), WaitOptions::empty());
        }
    }

    /// Stops the workers in good order. If one fails to, makes confirmed writes durable in its
    /// place.
    pub fn stop(mut self) -> Result<()> {
        for worker in &self.workers {
            let _ = worker::order(&worker.channel, Order::Stop);
        }
        if self.all_end_well(Instant::now() + END_MAX) {
            return Ok(());
        }
        self.end_workers();
        self.open_anew().context("cannot make everything durable")
    }

    /// Waits until all workers have ended, `deadline` has passed, or a worker ends with a failure:
    /// others may wait for that worker (workers-S3). Returns whether all ended well.
    fn all_end_well(&mut self, deadline: Instant) -> bool {
        while !self.workers.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            let left_spec = Timespec::try_from(left).unwrap_or_default();
            let ends = self.workers.iter().map(|worker| PollFd::new(&worker.end, PollFlags::IN));
            let _ = poll(&mut ends.collect::<Vec<_>>(), Some(&left_spec));
            let mut well = !left.is_zero();
            self.workers.retain(|worker| {
                let ended = worker.ended();
                well &= ended.is_none_or(|status| status.exit_status() == Some(0));
                ended.is_none()
            });
            if !well {
                return false;
            }
        }
        true
    }
}

impl Worker {
    /// Returns how the process has ended, if it has. Do not call it again after that.
    fn ended(&self) -> Option<WaitStatus> {
        let ended = waitpid(Some(self.pid), WaitOptions::NOHANG);
        ended.ok().flatten().map(|(_, status)| status)
    }
}
