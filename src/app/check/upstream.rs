//! The API server: its addresses, its version, and the proxy's identity there.
use std::time::Duration;

use http::{Request, StatusCode, header};
use jiff::Timestamp;
use serde::Deserialize;
use watershed_connect::{ConnectOptions, CredentialsError};

use super::finding::Findings;
use crate::access::{OwnRights, ReviewError};
use crate::app::checkpoints::replica_options;
use crate::app::config::AppConfig;
use crate::body;
use crate::upstream::{
    AnswerError, ConnectionClass, SendOptions, Upstream, UpstreamClient, in_time,
};

const CALLERS: &str = "callers";
const CREDENTIALS: &str = "credentials";
const SERVER: &str = "upstream";
const REPLICAS: &str = "replicas";
/// Time limit of an answer. A healthy API server needs milliseconds.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
const MAX_BYTES: usize = 1 << 20;

/// Loads the way to other replicas. Whether one is there may change at any time.
pub(super) async fn examine_replicas(config: &AppConfig, findings: &mut Findings) {
    let Some(file) = &config.state_from else {
        return;
    };
    match Upstream::load(&replica_options(config, file)).await {
        Ok(replicas) => {
            let addresses: Vec<_> = replicas
                .addresses()
                .iter()
                .map(ToString::to_string)
                .collect();
            findings.ok(
                REPLICAS,
                format!(
                    "states are taken from {} ({}, --state-from)",
                    addresses.join(", "),
                    file.display()
                ),
            );
        }
        Err(error) => {
            let error = anyhow::Error::new(error);
            let context = format!("cannot use --state-from {}", file.display());
            findings.failed(REPLICAS, error.context(context));
        }
    }
}

/// Returns a client if upstream answers and knows the proxy.
pub(super) async fn examine(config: &AppConfig, findings: &mut Findings) -> Option<UpstreamClient> {
    let upstream = match Upstream::load(&config.upstream).await {
        Ok(upstream) => upstream,
        Err(error @ CredentialsError::Address(_)) => {
            findings.failed(SERVER, anyhow::Error::new(error).context("--server"));
            return None;
        }
        Err(error) => {
            findings.failed(CREDENTIALS, error);
            return None;
        }
    };
    for what in upstream.insecurities() {
        findings.warning(SERVER, what);
    }
    examine_certificate(&upstream, config, findings);
    let reached = reach(&upstream, &config.upstream, findings).await;
    let client = UpstreamClient::new(&upstream);
    if !reached {
        return None;
    }
    knows_proxy(&upstream, &client, findings)
        .await
        .then_some(client)
}

fn examine_certificate(upstream: &Upstream, config: &AppConfig, findings: &mut Findings) {
    let now = Timestamp::now();
    if let Some(valid) = upstream.certificate() {
        // TLS ends at the proxy. Clients often have a kubeconfig of the same kind.
        let access = &config.access;
        let is_known_otherwise = access.front_proxy.is_some() || access.single_identity;
        if access.client_ca.is_none() && !is_known_otherwise {
            findings.warning(
                CALLERS,
                "client certificates of callers are ignored, and such callers are anonymous: \
                 the user of this kubeconfig would be, too (--client-ca-file)",
            );
        }
        let message = format!(
            "the client certificate of {} (--kubeconfig): {}",
            upstream.source(),
            valid.describe(now)
        );
        if !valid.is_valid(now) {
            findings.error(CREDENTIALS, message);
        } else if valid.ends_soon(now) {
            findings.warning(CREDENTIALS, message);
        } else {
            findings.ok(CREDENTIALS, message);
        }
    }
}

/// Asks upstream for the proxy's identity. Returns `true` if its credentials are accepted.
async fn knows_proxy(
    upstream: &Upstream,
    client: &UpstreamClient,
    findings: &mut Findings,
) -> bool {
    let source = upstream.source();
    match OwnRights::new(client.clone()).identity().await {
        Ok(identity) => {
            let user = identity.user;
            findings.ok(
                CREDENTIALS,
                format!("{source}: upstream knows the proxy as {user}"),
            );
            true
        }
        Err(error) if error.is_unknown() => {
            findings.error(
                CREDENTIALS,
                format!(
                    "upstream answered 401 Unauthorized: it does not know the credentials of \
                     {source}, or they have expired (--kubeconfig)"
                ),
            );
            false
        }
        Err(ReviewError::Refused(status)) => {
            findings.warning(
                CREDENTIALS,
                format!(
                    "cannot determine the proxy's own identity: upstream answered {status} to a \
                     SelfSubjectReview"
                ),
            );
            true
        }
        Err(error) => {
            findings.failed(CREDENTIALS, error);
            false
        }
    }
}

/// Asks each address for its version. Returns `true` if one answered.
async fn reach(upstream: &Upstream, options: &ConnectOptions, findings: &mut Findings) -> bool {
    let addresses = upstream.addresses();
    let mut reached = false;
    for address in &addresses {
        let alone = if addresses.len() == 1 {
            upstream.clone()
        } else {
            let one = ConnectOptions {
                servers: vec![address.to_string()],
                ..options.clone()
            };
            match Upstream::load(&one).await {
                Ok(upstream) => upstream,
                Err(error) => {
                    findings.failed(CREDENTIALS, error);
                    continue;
                }
            }
        };
        match version(&UpstreamClient::new(&alone)).await {
            Ok(version) => {
                let proxies = describe_proxies(alone.chain().upstream().len());
                findings.ok(SERVER, format!("{address} answers: {version}{proxies}"));
                reached = true;
            }
            Err(AnswerError::Refused {
                status: StatusCode::LOOP_DETECTED,
                ..
            }) => findings.error(
                SERVER,
                format!("{address} is a watershed whose upstream leads back to itself"),
            ),
            // Any answer shows that the address is reachable.
            Err(AnswerError::Refused { status, .. }) => {
                reached = true;
                if status != StatusCode::UNAUTHORIZED {
                    findings.warning(SERVER, format!("{address} answered {status} to /version"));
                }
            }
            Err(error) => {
                let knob = if options.servers.is_empty() {
                    "the kubeconfig's server, or --server"
                } else {
                    "--server"
                };
                findings.failed(
                    SERVER,
                    anyhow::Error::new(error).context(format!("no answer from {address} ({knob})")),
                );
            }
        }
    }
    reached
}

/// Returns what a finding adds about the proxies before the API server.
fn describe_proxies(count: usize) -> String {
    match count {
        0 => String::new(),
        1 => " (a watershed; this proxy is the leaf of a tree)".to_owned(),
        more => format!(" (the first of {more} watersheds before the API server)"),
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct VersionAnswer {
    git_version: String,
}

async fn version(client: &UpstreamClient) -> Result<String, AnswerError> {
    let useless = |error: &dyn std::fmt::Display| AnswerError::Unusable(error.to_string());
    let request = Request::get("/version")
        .header(header::ACCEPT, "application/json")
        .body(body::empty());
    let request = request.map_err(|error| useless(&error))?;
    let asked = async {
        let response = client
            .send(ConnectionClass::Short, request, SendOptions::default())
            .await?;
        if response.status() != StatusCode::OK {
            return Err(AnswerError::refused(&response));
        }
        body::whole(response.into_body(), MAX_BYTES)
            .await
            .map_err(AnswerError::of_body)
    };
    let answer = in_time(ANSWER_TIMEOUT, asked).await?;
    let version: VersionAnswer =
        serde_json::from_slice(&answer).map_err(|error| useless(&error))?;
    Ok(version.git_version)
}
