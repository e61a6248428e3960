//! Limits of the figures, which a change may not exceed unnoticed.
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, ensure};
use serde::Deserialize;

use crate::work::Row;

/// Upper limits of one figure.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Limit {
    allocations: f64,
    bytes: f64,
}

/// Upper limits by the name of the work.
#[derive(Debug, Deserialize)]
#[serde(transparent)]
pub(crate) struct Limits(BTreeMap<String, Limit>);

impl Limits {
    /// Reads a file of limits: YAML, with a name and its two limits in each line.
    pub(crate) fn read(path: &Path) -> anyhow::Result<Self> {
        let text = fs::read_to_string(path)
            .with_context(|| format!("cannot read --limits {}", path.display()))?;
        serde_saphyr::from_str(&text)
            .with_context(|| format!("cannot understand --limits {}", path.display()))
    }

    /// Fails if a row exceeds its limit, has none, or has one that says nothing.
    ///
    /// A limit of more than twice the figure would let too much pass. Half of it must therefore be
    /// exceeded, which also shows on each run that the comparison can fail.
    pub(crate) fn check(&self, rows: &[Row]) -> anyhow::Result<()> {
        for name in self.0.keys() {
            ensure!(
                rows.iter().any(|row| row.name == *name),
                "there is a limit for {name:?}, which was not measured"
            );
        }
        for row in rows {
            let limit = *self
                .0
                .get(&row.name)
                .with_context(|| format!("there is no limit for {:?}", row.name))?;
            let (allocations, bytes) = (row.allocations, row.bytes);
            ensure!(
                allocations <= limit.allocations && bytes <= limit.bytes,
                "{}: {allocations:.2} allocations of {bytes:.0} bytes in all exceed the limit of {} \
                 and {}. Spend less, or raise the limit and say why",
                row.name,
                limit.allocations,
                limit.bytes
            );
            ensure!(
                allocations > limit.allocations / 2.0 || bytes > limit.bytes / 2.0,
                "{}: {allocations:.2} allocations of {bytes:.0} bytes in all are less than half of \
                 the limit of {} and {}. Lower the limit",
                row.name,
                limit.allocations,
                limit.bytes
            );
        }
        Ok(())
    }
}
