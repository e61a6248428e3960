//! The clients' connections. Their settings are those of Go's client, which most clients use.
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use http::request::Builder;
use http::uri::PathAndQuery;
use http::{HeaderMap, Method, Request, Uri, header, response};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::time::{Instant, sleep, timeout};
use watershed_connect::{Address, ApiServer, Dialed, OfferedProtocols, Protocol};

use super::trouble::{LoadError, broken};
use crate::client::FlowWindows;

/// For the head of an answer, and for the settings of a new connection.
const HEAD_TIMEOUT: Duration = Duration::from_mins(1);

/// Limit of the bytes that are read of a refusal.
const MAX_REFUSAL_BYTES: usize = 64 << 10;

/// Idle HTTP/1.1 connections that are kept for the next request.
const MAX_IDLE: usize = 100;

/// Limit of resends of a request that the server did not process.
const MAX_RESENDS: usize = 3;

/// Connections to one server, each opened with its first request.
pub(super) struct Connections {
    upstream: ApiServer,
    offered: OfferedProtocols,
    lanes: Vec<tokio::sync::Mutex<Option<Http2Lane>>>,
    idle: Arc<Mutex<Vec<Http1Lane>>>,
    /// Number of connections opened so far.
    opened: AtomicUsize,
}

/// An HTTP/2 connection.
#[derive(Clone)]
struct Http2Lane {
    sender: http2::SendRequest<Full<Bytes>>,
    address: Address,
    authorization: HeaderMap,
    /// Requests the server allows at a time.
    limit: usize,
    /// Number of the connection.
    number: usize,
}

/// An HTTP/1.1 connection, for one request at a time.
struct Http1Lane {
    sender: http1::SendRequest<Full<Bytes>>,
    address: Address,
    authorization: HeaderMap,
}

enum LaneConnection {
    Http2(Http2Lane),
    Http1(Http1Lane),
}

/// A request without its server.
pub(super) struct LoadRequest<'a> {
    pub(super) method: Method,
    pub(super) path: String,
    pub(super) accept: &'static str,
    pub(super) gzip: bool,
    /// Content type and body.
    pub(super) content: Option<(&'a str, Bytes)>,
}

/// A successful answer.
pub(super) struct LoadAnswer {
    pub(super) head: response::Parts,
    pub(super) body: Incoming,
    /// Goes back to the idle ones when the body has been read.
    back: Option<(Http1Lane, Arc<Mutex<Vec<Http1Lane>>>)>,
}

impl LoadRequest<'_> {
    pub(super) fn get(path: String, accept: &'static str, gzip: bool) -> Self {
        Self {
            method: Method::GET,
            path,
            accept,
            gzip,
            content: None,
        }
    }

    fn build(
        &self,
        address: &Address,
        authorization: &HeaderMap,
        protocol: Protocol,
    ) -> Result<Request<Full<Bytes>>, LoadError> {
        let path = PathAndQuery::try_from(self.path.as_str())
            .map_err(|error| LoadError::Request(error.to_string()))?;
        let uri = address
            .target(&Uri::from(path), protocol)
            .map_err(|error| LoadError::Request(error.to_string()))?;
        let mut request: Builder = Request::builder().method(self.method.clone()).uri(uri);
        if let Some(headers) = request.headers_mut() {
            headers.clone_from(authorization);
        }
        if protocol == Protocol::Http1 {
            request = request.header(header::HOST, address.authority().as_str());
        }
        if self.gzip {
            request = request.header(header::ACCEPT_ENCODING, "gzip");
        }
        let mut body = Bytes::new();
        if let Some((content_type, content)) = &self.content {
            request = request.header(header::CONTENT_TYPE, *content_type);
            body = content.clone();
        }
        request
            .header(header::ACCEPT, self.accept)
            .header(
                header::USER_AGENT,
                concat!("watershed-load/", env!("CARGO_PKG_VERSION")),
            )
            .body(Full::new(body))
            .map_err(|error| LoadError::Request(error.to_string()))
    }
}

impl Connections {
    pub(super) fn new(upstream: ApiServer, http1: bool, lanes: usize) -> Self {
        let lanes = std::iter::repeat_with(tokio::sync::Mutex::default)
            .take(lanes.max(1))
            .collect();
        Self {
            upstream,
            offered: if http1 {
                OfferedProtocols::Http1
            } else {
                OfferedProtocols::Any
            },
            lanes,
            idle: Arc::default(),
            opened: AtomicUsize::new(0),
        }
    }

    pub(super) fn count(&self) -> usize {
        self.lanes.len()
    }

    /// Requests the server allows at a time on one connection; `None` with HTTP/1.1, where it is
    /// one.
    pub(super) async fn limit(&self) -> Result<Option<usize>, LoadError> {
        if self.offered == OfferedProtocols::Http1 {
            return Ok(None);
        }
        match Box::pin(self.lane(0)).await? {
            LaneConnection::Http2(shared) => Ok(Some(shared.limit)),
            LaneConnection::Http1(_) => Ok(None),
        }
    }

    /// Sends a request on the connection of a number. Refusals are errors.
    pub(super) async fn send(
        &self,
        lane: usize,
        request: LoadRequest<'_>,
    ) -> Result<LoadAnswer, LoadError> {
        let lane = lane % self.lanes.len();
        let sent = async {
            let mut resends = 0;
            loop {
                // Boxed: a handshake's state is 20 KB, and every watch would carry the room for
                // one.
                let opened = Box::pin(self.lane(lane)).await?;
                let error = match opened {
                    LaneConnection::Http2(mut shared) => {
                        let sent = request.build(
                            &shared.address,
                            &shared.authorization,
                            Protocol::Http2,
                        )?;
                        match shared.sender.send_request(sent).await {
                            Ok(answer) => return Ok::<_, LoadError>((answer, None)),
                            Err(error) => {
                                self.leave(lane, shared.number).await;
                                error
                            }
                        }
                    }
                    LaneConnection::Http1(mut exclusive) => {
                        let sent = request.build(
                            &exclusive.address,
                            &exclusive.authorization,
                            Protocol::Http1,
                        )?;
                        match exclusive.sender.send_request(sent).await {
                            Ok(answer) => {
                                return Ok((answer, Some((exclusive, Arc::clone(&self.idle)))));
                            }
                            Err(error) => error,
                        }
                    }
                };
                if resends == MAX_RESENDS || !is_unprocessed(&error) {
                    return Err(broken(error));
                }
                resends += 1;
            }
        };
        let (answer, back) = timeout(HEAD_TIMEOUT, sent)
            .await
            .map_err(|_| LoadError::Silent(HEAD_TIMEOUT))??;
        let (head, body) = answer.into_parts();
        if head.status.is_success() {
            return Ok(LoadAnswer { head, body, back });
        }
        let text = timeout(
            HEAD_TIMEOUT,
            Limited::new(body, MAX_REFUSAL_BYTES).collect(),
        )
        .await;
        let text = text
            .ok()
            .and_then(Result::ok)
            .map(http_body_util::Collected::to_bytes)
            .unwrap_or_default();
        Err(LoadError::refused(head.status, &text))
    }

    /// Returns the connection of a number, and opens it if necessary.
    async fn lane(&self, lane: usize) -> Result<LaneConnection, LoadError> {
        let mut place = self.lanes[lane].lock().await;
        if let Some(shared) = place.as_ref().filter(|shared| !shared.sender.is_closed()) {
            return Ok(LaneConnection::Http2(shared.clone()));
        }
        if let Some(exclusive) = self.take_idle() {
            return Ok(LaneConnection::Http1(exclusive));
        }
        let authorization = self.upstream.authorization().await?;
        let connection = self.upstream.connect(self.offered).await?;
        if connection.protocol == Protocol::Http1 {
            drop(place);
            return Ok(LaneConnection::Http1(
                exclusive(connection, authorization).await?,
            ));
        }
        let number = self.opened.fetch_add(1, Ordering::Relaxed);
        let shared = shared(connection, authorization, number).await?;
        *place = Some(shared.clone());
        Ok(LaneConnection::Http2(shared))
    }

    /// Stops using a connection that failed a request, as it may be going away.
    async fn leave(&self, lane: usize, number: usize) {
        let mut place = self.lanes[lane].lock().await;
        place.take_if(|shared| shared.number == number);
    }

    fn take_idle(&self) -> Option<Http1Lane> {
        let mut idle = self.idle.lock();
        loop {
            let exclusive = idle.pop()?;
            if !exclusive.sender.is_closed() {
                return Some(exclusive);
            }
        }
    }
}

async fn exclusive(connection: Dialed, authorization: HeaderMap) -> Result<Http1Lane, LoadError> {
    let (sender, driver) = http1::handshake(TokioIo::new(connection.stream))
        .await
        .map_err(broken)?;
    // Its end shows in the sender.
    tokio::spawn(async move { drop(driver.await) });
    Ok(Http1Lane {
        sender,
        address: connection.address,
        authorization,
    })
}

async fn shared(
    connection: Dialed,
    authorization: HeaderMap,
    number: usize,
) -> Result<Http2Lane, LoadError> {
    let (sender, mut driver) = FlowWindows::GO
        .settings()
        // Sends nothing before the server announces its limit. A request beyond it would hang.
        .initial_max_send_streams(0)
        .handshake(TokioIo::new(connection.stream))
        .await
        .map_err(broken)?;
    // Nothing can wait for the server's settings, so this polls for them at growing intervals.
    let deadline = Instant::now() + HEAD_TIMEOUT;
    let mut pause = Duration::from_micros(200);
    while driver.current_max_send_streams() == 0 {
        let polled = poll_fn(|cx| Poll::Ready(Pin::new(&mut driver).poll(cx))).await;
        match polled {
            Poll::Ready(Err(error)) => return Err(broken(error)),
            Poll::Ready(Ok(())) => return Err(LoadError::NoStreams),
            Poll::Pending if Instant::now() > deadline => return Err(LoadError::NoStreams),
            Poll::Pending => sleep(pause).await,
        }
        pause = (pause * 2).min(Duration::from_millis(20));
    }
    let limit = driver.current_max_send_streams();
    // Its end shows in the sender.
    tokio::spawn(async move { drop(driver.await) });
    Ok(Http2Lane {
        sender,
        address: connection.address,
        authorization,
        limit,
        number,
    })
}

/// Returns `true` if the server did not process the request: it was never sent, or the server
/// refused it with GOAWAY or REFUSED_STREAM. Go's client silently sends such a request again.
/// Source: `golang.org/x/net/http2/transport.go` (`canRetryError`).
fn is_unprocessed(error: &hyper::Error) -> bool {
    if error.is_canceled() {
        return true;
    }
    let mut next = std::error::Error::source(error);
    while let Some(cause) = next {
        if let Some(error) = cause.downcast_ref::<h2::Error>() {
            let refused = error.reason() == Some(h2::Reason::REFUSED_STREAM);
            return error.is_remote() && (refused || error.is_go_away());
        }
        next = cause.source();
    }
    false
}

impl LoadAnswer {
    /// Returns `true` if the body is compressed.
    pub(super) fn is_gzip(&self) -> bool {
        self.head
            .headers
            .get(header::CONTENT_ENCODING)
            .is_some_and(|value| value == "gzip")
    }

    /// Reads the body to its end, piece by piece, and then frees the connection.
    pub(super) async fn read(
        mut self,
        mut each: impl FnMut(Bytes) -> Result<(), LoadError>,
    ) -> Result<(), LoadError> {
        while let Some(frame) = self.body.frame().await {
            if let Ok(data) = frame.map_err(broken)?.into_data() {
                each(data)?;
            }
        }
        if let Some((exclusive, idle)) = self.back {
            let mut idle = idle.lock();
            if idle.len() < MAX_IDLE && !exclusive.sender.is_closed() {
                idle.push(exclusive);
            }
        }
        Ok(())
    }

    /// The whole body, up to a limit.
    pub(super) async fn whole(self, limit: usize) -> Result<Vec<u8>, LoadError> {
        let mut bytes = Vec::new();
        self.read(|data| {
            bytes.extend_from_slice(&data);
            if bytes.len() > limit {
                Err(LoadError::Request(format!("an answer above {limit} bytes")))
            } else {
                Ok(())
            }
        })
        .await?;
        Ok(bytes)
    }
}
