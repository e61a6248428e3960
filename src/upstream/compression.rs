//! Learns from upstream's answers if it compresses watches.
//!
//! Releases differ: from 1.37 on, upstream compresses a watch that marks the end of its initial
//! events for clients that accept gzip, unless the feature gate WatchListCompression is off. Where
//! the proxy's own watch does not ask for it, as decoding is expensive, upstream is asked with a
//! watch that matches nothing, of which only the head is read.
//! Source: `apiserver/pkg/endpoints/handlers/watch.go`.

use std::sync::Arc;
use std::time::Duration;

use futures_util::TryFutureExt as _;
use http::{Request, StatusCode, header};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use super::release_probe::check_release;
use super::{
    AnswerError, ConnectionClass, ReflectorTarget, SendOptions, ServedBy, UpstreamClient, in_time,
};
use crate::log_throttle::LogThrottle;
use watershed_protocol::{GroupVersionResource, Representation};

/// Time for which an answer holds. Afterwards upstream may run another release.
const HOLDS: Duration = Duration::from_mins(10);
/// Pause after a failed question. Longer than [`HEADERS_TIMEOUT`], so that one question is under
/// way at most.
const TRY_AGAIN: Duration = Duration::from_secs(30);
/// Timeout of the response headers.
const HEADERS_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for which a request waits for the first answer. Not to compress is never wrong.
const FIRST_ANSWER_WAIT: Duration = Duration::from_secs(1);
/// Query of the watch. Version 0 is read from upstream's cache.
const QUESTION: &str = "watch=1&allowWatchBookmarks=true&resourceVersion=0&timeoutSeconds=1";

/// One line for all types: an outage concerns them all.
static NOT_LEARNED: LogThrottle = LogThrottle::new(Duration::from_secs(10));

/// Knows whether upstream compresses the watches of a type. Cheap to clone.
///
/// Upstream is asked on first use, once for all concurrent callers. An old answer is renewed in the
/// background.
#[derive(Clone, Debug)]
pub struct WatchCompression(Arc<CompressionState>);

#[derive(Debug)]
struct CompressionState {
    /// Prefers the server at which the type is followed, once that is known.
    client: Mutex<UpstreamClient>,
    gvr: GroupVersionResource,
    /// The target of the question.
    uri: String,
    representation: Representation,
    /// The last answer; `None` until there is one. A failed question counts as a no if nothing was
    /// known, and changes nothing otherwise.
    answer: watch::Sender<Option<bool>>,
    questions: Mutex<CompressionQuestions>,
}

#[derive(Debug, Default)]
struct CompressionQuestions {
    /// Moment at which the next question is due; `None` for now.
    due: Option<Instant>,
    /// Number of times that everything was forgotten, or learned otherwise. The answer to an
    /// earlier question does not count.
    forgotten: u64,
}

impl WatchCompression {
    /// Creates a probe that has asked nothing yet.
    ///
    /// It will ask about objects of the selection, as the proxy may have no access to others.
    pub fn new(client: UpstreamClient, target: &ReflectorTarget) -> Self {
        let (answer, _) = watch::channel(None);
        Self(Arc::new(CompressionState {
            client: Mutex::new(client),
            gvr: target.gvr.clone(),
            uri: target.url_of_none(QUESTION),
            representation: target.representation,
            answer,
            questions: Mutex::default(),
        }))
    }

    /// Notes that the type is followed at the server of this answer from now on.
    pub fn follow(&self, server: &ServedBy) {
        let mut client = self.0.client.lock();
        *client = client.beside(server);
    }

    /// Notes that the followed server compressed such a watch of the proxy's own, or did not
    /// although it was asked to. This saves a question.
    pub fn learned(&self, on: bool) {
        let mut questions = self.0.questions.lock();
        questions.due = Some(Instant::now() + HOLDS);
        // The answer to a question that is under way is older.
        questions.forgotten += 1;
        self.0.answer.send_replace(Some(on));
    }

    /// Forgets what was learned, as the followed server is of another release. The answer to a
    /// question that is under way is about the former one, and does not count either.
    pub fn forget(&self) {
        let mut questions = self.0.questions.lock();
        questions.due = None;
        questions.forgotten += 1;
        self.0.answer.send_replace(None);
    }

    /// Returns `true` if upstream compresses watches that mark the end of their initial events.
    pub async fn is_on(&self) -> bool {
        if let Some(forgotten) = self.0.begin() {
            let inner = Arc::clone(&self.0);
            // A task of its own, as the caller may be cancelled.
            tokio::spawn(async move { inner.learn(forgotten).await });
        }
        let mut answer = self.0.answer.subscribe();
        match timeout(FIRST_ANSWER_WAIT, answer.wait_for(Option::is_some)).await {
            Ok(Ok(answer)) => *answer == Some(true),
            _ => false,
        }
    }
}

impl CompressionState {
    /// Returns [`CompressionQuestions::forgotten`], if a question is due. The caller must ask it
    /// then.
    fn begin(&self) -> Option<u64> {
        let now = Instant::now();
        let mut questions = self.questions.lock();
        if questions.due.is_some_and(|due| due > now) {
            return None;
        }
        questions.due = Some(now + TRY_AGAIN);
        Some(questions.forgotten)
    }

    /// Asks upstream. The answer counts if nothing was forgotten since [`CompressionState::begin`].
    async fn learn(&self, forgotten: u64) {
        let answer = self.ask().await;
        let mut questions = self.questions.lock();
        if questions.forgotten != forgotten {
            return;
        }
        match answer {
            Ok(on) => {
                questions.due = Some(Instant::now() + HOLDS);
                if self.answer.send_replace(Some(on)) != Some(on) {
                    tracing::info!(
                        resource = %self.gvr,
                        on,
                        "learned whether upstream compresses watches"
                    );
                }
            }
            Err(error) => {
                if let Some(of_all_types) = NOT_LEARNED.count(1) {
                    tracing::warn!(
                        resource = %self.gvr,
                        %error,
                        of_all_types,
                        "cannot learn whether upstream compresses watches"
                    );
                }
                self.answer
                    .send_modify(|answer| *answer = Some(answer.unwrap_or(false)));
            }
        }
    }

    async fn ask(&self) -> Result<bool, AnswerError> {
        let request = Request::get(&self.uri)
            .header(header::ACCEPT, self.representation.watch_accept_header())
            .header(header::ACCEPT_ENCODING, "gzip")
            .body(crate::body::empty())
            .map_err(|error| AnswerError::Unusable(error.to_string()))?;
        let client = self.client.lock().clone();
        let class = ConnectionClass::Watch;
        let answer = client.send(class, request, SendOptions::default());
        let response = in_time(HEADERS_TIMEOUT, answer.err_into()).await?;
        check_release(&client, &response).await?;
        if response.status() != StatusCode::OK {
            return Err(AnswerError::refused(&response));
        }
        Ok(response
            .headers()
            .get(header::CONTENT_ENCODING)
            .is_some_and(|coding| coding == "gzip"))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering};

    use http::Response;
    use tokio::sync::Semaphore;

    use super::*;
    use crate::test_support::{Api, HTTP2, Pki, SOON, eventually, hanging, upstream_of};

    /// An API server that can be told how to answer, and counts.
    struct Asked {
        /// Status of the answers; 201 stands for a compressed 200.
        status: Arc<AtomicU16>,
        questions: Arc<AtomicUsize>,
        /// Answers are given for these.
        permits: Arc<Semaphore>,
        compression: WatchCompression,
        _api: Api,
    }

    const COMPRESSED: u16 = 201;

    impl Asked {
        async fn new(status: u16) -> Self {
            let pki = Pki::new();
            let status = Arc::new(AtomicU16::new(status));
            let questions = Arc::new(AtomicUsize::new(0));
            let permits = Arc::new(Semaphore::new(Semaphore::MAX_PERMITS));
            let (told, count) = (Arc::clone(&status), Arc::clone(&questions));
            let may_answer = Arc::clone(&permits);
            let api = Api::start(&pki, HTTP2, move |request, _| {
                assert_eq!(request.uri().path(), "/api/v1/namespaces/default/pods");
                let query = request.uri().query().unwrap();
                assert_eq!(
                    query.strip_prefix(QUESTION),
                    Some("&fieldSelector=metadata.name%3D-%2Cmetadata.name%3D..")
                );
                assert_eq!(request.headers()["accept-encoding"], "gzip");
                count.fetch_add(1, Ordering::AcqRel);
                let told = told.load(Ordering::Acquire);
                let may_answer = Arc::clone(&may_answer);
                async move {
                    may_answer.acquire().await.unwrap().forget();
                    let answer = match told {
                        COMPRESSED => Response::builder().header("content-encoding", "gzip"),
                        status => Response::builder().status(status),
                    };
                    answer.body(hanging()).unwrap()
                }
            })
            .await;
            let client = UpstreamClient::new(&upstream_of(&pki, &api).await);
            let compression =
                WatchCompression::new(client, &ReflectorTarget::core(["pods", "Pod"]));
            Self {
                status,
                questions,
                permits,
                compression,
                _api: api,
            }
        }

        fn questions(&self) -> usize {
            self.questions.load(Ordering::Acquire)
        }

        fn answer(&self) -> Option<bool> {
            *self.compression.0.answer.borrow()
        }

        /// Many want to know at the same time; what they are told once something is known.
        async fn is_on(&self) -> bool {
            let many = std::iter::repeat_with(|| self.compression.is_on()).take(50);
            futures_util::future::join_all(many).await;
            eventually(|| self.answer().is_some()).await;
            self.compression.is_on().await
        }

        /// As if the time until the next question had passed, which was to be about this long.
        fn comes_due(&self, expected: Duration) {
            let now = Instant::now();
            let mut questions = self.compression.0.questions.lock();
            let left = questions.due.replace(now).unwrap() - now;
            assert!(left <= expected && left + SOON > expected, "{left:?}");
        }
    }

    #[tokio::test]
    async fn one_probe_serves_all_requests() {
        for (status, on) in [(COMPRESSED, true), (200, false)] {
            let asked = Asked::new(status).await;
            assert_eq!(asked.questions(), 0, "nobody wanted to know");
            assert_eq!(asked.is_on().await, on);
            assert_eq!(asked.questions(), 1);
        }
    }

    #[tokio::test]
    async fn an_old_result_holds_until_the_next_probe_succeeds() {
        let asked = Asked::new(COMPRESSED).await;
        assert!(asked.is_on().await);
        asked.status.store(200, Ordering::Release);
        asked.comes_due(HOLDS);
        assert!(
            asked.compression.is_on().await,
            "nobody waits for the new answer"
        );
        eventually(|| asked.answer() == Some(false)).await;
        asked.status.store(COMPRESSED, Ordering::Release);
        asked.comes_due(HOLDS);
        asked.is_on().await;
        eventually(|| asked.answer() == Some(true)).await;
        // A failure takes nothing back.
        asked.status.store(503, Ordering::Release);
        asked.comes_due(HOLDS);
        assert!(asked.is_on().await);
        eventually(|| asked.questions() == 4).await;
        assert!(asked.is_on().await);
        assert_eq!(asked.questions(), 4);
    }

    #[tokio::test]
    async fn a_failed_probe_is_repeated_later() {
        let asked = Asked::new(403).await;
        assert!(!asked.is_on().await);
        assert_eq!(asked.questions(), 1);
        asked.status.store(COMPRESSED, Ordering::Release);
        asked.comes_due(TRY_AGAIN);
        asked.is_on().await;
        eventually(|| asked.answer() == Some(true)).await;
        assert_eq!(asked.questions(), 2);
    }

    #[tokio::test]
    async fn an_answer_to_the_proxys_own_watch_saves_the_question() {
        for on in [true, false] {
            let asked = Asked::new(503).await;
            asked.compression.learned(on);
            assert_eq!(asked.is_on().await, on);
            assert_eq!(asked.questions(), 0);
        }
    }

    #[tokio::test]
    async fn an_answer_to_a_question_from_before_a_change_of_release_does_not_count() {
        let asked = Asked::new(COMPRESSED).await;
        asked.permits.forget_permits(Semaphore::MAX_PERMITS);
        assert!(!asked.compression.is_on().await, "there is no answer yet");
        eventually(|| asked.questions() == 1).await;
        asked.compression.forget();
        asked.permits.add_permits(1);
        // The task of the question has ended.
        eventually(|| Arc::strong_count(&asked.compression.0) == 1).await;
        assert_eq!(asked.answer(), None);
        asked.status.store(200, Ordering::Release);
        asked.permits.add_permits(1);
        assert!(!asked.compression.is_on().await);
        assert_eq!(asked.questions(), 2);
    }
}
