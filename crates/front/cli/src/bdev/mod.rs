//! `keepstone bdev`: persistent memory as block devices.
//!
//! A server is a process that holds devices and serves them, over NBD or to the kernel. In the
//! background it is another run of this program (`--daemon`), as with `keepstone mount`. Other
//! commands query it over its [control socket](control).

mod args;
mod check;
pub mod control;
mod devices;
mod fileloop;
mod holder;
mod kernel;
mod kernel_nbd;
mod listen;
mod looped;
mod onefile;
mod serve;
mod server;
mod stats;
mod status;
mod ublk;
mod worker;
mod workers;

use std::process::ExitCode;

use anyhow::Result;
use clap::Subcommand;

/// The commands.
#[derive(Debug, Subcommand)]
pub enum BdevCommand {
    /// Serve pools over NBD; returns when clients can connect.
    #[command(after_help = "\
Example, a disk of 1 GiB in memory, and a look at it:
  keepstone bdev serve /dev/shm/disk --create --size 1G --socket /run/disk.sock
  nbdinfo 'nbd+unix:///?socket=/run/disk.sock'
  keepstone bdev stop /run/disk.sock

With certificates (server-cert.pem, server-key.pem) in DIR, over TCP:
  keepstone bdev serve /dev/shm/disk --listen [::]:10809 --tls-certificates DIR --tls-required

By four processes, which are restarted when one dies, on a pool that takes only the space it \
needs:
  keepstone bdev serve /dev/shm/disk --create --size 1G --thin --workers 4

Started by a systemd socket unit, it serves the sockets of that unit, in the foreground.")]
    Serve(args::ServeArgs),
    /// Attach a pool to the kernel as /dev/loopN, for its file systems; returns when it can be
    /// used.
    #[command(after_help = "\
Example, an ext4 on it (as root):
  keepstone bdev loop /dev/shm/disk --create --size 1G
  mkfs.ext4 /dev/loop0 && mount /dev/loop0 /mnt
  umount /mnt && keepstone bdev detach /dev/loop0")]
    Loop(args::KernelArgs),
    /// Attach a pool to the kernel by the fastest driver of this machine: ublk, the NBD client, or
    /// a loop device.
    #[command(after_help = "\
Example, by the fastest driver, and by ublk with queues for four CPUs:
  keepstone bdev attach /dev/shm/disk --create --size 1G
  keepstone bdev attach /dev/shm/disk --by ublk --threads 4")]
    Attach(args::AttachArgs),
    /// Take a device back from the kernel; refused while it is in use.
    #[command(after_help = "Example: keepstone bdev detach /dev/loop0")]
    Detach(args::NameArgs),
    /// List the servers of this machine.
    #[command(after_help = "Example: keepstone bdev list --json")]
    List,
    /// Show the counters of a server.
    #[command(after_help = "\
Example: keepstone bdev stats /run/disk.sock --watch

NAME is a socket, an address, a pool, a device such as /dev/loop0, the name of an export, or a \
process number.")]
    Stats(args::StatsArgs),
    /// Check a pool with atomic blocks, and repair its map.
    #[command(after_help = "\
Example: keepstone bdev check /dev/shm/disk

Exit status: 0 the pool is clean; 1 problems were found (and, with --repair, all handled); 4 \
problems remain after --repair, or the check failed.")]
    Check(args::CheckArgs),
    /// Grow an export, or a pool that no server has open.
    #[command(after_help = "\
Example: keepstone bdev grow disk --size 2G

Clients that connect from now on see the new size. Connected clients keep the old size, because \
NBD cannot change it; their requests beyond it are served.")]
    Grow(args::GrowArgs),
    /// Stop a server: it answers requests in flight and makes everything durable.
    #[command(after_help = "Example: keepstone bdev stop /run/disk.sock")]
    Stop(args::NameArgs),
}

impl BdevCommand {
    /// Returns whether the command may become a server.
    pub fn is_server(&self) -> bool {
        matches!(self, Self::Serve(_) | Self::Loop(_) | Self::Attach(_))
    }

    /// Returns whether the command checks a disk, and its exit status tells what was found.
    pub fn is_check(&self) -> bool {
        matches!(self, Self::Check(_))
    }
}

pub fn run(command: &BdevCommand, json: bool) -> Result<ExitCode> {
    match command {
        BdevCommand::Serve(args) => serve::run(args, json)?,
        BdevCommand::Loop(args) => kernel::run_loop(args, json)?,
        BdevCommand::Attach(args) => kernel::run_attach(args, json)?,
        BdevCommand::Detach(args) => kernel::detach(&args.name, json)?,
        BdevCommand::List => stats::list(json)?,
        BdevCommand::Stats(args) => stats::run(args, json)?,
        BdevCommand::Check(args) => return check::run(args, json),
        BdevCommand::Grow(args) => stats::grow(args, json)?,
        BdevCommand::Stop(args) => stats::stop(&args.name, json)?,
    }
    Ok(ExitCode::SUCCESS)
}
