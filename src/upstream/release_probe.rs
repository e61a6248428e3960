//! Asks an API server for its release.

use std::time::Duration;

use http::{Request, StatusCode, header};
use tokio::time::timeout;

use super::client::UpstreamClient;
use super::connection::ServedBy;
use super::error::AnswerError;
use super::pool::SendOptions;
use super::release::Release;
use super::{ConnectionClass, UpstreamBody};
use crate::body;

/// Timeout of the whole answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Limit of the answer, which has a few hundred bytes.
const MAX_BYTES: usize = 64 << 10;

/// Returns the release of the server that gave an answer; `None` if it does not tell this proxy.
///
/// The question goes over the connection of that answer. All callers share it.
pub async fn release_of(
    client: &UpstreamClient,
    server: &ServedBy,
) -> Result<Option<Release>, AnswerError> {
    let question = async {
        match timeout(ANSWER_TIMEOUT, ask(client, server)).await {
            Ok(answer) => answer.map_err(|error| error.to_string()),
            Err(_) => Err(format!("no answer to /version within {ANSWER_TIMEOUT:?}")),
        }
    };
    server
        .known_release(question)
        .await
        .map_err(AnswerError::Unusable)
}

/// Returns an error unless the answer is from the server that the client was to ask, or from one
/// of the same release.
pub(super) async fn check_release(
    client: &UpstreamClient,
    answer: &http::Response<UpstreamBody>,
) -> Result<(), AnswerError> {
    let Some(wanted) = client.server() else {
        return Ok(());
    };
    let server = answer.extensions().get::<ServedBy>();
    if let Some(server) = server {
        if server.is_same(wanted) {
            return Ok(());
        }
        // Boxed: it is rare, and every question would hold its state.
        let [theirs, wanted] = Box::pin(async {
            let theirs = release_of(client, server).await?;
            Ok::<_, AnswerError>([theirs, release_of(client, wanted).await?])
        })
        .await?;
        if theirs == wanted {
            return Ok(());
        }
    }
    let message = "it is from another server than the one that is followed";
    Err(AnswerError::Unusable(message.to_owned()))
}

async fn ask(client: &UpstreamClient, server: &ServedBy) -> Result<Option<Release>, AnswerError> {
    let unusable = |error: &dyn std::fmt::Display| AnswerError::Unusable(error.to_string());
    let request = Request::get("/version")
        .header(header::ACCEPT, "application/json")
        .body(body::empty())
        .map_err(|error| unusable(&error))?;
    let options = SendOptions {
        beside: Some(server.clone()),
        ..SendOptions::default()
    };
    let response = client
        .send(ConnectionClass::Watch, request, options)
        .await?;
    let by = response.extensions().get::<ServedBy>();
    if !by.is_some_and(|by| by.is_same(server)) {
        return Err(unusable(&"its connection is closed or full"));
    }
    match response.status() {
        StatusCode::OK => {}
        // The right to read it is everybody's by default, and may be taken away.
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::NOT_FOUND => {
            return Ok(None);
        }
        _ => return Err(AnswerError::refused(&response)),
    }
    let body = body::whole(response.into_body(), MAX_BYTES).await;
    let body = body.map_err(AnswerError::of_body)?;
    Release::parse(&body)
        .map(Some)
        .map_err(|error| unusable(&error))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use http::Response;

    use super::*;
    use crate::test_support::{Api, HTTP2, Pki, hanging, soon, text, upstream_of};

    /// Sends a request and returns the server of the answer, with the answer.
    async fn ask(
        client: &UpstreamClient,
        fresh_connection: bool,
    ) -> (ServedBy, Response<UpstreamBody>) {
        let request = Request::get("/").body(body::empty()).unwrap();
        let options = SendOptions {
            fresh_connection,
            ..SendOptions::default()
        };
        let answer = client.send(ConnectionClass::Watch, request, options).await;
        let answer = answer.unwrap();
        (
            answer.extensions().get::<ServedBy>().unwrap().clone(),
            answer,
        )
    }

    #[tokio::test]
    async fn each_connection_tells_the_release_of_its_server() {
        let pki = Pki::new();
        let questions = Arc::new(AtomicUsize::new(0));
        let asked = Arc::clone(&questions);
        // As behind a load balancer: each connection leads to another release.
        let api = Api::start(&pki, HTTP2, move |request, connection| {
            if request.uri().path() == "/version" {
                asked.fetch_add(1, Ordering::Relaxed);
            }
            let release = connection.number % 2;
            async move { text(format!(r#"{{"gitVersion":"v1.{release}.0"}}"#)) }
        })
        .await;
        let client = UpstreamClient::new(&upstream_of(&pki, &api).await);
        let (one, _) = ask(&client, true).await;
        let (two, _) = ask(&client, true).await;
        let (three, _) = ask(&client, true).await;
        assert!(
            one.is_same(&ask(&client, false).await.0),
            "the oldest is used"
        );
        let mut releases = Vec::new();
        for server in [&one, &two, &three, &two] {
            releases.push(release_of(&client, server).await.unwrap());
        }
        assert_eq!(questions.load(Ordering::Relaxed), 3);
        assert_ne!(releases[0], releases[1]);
        assert_eq!((&releases[0], &releases[1]), (&releases[2], &releases[3]));

        // A client that was to ask one of them accepts the answers of its release alone.
        let beside = client.beside(&two);
        let (server, answer) = ask(&beside, false).await;
        assert!(server.is_same(&two));
        assert!(check_release(&beside, &answer).await.is_ok());
        let beside = client.beside(&one);
        assert!(check_release(&beside, &answer).await.is_err());
        assert!(
            check_release(&beside, &ask(&client.beside(&three), false).await.1)
                .await
                .is_ok()
        );
        assert!(check_release(&client, &answer).await.is_ok());
    }

    #[tokio::test]
    async fn the_release_stays_known_when_a_connection_takes_no_more_requests() {
        let pki = Pki::new();
        let api = Api::start(&pki, HTTP2, move |request, _| {
            let is_watch = request.uri().path() == "/watch";
            async move {
                if is_watch {
                    return Response::new(hanging());
                }
                text(r#"{"gitVersion":"v1.37.1"}"#)
            }
        })
        .await;
        let client = UpstreamClient::new(&upstream_of(&pki, &api).await);
        let request = Request::get("/watch").body(body::empty()).unwrap();
        let options = SendOptions::default();
        let watch = client.send(ConnectionClass::Watch, request, options).await;
        let watch = watch.unwrap();
        let followed = watch.extensions().get::<ServedBy>().unwrap().clone();
        let release = release_of(&client, &followed).await.unwrap();
        api.go_away();
        let beside = client.beside(&followed);
        let answer = soon(eventually_elsewhere(&beside, &followed)).await;
        // The answer is too old to be believed, were there another one to be had.
        tokio::time::pause();
        tokio::time::advance(Duration::from_mins(1)).await;
        tokio::time::resume();
        assert!(check_release(&beside, &answer).await.is_ok());
        assert_eq!(release_of(&client, &followed).await.unwrap(), release);
        drop(watch);
    }

    /// Asks until the answer is not by this server's connection.
    async fn eventually_elsewhere(
        client: &UpstreamClient,
        server: &ServedBy,
    ) -> Response<UpstreamBody> {
        loop {
            let (by, answer) = ask(client, false).await;
            if !by.is_same(server) {
                return answer;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}
