//! The right to send one request on a connection.
use std::sync::Arc;
use std::time::Duration;

use http::header::{CONNECTION, HOST, HeaderValue, TE};
use http::{Request, Response, Version};
use hyper::body::Incoming;
use hyper::client::conn::TrySendError;
use tokio::time::Instant;

use super::silence::AwaitedBy;
use super::{Http1Connection, Http2Connection, IdleHttp1, ServedBy};
use crate::body::Body;
use crate::upstream::error::UpstreamError;
use watershed_connect::{Address, Protocol};

/// Age below which a connection is not retired: a loop of proxies costs one a second.
const MIN_AGE: Duration = Duration::from_secs(1);

/// The right to send one request, held as long as the answer's body.
///
/// Dropping it before the end of the answer closes an HTTP/1 connection, which cannot be used again.
pub(in crate::upstream) struct Lease {
    connection: Leased,
    /// The connection was used or idle before: it may have died since.
    pub(in crate::upstream) is_pooled: bool,
}

/// Reason why a request got no answer.
pub(in crate::upstream) enum NotSent {
    /// The connection had ended before.
    Ended(Request<Body>),
    /// hyper returned an error.
    Failed(TrySendError<Request<Body>>),
    /// The request cannot be sent to this address.
    Refused(UpstreamError),
}

enum Leased {
    Http2(Http2Slot),
    Http1(Http1Connection, Arc<IdleHttp1>),
}

/// A stream of a shared connection, for one request. Dropping this frees it for others, also before the
/// answer has ended: dropping the answer resets the stream.
struct Http2Slot {
    connection: Arc<Http2Connection>,
    /// `true` once the whole answer has come.
    is_answered: bool,
}

impl Lease {
    /// Creates the lease of a stream that was taken of a new connection.
    pub(in crate::upstream) fn http2(connection: Arc<Http2Connection>) -> Self {
        Self {
            connection: Leased::Http2(Http2Slot {
                connection,
                is_answered: false,
            }),
            is_pooled: false,
        }
    }

    /// Creates the lease of a new connection, which goes to `idle` in the end.
    pub(in crate::upstream) fn http1(connection: Http1Connection, idle: Arc<IdleHttp1>) -> Self {
        Self {
            connection: Leased::Http1(connection, idle),
            is_pooled: false,
        }
    }

    /// Marks the connection as one that was open before.
    pub(in crate::upstream) fn pooled(self) -> Self {
        Self {
            is_pooled: true,
            ..self
        }
    }

    pub(in crate::upstream) fn address(&self) -> &Address {
        match &self.connection {
            Leased::Http2(slot) => &slot.connection.address,
            Leased::Http1(connection, _) => &connection.address,
        }
    }

    /// Returns the time at which the connection was opened, if it is shared.
    pub(in crate::upstream) fn opened(&self) -> Option<Instant> {
        match &self.connection {
            Leased::Http2(slot) => Some(slot.connection.opened),
            Leased::Http1(..) => None,
        }
    }

    /// Keeps further requests off the connection, if it is not a new one. It ends with the requests
    /// that are on it.
    pub(in crate::upstream) fn retire(&mut self) {
        let is_new = |opened: Instant| opened.elapsed() < MIN_AGE;
        match &mut self.connection {
            Leased::Http2(slot) if !is_new(slot.connection.opened) => slot.connection.retire(),
            Leased::Http1(connection, _) if !is_new(connection.opened) => connection.retired = true,
            Leased::Http2(_) | Leased::Http1(..) => {}
        }
    }

    /// Returns the extension of answers that come by this connection.
    pub(in crate::upstream) fn served_by(&self) -> ServedBy {
        let connection = match &self.connection {
            Leased::Http2(slot) => Some(Arc::downgrade(&slot.connection)),
            Leased::Http1(..) => None,
        };
        ServedBy {
            address: self.address().clone(),
            connection,
            opened: self.opened(),
        }
    }

    /// Sends the request, adapted to this connection.
    pub(in crate::upstream) async fn send(
        &mut self,
        mut request: Request<Body>,
        by: AwaitedBy,
    ) -> Result<Response<Incoming>, NotSent> {
        match &mut self.connection {
            Leased::Http2(Http2Slot { connection, .. }) => {
                shape(&mut request, &connection.address, Protocol::Http2)
                    .map_err(NotSent::Refused)?;
                let sender = connection.sender.lock().clone();
                let Some(mut sender) = sender else {
                    return Err(NotSent::Ended(request));
                };
                let awaited = connection.unanswered.begin(by);
                let answer = sender.try_send_request(request);
                drop(sender);
                let answer = answer.await.map_err(NotSent::Failed)?;
                awaited.answered();
                Ok(answer)
            }
            Leased::Http1(connection, _) => {
                shape(&mut request, &connection.address, Protocol::Http1)
                    .map_err(NotSent::Refused)?;
                connection
                    .sender
                    .try_send_request(request)
                    .await
                    .map_err(NotSent::Failed)
            }
        }
    }

    /// Returns the connection to the pool, after the whole answer.
    pub(in crate::upstream) fn finish(self) {
        match self.connection {
            Leased::Http2(mut slot) => slot.is_answered = true,
            Leased::Http1(connection, _) if connection.retired => {}
            Leased::Http1(mut connection, idle) => {
                // The driver needs a moment to see the end too, and the request's body may still be
                // on its way. A connection that closes instead is dropped here.
                tokio::spawn(async move {
                    if connection.sender.ready().await.is_ok() {
                        connection.idle_since = Instant::now();
                        idle.put_back(connection);
                    }
                });
            }
        }
    }
}

impl Drop for Http2Slot {
    fn drop(&mut self) {
        if !self.is_answered && self.connection.is_alone {
            // The server may answer nothing any more. And h2 counts what still comes of the answer.
            self.connection.retire();
        }
        self.connection.give_back();
    }
}

/// Adapts a request to a connection: target, host and version. It can be repeated for another one.
///
/// # Errors
///
/// If the base path of the address leaves no room for the request's own.
fn shape(
    request: &mut Request<Body>,
    address: &Address,
    protocol: Protocol,
) -> Result<(), UpstreamError> {
    let target = address.target(request.uri(), protocol);
    *request.uri_mut() = target.map_err(|error| UpstreamError::refused_url(&error))?;
    let headers = request.headers_mut();
    headers.remove(HOST);
    headers.remove(CONNECTION);
    if protocol == Protocol::Http1 {
        if let Ok(host) = HeaderValue::from_str(address.authority().as_str()) {
            headers.insert(HOST, host);
        }
        // TE is about this hop, and on HTTP/1.1 has to be named so.
        if headers.contains_key(TE) {
            headers.insert(CONNECTION, HeaderValue::from_static("TE"));
        }
    }
    *request.version_mut() = match protocol {
        Protocol::Http1 => Version::HTTP_11,
        Protocol::Http2 => Version::HTTP_2,
    };
    Ok(())
}
