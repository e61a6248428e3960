//! The rules by which upstream judges who may act as somebody else.
use std::time::{Duration, Instant};

use http::{Request, StatusCode, header};
use serde::Deserialize;
use tokio::sync::Mutex;
use tokio::time::timeout;

use crate::access::error::ReviewError;
use crate::body;
use crate::upstream::{ConnectionClass, RequestPurpose, SendOptions, UpstreamClient};

/// Time after which upstream is asked again: its release may change.
const KNOWN_TTL: Duration = Duration::from_mins(1);
const TIMEOUT: Duration = Duration::from_secs(5);
/// Pause after a question that was not answered.
const PAUSE: Duration = Duration::from_secs(1);
const MAX_BYTES: usize = 64 << 10;

/// The rules of upstream's release and feature gates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::access) enum ImpersonationRules {
    /// The modes of constrained impersonation, by default since Kubernetes 1.36.
    Constrained,
    /// The verb `impersonate` alone.
    LegacyOnly,
}

/// Finds out which rules upstream has.
pub(in crate::access) struct RulesProbe {
    client: UpstreamClient,
    /// The lock is held while upstream is asked.
    known: Mutex<KnownRules>,
}

#[derive(Default)]
struct KnownRules {
    rules: Option<(Instant, ImpersonationRules)>,
    /// The moment of the last question that was not answered.
    failed: Option<Instant>,
}

#[derive(Deserialize)]
struct RefusalText {
    message: String,
}

impl RulesProbe {
    pub(in crate::access) fn new(client: UpstreamClient) -> Self {
        Self {
            client,
            known: Mutex::default(),
        }
    }

    /// Returns upstream's rules.
    pub(in crate::access) async fn rules(&self) -> Result<ImpersonationRules, ReviewError> {
        let mut known = self.known.lock().await;
        if let Some((asked, rules)) = known.rules
            && asked.elapsed() < KNOWN_TTL
        {
            return Ok(rules);
        }
        // Those who waited for that question do not ask, and wait, one after the other. Those
        // that are refused meanwhile do not prolong the pause.
        if known.failed.is_some_and(|at| at.elapsed() < PAUSE) {
            return Err(ReviewError::Late(TIMEOUT));
        }
        let asked = Instant::now();
        let answer = timeout(TIMEOUT, self.ask()).await;
        match (
            answer.unwrap_or(Err(ReviewError::Late(TIMEOUT))),
            known.rules,
        ) {
            (Ok(rules), _) => {
                known.rules = Some((asked, rules));
                Ok(rules)
            }
            // A server that is slow for a moment still has the rules it had.
            (Err(error), Some((_, rules))) => {
                tracing::debug!(%error, "cannot ask for the rules of impersonation again");
                known.rules = Some((asked, rules));
                Ok(rules)
            }
            (Err(error), None) => {
                known.failed = Some(Instant::now());
                Err(error)
            }
        }
    }

    /// Sends a request that names a group and no user. Upstream refuses it whatever the proxy may,
    /// and each implementation has words of its own.
    async fn ask(&self) -> Result<ImpersonationRules, ReviewError> {
        let request = Request::get("/version")
            .header(header::ACCEPT, "application/json")
            .header("impersonate-group", "system:authenticated")
            .body(body::empty())
            .map_err(ReviewError::not_understood)?;
        let options = SendOptions {
            purpose: RequestPurpose::Probe,
            ..SendOptions::default()
        };
        let response = self
            .client
            .send(ConnectionClass::Short, request, options)
            .await?;
        let status = response.status();
        // Before Kubernetes 1.35 this was an internal error, in plain text.
        if !matches!(
            status,
            StatusCode::BAD_REQUEST | StatusCode::INTERNAL_SERVER_ERROR
        ) {
            return Err(ReviewError::Refused(status));
        }
        let refusal = body::whole(response.into_body(), MAX_BYTES)
            .await
            .map_err(|error| ReviewError::Cut(error.to_string()))?;
        let message = match serde_json::from_slice::<RefusalText>(&refusal) {
            Ok(refusal) => refusal.message,
            Err(_) => String::from_utf8_lossy(&refusal).trim().to_owned(),
        };
        rules_of(&message).ok_or_else(|| ReviewError::not_understood(format!("{message:?}")))
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
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use http::Response;
    use tokio::time::sleep;

    use super::*;
    use crate::test_support::{Api, HTTP2, Pki, upstream_of};

    #[tokio::test]
    async fn requests_that_keep_coming_do_not_put_off_the_next_question() {
        let asked = Arc::new(AtomicU32::new(0));
        let (pki, count) = (Pki::new(), Arc::clone(&asked));
        let api = Api::start(&pki, HTTP2, move |_, _| {
            let number = count.fetch_add(1, Ordering::SeqCst);
            let (status, text) = match number {
                0 => (503, "overloaded"),
                _ => (400, "requested [] without impersonating a user"),
            };
            async move {
                let body = body::full(text);
                Response::builder().status(status).body(body).unwrap()
            }
        })
        .await;
        let probe = RulesProbe::new(UpstreamClient::new(&upstream_of(&pki, &api).await));
        let began = Instant::now();
        while probe.rules().await.is_err() {
            assert!(began.elapsed() < 60 * PAUSE, "asked {asked:?} times");
            sleep(PAUSE / 10).await;
        }
        assert_eq!(asked.load(Ordering::SeqCst), 2);
    }

    /// The messages are those of a kube-apiserver 1.37 with and without the feature gate, and of 1.32.
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
            (
                r#"Internal Server Error: "/version": requested [{Group  a    }] without impersonating a user"#,
                Some(ImpersonationRules::LegacyOnly),
            ),
            ("the server is overloaded", None),
        ] {
            assert_eq!(rules_of(message), wanted);
        }
    }
}
