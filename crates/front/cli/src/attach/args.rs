//! The words of `keepstone attach`.

use std::path::PathBuf;

use backing::Watch;
use clap::{Args, Subcommand};
use pmcache::Mode;

/// `keepstone attach`
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct AttachArgs {
    /// What to do with an attached or detached cache.
    #[command(subcommand)]
    pub command: Option<AttachCommand>,
    #[command(flatten)]
    pub server: Option<ServerArgs>,
    #[command(flatten)]
    pub store: StoreArgs,
}

/// What a server needs to know.
#[derive(Debug, Args)]
pub struct ServerArgs {
    /// The pool, formatted with `mkfs`, empty or the cache of this directory already: its path, UUID=… or LABEL=….
    pub pool: PathBuf,
    /// The directory whose files are cached, where they stay; or a prefix of an object store that has nothing but such a
    /// tree: s3://BUCKET/PREFIX, gs://…, az://….
    pub dir: PathBuf,
    /// Where programs see them. Default: DIR itself, so that nobody passes by; an object store needs one.
    pub mount: Option<PathBuf>,
    /// What survives a crash when a write has returned: writeback (Chell-Cache), ordered (PMAL-O) or journal (PMAL): all of
    /// it, whole.
    #[arg(long, value_name = "MODE", default_value_t = Mode::Journal)]
    pub data: Mode,
    /// A write returns when the file in DIR has it, too.
    #[arg(long)]
    pub write_through: bool,
    /// Refuse changes.
    #[arg(long)]
    pub read_only: bool,
    /// Options of the mount, separated by commas: ro, nosuid, nodev, noexec, nosymfollow. Those of the mount that DIR lies on
    /// hold as well; root lifts them with suid, dev, exec, symfollow. Over an object store: nosuid and nodev, unless lifted.
    #[arg(short = 'o', long = "options", value_name = "OPTIONS")]
    pub mount_options: Vec<String>,
    /// Writing back begins where so much is not in DIR yet, in percent of the pool.
    #[arg(long, value_name = "PERCENT", default_value_t = 25, value_parser = clap::value_parser!(u64).range(0..=100))]
    pub high: u64,
    /// … and goes on until so little is.
    #[arg(long, value_name = "PERCENT", default_value_t = 12, value_parser = clap::value_parser!(u64).range(0..=100))]
    pub low: u64,
    /// There is never more; writers wait.
    #[arg(long, value_name = "PERCENT", default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..=90))]
    pub cap: u64,
    /// Nothing waits longer for being written back.
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    pub max_age: u32,
    /// For so long a file in DIR is believed to be as it was found; 0: it is looked at each time.
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 1000)]
    pub coherence: u32,
    /// How the kernel tells of what others do in DIR, beside --coherence: notify (changes, at once), permission (the same; and
    /// who opens a file in DIR waits until it has what the cache has for it, 10 s at most; root only) or off. Default: notify
    /// where the file system in DIR lets it.
    #[arg(long, value_name = "HOW")]
    pub watch: Option<Watch>,
    /// Who appends gets space in DIR ahead: as much again as the file has, up to so many bytes.
    #[arg(long, value_name = "BYTES", default_value_t = 1 << 20)]
    pub reserve: u64,
    /// A sequential reader gets so many bytes read ahead. Default: 524288, of an object store 8388608.
    #[arg(long, value_name = "BYTES")]
    pub read_ahead: Option<u64>,
    /// What is read in a row beyond so many bytes is not kept; 0: all is.
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    pub bypass: u64,
    /// Which files leave a full cache first: blended (the paper's), sieve or s3fifo (`keepstone simulate` compares them).
    #[arg(long, value_name = "POLICY", default_value_t)]
    pub policy: eviction::Kind,
    /// Threads that answer requests. Default: one per CPU, 2 to 16.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub threads: Option<u16>,
    /// Let other users in (default for root).
    #[arg(long)]
    pub allow_other: bool,
    /// Stay in the foreground and log to stderr.
    #[arg(short, long)]
    pub foreground: bool,
    /// Report readiness on stdout and leave the session (used by `attach` itself).
    #[arg(long, hide = true)]
    pub daemon: bool,
}

/// How an object store is used.
#[derive(Clone, Debug, Default, Args)]
pub struct StoreArgs {
    /// An option of the object store, as aws_endpoint=http://host:9000; may be repeated. Others, and secrets, are taken from
    /// the environment: AWS_ACCESS_KEY_ID, AWS_REGION, GOOGLE_SERVICE_ACCOUNT, AZURE_STORAGE_ACCOUNT_NAME, ….
    #[arg(long = "store-option", value_name = "KEY=VALUE", value_parser = key_and_value)]
    pub options: Vec<(String, String)>,
    /// Bytes of the objects that hold what files hold, where there is no tree yet: a power of two. Default: 8M.
    #[arg(long, value_name = "BYTES", value_parser = crate::size::parse)]
    pub chunk_size: Option<u64>,
    /// Another machine may take the tree when this one has not been heard of for so long. Default: 15.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u16).range(1..=3600))]
    pub lease: Option<u16>,
}

impl StoreArgs {
    /// The same as words of a command line.
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

/// What to do with a cache.
#[derive(Debug, Subcommand)]
pub enum AttachCommand {
    /// Say how an attached cache stands: what is dirty, hits, files that need attention.
    Status {
        /// Where it is mounted.
        mount: PathBuf,
        /// As text for Prometheus.
        #[arg(long)]
        metrics: bool,
    },
    /// Write everything back that a cache has for DIR, without mounting it.
    Drain {
        /// The pool.
        pool: PathBuf,
        /// The directory or object store whose cache it is.
        dir: PathBuf,
        #[command(flatten)]
        store: StoreArgs,
    },
    /// Read files into the cache.
    Warm(FilesArgs),
    /// Read files into the cache, and keep them there until they are unpinned or removed, also when it is attached again.
    Pin(FilesArgs),
    /// Let files be evicted like others.
    Unpin(FilesArgs),
    /// Write back what the cache has of files; of the mount point: of all.
    Flush(FilesArgs),
    /// Write back what the cache has of files, and forget it.
    Invalidate(FilesArgs),
    /// Say what the cache has of files.
    Show(FilesArgs),
    /// Drop what a cache has for one file and could not write back. The file in DIR stays as it is.
    Discard {
        /// The pool, not attached.
        pool: PathBuf,
        /// The directory or object store whose cache it is.
        dir: PathBuf,
        /// The file as `status` names it.
        path: PathBuf,
        #[command(flatten)]
        store: StoreArgs,
    },
}

/// Files of an attached cache.
#[derive(Debug, Args)]
pub struct FilesArgs {
    /// Files below its mount point, and directories: all regular files in them.
    #[arg(required = true)]
    pub paths: Vec<PathBuf>,
}
