//! The helper of `mount(8)`: `mount -t fuse.keepstone POOL DIR -o …`, and lines of fstab.
//!
//! The helper is this program under the name `mount.fuse.keepstone` in `/sbin`, called as
//! `mount.fuse.keepstone POOL DIR [-sfnv] [-N NAMESPACE] [-o OPTIONS] [-t TYPE]`. The exit status
//! is that of `mount(8)`: 0 done, 1 wrong usage, 32 failed.
//!
//! The option `attach=DIR` makes the pool the cache of a directory or an object store, as
//! `keepstone attach` does. [`CACHE_OPTIONS`] are then options, too.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use ::pool::DurabilityMode;
use anyhow::{Context as _, Result, bail};

use super::options::Options;
use super::{MountPlan, absolute_dir, background, flags};
use crate::tags::{Tag, path_of_fstab};
use crate::{attach, output, pool, stats};

const EXIT_USAGE: u8 = 1;
const EXIT_FAILED: u8 = 32;

/// Options of `keepstone attach` that are mount options with `attach=DIR`; with `_` for `-`.
const CACHE_OPTIONS: [&str; 14] = [
    "create",
    "size",
    "thin",
    "thick",
    "data",
    "fsync",
    "max_age",
    "watch",
    "policy",
    "write_through",
    "threads",
    "store_option",
    "chunk_size",
    "lease",
];

/// Acts as the helper if called by that name.
pub fn run_as_helper(argv: &[OsString]) -> Option<ExitCode> {
    let name = Path::new(argv.first()?).file_name()?.to_str()?;
    if !name.starts_with("mount.") {
        return None;
    }
    let request = match ControlRequest::parse(&argv[1..]) {
        Ok(request) => request,
        Err(err) => {
            output::error(&err, false);
            return Some(ExitCode::from(EXIT_USAGE));
        }
    };
    Some(match request.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(err) => {
            output::error(&err, false);
            ExitCode::from(EXIT_FAILED)
        }
    })
}

#[derive(Debug, Default)]
struct ControlRequest {
    pool: PathBuf,
    dir: PathBuf,
    options: Options,
    /// The directory or object store that the pool caches, with further options.
    cache: Option<CacheOptions>,
    /// Whether the path of the pool had a prefix.
    is_prefixed: bool,
    /// `mount --fake`: everything but the mount.
    fake: bool,
}

/// The mount options of a cache.
#[derive(Debug, Default, PartialEq, Eq)]
struct CacheOptions {
    /// The directory or object store.
    below: OsString,
    /// Words of the command line of `keepstone attach`.
    words: Vec<OsString>,
}

impl CacheOptions {
    /// Takes the options of a cache out of a list; `None` if the list has no `attach=DIR`.
    fn take(list: &str) -> (Option<Self>, String) {
        let Some(below) = list.split(',').find_map(|option| option.strip_prefix("attach=")) else {
            return (None, list.to_owned());
        };
        let name = |option: &&str| option.split('=').next().unwrap_or_default().to_owned();
        let is_own = |option: &&str| CACHE_OPTIONS.contains(&name(option).as_str());
        let others = list.split(',').filter(|option| !option.starts_with("attach="));
        let (own, rest): (Vec<&str>, Vec<_>) = others.partition(is_own);
        let word = |option: &str| match option.split_once('=') {
            Some((name, value)) => format!("--{}={value}", name.replace('_', "-")).into(),
            None => format!("--{}", option.replace('_', "-")).into(),
        };
        let words = own.into_iter().map(word).collect();
        (Some(Self { below: below.into(), words }), rest.join(","))
    }

    /// Attaches `pool`, mounted on `dir`.
    fn attach(self, pool: PathBuf, dir: PathBuf, options: &Options) -> Result<()> {
        let mut words: Vec<OsString> = vec!["keepstone".into(), "attach".into()];
        words.extend(self.words);
        let list = options.to_list();
        if !list.is_empty() {
            words.push(format!("-o{list}").into());
        }
        words.extend(["--".into(), pool.into(), self.below, dir.into()]);
        attach::run_for_mount(&words)
    }
}

impl ControlRequest {
    fn parse(args: &[OsString]) -> Result<Self> {
        let mut request = Self::default();
        let mut paths = Vec::new();
        let mut lists = Vec::new();
        let mut sloppy = false;
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            match arg.to_str() {
                Some("-o") => lists.push(args.next().context("-o: where are the options?")?),
                Some("-N" | "-t") => drop(args.next()),
                Some(flags) if flags.starts_with('-') => {
                    for flag in flags.chars().skip(1) {
                        match flag {
                            'f' => request.fake = true,
                            's' => sloppy = true,
                            'n' | 'v' => {}
                            _ => bail!("-{flag}: unknown flag"),
                        }
                    }
                }
                _ => paths.push(PathBuf::from(arg)),
            }
        }
        let lists: Vec<_> = lists.iter().map(|list| list.to_string_lossy()).collect();
        let (cache, rest) = CacheOptions::take(&lists.join(","));
        request.options.add(&rest, sloppy)?;
        request.cache = cache;
        let [pool, dir] = <[PathBuf; 2]>::try_from(paths)
            .map_err(|_| anyhow::anyhow!("usage: mount.fuse.keepstone POOL DIR [-o OPTIONS]"))?;
        let prefixed = path_of_fstab(&pool).map(Path::to_owned);
        request.is_prefixed = prefixed.is_some();
        Ok(Self { pool: prefixed.unwrap_or(pool), dir, ..request })
    }

    fn run(self) -> Result<()> {
        if self.fake {
            return Ok(());
        }
        if self.options.remount {
            let dir = absolute_dir(&self.dir)?;
            if !self.options.is_read_only() {
                check_writable(&dir)?;
            }
            check_durability(&dir, self.options.durability)?;
            let mount = fuse::mount_at(&dir)?;
            let kept = mount.as_ref().map_or(fuse::MountFlags::empty(), fuse::MountEntry::flags);
            let pool = mount.map_or(self.pool, |mount| pool::of_source(mount.source));
            let (flags, notice) = flags::of_remount(&pool, kept, &self.options)?;
            notice.iter().for_each(output::notice);
            fuse::remount(&dir, flags)
                .with_context(|| format!("{}: cannot remount", dir.display()))?;
            // Once the server has answered, programs with direct access follow the new flags, too.
            // If it does not answer (a user's own mount, a dead server), the flags have changed
            // nevertheless.
            let _ = stats::read_brief(&dir, stats::ANSWER_WITHIN);
            return Ok(());
        }
        if self.is_mounted()? {
            return Ok(());
        }
        if let Some(cache) = self.cache {
            return cache.attach(self.pool, self.dir, &self.options);
        }
        self.options.life.begin(&self.pool)?;
        let plan = MountPlan::resolve(&self.pool, &self.dir, self.options)?;
        let ready = background::start(&plan)?;
        ready.notices.iter().for_each(output::notice);
        Ok(())
    }

    /// Returns whether the pool, named by a tag or a path with a prefix, is mounted on the
    /// directory already. `mount -a` recognizes mounts by their source, which is the bare path of
    /// the pool.
    fn is_mounted(&self) -> Result<bool> {
        let tag = Tag::parse(&self.pool);
        if tag.is_none() && !self.is_prefixed {
            return Ok(false);
        }
        let mounted = fuse::mount_at(&absolute_dir(&self.dir)?)?;
        let Some(mounted) = mounted.filter(fuse::MountEntry::is_keepstone) else {
            return Ok(false);
        };
        if fuse::is_stale(&mounted.dir)? {
            return Ok(false);
        }
        let pool = tag.map_or_else(|| pool::absolute(&self.pool), |tag| tag.find())?;
        Ok(pool == mounted.source)
    }
}

/// Fails if the server has opened the pool read-only, which no flag of the mount can change.
/// Succeeds if the server does not answer.
fn check_writable(dir: &Path) -> Result<()> {
    if stats::ask_one(dir).is_ok_and(|stats| stats["read_only"] == true) {
        bail!(
            "{0}: its pool is open read-only; unmount it with `keepstone umount {0}` and mount it again",
            dir.display()
        );
    }
    Ok(())
}

/// Fails if the pool is mounted in another mode than the one that was asked for. Succeeds if the
/// server does not answer.
fn check_durability(dir: &Path, asked: DurabilityMode) -> Result<()> {
    let is_other = |stats: serde_json::Value| {
        stats["durability"].as_str().is_some_and(|mode| mode != asked.to_string())
    };
    if asked != DurabilityMode::default() && stats::ask_one(dir).is_ok_and(is_other) {
        bail!(
            "{0}: durability={asked} is for a new mount; unmount it with `keepstone umount {0}` and mount it again",
            dir.display()
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(args: &[&str]) -> Result<ControlRequest> {
        ControlRequest::parse(&args.iter().map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn as_mount_calls_it() {
        let request = parsed(&["/dev/shm/p", "/mnt", "-n", "-o", "rw,noatime"]).unwrap();
        assert_eq!((request.pool, request.dir), ("/dev/shm/p".into(), "/mnt".into()));
        assert_eq!(request.options.flags, fuse::MountFlags::NOATIME);
        let request = parsed(&["p", "/mnt", "-sfv", "-o", "what", "-t", "fuse.keepstone"]).unwrap();
        assert!(request.fake);
        assert!(parsed(&["p", "/mnt", "-o", "what"]).is_err());
        assert!(parsed(&["p"]).is_err());
        let named = |name| {
            let request = parsed(&[name, "/mnt"]).unwrap();
            (request.pool.to_str().unwrap().to_owned(), request.is_prefixed)
        };
        assert_eq!(named("keepstone:/dev/shm/p"), ("/dev/shm/p".to_owned(), true));
        assert_eq!(named("keepstone:LABEL=p"), ("keepstone:LABEL=p".to_owned(), false));
    }

    #[test]
    fn options_of_a_cache_are_taken_out() {
        let (cache, rest) =
            CacheOptions::take("rw,attach=/srv/data,max_age=5,nosuid,write_through,x-a=b");
        let cache = cache.unwrap();
        assert_eq!((cache.below.to_str(), &*rest), (Some("/srv/data"), "rw,nosuid,x-a=b"));
        assert_eq!(cache.words, ["--max-age=5", "--write-through"]);
        assert_eq!(CacheOptions::take("rw,threads=2"), (None, "rw,threads=2".to_owned()));
        let request = parsed(&["p", "/mnt", "-o", "attach=s3://bucket/tree,lease=9"]).unwrap();
        assert_eq!(request.cache.unwrap().words, ["--lease=9"]);
    }
}
