//! Facts about the machine that numbers depend on.

use crate::ramdisk::run;
use pmem::FlushInstruction;
use serde::{Deserialize, Serialize};
use std::fs;
use std::process::Command;

/// What a report says of where it comes from.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Origin {
    /// When, in UTC.
    pub date: String,
    /// How it was called.
    pub command: String,
    /// Whether pools in DRAM were measured as such, and not as if they were in persistent memory.
    #[serde(default)]
    pub dram: bool,
    /// Facts about the machine, by name.
    pub machine: Vec<(String, String)>,
}

impl Origin {
    /// Of this run.
    pub fn here(dram: bool) -> Self {
        let mut command: Vec<_> = std::env::args().collect();
        command[0] = "keepstone-bench".to_owned();
        Self {
            date: output(Command::new("date").args(["-u", "+%Y-%m-%d %H:%M"])),
            command: command.join(" "),
            dram,
            machine: machine(dram),
        }
    }
}

fn machine(dram: bool) -> Vec<(String, String)> {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let cpu = |key: &str| {
        let line = cpuinfo.lines().find(|line| line.starts_with(key));
        line.and_then(|line| line.split_once(": ")).map_or("unknown", |(_, value)| value)
    };
    let cpus = std::thread::available_parallelism().map_or(0, usize::from);
    let virtual_machine =
        if cpu("flags").contains("hypervisor") { ", a virtual machine" } else { "" };
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

fn output(command: &mut Command) -> String {
    run(command).unwrap_or_default().trim().to_owned()
}
