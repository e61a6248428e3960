//! What the kernel says of a process: the CPU time it used and the memory it holds. And of this machine.
use std::fs;
use std::time::Duration;

use anyhow::Context;
use serde::Serialize;

/// CPU time of all threads of a process, those that ended included, in user and kernel mode.
///
/// The kernel counts in ticks, so a measurement should take at least thirty of them (0.3 s).
pub(crate) fn cpu(pid: u32) -> anyhow::Result<Duration> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let ticks = cpu_ticks(&stat).with_context(|| format!("/proc/{pid}/stat is not understood: {stat}"))?;
    Ok(Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64))
}

/// Fields 14 and 15, utime and stime. The second field is a name that may hold spaces and parentheses.
fn cpu_ticks(stat: &str) -> Option<u64> {
    let (_, after_name) = stat.rsplit_once(") ")?;
    let mut fields = after_name.split(' ').skip(11);
    let (user, system): (u64, u64) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    Some(user + system)
}

/// Resident memory in bytes.
pub(crate) fn resident(pid: u32) -> anyhow::Result<u64> {
    status_bytes(pid, "VmRSS:")
}

/// The most resident memory there was since the start or [`reset_peak`], in bytes.
pub(crate) fn peak(pid: u32) -> anyhow::Result<u64> {
    status_bytes(pid, "VmHWM:")
}

/// Has [`peak`] begin anew at what is resident now.
pub(crate) fn reset_peak(pid: u32) -> anyhow::Result<()> {
    // Source: Linux, Documentation/filesystems/proc.rst (clear_refs).
    Ok(fs::write(format!("/proc/{pid}/clear_refs"), "5")?)
}

fn status_bytes(pid: u32, name: &'static str) -> anyhow::Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix(name)).context(name)?;
    let kib: u64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kib * 1024)
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
            line.and_then(|line| line.split_once(':')).map_or("unknown".into(), |(_, v)| v.trim().to_owned())
        };
        let kib = value(&text("/proc/meminfo"), "MemTotal").replace(" kB", "").parse().unwrap_or(0_u64);
        Self {
            cores: std::thread::available_parallelism().map_or(0, Into::into),
            processor: value(&text("/proc/cpuinfo"), "model name"),
            memory_gib: kib.div_ceil(1024 * 1024),
            kernel: text("/proc/sys/kernel/osrelease").trim().to_owned(),
        }
    }
}
