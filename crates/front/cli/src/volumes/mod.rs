//! `keepstone volumes`: a volume plugin of Docker. Each volume is a pool in a directory, mounted
//! while containers use it.
//!
//! [`protocol`] has the requests, [`store`] the volumes. The server holds no state of its own, so
//! mounts go on while it is restarted: volumes and their users are files (volumes-V1, volumes-V2 in
//! `store.rs`).

mod protocol;
mod store;

use std::fs;
use std::io::{ErrorKind, Read as _};
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use clap::Args;
use fuse::StopSignals;
use rustix::fs::Mode;
use rustix::process::umask;
use serde_json::Value;
use tiny_http::{Header, Method, Request, Response, Server};

use crate::background::notify_ready;
use crate::output;
use protocol::answer;
use store::VolumeStore;

/// Requests that are answered at once.
const THREADS: usize = 4;
/// The most bytes of a request's body.
const BODY_MAX: u64 = 64 << 10;
/// The type of answers.
const CONTENT_TYPE: &str = "application/vnd.docker.plugins.v1.2+json";

/// `keepstone volumes`
#[derive(Debug, Args)]
pub struct VolumesArgs {
    /// Directory of the volumes. It is created, for its user alone.
    #[arg(long, value_name = "DIR", default_value = "/var/lib/keepstone/volumes")]
    pub dir: PathBuf,
    /// Socket on which Docker finds the plugin. Its name is the name of the driver.
    #[arg(long, value_name = "FILE", default_value = "/run/docker/plugins/keepstone.sock")]
    pub socket: PathBuf,
    /// Directory of pools in memory, of volumes with the option `save`. It is created, for its user
    /// alone.
    #[arg(long, value_name = "DIR", default_value = "/dev/shm/keepstone-volumes")]
    pub memory: PathBuf,
}

pub fn run(args: &VolumesArgs, json: bool) -> Result<ExitCode> {
    let signals = StopSignals::block()?;
    let store = Arc::new(VolumeStore::open(&args.dir, &args.memory)?);
    let socket = PluginSocket::open(&args.socket)?;
    let listener = socket.listener.try_clone()?;
    let server = Server::from_listener(listener, None).map_err(anyhow::Error::from_boxed);
    let server = Arc::new(server?);
    for _ in 0..THREADS {
        let (server, store) = (server.clone(), store.clone());
        std::thread::Builder::new().name("volumes".into()).spawn(move || {
            // An error is of one connection.
            loop {
                if let Ok(request) = server.recv() {
                    serve(request, &store);
                }
            }
        })?;
    }
    if json {
        output::json(&serde_json::json!({ "socket": args.socket, "dir": args.dir }))?;
    } else {
        say!("volumes of {} are served on {}", args.dir.display(), args.socket.display());
    }
    notify_ready();
    signals.wait();
    Ok(ExitCode::SUCCESS)
}

/// Answers a request. Its sender is gone if that fails.
fn serve(mut request: Request, store: &VolumeStore) {
    let (status, value) = answer_to(&mut request, store);
    let kind = Header::from_bytes("Content-Type", CONTENT_TYPE).expect("it is a header");
    let response = Response::from_string(value.to_string()).with_header(kind);
    let _ = request.respond(response.with_status_code(status));
}

fn answer_to(request: &mut Request, store: &VolumeStore) -> (u16, Value) {
    let error = |why: String| serde_json::json!({ "Err": why });
    if *request.method() != Method::Post {
        return (405, error("requests are by POST".to_owned()));
    }
    let path = request.url().to_owned();
    let mut body = Vec::new();
    if let Err(err) = request.as_reader().take(BODY_MAX + 1).read_to_end(&mut body) {
        return (400, error(format!("the request ends early: {err}")));
    }
    if body.len() as u64 > BODY_MAX {
        return (413, error(format!("a request of more than {BODY_MAX} bytes")));
    }
    match answer(&path, &body, store) {
        Ok(Some(value)) => (200, value),
        Ok(None) => (404, error("no such request".to_owned())),
        Err(err) => {
            tracing::warn!("{path}: {err:#}");
            (500, error(format!("{err:#}")))
        }
    }
}

/// The socket, which is removed at the end.
struct PluginSocket {
    listener: UnixListener,
    path: PathBuf,
}

impl PluginSocket {
    /// Opens the socket. One that another process has left is replaced.
    fn open(path: &Path) -> Result<Self> {
        let no_socket = || format!("{}: cannot open the socket", path.display());
        let dir = path.parent().unwrap_or(Path::new("/"));
        fs::create_dir_all(dir).with_context(no_socket)?;
        match path.symlink_metadata() {
            Err(err) if err.kind() == ErrorKind::NotFound => {}
            Ok(found) if !found.file_type().is_socket() => {
                bail!("{}: exists, and is no socket", path.display());
            }
            _ if UnixStream::connect(path).is_ok() => {
                bail!("{}: another process serves it", path.display());
            }
            _ => fs::remove_file(path).with_context(no_socket)?,
        }
        // Only this user may connect, from the beginning. There is no other thread yet.
        let before = umask(Mode::XUSR | Mode::RWXG | Mode::RWXO);
        let listener = UnixListener::bind(path);
        umask(before);
        let listener = listener.with_context(no_socket)?;
        Ok(Self { listener, path: path.to_owned() })
    }
}

impl Drop for PluginSocket {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}
