//! Checkpoints of the types that the policy lets be stored, and those of another replica.
use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use watershed_connect::ConnectOptions;
use watershed_protocol::is_built_in_group;

use super::config::AppConfig;
use crate::scope::{Checkpoints, MayStore, ReplicaStates, Scopes, StoredPart};
use crate::upstream::{Upstream, UpstreamClient};

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
    let cluster = Arc::clone(scopes.cluster());
    let may_store = may_store(config);
    let opened = Checkpoints::open(settings, client, scopes.timeline(), cluster, may_store).await;
    let checkpoints = opened.with_context(|| format!("cannot use --checkpoint-dir {folder}"))?;
    Ok(Some(checkpoints))
}

/// Returns the states of other replicas, if these are to be asked.
pub(super) async fn of_replica(
    config: &AppConfig,
    client: &UpstreamClient,
    scopes: &Scopes,
) -> anyhow::Result<Option<ReplicaStates>> {
    let Some(file) = &config.state_from else {
        return Ok(None);
    };
    let replicas = Upstream::load(&replica_options(config, file)).await;
    let replicas =
        replicas.with_context(|| format!("cannot use --state-from {}", file.display()))?;
    let addresses = replicas.addresses();
    tracing::info!(
        ?addresses,
        "states are taken from other replicas (--state-from)"
    );
    for what in replicas.insecurities() {
        tracing::warn!("{what} (--state-from)");
    }
    let cluster = Arc::clone(scopes.cluster());
    let may_store = may_store(config);
    // No replica gives states of custom types: it need not be asked.
    let may_take = Box::new(move |group: &str, resource: &str, part| {
        is_built_in_group(group) && may_store(group, resource, part)
    });
    let states = ReplicaStates::new(&replicas, client, scopes.timeline(), cluster, may_take);
    Ok(Some(states))
}

/// Returns the settings for reaching other replicas. On other machines they must have TLS, whatever
/// upstream has.
pub(super) fn replica_options(config: &AppConfig, file: &Path) -> ConnectOptions {
    ConnectOptions {
        kubeconfig: Some(file.to_owned()),
        user_agent: config.upstream.user_agent.clone(),
        ..ConnectOptions::default()
    }
}

fn may_store(config: &AppConfig) -> MayStore {
    let policy = config.policy.clone();
    Box::new(move |group, resource, part| match part {
        StoredPart::Objects => policy.may_store_objects(group, resource),
        StoredPart::Metadata => policy.may_store_metadata(group, resource),
    })
}
