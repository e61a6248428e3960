//! The issuer of upstream's service account tokens: its name, its keys and its clock.
//!
//! Source: `pkg/serviceaccount/openidmetadata.go`, `pkg/routes/openidmetadata.go`.
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use http::{HeaderMap, Request, Response, StatusCode, header};
use jiff::Timestamp;
use jsonwebtoken::jwk::JwkSet;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::time::Instant;

use crate::access::moment::LatestMoment;
use crate::body;
use crate::upstream::{
    AnswerError, ConnectionClass, SendOptions, ServedBy, UpstreamClient, in_time,
};

/// Upstream's path of the keys that sign its tokens.
pub(in crate::access) const KEYS_PATH: &str = "/openid/v1/jwks";
/// Upstream's path of the document that names the issuer.
const ISSUER_PATH: &str = "/.well-known/openid-configuration";
/// The issuer of tokens that never expire and have no key of their own.
/// Source: `pkg/serviceaccount/legacy.go` (LegacyIssuer).
const LEGACY_ISSUER: &str = "kubernetes/serviceaccount";
/// The header of keys that are files of upstream, in all its releases. That of an external signer's
/// keys counts the seconds until they are fetched again.
/// Source: `pkg/serviceaccount/jwt.go`, `pkg/serviceaccount/externaljwt/plugin/keycache.go`
/// (`GetCacheAgeMaxSeconds`).
const STATIC_KEYS: &str = "public, max-age=3600";
/// Time for which the documents are cached. A withdrawn key is accepted for at most this long.
const DOCUMENTS_TTL: Duration = Duration::from_mins(1);
/// The same for [`STATIC_KEYS`], while the connection is open on which they came: an API server reads
/// their files at its start alone. A balancer that ends connections itself may hide its restart.
const STATIC_KEYS_TTL: Duration = Duration::from_mins(10);
/// Shortest time between two readings of the documents.
const PACE: Duration = Duration::from_secs(1);
/// Time after a failure before the documents are fetched again.
const RETRY_AFTER_FAILURE: Duration = Duration::from_secs(10);
/// Time limit of fetching the documents.
const FETCH_TIMEOUT: Duration = Duration::from_secs(5);
const MAX_DOCUMENT_BYTES: usize = 1 << 20;

/// The documents that are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::access) enum IssuerQuery {
    /// The keys. They suffice for validating tokens that upstream accepted.
    Keys,
    KeysAndName,
}

/// Reads what upstream publishes about its issuer, and caches it.
pub(in crate::access) struct TokenIssuer {
    client: UpstreamClient,
    query: IssuerQuery,
    known: ArcSwapOption<IssuerDocuments>,
    /// The time of the last failure. The lock is held while the documents are fetched.
    failed: Arc<Mutex<Option<Instant>>>,
}

/// The issuer's documents, read at one time.
pub(in crate::access) struct IssuerDocuments {
    pub(in crate::access) keys: JwkSet,
    /// Upstream sent [`STATIC_KEYS`] with the keys.
    said_static: bool,
    /// It did so twice, more than a second apart, so that it was no number on its way down.
    are_static: bool,
    /// The API server that sent the keys. `None` unless they are static, and the name was not asked for.
    server: Option<ServedBy>,
    /// The last moment at which its connection was seen open.
    confirmed: LatestMoment,
    /// `None` if upstream does not say, or was not asked.
    name: Option<String>,
    /// A moment before the requests.
    requested: Instant,
    /// A moment after the answers.
    received: Instant,
    clock: Option<UpstreamClock>,
}

/// The time of upstream's clock at a moment after upstream sent it.
#[derive(Clone, Copy)]
struct UpstreamClock {
    second: i64,
    received: Instant,
}

#[derive(Deserialize)]
struct IssuerDocument {
    issuer: String,
}

impl TokenIssuer {
    pub(in crate::access) fn new(client: UpstreamClient, query: IssuerQuery) -> Self {
        Self {
            client,
            query,
            known: ArcSwapOption::empty(),
            failed: Arc::default(),
        }
    }

    /// Returns documents that were read, or are known not to have changed, within the last minute. Returns
    /// `None` if they cannot be read.
    pub(in crate::access) async fn documents(self: &Arc<Self>) -> Option<Arc<IssuerDocuments>> {
        self.read_unless(|known| known.are_current(Instant::now()))
            .await
    }

    /// Returns documents that were read since a moment, or `None` if they cannot be read. Waits
    /// for up to a second, so that many callers share a reading.
    pub(in crate::access) async fn documents_since(
        self: &Arc<Self>,
        moment: Instant,
    ) -> Option<Arc<IssuerDocuments>> {
        self.read_unless(|known| known.requested >= moment).await
    }

    /// Reads the documents, unless the known ones do.
    async fn read_unless(
        self: &Arc<Self>,
        does: impl Fn(&IssuerDocuments) -> bool,
    ) -> Option<Arc<IssuerDocuments>> {
        let known = || self.known.load_full();
        if let Some(known) = known().filter(|it| does(it)) {
            return Some(known);
        }
        let failed = Arc::clone(&self.failed).lock_owned().await;
        // Another task may have fetched them meanwhile.
        let known = known();
        if known.as_deref().is_some_and(&does) {
            return known;
        }
        // The tasks that waited for the lock do not try again one after the other. Their tokens are
        // reviewed.
        if failed.is_some_and(|at| at.elapsed() < RETRY_AFTER_FAILURE) {
            return None;
        }
        // In a task of its own: a caller may go away at any time, and the answer counts for all.
        let reading = tokio::spawn(Arc::clone(self).read(known, failed));
        reading.await.ok().flatten()
    }

    /// Reads the documents, which takes at most a second and [`FETCH_TIMEOUT`].
    async fn read(
        self: Arc<Self>,
        known: Option<Arc<IssuerDocuments>>,
        mut failed: OwnedMutexGuard<Option<Instant>>,
    ) -> Option<Arc<IssuerDocuments>> {
        if let Some(known) = &known {
            tokio::time::sleep(PACE.saturating_sub(known.received.elapsed())).await;
        }
        match self.fetch(known.as_deref()).await {
            Ok(documents) => {
                *failed = None;
                let documents = Arc::new(documents);
                self.known.store(Some(Arc::clone(&documents)));
                Some(documents)
            }
            Err(error) => {
                *failed = Some(Instant::now());
                tracing::warn!(
                    %error,
                    advice = advice(&error),
                    "cannot read the keys of service account tokens from upstream"
                );
                None
            }
        }
    }

    async fn fetch(
        &self,
        before: Option<&IssuerDocuments>,
    ) -> Result<IssuerDocuments, AnswerError> {
        // The age counts from before the requests, so the documents are never older than that.
        let requested = Instant::now();
        // At the same time, so that a slow name takes nothing of the keys' time.
        let (keys, name) = tokio::join!(self.keys(), self.name());
        let (keys, answer) = keys?;
        let lifetime = answer.headers().get(header::CACHE_CONTROL);
        let said_static = lifetime.is_some_and(|lifetime| lifetime == STATIC_KEYS);
        let are_static = said_static && before.is_some_and(|before| before.said_static);
        Ok(IssuerDocuments {
            keys,
            said_static,
            are_static,
            server: ServedBy::directly(&answer)
                .filter(|_| are_static && self.query == IssuerQuery::Keys),
            confirmed: LatestMoment::default(),
            name,
            requested,
            received: Instant::now(),
            clock: UpstreamClock::read(answer.headers()),
        })
    }

    async fn keys(&self) -> Result<(JwkSet, Response<()>), AnswerError> {
        self.get(KEYS_PATH, "application/jwk-set+json").await
    }

    async fn name(&self) -> Option<String> {
        if self.query == IssuerQuery::Keys {
            return None;
        }
        match self.get(ISSUER_PATH, "application/json").await {
            Ok((IssuerDocument { issuer }, _)) => Some(issuer),
            Err(error) => {
                tracing::debug!(%error, "the issuer is not known");
                None
            }
        }
    }

    async fn get<T: DeserializeOwned>(
        &self,
        path: &str,
        accept: &str,
    ) -> Result<(T, Response<()>), AnswerError> {
        let unusable = |error: &dyn fmt::Display| AnswerError::Unusable(error.to_string());
        let request = Request::get(path)
            .header(header::ACCEPT, accept)
            .body(body::empty())
            .map_err(|error| unusable(&error))?;
        let asked = async {
            // A connection of watches stays open, and shows so that the server is the same.
            let response = self
                .client
                .send(ConnectionClass::Watch, request, SendOptions::default())
                .await?;
            if response.status() != StatusCode::OK {
                return Err(AnswerError::refused(&response));
            }
            let (parts, body) = response.into_parts();
            let bytes = body::whole(body, MAX_DOCUMENT_BYTES).await;
            let bytes = bytes.map_err(AnswerError::of_body)?;
            let document = serde_json::from_slice(&bytes).map_err(|error| unusable(&error))?;
            Ok((document, Response::from_parts(parts, ())))
        };
        in_time(FETCH_TIMEOUT, asked).await
    }
}

/// Returns what an operator can do about keys that cannot be read.
fn advice(error: &AnswerError) -> Option<&'static str> {
    (error.status() == Some(StatusCode::FORBIDDEN)).then_some(
        "the proxy's identity needs the ClusterRole system:service-account-issuer-discovery",
    )
}

impl IssuerDocuments {
    /// Returns `true` if the documents may be used at this moment without being read again.
    fn are_current(&self, now: Instant) -> bool {
        if self.server.as_ref().is_some_and(ServedBy::is_connected) {
            let is_current = now < self.requested + STATIC_KEYS_TTL;
            if is_current {
                self.confirmed.note(now);
            }
            return is_current;
        }
        let confirmed = self.confirmed.get().unwrap_or(self.requested);
        now < confirmed.max(self.requested) + DOCUMENTS_TTL
    }

    /// Returns `true` if the issuer has this name, and its tokens expire.
    pub(in crate::access) fn is_named(&self, name: &str) -> bool {
        name != LEGACY_ISSUER && self.name.as_deref() == Some(name)
    }

    /// Returns `true` if upstream has no key but these. An external signer may have others: keys that
    /// it excludes from discovery, and new ones, which upstream fetches when a token names them.
    pub(in crate::access) fn has_all_keys(&self) -> bool {
        self.are_static
    }

    /// Returns a second since the epoch that has passed on upstream's clock. The proxy's own clock
    /// may be wrong.
    pub(in crate::access) fn passed_second(&self) -> Option<i64> {
        let clock = self.clock?;
        let elapsed = i64::try_from(clock.received.elapsed().as_secs()).ok()?;
        clock.second.checked_add(elapsed)
    }
}

impl UpstreamClock {
    /// Reads the time at which upstream sent an answer that has arrived.
    fn read(headers: &HeaderMap) -> Option<Self> {
        let date = headers.get(header::DATE)?.to_str().ok()?;
        let sent = jiff::fmt::rfc2822::parse(date).ok()?;
        Some(Self {
            second: Timestamp::from(sent).as_second(),
            received: Instant::now(),
        })
    }
}

#[cfg(test)]
mod tests;
