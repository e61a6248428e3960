//! Asks upstream if it streams initial events (`sendInitialEvents`) of a type.
//!
//! Upstream is asked with a watch that matches nothing: a server that streams initial events
//! answers with the mark of their end at once.

use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;

use super::read::{ReadForm, read};
use super::stream::WatchStream;
use super::{AnswerError, ConnectionClass, ReflectorTarget, ServedBy, UpstreamClient, in_time};
use watershed_protocol::{EventKind, Representation, read_bookmark};

/// Query of the watch. Version 0 is read from upstream's cache.
const QUESTION: &str = "watch=1&allowWatchBookmarks=true&sendInitialEvents=true\
                        &resourceVersionMatch=NotOlderThan&resourceVersion=0&timeoutSeconds=10";
/// Timeout of the whole answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);

/// Asks about one type in one representation. Cheap to clone.
#[derive(Clone, Debug)]
pub struct InitialEventsProbe {
    client: UpstreamClient,
    uri: String,
    representation: Representation,
}

/// The answer of one API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InitialEventsAnswer {
    /// It streams initial events. This object is the bookmark that marks their end.
    Streamed(Bytes),
    /// It refuses to, or ignores the question.
    NotStreamed,
}

impl InitialEventsProbe {
    /// Creates a probe. It asks about objects of the selection, as the proxy may have no access to
    /// others.
    pub fn new(client: UpstreamClient, target: &ReflectorTarget) -> Self {
        Self {
            client,
            uri: target.url_of_none(QUESTION),
            representation: target.representation,
        }
    }

    /// Returns a probe that asks the server of an answer.
    #[must_use]
    pub fn beside(&self, server: &ServedBy) -> Self {
        Self {
            client: self.client.beside(server),
            ..self.clone()
        }
    }

    /// Asks upstream. Silence is an error: it says nothing about the server.
    pub async fn ask(self) -> Result<InitialEventsAnswer, AnswerError> {
        in_time(ANSWER_TIMEOUT, self.answer()).await
    }

    async fn answer(&self) -> Result<InitialEventsAnswer, AnswerError> {
        let encoding = self.representation.encoding;
        let form = ReadForm::watch_of(self.representation);
        let class = ConnectionClass::Watch;
        let (actual, body) = match read(&self.client, class, &self.uri, form).await {
            // Releases differ in code and words.
            Err(AnswerError::Refused {
                status: StatusCode::BAD_REQUEST | StatusCode::UNPROCESSABLE_ENTITY,
                ..
            }) => return Ok(InitialEventsAnswer::NotStreamed),
            answer => answer?,
        };
        if actual != encoding {
            return Err(AnswerError::Unusable("another encoding".to_owned()));
        }
        let mut stream = WatchStream::new(body, encoding);
        let Some(frame) = stream.next_frame().await? else {
            return Ok(InitialEventsAnswer::NotStreamed);
        };
        match frame.kind {
            EventKind::Bookmark if read_bookmark(encoding, &frame.object)?.initial_events_end => {
                Ok(InitialEventsAnswer::Streamed(frame.detached().object))
            }
            EventKind::Error => Err(AnswerError::Unusable("an ERROR event".to_owned())),
            _ => Ok(InitialEventsAnswer::NotStreamed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::{Api, HTTP2, Pki, typed, upstream_of};

    const MARK: &str = concat!(
        r#"{"type":"BOOKMARK","object":{"kind":"Pod","apiVersion":"v1","#,
        r#""metadata":{"resourceVersion":"8","#,
        r#""annotations":{"k8s.io/initial-events-end":"true"}}}}"#,
        "\n"
    );

    /// Asks an API server that answers like this.
    async fn ask(
        status: u16,
        content_type: &'static str,
        body: &'static str,
    ) -> Result<InitialEventsAnswer, AnswerError> {
        let pki = Pki::new();
        let api = Api::start(&pki, HTTP2, move |request, _| {
            let query = request.uri().query().unwrap();
            assert_eq!(
                query.strip_prefix(QUESTION),
                Some("&fieldSelector=metadata.name%3D-%2Cmetadata.name%3D..")
            );
            async move { typed(status, content_type, body) }
        })
        .await;
        let client = UpstreamClient::new(&upstream_of(&pki, &api).await);
        let probe = InitialEventsProbe::new(client, &ReflectorTarget::core(["pods", "Pod"]));
        probe.ask().await
    }

    #[tokio::test]
    async fn a_server_that_marks_the_end_streams_initial_events() {
        let answer = ask(200, "application/json", MARK).await.unwrap();
        let InitialEventsAnswer::Streamed(mark) = answer else {
            panic!("{answer:?}")
        };
        assert!(mark.starts_with(br#"{"kind":"Pod""#), "{mark:?}");
    }

    #[tokio::test]
    async fn a_server_that_refuses_or_ignores_the_question_does_not_stream() {
        let bookmark = concat!(
            r#"{"type":"BOOKMARK","object":{"kind":"Pod","apiVersion":"v1","#,
            r#""metadata":{"resourceVersion":"8"}}}"#,
            "\n"
        );
        for (status, body) in [(400, ""), (422, ""), (200, bookmark)] {
            let answer = ask(status, "application/json", body).await.unwrap();
            assert_eq!(answer, InitialEventsAnswer::NotStreamed, "{status} {body}");
        }
    }

    #[tokio::test]
    async fn a_bad_answer_says_nothing_about_the_server() {
        for (status, content_type, body) in [
            (404, "text/html", "default backend"),
            (503, "application/json", ""),
            (200, "text/html", "default backend"),
            (200, "application/json", "garbage\n"),
            (200, "application/json", ""),
        ] {
            assert!(
                ask(status, content_type, body).await.is_err(),
                "{status} {body}"
            );
        }
    }
}
