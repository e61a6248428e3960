//! Checkpoints of the types that the policy lets be stored.
use anyhow::Context as _;

use super::config::AppConfig;
use crate::scope::{Checkpoints, Scopes};
use crate::upstream::UpstreamClient;

/// Opens the folder of checkpoints, if there is to be one.
pub(super) async fn open(
    config: &AppConfig,
    client: &UpstreamClient,
    scopes: &Scopes,
) -> anyhow::Result<Option<Checkpoints>> {
    let Some(settings) = config.checkpoints.clone() else {
        return Ok(None);
    };
    let folder = settings.folder.display().to_string();
    let policy = config.policy.clone();
    let may_store = Box::new(move |group: &str, resource: &str| policy.may_store(group, resource));
    let opened = Checkpoints::open(settings, client, scopes.timeline(), may_store).await;
    let checkpoints = opened.with_context(|| format!("cannot use --checkpoint-dir {folder}"))?;
    Ok(Some(checkpoints))
}
