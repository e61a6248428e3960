//! HTTP/2 frames written by hand, which no client library would send.
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use super::client::{Endpoint, Protocol, within};

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PING: u8 = 6;
pub(crate) const GOAWAY: u8 = 7;
pub(crate) const WINDOW_UPDATE: u8 = 8;
pub(crate) const CONTINUATION: u8 = 9;

/// Bytes of a frame, at most.
const MAX_FRAME: usize = 16 << 10;

pub(crate) const END_STREAM: u8 = 1;
pub(crate) const ACK: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;

/// A connection that sends any frame unchecked.
pub(crate) struct Frames {
    pub(crate) stream: TlsStream<TcpStream>,
}

/// A received frame.
#[derive(Clone, Debug)]
pub(crate) struct Received {
    pub(crate) kind: u8,
    pub(crate) stream: u32,
    pub(crate) payload: Vec<u8>,
}

pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut out = length[1..].to_vec();
    out.extend([kind, flags]);
    out.extend(stream.to_be_bytes());
    out.extend(payload);
    out
}

/// Returns the frames of a request without a body whose head is longer than one frame.
pub(crate) fn long_head(stream: u32, block: &[u8]) -> Vec<u8> {
    let (first, rest) = block.split_at(MAX_FRAME);
    let mut frames = frame(HEADERS, END_STREAM, stream, first);
    let mut rest = rest.chunks(MAX_FRAME).peekable();
    while let Some(part) = rest.next() {
        let flags = if rest.peek().is_some() {
            0
        } else {
            END_HEADERS
        };
        frames.extend(frame(CONTINUATION, flags, stream, part));
    }
    frames
}

/// Encodes a header block in HPACK, without the table: each field is a literal.
pub(crate) fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut out = Vec::new();
    for (name, value) in fields {
        out.push(0);
        for text in [name, value] {
            length(&mut out, text.len());
            out.extend(text.as_bytes());
        }
    }
    out
}

pub(crate) fn length(out: &mut Vec<u8>, mut length: usize) {
    if length < 127 {
        return out.push(u8::try_from(length).unwrap());
    }
    out.push(127);
    length -= 127;
    while length >= 128 {
        out.push(u8::try_from(length % 128).unwrap() | 128);
        length /= 128;
    }
    out.push(u8::try_from(length).unwrap());
}

/// Returns the usual header fields of a GET.
pub(crate) fn get<'a>(path: &'a str, bearer: &'a str) -> Vec<(&'static str, &'a str)> {
    vec![
        (":method", "GET"),
        (":scheme", "https"),
        (":authority", "proxy"),
        (":path", path),
        ("authorization", bearer),
        ("accept", "application/json"),
    ]
}

impl Frames {
    /// Opens a connection with an initial window size for each stream.
    pub(crate) async fn open(endpoint: &Endpoint, window: u32) -> Self {
        let stream = endpoint.tls(Protocol::Http2).await.unwrap();
        let mut frames = Self { stream };
        let mut settings = vec![0, 4];
        settings.extend(window.to_be_bytes());
        let mut hello = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        hello.extend(frame(SETTINGS, 0, 0, &settings));
        assert!(frames.send(&hello).await, "the connection opens");
        frames
    }

    /// Sends bytes. Returns `false` if the server has closed the connection.
    pub(crate) async fn send(&mut self, bytes: &[u8]) -> bool {
        self.stream.write_all(bytes).await.is_ok() && self.stream.flush().await.is_ok()
    }

    /// Returns the next frame, or `None` if the connection has ended.
    pub(crate) async fn next(&mut self) -> Option<Received> {
        let reading = async {
            let mut head = [0; 9];
            self.stream.read_exact(&mut head).await.ok()?;
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
            let mut payload = vec![0; length];
            self.stream.read_exact(&mut payload).await.ok()?;
            let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
            Some(Received {
                kind: head[3],
                stream,
                payload,
            })
        };
        within("a frame or the end", reading).await
    }

    /// Returns the first frame that fits, or `None` if the connection ends before.
    pub(crate) async fn find(&mut self, wanted: impl Fn(&Received) -> bool) -> Option<Received> {
        loop {
            let frame = self.next().await?;
            if wanted(&frame) {
                return Some(frame);
            }
        }
    }

    /// Reads until the server closes the connection.
    pub(crate) async fn closed(&mut self) {
        while self.next().await.is_some() {}
    }
}
