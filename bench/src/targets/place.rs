//! A target that is set up: its directory, its server, and the process that works in it. Dropping
//! it removes everything that was made for it, and nothing else.

use super::Settings;
use super::durability::{Durability, Promise};
use super::spec::{Kind, Spec, Way};
use super::worker::{Answer, Order};
use crate::fuse::{Server, Servers};
use crate::looped::{Loop, Mount};
use crate::peer;
use anyhow::{Context as _, Result, bail, ensure};
use std::ffi::OsString;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Seek as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Beginning of the names of everything that is made.
const PREFIX: &str = "keepstone-bench-";
/// Longest time for a worker to end by itself.
const ENDS_WITHIN: Duration = Duration::from_secs(5);
/// Longest time between two checks whether the user has asked to stop.
const TICK: Duration = Duration::from_millis(50);

/// A target that is set up. Fields are dropped in the order of their declaration.
pub struct Target {
    worker: Worker,
    place: Place,
}

/// The parts of a target without its worker. Fields are dropped in the order of their declaration.
pub struct Place {
    durability: Durability,
    /// The directory to work in; a device.
    at: PathBuf,
    /// The mount point of its pool, whose server counts requests.
    mount: Option<PathBuf>,
    _work: Option<TempDir>,
    _filesystem: Option<Mount>,
    _device: Option<Loop>,
    server: Option<Server>,
    _home: Option<TempDir>,
}

impl Place {
    /// Ends a server that does not answer, and so would hold up the removal of files on its mount.
    fn end_server(&mut self) {
        self.server.iter_mut().for_each(Server::kill);
    }

    /// Makes a new directory in `dir`.
    pub fn in_dir(dir: &Path, durability: Durability) -> Result<Self> {
        let work = new_dir(dir)?;
        Ok(Self {
            durability,
            at: work.path().to_owned(),
            mount: None,
            _work: Some(work),
            _filesystem: None,
            _device: None,
            server: None,
            _home: None,
        })
    }

    /// The whole of a mounted pool, whose files stay.
    pub fn in_pool(server: Server, keepstone: &Path) -> Result<Self> {
        Ok(Self {
            durability: Durability::of_pool(keepstone, server.dir())?,
            at: server.dir().to_owned(),
            mount: Some(server.dir().to_owned()),
            _work: None,
            _filesystem: None,
            _device: None,
            server: Some(server),
            _home: None,
        })
    }

    /// Sets up a target.
    pub fn new(spec: &Spec, settings: &Settings) -> Result<Self> {
        let keepstone = &settings.keepstone;
        match &spec.kind {
            Kind::Dir(dir) => {
                let durability = Durability::of_dir(keepstone, dir)
                    .with_context(|| format!("{}: no such directory", dir.display()))?;
                let mut place = Self::in_dir(dir, durability)?;
                let dir = place.at.clone();
                let pools = fuse::mounts()?.into_iter().filter(fuse::MountEntry::is_keepstone);
                place.mount = pools.map(|mount| mount.dir).find(|mount| dir.starts_with(mount));
                Ok(place)
            }
            Kind::Pool(path) => {
                let (home, server) = Self::mounted(spec, settings, path)?;
                let durability = Durability::of_pool(keepstone, server.dir())?;
                let place = Self::in_dir(server.dir(), durability)?;
                let mount = Some(server.dir().to_owned());
                Ok(Self { mount, server: Some(server), _home: Some(home), ..place })
            }
            Kind::Cache(dir) => {
                let home = new_dir(Path::new("/dev/shm"))?;
                let below = new_dir(dir)?;
                let programs = settings.programs(spec);
                let servers = Servers::new(&programs, home.path());
                let server = servers.attached("cache", &spec.bytes.to_string(), below.path())?;
                let durability = Durability::of_pool(keepstone, server.dir())?;
                let place = Self::in_dir(server.dir(), durability)?;
                let mount = Some(server.dir().to_owned());
                // The server, which writes back, ends before the directory below.
                Ok(Self { mount, server: Some(server.over(below)), _home: Some(home), ..place })
            }
            Kind::Bdev(dir) | Kind::Loop(dir) => {
                let is_root = rustix::process::geteuid().is_root();
                ensure!(is_root, "making devices takes root");
                let home = new_dir(dir)?;
                let below = Durability::of_dir(keepstone, dir)?;
                let device = match &spec.kind {
                    Kind::Bdev(_) => Loop::keepstone(keepstone, home.path(), spec.bytes, &[])?,
                    _ => Loop::bare(home.path(), spec.bytes)?,
                };
                let filesystem = device.ext4()?;
                let promise = match below.promise {
                    Promise::Never => Promise::Never,
                    _ => Promise::OnSync,
                };
                let medium = format!("ext4 on a device in {}", below.medium);
                let place = Self::in_dir(filesystem.path(), Durability { promise, medium })?;
                let (_filesystem, _device) = (Some(filesystem), Some(device));
                Ok(Self { _filesystem, _device, _home: Some(home), ..place })
            }
            Kind::Device(path) => {
                ensure!(path.exists(), "{}: no such device", path.display());
                let medium = "a device: durable after fsync, if it keeps its promises".to_owned();
                Ok(Self {
                    durability: Durability { promise: Promise::OnSync, medium },
                    at: std::path::absolute(path)?,
                    mount: None,
                    _work: None,
                    _filesystem: None,
                    _device: None,
                    server: None,
                    _home: None,
                })
            }
        }
    }

    /// Mounts a new pool in the directory `path`, or the pool `path`.
    fn mounted(spec: &Spec, settings: &Settings, path: &Path) -> Result<(TempDir, Server)> {
        let options = spec.mount_options();
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        let programs = settings.programs(spec);
        if path.is_dir() {
            let home = new_dir(path)?;
            let servers = Servers::new(&programs, home.path());
            let server = servers.keepstone("pool", &spec.bytes.to_string(), &options)?;
            return Ok((home, server));
        }
        ensure!(path.exists(), "{}: neither a directory nor a pool", path.display());
        let home = new_dir(&std::env::temp_dir())?;
        let servers = Servers::new(&programs, home.path());
        let server = servers.mounted("pool", &std::path::absolute(path)?, &options)?;
        Ok((home, server))
    }
}

/// Makes a directory that is removed when it is dropped.
pub fn new_dir(dir: &Path) -> Result<TempDir> {
    let made = tempfile::Builder::new().prefix(PREFIX).tempdir_in(dir);
    made.with_context(|| format!("{}: cannot make a directory there", dir.display()))
}

impl Target {
    /// Sets a target up, and starts its worker.
    pub fn new(spec: &Spec, settings: &Settings) -> Result<Self> {
        Self::at(Place::new(spec, settings)?, spec, settings)
    }

    /// Starts the worker of a target that is set up.
    pub fn at(mut place: Place, spec: &Spec, settings: &Settings) -> Result<Self> {
        match Worker::start(spec, settings, &place) {
            Ok(worker) => Ok(Self { worker, place }),
            Err(err) => {
                if err.is::<NoAnswer>() {
                    place.end_server();
                }
                Err(err)
            }
        }
    }

    /// Returns its durability.
    pub fn durability(&self) -> &Durability {
        &self.place.durability
    }

    /// Gives an order to its worker and waits for the answer. A worker that is too late is ended.
    pub fn ask(&mut self, order: &Order, settings: &Settings) -> Result<Answer> {
        self.worker.ask(order, settings)
    }

    /// Returns the process ID of its server.
    pub fn server_pid(&self) -> Option<u32> {
        self.place.server.as_ref().map(Server::pid)
    }

    /// Returns the time that its server has had the processor, in nanoseconds.
    pub fn server_cpu_ns(&self) -> u64 {
        let Some(server) = &self.place.server else { return 0 };
        let tasks = std::fs::read_dir(format!("/proc/{}/task", server.pid()));
        let time = |task: std::fs::DirEntry| -> Option<u64> {
            let stat = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
            stat.split(' ').next()?.parse().ok()
        };
        tasks.into_iter().flatten().flatten().filter_map(time).sum()
    }

    /// Returns the number of requests that its server has answered.
    pub fn requests(&self) -> u64 {
        self.place.mount.as_deref().and_then(|dir| requests(dir).ok()).unwrap_or(0)
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if self.worker.orders.is_none() {
            self.place.end_server();
        }
    }
}

/// The error of a target that does not answer, with the seconds.
#[derive(Debug)]
struct NoAnswer(u64);

impl std::fmt::Display for NoAnswer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "no answer within {} s", self.0)
    }
}

impl std::error::Error for NoAnswer {}

/// Asks the server of a mount for the number of requests that it has answered.
fn requests(dir: &Path) -> Result<u64> {
    let path = rustix::path::Arg::into_c_str(dir)?.into_owned();
    let name = std::ffi::CString::new(fuse::BRIEF_STATS_XATTR)?;
    let ask = |room: &mut [u8]| rustix::fs::getxattr(&*path, &*name, room);
    let answer = fuse::call_apart(Duration::from_secs(1), vfs::Limits::MAX.xattr, ask)?;
    let stats: serde_json::Value = serde_json::from_slice(&answer.context("no answer")??)?;
    let requests = stats["requests"].as_object().context("no requests in its answer")?;
    Ok(requests.values().filter_map(serde_json::Value::as_u64).sum())
}

/// A process that works for this one.
struct Worker {
    child: Child,
    /// `None` once it was given up.
    orders: Option<ChildStdin>,
    answers: Receiver<Answer>,
    errors: File,
}

impl Worker {
    /// Starts the worker of a target, and waits until its files are there.
    fn start(spec: &Spec, settings: &Settings, place: &Place) -> Result<Self> {
        let this = std::env::current_exe()?;
        let mut words: Vec<OsString> = Vec::new();
        if spec.way == Way::Direct {
            words.extend([settings.keepstone.clone().into(), "run".into()]);
            if place.mount.is_none() {
                words.extend(["--direct".into(), place.at.clone().into()]);
            }
            words.push("--".into());
        }
        words.extend([this.into(), "worker".into(), place.at.clone().into()]);
        words.extend(["--bytes".into(), settings.bytes.to_string().into()]);
        words.extend(["--names".into(), settings.names.to_string().into()]);
        let is_device = matches!(spec.kind, Kind::Device(_));
        words.extend(is_device.then(|| "--device".into()));
        words.extend(spec.overwrite.then(|| "--overwrite".into()));
        words.extend(settings.bare.then(|| "--bare".into()));
        let errors = tempfile::tempfile()?;
        let mut command = peer::command(&words);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(errors.try_clone()?);
        let mut child = command.spawn().context("cannot run setpriv (package util-linux)")?;
        let orders = child.stdin.take();
        let lines = BufReader::new(child.stdout.take().expect("it was asked for")).lines();
        let (sender, answers) = channel();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let parsed = serde_json::from_str(&line);
                let answer = parsed.unwrap_or_else(|err| Answer::Failed(format!("{line}: {err}")));
                if sender.send(answer).is_err() {
                    return;
                }
            }
        });
        let mut worker = Self { child, orders, answers, errors };
        match worker.answer(settings)? {
            Answer::Ready => Ok(worker),
            other => Err(other.unexpected()),
        }
    }

    fn ask(&mut self, order: &Order, settings: &Settings) -> Result<Answer> {
        let mut line = serde_json::to_vec(order)?;
        line.push(b'\n');
        let orders = self.orders.as_mut().context("its process was ended")?;
        if orders.write_all(&line).is_err() {
            bail!("its process ended{}", self.last_words());
        }
        self.answer(settings)
    }

    /// Waits for the next answer.
    fn answer(&mut self, settings: &Settings) -> Result<Answer> {
        let deadline = Instant::now() + settings.patience;
        loop {
            match self.answers.recv_timeout(TICK) {
                Ok(answer) => return Ok(answer),
                Err(RecvTimeoutError::Disconnected) => {
                    bail!("its process ended{}", self.last_words())
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
            if settings.stop.is_set() {
                bail!("stopped");
            }
            if Instant::now() >= deadline {
                let _ = self.child.kill();
                self.orders = None;
                bail!(NoAnswer(settings.patience.as_secs()));
            }
        }
    }

    /// Returns the last line that the process has written to its stderr.
    fn last_words(&mut self) -> String {
        let mut text = String::new();
        let read = self.errors.rewind().and_then(|()| self.errors.read_to_string(&mut text));
        let last = text.lines().rev().find(|line| !line.trim().is_empty());
        read.ok().and(last).map_or_else(String::new, |line| format!(": {line}"))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        drop(self.orders.take());
        // A worker whose round is long does not read the end of its input.
        let _ = self.child.kill();
        peer::end(&mut self.child, ENDS_WITHIN);
    }
}
