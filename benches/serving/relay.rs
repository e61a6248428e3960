//! Passing on what is asked beside the pods, so that a proxy can take the limit server for an API
//! server.
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderValue, Request, Response, header};
use http_body::Frame;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use watershed_lab::body::full_body;

use crate::client::{Connection, Endpoint};
use crate::limit::Body;

/// The API server's CA and a token for it, as files in the limit server's folder.
const CA: &str = "relay.crt";
const TOKEN: &str = "relay.token";

/// The way to the API server that answers.
pub(crate) struct Relay(Endpoint);

/// A body that keeps its connection open.
struct Held {
    body: Incoming,
    _connection: Connection,
}

/// Leaves what [`Relay::read`] needs.
pub(crate) fn write(folder: &Path, ca_pem: &str, token: &str) -> anyhow::Result<()> {
    fs::write(folder.join(CA), ca_pem)?;
    Ok(fs::write(folder.join(TOKEN), token)?)
}

impl Relay {
    pub(crate) fn read(folder: &Path, address: SocketAddr) -> anyhow::Result<Self> {
        let token = fs::read_to_string(folder.join(TOKEN))?;
        Ok(Self(Endpoint::new(
            &address.to_string(),
            &fs::read(folder.join(CA))?,
            &token,
        )?))
    }

    /// One connection for each: these are few.
    pub(crate) async fn answer(
        &self,
        request: Request<Incoming>,
    ) -> anyhow::Result<Response<Body>> {
        let connection = self.0.connect(false).await?;
        let (mut head, body) = request.into_parts();
        head.version = http::Version::HTTP_2;
        for name in [
            header::HOST,
            header::CONNECTION,
            header::TRANSFER_ENCODING,
            header::CONTENT_LENGTH,
        ] {
            head.headers.remove(name);
        }
        head.headers.insert(
            header::AUTHORIZATION,
            HeaderValue::from_str(&self.0.bearer())?,
        );
        let body = body.collect().await?.to_bytes();
        let answer = connection
            .pass_on(Request::from_parts(head, full_body(body)))
            .await?;
        Ok(answer.map(|body| {
            Held {
                body,
                _connection: connection,
            }
            .boxed_unsync()
        }))
    }
}

impl http_body::Body for Held {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        Pin::new(&mut self.get_mut().body).poll_frame(context)
    }
}
