//! The rules by which upstream judges who may act as somebody else.
use std::sync::Arc;
use std::time::Duration;

use http::{Request, StatusCode, header};
use parking_lot::Mutex;
use serde::Deserialize;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use crate::access::error::ReviewError;
use crate::body;
use crate::upstream::{ConnectionClass, RequestPurpose, SendOptions, UpstreamClient};

/// Time after which upstream is asked again: its release may change. Nobody waits for that.
const RENEWED_AFTER: Duration = Duration::from_secs(30);
/// Time after which a request waits until upstream was asked again.
const KNOWN_TTL: Duration = Duration::from_mins(1);
/// Longest such wait.
const PATIENCE: Duration = Duration::from_secs(1);
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

type ProbedRules = Result<ImpersonationRules, Arc<ReviewError>>;

/// Finds out which rules upstream has.
pub(in crate::access) struct RulesProbe {
    client: UpstreamClient,
    known: Arc<Mutex<KnownRules>>,
}

#[derive(Default)]
struct KnownRules {
    /// The last answer, with the moment of its question, or of a later one without an answer.
    rules: Option<(Instant, ImpersonationRules)>,
    /// The moment at which the last question ended without an answer.
    failed: Option<Instant>,
    /// The answer of the question that runs. It goes on when the callers that wait for it have left.
    asking: Option<watch::Receiver<Option<ProbedRules>>>,
}

#[derive(Deserialize)]
struct RefusalText {
    message: String,
}

impl RulesProbe {
    pub(in crate::access) fn new(client: UpstreamClient) -> Self {
        Self {
            client,
            known: Arc::default(),
        }
    }

    /// Returns upstream's rules. Those of a server that does not answer are the ones that it had.
    pub(in crate::access) async fn rules(&self) -> ProbedRules {
        let (known, mut answer) = {
            let mut known = self.known.lock();
            match known.rules {
                Some((asked, rules)) if asked.elapsed() < RENEWED_AFTER => return Ok(rules),
                Some((asked, rules)) if asked.elapsed() < KNOWN_TTL => {
                    self.renew(&mut known);
                    return Ok(rules);
                }
                // Those who waited for the last question do not ask, and wait, one after the other.
                // Those that are refused meanwhile do not prolong the pause.
                None if known.failed.is_some_and(|at| at.elapsed() < PAUSE) => {
                    return Err(Arc::new(ReviewError::Late(TIMEOUT)));
                }
                _ => (known.rules, self.renew(&mut known)),
            }
        };
        let limit = if known.is_some() { PATIENCE } else { TIMEOUT };
        let late = || Err(Arc::new(ReviewError::Late(limit)));
        let answer = timeout(limit, answer.wait_for(Option::is_some)).await;
        // It is closed without an answer if the task panicked.
        let answer = match answer {
            Ok(Ok(answer)) => answer.clone().unwrap_or_else(late),
            Ok(Err(_)) | Err(_) => late(),
        };
        known.map_or(answer.clone(), |(_, rules)| Ok(answer.unwrap_or(rules)))
    }

    /// Asks upstream, unless a question runs. Returns where its answer will be.
    fn renew(&self, known: &mut KnownRules) -> watch::Receiver<Option<ProbedRules>> {
        if let Some(asking) = &known.asking
            && asking.borrow().is_none()
            && asking.has_changed().is_ok()
        {
            return asking.clone();
        }
        let (sender, receiver) = watch::channel(None);
        let (client, shared) = (self.client.clone(), Arc::clone(&self.known));
        tokio::spawn(async move {
            let asked = Instant::now();
            let answer = timeout(TIMEOUT, ask(&client)).await;
            let answer = answer.unwrap_or(Err(ReviewError::Late(TIMEOUT)));
            shared.lock().note(asked, &answer);
            sender.send_replace(Some(answer.map_err(Arc::new)));
        });
        known.asking = Some(receiver.clone());
        receiver
    }
}

impl KnownRules {
    /// Notes what the question of this moment has brought.
    fn note(&mut self, asked: Instant, answer: &Result<ImpersonationRules, ReviewError>) {
        match answer {
            Ok(rules) => self.rules = Some((asked, *rules)),
            Err(error) => {
                tracing::debug!(%error, "cannot ask for the rules of impersonation");
                self.failed = Some(Instant::now());
                // A server that is slow for a moment still has the rules it had.
                if let Some((known, _)) = &mut self.rules {
                    *known = asked;
                }
            }
        }
    }
}

/// Sends a request that names a group and no user. Upstream refuses it whatever the proxy may,
/// and each implementation has words of its own.
async fn ask(client: &UpstreamClient) -> Result<ImpersonationRules, ReviewError> {
    let request = Request::get("/version")
        .header(header::ACCEPT, "application/json")
        .header("impersonate-group", "system:authenticated")
        .body(body::empty())
        .map_err(ReviewError::not_understood)?;
    let options = SendOptions {
        purpose: RequestPurpose::Probe,
        ..SendOptions::default()
    };
    let response = client
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
    use std::future::pending;
    use std::sync::atomic::{AtomicU32, Ordering};

    use futures_util::FutureExt as _;
    use http::Response;
    use tokio::time::sleep;

    use super::*;
    use crate::test_support::{Api, HTTP2, Pki, eventually, upstream_of};

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

    /// Returns a probe of a server of Kubernetes 1.36 and later.
    async fn probe_of_recent_server(pki: &Pki) -> RulesProbe {
        let api = Api::start(pki, HTTP2, |_, _| async {
            let body = body::full("requested [] without impersonating a user name");
            Response::builder().status(400).body(body).unwrap()
        })
        .await;
        RulesProbe::new(UpstreamClient::new(&upstream_of(pki, &api).await))
    }

    async fn becomes_known(probe: &RulesProbe, wanted: ImpersonationRules) {
        eventually(|| {
            let known = probe.known.lock().rules;
            known.is_some_and(|(_, rules)| rules == wanted)
        })
        .await;
    }

    #[tokio::test]
    async fn a_question_goes_on_when_nobody_waits_for_it() {
        let pki = Pki::new();
        let probe = probe_of_recent_server(&pki).await;
        assert!(probe.rules().now_or_never().is_none());
        becomes_known(&probe, ImpersonationRules::Constrained).await;
        let known = probe.rules().now_or_never();
        assert_eq!(known.unwrap().unwrap(), ImpersonationRules::Constrained);
    }

    #[tokio::test]
    async fn nobody_waits_for_rules_that_are_asked_for_again_in_time() {
        let pki = Pki::new();
        let probe = probe_of_recent_server(&pki).await;
        let asked = Instant::now().checked_sub(RENEWED_AFTER).unwrap();
        probe.known.lock().rules = Some((asked, ImpersonationRules::LegacyOnly));
        let known = probe.rules().now_or_never();
        assert_eq!(known.unwrap().unwrap(), ImpersonationRules::LegacyOnly);
        becomes_known(&probe, ImpersonationRules::Constrained).await;
        let asked = Instant::now().checked_sub(KNOWN_TTL).unwrap();
        probe.known.lock().rules = Some((asked, ImpersonationRules::LegacyOnly));
        let waited_for = probe.rules().await.unwrap();
        assert_eq!(waited_for, ImpersonationRules::Constrained);
    }

    #[tokio::test]
    async fn a_server_that_does_not_answer_has_the_rules_it_had() {
        let pki = Pki::new();
        let api = Api::start(&pki, HTTP2, |_, _| pending()).await;
        let probe = RulesProbe::new(UpstreamClient::new(&upstream_of(&pki, &api).await));
        let asked = Instant::now().checked_sub(2 * KNOWN_TTL).unwrap();
        probe.known.lock().rules = Some((asked, ImpersonationRules::LegacyOnly));
        assert_eq!(probe.rules().await.unwrap(), ImpersonationRules::LegacyOnly);
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
