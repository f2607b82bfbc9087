//! Persistence domains: the guarantee that a fence gives on a region.

use serde::Serialize;
use std::fmt;

/// The place that bytes have reached when [`Medium::fence`](crate::Medium::fence) has returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Domain {
    /// A file on fsdax, mapped with `MAP_SYNC`: a flushed line is durable, and so is the file
    /// metadata that locates it.
    MapSync,
    /// A devdax character device: a flushed line is durable.
    DevDax,
    /// Persistent memory on a platform whose caches are inside the persistence domain (eADR): a
    /// store is durable once it is globally visible; flushes are no-ops.
    CpuCache,
    /// An ordinary file: stores reach the page cache, and a fence writes them out with `msync`.
    PageCache,
    /// Memory (tmpfs, hugetlbfs, memfd, anonymous): at best it survives the process, but not a
    /// power failure.
    Volatile,
}

impl Domain {
    /// All domains, the strongest first.
    pub const ALL: [Domain; 5] =
        [Domain::MapSync, Domain::DevDax, Domain::CpuCache, Domain::PageCache, Domain::Volatile];

    /// Whether fenced data survives a power failure.
    pub fn durable(self) -> bool {
        self != Domain::Volatile
    }

    /// Whether stores to a mapping of the memory become durable by flushing lines, without the
    /// kernel.
    pub fn is_persistent(self) -> bool {
        matches!(self, Domain::MapSync | Domain::DevDax | Domain::CpuCache)
    }

    /// Whether a store needs a cache-line flush before a fence covers it.
    pub fn needs_flush(self) -> bool {
        self != Domain::CpuCache
    }

    /// Returns one sentence for users: the effect of a fence, and the data that survives.
    pub fn explain(self) -> &'static str {
        match self {
            Domain::MapSync => {
                "persistent memory through a DAX file system: flushed and fenced data survives a power failure"
            }
            Domain::DevDax => {
                "persistent memory through a devdax device: flushed and fenced data survives a power failure"
            }
            Domain::CpuCache => {
                "persistent memory with power-protected CPU caches (eADR): fenced data survives a power failure without flushing"
            }
            Domain::PageCache => {
                "ordinary file: each fence is an msync, so fenced data survives a power failure at the speed of the disk"
            }
            Domain::Volatile => {
                "DRAM, not persistent memory: at best data survives the process; it is lost with the power"
            }
        }
    }

    /// Returns the name that [`Display`](fmt::Display) and serde use.
    pub fn name(self) -> &'static str {
        match self {
            Domain::MapSync => "map-sync",
            Domain::DevDax => "dev-dax",
            Domain::CpuCache => "cpu-cache",
            Domain::PageCache => "page-cache",
            Domain::Volatile => "volatile",
        }
    }
}

impl fmt::Display for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A name that does not belong to a domain of [`Domain::ALL`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown persistence domain `{0}`; use map-sync, dev-dax, cpu-cache, page-cache or volatile"
)]
pub struct UnknownDomain(pub String);

impl std::str::FromStr for Domain {
    type Err = UnknownDomain;

    fn from_str(s: &str) -> Result<Self, UnknownDomain> {
        Domain::ALL.into_iter().find(|d| d.name() == s).ok_or_else(|| UnknownDomain(s.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for domain in Domain::ALL {
            assert_eq!(domain.to_string().parse(), Ok(domain));
        }
        assert!("nvram".parse::<Domain>().is_err());
    }

    #[test]
    fn only_memory_is_not_durable() {
        let lost: Vec<_> = Domain::ALL.into_iter().filter(|d| !d.durable()).collect();
        assert_eq!(lost, [Domain::Volatile]);
    }
}
