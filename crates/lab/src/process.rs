//! The CPU time and the memory of processes, and the machine they run on, as the kernel reports
//! them.
use std::fs;
use std::time::Duration;

use anyhow::Context;

/// A process that is measured, under a name of the user's choice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// For example `kube-apiserver`.
    pub name: String,
    /// Process id on this machine.
    pub pid: u32,
}

/// CPU time and memory at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct ProcessUsage {
    /// CPU time as [`cpu_time`] reads it.
    pub(crate) cpu: Duration,
    /// Resident bytes.
    pub(crate) memory: u64,
}

impl Process {
    /// Reads the present usage. Returns `None` when the process is gone, or there is no `/proc`.
    pub(crate) fn usage(&self) -> Option<ProcessUsage> {
        Some(ProcessUsage {
            cpu: cpu_time(self.pid).ok()?,
            memory: resident_memory(self.pid).ok()?,
        })
    }
}

/// The machine of a measurement.
#[derive(Clone, Debug, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Machine {
    /// Processors this process may use.
    pub cores: usize,
    /// The processor's name.
    pub processor: String,
    /// Memory in GiB.
    pub memory_gib: u64,
    /// The kernel's release.
    pub kernel: String,
    /// Processes that ran or wanted to run, averaged over the last minute.
    pub load_average: f64,
}

impl Machine {
    /// Returns `true` if other programs keep it so busy that times say little.
    pub fn is_busy(&self) -> bool {
        self.cores > 0 && self.load_average > self.cores as f64
    }

    /// Returns the machine that this runs on. Values that it does not report are empty or 0.
    pub fn this() -> Self {
        let memory = field("/proc/meminfo", "MemTotal");
        let kib: u64 = memory.trim_end_matches(" kB").parse().unwrap_or(0);
        Self {
            cores: std::thread::available_parallelism().map_or(0, Into::into),
            processor: field("/proc/cpuinfo", "model name"),
            memory_gib: kib.div_ceil(1024 * 1024),
            kernel: text("/proc/sys/kernel/osrelease").trim().to_owned(),
            load_average: text("/proc/loadavg")
                .split(' ')
                .next()
                .and_then(|first| first.parse().ok())
                .unwrap_or(0.0),
        }
    }
}

fn text(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// Returns the value of the first line `name: value` of a file, or nothing.
fn field(path: &str, name: &str) -> String {
    text(path)
        .lines()
        .find(|line| line.starts_with(name))
        .and_then(|line| line.split_once(':'))
        .map_or(String::new(), |(_, value)| value.trim().to_owned())
}

/// Reads the CPU time of all threads of a process in user and kernel mode, ended ones included.
///
/// The kernel counts in ticks, mostly of 10 ms. A measurement should take at least thirty of them.
pub fn cpu_time(pid: u32) -> anyhow::Result<Duration> {
    let path = format!("/proc/{pid}/stat");
    let ticks = cpu_ticks(&read(&path)?).with_context(|| format!("no CPU time in {path}"))?;
    Ok(Duration::from_secs_f64(
        ticks as f64 / rustix::param::clock_ticks_per_second() as f64,
    ))
}

/// Reads the resident memory of a process in bytes.
pub fn resident_memory(pid: u32) -> anyhow::Result<u64> {
    status_bytes(pid, "VmRSS:")
}

/// Reads the largest resident memory since the start or [`reset_peak_memory`], in bytes.
pub fn peak_memory(pid: u32) -> anyhow::Result<u64> {
    status_bytes(pid, "VmHWM:")
}

/// Sets the peak of a process back to its present memory.
pub fn reset_peak_memory(pid: u32) -> anyhow::Result<()> {
    // Source: Linux, Documentation/filesystems/proc.rst (clear_refs).
    let path = format!("/proc/{pid}/clear_refs");
    fs::write(&path, "5").with_context(|| format!("cannot write {path}"))
}

fn status_bytes(pid: u32, name: &str) -> anyhow::Result<u64> {
    let path = format!("/proc/{pid}/status");
    bytes_of(&read(&path)?, name).with_context(|| format!("no {name} in {path}"))
}

fn read(path: &str) -> anyhow::Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {path}"))
}

/// Returns the sum of utime and stime, fields 14 and 15 of `stat`.
fn cpu_ticks(stat: &str) -> Option<u64> {
    // The second field is a name that may hold spaces and parentheses.
    let (_, after_name) = stat.rsplit_once(") ")?;
    let mut fields = after_name.split(' ').skip(11);
    let (user, system): (u64, u64) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    Some(user + system)
}

fn bytes_of(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.trim().trim_end_matches(" kB").parse().ok()?;
    Some(kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_the_kernel_are_read() {
        let stat = "12 (a) b (c) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14";
        assert_eq!(cpu_ticks(stat), Some(11 + 12));
        assert_eq!(cpu_ticks("12 (a"), None);
        assert_eq!(
            bytes_of("Name:\tx\nVmRSS:\t    2048 kB\n", "VmRSS:"),
            Some(2048 * 1024)
        );
        assert_eq!(bytes_of("Name:\tx\n", "VmRSS:"), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_own_process_has_usage_and_an_absent_one_has_none() {
        let process = |pid| Process {
            name: "x".to_owned(),
            pid,
        };
        assert!(process(std::process::id()).usage().unwrap().memory > 1 << 20);
        assert_eq!(process(u32::MAX).usage(), None);
    }
}
