//! Sends review objects to upstream and reads the verdicts.
use std::time::Duration;

use bytes::Bytes;
use http::{Request, header};
use k8s_openapi::api::authentication::v1::UserInfo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use super::error::ReviewError;
use super::identity::Identity;
use super::metrics;
use crate::body;
use crate::upstream::{ConnectionClass, SendOptions, UpstreamClient};

/// Time limit of the first attempt. A verdict takes milliseconds, so after this long the connection
/// is considered dead, and the second attempt uses a new one.
const FIRST_ATTEMPT: Duration = Duration::from_secs(3);
/// Time limit of the second attempt.
const SECOND_ATTEMPT: Duration = Duration::from_secs(7);
/// Size limit of an answer.
const MAX_BYTES: usize = 1 << 20;

/// Returns the user in a review's answer, or `None` if it has no name.
pub(super) fn identity(user: UserInfo) -> Option<Identity> {
    Some(Identity {
        user: user.username.filter(|name| !name.is_empty())?,
        uid: user.uid,
        groups: user.groups.unwrap_or_default(),
        extra: user.extra.unwrap_or_default().into_iter().collect(),
    })
}

/// Posts a review and returns upstream's answer.
pub(super) async fn post<T: DeserializeOwned>(
    client: &UpstreamClient,
    path: &str,
    review: &impl Serialize,
) -> Result<T, ReviewError> {
    let outcome = post_uncounted(client, path, review).await;
    metrics::reviewed(path, &outcome);
    outcome
}

async fn post_uncounted<T: DeserializeOwned>(
    client: &UpstreamClient,
    path: &str,
    review: &impl Serialize,
) -> Result<T, ReviewError> {
    let review = serde_json::to_vec(review).map_err(ReviewError::not_understood)?;
    let answer = send(client, path, review.into()).await?;
    serde_json::from_slice(&answer).map_err(ReviewError::not_understood)
}

async fn send(client: &UpstreamClient, path: &str, review: Bytes) -> Result<Bytes, ReviewError> {
    let first = attempt(client, path, review.clone(), false);
    if let Ok(answer) = timeout(FIRST_ATTEMPT, first).await {
        return answer;
    }
    let second = attempt(client, path, review, true);
    timeout(SECOND_ATTEMPT, second)
        .await
        .unwrap_or(Err(ReviewError::Late(FIRST_ATTEMPT + SECOND_ATTEMPT)))
}

async fn attempt(
    client: &UpstreamClient,
    path: &str,
    review: Bytes,
    fresh_connection: bool,
) -> Result<Bytes, ReviewError> {
    let request = Request::post(path)
        .header(header::CONTENT_TYPE, "application/json")
        .header(header::ACCEPT, "application/json")
        .body(body::full(review))
        .map_err(ReviewError::not_understood)?;
    let options = SendOptions {
        fresh_connection,
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
