//! Facts about the machine that numbers depend on.

use crate::ramdisk::run;
use pmem::FlushInstruction;
use serde::{Deserialize, Serialize};
use std::fs;
use std::process::Command;

/// The origin of a report.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Origin {
    /// Date and time, in UTC.
    pub date: String,
    /// The commit of this checkout, with `-dirty` if it has changes that are not committed.
    pub commit: String,
    /// The command line.
    pub command: String,
    /// Pools in DRAM were measured as such, and not as if they were in persistent memory.
    #[serde(default)]
    pub dram: bool,
    /// Facts about the machine, by name.
    pub machine: Vec<(String, String)>,
    /// Versions of the formats on the media, by the names of docs/format.
    pub formats: Vec<(String, String)>,
}

impl Origin {
    /// The origin of this run.
    pub fn here(dram: bool) -> Self {
        let mut command: Vec<_> = std::env::args().collect();
        command[0] = "keepstone-bench".to_owned();
        Self {
            date: output(Command::new("date").args(["-u", "+%Y-%m-%d %H:%M"])),
            commit: commit(),
            command: command.join(" "),
            dram,
            machine: machine(dram),
            formats: formats(),
        }
    }

    /// Returns the first paragraph of a file of docs/measurements, which a test of the workspace
    /// parses. The file has measurements of the formats `measured`.
    pub fn head(&self, measured: &[&str]) -> String {
        let (date, commit, command) = (&self.date, &self.commit, &self.command);
        let fact = |name: &str| {
            let fact = self.machine.iter().find(|(known, _)| known == name);
            fact.map_or("unknown", |(_, value)| value)
        };
        let machine = format!(
            "{}, {}, {}, Linux {}",
            fact("CPU"),
            fact("flush instruction"),
            fact("memory"),
            fact("kernel")
        );
        let formats = self.formats.iter().filter(|(name, _)| measured.contains(&name.as_str()));
        let formats: Vec<_> = formats.map(|(name, version)| format!("{name} {version}")).collect();
        let formats = if formats.is_empty() { "none".to_owned() } else { formats.join(", ") };
        format!(
            "Measured: {date} UTC, commit {commit},\nmachine: {machine},\ncommand: `{command}`,\n\
             formats: {formats}"
        )
    }
}

/// Returns facts about this machine, by name; `dram` if pools are not flushed.
fn machine(dram: bool) -> Vec<(String, String)> {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let cpu = |key: &str| {
        let line = cpuinfo.lines().find(|line| line.starts_with(key));
        line.and_then(|line| line.split_once(": ")).map_or("unknown", |(_, value)| value)
    };
    let cpus = std::thread::available_parallelism().map_or(0, usize::from);
    let virtual_machine =
        if cpu("flags").contains("hypervisor") { " (virtual machine)" } else { "" };
    let read = |path: &str| {
        fs::read_to_string(path).unwrap_or_else(|_| "unknown".to_owned()).trim().to_owned()
    };
    let memory = read("/proc/meminfo");
    let memory = memory.lines().next().unwrap_or_default();
    let memory_kib: u64 =
        memory.split_whitespace().nth(1).and_then(|n| n.parse().ok()).unwrap_or(0);
    let persistent_memory = if dram {
        "none: pools are in DRAM, and not flushed"
    } else {
        "none: DRAM stands in for it (emulated)"
    };
    vec![
        ("CPU".into(), format!("{cpus} × {}{virtual_machine}", cpu("model name"))),
        ("flush instruction".into(), format!("{:?}", FlushInstruction::detect()).to_lowercase()),
        ("memory".into(), format!("{} GiB", memory_kib >> 20)),
        ("kernel".into(), read("/proc/sys/kernel/osrelease")),
        (
            "huge pages".into(),
            format!(
                "anonymous: {}; tmpfs: {}",
                read("/sys/kernel/mm/transparent_hugepage/enabled"),
                read("/sys/kernel/mm/transparent_hugepage/shmem_enabled"),
            ),
        ),
        ("load at the start".into(), read("/proc/loadavg")),
        ("persistent memory".into(), persistent_memory.into()),
    ]
}

/// This checkout.
const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// Reads the versions from the titles of docs/format, which end in `version N`.
fn formats() -> Vec<(String, String)> {
    let entries = fs::read_dir(format!("{ROOT}/docs/format")).into_iter().flatten().flatten();
    let format = |entry: fs::DirEntry| {
        let name = entry.file_name().to_str()?.strip_suffix(".md")?.to_owned();
        let text = fs::read_to_string(entry.path()).ok()?;
        let (_, version) = text.lines().next()?.rsplit_once("version ")?;
        Some((name, version.to_owned()))
    };
    let mut formats: Vec<_> = entries.filter_map(format).collect();
    formats.sort();
    formats
}

fn commit() -> String {
    let args = ["-C", ROOT, "describe", "--always", "--dirty", "--abbrev=8", "--exclude=*"];
    output(Command::new("git").args(args))
}

fn output(command: &mut Command) -> String {
    run(command).unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn head_names_date_commit_machine_command_and_formats() {
        let origin = Origin { command: "keepstone-bench engine".to_owned(), ..Origin::here(false) };
        let head = origin.head(&["scmfs", "bpfs"]);
        let [measured, machine, command, formats] = head.split(",\n").collect::<Vec<_>>()[..]
        else {
            panic!("{head}");
        };
        assert!(
            measured.starts_with("Measured: 20") && measured.contains(" UTC, commit "),
            "{head}"
        );
        assert!(machine.starts_with("machine: "), "{head}");
        assert_eq!(command, "command: `keepstone-bench engine`");
        assert!(formats.starts_with("formats: bpfs ") && formats.contains(", scmfs "), "{head}");
        assert!(origin.head(&[]).ends_with("formats: none"), "{head}");
        assert!(!head.contains("unknown"), "{head}");
    }
}
