//! Sends the requests of a reflector, and chooses the server that answers them.

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode, header};
use tokio::time::timeout;

use super::answer::{ANSWER_TIMEOUT, WATCH_ANSWER_TIMEOUT, accepted, is_gzip, read_list};
use super::change::ReflectorTarget;
use super::error::ReflectorError;
use super::recovery::Route;
use super::{Reflector, ReflectorState};
use crate::body;
use crate::upstream::read::ReadForm;
use crate::upstream::stream::{StreamBookmarks, WatchStream};
use crate::upstream::{
    AnswerCompression, AnswerError, ConnectionClass, RequestPurpose, SendOptions, UpstreamBody,
};

/// The query that begins a list. One object shows how upstream frames lists of the type.
pub(super) const FIRST_PAGE: &str = "limit=1";

/// A request for the objects of the scope.
#[derive(Clone, Copy, Debug)]
enum ReadRequest {
    /// A list, or a page of one.
    List,
    Watch,
}

/// An answer with objects.
struct Accepted {
    headers: HeaderMap,
    body: UpstreamBody,
    /// Compression was asked for.
    accepts_gzip: bool,
}

impl Reflector {
    /// Gets the body of a list. An expired continue token (410) restarts the list.
    pub(super) async fn get(&mut self, query: &str) -> Result<(HeaderMap, Bytes), ReflectorError> {
        let Accepted { headers, body, .. } = self.request(query, ReadRequest::List).await?;
        let body = read_list(&headers, body).await?;
        Ok((headers, body))
    }

    /// Opens a watch. Returns the headers of its answer, too.
    pub(super) async fn open(
        &mut self,
        query: &str,
    ) -> Result<(HeaderMap, Box<WatchStream>), ReflectorError> {
        let answer = self.request(query, ReadRequest::Watch).await?;
        let headers = answer.headers;
        let stream = WatchStream::new(answer.body, self.target.representation.encoding);
        let compression = AnswerCompression::of(answer.accepts_gzip, is_gzip(&headers)?);
        let stream = stream.with_compression(compression);
        let stream = stream.with_bookmarks(if self.expects_bookmarks() {
            StreamBookmarks::Expected
        } else {
            StreamBookmarks::Unknown
        });
        Ok((headers, Box::new(stream)))
    }

    /// Returns `true` if silence on the next stream means that it is dead.
    pub(super) fn expects_bookmarks(&self) -> bool {
        self.bookmarks.are_expected() && !self.target.gvr.is_event()
    }

    async fn request(
        &mut self,
        query: &str,
        read: ReadRequest,
    ) -> Result<Accepted, ReflectorError> {
        let representation = self.target.representation;
        let (form, lifetime) = match read {
            ReadRequest::Watch => (
                ReadForm::watch_of(representation),
                self.lifetime.parameter(&self.client),
            ),
            ReadRequest::List => (ReadForm::list_of(representation), String::new()),
        };
        let ReflectorTarget { gvr, selection, .. } = &self.target;
        let mut request = Request::get(format!(
            "{}?{query}{lifetime}{}",
            selection.path(gvr),
            selection.parameters()
        ))
        .header(header::ACCEPT, form.accept());
        // The answer may change what pays.
        let accepts_gzip = self.compression.pays(self.client.upstream());
        if accepts_gzip {
            request = request.header(header::ACCEPT_ENCODING, "gzip");
        }
        let request = request
            .body(body::empty())
            .map_err(|error| ReflectorError::Broken(error.to_string()))?;
        // All pages of a list must come from one server.
        let may_move = matches!(read, ReadRequest::Watch) || query == FIRST_PAGE;
        let (fresh_connection, avoid) = match self.recovery.route() {
            Route::Elsewhere(avoid) if may_move => (true, avoid),
            _ => (false, Vec::new()),
        };
        let instead_of = self.server.clone().filter(|_| fresh_connection);
        let (purpose, patience) = match read {
            ReadRequest::Watch => (RequestPurpose::Watch, WATCH_ANSWER_TIMEOUT),
            ReadRequest::List => (RequestPurpose::List, ANSWER_TIMEOUT),
        };
        // All of a list should be printed by one release.
        let beside = match self.state {
            ReflectorState::Start => self.listed_by.one().cloned(),
            _ => None,
        };
        let options = SendOptions {
            fresh_connection,
            instead_of,
            avoid: avoid.into(),
            beside,
            purpose,
        };
        let answer = timeout(
            patience,
            self.client.send(ConnectionClass::Watch, request, options),
        )
        .await;
        let response = answer.map_err(|_| ReflectorError::Silent(patience))??;
        self.server = response.extensions().get().cloned();
        self.heed_pause(&response);
        let content_type = form.content_type(representation.encoding);
        let (headers, body) = accepted(response, content_type).await?;
        Ok(Accepted {
            headers,
            body,
            accepts_gzip,
        })
    }

    /// Delays the next attempt for as long as an overloaded or starting server asks for.
    fn heed_pause<B>(&mut self, response: &Response<B>) {
        let status = response.status();
        if status == StatusCode::TOO_MANY_REQUESTS || status.is_server_error() {
            let pause = AnswerError::refused(response).retry_after();
            self.recovery.asked_to_wait(pause);
        }
    }
}
