//! Posts a review object and reads upstream's verdict.
use std::time::Duration;

use bytes::Bytes;
use http::{Request, StatusCode, header};
use k8s_openapi::api::authentication::v1::UserInfo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use super::{Identity, metrics};
use crate::body;
use crate::upstream::{ConnectionClass, SendOptions, UpstreamClient, UpstreamError};

/// A verdict takes milliseconds. After this long the connection is taken for dead, and another is
/// tried.
const FIRST_ANSWER: Duration = Duration::from_secs(3);
const SECOND_ANSWER: Duration = Duration::from_secs(7);
const MAX_BYTES: usize = 1 << 20;

/// What is done with requests while upstream cannot be asked about their callers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Unavailable {
    /// They are refused (503), to be sent again. What upstream said before stands until it runs
    /// out.
    #[default]
    Refuse,
    /// They are forwarded, and upstream judges if it can be reached. Open watches go on.
    Forward,
}

/// Upstream could not be asked, so that nothing is known.
#[derive(Debug, thiserror::Error)]
pub enum ReviewError {
    /// The connection failed.
    #[error(transparent)]
    Upstream(#[from] UpstreamError),
    /// Upstream refused the question: the proxy's identity needs the ClusterRole
    /// system:auth-delegator.
    #[error("upstream answered {0} to a review: the proxy's identity needs system:auth-delegator")]
    Refused(StatusCode),
    /// The answer broke off.
    #[error("upstream broke off in the middle of a review: {0}")]
    Cut(String),
    /// The verdict cannot be read.
    #[error("upstream's review is not understood: {0}")]
    NotUnderstood(String),
    /// No verdict in time.
    #[error("upstream did not answer a review within {0:?}")]
    Late(Duration),
}

/// The user of a review's answer; without a name there is nobody.
pub(super) fn identity(user: UserInfo) -> Option<Identity> {
    Some(Identity {
        user: user.username.filter(|name| !name.is_empty())?,
        uid: user.uid,
        groups: user.groups.unwrap_or_default(),
        extra: user.extra.unwrap_or_default().into_iter().collect(),
    })
}

impl ReviewError {
    /// Whether upstream is away or overwhelmed, so that the same question may be answered later.
    /// Otherwise it answered, and refuses to be asked.
    pub fn is_unavailable(&self) -> bool {
        match self {
            Self::Upstream(_) | Self::Cut(_) | Self::Late(_) => true,
            Self::Refused(status) => {
                status.is_server_error() || *status == StatusCode::TOO_MANY_REQUESTS
            }
            Self::NotUnderstood(_) => false,
        }
    }
}

pub(super) async fn post<T: DeserializeOwned>(
    client: &UpstreamClient,
    path: &str,
    review: &impl Serialize,
) -> Result<T, ReviewError> {
    let outcome = put(client, path, review).await;
    metrics::reviewed(path, &outcome);
    outcome
}

async fn put<T: DeserializeOwned>(
    client: &UpstreamClient,
    path: &str,
    review: &impl Serialize,
) -> Result<T, ReviewError> {
    let review = Bytes::from(serde_json::to_vec(review).map_err(not_understood)?);
    let verdict = if let Ok(verdict) =
        timeout(FIRST_ANSWER, ask(client, path, review.clone(), false)).await
    {
        verdict?
    } else {
        let second = timeout(SECOND_ANSWER, ask(client, path, review, true)).await;
        second.map_err(|_| ReviewError::Late(FIRST_ANSWER + SECOND_ANSWER))??
    };
    serde_json::from_slice(&verdict).map_err(not_understood)
}

async fn ask(
    client: &UpstreamClient,
    path: &str,
    review: Bytes,
    fresh: bool,
) -> Result<Bytes, ReviewError> {
    let request = Request::post(path)
        .header(header::CONTENT_TYPE, "application/json")
        .header(header::ACCEPT, "application/json")
        .body(body::full(review))
        .map_err(not_understood)?;
    let options = SendOptions {
        fresh_connection: fresh,
        ..SendOptions::default()
    };
    let response = client
        .send(ConnectionClass::Short, request, options)
        .await?;
    if !response.status().is_success() {
        return Err(ReviewError::Refused(response.status()));
    }
    body::whole(response.into_body(), MAX_BYTES)
        .await
        .map_err(|error| ReviewError::Cut(error.to_string()))
}

fn not_understood(error: impl std::fmt::Display) -> ReviewError {
    ReviewError::NotUnderstood(error.to_string())
}
