//! Mounts the in-memory model, to try the front end without an engine.
//!
//! ```text
//! cargo run -p fuse --example mount_model -- DIR [--threads N] [--no-cache]
//! ```
//!
//! All content is lost when it ends: by `umount DIR`, SIGTERM or SIGINT.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use fuse::{
    Caching, MountAccess, MountFlags, MountOptions, OpCounters, Server, ServerOptions, StopSignals,
};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let stop = StopSignals::block()?;
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let mut args = std::env::args().skip(1);
    let mut dir = None;
    let mut threads = 2;
    let mut caching = Caching::EXCLUSIVE;
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--threads" => threads = args.next().ok_or("--threads needs a number")?.parse()?,
            "--no-cache" => caching = Caching::NONE,
            _ => dir = Some(PathBuf::from(arg)),
        }
    }
    let dir = dir.ok_or("usage: mount_model DIR [--threads N] [--no-cache]")?;
    let counters = Arc::new(OpCounters::default());
    let counted = counters.clone();
    let options = ServerOptions {
        caching,
        counters,
        stats: Some(Box::new(move |_, _| format!("{:?}", counted.snapshot()).into_bytes())),
    };
    let server = Server::new(Arc::new(vfs::model::Model::new()), options)?;
    let options = MountOptions {
        source: "model".into(),
        access: MountAccess::All,
        flags: MountFlags::empty(),
        threads,
    };
    let mounted = fuse::mount(server, &dir, &options)?;
    let mount_point = mounted.mount_point();
    std::thread::spawn(move || {
        stop.wait();
        if let Err(err) = mount_point.end(Duration::from_secs(5)) {
            eprintln!("cannot unmount: {err}");
        }
    });
    println!("mounted on {}", dir.display());
    mounted.serve()?;
    Ok(())
}
