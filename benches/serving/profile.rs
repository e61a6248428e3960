//! kube-apiserver's CPU by what it is spent on: a profile that it takes of itself.
//!
//! A difference of whole CPU times drowns what a few watches cost in the noise of the writes.
//! Source of the format: `proto/profile.proto` of github.com/google/pprof.
use std::collections::HashSet;
use std::io::Read as _;
use std::time::Duration;

use anyhow::{Context, ensure};
use flate2::read::GzDecoder;
use prost::Message;

use crate::client::Endpoint;

/// Methods of what serves a watch, once its event is there: the filter, the encoder and the
/// response, and the queue of each watcher. Bytes leave in goroutines of their connection, which
/// are not counted.
const WATCHES: [&str; 2] = [
    "handlers.(*WatchServer).",
    "storage/cacher.(*cacheWatcher).",
];

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Profile {
    #[prost(message, repeated, tag = "2")]
    pub(crate) samples: Vec<Sample>,
    #[prost(message, repeated, tag = "4")]
    pub(crate) locations: Vec<Location>,
    #[prost(message, repeated, tag = "5")]
    pub(crate) functions: Vec<Function>,
    #[prost(string, repeated, tag = "6")]
    pub(crate) strings: Vec<String>,
}

/// Moments at which the same calls were under way.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Sample {
    #[prost(uint64, repeated, tag = "1")]
    pub(crate) locations: Vec<u64>,
    /// The number of moments, and the nanoseconds that they stand for.
    #[prost(int64, repeated, tag = "2")]
    pub(crate) values: Vec<i64>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Location {
    #[prost(uint64, tag = "1")]
    pub(crate) id: u64,
    #[prost(message, repeated, tag = "4")]
    pub(crate) lines: Vec<Line>,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct Line {
    #[prost(uint64, tag = "1")]
    pub(crate) function: u64,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct Function {
    #[prost(uint64, tag = "1")]
    pub(crate) id: u64,
    /// Index of its name.
    #[prost(int64, tag = "2")]
    pub(crate) name: i64,
}

/// Returns the CPU that kube-apiserver spends on serving watches in so many seconds from now.
pub(crate) async fn cpu_of_watches(server: &Endpoint, seconds: u64) -> anyhow::Result<Duration> {
    let connection = server.connect(false).await?;
    let path = format!("/debug/pprof/profile?seconds={seconds}");
    let mut bytes = Vec::new();
    let sent = connection.fetch(&path).await?;
    GzDecoder::new(&sent[..]).read_to_end(&mut bytes)?;
    Profile::decode(&bytes[..])?.spent_on(&WATCHES)
}

impl Profile {
    /// Returns the CPU during which a function was under way whose name contains one of these.
    pub(crate) fn spent_on(&self, names: &[&str]) -> anyhow::Result<Duration> {
        let mut functions = HashSet::new();
        for function in &self.functions {
            let name = usize::try_from(function.name).ok();
            let name = name.and_then(|at| self.strings.get(at));
            let name = name.context("a profile whose function has no name")?;
            if names.iter().any(|part| name.contains(part)) {
                functions.insert(function.id);
            }
        }
        let is_wanted = |line: &Line| functions.contains(&line.function);
        let wanted = |location: &&Location| location.lines.iter().any(is_wanted);
        let locations = self.locations.iter().filter(wanted);
        let locations: HashSet<u64> = locations.map(|location| location.id).collect();
        let mut nanos = 0;
        for sample in &self.samples {
            ensure!(
                sample.values.len() == 2,
                "a profile of something else than CPU"
            );
            if sample.locations.iter().any(|id| locations.contains(id)) {
                nanos += u64::try_from(sample.values[1])?;
            }
        }
        Ok(Duration::from_nanos(nanos))
    }
}
