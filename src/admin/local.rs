//! Callers on this machine.
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use http::uri::Authority;
use http::{Request, header};

use crate::listener::Peer;

/// Returns `true` if the caller is on this machine or in this pod.
///
/// The request must also name localhost or a loopback address as its host. This defeats DNS rebinding: a
/// foreign page in a local browser can make its own name resolve to this listener, but then sends
/// that name.
///
/// Other addresses than the two usual ones are not local: sidecars of service meshes pass on from such
/// addresses what others have sent to the pod.
pub(super) fn is_local<B>(request: &Request<B>, peer: &Peer) -> bool {
    let address = peer.address.ip().to_canonical();
    let is_usual = address == Ipv4Addr::LOCALHOST || address == Ipv6Addr::LOCALHOST;
    is_usual && requested_host(request).is_some_and(|host| is_loopback(host.host()))
}

/// Returns the Host header, or the authority of an HTTP/2 request.
fn requested_host<B>(request: &Request<B>) -> Option<Authority> {
    let header = request
        .headers()
        .get(header::HOST)
        .and_then(|host| host.to_str().ok());
    match header {
        Some(host) => host.parse().ok(),
        None => request.uri().authority().cloned(),
    }
}

fn is_loopback(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']');
    let is_loopback = |address: IpAddr| address.to_canonical().is_loopback();
    host.eq_ignore_ascii_case("localhost") || address.parse().is_ok_and(is_loopback)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::listener::PeerConnection;

    #[test]
    fn only_callers_on_this_machine_are_local() {
        for (host, address, local) in [
            ("127.0.0.1:6480", "127.0.0.1:1", true),
            ("localhost:6480", "127.0.0.1:1", true),
            ("[::1]:6480", "[::1]:1", true),
            ("127.0.0.1", "[::ffff:127.0.0.1]:1", true),
            ("evil.example.com:6480", "127.0.0.1:1", false),
            ("localhost.example.com", "127.0.0.1:1", false),
            ("", "127.0.0.1:1", false),
            ("127.0.0.1:6480", "10.0.0.1:1", false),
            ("localhost:6480", "127.0.0.6:1", false),
            ("10.1.2.3:6480", "127.0.0.1:1", false),
        ] {
            let request = Request::get("/status")
                .header(header::HOST, host)
                .body(())
                .unwrap();
            let peer = Peer {
                address: address.parse().unwrap(),
                tls: None,
                connection: PeerConnection::default(),
            };
            assert_eq!(is_local(&request, &peer), local, "{host} from {address}");
        }
    }
}
