//! The issuer of upstream's service account tokens: its name, its keys and its clock.
//!
//! Source: `pkg/serviceaccount/openidmetadata.go`, `pkg/routes/openidmetadata.go`.
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use http::{HeaderMap, Request, StatusCode, header};
use jiff::Timestamp;
use jsonwebtoken::jwk::JwkSet;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::sync::Mutex;
use tokio::time::timeout;

use crate::body;
use crate::upstream::{ConnectionClass, SendOptions, UpstreamClient};

/// Upstream's path of the keys that sign its tokens.
pub(super) const KEYS_PATH: &str = "/openid/v1/jwks";
/// Upstream's path of the document that names the issuer.
const ISSUER_PATH: &str = "/.well-known/openid-configuration";
/// The issuer of tokens that never expire and have no key of their own.
/// Source: `pkg/serviceaccount/legacy.go` (LegacyIssuer).
const LEGACY_ISSUER: &str = "kubernetes/serviceaccount";
/// Time for which the documents are cached. A withdrawn key is accepted for at most this long.
const DOCUMENTS_TTL: Duration = Duration::from_mins(1);
/// Shortest time between two readings of the documents.
const PACE: Duration = Duration::from_secs(1);
/// Time after a failure before the documents are fetched again.
const RETRY_AFTER_FAILURE: Duration = Duration::from_secs(10);
/// Time limit of fetching the documents.
const FETCH_TIMEOUT: Duration = Duration::from_secs(5);
const MAX_DOCUMENT_BYTES: usize = 1 << 20;

/// Reads what upstream publishes about its issuer, and caches it for a minute.
pub(super) struct TokenIssuer {
    client: UpstreamClient,
    known: ArcSwapOption<IssuerDocuments>,
    /// The time of the last failure. The lock is held while the documents are fetched.
    failed: Mutex<Option<Instant>>,
}

/// What upstream published at one time.
pub(super) struct IssuerDocuments {
    pub(super) keys: JwkSet,
    /// `None` if upstream does not say.
    name: Option<String>,
    /// A moment before the request.
    requested: Instant,
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

// === impl TokenIssuer ===

impl TokenIssuer {
    pub(super) fn new(client: UpstreamClient) -> Self {
        Self {
            client,
            known: ArcSwapOption::empty(),
            failed: Mutex::default(),
        }
    }

    /// Returns documents that are at most a minute old, or `None` if they cannot be read.
    pub(super) async fn documents(&self) -> Option<Arc<IssuerDocuments>> {
        self.read_unless(|known| known.requested.elapsed() < DOCUMENTS_TTL)
            .await
    }

    /// Returns documents that were read since a moment, or `None` if they cannot be read. Waits
    /// for up to a second, so that many callers share a reading.
    pub(super) async fn documents_since(&self, moment: Instant) -> Option<Arc<IssuerDocuments>> {
        self.read_unless(|known| known.requested >= moment).await
    }

    /// Reads the documents, unless the known ones do.
    async fn read_unless(
        &self,
        does: impl Fn(&IssuerDocuments) -> bool,
    ) -> Option<Arc<IssuerDocuments>> {
        let known = || self.known.load_full();
        if let Some(known) = known().filter(|it| does(it)) {
            return Some(known);
        }
        let mut failed = self.failed.lock().await;
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
        if let Some(known) = known {
            tokio::time::sleep(PACE.saturating_sub(known.requested.elapsed())).await;
        }
        // Set in advance, in case this task is dropped in the middle of the request.
        *failed = Some(Instant::now() + FETCH_TIMEOUT);
        let answer = timeout(FETCH_TIMEOUT, self.fetch()).await;
        let reason = match answer {
            Ok(Ok(documents)) => {
                *failed = None;
                let documents = Arc::new(documents);
                self.known.store(Some(Arc::clone(&documents)));
                return Some(documents);
            }
            Ok(Err(reason)) => reason,
            Err(_) => format!("no answer within {FETCH_TIMEOUT:?}"),
        };
        *failed = Some(Instant::now());
        tracing::warn!(
            reason,
            "cannot read the keys of service account tokens from upstream (the proxy's identity \
             needs the ClusterRole system:service-account-issuer-discovery)"
        );
        None
    }

    async fn fetch(&self) -> Result<IssuerDocuments, String> {
        // The age counts from before the requests, so the documents are never older than that.
        let requested = Instant::now();
        // Keys suffice for validating tokens that upstream accepted.
        let name = self
            .get::<IssuerDocument>(ISSUER_PATH, "application/json")
            .await;
        let name = name.inspect_err(|reason| tracing::debug!(reason, "the issuer is not known"));
        let (keys, clock) = self.get(KEYS_PATH, "application/jwk-set+json").await?;
        Ok(IssuerDocuments {
            keys,
            name: name.ok().map(|(document, _)| document.issuer),
            requested,
            clock,
        })
    }

    async fn get<T: DeserializeOwned>(
        &self,
        path: &str,
        accept: &str,
    ) -> Result<(T, Option<UpstreamClock>), String> {
        let request = Request::get(path)
            .header(header::ACCEPT, accept)
            .body(body::empty())
            .map_err(|error| error.to_string())?;
        let response = self
            .client
            .send(ConnectionClass::Short, request, SendOptions::default())
            .await
            .map_err(|error| error.to_string())?;
        if response.status() != StatusCode::OK {
            return Err(format!("{} to {path}", response.status()));
        }
        let clock = UpstreamClock::read(response.headers());
        let bytes = body::whole(response.into_body(), MAX_DOCUMENT_BYTES)
            .await
            .map_err(|error| error.to_string())?;
        let document = serde_json::from_slice(&bytes).map_err(|error| error.to_string())?;
        Ok((document, clock))
    }
}

// === impl IssuerDocuments ===

impl IssuerDocuments {
    /// Returns `true` if the issuer has this name, and its tokens expire.
    pub(super) fn is_named(&self, name: &str) -> bool {
        name != LEGACY_ISSUER && self.name.as_deref() == Some(name)
    }

    /// Returns a second since the epoch that has passed on upstream's clock. The proxy's own clock
    /// may be wrong.
    pub(super) fn passed_second(&self) -> Option<i64> {
        let clock = self.clock?;
        let elapsed = i64::try_from(clock.received.elapsed().as_secs()).ok()?;
        clock.second.checked_add(elapsed)
    }
}

// === impl UpstreamClock ===

impl UpstreamClock {
    /// Reads the time at which upstream sent an answer that has just arrived.
    fn read(headers: &HeaderMap) -> Option<Self> {
        let date = headers.get(header::DATE)?.to_str().ok()?;
        let sent = jiff::fmt::rfc2822::parse(date).ok()?;
        Some(Self {
            second: Timestamp::from(sent).as_second(),
            received: Instant::now(),
        })
    }
}
