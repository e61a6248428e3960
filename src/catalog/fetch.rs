//! Fetches one document of upstream.
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, StatusCode, header};
use serde::de::DeserializeOwned;
use watershed_protocol::gunzip;

use super::discovery_error::DiscoveryError;
use crate::body;
use crate::upstream::{ConnectionClass, SendOptions, UpstreamClient};

/// The largest document read. Those of clusters with hundreds of CRDs have a few MiB.
const MAX_BYTES: usize = 64 << 20;
/// Timeout of a document.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

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
pub(super) enum DocumentAnswer<T> {
    /// The document is the one of the ETag in the request.
    Unchanged,
    /// The document, with its ETag if it has one.
    Document(T, Option<HeaderValue>),
}

/// Asks for one document, unless it is the one of the ETag `read`.
pub(super) async fn ask<T: DeserializeOwned>(
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
    tokio::time::timeout(ANSWER_TIMEOUT, asked)
        .await
        .map_err(|_| not_understood(format!("no answer within {ANSWER_TIMEOUT:?}")))?
}

/// Returns a body without its compression, or why it is not understood.
fn uncompressed(headers: &HeaderMap, body: Bytes) -> Result<Bytes, String> {
    match headers.get(header::CONTENT_ENCODING) {
        None => Ok(body),
        Some(coding) if coding == "gzip" => {
            gunzip([&body[..]], MAX_BYTES).map_err(|error| error.to_string())
        }
        Some(coding) => Err(format!("the coding {coding:?}")),
    }
}
