//! Service account tokens that upstream accepted once and that can be seen to be good still.
//!
//! A token never changes, so what can end it is its expiry, the end of the key that signed it, or
//! that of an object it is bound to. All of these can be looked at here. Whose a token is, is never
//! concluded from the token: that was said by upstream's review.
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

use super::Identity;
use crate::body;
use crate::upstream::{ConnectionClass, SendOptions, UpstreamClient};

/// Where upstream shows the keys that its tokens are signed with.
const KEYS: &str = "/openid/v1/jwks";
/// A key that was taken out of use counts this long at most.
const KEYS_STAND: Duration = Duration::from_mins(1);
/// After a failure they are not asked for again for this long.
const AGAIN: Duration = Duration::from_secs(10);
const MAX_KEYS_BYTES: usize = 1 << 20;
const ANSWER: Duration = Duration::from_secs(5);
/// What upstream signs with, and others that its keys may be made for.
const ALGORITHMS: [Algorithm; 5] = [
    Algorithm::RS256,
    Algorithm::RS384,
    Algorithm::RS512,
    Algorithm::ES256,
    Algorithm::ES384,
];

/// The objects that tokens are bound to.
pub trait BoundObjects: Send + Sync {
    /// Whether an object of this plural name (of the core group) is there with this unique id, and
    /// not about to be deleted; `None` if that is not known here.
    fn is_there(
        &self,
        resource: &str,
        namespace: Option<&str>,
        name: &str,
        uid: &str,
    ) -> Option<bool>;
}

/// Looks at tokens that were accepted before.
pub(super) struct ServiceAccounts {
    client: UpstreamClient,
    audiences: Vec<String>,
    objects: Arc<dyn BoundObjects>,
    keys: ArcSwapOption<Keys>,
    /// When the keys could not be had last.
    fetching: tokio::sync::Mutex<Option<Instant>>,
}

struct Keys {
    set: JwkSet,
    fetched: Instant,
}

#[derive(Debug, Deserialize)]
struct Claims {
    sub: String,
    #[serde(rename = "kubernetes.io")]
    bound: Bound,
}

/// What a token is bound to. One with anything else in it is not for us to judge.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Bound {
    namespace: String,
    serviceaccount: Reference,
    pod: Option<Reference>,
    secret: Option<Reference>,
    node: Option<Reference>,
    /// Says how long clients should have kept a token; upstream counts those that kept it longer.
    #[serde(rename = "warnafter")]
    _warn_after: Option<serde_json::Number>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Reference {
    name: String,
    uid: String,
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
            fetching: tokio::sync::Mutex::default(),
        }
    }

    /// Whether a token that upstream took for `identity`'s is certainly good still. If not,
    /// upstream is to be asked.
    pub(super) async fn is_still_good(&self, token: &str, identity: &Identity) -> bool {
        if !identity.user.starts_with("system:serviceaccount:") {
            return false;
        }
        let Some(keys) = self.keys().await else {
            return false;
        };
        let Some(claims) = verified(token, &keys.set, &self.audiences) else {
            return false;
        };
        claims.sub == identity.user && self.is_bound_to_what_is_there(&claims.bound)
    }

    fn is_bound_to_what_is_there(&self, bound: &Bound) -> bool {
        let Bound {
            namespace,
            serviceaccount,
            pod,
            secret,
            node,
            ..
        } = bound;
        let there = |resource, namespace, object: &Reference| {
            self.objects
                .is_there(resource, namespace, &object.name, &object.uid)
                == Some(true)
        };
        let inside = Some(&**namespace);
        // A pod's token names the node as well, but ends with the pod.
        let node = node.as_ref().filter(|_| pod.is_none());
        there("serviceaccounts", inside, serviceaccount)
            && pod.as_ref().is_none_or(|pod| there("pods", inside, pod))
            && secret
                .as_ref()
                .is_none_or(|secret| there("secrets", inside, secret))
            && node.is_none_or(|node| there("nodes", None, node))
    }

    async fn keys(&self) -> Option<Arc<Keys>> {
        let fresh = || {
            self.keys
                .load_full()
                .filter(|keys| keys.fetched.elapsed() < KEYS_STAND)
        };
        if let Some(keys) = fresh() {
            return Some(keys);
        }
        let mut failed = self.fetching.lock().await;
        if let Some(keys) = fresh() {
            return Some(keys);
        }
        // Nobody waits in line for what does not come: their tokens are reviewed.
        if failed.is_some_and(|at| at.elapsed() < AGAIN) {
            return None;
        }
        // Of before the question: they are no older than that.
        let fetched = Instant::now();
        *failed = Some(Instant::now() + ANSWER);
        let answer = timeout(ANSWER, self.fetch()).await;
        *failed = if matches!(answer, Ok(Ok(_))) {
            None
        } else {
            Some(Instant::now())
        };
        match answer {
            Ok(Ok(set)) => {
                let keys = Arc::new(Keys { set, fetched });
                self.keys.store(Some(Arc::clone(&keys)));
                Some(keys)
            }
            Ok(Err(reason)) => {
                tracing::warn!(
                    reason,
                    "upstream does not show the keys of service account tokens (the proxy's identity needs the \
                     ClusterRole system:service-account-issuer-discovery)"
                );
                None
            }
            Err(_) => None,
        }
    }

    async fn fetch(&self) -> Result<JwkSet, String> {
        let request = Request::get(KEYS)
            .header(header::ACCEPT, "application/jwk-set+json")
            .body(body::empty());
        let request = request.map_err(|error| error.to_string())?;
        let response = self
            .client
            .send(ConnectionClass::Short, request, SendOptions::default())
            .await;
        let response = response.map_err(|error| error.to_string())?;
        if response.status() != StatusCode::OK {
            return Err(format!("{} to {KEYS}", response.status()));
        }
        let bytes = body::whole(response.into_body(), MAX_KEYS_BYTES)
            .await
            .map_err(|error| error.to_string())?;
        serde_json::from_slice(&bytes).map_err(|error| error.to_string())
    }
}

/// The claims of a token that one of the keys signed and that has not expired.
fn verified(token: &str, keys: &JwkSet, audiences: &[String]) -> Option<Claims> {
    let header = decode_header(token).ok()?;
    if !ALGORITHMS.contains(&header.alg) {
        return None;
    }
    let key = DecodingKey::from_jwk(keys.find(&header.kid?)?).ok()?;
    let mut validation = Validation::new(header.alg);
    validation.leeway = 0;
    validation.validate_nbf = true;
    // Upstream's own audience, where none was chosen: the review said that the token has it.
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
