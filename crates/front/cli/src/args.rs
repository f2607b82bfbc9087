//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValue, PossibleValuesParser, StringValueParser, TypedValueParser};
use clap::{Args, Parser, Subcommand};
use engines::Layout;

/// Persistent-memory file systems in user space.
///
/// A pool is a formatted region of persistent memory: a file on a DAX file system, a devdax device,
/// or, without such memory, a file on tmpfs or an ordinary file.
#[derive(Debug, Parser)]
#[command(
    version,
    max_term_width = 100,
    after_help = "\
Example, a file system in memory:
  keepstone mkfs /dev/shm/pool --size 1G
  keepstone mount /dev/shm/pool /mnt
  keepstone umount /mnt

Exit status: 0 done; 1 failed; 2 wrong usage; `check` has its own, see its help.
KEEPSTONE_LOG sets the level of logs on stderr (error, warn, info, debug, trace; default warn)."
)]
pub struct Cli {
    /// Print one JSON object on stdout instead of text.
    #[arg(long, global = true)]
    pub json: bool,
    /// The command.
    #[command(subcommand)]
    pub command: CliCommand,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum CliCommand {
    /// Format a pool.
    #[command(after_help = "Example: keepstone mkfs /dev/shm/pool --size 1G --label scratch")]
    Mkfs(MkfsArgs),
    /// Mount a pool on a directory; returns when it is ready.
    #[command(after_help = "\
Example: keepstone mount /dev/shm/pool /mnt

In /etc/fstab:
  /var/lib/pool /mnt fuse.keepstone defaults 0 0
A disk in memory that survives a reboot, as a line of /etc/fstab:
  keepstone:/dev/shm/ram /mnt fuse.keepstone create,size=2G,save=/srv/ram,restore=/srv/ram 0 0
The command replaces a mount on DIR whose server has been killed.")]
    Mount(MountArgs),
    /// Make a pool the cache of a directory of any file system, or of a tree in an object store.
    #[command(after_help = "\
Example: keepstone mkfs /dev/shm/cache --cache --size 4G
         keepstone attach /dev/shm/cache /srv/data
         keepstone attach status /srv/data
         keepstone umount /srv/data

The files stay in DIR. The pool holds what programs use of the tree, and the server writes \
changes back. `umount` writes everything back before it ends. After a crash, attach the pool \
again: it has the acknowledged changes.")]
    Attach(crate::attach::AttachArgs),
    /// Unmount a directory; returns when its server is gone.
    #[command(after_help = "Example: keepstone umount /mnt")]
    Umount(UmountArgs),
    /// Describe a pool: label, size, version, persistence domain.
    #[command(after_help = "Example: keepstone info /dev/shm/pool")]
    Info(InfoArgs),
    /// Verify a pool that is not mounted.
    #[command(after_help = "\
Example: keepstone check /dev/shm/pool --repair

Exit status: 0 the pool is clean; 1 problems were found (and, with --repair, all repaired); 4 \
problems remain that cannot be repaired, or the pool could not be checked.")]
    Check(CheckArgs),
    /// Give the free space of a thin pool back to the file system that holds the pool.
    #[command(after_help = "\
Example: keepstone trim /mnt

The server of a mount does so by itself: for huge pages of 2 MiB that have been free for ten \
seconds, and after twenty seconds for pieces of 64 KiB, of huge pages that are mostly free. It \
keeps some free space for new files. This command gives back all free space, also while programs \
use the pool. It takes the place of fstrim(8): the kernel does not pass FITRIM on to FUSE file \
systems.")]
    Trim(PoolArgs),
    /// Make a pool larger or smaller; a thin one also while programs use it.
    #[command(after_help = "\
Example: keepstone resize /dev/shm/pool 2G

While programs use a thin pool, it can grow up to the limit that `keepstone info` shows (`mkfs \
--max-size`). Beyond that, and for thick pools and caches, no process may use the pool: unmount \
it first.

A smaller pool must hold all files. A power failure meanwhile leaves the pool with the old size \
or the new one.")]
    Resize(ResizeArgs),
    /// Clone a file or a directory tree within a mounted pool: the copy shares all blocks.
    #[command(after_help = "\
Example: keepstone clone /mnt/template /mnt/test-1

The clone takes no space until files change, and appears as a whole. It has the attributes, \
extended attributes, times and hard links of the source. Each file is cloned as it is at one \
moment: stop programs whose files belong together before their tree is cloned. A clone that is \
killed can leave a directory `.NAME.clone-…` beside DST; remove it. On a pool of the layout \
scmfs, files are copied.")]
    Clone(CloneArgs),
    /// Copy a whole pool that is not in use to a new file, with a UUID of its own.
    #[command(after_help = "\
Example: keepstone clone-pool /dev/shm/pool /var/backups/pool --label backup

Holes of a thin pool take no space in the copy. A copy made by other means has the UUID of its \
pool: while one of the two is mounted, the other can only be mounted read-only. The snapshots of \
the pool are in the copy, too.")]
    ClonePool(ClonePoolArgs),
    /// Write a pool that is not in use, or a snapshot of any pool, to a tar archive.
    #[command(after_help = "\
Example: keepstone snapshot create /mnt nightly
         keepstone export /dev/shm/pool@nightly | zstd >nightly.tar.zst
         keepstone snapshot delete /mnt nightly

The archive has the POSIX format (pax), with owners, times in ns, extended attributes, ACLs, hard \
links and holes. GNU tar extracts it: `tar --xattrs --xattrs-include='*' -xpf`. Sockets are left \
out.")]
    Export(ExportArgs),
    /// Write a snapshot, or what differs from an older one, as a stream for `receive`.
    #[command(after_help = "\
Example: keepstone snapshot create /mnt tuesday
         keepstone send /mnt@tuesday --from monday | ssh backup keepstone receive /srv/pool

A stream of differences has no more than these, and to find them reads little else. Files that \
share blocks are sent as files of their own.")]
    Send(crate::stream::SendArgs),
    /// Make a snapshot from a stream of `send`, also while programs use the pool.
    #[command(after_help = "\
Example: keepstone receive /srv/pool stream
         keepstone receive /srv/pool --rollback <stream

The snapshot exists when all of the stream has come and was checked. If the stream breaks off, \
what has come stays, and a token is printed: `keepstone send --resume TOKEN` continues. `--abort \
POOL@NAME` gives it back. The pool may have another size than the sender's.")]
    Receive(crate::stream::ReceiveArgs),
    /// Keep states of a pool: create, list, compare and delete snapshots, and go back to one.
    #[command(after_help = "\
Example: keepstone snapshot create /mnt monday
         keepstone mount /dev/shm/pool@monday /mnt/monday

A snapshot is mounted by its name, POOL@NAME, and can be read below `.snapshots` of the pool's \
mount.")]
    Snapshot {
        /// The command.
        #[command(subcommand)]
        command: crate::snapshot::SnapshotCommand,
    },
    /// Work on copies of a pool's tree that share its contents: create, list, commit and discard
    /// branches.
    #[command(after_help = "\
Example: keepstone branch create /mnt test-1
         keepstone mount /dev/shm/pool@test-1 /mnt/test-1
         keepstone umount /mnt/test-1
         keepstone branch commit /mnt test-1")]
    Branch {
        /// The command.
        #[command(subcommand)]
        command: crate::branch::BranchCommand,
    },
    /// Show the counters of a mount's server.
    #[command(after_help = "\
Example: keepstone stats /mnt --json

They are also the value of the extended attribute user.keepstone.stats of DIR.")]
    Stats(StatsArgs),
    /// Show what all servers do: mounts, caches and block devices, the most active first.
    #[command(after_help = "\
Example: keepstone top
         keepstone top --interval 5 /mnt /dev/loop0
         keepstone top --count 1 --json

The first table shows totals since each server started, later tables show rates per second. OPS \
are requests to the server; programs under `keepstone run` make hardly any. P50 and P99 are \
percentiles of the time of a request, at most an eighth too large. ERRORS are totals since the \
server started. For caches, STATE shows how much data is not written back, and how long the \
oldest of it has been waiting.
`no answer`: the server is stopped, or waits for something itself.

On a terminal the view is redrawn in place; q or Ctrl-C ends it. Elsewhere, each table is printed \
below the previous one.")]
    Top(TopArgs),
    #[command(flatten)]
    Run(RunCommand),
    /// Serve pools as block devices: to other programs over NBD, or to the kernel.
    Bdev {
        /// The command.
        #[command(subcommand)]
        command: crate::bdev::BdevCommand,
    },
    /// Find what this machine lacks and which set-ups are unsafe, with remedies
    #[command(after_help = "\
Example: keepstone doctor /dev/shm/pool

For a program, it shows how `keepstone run` would serve it; for a unit, which of its settings \
keep it from pools.

Exit status: 0 pools can be used; 1 something necessary is missing.")]
    Doctor(DoctorArgs),
    /// Serve volumes to Docker, as a volume plugin: pools, mounted while containers use them.
    #[command(after_help = "\
Example: keepstone volumes &
         docker volume create --driver keepstone --opt size=4G data
         docker run --rm -v data:/data alpine touch /data/file

Options of volumes: size=1G (default), layout=bpfs|scmfs, thin=true|false (as of mkfs), and \
save=true: a pool in memory, which is copied to a file when the last container has ended. SIGTERM \
ends the server; volumes that are in use stay mounted, and the next server knows their users.")]
    Volumes(crate::volumes::VolumesArgs),
    /// Measure directories, pools, caches and devices against each other.
    #[command(
        disable_help_flag = true,
        after_help = "\
Example: keepstone bench run tmpfs pool dir:/var/tmp --quick
         keepstone bench run disk=dir:/srv cache:/srv --html bench.html --save bench.json
         keepstone bench run disk=dir:/srv cache:/srv --baseline bench.json

`keepstone bench run --help` describes targets and exit status; docs/BENCH.md explains the \
method."
    )]
    Bench(crate::bench::BenchArgs),
    /// Explore the states in which power failures can leave a pool, and check that each recovers.
    /// Lint traces, for example for missing flushes.
    #[command(after_help = "\
Example: keepstone crashtest --length 2 --threads 2
         keepstone crashtest --from-trace FILE    lint and crash a recorded trace, of your own program, too

Exit status: 0 every state recovers; 1 violations were found, each printed with a line for \
--replay.")]
    Crashtest(crate::crashtest::CrashtestArgs),
    /// Replay traces of accesses through models: of caches of files, and of memory hardware.
    Simulate {
        /// The model.
        #[command(subcommand)]
        command: crate::simulate::SimulateCommand,
    },
    /// Write the man pages and the completions of shells into a directory (`make build` uses this).
    #[command(hide = true)]
    Generate(GenerateArgs),
}

/// The command that starts programs. It has an enum of its own, because building the parser of all
/// commands takes longer than the command itself.
#[derive(Debug, Subcommand)]
pub enum RunCommand {
    /// Run a program that uses mounted pools without asking their servers.
    #[command(after_help = "\
Example: keepstone run --stats -- git clone /srv/project /mnt/project

Serves mounted pools to CMD and all programs that it starts. Programs and pools that cannot be \
served (static programs, for example, or a pool mounted with -o exclusive) use the mount: the \
same files, only slower. A notice at the start names each mount, and each directory of --direct, \
that cannot be served. When CMD ends (not by a signal), a line on stderr reports if less than 90 \
% of calls or bytes on pools were served, and why. --explain lists files and programs, --quiet \
prints nothing. KEEPSTONE_DEBUG=1 prints messages of each process on stderr.

CMD maps the pool, and keeps it mapped when it drops its privileges without executing another \
program (docs/SEMANTICS.md).

Exit status: that of CMD; 128 plus the signal's number if a signal ended it; 126 or 127 if it \
could not be started. With --stats or --explain and --json, the object follows the output of CMD; \
notices are objects on stderr.")]
    Run(crate::run::RunArgs),
}

/// The equivalent of [`Cli`] for the command `run`.
#[derive(Debug, Parser)]
#[command(name = "keepstone", version, max_term_width = 100)]
struct OnlyRun {
    /// Print one JSON object on stdout instead of text.
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: RunCommand,
}

impl Cli {
    /// Parses a command line.
    ///
    /// # Errors
    /// If the command line is wrong, or asks for help.
    pub fn of_words(argv: &[OsString]) -> Result<Self, clap::Error> {
        if argv.get(1).is_some_and(|word| word == "run") {
            let OnlyRun { json, command } = OnlyRun::try_parse_from(argv)?;
            return Ok(Self { json, command: CliCommand::Run(command) });
        }
        Self::try_parse_from(argv)
    }
}

/// `keepstone mkfs`
#[derive(Debug, Args)]
pub struct MkfsArgs {
    /// File to create, or devdax device (/dev/daxX.Y).
    pub pool: PathBuf,
    /// Size in bytes, or with K, M, G, T (powers of 1024). Default for a device: all of it.
    #[arg(long, value_parser = crate::size::parse)]
    pub size: Option<u64>,
    /// The size up to which `resize` can make a thin pool larger while programs use it. The file
    /// has this length, as a sparse file. Default: 4 times the size.
    #[arg(long, value_name = "SIZE", value_parser = crate::size::parse)]
    pub max_size: Option<u64>,
    /// File system.
    #[arg(long, value_parser = layouts(), default_value = Layout::ALL[0].name())]
    pub layout: Layout,
    /// Make a pool for `attach`: the cache of a directory, or of a tree in an object store. Layout
    /// bpfs only.
    #[arg(long)]
    pub cache: bool,
    /// Take space of the file below when files need it, and give it back. The default in memory
    /// (tmpfs) and in ordinary files.
    #[arg(long, conflicts_with = "thick")]
    pub thin: bool,
    /// Take all of the size at once. The default on DAX file systems and devices.
    #[arg(long, visible_alias = "no-thin")]
    pub thick: bool,
    /// Label for human readers, up to 64 bytes.
    #[arg(long, default_value = "")]
    pub label: String,
    /// Overwrite the content of POOL. A pool in use is refused even so.
    #[arg(long)]
    pub force: bool,
}

/// Returns the parser of lists of mount options. An unknown option is wrong usage.
pub fn mount_options() -> impl TypedValueParser<Value = String> {
    StringValueParser::new().try_map(|list| {
        let checked = crate::mount::check_options(&list).map_err(|err| format!("{err:#}"));
        checked.map(|()| list)
    })
}

/// Returns the parser of names of file systems that a pool can hold.
pub fn layouts() -> impl TypedValueParser<Value = Layout> {
    let names = Layout::ALL.map(|layout| PossibleValue::new(layout.name()).help(layout.promise()));
    PossibleValuesParser::new(names)
        .map(|name| Layout::named(&name).expect("the parser knows these names only"))
}

/// `keepstone mount`
#[derive(Debug, Args)]
pub struct MountArgs {
    /// The pool: its path, UUID=… or LABEL=….
    pub pool: PathBuf,
    /// The directory to mount it on.
    pub dir: PathBuf,
    /// Stay in the foreground and log to stderr.
    #[arg(short, long)]
    pub foreground: bool,
    /// Format the pool as mkfs does if it does not exist; needs --size.
    #[arg(long)]
    pub create: bool,
    /// With --create: the size, as of mkfs.
    #[arg(long, value_parser = crate::size::parse)]
    pub size: Option<u64>,
    /// With --create: the file system, as of mkfs.
    #[arg(long, value_parser = layouts())]
    pub layout: Option<Layout>,
    /// With --create: as of mkfs.
    #[arg(long, conflicts_with = "thick")]
    pub thin: bool,
    /// With --create: as of mkfs.
    #[arg(long, visible_alias = "no-thin")]
    pub thick: bool,
    /// After the unmount, copy the pool to FILE. An older copy of the same pool is replaced.
    #[arg(long, value_name = "FILE")]
    pub save: Option<PathBuf>,
    /// If the pool does not exist, make it from the copy in FILE. With --create, FILE may be
    /// missing.
    #[arg(long, value_name = "FILE")]
    pub restore: Option<PathBuf>,
    /// Mount options, separated by commas: ro, nosuid, nodev, noexec, noatime, relatime (default),
    /// strictatime, nodiratime, nosymfollow, sync, dirsync, allow_other (default for root),
    /// threads=N, no_cache, emulate=SPEC (with `+` for `,`), record=FILE; ask_open: with exclusive,
    /// send each open to the server even so; slower, but direct writes (O_DIRECT) to one file can
    /// run at the same time; writeback: let the kernel hold writes back until they are synced, if
    /// the pool promises no more than that (a pool in an ordinary file, or durability=ordered);
    /// durability=journal|ordered: operations are durable when they return (journal, default), or
    /// when something is synced, and in order (ordered; only pools of the layout bpfs); direct:
    /// fail unless programs under `keepstone run` can bypass the mount. Without this option they
    /// can if that costs the mount nothing (from Linux 6.6; not with ro or writeback); exclusive:
    /// reserve the pool for the mount; the kernel then opens files without asking the server;
    /// snapdir=hidden|off: snapshots can be read below the directory `.snapshots`, which is not
    /// listed (hidden, default; not with exclusive, unless with ask_open), or only by mounts of
    /// their own (off).
    ///
    /// Pools of the layout scmfs: write_policy=auto|cached|through: overwrites bypass the CPU cache
    /// if both write and file are long (auto), never (cached) or always (through). Writes that
    /// bypass it are durable when they return; the attribute user.keepstone.cache overrides the
    /// policy for one file. consistency=metadata|none: with none, nothing is flushed before the
    /// pool is unmounted. data_flush_interval=SECONDS: as --data-flush-interval. past_cache=BYTES,
    /// past_cache_file=BYTES: with auto, the shortest write, and the shortest file, that bypass the
    /// cache (4096, 4194304). collect_every=MS, collect_pause=MS: interval between two runs of the
    /// collector of free space, and its pause between two steps (1000, 10). prealloc=on|off
    /// (default on): set space aside for growing files, and keep the space of removed files for new
    /// ones. null_files=MIN-MAX: number of removed files kept so (16-512, at most 1008);
    /// null_blocks=N: blocks of each (16). prealloc_blocks=MIN-MAX: blocks set aside for a file
    /// that is appended to (16-2048). collect_above=PERCENT, collect_below=BYTES: when to free this
    /// space again (80, 1048576); collect_step=N: blocks freed at once (4096). cold_after=SECONDS:
    /// files not modified for this time are collected first (60). relocate=PERCENT: empty units of
    /// 2 MiB that are used up to this share (50, 0: never); whole_below=PERCENT: but only while the
    /// share of free space in whole free units is smaller (50). wear=on|off: rotate allocation over
    /// all space (off). Example: -o prealloc=on,null_files=64-1000,collect_above=90.
    #[arg(short, long = "options", value_name = "OPTIONS", value_parser = mount_options())]
    pub options: Vec<String>,
    /// Open the pool read-only; the mount is read-only too.
    #[arg(long)]
    pub read_only: bool,
    /// Threads that answer requests and scan the pool. Default: one per CPU, 2 to 16.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub threads: Option<u16>,
    /// Send every request to the server: the kernel caches no names, attributes or pages.
    #[arg(long)]
    pub no_cache: bool,
    /// Emulate slower memory, for example read=2x,write=4x,line=100ns,bandwidth=800MB/s, or a named
    /// one: pcm, pcm-rows, stt-mram, reram, nvdimm-n, cxl-near, cxl-far, optane.
    #[arg(long, value_name = "SPEC")]
    pub emulate: Option<pmem::Emulation>,
    /// Record the server's accesses to the pool in FILE, for `keepstone simulate memory`. Programs
    /// cannot bypass the mount then (exclusive).
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,
    /// Write back data that no program has synced after this many seconds; 0: never. Default: 30.
    #[arg(long, value_name = "SECONDS")]
    pub data_flush_interval: Option<u32>,
    /// Report readiness on stdout and leave the session (`mount` uses this itself).
    #[arg(long, hide = true)]
    pub daemon: bool,
}

/// `keepstone umount`
#[derive(Debug, Args)]
pub struct UmountArgs {
    /// The mount point of a pool; or the pool: its path, UUID=… or LABEL=….
    pub dir: PathBuf,
    /// Hide the mount now, and end it when its last user is gone. Do not wait for that.
    #[arg(long)]
    pub lazy: bool,
}

/// The argument of commands that take only a pool.
#[derive(Debug, Args)]
pub struct PoolArgs {
    /// The pool: its path, UUID=… or LABEL=…, or its mount point.
    pub pool: PathBuf,
}

/// `keepstone info`
#[derive(Debug, Args)]
pub struct InfoArgs {
    /// The pool: its path, UUID=… or LABEL=…, or its mount point.
    pub pool: PathBuf,
    /// Print UUID and label as properties of a device (the rule of udev uses this).
    #[arg(long, hide = true)]
    pub udev: bool,
}

/// `keepstone clone`
#[derive(Debug, Args)]
pub struct CloneArgs {
    /// The file or directory, in a mounted pool.
    #[arg(value_name = "SRC")]
    pub source: PathBuf,
    /// The name of the clone, which must not exist, in the same pool.
    #[arg(value_name = "DST")]
    pub destination: PathBuf,
}

/// `keepstone clone-pool`
#[derive(Debug, Args)]
pub struct ClonePoolArgs {
    /// The pool: its path, UUID=… or LABEL=….
    pub pool: PathBuf,
    /// The file of the copy, which must not exist. It can be on another file system.
    pub copy: PathBuf,
    /// A label for the copy, of at most 64 bytes. Default: that of the pool.
    #[arg(long)]
    pub label: Option<String>,
}

/// `keepstone export`
#[derive(Debug, Args)]
pub struct ExportArgs {
    /// The pool, which is not in use: its path, UUID=… or LABEL=…; or a snapshot, or a branch that
    /// is not in use: POOL@NAME.
    pub pool: PathBuf,
    /// The file of the archive. Default: stdout.
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

/// `keepstone resize`
#[derive(Debug, Args)]
pub struct ResizeArgs {
    /// The pool: its path, UUID=… or LABEL=…, or its mount point.
    pub pool: PathBuf,
    /// The new size in bytes, or with K, M, G, T (powers of 1024). Rounded down to 64 KiB.
    #[arg(value_parser = crate::size::parse)]
    pub size: u64,
}

/// `keepstone check`
#[derive(Debug, Args)]
pub struct CheckArgs {
    /// The pool: its path, UUID=… or LABEL=….
    pub pool: PathBuf,
    /// Repair what can be repaired without losing data.
    #[arg(long)]
    pub repair: bool,
    /// Threads. Default: one per CPU, 2 to 16.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub threads: Option<u16>,
}

/// `keepstone stats`
#[derive(Debug, Args)]
pub struct StatsArgs {
    /// The mount point of a pool; or the pool: its path, UUID=… or LABEL=….
    pub dir: PathBuf,
    /// Print in Prometheus' text format.
    #[arg(long)]
    pub prometheus: bool,
}

/// `keepstone top`
#[derive(Debug, Args)]
pub struct TopArgs {
    /// Show only these: mount points, pools, devices, sockets, names of exports, process IDs.
    /// Default: everything.
    #[arg(value_name = "TARGET")]
    pub targets: Vec<String>,
    /// Time between two tables, in seconds.
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "1")]
    pub interval: Duration,
    /// End after N tables. With 1, show the totals since each server started, at once.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// Print the counters of all servers once, in Prometheus' text format.
    #[arg(long, conflicts_with_all = ["interval", "count"])]
    pub prometheus: bool,
}

/// Parses a time between 0.1 s and a day.
fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.1..=86400.0).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| "write 0.1 to 86400 seconds".to_owned())
}

/// `keepstone doctor`
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// A pool, the mount point of one, a program, or a unit of systemd (NAME.service), to examine
    /// as well.
    pub target: Option<PathBuf>,
}

/// `keepstone generate`
#[derive(Debug, Args)]
pub struct GenerateArgs {
    /// Directory for the files; it is created.
    pub dir: PathBuf,
}
