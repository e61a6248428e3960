//! What the kernel says of a process: the CPU time it used, and the memory it holds.
use std::fs;
use std::time::Duration;

/// A process that is looked at, under a name of the user's choice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// For example `kube-apiserver`.
    pub name: String,
    /// Its process id on this machine.
    pub pid: u32,
}

/// CPU time and memory at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct ProcessUsage {
    /// Of all threads, those that ended included, in user and kernel mode. Counted in ticks, mostly
    /// of 10 ms.
    pub(super) cpu: Duration,
    /// Resident bytes.
    pub(super) memory: u64,
}

impl Process {
    /// What it uses now; `None` when it is gone, or the system has no `/proc`.
    pub(super) fn usage(&self) -> Option<ProcessUsage> {
        Some(ProcessUsage {
            cpu: cpu_time(self.pid)?,
            memory: status_bytes(self.pid, "VmRSS:")?,
        })
    }
}

/// CPU time of all threads of a process, those that ended included, in user and kernel mode; `None`
/// as for its usage.
///
/// The kernel counts in ticks, mostly of 10 ms.
pub fn cpu_time(pid: u32) -> Option<Duration> {
    let ticks = cpu_ticks(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)?;
    Some(Duration::from_secs_f64(
        ticks as f64 / rustix::param::clock_ticks_per_second() as f64,
    ))
}

/// A figure of a process's memory in bytes, by its name with the colon (`VmRSS:`).
pub fn status_bytes(pid: u32, name: &str) -> Option<u64> {
    bytes_of(
        &fs::read_to_string(format!("/proc/{pid}/status")).ok()?,
        name,
    )
}

/// Fields 14 and 15, utime and stime. The second field is a name that may hold spaces and
/// parentheses.
fn cpu_ticks(stat: &str) -> Option<u64> {
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

/// The machine that was measured on.
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
    /// Processes that ran or wanted to, on average over the minute before.
    pub load_average: f64,
}

impl Machine {
    /// Whether others keep it so busy that times say little.
    pub fn is_busy(&self) -> bool {
        self.cores > 0 && self.load_average > self.cores as f64
    }

    /// The one this runs on; what it does not tell is empty or 0.
    pub fn this() -> Self {
        let text = |path| fs::read_to_string(path).unwrap_or_default();
        let value = |text: &str, name: &str| {
            let line = text.lines().find(|line| line.starts_with(name));
            line.and_then(|line| line.split_once(':'))
                .map_or(String::new(), |(_, v)| v.trim().to_owned())
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
            load_average: text("/proc/loadavg")
                .split(' ')
                .next()
                .and_then(|first| first.parse().ok())
                .unwrap_or(0.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_words_are_read() {
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
    fn this_process_is_seen_and_another_is_not() {
        let process = |pid| Process {
            name: "x".to_owned(),
            pid,
        };
        assert!(process(std::process::id()).usage().unwrap().memory > 1 << 20);
        assert_eq!(process(u32::MAX).usage(), None);
    }
}
