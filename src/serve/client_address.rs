//! The client's address: as trusted proxies tell it, and as upstream hears it.
//!
//! Upstream writes the addresses in `X-Forwarded-For` and `X-Real-Ip` into its audit log, before
//! that of the connection. Source: `apimachinery/pkg/util/net/http.go` (`SourceIPs`).
use std::net::IpAddr;

use http::{HeaderMap, HeaderName, HeaderValue};

use crate::listener::TrustedProxies;

pub(super) const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");

/// Returns the address of the client whose request came from `peer`, and takes out of the headers
/// what nobody vouches for.
///
/// Without trusted proxies the headers stay as they are, as in an API server, and count for
/// nothing here. Otherwise only a trusted peer may name an address, and of a list of addresses
/// those count that trusted proxies have appended. `is_told` is false for a client whose address a
/// load balancer did not tell: what its headers say is then its own word.
pub(super) fn settle(
    trusted: &TrustedProxies,
    headers: &mut HeaderMap,
    peer: IpAddr,
    is_told: bool,
) -> IpAddr {
    let peer = peer.to_canonical();
    if trusted.is_empty() {
        return peer;
    }
    let hops = if is_told && trusted.contains(peer) {
        believed(trusted, headers)
    } else {
        Vec::new()
    };
    headers.remove(FORWARDED_FOR);
    headers.remove(REAL_IP);
    match hops.first() {
        Some(client) => {
            set(headers, &hops);
            *client
        }
        None => peer,
    }
}

/// Adds the peer's address to those that upstream hears of.
///
/// `is_vouched` says that the proxy speaks for the caller. What the caller says of its address is
/// then left out, unless a trusted proxy has confirmed it ([`settle`]).
pub(super) fn add_peer(
    trusted: &TrustedProxies,
    headers: &mut HeaderMap,
    peer: IpAddr,
    is_vouched: bool,
) {
    let peer = peer.to_canonical().to_string();
    if is_vouched && trusted.is_empty() {
        headers.remove(FORWARDED_FOR);
        headers.remove(REAL_IP);
    }
    let mut list = Vec::new();
    // Upstream reads the first of several fields only.
    for value in headers.get_all(FORWARDED_FOR) {
        list.extend_from_slice(value.as_bytes());
        list.extend_from_slice(b", ");
    }
    list.extend_from_slice(peer.as_bytes());
    if let Ok(value) = HeaderValue::from_bytes(&list) {
        headers.insert(FORWARDED_FOR, value);
    }
}

/// Returns the addresses that trusted proxies vouch for, the client's first.
fn believed(trusted: &TrustedProxies, headers: &HeaderMap) -> Vec<IpAddr> {
    let mut listed = Vec::new();
    for value in headers.get_all(FORWARDED_FOR) {
        listed.extend(
            String::from_utf8_lossy(value.as_bytes())
                .split(',')
                .map(address),
        );
    }
    if listed.is_empty() {
        let real = headers
            .get(REAL_IP)
            .map(|value| String::from_utf8_lossy(value.as_bytes()));
        listed.extend(real.map(|text| address(&text)));
    }
    let mut hops = Vec::new();
    // From the nearest on. The first that is not trusted has written whatever precedes it.
    for hop in listed.into_iter().rev() {
        let Some(hop) = hop else { break };
        hops.push(hop);
        if !trusted.contains(hop) {
            break;
        }
    }
    hops.reverse();
    hops
}

/// Parses an address, which some proxies write with a port.
fn address(text: &str) -> Option<IpAddr> {
    let text = text.trim();
    let plain = text
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'));
    let parsed = plain.unwrap_or(text).parse::<IpAddr>().ok();
    let with_port = || {
        text.parse::<std::net::SocketAddr>()
            .ok()
            .map(|address| address.ip())
    };
    parsed
        .or_else(with_port)
        .map(|address| address.to_canonical())
}

fn set(headers: &mut HeaderMap, hops: &[IpAddr]) {
    let list: Vec<String> = hops.iter().map(ToString::to_string).collect();
    if let Ok(value) = HeaderValue::from_str(&list.join(", ")) {
        headers.insert(FORWARDED_FOR, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proxies() -> TrustedProxies {
        TrustedProxies::new(["10.0.0.0/8".parse().unwrap(), "fd00::/8".parse().unwrap()])
    }

    fn headers(list: &[(&HeaderName, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in list {
            headers.append(*name, value.parse().unwrap());
        }
        headers
    }

    /// Returns the client and the headers that are left.
    fn settled(trusted: &TrustedProxies, list: &[(&HeaderName, &str)], peer: &str) -> String {
        let mut headers = headers(list);
        let client = settle(trusted, &mut headers, peer.parse().unwrap(), true);
        format!("{client}{}", shown(&headers))
    }

    fn shown(headers: &HeaderMap) -> String {
        let mut text = String::new();
        for value in [&FORWARDED_FOR, &REAL_IP]
            .iter()
            .flat_map(|name| headers.get_all(*name))
        {
            text += " [";
            text += value.to_str().unwrap();
            text += "]";
        }
        text
    }

    #[test]
    fn only_trusted_proxies_name_a_client() {
        let (list, real) = (&FORWARDED_FOR, &REAL_IP);
        for (sent, peer, wanted) in [
            (
                &[(list, "192.0.2.1")][..],
                "10.0.0.1",
                "192.0.2.1 [192.0.2.1]",
            ),
            (&[(list, "192.0.2.1")], "203.0.113.9", "203.0.113.9"),
            (&[(real, "192.0.2.1")], "203.0.113.9", "203.0.113.9"),
            (&[(real, "192.0.2.1")], "10.0.0.1", "192.0.2.1 [192.0.2.1]"),
            // The client has written the first one itself.
            (
                &[(list, "1.1.1.1, 192.0.2.1, 10.0.0.2")],
                "10.0.0.1",
                "192.0.2.1 [192.0.2.1, 10.0.0.2]",
            ),
            (
                &[(list, "1.1.1.1"), (list, "192.0.2.1")],
                "10.0.0.1",
                "192.0.2.1 [192.0.2.1]",
            ),
            (
                &[(list, "192.0.2.1"), (real, "1.1.1.1")],
                "10.0.0.1",
                "192.0.2.1 [192.0.2.1]",
            ),
            // Nothing before an entry that is no address is believed.
            (
                &[(list, "192.0.2.1, unknown, 10.0.0.2")],
                "10.0.0.1",
                "10.0.0.2 [10.0.0.2]",
            ),
            (&[(list, "192.0.2.1, ")], "10.0.0.1", "10.0.0.1"),
            (
                &[(list, "192.0.2.1:4711")],
                "fd00::1",
                "192.0.2.1 [192.0.2.1]",
            ),
            (
                &[(list, "[2001:db8::1]:80")],
                "::ffff:10.0.0.1",
                "2001:db8::1 [2001:db8::1]",
            ),
            (&[], "10.0.0.1", "10.0.0.1"),
        ] {
            assert_eq!(settled(&proxies(), sent, peer), wanted, "{sent:?}");
        }
        let nobody = TrustedProxies::default();
        assert_eq!(
            settled(
                &nobody,
                &[(list, "192.0.2.1"), (real, "1.1.1.1")],
                "10.0.0.1"
            ),
            "10.0.0.1 [192.0.2.1] [1.1.1.1]",
            "as they came"
        );
    }

    #[test]
    fn a_client_whose_address_nobody_told_is_not_believed() {
        let mut headers = headers(&[(&FORWARDED_FOR, "192.0.2.1"), (&REAL_IP, "192.0.2.1")]);
        let balancer = "10.0.0.1".parse().unwrap();
        assert_eq!(settle(&proxies(), &mut headers, balancer, false), balancer);
        assert_eq!(shown(&headers), "");
    }

    #[test]
    fn upstream_hears_of_the_peer() {
        let (list, real) = (&FORWARDED_FOR, &REAL_IP);
        let nobody = TrustedProxies::default();
        for (trusted, sent, is_vouched, wanted) in [
            (&nobody, &[][..], false, " [10.0.0.9]"),
            (
                &nobody,
                &[(list, "1.1.1.1"), (list, "2.2.2.2")],
                false,
                " [1.1.1.1, 2.2.2.2, 10.0.0.9]",
            ),
            (
                &nobody,
                &[(list, "1.1.1.1"), (real, "2.2.2.2")],
                true,
                " [10.0.0.9]",
            ),
            (
                &proxies(),
                &[(list, "192.0.2.1")],
                true,
                " [192.0.2.1, 10.0.0.9]",
            ),
        ] {
            let mut headers = headers(sent);
            add_peer(
                trusted,
                &mut headers,
                "::ffff:10.0.0.9".parse().unwrap(),
                is_vouched,
            );
            assert_eq!(shown(&headers), wanted, "{sent:?}");
        }
    }
}
