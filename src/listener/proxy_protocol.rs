//! The header of the PROXY protocol, in which a TCP load balancer tells the client's address.
//!
//! Source: the specification, versions 1 and 2 (haproxy's `doc/proxy-protocol.txt`).

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use tokio::io::{AsyncRead, AsyncReadExt as _};

/// First bytes of version 2.
const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";
/// First bytes of version 1.
const WORD: &[u8] = b"PROXY ";
/// Longest line of version 1, with its end.
const MAX_LINE: usize = 107;
/// Longest part of version 2 behind its first 16 bytes. Load balancers add some hundred bytes of
/// their own there, which are skipped.
const MAX_BLOCK: usize = 4096;

/// The reason why a connection has no usable header.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProxyHeaderError {
    /// The connection ended or broke.
    #[error("the connection ended within the header: {0}")]
    Cut(#[from] io::Error),
    /// The bytes are no header.
    #[error("there is no PROXY protocol header: {0}")]
    Malformed(&'static str),
}

/// Reads the header, and nothing behind it. Returns the client's address, or `None` if the
/// load balancer connects for itself, or for a client without an address.
pub(crate) async fn read<I: AsyncRead + Unpin>(
    stream: &mut I,
) -> Result<Option<SocketAddr>, ProxyHeaderError> {
    let mut start = [0; SIGNATURE.len()];
    stream.read_exact(&mut start).await?;
    if start == SIGNATURE {
        let mut head = [0; 4];
        stream.read_exact(&mut head).await?;
        let length = usize::from(u16::from_be_bytes([head[2], head[3]]));
        if length > MAX_BLOCK {
            return Err(ProxyHeaderError::Malformed("it is too long"));
        }
        let mut block = vec![0; length];
        stream.read_exact(&mut block).await?;
        return binary_address(head[0], head[1], &block);
    }
    if !start.starts_with(WORD) {
        return Err(ProxyHeaderError::Malformed("it begins with other bytes"));
    }
    let mut line = start.to_vec();
    while !line.ends_with(b"\n") {
        if line.len() == MAX_LINE {
            return Err(ProxyHeaderError::Malformed("its line is too long"));
        }
        // One by one: what follows the line belongs to TLS.
        line.push(stream.read_u8().await?);
    }
    text_address(&line)
}

/// Parses the line of version 1.
fn text_address(line: &[u8]) -> Result<Option<SocketAddr>, ProxyHeaderError> {
    let malformed = || ProxyHeaderError::Malformed("its line is not understood");
    let text = line
        .strip_suffix(b"\r\n")
        .and_then(|line| std::str::from_utf8(line).ok())
        .ok_or_else(malformed)?;
    let words: Vec<&str> = text.split(' ').collect();
    let address = match words[..] {
        ["PROXY", "UNKNOWN", ..] => return Ok(None),
        ["PROXY", "TCP4", source, destination, ..] => source
            .parse::<Ipv4Addr>()
            .ok()
            .filter(|_| destination.parse::<Ipv4Addr>().is_ok())
            .map(IpAddr::V4),
        ["PROXY", "TCP6", source, destination, ..] => source
            .parse::<Ipv6Addr>()
            .ok()
            .filter(|_| destination.parse::<Ipv6Addr>().is_ok())
            .map(IpAddr::V6),
        _ => None,
    };
    let ports = match words[..] {
        [_, _, _, _, source, destination] => port(source).zip(port(destination)),
        _ => None,
    };
    let (address, (port, _)) = address.zip(ports).ok_or_else(malformed)?;
    Ok(Some(SocketAddr::new(address, port)))
}

fn port(text: &str) -> Option<u16> {
    let is_plain =
        text.bytes().all(|byte| byte.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    text.parse().ok().filter(|_| is_plain)
}

/// Parses the address block of version 2.
fn binary_address(
    version_and_command: u8,
    family: u8,
    block: &[u8],
) -> Result<Option<SocketAddr>, ProxyHeaderError> {
    match version_and_command {
        // The load balancer's own check of this server.
        0x20 => return Ok(None),
        0x21 => {}
        _ => return Err(ProxyHeaderError::Malformed("its version is unknown")),
    }
    let short = || ProxyHeaderError::Malformed("its address is cut");
    let ports = |at: usize| {
        let bytes = block.get(at..at + 4).ok_or_else(short)?;
        Ok::<_, ProxyHeaderError>(u16::from_be_bytes([bytes[0], bytes[1]]))
    };
    match family {
        // TCP over IPv4: both addresses, then both ports.
        0x11 => {
            let source: [u8; 4] = *block.first_chunk().ok_or_else(short)?;
            Ok(Some(SocketAddr::from((source, ports(8)?))))
        }
        0x21 => {
            let source: [u8; 16] = *block.first_chunk().ok_or_else(short)?;
            Ok(Some(SocketAddr::from((source, ports(32)?))))
        }
        // Unknown, UDP or a Unix socket: there is no address that counts here.
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns the address as text, and the bytes behind the header.
    fn parsed(bytes: &[u8]) -> Result<(String, Vec<u8>), String> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        runtime.block_on(async {
            let mut rest = bytes;
            let address = read(&mut rest).await.map_err(|error| error.to_string())?;
            let text = address.map_or("none".to_owned(), |address| address.to_string());
            Ok((text, rest.to_vec()))
        })
    }

    fn binary(command: u8, family: u8, block: &[u8]) -> Vec<u8> {
        let length = u16::try_from(block.len()).unwrap().to_be_bytes();
        [&SIGNATURE[..], &[command, family], &length, block].concat()
    }

    const V4: [u8; 12] = [192, 0, 2, 1, 10, 0, 0, 1, 0x1f, 0x90, 0x01, 0xbb];

    #[test]
    fn the_clients_address_is_read_and_nothing_behind_the_header() {
        let mut v6 = [0; 36];
        v6[15] = 1;
        v6[32..36].copy_from_slice(&[0, 80, 1, 187]);
        for (header, wanted) in [
            (
                b"PROXY TCP4 192.0.2.1 10.0.0.1 8080 443\r\n".to_vec(),
                "192.0.2.1:8080",
            ),
            (
                b"PROXY TCP6 2001:db8::1 ::1 65535 0\r\n".to_vec(),
                "[2001:db8::1]:65535",
            ),
            (b"PROXY UNKNOWN\r\n".to_vec(), "none"),
            (b"PROXY UNKNOWN ffff::1 ffff::2 1 2\r\n".to_vec(), "none"),
            (binary(0x21, 0x11, &V4), "192.0.2.1:8080"),
            // Load balancers add values of their own.
            (
                binary(0x21, 0x11, &[&V4[..], &[0xea; 300]].concat()),
                "192.0.2.1:8080",
            ),
            (binary(0x21, 0x21, &v6), "[::1]:80"),
            (binary(0x20, 0x11, &V4), "none"),
            (binary(0x20, 0, &[]), "none"),
            (binary(0x21, 0, &[]), "none"),
            (binary(0x21, 0x31, &[0; 216]), "none"),
        ] {
            let bytes = [&header[..], b"\x16\x03"].concat();
            assert_eq!(
                parsed(&bytes),
                Ok((wanted.to_owned(), b"\x16\x03".to_vec())),
                "{header:?}"
            );
        }
    }

    #[test]
    fn cut_headers_are_refused() {
        for header in [
            b"PROXY TCP4 192.0.2.1 10.0.0.1 8080 443\r\n".to_vec(),
            binary(0x21, 0x11, &V4),
        ] {
            for length in 0..header.len() {
                assert!(parsed(&header[..length]).is_err(), "{length} of {header:?}");
            }
        }
        // The block says that it is shorter than its addresses.
        assert!(parsed(&binary(0x21, 0x11, &V4[..11])).is_err());
        assert!(parsed(&binary(0x21, 0x21, &V4)).is_err());
    }

    #[test]
    fn hostile_headers_are_refused() {
        let long = [b"PROXY UNKNOWN ", &[b'x'; 200][..], b"\r\n"].concat();
        for header in [
            b"GET / HTTP/1.1\r\n\r\n".to_vec(),
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\x00".to_vec(),
            b"PROXY TCP4 192.0.2.1 10.0.0.1 8080\r\n".to_vec(),
            b"PROXY TCP4 192.0.2.1 10.0.0.1 8080 443 1\r\n".to_vec(),
            b"PROXY TCP4 192.0.2.1 10.0.0.1 70000 443\r\n".to_vec(),
            b"PROXY TCP4 192.0.2.1 10.0.0.1 080 443\r\n".to_vec(),
            b"PROXY TCP4 192.0.2.1 10.0.0.1 +80 443\r\n".to_vec(),
            b"PROXY TCP4 2001:db8::1 10.0.0.1 80 443\r\n".to_vec(),
            b"PROXY TCP4 192.0.2.1  10.0.0.1 80 443\r\n".to_vec(),
            b"PROXY TCP6 192.0.2.1 10.0.0.1 80 443\r\n".to_vec(),
            b"PROXY TCP4 192.0.2.1 10.0.0.1 80 443\n".to_vec(),
            b"PROXY TCP4 \xff\xfe 10.0.0.1 80 443\r\n".to_vec(),
            b"PROXY tcp4 192.0.2.1 10.0.0.1 80 443\r\n".to_vec(),
            long,
            binary(0x11, 0x11, &V4),
            binary(0x22, 0x11, &V4),
            binary(0x21, 0x11, &[0; MAX_BLOCK + 1]),
        ] {
            assert!(parsed(&header).is_err(), "{header:?}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_break_the_parser(
            start in prop_oneof![
                Just(Vec::new()),
                Just(WORD.to_vec()),
                Just(b"PROXY TCP4 ".to_vec()),
                Just(SIGNATURE.to_vec()),
                Just([&SIGNATURE[..], &[0x21, 0x21]].concat()),
            ],
            rest in prop::collection::vec(any::<u8>(), 0..300),
        ) {
            let _ = parsed(&[start, rest].concat());
        }
    }
}
