//! Parameters that some API servers heed and others ignore.
//!
//! A feature gate of upstream decides about each, and nothing in an answer names the gates. So
//! upstream is asked for one small object with all of them, and its answer shows which it supports.
//! It is asked when a client sends one, and again after a minute: a restart may change the gates.
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, StatusCode, header};
use parking_lot::Mutex;
use serde::Deserialize;
use serde::de::IgnoredAny;
use tokio::time::{Instant, timeout};

use crate::body;
use crate::shared_calls::Singleflight;
use crate::upstream::{AnswerError, ConnectionClass, SendOptions, UpstreamClient, in_time};

/// Time for which an answer counts.
const ANSWER_TTL: Duration = Duration::from_mins(1);
/// Pause after a question without an answer.
const RETRY_AFTER_FAILURE: Duration = Duration::from_secs(5);
/// Longest wait of a request.
const MAX_WAIT: Duration = Duration::from_secs(1);
/// Limit of the answer, which has about a kilobyte.
const MAX_BYTES: usize = 1 << 20;

/// The namespace that upstream itself makes, in all shards. A read of one key from its cache.
const QUESTION: &str = "/api/v1/namespaces?fieldSelector=metadata.name%3Ddefault\
    &resourceVersion=0&shardSelector=shardRange(object.metadata.uid,\
    '0x0000000000000000','0x10000000000000000')";
/// Upstream's own name of a parameter of `Accept` that leaves out managed fields (KEP-5958).
const ACCEPT: &str = "application/json;drop=metadata.managedFields";

/// The effect of a parameter at upstream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::serve) enum ParameterUse {
    /// Requests that have it are forwarded.
    #[default]
    Unknown,
    /// The answer is as without it.
    Ignored,
    /// The answer follows it.
    Heeded,
}

impl ParameterUse {
    fn as_str(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Ignored => "ignored",
            Self::Heeded => "heeded",
        }
    }
}

/// The effects of the parameters that not every API server supports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::serve) struct OptionalParameters {
    /// `shardSelector` of lists and watches (KEP-5866).
    pub(in crate::serve) shard_selector: ParameterUse,
    /// `drop` in `Accept`. It is never [`ParameterUse::Heeded`]: no release does.
    pub(in crate::serve) drop: ParameterUse,
}

/// Learns the effects of the parameters.
pub(in crate::serve) struct ParameterProbe {
    client: UpstreamClient,
    learned: Arc<Mutex<Option<Learned>>>,
    questions: Arc<Singleflight<OptionalParameters>>,
    patience: Duration,
}

#[derive(Clone, Copy)]
struct Learned {
    parameters: OptionalParameters,
    until: Instant,
}

impl ParameterProbe {
    pub(in crate::serve) fn new(client: UpstreamClient) -> Self {
        Self {
            client,
            learned: Arc::default(),
            questions: Arc::default(),
            patience: MAX_WAIT,
        }
    }

    /// Returns the effects of the parameters that a request has. Waits a second at most.
    pub(in crate::serve) async fn known_for<B>(&self, request: &Request<B>) -> OptionalParameters {
        if !has_optional(request) {
            return OptionalParameters::default();
        }
        if let Some(known) = *self.learned.lock()
            && Instant::now() < known.until
        {
            return known.parameters;
        }
        let (client, learned) = (self.client.clone(), Arc::clone(&self.learned));
        let patience = self.patience;
        let answer = self
            .questions
            .join(move || learn(client, learned, patience));
        let answer = timeout(patience, answer).await.ok().flatten();
        // A late answer changes nothing of what was learned before it.
        let learned = || self.learned.lock().map(|learned| learned.parameters);
        answer.or_else(learned).unwrap_or_default()
    }
}

/// Returns `true` if a request may have one of the parameters. A name in an unusual spelling is not
/// seen here: its effect stays unknown.
fn has_optional<B>(request: &Request<B>) -> bool {
    let is_sharded = request
        .uri()
        .query()
        .is_some_and(|query| query.contains("shardSelector"));
    let accepts = request.headers().get(header::ACCEPT);
    let accepts = accepts.and_then(|value| value.to_str().ok());
    is_sharded || accepts.is_some_and(|accepts| accepts.contains("drop"))
}

/// Asks upstream, and keeps the answer for others. While upstream cannot be asked, what it said
/// before counts: memory answers on, and a gate changes with a restart only.
async fn learn(
    client: UpstreamClient,
    learned: Arc<Mutex<Option<Learned>>>,
    patience: Duration,
) -> OptionalParameters {
    let before = learned.lock().map(|learned| learned.parameters);
    let (parameters, lifetime) = match in_time(patience, ask(&client)).await {
        Ok(parameters) => (parameters, ANSWER_TTL),
        Err(error) => {
            tracing::warn!(%error, "cannot learn which parameters upstream supports");
            (before.unwrap_or_default(), RETRY_AFTER_FAILURE)
        }
    };
    let new = Learned {
        parameters,
        until: Instant::now() + lifetime,
    };
    learned.lock().replace(new);
    if before != Some(parameters) {
        tracing::info!(
            shard_selector = parameters.shard_selector.as_str(),
            drop = parameters.drop.as_str(),
            "learned which parameters upstream supports"
        );
    }
    parameters
}

async fn ask(client: &UpstreamClient) -> Result<OptionalParameters, AnswerError> {
    let unusable = |error: &dyn std::fmt::Display| AnswerError::Unusable(error.to_string());
    let request = Request::get(QUESTION)
        .header(header::ACCEPT, ACCEPT)
        .body(body::empty())
        .map_err(|error| unusable(&error))?;
    let options = SendOptions::default();
    let response = client
        .send(ConnectionClass::Short, request, options)
        .await?;
    if response.status() != StatusCode::OK {
        return Err(AnswerError::refused(&response));
    }
    let answer = body::whole(response.into_body(), MAX_BYTES).await;
    let answer = answer.map_err(AnswerError::of_body)?;
    read_answer(&answer).map_err(|error| unusable(&error))
}

fn read_answer(answer: &Bytes) -> Result<OptionalParameters, serde_json::Error> {
    #[derive(Deserialize)]
    struct List {
        metadata: Metadata,
        items: Vec<Item>,
    }
    #[derive(Deserialize)]
    struct Item {
        metadata: Metadata,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Metadata {
        shard_info: Option<IgnoredAny>,
        managed_fields: Option<IgnoredAny>,
    }
    let list: List = serde_json::from_slice(answer)?;
    let shard_selector = match list.metadata.shard_info {
        Some(_) => ParameterUse::Heeded,
        None => ParameterUse::Ignored,
    };
    // An object without them proves nothing.
    let has_managed_fields = list
        .items
        .iter()
        .any(|item| item.metadata.managed_fields.is_some());
    let drop = if has_managed_fields {
        ParameterUse::Ignored
    } else {
        ParameterUse::Unknown
    };
    Ok(OptionalParameters {
        shard_selector,
        drop,
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use http::{HeaderValue, Response};

    use super::*;
    use crate::test_support::{Api, HTTP2, Pki, SOON, text, upstream_of};

    const ON: &str = concat!(
        r#"{"kind":"NamespaceList","metadata":{"resourceVersion":"7","#,
        r#""shardInfo":{"selector":"s"}},"items":[{"metadata":{"name":"default"}}]}"#
    );
    const OFF: &str = concat!(
        r#"{"kind":"NamespaceList","metadata":{"resourceVersion":"7"},"#,
        r#""items":[{"metadata":{"name":"default","managedFields":[{}]}}]}"#
    );

    fn sharded() -> Request<()> {
        Request::get("/api/v1/pods?shardSelector=x")
            .body(())
            .unwrap()
    }

    fn parameters(shard_selector: ParameterUse, drop: ParameterUse) -> OptionalParameters {
        OptionalParameters {
            shard_selector,
            drop,
        }
    }

    /// An answer that never comes.
    const SILENCE: &str = "";

    /// Starts an API server that gives these answers one after the other, and then fails.
    async fn probe(answers: &'static [&'static str]) -> (ParameterProbe, Arc<AtomicUsize>, Api) {
        let pki = Pki::new();
        let questions = Arc::new(AtomicUsize::new(0));
        let asked = Arc::clone(&questions);
        let api = Api::start(&pki, HTTP2, move |_, _| {
            let number = asked.fetch_add(1, Ordering::Relaxed);
            async move {
                match answers.get(number) {
                    Some(&SILENCE) => std::future::pending().await,
                    Some(answer) => text((*answer).to_owned()),
                    None => failure(),
                }
            }
        })
        .await;
        let client = UpstreamClient::new(&upstream_of(&pki, &api).await);
        let probe = ParameterProbe {
            patience: SOON,
            ..ParameterProbe::new(client)
        };
        (probe, questions, api)
    }

    fn failure() -> Response<body::Body> {
        let mut response = text(String::new());
        *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
        response
    }

    #[tokio::test]
    async fn the_effects_are_learned_once_and_again_after_their_time() {
        let (probe, questions, _api) = probe(&[ON, OFF]).await;
        let plain = Request::get("/api/v1/pods").body(()).unwrap();
        assert_eq!(probe.known_for(&plain).await, OptionalParameters::default());
        assert_eq!(questions.load(Ordering::Relaxed), 0);
        let on = parameters(ParameterUse::Heeded, ParameterUse::Unknown);
        for _ in 0..3 {
            assert_eq!(probe.known_for(&sharded()).await, on);
        }
        assert_eq!(questions.load(Ordering::Relaxed), 1);
        let past = |learned: Learned| Learned {
            until: Instant::now(),
            ..learned
        };
        let expire = || {
            let mut learned = probe.learned.lock();
            *learned = learned.map(past);
        };
        expire();
        let mut dropping = Request::get("/api/v1/pods").body(()).unwrap();
        let accept = HeaderValue::from_static(ACCEPT);
        dropping.headers_mut().insert(header::ACCEPT, accept);
        let off = parameters(ParameterUse::Ignored, ParameterUse::Ignored);
        assert_eq!(probe.known_for(&dropping).await, off);
        // Without an answer the last one counts, and upstream rests.
        expire();
        for _ in 0..3 {
            assert_eq!(probe.known_for(&sharded()).await, off);
        }
        assert_eq!(questions.load(Ordering::Relaxed), 3);
    }

    #[tokio::test]
    async fn what_was_learned_counts_while_the_next_answer_is_late() {
        let (probe, _, _api) = probe(&[ON, SILENCE]).await;
        let on = parameters(ParameterUse::Heeded, ParameterUse::Unknown);
        assert_eq!(probe.known_for(&sharded()).await, on);
        let probe = ParameterProbe {
            patience: Duration::from_millis(50),
            ..probe
        };
        if let Some(learned) = probe.learned.lock().as_mut() {
            learned.until = Instant::now();
        }
        assert_eq!(probe.known_for(&sharded()).await, on);
    }

    #[tokio::test]
    async fn nothing_is_known_before_the_first_answer() {
        let (probe, questions, _api) = probe(&[]).await;
        for _ in 0..3 {
            let known = probe.known_for(&sharded()).await;
            assert_eq!(known, OptionalParameters::default());
        }
        assert_eq!(questions.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn other_answers_teach_nothing() {
        for answer in ["", "{}", "[]", r#"{"metadata":{},"items":null}"#] {
            assert!(
                read_answer(&Bytes::from_static(answer.as_bytes())).is_err(),
                "{answer}"
            );
        }
        let empty = Bytes::from_static(br#"{"metadata":{},"items":[]}"#);
        let learned = parameters(ParameterUse::Ignored, ParameterUse::Unknown);
        assert_eq!(read_answer(&empty).unwrap(), learned);
    }
}
