//! Flags of `watershed serve` about the states from which it begins.
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::duration::duration;
use crate::app::AppConfig;
use crate::scope::CheckpointConfig;

/// Flags about checkpoints and other replicas.
#[derive(Args, Debug)]
#[command(next_help_heading = "Cache")]
pub(super) struct CheckpointFlags {
    /// Folder for checkpoints of cached types, from which a restarted proxy resumes its watches
    /// without listing. It must belong to this process alone. Secrets and custom types are never
    /// written. Default: no checkpoints.
    #[arg(long = "checkpoint-dir", value_name = "DIR")]
    folder: Option<PathBuf>,
    /// Interval at which changed types are written. All are written when the process ends, too.
    #[arg(
        long = "checkpoint-interval",
        default_value = "1m",
        value_parser = at_least_a_second,
        value_name = "DURATION"
    )]
    interval: Duration,
    /// Total size up to which checkpoints are kept (MiB).
    #[arg(
        long = "checkpoint-max-mib",
        default_value_t = 4096,
        value_parser = clap::value_parser!(u64).range(1..=1 << 30),
        value_name = "MIB"
    )]
    max_mib: u64,
    /// Kubeconfig of another replica or tier: its address and CA, and credentials that it accepts.
    /// Cached types take their first state from there instead of a list, once the API server has
    /// proven to continue it. Secrets and custom types are always listed. Default: all types are
    /// listed.
    #[arg(long, value_name = "FILE")]
    state_from: Option<PathBuf>,
}

impl CheckpointFlags {
    /// Puts the flags into the configuration.
    pub(super) fn apply(self, config: &mut AppConfig) {
        config.state_from = self.state_from;
        config.checkpoints = self.folder.map(|folder| CheckpointConfig {
            folder,
            interval: self.interval,
            max_bytes: self.max_mib << 20,
        });
    }
}

/// Parses an interval of at least a second.
fn at_least_a_second(text: &str) -> Result<Duration, String> {
    let interval = duration(text)?;
    if interval < Duration::from_secs(1) {
        return Err("shorter than 1s".to_owned());
    }
    Ok(interval)
}
