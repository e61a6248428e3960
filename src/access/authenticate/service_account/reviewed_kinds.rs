//! The kinds of tokens of which upstream has reviewed one.
//!
//! Upstream says alike of all tokens that one key signed for one account and for the same audiences, while
//! they have not ended and what they are bound to exists.
use std::sync::Arc;
use std::time::{Duration, Instant};

use moka::ops::compute::Op;
use moka::sync::Cache;
use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::time::timeout;

use super::claims::{Claims, SigningKey};

/// Limit of the kinds that are remembered: a service account has one or two.
const MAX_KINDS: u64 = 50_000;
/// Limit of the kinds of which a first token is reviewed at a time. Others are reviewed without waiting.
const MAX_FIRST_REVIEWS: u64 = 10_000;
/// Time for which the tokens of a kind wait for the review of the first one.
const FIRST_REVIEW: Duration = Duration::from_secs(1);

/// A hash of all that tokens of a kind have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::access) struct TokenKind([u8; 32]);

impl TokenKind {
    /// Returns the kind of a token in a timeline of upstream's versions.
    pub(super) fn of(claims: &Claims, key: &SigningKey, timeline: u64) -> Self {
        let binding = &claims.binding;
        let secret = binding.secret.as_ref().map(|it| (&it.name, &it.uid));
        let has = [
            claims.jti.is_some(),
            binding.pod.is_some(),
            binding.node.is_some(),
        ];
        let common = (
            (timeline, &key.id, key.algorithm),
            (&claims.iss, &claims.aud),
            (&claims.sub, &binding.serviceaccount.uid),
            (secret, has),
        );
        let common = serde_json::to_vec(&common).expect("text and numbers are JSON");
        Self(*blake3::hash(&common).as_bytes())
    }
}

/// The kinds of which upstream accepted a token within a time, and has refused none since.
#[derive(Debug)]
pub(super) struct ReviewedKinds {
    last: Cache<TokenKind, LastReview>,
    /// Held while the first token of a kind is reviewed.
    first: Cache<TokenKind, Arc<Mutex<()>>>,
}

/// The turn of the token of a kind that is reviewed first. Others wait while it exists.
pub(in crate::access) struct FirstReview {
    _turn: OwnedMutexGuard<()>,
}

/// Upstream's last word on a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LastReview {
    Accepted,
    /// It named another user than the claims describe.
    OtherUser,
    Refused(Instant),
}

impl ReviewedKinds {
    /// Creates a memory of reviews that counts each of them for as long as `lifetime`.
    pub(super) fn new(lifetime: Duration) -> Self {
        let kinds = Cache::builder()
            .max_capacity(MAX_KINDS)
            .time_to_live(lifetime)
            .build();
        let first = Cache::builder()
            .max_capacity(MAX_FIRST_REVIEWS)
            .time_to_idle(FIRST_REVIEW)
            .build();
        Self { last: kinds, first }
    }

    /// Returns `true` if upstream accepts tokens of a kind.
    pub(super) fn accept(&self, kind: TokenKind) -> bool {
        self.last.get(&kind) == Some(LastReview::Accepted)
    }

    /// Returns a turn if a token of a kind is the first one to be reviewed. Otherwise waits until that is done,
    /// for a moment at most.
    pub(super) async fn begin(&self, kind: TokenKind) -> Option<FirstReview> {
        if self.last.contains_key(&kind) {
            return None;
        }
        let first = self.first.get_with(kind, Arc::default);
        if let Ok(turn) = Arc::clone(&first).try_lock_owned() {
            return Some(FirstReview { _turn: turn });
        }
        let _ = timeout(FIRST_REVIEW, first.lock()).await;
        None
    }

    /// Notes that upstream accepted a token of a kind, in a review that began at `asked`. A refusal since
    /// then stands. `is_described` says that its user was the one of the claims.
    pub(super) fn note_accepted(&self, kind: TokenKind, asked: Instant, is_described: bool) {
        let review = if is_described {
            LastReview::Accepted
        } else {
            LastReview::OtherUser
        };
        self.last
            .entry(kind)
            .and_compute_with(|last| match last.map(moka::Entry::into_value) {
                Some(LastReview::Refused(at)) if at >= asked => Op::Nop,
                _ => Op::Put(review),
            });
    }

    /// Notes that upstream refused a token of a kind.
    pub(super) fn note_refused(&self, kind: TokenKind) {
        let refused = LastReview::Refused(Instant::now());
        self.last.entry(kind).and_compute_with(|_| Op::Put(refused));
    }
}

#[cfg(test)]
mod tests {
    use jsonwebtoken::Algorithm;
    use serde_json::{Value, json};

    use super::*;
    use crate::test_support::{claims, claims_with};

    const ONE: TokenKind = TokenKind([1; 32]);
    const OTHER: TokenKind = TokenKind([2; 32]);

    fn kind_of(claims: Value, key: &str) -> TokenKind {
        let key = SigningKey {
            algorithm: Algorithm::ES256,
            id: key.to_owned(),
        };
        TokenKind::of(&serde_json::from_value(claims).unwrap(), &key, 0)
    }

    #[test]
    fn tokens_of_a_kind_differ_in_their_times_names_and_pods_only() {
        let first = kind_of(claims(), "key");
        for (path, value) in [
            ("/exp", json!(i64::MAX)),
            ("/jti", json!("other")),
            ("/kubernetes.io/pod/name", json!("other")),
            ("/kubernetes.io/pod/uid", json!("other")),
            ("/kubernetes.io/node/name", json!("other")),
        ] {
            assert_eq!(kind_of(claims_with(path, value), "key"), first, "{path}");
        }
        for (path, value) in [
            ("/iss", json!("https://other.test")),
            ("/aud", json!(["https://other.test"])),
            ("/aud", json!([])),
            ("/aud", json!(["https://issuer.test", "https://other.test"])),
            ("/sub", json!("system:serviceaccount:n:other")),
            ("/jti", Value::Null),
            ("/kubernetes.io/serviceaccount/uid", json!("sa-2")),
            ("/kubernetes.io/pod", Value::Null),
            ("/kubernetes.io/node", Value::Null),
        ] {
            assert_ne!(kind_of(claims_with(path, value), "key"), first, "{path}");
        }
        let with_secret = |name: &str| {
            let mut claims = claims();
            claims["kubernetes.io"]["secret"] = json!({"name": name, "uid": "1"});
            kind_of(claims, "key")
        };
        assert_ne!(with_secret("a"), first);
        assert_ne!(with_secret("a"), with_secret("b"));
        assert_ne!(kind_of(claims(), "other key"), first);
    }

    #[test]
    fn a_refusal_ends_its_kind_and_no_other() {
        let kinds = ReviewedKinds::new(Duration::from_mins(1));
        for kind in [ONE, OTHER] {
            assert!(!kinds.accept(kind));
            kinds.note_accepted(kind, Instant::now(), true);
            assert!(kinds.accept(kind));
        }
        kinds.note_refused(ONE);
        assert!(!kinds.accept(ONE));
        assert!(kinds.accept(OTHER));
        kinds.note_accepted(ONE, Instant::now(), true);
        assert!(kinds.accept(ONE), "it was accepted again");
    }

    #[tokio::test(start_paused = true)]
    async fn tokens_of_a_kind_wait_for_the_first_review_a_moment_at_most() {
        let kinds = ReviewedKinds::new(Duration::from_mins(1));
        let first = kinds.begin(ONE).await;
        assert!(first.is_some() && kinds.begin(OTHER).await.is_some());
        let begun = tokio::time::Instant::now();
        assert!(kinds.begin(ONE).await.is_none());
        assert_eq!(begun.elapsed(), FIRST_REVIEW, "it hangs");
        kinds.note_refused(ONE);
        kinds.note_accepted(OTHER, Instant::now(), false);
        for kind in [ONE, OTHER] {
            assert!(!kinds.accept(kind) && kinds.begin(kind).await.is_none());
        }
        assert_eq!(begun.elapsed(), FIRST_REVIEW, "each is reviewed by itself");
    }

    #[test]
    fn a_refusal_during_a_review_is_the_last_word() {
        let kinds = ReviewedKinds::new(Duration::from_mins(1));
        let asked = Instant::now();
        kinds.note_refused(ONE);
        kinds.note_accepted(ONE, asked, true);
        assert!(!kinds.accept(ONE));
    }
}
