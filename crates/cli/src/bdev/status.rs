//! What servers tell about themselves.

use serde::Serialize;

use super::devices::DeviceReport;
use crate::size;

/// A server.
#[derive(Serialize)]
pub struct Status<'a> {
    /// How it serves.
    pub kind: &'static str,
    pub pid: u32,
    pub version: &'static str,
    pub uptime_s: u64,
    /// Where clients come in.
    pub addresses: &'a [String],
    /// What the kernel calls it.
    pub device: Option<&'a str>,
    pub clients: Option<usize>,
    pub exports: Vec<ExportStatus<'a>>,
}

/// One of the devices that it serves.
#[derive(Serialize)]
pub struct ExportStatus<'a> {
    #[serde(flatten)]
    pub report: &'a DeviceReport,
    pub size_bytes: u64,
    /// What clients asked for.
    pub requests: Option<nbd::Counts>,
    /// What that came to.
    pub device: pmbd::Stats,
}

/// Tells a user what is served.
pub fn announce_device(device: &DeviceReport, size_bytes: u64) {
    let read_only = if device.read_only { ", read-only" } else { "" };
    println!("{}: {}{read_only}, {}", device.name, size::show(size_bytes), device.path);
    println!("  domain {}", device.domain);
    println!("  protection {}, scheme {}", device.protection, device.scheme);
    if let Some(emulation) = &device.emulation {
        println!("  speed emulated: {emulation}");
    }
}
