//! The configuration file.
use std::path::Path;

use anyhow::Context;

use crate::serve::CachingPolicy;

mod file;
mod policy;

pub use file::config_schema;
pub(super) use file::schema;
pub(crate) use policy::parse;

/// Reads the file. Keys that it does not set stay as in `preset`.
pub(super) fn read(path: &Path, preset: CachingPolicy) -> anyhow::Result<CachingPolicy> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("cannot read {} (--config)", path.display()))?;
    policy::parse(&text, preset)
        .with_context(|| format!("{} (--config) is not a configuration", path.display()))
}
