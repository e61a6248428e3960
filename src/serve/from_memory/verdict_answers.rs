//! Answers another proxy that asks for a verdict about one of its callers.
use std::sync::Arc;
use std::time::Duration;

use http_body::Body as _;
use hyper::body::Incoming;
use tokio::time::timeout;
use watershed_protocol::Status;

use crate::access::{Identity, ProxyReview, ReviewType};
use crate::body;
use crate::fairness::{CallerKey, Share, Shares};
use crate::serve::review;
use crate::serve::unanswered::Refusal;

/// Reviews that are read and decided at a time, half of them for one user. Others are forwarded.
const AT_ONCE: u64 = 2_048;
/// Size limit of a review. Longer ones are forwarded.
const MAX_BYTES: usize = 8 << 10;
/// Time limit for its arrival.
const ARRIVAL: Duration = Duration::from_secs(5);

/// Answers reviews of other proxies.
#[derive(Debug)]
pub(in crate::serve) struct VerdictAnswers {
    turns: Shares,
}

impl Default for VerdictAnswers {
    fn default() -> Self {
        Self {
            turns: Shares::bounded(AT_ONCE),
        }
    }
}

impl VerdictAnswers {
    /// Returns a turn for a review that a proxy sends, unless it is too long or too many are there.
    pub(in crate::serve) fn turn(&self, proxy: &Arc<Identity>, body: &Incoming) -> Option<Share> {
        let is_short = body
            .size_hint()
            .upper()
            .is_some_and(|size| size <= MAX_BYTES as u64);
        let take = || self.turns.take(CallerKey::user(&proxy.user), 1);
        is_short.then(take).flatten()
    }
}

/// Reads a review. The request cannot be forwarded any more then.
pub(in crate::serve) async fn read(
    asked: ReviewType,
    body: &mut Incoming,
) -> Result<ProxyReview, Refusal> {
    let json = timeout(ARRIVAL, body::whole(body, MAX_BYTES)).await;
    let json = json
        .map_err(|_| unreadable("it did not arrive in time"))?
        .map_err(|error| unreadable(&error.to_string()))?;
    ProxyReview::read(asked, &json).ok_or_else(review::only_upstream)
}

fn unreadable(why: &str) -> Refusal {
    let message = format!("the review cannot be read: {why}");
    Refusal::access(Status::service_unavailable(message, 1))
}
