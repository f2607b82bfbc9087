//! The options of `mount -o`.

use ::pool::{Consistency, DurabilityMode, PastCache, WritePolicy};
use anyhow::{Context as _, Result, anyhow, bail};
use fuse::{MountAccess, MountFlags};
use pool::Prealloc;
use std::path::PathBuf;

use super::prealloc;
use super::recording;
use super::saved::PoolLife;
use super::snapshots::SnapDir;

/// Whether other processes may use the pool directly while it is mounted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sharing {
    /// Allowed if it is possible and costs the mount nothing.
    #[default]
    Possible,
    /// Required: without it the mount fails (`direct`).
    Required,
    /// Not allowed (`exclusive`).
    Refused,
}

/// The options that `-o` has set.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Flags for the kernel.
    pub flags: MountFlags,
    /// Flags among [`LIFTABLE`] that the user has cleared by name, so that the mount does not get
    /// them by default.
    pub lifted: MountFlags,
    /// Users that may use the mount; `None`: all if root mounts it, else only its owner.
    pub access: Option<MountAccess>,
    /// Threads; `None`: one per CPU.
    pub threads: Option<u16>,
    /// Whether the kernel may cache nothing.
    pub no_cache: bool,
    /// Whether the kernel asks the server to open files even if the mount is the only writer.
    pub ask_open: bool,
    /// Whether the kernel may hold writes back until they are synced.
    pub writeback: bool,
    /// The time at which operations are durable.
    pub durability: DurabilityMode,
    /// Whether other processes may use the pool directly.
    pub sharing: Sharing,
    /// Emulated speed.
    pub emulation: Option<pmem::Emulation>,
    /// The file to record the server's accesses to the pool in.
    pub record: Option<PathBuf>,
    /// Settings of pre-allocation.
    pub prealloc: Prealloc,
    /// How overwrites reach the medium.
    pub write_policy: WritePolicy,
    /// The shortest write and file for which `auto` bypasses the CPU cache.
    pub past_cache: PastCache,
    /// Interval between two checks for deferred work, in milliseconds.
    pub collect_every_ms: u64,
    /// Pause between two steps of deferred work, in milliseconds.
    pub collect_pause_ms: u64,
    /// Whether names and attributes are consistent after a power failure.
    pub consistency: Consistency,
    /// Seconds after which unsynced contents are written back; 0: never.
    pub data_flush_interval: u32,
    /// Whether the snapshots of the pool can be read below its root.
    pub snapdir: SnapDir,
    /// Whether to change the flags of an existing mount.
    pub remount: bool,
    /// The steps before and after the mount that make and save the pool.
    pub life: PoolLife,
}

/// Default interval of write-back, in seconds. It equals the age at which the kernel writes back
/// dirty pages (`vm.dirty_expire_centisecs`), so that programs lose no more than on other file
/// systems (SCMFS §3.6).
pub const FLUSH_INTERVAL_S: u32 = 30;

/// By default the collector runs once a second, and waits for 10 ms between two steps.
const COLLECT_EVERY_MS: u64 = 1000;
const COLLECT_PAUSE_MS: u64 = 10;

impl Default for Options {
    fn default() -> Self {
        Self {
            flags: MountFlags::empty(),
            lifted: MountFlags::empty(),
            access: None,
            threads: None,
            no_cache: false,
            ask_open: false,
            writeback: false,
            durability: DurabilityMode::default(),
            sharing: Sharing::default(),
            emulation: None,
            record: None,
            prealloc: Prealloc::default(),
            write_policy: WritePolicy::default(),
            past_cache: PastCache::default(),
            collect_every_ms: COLLECT_EVERY_MS,
            collect_pause_ms: COLLECT_PAUSE_MS,
            consistency: Consistency::default(),
            data_flush_interval: FLUSH_INTERVAL_S,
            snapdir: SnapDir::default(),
            remount: false,
            life: PoolLife::default(),
        }
    }
}

/// Options that set (`true`) or clear a flag.
const FLAGS: &[(&str, bool, MountFlags)] = &[
    ("ro", true, MountFlags::RDONLY),
    ("rw", false, MountFlags::RDONLY),
    ("nosuid", true, MountFlags::NOSUID),
    ("suid", false, MountFlags::NOSUID),
    ("nodev", true, MountFlags::NODEV),
    ("dev", false, MountFlags::NODEV),
    ("noexec", true, MountFlags::NOEXEC),
    ("exec", false, MountFlags::NOEXEC),
    ("sync", true, MountFlags::SYNCHRONOUS),
    ("async", false, MountFlags::SYNCHRONOUS),
    ("dirsync", true, MountFlags::DIRSYNC),
    ("noatime", true, MountFlags::NOATIME),
    ("atime", false, MountFlags::NOATIME),
    ("nodiratime", true, MountFlags::NODIRATIME),
    ("diratime", false, MountFlags::NODIRATIME),
    ("relatime", true, MountFlags::RELATIME),
    ("norelatime", false, MountFlags::RELATIME),
    ("strictatime", true, MountFlags::STRICTATIME),
    ("nostrictatime", false, MountFlags::STRICTATIME),
    ("lazytime", true, MountFlags::LAZYTIME),
    ("nolazytime", false, MountFlags::LAZYTIME),
    ("nosymfollow", true, MountFlags::NOSYMFOLLOW),
    ("symfollow", false, MountFlags::NOSYMFOLLOW),
    ("silent", true, MountFlags::SILENT),
    ("loud", false, MountFlags::SILENT),
];

/// Flags that a mount may get by default, unless the user lifts them.
pub const LIFTABLE: MountFlags = MountFlags::NOSUID
    .union(MountFlags::NODEV)
    .union(MountFlags::NOEXEC)
    .union(MountFlags::NOSYMFOLLOW);

/// Flags that exclude each other.
const ACCESS_TIMES: MountFlags =
    MountFlags::NOATIME.union(MountFlags::RELATIME).union(MountFlags::STRICTATIME);

/// Options of fstab that concern only `mount(8)` or `systemd`, or have no effect here.
const IGNORED: &[&str] = &[
    "defaults",
    "auto",
    "noauto",
    "user",
    "nouser",
    "users",
    "owner",
    "group",
    "nofail",
    "_netdev",
    "default_permissions",
    // `/proc/mounts` shows these, and `mount -o remount` passes them on.
    "user_id",
    "group_id",
    "max_read",
    "",
];

impl Options {
    /// Adds a list of options. A later option overrides an earlier one. `sloppy` tolerates unknown
    /// options.
    pub fn add(&mut self, list: &str, sloppy: bool) -> Result<()> {
        list.split(',').try_for_each(|option| self.add_one(option, sloppy))
    }

    fn add_one(&mut self, option: &str, sloppy: bool) -> Result<()> {
        if let Some((_, set, flag)) = FLAGS.iter().find(|(name, ..)| *name == option) {
            if *set && ACCESS_TIMES.contains(*flag) {
                self.flags -= ACCESS_TIMES;
            }
            self.flags.set(*flag, *set);
            self.lifted.set(*flag & LIFTABLE, !set);
            return Ok(());
        }
        let (name, value) = option.split_once('=').unwrap_or((option, ""));
        match name {
            "remount" => self.remount = true,
            "allow_other" => self.access = Some(MountAccess::All),
            "no_cache" => self.no_cache = true,
            "ask_open" => self.ask_open = true,
            // The default.
            "no_open" => self.ask_open = false,
            "writeback" => self.writeback = true,
            "durability" => self.durability = chosen(option, value)?,
            "direct" => self.sharing = Sharing::Required,
            "exclusive" => self.sharing = Sharing::Refused,
            "threads" => {
                let count = value.parse().ok().filter(|n| (1..=256).contains(n));
                let wrong = || format!("option `{option}`: needs a number from 1 to 256");
                self.threads = Some(count.with_context(wrong)?);
            }
            "emulate" => self.emulation = Some(value.replace('+', ",").parse()?),
            "record" => self.record = Some(recording::file(value)?),
            "snapdir" => self.snapdir = chosen(option, value)?,
            "write_policy" => self.write_policy = chosen(option, value)?,
            "consistency" => self.consistency = chosen(option, value)?,
            "past_cache" => self.past_cache.write = prealloc::number(name, value)?,
            "past_cache_file" => self.past_cache.file = prealloc::number(name, value)?,
            "collect_every" => self.collect_every_ms = milliseconds(name, value)?,
            "collect_pause" => self.collect_pause_ms = milliseconds(name, value)?,
            "data_flush_interval" => {
                let wrong = || format!("option `{option}`: needs a number of seconds");
                self.data_flush_interval = value.parse().with_context(wrong)?;
            }
            "fsname" | "subtype" | "comment" => {}
            _ if self.life.set(name, value)? => {}
            _ if prealloc::set(&mut self.prealloc, name, value)? => {}
            _ if IGNORED.contains(&name) || name.starts_with("x-") || sloppy => {}
            _ => bail!("mount option `{option}`: unknown; see `keepstone mount --help`"),
        }
        Ok(())
    }

    /// Returns the list that [`add`](Self::add) turns into the same options.
    pub fn to_list(&self) -> String {
        let is_asked = |set: bool, flag| if set { self.flags } else { self.lifted }.contains(flag);
        let asked = FLAGS.iter().filter(|(_, set, flag)| is_asked(*set, *flag));
        let mut words: Vec<String> = asked.map(|(name, ..)| (*name).to_owned()).collect();
        if self.access == Some(MountAccess::All) {
            words.push("allow_other".to_owned());
        }
        if self.no_cache {
            words.push("no_cache".to_owned());
        }
        if self.ask_open {
            words.push("ask_open".to_owned());
        }
        if self.writeback {
            words.push("writeback".to_owned());
        }
        if self.durability != DurabilityMode::default() {
            words.push(format!("durability={}", self.durability));
        }
        if self.snapdir == SnapDir::Off {
            words.push("snapdir=off".to_owned());
        }
        match self.sharing {
            Sharing::Possible => {}
            Sharing::Required => words.push("direct".to_owned()),
            Sharing::Refused => words.push("exclusive".to_owned()),
        }
        words.extend(self.of_scmfs());
        words.extend(self.threads.map(|n| format!("threads={n}")));
        words
            .extend(self.emulation.map(|e| format!("emulate={}", e.to_string().replace(',', "+"))));
        words.extend(self.record.as_ref().map(|file| format!("record={}", file.display())));
        words.extend(self.life.of_server());
        words.join(",")
    }

    /// Returns the options that only pools of SCMFS have and that differ from the defaults.
    pub fn of_scmfs(&self) -> Vec<String> {
        let mut words = Vec::new();
        if self.write_policy != WritePolicy::default() {
            words.push(format!("write_policy={}", self.write_policy));
        }
        if self.consistency != Consistency::default() {
            words.push(format!("consistency={}", self.consistency));
        }
        if self.data_flush_interval != FLUSH_INTERVAL_S {
            words.push(format!("data_flush_interval={}", self.data_flush_interval));
        }
        let usual = PastCache::default();
        let numbers = [
            ("past_cache", self.past_cache.write, usual.write),
            ("past_cache_file", self.past_cache.file, usual.file),
            ("collect_every", self.collect_every_ms, COLLECT_EVERY_MS),
            ("collect_pause", self.collect_pause_ms, COLLECT_PAUSE_MS),
        ];
        let chosen = numbers.iter().filter(|(_, value, usual)| value != usual);
        words.extend(chosen.map(|(name, value, _)| format!("{name}={value}")));
        words.extend(prealloc::to_words(&self.prealloc));
        words
    }

    /// Fails if an option was requested that the mount of a cache cannot have.
    pub fn for_cache(&self) -> Result<()> {
        let flags = Self { flags: self.flags, lifted: self.lifted, ..Self::default() };
        if *self != flags || !(LIFTABLE | MountFlags::RDONLY).contains(self.flags) {
            bail!(
                "mount options of a cache are ro, nosuid, nodev, noexec, nosymfollow, suid, dev, exec and symfollow"
            );
        }
        Ok(())
    }

    /// Makes the mount read-only if `asked`.
    pub fn read_only(&mut self, asked: bool) {
        self.flags.set(MountFlags::RDONLY, asked || self.is_read_only());
    }

    /// Returns whether the mount will be read-only.
    pub fn is_read_only(&self) -> bool {
        self.flags.contains(MountFlags::RDONLY)
    }
}

/// Parses the value of an option with a fixed set of values.
fn chosen<T: std::str::FromStr<Err = String>>(option: &str, value: &str) -> Result<T> {
    value.parse().map_err(|why| anyhow!("option `{option}`: {why}"))
}

/// Parses a number of milliseconds above zero.
fn milliseconds(name: &str, value: &str) -> Result<u64> {
    let found = prealloc::number(name, value).ok().filter(|n| *n > 0);
    found.with_context(|| format!("option `{name}={value}`: needs a number of milliseconds"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(list: &str) -> Result<Options> {
        let mut options = Options::default();
        options.add(list, false)?;
        Ok(options)
    }

    #[test]
    fn what_fstab_writes() {
        let options = parsed("rw,nosuid,nodev,nofail,x-systemd.automount,threads=4").unwrap();
        assert_eq!(options.flags, MountFlags::NOSUID | MountFlags::NODEV);
        assert_eq!(options.threads, Some(4));
        assert_eq!(parsed("defaults,_netdev").unwrap(), Options::default());
    }

    #[test]
    fn the_last_one_wins() {
        assert!(!parsed("ro,rw").unwrap().is_read_only());
        assert!(parsed("rw,ro").unwrap().is_read_only());
        assert_eq!(parsed("strictatime,noatime").unwrap().flags, MountFlags::NOATIME);
        assert_eq!(parsed("noatime,relatime").unwrap().flags, MountFlags::RELATIME);
    }

    #[test]
    fn emulation_within_a_list() {
        let options = parsed("emulate=read=2x+write=4x,ro").unwrap();
        assert_eq!(options.emulation, Some("read=2x,write=4x".parse().unwrap()));
        assert!(options.is_read_only());
    }

    #[test]
    fn a_list_comes_back() {
        let list = "ro,nodev,suid,noatime,allow_other,no_cache,no_open,writeback,durability=ordered,snapdir=off,direct,write_policy=through,consistency=none,\
                    data_flush_interval=7,threads=3,prealloc=off,past_cache=512,past_cache_file=4096,collect_every=50,\
                    collect_pause=1,emulate=read=2x+line=100ns";
        let options = parsed(list).unwrap();
        assert_eq!((options.write_policy, options.data_flush_interval), (WritePolicy::Through, 7));
        assert_eq!(options.past_cache, PastCache { write: 512, file: 4096 });
        assert_eq!((options.collect_every_ms, options.collect_pause_ms), (50, 1));
        assert_eq!(parsed(&options.to_list()).unwrap(), options);
        assert_eq!(Options::default().to_list(), "");
    }

    #[test]
    fn unknown_options_are_named() {
        let err = parsed("ro,colour=blue").unwrap_err();
        assert!(err.to_string().contains("colour=blue"));
        assert!(Options::default().add("colour=blue", true).is_ok());
        assert!(parsed("threads=0").is_err());
        let err = parsed("write_policy=back").unwrap_err();
        assert!(err.to_string().contains("auto, cached, through"), "{err}");
        let err = parsed("durability=writeback").unwrap_err();
        assert!(err.to_string().contains("`ordered` costs no more"), "{err}");
        assert!(parsed("durability=").is_err());
        assert!(parsed("snapdir=shown").is_err());
        assert!(parsed("consistency=data").is_err());
        assert!(parsed("data_flush_interval=often").is_err());
        assert!(parsed("past_cache=much").is_err());
        assert!(parsed("collect_every=0").is_err(), "it would never rest");
    }
}
