//! The rules by which upstream judges who may act as somebody else.
use std::time::{Duration, Instant};

use http::{Request, StatusCode, header};
use serde::Deserialize;
use tokio::sync::Mutex;
use tokio::time::timeout;

use super::error::ReviewError;
use crate::body;
use crate::upstream::{ConnectionClass, SendOptions, UpstreamClient};

/// Time after which upstream is asked again: its release may change.
const KNOWN_TTL: Duration = Duration::from_mins(1);
const TIMEOUT: Duration = Duration::from_secs(5);
const MAX_BYTES: usize = 64 << 10;

/// The rules of upstream's release and feature gates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ImpersonationRules {
    /// The modes of constrained impersonation, by default since Kubernetes 1.36.
    Constrained,
    /// The verb `impersonate` alone.
    LegacyOnly,
}

/// Finds out which rules upstream has.
pub(super) struct RulesProbe {
    client: UpstreamClient,
    /// The lock is held while upstream is asked.
    known: Mutex<Option<(Instant, ImpersonationRules)>>,
}

#[derive(Deserialize)]
struct RefusalText {
    message: String,
}

impl RulesProbe {
    pub(super) fn new(client: UpstreamClient) -> Self {
        Self {
            client,
            known: Mutex::default(),
        }
    }

    /// Returns upstream's rules.
    pub(super) async fn rules(&self) -> Result<ImpersonationRules, ReviewError> {
        let mut known = self.known.lock().await;
        if let Some((asked, rules)) = *known
            && asked.elapsed() < KNOWN_TTL
        {
            return Ok(rules);
        }
        let asked = Instant::now();
        let rules = timeout(TIMEOUT, self.ask())
            .await
            .unwrap_or(Err(ReviewError::Late(TIMEOUT)))?;
        *known = Some((asked, rules));
        Ok(rules)
    }

    /// Sends a request that names a group and no user. Upstream refuses it whatever the proxy may,
    /// and each implementation has words of its own.
    async fn ask(&self) -> Result<ImpersonationRules, ReviewError> {
        let request = Request::get("/version")
            .header(header::ACCEPT, "application/json")
            .header("impersonate-group", "system:authenticated")
            .body(body::empty())
            .map_err(ReviewError::not_understood)?;
        let response = self
            .client
            .send(ConnectionClass::Short, request, SendOptions::default())
            .await?;
        if response.status() != StatusCode::BAD_REQUEST {
            return Err(ReviewError::Refused(response.status()));
        }
        let refusal = body::whole(response.into_body(), MAX_BYTES)
            .await
            .map_err(|error| ReviewError::Cut(error.to_string()))?;
        let refusal: RefusalText =
            serde_json::from_slice(&refusal).map_err(ReviewError::not_understood)?;
        rules_of(&refusal.message)
            .ok_or_else(|| ReviewError::not_understood(format!("{:?}", refusal.message)))
    }
}

/// Returns the rules of the implementation that has these words.
/// Source: `apiserver/pkg/endpoints/filters/impersonation/`.
fn rules_of(message: &str) -> Option<ImpersonationRules> {
    if message.ends_with(" without impersonating a user name") {
        Some(ImpersonationRules::Constrained)
    } else if message.ends_with(" without impersonating a user") {
        Some(ImpersonationRules::LegacyOnly)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The messages are those of a kube-apiserver 1.37 with and without the feature gate.
    #[test]
    fn upstreams_words_tell_its_rules() {
        for (message, wanted) in [
            (
                r#"requested &user.DefaultInfo{Name:"", UID:"", Groups:[]string{"a"}, Extra:map[string][]string(nil)} without impersonating a user name"#,
                Some(ImpersonationRules::Constrained),
            ),
            (
                "requested [{Group  a    }] without impersonating a user",
                Some(ImpersonationRules::LegacyOnly),
            ),
            ("the server is overloaded", None),
        ] {
            assert_eq!(rules_of(message), wanted);
        }
    }
}
