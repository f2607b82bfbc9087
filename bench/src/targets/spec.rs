//! The grammar of targets: `[NAME=]KIND[:PATH][,OPTION]…`.

use engines::Layout;
use std::path::PathBuf;
use std::str::FromStr;

/// Directory of pools for which no other is named.
const IN_MEMORY: &str = "/dev/shm";
/// Default size of pools, in bytes.
const POOL_BYTES: u64 = 1 << 30;

/// The kind of a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A new directory in this one.
    Dir(PathBuf),
    /// A pool: a new one in a directory, or one that exists, in which a new directory is made.
    Pool(PathBuf),
    /// A new directory in this one, with a new pool as its cache.
    Cache(PathBuf),
    /// A new ext4 on a new block device of `keepstone bdev`, whose pool is in this directory.
    Bdev(PathBuf),
    /// A new ext4 on a loop device on a file in this directory.
    Loop(PathBuf),
    /// A device, or a file as if it were one.
    Device(PathBuf),
}

/// The way of a target's calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// By the kernel.
    Kernel,
    /// Under `keepstone run`.
    Direct,
}

/// A target as the user writes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    /// Its name in reports.
    pub name: String,
    /// Its kind and place.
    pub kind: Kind,
    /// The way of its calls.
    pub way: Way,
    /// The layout of a new pool.
    pub layout: Layout,
    /// The size of a new pool or device, in bytes.
    pub bytes: u64,
    /// Options of the mount of a pool.
    pub options: Option<String>,
    /// A device may be overwritten.
    pub overwrite: bool,
}

impl FromStr for Spec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // A name has none of the characters that begin a path or an option.
        let named = text.split_once('=').filter(|(name, _)| !name.contains([':', ',', '/']));
        let rest = named.map_or(text, |(_, rest)| rest);
        let mut words = rest.split(',');
        let place = words.next().unwrap_or_default();
        let (kind, path) = place.split_once(':').map_or((place, None), |(k, p)| (k, Some(p)));
        let path = path.filter(|path| !path.is_empty()).map(PathBuf::from);
        let needed = || path.clone().ok_or(format!("{text}: {kind} needs a path: {kind}:PATH"));
        let or_memory = || path.clone().unwrap_or_else(|| IN_MEMORY.into());
        let (kind, way) = match kind {
            "dir" => (Kind::Dir(needed()?), Way::Kernel),
            "tmpfs" => (Kind::Dir(or_memory()), Way::Kernel),
            "pool" => (Kind::Pool(or_memory()), Way::Direct),
            "cache" => (Kind::Cache(needed()?), Way::Direct),
            "bdev" => (Kind::Bdev(or_memory()), Way::Kernel),
            "loop" => (Kind::Loop(or_memory()), Way::Kernel),
            "device" => (Kind::Device(needed()?), Way::Kernel),
            _ => {
                return Err(format!(
                    "{text}: a target is dir:DIR, tmpfs, pool, cache:DIR, bdev, loop or device:FILE"
                ));
            }
        };
        let mut spec = Self {
            name: named.map_or(rest, |(name, _)| name).to_owned(),
            kind,
            way,
            layout: Layout::ALL[0],
            bytes: POOL_BYTES,
            options: None,
            overwrite: false,
        };
        words.try_for_each(|word| spec.set(word).map_err(|why| format!("{text}: {why}")))?;
        Ok(spec)
    }
}

impl Spec {
    /// Returns the words of `keepstone mount` for its options.
    pub fn mount_options(&self) -> Vec<String> {
        let direct = (self.way == Way::Direct).then(|| "direct".to_owned());
        let options: Vec<String> = self.options.iter().cloned().chain(direct).collect();
        match options.is_empty() {
            true => Vec::new(),
            false => vec!["-o".to_owned(), options.join(",")],
        }
    }

    /// Applies an option.
    fn set(&mut self, word: &str) -> Result<(), String> {
        let is_pool = matches!(self.kind, Kind::Pool(_));
        let is_sized = !matches!(self.kind, Kind::Dir(_) | Kind::Device(_));
        let has_ways = matches!(self.kind, Kind::Dir(_) | Kind::Pool(_) | Kind::Cache(_));
        match (word.split_once('='), word) {
            (None, "mount" | "kernel") if has_ways => self.way = Way::Kernel,
            (None, "direct") if has_ways => self.way = Way::Direct,
            (None, "overwrite") if matches!(self.kind, Kind::Device(_)) => self.overwrite = true,
            (Some(("layout", name)), _) if is_pool => {
                self.layout = Layout::named(name).ok_or(format!("{name}: no such layout"))?;
            }
            (Some(("size", text)), _) if is_sized => self.bytes = bytes(text)?,
            // Commas separate targets' options, so that `+` separates those of the mount.
            (Some(("o", options)), _) if is_pool => self.options = Some(options.replace('+', ",")),
            _ => return Err(format!("{word}: not an option of this kind of target")),
        }
        Ok(())
    }
}

/// Parses a number of bytes, with K, M, G or T.
pub fn bytes(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match &text[digits.len()..] {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => return Err(format!("{text}: write bytes, or a number with K, M, G or T")),
    };
    let number: u64 = digits.parse().map_err(|_| format!("{text}: not a number of bytes"))?;
    number.checked_mul(1 << shift).ok_or_else(|| format!("{text}: too large"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Spec, String> {
        text.parse()
    }

    #[test]
    fn targets_have_kinds_places_and_options() {
        let pool = parse("pool:/mnt/pmem,layout=scmfs,size=2G,mount,o=durability=ordered").unwrap();
        assert_eq!(pool.kind, Kind::Pool("/mnt/pmem".into()));
        assert_eq!((pool.layout, pool.bytes, pool.way), (Layout::Scmfs, 2 << 30, Way::Kernel));
        assert_eq!(pool.options.as_deref(), Some("durability=ordered"));
        assert_eq!(parse("tmpfs").unwrap().kind, Kind::Dir("/dev/shm".into()));
        let named = parse("disk=dir:/srv/a=b").unwrap();
        assert_eq!((named.name.as_str(), named.kind), ("disk", Kind::Dir("/srv/a=b".into())));
        assert_eq!(parse("dir:/srv/a=b").unwrap().name, "dir:/srv/a=b");
        assert_eq!(parse("cache:/srv").unwrap().way, Way::Direct);
        assert!(parse("device:/dev/vdb,overwrite").unwrap().overwrite);
    }

    #[test]
    fn wrong_targets_name_the_fault() {
        let wrong = ["", "dir", "disk:/srv", "tmpfs,overwrite", "pool,layout=ext4", "pool,size=1X"];
        for text in wrong {
            let why = parse(text).unwrap_err();
            assert!(why.starts_with(text) && why.contains(": "), "{why}");
        }
        assert!(parse("pool,size=99999999999T").is_err());
    }
}
