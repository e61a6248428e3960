//! Reads upstream's discovery documents.
use std::collections::HashMap;
use std::io::Read as _;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use flate2::read::MultiGzDecoder;
use http::{HeaderMap, HeaderValue, Request, StatusCode, header};
use jiff::Timestamp;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::body;
use crate::upstream::{ConnectionClass, SendOptions, Upstream, UpstreamClient, UpstreamError};
use watershed_connect::one_line;
use watershed_protocol::GroupVersionResource;

/// Both forms are asked for; old releases and proxies answer with the second.
const DISCOVERY: &str =
    "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json";
/// The largest document read. Those of clusters with hundreds of CRDs have a few MiB.
const MAX_BYTES: usize = 64 << 20;
/// Timeout of a document.
const ANSWER: Duration = Duration::from_secs(10);

/// The types of a document, by the ETag that upstream gave it. Equal documents of different servers
/// have one ETag.
type ReadDocument = (HeaderValue, Arc<[DiscoveredType]>);

/// Discovery documents that were read before, so that unchanged ones cost upstream 304.
#[derive(Clone, Debug, Default)]
pub(super) struct ReadDocuments {
    by_path: HashMap<&'static str, ReadDocument>,
}

/// A type that can be listed and watched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DiscoveredType {
    pub(super) gvr: GroupVersionResource,
    pub(super) kind: String,
    pub(super) namespaced: bool,
}

/// Discovery could not be read.
#[derive(Debug, thiserror::Error)]
pub enum DiscoveryError {
    /// Upstream could not be asked.
    #[error(transparent)]
    Upstream(#[from] UpstreamError),
    /// Upstream does not know who asks.
    #[error(
        "upstream answered 401 Unauthorized to {path}: it does not know the proxy's credentials, \
         or they have expired"
    )]
    Unknown {
        /// The document asked for.
        path: String,
    },
    /// Upstream refused.
    #[error("upstream answered {status} to {path}{hint}", hint = hint(*status))]
    Refused {
        /// The document asked for.
        path: String,
        /// The answer.
        status: StatusCode,
    },
    /// The answer is not what discovery looks like.
    #[error("upstream's answer to {path} is not understood: {why}")]
    NotUnderstood {
        /// The document asked for.
        path: String,
        /// The reason.
        why: String,
    },
}

impl DiscoveryError {
    /// Returns what an operator can do about it.
    pub fn advice(&self, upstream: &Upstream) -> String {
        if !matches!(self, Self::Unknown { .. }) {
            return "check --kubeconfig, --server and the proxy's permissions".to_owned();
        }
        let now = Timestamp::now();
        let source = upstream.source();
        match upstream.certificate().filter(|valid| !valid.is_valid(now)) {
            Some(expired) => {
                format!(
                    "the client certificate of {source}: {}",
                    expired.describe(now)
                )
            }
            None => format!("check the user's part of {source}"),
        }
    }

    /// Logs it, as the proxy cannot become ready.
    pub fn report(&self, upstream: &Upstream) {
        tracing::error!(
            error = one_line(self),
            advice = self.advice(upstream),
            "cannot read upstream's discovery: not ready, trying again; requests are forwarded"
        );
    }
}

/// Returns what an operator can do about a refusal.
fn hint(status: StatusCode) -> &'static str {
    match status {
        StatusCode::FORBIDDEN => ": the proxy's identity needs the ClusterRole system:discovery",
        StatusCode::LOOP_DETECTED => {
            ": upstream is a watershed proxy that leads back to a proxy on the way"
        }
        _ => "",
    }
}

/// Reads all types that can be listed and watched, with the documents as they are now. The second
/// result is `true` if each document is the one that was read before.
pub(super) async fn read(
    client: &UpstreamClient,
    documents: &mut ReadDocuments,
) -> Result<(Vec<DiscoveredType>, bool), DiscoveryError> {
    let (mut entries, mut unchanged) = (Vec::new(), true);
    for path in ["/api", "/apis"] {
        let known = documents.by_path.get(path);
        let read = known.map(|(etag, _)| etag.clone());
        match ask(client, path, DISCOVERY, read).await? {
            DocumentAnswer::Unchanged => {
                entries.extend(
                    known
                        .into_iter()
                        .flat_map(|(_, types)| types.iter().cloned()),
                );
            }
            DocumentAnswer::Document(document, etag) => {
                unchanged = false;
                documents.by_path.remove(path);
                let (types, is_whole) = types_of(client, path, document).await?;
                entries.extend_from_slice(&types);
                // Documents that name others would have to be read with those.
                if let Some(etag) = etag.filter(|_| is_whole) {
                    documents.by_path.insert(path, (etag, types.into()));
                }
            }
        }
    }
    Ok((entries, unchanged))
}

/// Returns the types of a document, and `true` if it has all of them in itself.
async fn types_of(
    client: &UpstreamClient,
    path: &str,
    document: DiscoveryDocument,
) -> Result<(Vec<DiscoveredType>, bool), DiscoveryError> {
    let mut entries = Vec::new();
    let is_whole = document.items.is_some();
    match document {
        DiscoveryDocument {
            items: Some(groups),
            ..
        } => {
            for group in groups {
                let name = group.metadata.name.unwrap_or_default();
                for version in group.versions {
                    aggregated(&name, version, &mut entries);
                }
            }
        }
        DiscoveryDocument {
            versions: Some(versions),
            ..
        } => {
            for version in versions {
                let path = format!("/api/{version}");
                legacy(client, &path, "", &version, &mut entries).await?;
            }
        }
        DiscoveryDocument {
            groups: Some(groups),
            ..
        } => {
            for group in groups {
                for version in group.versions {
                    let path = format!("/apis/{}/{}", group.name, version.version);
                    // One aggregated API that is down must not hide all other types.
                    if let Err(error) =
                        legacy(client, &path, &group.name, &version.version, &mut entries).await
                    {
                        tracing::warn!(%error, "a group's discovery failed");
                    }
                }
            }
        }
        _ => {
            return Err(DiscoveryError::NotUnderstood {
                path: path.into(),
                why: "no groups".into(),
            });
        }
    }
    Ok((entries, is_whole))
}

fn aggregated(group: &str, version: GroupVersion, entries: &mut Vec<DiscoveredType>) {
    for resource in version.resources {
        // A subresource is listed inside its resource here, so none has a slash in its name.
        if can_be_followed(&resource.verbs)
            && let Some(kind) = resource.response_kind.and_then(|kind| kind.kind)
        {
            entries.push(DiscoveredType {
                gvr: GroupVersionResource::new(group, &version.version, &resource.resource),
                kind,
                namespaced: resource.scope == "Namespaced",
            });
        }
    }
}

async fn legacy(
    client: &UpstreamClient,
    path: &str,
    group: &str,
    version: &str,
    entries: &mut Vec<DiscoveredType>,
) -> Result<(), DiscoveryError> {
    let list: ResourceList = get(client, path, DISCOVERY).await?;
    entries.extend(
        list.resources
            .into_iter()
            .filter(|resource| can_be_followed(&resource.verbs))
            .map(|resource| DiscoveredType {
                gvr: GroupVersionResource::new(group, version, &resource.name),
                kind: resource.kind,
                namespaced: resource.namespaced,
            }),
    );
    Ok(())
}

fn can_be_followed(verbs: &[String]) -> bool {
    ["list", "watch"]
        .iter()
        .all(|wanted| verbs.iter().any(|verb| verb == wanted))
}

/// Reads one document.
pub(super) async fn get<T: DeserializeOwned>(
    client: &UpstreamClient,
    path: &str,
    accept: &'static str,
) -> Result<T, DiscoveryError> {
    match ask(client, path, accept, None).await? {
        DocumentAnswer::Document(document, _) => Ok(document),
        DocumentAnswer::Unchanged => Err(DiscoveryError::Refused {
            path: path.to_owned(),
            status: StatusCode::NOT_MODIFIED,
        }),
    }
}

/// The answer to a request for a document.
enum DocumentAnswer<T> {
    /// The document is the one of the ETag in the request.
    Unchanged,
    /// The document, with its ETag if it has one.
    Document(T, Option<HeaderValue>),
}

/// Asks for one document, unless it is the one of the ETag `read`.
async fn ask<T: DeserializeOwned>(
    client: &UpstreamClient,
    path: &str,
    accept: &'static str,
    read: Option<HeaderValue>,
) -> Result<DocumentAnswer<T>, DiscoveryError> {
    let not_understood = |why: String| DiscoveryError::NotUnderstood {
        path: path.to_owned(),
        why,
    };
    let mut request = Request::get(path)
        .header(header::ACCEPT, accept)
        .header(header::ACCEPT_ENCODING, "gzip");
    let is_conditional = read.is_some();
    if let Some(etag) = read {
        request = request.header(header::IF_NONE_MATCH, etag);
    }
    let request = request
        .body(body::empty())
        .map_err(|error| not_understood(error.to_string()))?;
    // A certain server is asked over the connection that leads to it.
    let class = match client.server() {
        Some(_) => ConnectionClass::Watch,
        None => ConnectionClass::Short,
    };
    let asked = async {
        let response = client.send(class, request, SendOptions::default()).await?;
        let status = response.status();
        if status == StatusCode::UNAUTHORIZED {
            return Err(DiscoveryError::Unknown {
                path: path.to_owned(),
            });
        }
        if status == StatusCode::NOT_MODIFIED && is_conditional {
            return Ok(DocumentAnswer::Unchanged);
        }
        if status != StatusCode::OK {
            return Err(DiscoveryError::Refused {
                path: path.to_owned(),
                status,
            });
        }
        let (parts, body) = response.into_parts();
        let body = body::whole(body, MAX_BYTES)
            .await
            .map_err(|error| not_understood(error.to_string()))?;
        let body = uncompressed(&parts.headers, body).map_err(not_understood)?;
        let document =
            serde_json::from_slice(&body).map_err(|error| not_understood(error.to_string()))?;
        let etag = parts.headers.get(header::ETAG).cloned();
        Ok(DocumentAnswer::Document(document, etag))
    };
    tokio::time::timeout(ANSWER, asked)
        .await
        .map_err(|_| not_understood(format!("no answer within {ANSWER:?}")))?
}

/// Returns a body without its compression, or why it is not understood.
fn uncompressed(headers: &HeaderMap, body: Bytes) -> Result<Bytes, String> {
    match headers.get(header::CONTENT_ENCODING) {
        None => Ok(body),
        Some(coding) if coding == "gzip" => {
            let mut unpacked = Vec::new();
            let limit = MAX_BYTES as u64 + 1;
            let read = MultiGzDecoder::new(&body[..])
                .take(limit)
                .read_to_end(&mut unpacked);
            read.map_err(|error| error.to_string())?;
            if unpacked.len() > MAX_BYTES {
                return Err(format!("more than {MAX_BYTES} bytes"));
            }
            Ok(unpacked.into())
        }
        Some(coding) => Err(format!("the coding {coding:?}")),
    }
}

/// Any of APIGroupDiscoveryList, APIVersions and APIGroupList.
#[derive(Deserialize)]
struct DiscoveryDocument {
    items: Option<Vec<GroupDiscovery>>,
    versions: Option<Vec<String>>,
    groups: Option<Vec<ApiGroup>>,
}

#[derive(Deserialize)]
struct GroupDiscovery {
    #[serde(default)]
    metadata: GroupName,
    #[serde(default)]
    versions: Vec<GroupVersion>,
}

#[derive(Default, Deserialize)]
struct GroupName {
    name: Option<String>,
}

#[derive(Deserialize)]
struct GroupVersion {
    #[serde(default)]
    version: String,
    #[serde(default)]
    resources: Vec<ResourceDiscovery>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ResourceDiscovery {
    resource: String,
    response_kind: Option<ResponseKind>,
    #[serde(default)]
    scope: String,
    #[serde(default)]
    verbs: Vec<String>,
}

#[derive(Deserialize)]
struct ResponseKind {
    kind: Option<String>,
}

#[derive(Deserialize)]
struct ApiGroup {
    name: String,
    #[serde(default)]
    versions: Vec<GroupVersionName>,
}

#[derive(Deserialize)]
struct GroupVersionName {
    version: String,
}

#[derive(Deserialize)]
struct ResourceList {
    #[serde(default)]
    resources: Vec<ApiResource>,
}

#[derive(Deserialize)]
struct ApiResource {
    name: String,
    kind: String,
    #[serde(default)]
    namespaced: bool,
    #[serde(default)]
    verbs: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_missing_right_is_blamed_on_rights() {
        let refused = |status| DiscoveryError::Refused {
            path: "/api".to_owned(),
            status,
        };
        let forbidden = refused(StatusCode::FORBIDDEN).to_string();
        assert!(
            forbidden.ends_with("the ClusterRole system:discovery"),
            "{forbidden}"
        );
        assert_eq!(
            refused(StatusCode::SERVICE_UNAVAILABLE).to_string(),
            "upstream answered 503 Service Unavailable to /api"
        );
    }
}
