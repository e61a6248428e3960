//! What the kernel says of a process: the CPU time it used and the memory it holds. And of this
//! machine.
use std::fs;
use std::time::Duration;

use anyhow::Context;
use serde::Serialize;
use watershed_lab::load::{cpu_time, status_bytes};

/// CPU time of all threads of a process, those that ended included, in user and kernel mode.
///
/// The kernel counts in ticks, so a measurement should take at least thirty of them (0.3 s).
pub(crate) fn cpu(pid: u32) -> anyhow::Result<Duration> {
    cpu_time(pid).with_context(|| format!("/proc/{pid}/stat does not tell"))
}

/// Resident memory in bytes.
pub(crate) fn resident(pid: u32) -> anyhow::Result<u64> {
    bytes(pid, "VmRSS:")
}

/// The most resident memory there was since the start or [`reset_peak`], in bytes.
pub(crate) fn peak(pid: u32) -> anyhow::Result<u64> {
    bytes(pid, "VmHWM:")
}

/// Has [`peak`] begin anew at what is resident now.
pub(crate) fn reset_peak(pid: u32) -> anyhow::Result<()> {
    // Source: Linux, Documentation/filesystems/proc.rst (clear_refs).
    Ok(fs::write(format!("/proc/{pid}/clear_refs"), "5")?)
}

fn bytes(pid: u32, name: &str) -> anyhow::Result<u64> {
    status_bytes(pid, name).with_context(|| format!("/proc/{pid}/status does not tell {name}"))
}

/// The machine a figure was measured on.
#[derive(Debug, Serialize)]
pub(crate) struct Machine {
    pub(crate) cores: usize,
    pub(crate) processor: String,
    pub(crate) memory_gib: u64,
    pub(crate) kernel: String,
}

impl Machine {
    pub(crate) fn this() -> Self {
        let text = |path| fs::read_to_string(path).unwrap_or_default();
        let value = |text: &str, name: &str| {
            let line = text.lines().find(|line| line.starts_with(name));
            line.and_then(|line| line.split_once(':'))
                .map_or("unknown".into(), |(_, v)| v.trim().to_owned())
        };
        let kib = value(&text("/proc/meminfo"), "MemTotal")
            .replace(" kB", "")
            .parse()
            .unwrap_or(0_u64);
        Self {
            cores: std::thread::available_parallelism().map_or(0, Into::into),
            processor: value(&text("/proc/cpuinfo"), "model name"),
            memory_gib: kib.div_ceil(1024 * 1024),
            kernel: text("/proc/sys/kernel/osrelease").trim().to_owned(),
        }
    }
}
