//! Local validation of service account tokens that upstream has accepted before.
//!
//! A token never changes. It ends with its expiry, with the key that signed it, or with an object
//! that it is bound to. This module checks all three. The user of a token always comes from
//! upstream's review, never from the token itself.
//!
//! Source: `pkg/serviceaccount/{jwt,claims}.go`.
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use http::{Request, StatusCode, header};
use jsonwebtoken::jwk::JwkSet;
use jsonwebtoken::{Algorithm, DecodingKey, Validation, decode, decode_header};
use serde::Deserialize;
use tokio::time::timeout;

use super::identity::Identity;
use crate::body;
use crate::upstream::{ConnectionClass, SendOptions, UpstreamClient};

/// Upstream's path of the keys that sign its tokens.
const KEYS_PATH: &str = "/openid/v1/jwks";
/// Time for which the keys are cached. A withdrawn key is accepted for at most this long.
const KEYS_TTL: Duration = Duration::from_mins(1);
/// Time after a failure before the keys are fetched again.
const RETRY_AFTER_FAILURE: Duration = Duration::from_secs(10);
const MAX_KEYS_BYTES: usize = 1 << 20;
/// Time limit of fetching the keys.
const FETCH_TIMEOUT: Duration = Duration::from_secs(5);
/// The accepted algorithms: those that upstream signs with, and others for the same keys.
const ALGORITHMS: [Algorithm; 5] = [
    Algorithm::RS256,
    Algorithm::RS384,
    Algorithm::RS512,
    Algorithm::ES256,
    Algorithm::ES384,
];

/// The objects that tokens can be bound to.
pub trait BoundObjects: Send + Sync {
    /// Returns whether an object of the core group exists with this unique id and is not being
    /// deleted. `resource` is its plural name. Returns `None` if the proxy does not know.
    fn is_present(
        &self,
        resource: &str,
        namespace: Option<&str>,
        name: &str,
        uid: &str,
    ) -> Option<bool>;
}

/// Validates tokens that upstream has accepted before.
pub(super) struct ServiceAccounts {
    client: UpstreamClient,
    audiences: Vec<String>,
    objects: Arc<dyn BoundObjects>,
    keys: ArcSwapOption<SigningKeys>,
    /// The time of the last failure. The lock is held while the keys are fetched.
    failed: tokio::sync::Mutex<Option<Instant>>,
}

impl ServiceAccounts {
    pub(super) fn new(
        client: UpstreamClient,
        audiences: Vec<String>,
        objects: Arc<dyn BoundObjects>,
    ) -> Self {
        Self {
            client,
            audiences,
            objects,
            keys: ArcSwapOption::empty(),
            failed: tokio::sync::Mutex::default(),
        }
    }

    /// Returns whether a token that upstream accepted as one of `identity` is certainly valid
    /// still. If not, upstream has to review it.
    pub(super) async fn is_still_valid(&self, token: &str, identity: &Identity) -> bool {
        if !identity.user.starts_with("system:serviceaccount:") {
            return false;
        }
        let Some(keys) = self.keys().await else {
            return false;
        };
        let Some(claims) = verified(token, &keys.set, &self.audiences) else {
            return false;
        };
        claims.sub == identity.user && self.are_present(&claims.binding)
    }

    /// Returns whether all objects that a token is bound to exist.
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

    /// Returns whether an object exists. Without an object there is nothing to miss.
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

    fn cached_keys(&self) -> Option<Arc<SigningKeys>> {
        self.keys
            .load_full()
            .filter(|keys| keys.requested.elapsed() < KEYS_TTL)
    }

    async fn keys(&self) -> Option<Arc<SigningKeys>> {
        if let Some(keys) = self.cached_keys() {
            return Some(keys);
        }
        let mut failed = self.failed.lock().await;
        // Another task may have fetched them meanwhile.
        if let Some(keys) = self.cached_keys() {
            return Some(keys);
        }
        // The tasks that waited for the lock do not try again one after the other. Their tokens are
        // reviewed.
        if failed.is_some_and(|at| at.elapsed() < RETRY_AFTER_FAILURE) {
            return None;
        }
        // The age of the keys counts from before the request, so they are never older than that.
        let requested = Instant::now();
        // Set in advance, in case this task is dropped in the middle of the request.
        *failed = Some(requested + FETCH_TIMEOUT);
        let answer = timeout(FETCH_TIMEOUT, self.fetch()).await;
        *failed = match answer {
            Ok(Ok(_)) => None,
            _ => Some(Instant::now()),
        };
        match answer {
            Ok(Ok(set)) => {
                let keys = Arc::new(SigningKeys { set, requested });
                self.keys.store(Some(Arc::clone(&keys)));
                Some(keys)
            }
            Ok(Err(reason)) => {
                tracing::warn!(
                    reason,
                    "cannot read the keys of service account tokens from upstream (the proxy's \
                     identity needs the ClusterRole system:service-account-issuer-discovery)"
                );
                None
            }
            Err(_) => None,
        }
    }

    async fn fetch(&self) -> Result<JwkSet, String> {
        let request = Request::get(KEYS_PATH)
            .header(header::ACCEPT, "application/jwk-set+json")
            .body(body::empty())
            .map_err(|error| error.to_string())?;
        let response = self
            .client
            .send(ConnectionClass::Short, request, SendOptions::default())
            .await
            .map_err(|error| error.to_string())?;
        if response.status() != StatusCode::OK {
            return Err(format!("{} to {KEYS_PATH}", response.status()));
        }
        let bytes = body::whole(response.into_body(), MAX_KEYS_BYTES)
            .await
            .map_err(|error| error.to_string())?;
        serde_json::from_slice(&bytes).map_err(|error| error.to_string())
    }
}

struct SigningKeys {
    set: JwkSet,
    requested: Instant,
}

#[derive(Debug, Deserialize)]
struct Claims {
    sub: String,
    #[serde(rename = "kubernetes.io")]
    binding: TokenBinding,
}

/// The objects that a token is bound to. A token with unknown members is left to upstream.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TokenBinding {
    namespace: String,
    serviceaccount: BoundObject,
    pod: Option<BoundObject>,
    secret: Option<BoundObject>,
    node: Option<BoundObject>,
    /// The end of the time for which clients should keep a token. Upstream counts the clients that
    /// keep it longer.
    #[serde(rename = "warnafter")]
    _warn_after: Option<serde_json::Number>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct BoundObject {
    name: String,
    uid: String,
}

/// Returns the claims of a token that one of the keys signed and that has not expired.
fn verified(token: &str, keys: &JwkSet, audiences: &[String]) -> Option<Claims> {
    let header = decode_header(token).ok()?;
    if !ALGORITHMS.contains(&header.alg) {
        return None;
    }
    let key = DecodingKey::from_jwk(keys.find(&header.kid?)?).ok()?;
    let mut validation = Validation::new(header.alg);
    validation.leeway = 0;
    validation.validate_nbf = true;
    // Without chosen audiences, upstream's review has checked the token for upstream's own.
    validation.validate_aud = !audiences.is_empty();
    if validation.validate_aud {
        validation.set_audience(audiences);
    }
    decode::<Claims>(token, &key, &validation)
        .ok()
        .map(|data| data.claims)
}

#[cfg(test)]
mod tests;
