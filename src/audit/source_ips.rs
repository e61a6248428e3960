//! The source addresses of a request: those that its headers name, and the real one.
//!
//! Source: `apimachinery/pkg/util/net/http.go` (`SourceIPs`).
use std::borrow::Cow;
use std::net::{IpAddr, Ipv6Addr};

use http::HeaderMap;

const FORWARDED_FOR: &str = "x-forwarded-for";
const REAL_IP: &str = "x-real-ip";

/// Returns the addresses in upstream's order. The client can forge all but the last.
pub(super) fn source_ips(headers: &HeaderMap, peer: IpAddr) -> Vec<IpAddr> {
    let mut found: Vec<IpAddr> = Vec::new();
    if let Some(list) = text(headers, FORWARDED_FOR) {
        found.extend(list.split(',').filter_map(|part| parse(part.trim())));
    }
    if let Some(real) = text(headers, REAL_IP).and_then(|real| parse(&real))
        && !found.contains(&real)
    {
        found.push(real);
    }
    let peer = peer.to_canonical();
    if found.last() != Some(&peer) {
        found.push(peer);
    }
    found
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<Cow<'a, str>> {
    let value = headers.get(name)?;
    Some(String::from_utf8_lossy(value.as_bytes()))
}

/// Parses an address like Go's old parser, which upstream uses: numbers with leading zeros are
/// decimal, and mapped addresses become IPv4.
fn parse(text: &str) -> Option<IpAddr> {
    if text.contains(':') {
        return text
            .parse::<Ipv6Addr>()
            .ok()
            .map(|address| IpAddr::V6(address).to_canonical());
    }
    let mut octets = [0_u8; 4];
    let mut parts = text.split('.');
    for octet in &mut octets {
        let part = parts.next()?;
        let digits = !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        let plain = part.trim_start_matches('0');
        *octet = if digits && plain.is_empty() {
            0
        } else {
            plain.parse().ok().filter(|_| digits)?
        };
    }
    parts.next().is_none().then(|| IpAddr::from(octets))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(forwarded_for: &str, real_ip: &str, peer: &str) -> String {
        let mut headers = HeaderMap::new();
        for (name, value) in [(FORWARDED_FOR, forwarded_for), (REAL_IP, real_ip)] {
            if !value.is_empty() {
                headers.append(name, value.parse().unwrap());
            }
        }
        let found: Vec<_> = source_ips(&headers, peer.parse().unwrap())
            .iter()
            .map(ToString::to_string)
            .collect();
        found.join(" ")
    }

    #[test]
    fn addresses_are_parsed_as_upstream_parses_them() {
        // The first was observed at a real API server.
        assert_eq!(
            found(
                "1.2.3.4, ::ffff:5.6.7.8, junk, 2001:DB8::1, 01.02.03.04",
                "9.9.9.9",
                "127.0.0.1"
            ),
            "1.2.3.4 5.6.7.8 2001:db8::1 1.2.3.4 9.9.9.9 127.0.0.1"
        );
        assert_eq!(found("", "", "::ffff:10.0.0.1"), "10.0.0.1");
        assert_eq!(
            found("1.1.1.1,2.2.2.2", "1.1.1.1", "2.2.2.2"),
            "1.1.1.1 2.2.2.2"
        );
        assert_eq!(
            found("2.2.2.2,1.1.1.1", "", "2.2.2.2"),
            "2.2.2.2 1.1.1.1 2.2.2.2"
        );
        assert_eq!(
            found(
                "1.2.3,1.2.3.4.5,1.2.3.256,+1.2.3.4,1.2.3.",
                " 3.3.3.3",
                "::1"
            ),
            "::1"
        );
        assert_eq!(found("0.0.0.0, fe80::1%eth0", "", "::1"), "0.0.0.0 ::1");
    }
}
