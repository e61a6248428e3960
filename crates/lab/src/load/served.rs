//! Checks that a server serves the types of a plan, before anything waits for them.
//!
//! It asks for discovery and not for objects: a list could have a proxy open what is to be measured.
use anyhow::bail;
use http::StatusCode;
use serde::Deserialize;
use watershed_connect::ApiServer;

use super::connect::{Connections, LoadRequest};
use super::group::ClientGroup;
use super::trouble::LoadError;

const MAX_DISCOVERY_BYTES: usize = 16 << 20;

#[derive(Deserialize)]
struct ServedResources {
    resources: Vec<ServedResource>,
}

#[derive(Deserialize)]
struct ServedResource {
    name: String,
}

/// Checks the types of all groups.
///
/// # Errors
///
/// Names the first type that the server does not serve. Servers that cannot be asked pass: how they fail
/// is for the measurement to say.
pub(super) async fn check(server: &ApiServer, groups: &[ClientGroup]) -> anyhow::Result<()> {
    let connections = Connections::new(server.clone(), false, 1);
    for group in groups {
        let collection = group.resource.collection("");
        let Some((group_version, resource)) = collection.rsplit_once('/') else {
            continue;
        };
        let served = match resources(&connections, group_version).await {
            Ok(served) => served,
            Err(LoadError::Refused {
                status: StatusCode::NOT_FOUND,
                ..
            }) => Vec::new(),
            Err(error) => {
                tracing::debug!(%error, group_version, "the types are not checked");
                continue;
            }
        };
        if !served.iter().any(|served| served.name == resource) {
            bail!("there is no {resource} in {group_version} (--resource, --mix)");
        }
    }
    Ok(())
}

async fn resources(
    connections: &Connections,
    group_version: &str,
) -> Result<Vec<ServedResource>, LoadError> {
    let request = LoadRequest::get(group_version.to_owned(), "application/json", false);
    let answer = connections.send(0, request).await?;
    let body = answer.whole(MAX_DISCOVERY_BYTES).await?;
    let served: ServedResources =
        serde_json::from_slice(&body).map_err(|error| LoadError::Request(error.to_string()))?;
    Ok(served.resources)
}
