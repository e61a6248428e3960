//! Compression of watches: the proxy compresses the watches that upstream compresses.
use std::io::Write;

use flate2::write::MultiGzDecoder;
use http::{HeaderMap, HeaderValue, Request};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use watershed::upstream::ListCompression;
use watershed_lab::sim::{Options, WatchListSupport};

use crate::support::client::{BOTH, Connection, Endpoint, Protocol, nothing, within};
use crate::support::history::{Interest, WriteHistory};
use crate::support::{Fixture, becomes, eventually, small, unless_stalled};

/// A watch of a client that accepts gzip.
struct Watch {
    headers: HeaderMap,
    body: Incoming,
    /// The decompressor. `Err` holds the bytes of an answer that is not compressed.
    received: Result<MultiGzDecoder<Vec<u8>>, Vec<u8>>,
    _connection: Connection,
}

impl Watch {
    /// Opens a watch with initial events and the bookmark that ends them.
    async fn open(to: &Endpoint, protocol: Protocol, interest: &Interest) -> Self {
        let (path, selector) = (interest.path(), interest.selector());
        let path = format!("{path}?watch=1&resourceVersion=0&allowWatchBookmarks=true{selector}");
        let connection = to.connect(protocol).await.unwrap();
        let request = Request::get(&path)
            .header("accept-encoding", "gzip")
            .body(nothing())
            .unwrap();
        let response = within(&path, connection.open(request)).await.unwrap();
        let (head, body) = response.into_parts();
        assert_eq!(head.status, 200);
        let coding = head
            .headers
            .get("content-encoding")
            .map(HeaderValue::as_bytes);
        let received = match coding {
            None => Err(Vec::new()),
            Some(b"gzip") => Ok(MultiGzDecoder::new(Vec::new())),
            Some(other) => panic!("coded as {other:?}"),
        };
        Self {
            headers: head.headers,
            body,
            received,
            _connection: connection,
        }
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    fn text(&self) -> &str {
        std::str::from_utf8(
            self.received
                .as_ref()
                .map_or_else(|plain| plain, MultiGzDecoder::get_ref),
        )
        .unwrap()
    }

    /// Reads the next part. Returns `false` at the end.
    async fn receive(&mut self) -> bool {
        let Some(frame) = within("a frame of the watch", self.body.frame()).await else {
            return false;
        };
        if let Ok(data) = frame.unwrap().into_data() {
            match &mut self.received {
                Ok(members) => members
                    .write_all(&data)
                    .and_then(|()| members.flush())
                    .unwrap(),
                Err(plain) => plain.extend_from_slice(&data),
            }
        }
        true
    }

    /// Reads until `count` lines have arrived, bookmarks not counted.
    async fn events(&mut self, count: usize) -> Vec<String> {
        let (mut looked_at, mut lines) = (0, Vec::new());
        loop {
            for line in self.text()[looked_at..]
                .split_inclusive('\n')
                .filter(|line| line.ends_with('\n'))
            {
                looked_at += line.len();
                if !line.starts_with(r#"{"type":"BOOKMARK""#) {
                    lines.push(line.to_owned());
                }
            }
            if lines.len() >= count {
                return lines;
            }
            assert!(self.receive().await, "it ended after {}", self.text());
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_proxys_own_watch_shows_if_upstream_compresses_watches() {
    for (compressed_watches, coding) in [(true, Some("gzip")), (false, None)] {
        let options = Options {
            compressed_watches,
            ..small()
        };
        let fixture = Fixture::configured(options, |config| {
            config.scopes.compression = ListCompression::Always;
        })
        .await;
        for _ in 0..3 {
            let watch = Watch::open(&fixture.proxied, Protocol::Http2, &Interest::All).await;
            assert_eq!(watch.header("content-encoding"), coding);
        }
        let asked = fixture.upstream.stats().requests_on("WATCH", "pods");
        assert_eq!(asked, 1, "the scope's own watch");
        fixture.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watches_are_compressed_where_upstream_compresses_them() {
    let coded = |compressed_watches| Options {
        compressed_watches,
        ..small()
    };
    for (compressed, mode, coding) in [
        (true, WatchListSupport::Served, Some("gzip")),
        (false, WatchListSupport::Served, None),
        (true, WatchListSupport::Refused, None),
    ] {
        unless_stalled("one question, however many clients", async || {
            let fixture = Fixture::prepared(coded(compressed), |upstream| {
                upstream.faults().watch_list(mode);
            })
            .await;
            let history = WriteHistory::new(fixture.upstream.state(), 1);
            let asked = || fixture.upstream.stats().requests_on("WATCH", "pods");
            fixture
                .proxied
                .get(Protocol::Http2, "/api/v1/pods?resourceVersion=0")
                .await;
            // A refused watch is an ordinary answer.
            let open = async || fixture.upstream.stats().open_watches.get("pods").copied();
            becomes("the proxy's watches", Some(1), open).await;
            let before = asked();
            // On a busy machine the first watch may be served before upstream's compression is
            // known.
            eventually("it is known", async || {
                let watch = Watch::open(&fixture.proxied, Protocol::Http2, &Interest::All).await;
                if watch.header("content-encoding") == coding {
                    Ok(())
                } else {
                    Err("not yet".to_owned())
                }
            })
            .await;
            let mut watches = Vec::new();
            for n in 0..30 {
                let interest = Interest::nth(n);
                let watch = Watch::open(&fixture.proxied, BOTH[n % 2], &interest).await;
                watches.push((interest, watch));
            }
            let questions = async || {
                if asked() > before {
                    Ok(())
                } else {
                    Err("none yet".to_owned())
                }
            };
            eventually("a question", questions).await;
            // On a stalled machine the probe gets no answer and is repeated half a minute later.
            let questions = asked() - before;
            if questions != 1 {
                drop(watches);
                fixture.stop().await;
                return Err(format!("{questions} questions of thirty clients"));
            }
            watches.push((
                Interest::All,
                Watch::open(&fixture.direct, Protocol::Http1, &Interest::All).await,
            ));
            let start = fixture.upstream.state().version();
            for (_, watch) in &watches {
                assert_eq!(watch.header("content-encoding"), coding);
                assert_eq!(watch.header("vary"), coding.map(|_| "Accept-Encoding"));
            }
            history.writes(100).await;
            for (interest, watch) in &mut watches {
                let initial = history.at(interest, start).len();
                let expected = history.between(interest, start, u64::MAX);
                let events = watch.events(initial + expected.len()).await;
                let expected: Vec<_> = expected.iter().map(|event| event.line.clone()).collect();
                assert_eq!(events[initial..], expected, "{interest:?}");
            }
            drop(watches);
            fixture.stop().await;
            Ok(())
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shutdown_completes_compressed_watch_streams() {
    let fixture = Fixture::start(small()).await;
    let history = WriteHistory::new(fixture.upstream.state(), 1);
    eventually("watches are compressed", async || {
        let watch = Watch::open(&fixture.proxied, Protocol::Http2, &Interest::All).await;
        watch.received.map(drop).map_err(|_| "not yet".to_owned())
    })
    .await;
    let mut watches = Vec::new();
    for protocol in BOTH {
        watches.push(Watch::open(&fixture.proxied, protocol, &Interest::All).await);
    }
    history.writes(30).await;
    for watch in &mut watches {
        watch.events(70).await;
    }
    let (upstream, end) = fixture.shut_down();
    let end = tokio::spawn(end);
    for watch in &mut watches {
        while watch.receive().await {}
        let last = watch.text().lines().last().unwrap().to_owned();
        assert!(last.starts_with(r#"{"type":"BOOKMARK""#), "{last}");
        watch
            .received
            .as_mut()
            .unwrap()
            .try_finish()
            .expect("the last member is whole");
    }
    within("the end of the shutdown", end).await.unwrap();
    upstream.shutdown().await;
}
