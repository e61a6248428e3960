//! Forwards protocol upgrades: exec, attach, port-forward and watches over WebSocket.

use std::sync::Arc;

use http::header::{HOST, HeaderValue};
use http::{Request, Response, StatusCode, Version};
use hyper_util::rt::TokioIo;

use super::body::{UpstreamBody, held_by, to_client};
use super::connection::http1_builder;
use super::error::UpstreamError;
use super::hop_by_hop;
use super::server::Upstream;
use super::traffic::{ConnectionPurpose, RequestPurpose, SentRequest};
use super::tunnel::{Tunnels, tunnel};
use crate::body::{self, Body, TunnelEnd};
use crate::fairness::Share;
use watershed_connect::{Address, Dialer, OfferedProtocols, Protocol, TlsIdentity};

/// Forwards upgrades, each on a connection of its own.
pub(super) struct UpgradeForwarder {
    pub(super) upstream: Upstream,
    pub(super) dialer: Arc<Dialer>,
    /// The tunnels that are open.
    pub(super) tunnels: Tunnels,
}

impl UpgradeForwarder {
    /// Sends the request on its own connection. If upstream upgrades, joins both sides in a tunnel.
    ///
    /// Any other answer is returned like that of an ordinary request.
    pub(super) async fn forward(
        &self,
        identity: TlsIdentity,
        share: Option<Share>,
        request: Request<Body>,
        protocol: HeaderValue,
    ) -> Result<Response<Body>, UpstreamError> {
        let mut sent = self.upstream.traffic().send(RequestPurpose::Forward);
        let answer = self.send(identity, share, request, protocol, &mut sent);
        answer.await.inspect_err(|error| sent.failed(error))
    }

    async fn send(
        &self,
        identity: TlsIdentity,
        share: Option<Share>,
        mut request: Request<Body>,
        protocol: HeaderValue,
        sent: &mut SentRequest,
    ) -> Result<Response<Body>, UpstreamError> {
        let credentials = self.upstream.current();
        let offered = OfferedProtocols::Http1;
        let dialed = self
            .dialer
            .dial(&credentials, identity, offered, &[])
            .await?;
        let address = dialed.address;
        let handshaken = http1_builder().handshake(TokioIo::new(dialed.stream)).await;
        let (mut sender, driver) = handshaken.map_err(|source| UpstreamError::Handshake {
            address: address.clone(),
            source: Arc::new(source),
        })?;
        let open = Arc::new(self.upstream.traffic().connected(ConnectionPurpose::Tunnel));
        let plain = Arc::clone(&open);
        tokio::spawn(async move {
            // Its end shows in the answer or in the tunnel.
            let _ = driver.with_upgrades().await;
            drop(plain);
        });

        let client_side = hyper::upgrade::on(&mut request);
        request.extensions_mut().clear();
        shape(&mut request, &address, protocol)?;
        let mut response =
            sender
                .send_request(request)
                .await
                .map_err(|source| UpstreamError::Closed {
                    address: address.clone(),
                    source: Arc::new(source),
                })?;

        let received = sent.answered(response.status());
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            let response = response.map(|body| UpstreamBody::unpooled(body, address, received));
            return Ok(held_by(to_client(response), share));
        }
        let chosen = response.headers().get(http::header::UPGRADE).cloned();
        let upstream_side = hyper::upgrade::on(&mut response);
        let end = TunnelEnd::default();
        self.tunnels.open(
            tunnel(client_side, upstream_side, address),
            (share, open, end.clone().reached_on_drop()),
        );
        let (mut parts, _) = response.into_parts();
        hop_by_hop::clean_response(&mut parts.headers);
        if let Some(chosen) = chosen {
            hop_by_hop::set_upgrade(&mut parts.headers, chosen);
        }
        let mut answer = Response::new(body::empty());
        *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        *answer.headers_mut() = parts.headers;
        answer.extensions_mut().insert(end);
        Ok(answer)
    }
}

fn shape(
    request: &mut Request<Body>,
    address: &Address,
    protocol: HeaderValue,
) -> Result<(), UpstreamError> {
    let target = address.target(request.uri(), Protocol::Http1);
    *request.uri_mut() = target.map_err(|error| UpstreamError::refused_url(&error))?;
    *request.version_mut() = Version::HTTP_11;
    let host = HeaderValue::from_str(address.authority().as_str());
    let host = host.map_err(|error| UpstreamError::refused_url(&error.into()))?;
    request.headers_mut().insert(HOST, host);
    hop_by_hop::set_upgrade(request.headers_mut(), protocol);
    Ok(())
}
