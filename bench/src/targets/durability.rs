//! The durability of what a target has acknowledged, so that no number stands alone: a file system
//! that loses everything with the power is faster than one that does not.

use super::cases::{Case, Changes};
use crate::ramdisk::run;
use anyhow::Result;
use engines::Layout;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// The time at which work is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Promise {
    /// When a call returns.
    OnReturn,
    /// Names when a call returns, contents after a sync.
    NamesOnReturn,
    /// After a sync.
    OnSync,
    /// Never: it is lost with the power.
    Never,
    /// The tool cannot find out.
    Unknown,
}

/// The durability of a target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Durability {
    /// The time at which work is durable.
    pub promise: Promise,
    /// The medium, in a sentence.
    pub medium: String,
}

/// The state of the work of a case when its operations have returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    /// Nothing changes.
    Reads,
    /// It survives a power failure.
    Durable,
    /// A power failure before the next sync can lose it.
    NotSynced,
    /// It is in DRAM.
    Dram,
    /// Unknown.
    Unknown,
}

impl Class {
    /// Returns the word of tables.
    pub fn word(self) -> &'static str {
        match self {
            Self::Reads => "–",
            Self::Durable => "durable",
            Self::NotSynced => "not synced",
            Self::Dram => "DRAM",
            Self::Unknown => "unknown",
        }
    }

    /// Explains the words of tables.
    pub const LEGEND: &str = "durable: survives a power failure when the operation has returned. \
        not synced: a power failure before the next fsync can lose it. DRAM: lost with the power, \
        synced or not. –: the case only reads.";
}

impl Durability {
    /// Finds that of a directory. `keepstone` describes pools.
    pub fn of_dir(keepstone: &Path, dir: &Path) -> Result<Self> {
        let dir = dir.canonicalize()?;
        let holds = |mount: &fuse::MountEntry| dir.starts_with(&mount.dir);
        // The longest mount point; of several mounts on it, the last.
        let mounts = fuse::mounts()?.into_iter().filter(holds);
        let Some(mount) = mounts.max_by_key(|mount| mount.dir.as_os_str().len()) else {
            return Ok(Self::unknown("a file system without a mount point here"));
        };
        if mount.is_keepstone() {
            return Self::of_pool(keepstone, &mount.dir);
        }
        Ok(Self::of_type(&mount.fs_type))
    }

    fn unknown(medium: impl Into<String>) -> Self {
        Self { promise: Promise::Unknown, medium: medium.into() }
    }

    /// Returns that of a type of file systems.
    fn of_type(name: &str) -> Self {
        let promise = match name {
            "tmpfs" | "ramfs" | "devtmpfs" | "hugetlbfs" => Promise::Never,
            "ext2" | "ext3" | "ext4" | "xfs" | "btrfs" | "f2fs" | "zfs" | "bcachefs" | "jfs"
            | "nilfs2" | "vfat" | "exfat" | "ntfs3" | "nfs" | "nfs4" | "cifs" | "ceph" => {
                Promise::OnSync
            }
            _ => return Self::unknown(format!("{name}: this program does not know its promises")),
        };
        let medium = match promise {
            Promise::Never => format!("{name}: memory, lost with the power"),
            _ => format!("{name}: durable after fsync, if its device keeps its promises"),
        };
        Self { promise, medium }
    }

    /// Asks `keepstone info` about the pool that is mounted on `dir`.
    pub fn of_pool(keepstone: &Path, dir: &Path) -> Result<Self> {
        let info = run(Command::new(keepstone).args(["info", "--json"]).arg(dir))?;
        Ok(Self::of_info(&serde_json::from_str(&info)?, is_emulated()))
    }

    /// Derives it from the report of `keepstone info`.
    fn of_info(info: &Value, is_emulated: bool) -> Self {
        let text = |value: &Value| value.as_str().unwrap_or("unknown").to_owned();
        let domain = text(&info["domain"]["name"]);
        let is_durable = info["domain"]["durable"] == true;
        let promise = match (info["durability"].as_str(), info["layout"].as_str()) {
            _ if !is_durable && !is_emulated => Promise::Never,
            (Some("ordered"), _) => Promise::OnSync,
            (_, Some(layout)) if layout == Layout::Scmfs.name() => Promise::NamesOnReturn,
            _ => Promise::OnReturn,
        };
        let mut medium = format!("{domain}: {}", text(&info["domain"]["explanation"]));
        if !is_durable && is_emulated {
            medium = format!("{domain}, flushed as if it were persistent memory (emulated)");
        }
        if let Some(dir) = info["cache_of"].as_str() {
            medium += &format!("; written back to {dir} later");
        }
        Self { promise, medium }
    }

    /// Returns the state of the work of a case on such a target.
    pub fn class(&self, case: Case) -> Class {
        let synced = if case.syncs() { Class::Durable } else { Class::NotSynced };
        match (case.changes(), self.promise) {
            (Changes::Nothing, _) => Class::Reads,
            (_, Promise::Never) => Class::Dram,
            (_, Promise::Unknown) => Class::Unknown,
            (_, Promise::OnReturn) | (Changes::Names, Promise::NamesOnReturn) => Class::Durable,
            (_, Promise::OnSync | Promise::NamesOnReturn) => synced,
        }
    }
}

/// Returns whether DRAM is flushed as if it were persistent memory.
fn is_emulated() -> bool {
    std::env::var_os("KEEPSTONE_DRAM_AS_PM").is_some_and(|value| !value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::targets::cases::named;
    use serde_json::json;

    fn classes(durability: &Durability) -> [Class; 4] {
        ["stat", "rename", "write/random/4K", "write+fsync/4K"]
            .map(|name| durability.class(named(name).unwrap()))
    }

    #[test]
    fn classes_follow_from_promises() {
        use Class::{Dram, Durable, NotSynced, Reads};
        let of = |promise| Durability { promise, medium: String::new() };
        assert_eq!(classes(&of(Promise::Never)), [Reads, Dram, Dram, Dram]);
        assert_eq!(classes(&of(Promise::OnSync)), [Reads, NotSynced, NotSynced, Durable]);
        assert_eq!(classes(&of(Promise::NamesOnReturn)), [Reads, Durable, NotSynced, Durable]);
        assert_eq!(classes(&of(Promise::OnReturn)), [Reads, Durable, Durable, Durable]);
    }

    #[test]
    fn pools_promise_by_domain_mode_and_layout() {
        let info = |domain: &str, durable, layout, mode| {
            let domain = json!({ "name": domain, "durable": durable, "explanation": "why" });
            json!({ "domain": domain, "layout": layout, "durability": mode })
        };
        let promise = |info: &Value, emulated| Durability::of_info(info, emulated).promise;
        let dram = info("volatile", false, "bpfs", "journal");
        assert_eq!(promise(&dram, false), Promise::Never);
        assert_eq!(promise(&dram, true), Promise::OnReturn);
        assert!(Durability::of_info(&dram, true).medium.contains("emulated"));
        let pm = |layout, mode| promise(&info("map-sync", true, layout, mode), false);
        assert_eq!(pm("bpfs", "journal"), Promise::OnReturn);
        assert_eq!(pm("bpfs", "ordered"), Promise::OnSync);
        assert_eq!(pm("scmfs", "journal"), Promise::NamesOnReturn);
        assert_eq!(promise(&json!({}), false), Promise::Never);
    }

    #[test]
    fn kernel_file_systems_are_known_or_named() {
        assert_eq!(Durability::of_type("ext4").promise, Promise::OnSync);
        assert_eq!(Durability::of_type("tmpfs").promise, Promise::Never);
        assert!(Durability::of_type("fuse.sshfs").medium.contains("fuse.sshfs"));
    }
}
