//! The tokens that upstream accepted and refused, by their hashes. Tokens themselves are never stored.
use std::sync::Arc;
use std::time::{Duration, Instant};

use moka::future;
use moka::ops::compute::{CompResult, Op};
use moka::sync::Cache;

use super::service_account::TokenKind;
use crate::access::identity::Identity;
use crate::scope::Timeline;

/// Time after which an accepted token is reviewed again, even if it can be validated locally.
pub(in crate::access) const ACCEPTED_TTL: Duration = Duration::from_hours(1);
/// Time for which a refusal is remembered. Another one of the same token is a repetition then, and no review
/// of another token tells its user.
const REFUSED_LATELY: Duration = ACCEPTED_TTL;
/// Entry limit of each cache.
pub(super) const MAX_TOKENS: u64 = 100_000;

/// The keyed hash of a bearer token, for looking up what is known of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Credential([u8; 32]);

/// The recent answers of upstream about tokens.
pub(super) struct KnownTokens {
    /// Nothing that was found out in an earlier timeline of upstream's versions counts.
    timeline: Timeline,
    /// The key of the hashes, random in each process.
    key: [u8; 32],
    /// The users of accepted tokens, for as long as the tokens may be validated locally.
    accepted: future::Cache<Credential, Arc<Identity>>,
    /// The users of tokens accepted lately. For counting only: the tokens may have expired.
    counted: future::Cache<Credential, Arc<Identity>>,
    /// Tokens with which upstream lately answered forwarded requests. Nothing is granted by them.
    answered: Cache<Credential, ()>,
    /// Tokens that were refused lately, with the time.
    refused: Cache<Credential, Instant>,
    /// The kinds of tokens that were found to be signed.
    kinds: Cache<Credential, TokenKind>,
}

impl KnownTokens {
    pub(super) fn new(timeline: Timeline) -> Self {
        let mut key = [0; 32];
        getrandom::fill(&mut key).expect("the operating system gives random bytes");
        let users = || {
            future::Cache::builder()
                .max_capacity(MAX_TOKENS)
                .time_to_live(ACCEPTED_TTL)
                .build()
        };
        Self {
            timeline,
            key,
            accepted: users(),
            counted: users(),
            answered: remembered_for(ACCEPTED_TTL),
            refused: remembered_for(REFUSED_LATELY),
            kinds: remembered_for(ACCEPTED_TTL),
        }
    }

    /// Returns the hash of a token, which is another one in each timeline. So nothing that was
    /// found out in an earlier one is found again, not even by a review that is under way.
    pub(super) fn credential(&self, token: &str) -> Credential {
        let mut key = self.key;
        for (byte, part) in key.iter_mut().zip(self.timeline.number().to_le_bytes()) {
            *byte ^= part;
        }
        Credential(*blake3::keyed_hash(&key, token.as_bytes()).as_bytes())
    }

    /// Returns `true` if upstream accepted a token within the last hour. Grants nothing: it may
    /// have ended since.
    pub(super) fn was_accepted(&self, credential: &Credential) -> bool {
        self.counted.contains_key(credential) || self.was_answered(credential)
    }

    /// Returns `true` if upstream accepted a token with a forwarded request within the last hour.
    pub(super) fn was_answered(&self, credential: &Credential) -> bool {
        self.answered.contains_key(credential)
    }

    /// Returns `true` if a token was refused within the last hour, and no review accepted it since.
    pub(super) fn was_refused(&self, credential: &Credential) -> bool {
        self.refused.contains_key(credential)
    }

    /// Returns the user of a token that a review accepted within the last hour.
    pub(super) async fn accepted(&self, credential: &Credential) -> Option<Arc<Identity>> {
        self.accepted.get(credential).await
    }

    /// Returns the user of a token whose user was found out within the last hour. For counting only.
    pub(super) async fn counted(&self, credential: &Credential) -> Option<Arc<Identity>> {
        self.counted.get(credential).await
    }

    /// Returns the kind of a token, if it was found to be signed within the last hour.
    pub(super) fn kind(&self, credential: &Credential) -> Option<TokenKind> {
        self.kinds.get(credential)
    }

    /// Notes the kind of a token that was found to be signed, or that it was not.
    pub(super) fn note_kind(&self, credential: Credential, kind: Option<TokenKind>) {
        match kind {
            Some(kind) => self.kinds.insert(credential, kind),
            // It has ended, so what upstream says of it says nothing about others.
            None => self.kinds.invalidate(&credential),
        }
    }

    /// Notes the user of a token.
    pub(super) async fn note_user(&self, credential: Credential, user: &Arc<Identity>) {
        self.counted.insert(credential, Arc::clone(user)).await;
    }

    /// Notes that upstream accepted a token with a forwarded request.
    pub(super) fn note_answered(&self, credential: &Credential) {
        if !self.was_accepted(credential) {
            self.answered.insert(*credential, ());
        }
    }

    /// Notes that a review accepted a token. It began at `asked`. The user is remembered if the token may be
    /// validated here. Returns `false` if upstream refused it meanwhile: then the next request has it reviewed.
    pub(super) async fn note_accepted(
        &self,
        credential: Credential,
        user: &Arc<Identity>,
        asked: Instant,
        is_validated_here: bool,
    ) -> bool {
        if is_validated_here {
            self.accepted.insert(credential, Arc::clone(user)).await;
        }
        let refusal = self.refused.entry(credential);
        let refusal = refusal.and_compute_with(|last| match last {
            Some(last) if *last.value() >= asked => Op::Nop,
            _ => Op::Remove,
        });
        let was_refused = matches!(refusal, CompResult::Unchanged(_));
        if was_refused {
            self.accepted.invalidate(&credential).await;
        }
        !was_refused
    }

    /// Remembers that a token was refused, and forgets that it was accepted. Returns `true` if it was refused
    /// lately.
    pub(super) async fn note_refused(&self, credential: Credential) -> bool {
        let was_refused = self.was_refused(&credential);
        // Not by `insert`, so that a review that ends now either sees it or comes before it.
        let refusal = self.refused.entry(credential);
        refusal.and_compute_with(|_| Op::Put(Instant::now()));
        self.accepted.invalidate(&credential).await;
        self.answered.invalidate(&credential);
        self.counted.invalidate(&credential).await;
        was_refused
    }
}

fn remembered_for<T: Clone + Send + Sync + 'static>(time: Duration) -> Cache<Credential, T> {
    Cache::builder()
        .max_capacity(MAX_TOKENS)
        .time_to_live(time)
        .build()
}
