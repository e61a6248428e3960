//! Local validation of service accounts' tokens.
//!
//! A token never changes. It ends with its expiry, with the key that signed it, or with an object
//! that it is bound to. This module checks all three. Whether upstream accepts such a token at all, and as
//! whom, is always known from a review: of the token itself, or of another one of its kind.
//!
//! Source: `pkg/serviceaccount/{jwt,claims}.go`.
mod claims;
mod reviewed_kinds;

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::token_inspection;
use super::token_issuer::TokenIssuer;
use crate::access::identity::Identity;
use claims::{BoundObject, Claims, SigningKey, TokenBinding};
use reviewed_kinds::ReviewedKinds;

pub(in crate::access) use reviewed_kinds::{FirstReview, TokenKind};

/// The objects that tokens can be bound to.
pub trait BoundObjects: Send + Sync {
    /// Returns `true` if an object of the core group exists with this unique id and is not being
    /// deleted. `resource` is its plural name. Returns `None` if the proxy does not know.
    fn is_present(
        &self,
        resource: &str,
        namespace: Option<&str>,
        name: &str,
        uid: &str,
    ) -> Option<bool>;
}

/// Validates tokens, and knows which kinds of tokens upstream accepts.
pub(in crate::access) struct ServiceAccounts {
    issuer: Arc<TokenIssuer>,
    audiences: Vec<String>,
    objects: Arc<dyn BoundObjects>,
    reviewed_kinds: ReviewedKinds,
}

/// A token that upstream's key signed, and that has not ended by itself.
#[derive(Debug)]
pub(in crate::access) struct SignedToken {
    claims: Claims,
    /// The tokens that a review of it speaks for.
    pub(in crate::access) kind: TokenKind,
}

impl ServiceAccounts {
    /// Creates a validator of tokens for these audiences, or for upstream's own. A review counts for its
    /// kind of tokens for as long as `lifetime`.
    pub(in crate::access) fn new(
        issuer: Arc<TokenIssuer>,
        audiences: Vec<String>,
        objects: Arc<dyn BoundObjects>,
        lifetime: Duration,
    ) -> Self {
        Self {
            issuer,
            audiences,
            objects,
            reviewed_kinds: ReviewedKinds::new(lifetime),
        }
    }

    /// Reads a token in a timeline of upstream's versions. Returns `None` if only upstream can tell
    /// whether it is valid.
    pub(in crate::access) async fn read(&self, token: &str, timeline: u64) -> Option<SignedToken> {
        let key = SigningKey::of(token)?;
        let documents = self.issuer.documents().await?;
        let claims = Claims::verified(token, &key, &documents.keys, &self.audiences)?;
        // The proxy's own clock may be slow.
        let has_ended = documents
            .passed_second()
            .is_some_and(|now| claims.exp <= now);
        let kind = TokenKind::of(&claims, &key, timeline);
        (!has_ended).then_some(SignedToken { claims, kind })
    }

    /// Returns `true` if all objects exist that a token is bound to, and `accepted` is its user.
    pub(in crate::access) fn is_still_valid(
        &self,
        token: &SignedToken,
        accepted: &Identity,
    ) -> bool {
        token.claims.sub == accepted.user && self.are_present(&token.claims.binding)
    }

    /// Returns the user of a token, if all objects exist that it is bound to, and upstream has lately accepted
    /// another one of its kind.
    pub(in crate::access) fn user(&self, token: &SignedToken) -> Option<Arc<Identity>> {
        let is_valid =
            self.reviewed_kinds.accept(token.kind) && self.are_present(&token.claims.binding);
        is_valid.then(|| Arc::new(token.claims.user()))
    }

    /// Returns a turn if a token is the first of its kind to be reviewed. Otherwise waits until that is done, for
    /// a moment at most: its user may be known then.
    pub(in crate::access) async fn begin_review(&self, token: &SignedToken) -> Option<FirstReview> {
        self.reviewed_kinds.begin(token.kind).await
    }

    /// Notes that upstream accepted a token as one of `user`, in a review that began at `asked`. If the
    /// claims describe another user, tokens of the kind are reviewed one by one.
    pub(in crate::access) fn note_accepted(
        &self,
        token: &SignedToken,
        user: &Identity,
        asked: Instant,
    ) {
        let is_described = token.claims.user() == *user;
        self.reviewed_kinds
            .note_accepted(token.kind, asked, is_described);
    }

    /// Notes that upstream refused a token. It says nothing about others if an object is gone that the token
    /// was bound to.
    pub(in crate::access) fn note_refused(&self, token: &SignedToken) {
        if self.are_present(&token.claims.binding) {
            self.note_refused_kind(token.kind);
        }
    }

    /// Notes that upstream refused a token of a kind.
    pub(in crate::access) fn note_refused_kind(&self, kind: TokenKind) {
        self.reviewed_kinds.note_refused(kind);
    }

    /// Returns `true` if all objects that a token is bound to exist.
    fn are_present(&self, binding: &TokenBinding) -> bool {
        let TokenBinding {
            namespace,
            serviceaccount,
            pod,
            secret,
            node,
            ..
        } = binding;
        let inside = Some(&**namespace);
        // A pod's token names its node, too, but ends with the pod.
        let node = node.as_ref().filter(|_| pod.is_none());
        self.is_present("serviceaccounts", inside, Some(serviceaccount))
            && self.is_present("pods", inside, pod.as_ref())
            && self.is_present("secrets", inside, secret.as_ref())
            && self.is_present("nodes", None, node)
    }

    /// Returns `true` if an object exists. Without an object there is nothing to miss.
    fn is_present(
        &self,
        resource: &str,
        namespace: Option<&str>,
        object: Option<&BoundObject>,
    ) -> bool {
        object.is_none_or(|BoundObject { name, uid }| {
            self.objects.is_present(resource, namespace, name, uid) == Some(true)
        })
    }
}

/// Returns `true` if a token says that it is bound to a service account. Nothing is verified by that.
pub(in crate::access) fn is_bound(token: &str) -> bool {
    token_inspection::parse::<IgnoredAny, BoundToken>(token).is_some()
}

/// The claim that makes a token one of a service account.
#[derive(Deserialize)]
struct BoundToken {
    #[serde(rename = "kubernetes.io")]
    _binding: IgnoredAny,
}

#[cfg(test)]
mod tests;
