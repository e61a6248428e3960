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
const PATIENCE: Duration = Duration::from_secs(5);
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
        match timeout(PATIENCE, ask(client, server)).await {
            Ok(answer) => answer.map_err(|error| error.to_string()),
            Err(_) => Err(format!("no answer to /version within {PATIENCE:?}")),
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
        if release_of(client, server).await? == release_of(client, wanted).await? {
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
        status => return Err(AnswerError::Status(status)),
    }
    let body = body::whole(response.into_body(), MAX_BYTES).await;
    let body = body.map_err(|error| unusable(&error))?;
    Release::parse(&body)
        .map(Some)
        .map_err(|error| unusable(&error))
}
