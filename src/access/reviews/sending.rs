//! Sends review objects to upstream and reads the verdicts.
use std::pin::{Pin, pin};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, header};
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, UserInfo};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use crate::access::error::ReviewError;
use crate::access::identity::Identity;
use crate::access::reviews::sent::{ReviewAnswer, ReviewEndpoint, SentReview};
use crate::body;
use crate::upstream::{ConnectionClass, SendOptions, UpstreamClient};

/// Time after which a review is sent a second time. A verdict takes milliseconds, so the connection may be
/// dead: the second attempt uses a new one. The first goes on, as upstream may be slow.
const ALONE: Duration = Duration::from_secs(3);
/// Time limit of both.
const LIMIT: Duration = Duration::from_secs(10);
/// Size limit of an answer.
const MAX_BYTES: usize = 1 << 20;
/// The media type of a review, and upstream's own form of the answer.
pub(in crate::access) const JSON: &str = "application/json";

/// Returns the user in a review's answer, or `None` if it has no name.
pub(in crate::access) fn identity(user: UserInfo) -> Option<Identity> {
    Some(Identity {
        user: user.username.filter(|name| !name.is_empty())?,
        uid: user.uid,
        groups: user.groups.unwrap_or_default(),
        extra: user.extra.unwrap_or_default().into_iter().collect(),
    })
}

/// Returns a user in the form of a review's answer.
pub(in crate::access) fn user_info(identity: &Identity) -> UserInfo {
    let Identity {
        user,
        uid,
        groups,
        extra,
    } = identity;
    UserInfo {
        username: Some(user.clone()),
        uid: uid.clone(),
        groups: Some(groups.clone()),
        extra: Some(extra.iter().cloned().collect()),
    }
}

/// Returns the review of a token for these audiences, or for upstream's own.
pub(in crate::access) fn token_review(
    token: String,
    audiences: Option<Vec<String>>,
) -> TokenReview {
    TokenReview {
        spec: TokenReviewSpec { token, audiences },
        ..TokenReview::default()
    }
}

/// Posts a review and returns upstream's answer, which has one of the accepted media types.
pub(in crate::access) async fn post<T: ReviewAnswer>(
    client: &UpstreamClient,
    endpoint: ReviewEndpoint,
    review: &impl Serialize,
    accepted: &'static str,
) -> Result<T, ReviewError> {
    let sent = SentReview::begin(endpoint);
    let outcome = post_uncounted(client, endpoint, review, accepted).await;
    sent.ended(&outcome);
    outcome
}

async fn post_uncounted<T: DeserializeOwned>(
    client: &UpstreamClient,
    endpoint: ReviewEndpoint,
    review: &impl Serialize,
    accepted: &'static str,
) -> Result<T, ReviewError> {
    let json = serde_json::to_vec(review).map_err(ReviewError::not_understood)?;
    let review = ReviewToSend {
        path: endpoint.path,
        json: json.into(),
        accepted,
    };
    let answer = send(client, &review).await?;
    serde_json::from_slice(&answer).map_err(ReviewError::not_understood)
}

/// A review on its way to upstream.
struct ReviewToSend {
    path: &'static str,
    json: Bytes,
    accepted: &'static str,
}

async fn send(client: &UpstreamClient, review: &ReviewToSend) -> Result<Bytes, ReviewError> {
    let mut first = pin!(attempt(client, review, false));
    if let Ok(answer) = timeout(ALONE, &mut first).await {
        return answer;
    }
    let second = pin!(attempt(client, review, true));
    timeout(LIMIT.saturating_sub(ALONE), either(first, second))
        .await
        .unwrap_or(Err(ReviewError::Late(LIMIT)))
}

/// Returns the first answer. An attempt that finds upstream unavailable leaves it to the other one.
async fn either<T>(
    mut first: Pin<&mut impl Future<Output = Result<T, ReviewError>>>,
    mut second: Pin<&mut impl Future<Output = Result<T, ReviewError>>>,
) -> Result<T, ReviewError> {
    tokio::select! {
        answer = &mut first => match answer {
            Err(error) if error.is_unavailable() => second.await,
            answer => answer,
        },
        answer = &mut second => match answer {
            Err(error) if error.is_unavailable() => first.await,
            answer => answer,
        },
    }
}

async fn attempt(
    client: &UpstreamClient,
    review: &ReviewToSend,
    fresh_connection: bool,
) -> Result<Bytes, ReviewError> {
    let request = Request::post(review.path)
        .header(header::CONTENT_TYPE, JSON)
        .header(header::ACCEPT, review.accepted)
        .body(body::full(review.json.clone()))
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

#[cfg(test)]
mod tests {
    use http::StatusCode;
    use tokio::time::sleep;

    use super::*;

    async fn after(seconds: u64, status: u16) -> Result<u16, ReviewError> {
        sleep(Duration::from_secs(seconds)).await;
        let status = StatusCode::from_u16(status).unwrap();
        if status.is_success() {
            Ok(status.as_u16())
        } else {
            Err(ReviewError::Refused(status))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_answer_counts_and_one_that_upstream_is_unavailable_does_not() {
        for (first, second, wanted) in [
            ((1, 200), (2, 201), 200),
            ((2, 200), (1, 201), 201),
            ((1, 503), (2, 201), 201),
            ((2, 200), (1, 429), 200),
            ((1, 401), (2, 201), 401),
            ((2, 200), (1, 403), 403),
            ((1, 503), (2, 429), 429),
        ] {
            let first_attempt = pin!(after(first.0, first.1));
            let second_attempt = pin!(after(second.0, second.1));
            let answer = match either(first_attempt, second_attempt).await {
                Err(ReviewError::Refused(status)) => status.as_u16(),
                other => other.unwrap(),
            };
            assert_eq!(answer, wanted, "{first:?} {second:?}");
        }
    }
}
