//! Ends forwarded watches between two events: when the process drains, like watches from memory,
//! when memory can continue them, and when their upstream goes away.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::{Response, StatusCode, header};
use http_body::Frame;
use http_body_util::BodyExt;
use tokio::time::Sleep;

use super::takeover::{FollowedWatch, Takeover};
use crate::body::{Body, BoxError};
use crate::drain;
use crate::watcher::ContentCoding;
use watershed_protocol::{Encoding, GzipReader};

/// A stream that cannot be read, without data for this long, is between two events.
const QUIET: Duration = Duration::from_millis(500);
/// A watch that ends sooner than this and brought nothing has client-go list again.
/// Source: `client-go/tools/cache/reflector.go` (handleAnyWatch, `VeryShortWatchError`).
const VERY_SHORT: Duration = Duration::from_secs(1);

/// Ends a forwarded watch when the process drains, when memory takes it over, or when upstream goes
/// away. Other responses pass as they are. `has_initial_events` is that of the request's query.
pub(in crate::serve) fn apply(
    response: Response<Body>,
    has_initial_events: bool,
    draining: &drain::DrainWatch,
    takeover: Option<Takeover>,
) -> Response<Body> {
    let media_type = response
        .headers()
        .get(header::CONTENT_TYPE)
        .map(http::HeaderValue::as_bytes);
    let coding = match response.headers().get(header::CONTENT_ENCODING) {
        None => Some(ContentCoding::Identity),
        Some(coding) if coding == "gzip" => Some(ContentCoding::Gzip),
        Some(_) => None,
    };
    let encoding = [Encoding::Json, Encoding::Protobuf]
        .into_iter()
        .find(|encoding| media_type == Some(encoding.content_type(true).as_bytes()));
    match encoding {
        Some(encoding) if response.status() == StatusCode::OK => response.map(|body| {
            let place = match coding {
                Some(ContentCoding::Identity) => StreamPosition::new(encoding),
                Some(ContentCoding::Gzip) => StreamPosition::gzip(encoding),
                None => StreamPosition::Unseen { quiet: None },
            };
            let young = Some(Box::pin(tokio::time::sleep(VERY_SHORT)));
            let followed = takeover
                .zip(coding)
                .map(|(takeover, coding)| Box::new(takeover.follow(encoding, coding)));
            OrderlyEnd {
                body,
                draining: Some(draining.signal()),
                place,
                young,
                is_resumable: !has_initial_events,
                is_gone: false,
                followed,
            }
            .boxed_unsync()
        }),
        _ => response,
    }
}

struct OrderlyEnd {
    body: Body,
    /// Gone once the drain has begun.
    draining: Option<drain::DrainSignal>,
    place: StreamPosition,
    /// Runs until the watch has brought something, or has lasted.
    young: Option<Pin<Box<Sleep>>>,
    /// Its client can go on after the last event. Initial events are not in the order of versions,
    /// so that it would miss those that are still to come.
    is_resumable: bool,
    /// Upstream is gone, and the watch is about to end in order.
    is_gone: bool,
    /// Tells when memory can continue the watch, if it may do so at all.
    followed: Option<Box<FollowedWatch>>,
}

/// Position of the last byte in the stream of events.
#[derive(Debug)]
enum StreamPosition {
    /// JSON: the last three bytes, which tell the end of an event.
    Json { last: [u8; 3], head: EventHead },
    /// Four bytes of length, then as many bytes: the known part of the length, and what is missing.
    Lengths {
        prefix: Vec<u8>,
        missing: usize,
        head: EventHead,
    },
    /// Compressed with gzip. Upstream ends a member with each event or batch of events.
    Gzip {
        members: GzipReader,
        unpacked: Box<StreamPosition>,
    },
    /// Compressed in another way. A quiet stream is between two events. It counts as quiet once the
    /// timer has run out.
    Unseen { quiet: Option<Pin<Box<Sleep>>> },
}

/// The first bytes of an event, which tell if it is a bookmark.
#[derive(Debug, Default)]
struct EventHead {
    bytes: [u8; 24],
    length: usize,
}

impl EventHead {
    /// The beginnings of a bookmark: in JSON, in indented JSON, and in protobuf.
    const OF_BOOKMARKS: [&[u8]; 3] = [
        br#"{"type":"BOOKMARK""#,
        b"{\n  \"type\": \"BOOKMARK\"",
        b"\x0a\x08BOOKMARK",
    ];

    /// Takes the next bytes of the event. Returns `true` if it is a bookmark.
    fn push(&mut self, data: &[u8]) -> bool {
        let free = &mut self.bytes[self.length..];
        let taken = free.len().min(data.len());
        free[..taken].copy_from_slice(&data[..taken]);
        self.length += taken;
        let head = &self.bytes[..self.length];
        Self::OF_BOOKMARKS
            .iter()
            .any(|bookmark| head.starts_with(bookmark))
    }
}

impl StreamPosition {
    fn new(encoding: Encoding) -> Self {
        match encoding {
            Encoding::Json => Self::Json {
                last: *b"}}\n",
                head: EventHead::default(),
            },
            Encoding::Protobuf => Self::Lengths {
                prefix: Vec::new(),
                missing: 0,
                head: EventHead::default(),
            },
        }
    }

    fn gzip(encoding: Encoding) -> Self {
        Self::Gzip {
            members: GzipReader::default(),
            unpacked: Box::new(Self::new(encoding)),
        }
    }

    fn is_between(&self) -> bool {
        match self {
            // Compact events are lines, in which the object or the type comes last. Pretty ones have
            // lines, too, but only the last line of an event is a brace without indentation.
            Self::Json { last, .. } => matches!(last, b"}}\n" | b"\"}\n" | b"\n}\n"),
            Self::Lengths {
                prefix, missing, ..
            } => prefix.is_empty() && *missing == 0,
            Self::Gzip { members, unpacked } => members.is_between() && unpacked.is_between(),
            Self::Unseen { .. } => false,
        }
    }

    /// Ready once nothing has come for a while.
    fn poll_quiet(&mut self, context: &mut Context<'_>) -> Poll<()> {
        match self {
            Self::Unseen { quiet } => quiet
                .get_or_insert_with(|| Box::pin(tokio::time::sleep(QUIET)))
                .as_mut()
                .poll(context),
            _ => Poll::Pending,
        }
    }

    /// Moves on. Returns `true` if a bookmark is among the events.
    fn pass(&mut self, mut data: &[u8]) -> bool {
        let mut has_bookmark = false;
        match self {
            Self::Unseen { quiet } => *quiet = None,
            Self::Json { .. } => {
                while !data.is_empty() {
                    let line = data.iter().position(|byte| *byte == b'\n');
                    let (passed, rest) = data.split_at(line.map_or(data.len(), |end| end + 1));
                    data = rest;
                    has_bookmark |= self.pass_line(passed);
                }
            }
            Self::Lengths {
                prefix,
                missing,
                head,
            } => {
                while !data.is_empty() {
                    let wanted = if *missing > 0 {
                        *missing
                    } else {
                        4 - prefix.len()
                    };
                    let (passed, rest) = data.split_at(wanted.min(data.len()));
                    data = rest;
                    if *missing > 0 {
                        has_bookmark |= head.push(passed);
                        *missing -= passed.len();
                        continue;
                    }
                    prefix.extend_from_slice(passed);
                    if let Ok(length) = <[u8; 4]>::try_from(prefix.as_slice()) {
                        *missing = u32::from_be_bytes(length) as usize;
                        prefix.clear();
                        *head = EventHead::default();
                    }
                }
            }
            Self::Gzip { members, unpacked } => {
                let read = members.read(data, |piece| has_bookmark |= unpacked.pass(&piece));
                if read.is_err() {
                    *self = Self::Unseen { quiet: None };
                }
            }
        }
        has_bookmark
    }

    /// Moves on by a line of JSON or a part of one. Returns `true` if its event is a bookmark.
    fn pass_line(&mut self, line: &[u8]) -> bool {
        let is_first = self.is_between();
        let Self::Json { last, head } = self else {
            return false;
        };
        if is_first {
            *head = EventHead::default();
        }
        for byte in &line[line.len().saturating_sub(3)..] {
            *last = [last[1], last[2], *byte];
        }
        head.push(line)
    }
}

impl http_body::Body for OrderlyEnd {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = self.get_mut();
        if this
            .draining
            .as_mut()
            .is_some_and(|draining| Pin::new(draining).poll(context).is_ready())
        {
            this.draining = None;
        }
        if this
            .young
            .as_mut()
            .is_some_and(|young| young.as_mut().poll(context).is_ready())
        {
            this.young = None;
        }
        if this.is_gone {
            return if this.young.is_some() {
                Poll::Pending
            } else {
                Poll::Ready(None)
            };
        }
        if this.draining.is_none() && this.young.is_none() && this.place.is_between() {
            return Poll::Ready(None);
        }
        if this.young.is_none()
            && this
                .followed
                .as_mut()
                .is_some_and(|followed| followed.poll_possible(context).is_ready())
        {
            return Poll::Ready(None);
        }
        let Poll::Ready(frame) = Pin::new(&mut this.body).poll_frame(context) else {
            if this.draining.is_none() && this.young.is_none() {
                ready!(this.place.poll_quiet(context));
                return Poll::Ready(None);
            }
            return Poll::Pending;
        };
        if let Some(Ok(frame)) = &frame
            && let Some(data) = frame.data_ref()
        {
            this.young = None;
            // The first bookmark comes after all initial events.
            this.is_resumable |= this.place.pass(data);
            if let Some(followed) = &mut this.followed {
                followed.pass(data);
            }
        }
        // Upstream is gone. Over HTTP/2 the client would get a reset, which client-go takes for a
        // failed watch, and lists again. It goes on after an end, as after a lost connection to
        // kube-apiserver.
        // Source: `apimachinery/pkg/watch/streamwatcher.go` (receive).
        if let Some(Err(error)) = &frame
            && this.is_resumable
            && this.place.is_between()
        {
            tracing::debug!(%error, "a forwarded watch ends, as its upstream is gone");
            this.is_gone = true;
            if this.young.is_some() {
                return Poll::Pending;
            }
            return Poll::Ready(None);
        }
        Poll::Ready(frame)
    }
}

/// Returns `true` if a watch with this query begins with events that show what is there already.
pub(in crate::serve) fn has_initial_events(query: Option<&str>) -> bool {
    let query = query.unwrap_or_default();
    let mut parameters = form_urlencoded::parse(query.as_bytes());
    let begins_at_a_version = parameters
        .any(|(name, version)| name == "resourceVersion" && !version.is_empty() && version != "0");
    !begins_at_a_version || query.contains("sendInitialEvents")
}

#[cfg(test)]
mod tests {
    use http_body_util::StreamBody;
    use tokio::sync::mpsc::UnboundedSender;
    use watershed_protocol::gzip_member;

    use super::*;

    #[test]
    fn the_ends_of_events_are_found() {
        let mut lines = StreamPosition::new(Encoding::Json);
        for (data, between) in [
            (&b""[..], true),
            (b"{{}}\n", true),
            (b"{", false),
            (b"", false),
            (b"{}}\n{{}}\n", true),
            (b"{{}", false),
            (b"}", false),
            (b"\n", true),
            (b"{\n  \"object\": {\n", false),
            (b"    \"spec\": {}\n", false),
            (b"    \"name\": \"a\"\n", false),
            (b"  }\n", false),
            (b"}\n", true),
        ] {
            lines.pass(data);
            assert_eq!(lines.is_between(), between, "{data:?}");
        }
        let stream = [
            &[0, 0, 0, 3][..],
            b"abc",
            &[0, 0, 0, 0],
            &[0, 0, 1, 0],
            &[7; 256],
        ]
        .concat();
        let ends = [0, 7, 11, stream.len()];
        for size in 1..9 {
            let mut lengths = StreamPosition::new(Encoding::Protobuf);
            let mut at = 0;
            for data in stream.chunks(size) {
                at += data.len();
                lengths.pass(data);
                assert_eq!(lengths.is_between(), ends.contains(&at), "{at}");
            }
        }
    }

    /// Returns a response in JSON whose body has these frames.
    fn of_frames<const N: usize>(frames: [Result<Frame<Bytes>, BoxError>; N]) -> Response<Body> {
        let body = StreamBody::new(futures_util::stream::iter(frames));
        Response::builder()
            .header(header::CONTENT_TYPE, "application/json")
            .body(BodyExt::boxed_unsync(body))
            .unwrap()
    }

    /// Returns a response whose body is what the sender sends.
    fn streamed(response: http::response::Builder) -> (UnboundedSender<Bytes>, Response<Body>) {
        let (sender, receiver) = tokio::sync::mpsc::unbounded_channel::<Bytes>();
        let stream = futures_util::stream::unfold(receiver, |mut receiver| async move {
            let data = receiver.recv().await?;
            Some((Ok::<_, BoxError>(Frame::data(data)), receiver))
        });
        let response = response.header(header::CONTENT_TYPE, "application/json");
        (
            sender,
            response
                .body(BodyExt::boxed_unsync(StreamBody::new(stream)))
                .unwrap(),
        )
    }

    #[tokio::test(start_paused = true)]
    async fn a_compressed_watch_ends_once_it_is_quiet() {
        let (trigger, draining) = drain::channel();
        let (sender, response) =
            streamed(Response::builder().header(header::CONTENT_ENCODING, "gzip"));
        let mut body = apply(response, true, &draining, None).into_body();
        sender.send(Bytes::from_static(b"a member")).unwrap();
        body.frame().await.unwrap().unwrap();
        tokio::time::timeout(Duration::from_mins(1), body.frame())
            .await
            .unwrap_err();
        trigger.drain(Duration::from_secs(20));
        sender.send(Bytes::from_static(b"another")).unwrap();
        assert_eq!(
            body.frame().await.unwrap().unwrap().into_data().unwrap(),
            "another"
        );
        let ended = tokio::time::timeout(Duration::from_secs(1), body.frame()).await;
        assert!(ended.unwrap().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_that_has_just_begun_lasts_a_second() {
        let (trigger, draining) = drain::channel();
        trigger.drain(Duration::from_secs(20));
        let (_sender, response) = streamed(Response::builder());
        let mut body = apply(response, true, &draining, None).into_body();
        tokio::time::timeout(Duration::from_millis(990), body.frame())
            .await
            .unwrap_err();
        assert!(
            tokio::time::timeout(Duration::from_secs(1), body.frame())
                .await
                .unwrap()
                .is_none()
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_whose_upstream_is_gone_fails_only_within_an_event() {
        const FROM: Option<&str> = Some("watch=1&resourceVersion=7");
        let (_trigger, draining) = drain::channel();
        let bookmark = "{\"type\":\"BOOKMARK\",\"object\":{}}\n";
        let initial = Some("watch=1&sendInitialEvents=true&resourceVersion=7");
        for (query, data, is_whole) in [
            (FROM, "{{}}\n", true),
            (FROM, "{{}}\n{{", false),
            (None, "{{}}\n", false),
            (Some("resourceVersion=0"), "{{}}\n", false),
            (Some("resourceVersion=0"), bookmark, true),
            (initial, "{{}}\n", false),
            (initial, bookmark, true),
        ] {
            let frames = [
                Ok(Frame::data(Bytes::from(data))),
                Err(BoxError::from("upstream is gone")),
            ];
            let response = of_frames(frames);
            let mut body = apply(response, has_initial_events(query), &draining, None).into_body();
            body.frame().await.unwrap().unwrap();
            let end = body.frame().await;
            assert_eq!(end.is_none(), is_whole, "{query:?} {data:?}");
            assert_eq!(matches!(end, Some(Err(_))), !is_whole, "{query:?} {data:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_compressed_watch_whose_upstream_is_gone_fails_only_within_an_event() {
        let (_trigger, draining) = drain::channel();
        let initial = gzip_member(b"{{}}\n{{}}\n");
        let mark = gzip_member(b"{{}}\n{\"type\":\"BOOKMARK\",\"object\":{}}\n");
        let half_event = gzip_member(b"{{");
        let (before, after) = (initial.to_vec(), [&initial[..], &mark].concat());
        for (data, is_whole) in [
            (before, false),
            (after.clone(), true),
            ([&after[..], &initial[..7]].concat(), false),
            ([&after[..], &half_event].concat(), false),
        ] {
            let frames = [
                Ok(Frame::data(Bytes::from(data.clone()))),
                Err(BoxError::from("upstream is gone")),
            ];
            let mut response = of_frames(frames);
            let gzip = http::HeaderValue::from_static("gzip");
            response
                .headers_mut()
                .insert(header::CONTENT_ENCODING, gzip);
            let mut body = apply(response, true, &draining, None).into_body();
            body.frame().await.unwrap().unwrap();
            let end = body.frame().await;
            assert_eq!(end.is_none(), is_whole, "{} bytes", data.len());
        }
    }

    #[test]
    fn bookmarks_are_found_wherever_they_begin() {
        let json =
            "{\"type\":\"ADDED\",\"object\":{\"data\":\"{\\\"type\\\":\\\"BOOKMARK\\\"\"}}\n";
        let bookmark = "{\"type\":\"BOOKMARK\",\"object\":{}}\n";
        let pretty = "{\n  \"type\": \"BOOKMARK\",\n  \"object\": {}\n}\n";
        for size in 1..40 {
            let found = |text: &str| {
                let mut place = StreamPosition::new(Encoding::Json);
                let mut chunks = text.as_bytes().chunks(size);
                chunks.any(|chunk| place.pass(chunk))
            };
            assert!(!found(json));
            assert!(found(&format!("{json}{bookmark}")), "by {size}");
            assert!(found(&format!("{json}{pretty}")), "by {size}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_whose_upstream_is_gone_at_once_lasts_a_second() {
        let (_trigger, draining) = drain::channel();
        let gone = [Err(BoxError::from("upstream is gone"))];
        let response = of_frames(gone);
        let query = Some("watch=1&resourceVersion=7");
        let mut body = apply(response, has_initial_events(query), &draining, None).into_body();
        let began = tokio::time::Instant::now();
        assert!(body.frame().await.is_none());
        assert!(began.elapsed() >= VERY_SHORT);
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_ends_between_two_events() {
        let (trigger, draining) = drain::channel();
        let (sender, response) = streamed(Response::builder());
        let mut body = apply(response, true, &draining, None).into_body();
        sender.send(Bytes::from_static(b"{{}}\n{{")).unwrap();
        body.frame().await.unwrap().unwrap();
        trigger.drain(Duration::from_secs(20));
        tokio::time::timeout(Duration::from_secs(1), body.frame())
            .await
            .unwrap_err();
        sender.send(Bytes::from_static(b"}}\n")).unwrap();
        assert_eq!(
            body.frame().await.unwrap().unwrap().into_data().unwrap(),
            "}}\n"
        );
        assert!(body.frame().await.is_none());
    }
}
