//! The command line of `keepstone attach`.

use std::path::PathBuf;

use ::pool::DurabilityMode;
use backing::Watch;
use clap::{Args, Subcommand};

use super::resolve::Side;

/// `keepstone attach`
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct AttachArgs {
    /// The command for an attached or detached cache.
    #[command(subcommand)]
    pub command: Option<AttachCommand>,
    #[command(flatten)]
    pub server: Option<ServerArgs>,
    #[command(flatten)]
    pub store: StoreArgs,
}

/// The arguments of a server.
#[derive(Debug, Args)]
pub struct ServerArgs {
    /// The pool: its path, UUID=… or LABEL=…. It is formatted with `mkfs --cache`, and is empty or
    /// already the cache of this directory.
    pub pool: PathBuf,
    /// The directory whose files are cached; they stay there. Or a prefix of an object store that
    /// holds only such a tree: s3://BUCKET/PREFIX, gs://…, az://….
    pub dir: PathBuf,
    /// The directory where programs see the files. Default: DIR itself, so that no program bypasses
    /// the cache. An object store needs one.
    pub mount: Option<PathBuf>,
    /// Make a POOL that does not exist, for example in memory after a reboot. Needs --size.
    #[arg(long, requires = "size")]
    pub create: bool,
    /// Size of a pool that --create makes, in bytes, or with K, M, G, T (powers of 1024).
    #[arg(long, requires = "create", value_parser = crate::size::parse)]
    pub size: Option<u64>,
    /// Let --create make a thin pool, as `mkfs --thin`.
    #[arg(long, requires = "create", conflicts_with = "thick")]
    pub thin: bool,
    /// Let --create take all of the size at once, as `mkfs --thick`.
    #[arg(long, requires = "create")]
    pub thick: bool,
    /// The time at which calls become durable in the pool: journal (when they return) or ordered
    /// (when something is synced; a crash leaves them in order).
    #[arg(long, value_name = "MODE", default_value_t)]
    pub data: DurabilityMode,
    /// Let a write return only when the file in DIR has it, too.
    #[arg(long)]
    pub write_through: bool,
    /// What fsync, fdatasync, O_SYNC and, under `keepstone run`, sync and syncfs wait for: the
    /// pool, or through (the data and names are also durable in DIR, which matters if the pool is
    /// in DRAM).
    #[arg(long, value_name = "WHAT", default_value = "pool", value_parser = ["pool", "through"])]
    pub fsync: String,
    /// Refuse changes.
    #[arg(long)]
    pub read_only: bool,
    /// Options of the mount, separated by commas: ro, nosuid, nodev, noexec, nosymfollow. The flags
    /// of the mount that DIR lies on apply as well; root can lift them with suid, dev, exec,
    /// symfollow. Over an object store, nosuid and nodev apply unless lifted.
    #[arg(short = 'o', long = "options", value_name = "OPTIONS", value_parser = crate::args::mount_options())]
    pub mount_options: Vec<String>,
    /// Write dirty data back at the latest after this many seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    pub max_age: u32,
    /// How the kernel reports changes that others make in DIR: notify (changes, at once),
    /// permission (the same, and a program that opens a file in DIR waits until the cache has
    /// written it back, at most 10 s; root only) or off. The server finds all other changes by
    /// comparing. Default: notify if the file system of DIR supports it.
    #[arg(long, value_name = "HOW")]
    pub watch: Option<Watch>,
    /// Replacement policy, which chooses the contents that leave a full pool: blended (the
    /// paper's), sieve or s3fifo (`keepstone simulate cache` compares them).
    #[arg(long, value_name = "POLICY", default_value_t)]
    pub policy: eviction::PolicyKind,
    /// Threads that answer requests. Default: one per CPU, 2 to 16.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub threads: Option<u16>,
    /// Let other users use the mount (default for root).
    #[arg(long)]
    pub allow_other: bool,
    /// Stay in the foreground and log to stderr.
    #[arg(short, long)]
    pub foreground: bool,
    /// Report readiness on stdout and leave the session (`attach` uses this itself).
    #[arg(long, hide = true)]
    pub daemon: bool,
}

/// Options of an object store.
#[derive(Clone, Debug, Default, Args)]
pub struct StoreArgs {
    /// An option of the object store, such as aws_endpoint=http://host:9000; may be repeated.
    /// Further options, and secrets, come from the environment: AWS_ACCESS_KEY_ID, AWS_REGION,
    /// GOOGLE_SERVICE_ACCOUNT, AZURE_STORAGE_ACCOUNT_NAME, ….
    #[arg(long = "store-option", value_name = "KEY=VALUE", value_parser = key_and_value)]
    pub options: Vec<(String, String)>,
    /// Size of the objects that hold the contents of files, in bytes, for a new tree: a power of
    /// two. Default: 8M.
    #[arg(long, value_name = "BYTES", value_parser = crate::size::parse)]
    pub chunk_size: Option<u64>,
    /// Seconds without a sign of life after which another machine may take the tree over. Default:
    /// 15.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u16).range(1..=3600))]
    pub lease: Option<u16>,
}

impl StoreArgs {
    /// Returns the same options as words of a command line.
    pub fn words(&self) -> impl Iterator<Item = String> {
        let options = self.options.iter();
        let options = options.map(|(key, value)| format!("--store-option={key}={value}"));
        let chunk_size = self.chunk_size.map(|bytes| format!("--chunk-size={bytes}"));
        options.chain(chunk_size).chain(self.lease.map(|seconds| format!("--lease={seconds}")))
    }
}

fn key_and_value(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("KEY=VALUE is wanted")?;
    Ok((key.to_owned(), value.to_owned()))
}

/// The commands for a cache.
#[derive(Debug, Subcommand)]
pub enum AttachCommand {
    /// Show the state of an attached cache: dirty data, hits, files that need attention.
    Status {
        /// The mount point of the cache.
        mount: PathBuf,
        /// Print in Prometheus' text format.
        #[arg(long, visible_alias = "metrics")]
        prometheus: bool,
    },
    /// Write back everything that a cache has for DIR, without mounting it.
    Drain {
        /// The pool.
        pool: PathBuf,
        /// The directory or object store that the pool caches.
        dir: PathBuf,
        #[command(flatten)]
        store: StoreArgs,
    },
    /// Read files into the cache.
    Warm(FilesArgs),
    /// Read files into the cache, and keep them there until they are unpinned or removed, even if
    /// it is attached again.
    Pin(FilesArgs),
    /// Let pinned files be evicted again.
    Unpin(FilesArgs),
    /// Write back the dirty data of files; of all files, if PATH is the mount point.
    Flush(FilesArgs),
    /// Write back the dirty data of files, and drop them from the cache.
    Invalidate(FilesArgs),
    /// Show how much of each file is cached.
    Show(FilesArgs),
    /// Resolve the conflict of a file or directory that was changed both in the cache and in DIR,
    /// by keeping one side. `status` names what is in conflict. Example: keepstone attach resolve
    /// --keep cache /srv/data/report.txt
    Resolve {
        /// Files and directories in conflict, below the mount point of the cache. A directory
        /// stands for its names and attributes, not for what is in it.
        #[arg(required = true)]
        paths: Vec<PathBuf>,
        /// The side to keep. The other one is gone: with `cache`, names that others have added to a
        /// directory, too; with `directory`, names that only the cache has stay.
        #[arg(long, value_name = "SIDE")]
        keep: Side,
    },
    /// Resolve a conflict in a pool that is not attached, by keeping what DIR has.
    Discard {
        /// The pool, not attached.
        pool: PathBuf,
        /// The directory or object store that the pool caches.
        dir: PathBuf,
        /// The file or directory, as `status` names it.
        path: PathBuf,
        #[command(flatten)]
        store: StoreArgs,
    },
}

/// Files of an attached cache.
#[derive(Debug, Args)]
pub struct FilesArgs {
    /// Files below the mount point of the cache; a directory stands for all regular files in it.
    #[arg(required = true)]
    pub paths: Vec<PathBuf>,
}
