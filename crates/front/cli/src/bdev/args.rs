//! The command line of `keepstone bdev`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};

use super::listen::ListenAddress;
use super::ublk;

/// Options for opening pools as block devices.
#[derive(Clone, Debug, Args)]
pub struct DeviceArgs {
    /// Create POOL with --size bytes if it does not exist.
    #[arg(long, requires = "size")]
    pub create: bool,
    /// Size of the pool that --create makes, in bytes or with K, M, G, T (powers of 1024).
    #[arg(long, value_parser = crate::size::parse)]
    pub size: Option<u64>,
    /// Protection of the memory against stray writes: none; pkey (protection keys: only a thread
    /// that is storing may write); chunk (2 MiB around recent stores are writable) or chunk-strict
    /// (the same, only during a store); pages (only the pages of a store are writable, during it);
    /// window (a store maps them at another address); pwrite (the kernel stores). auto is pkey if
    /// the CPU has keys, else chunk. docs/BDEV.md compares them.
    #[arg(long, value_name = "MODE", default_value = "auto")]
    pub protect: pmem::Protection,
    /// How bytes become durable: nt (stores that bypass the cache), clwb, clflush, or wb (at
    /// barriers).
    #[arg(long, value_name = "SCHEME", default_value_t)]
    pub scheme: pmbd::Scheme,
    /// Size of atomic blocks, a power of two from 512 to 16384 bytes: after a power failure a block
    /// is written whole or not at all. --create makes such a pool; an existing pool has its own
    /// size recorded.
    #[arg(long, value_name = "BYTES", value_parser = atomic)]
    pub atomic: Option<u32>,
    /// Check content when it is read; a block that does not match its checksum gives EIO. Needs a
    /// pool with atomic blocks.
    #[arg(long)]
    pub checksums: bool,
    /// Collect writes in N buffers in DRAM and sort them; each buffer has a thread that writes it
    /// to the pool. This reduces the cost of --protect pages. If the server is killed, writes that
    /// no flush has covered are lost.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub buffers: Option<u16>,
    /// Options for buffering writes.
    #[command(flatten)]
    pub buffering: BufferingArgs,
    /// Return space that clients discard to the file system of the pool, and allocate space only
    /// when it is needed. If that file system is full then, the server dies.
    #[arg(long, conflicts_with = "atomic")]
    pub thin: bool,
    /// Refuse requests that store.
    #[arg(long)]
    pub read_only: bool,
    /// Emulate slower memory, for example read=2x,write=4x,line=100ns,bandwidth=800MB/s, or a named
    /// one: pcm, pcm-rows, stt-mram, reram, nvdimm-n, cxl-near, cxl-far, optane.
    #[arg(long, value_name = "SPEC")]
    pub emulate: Option<pmem::Emulation>,
    /// Record the accesses to the pool in FILE, for `keepstone simulate memory`. Only for one pool,
    /// and without --workers.
    #[arg(long, value_name = "FILE", value_parser = absolute)]
    pub record: Option<PathBuf>,
}

/// Returns an absolute path: the server has another working directory.
fn absolute(path: &str) -> std::io::Result<PathBuf> {
    std::path::absolute(path)
}

/// Options of --buffers.
#[derive(Clone, Debug, Args)]
pub struct BufferingArgs {
    /// Size of all buffers together, in bytes or with K, M, G.
    #[arg(long, requires = "buffers", value_name = "BYTES", default_value = "16M", value_parser = crate::size::parse)]
    pub buffer_size: u64,
    /// A buffer that is full to HIGH percent is emptied to LOW percent.
    #[arg(long, requires = "buffers", value_name = "HIGH,LOW", default_value = "70,30", value_parser = marks)]
    pub buffer_marks: (u8, u8),
    /// Write pages to the pool one by one, in the order in which they came.
    #[arg(long, requires = "buffers")]
    pub buffer_unsorted: bool,
}

impl DeviceArgs {
    /// Returns the requested buffers.
    pub fn buffering(&self) -> Option<pmbd::Buffering> {
        let how = &self.buffering;
        Some(pmbd::Buffering {
            buffers: self.buffers?.into(),
            bytes: usize::try_from(how.buffer_size).unwrap_or(usize::MAX),
            high_percent: how.buffer_marks.0,
            low_percent: how.buffer_marks.1,
            batching: !how.buffer_unsorted,
        })
    }
}

/// Options for running a server.
#[derive(Clone, Debug, Args)]
pub struct ProcessArgs {
    /// Stay in the foreground and log to stderr.
    #[arg(short, long)]
    pub foreground: bool,
    /// Report readiness on stdout and leave the session (the command uses this itself).
    #[arg(long, hide = true)]
    pub daemon: bool,
}

/// `keepstone bdev serve`
#[derive(Clone, Debug, Args)]
pub struct ServeArgs {
    /// Files or devdax devices. Each is an export under its file name; the first also under the
    /// empty name, which clients use by default.
    #[arg(required_unless_present = "exports")]
    pub pools: Vec<PathBuf>,
    /// A further pool, under a name of your choice.
    #[arg(long = "export", value_name = "NAME=PATH", value_parser = named)]
    pub exports: Vec<(String, PathBuf)>,
    /// Description of the export NAME for clients.
    #[arg(long = "describe", value_name = "NAME=TEXT", value_parser = described)]
    pub descriptions: Vec<(String, String)>,
    /// Unix socket to listen on. Default, without --listen: one named after the first export, in
    /// /run/keepstone/bdev (users other than root: below their runtime directory).
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// TCP address to listen on: a port such as 10809 (this machine only), :10809 (all addresses of
    /// this machine), or localhost:10809. Port 0 is any free port.
    #[arg(long, value_name = "ADDRESS")]
    pub listen: Vec<ListenAddress>,
    /// Options for opening the pools.
    #[command(flatten)]
    pub device: DeviceArgs,
    /// Directory with server-cert.pem and server-key.pem. With it, clients may use TLS.
    #[arg(long, value_name = "DIR")]
    pub tls_certificates: Option<PathBuf>,
    /// Turn away clients that do not use TLS.
    #[arg(long, requires = "tls_certificates")]
    pub tls_required: bool,
    /// Turn away clients without a certificate of the authority in DIR/ca-cert.pem.
    #[arg(long, requires = "tls_certificates")]
    pub tls_verify_peer: bool,
    /// Most clients at the same time.
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u16).range(1..))]
    pub clients: u16,
    /// Serve with N processes instead of threads of one process. Protections that change mappings
    /// (all except none, pkey and pwrite) lock the address space, and each process has its own. A
    /// process that dies is replaced.
    #[arg(long, value_name = "N", conflicts_with_all = ["buffers", "record"], value_parser = clap::value_parser!(u16).range(1..=64))]
    pub workers: Option<u16>,
    /// Options for running the server.
    #[command(flatten)]
    pub process: ProcessArgs,
}

/// The party that copies the content of a loop device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Through {
    /// The kernel, from and to the file itself: fastest, and the memory is never mapped writable.
    Kernel,
    /// The server: with protection, write scheme, checksums, emulation and statistics.
    Server,
}

/// The driver by which the kernel gets a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Via {
    /// ublk, /dev/ublkbN. If its server is killed, requests wait for the next server.
    Ublk,
    /// The kernel's NBD client, /dev/nbdN.
    Nbd,
    /// A loop device, /dev/loopN.
    Loop,
}

/// `keepstone bdev attach`
#[derive(Clone, Debug, Args)]
pub struct AttachArgs {
    /// Driver. Default: the fastest that this machine has; the command prints it with the reason.
    #[arg(long = "by", value_enum)]
    pub via: Option<Via>,
    /// Requests that the kernel may send to each queue of ublk before one is answered. Each takes a
    /// buffer of 512 KiB.
    #[arg(long, value_name = "N", default_value_t = ublk::DEPTH,
          value_parser = clap::value_parser!(u16).range(1..=ublk::DEPTH_MAX))]
    pub queue_depth: u16,
    /// Further options.
    #[command(flatten)]
    pub kernel: KernelArgs,
}

/// `keepstone bdev loop`
#[derive(Clone, Debug, Args)]
pub struct KernelArgs {
    /// A file or a devdax device.
    pub pool: PathBuf,
    /// Options for opening the pool.
    #[command(flatten)]
    pub device: DeviceArgs,
    /// Bytes of a logical block of the device: 512 or 4096. Default: 512, or the size of atomic
    /// blocks if that is larger.
    #[arg(long, value_name = "BYTES", value_parser = block)]
    pub block_size: Option<u32>,
    /// The party that copies the content of a loop device. Default: the kernel, if the bytes of
    /// POOL are those of the device.
    #[arg(long, value_enum)]
    pub through: Option<Through>,
    /// Threads that answer the kernel; for ublk its queues, for NBD connections. Default: one per
    /// CPU, 2 to 16.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub threads: Option<u16>,
    /// Options for running the server.
    #[command(flatten)]
    pub process: ProcessArgs,
}

/// The name of a server.
#[derive(Clone, Debug, Args)]
pub struct NameArgs {
    /// A socket, an address, a pool, a device, an export or a process number, as
    /// `keepstone bdev list` shows.
    pub name: String,
}

/// `keepstone bdev stats`
#[derive(Clone, Debug, Args)]
pub struct StatsArgs {
    /// The server.
    #[command(flatten)]
    pub server: NameArgs,
    /// Print in Prometheus' text format.
    #[arg(long, conflicts_with = "watch")]
    pub prometheus: bool,
    /// Print rates, every second, until interrupted.
    #[arg(long)]
    pub watch: bool,
}

/// `keepstone bdev check`
#[derive(Clone, Debug, Args)]
pub struct CheckArgs {
    /// A file or a devdax device that no server has open.
    pub pool: PathBuf,
    /// Repair the map. Blocks whose content still exists keep it. Blocks whose content is lost fail
    /// to be read until they are written.
    #[arg(long)]
    pub repair: bool,
}

/// `keepstone bdev grow`
#[derive(Clone, Debug, Args)]
pub struct GrowArgs {
    /// An export, or its server, as `keepstone bdev list` shows them; or a pool that no server has
    /// open.
    pub name: String,
    /// Its new size in bytes, or with K, M, G, T (powers of 1024).
    #[arg(long, value_parser = crate::size::parse)]
    pub size: u64,
}

fn named(text: &str) -> Result<(String, PathBuf), String> {
    let (name, path) = text.split_once('=').ok_or("write NAME=PATH")?;
    Ok((name.to_owned(), path.into()))
}

fn described(text: &str) -> Result<(String, String), String> {
    let (name, text) = text.split_once('=').ok_or("write NAME=TEXT")?;
    Ok((name.to_owned(), text.to_owned()))
}

fn marks(text: &str) -> Result<(u8, u8), String> {
    let percent = |text: &str| text.trim().parse().ok().filter(|n| (0..=100).contains(n));
    let marks = text.split_once(',').and_then(|(high, low)| Some((percent(high)?, percent(low)?)));
    let falling = marks.filter(|(high, low)| high > low);
    falling.ok_or_else(|| "write two percentages, the higher first, such as 70,30".to_owned())
}

fn block(text: &str) -> Result<u32, String> {
    text.parse().ok().filter(|n| [512, 4096].contains(n)).ok_or("write 512 or 4096".to_owned())
}

fn atomic(text: &str) -> Result<u32, String> {
    let bytes = text.parse().ok().filter(|n: &u32| n.is_power_of_two());
    bytes.filter(|n| (512..=16384).contains(n)).ok_or("write 512, 1024, … or 16384".to_owned())
}
