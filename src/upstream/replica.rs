//! Asks another replica, or a tier, for what it holds.

use std::io::{self, Read};
use std::time::Duration;

use bytes::{Buf as _, Bytes};
use http::{Request, Response, StatusCode, header};
use http_body_util::BodyExt as _;
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout};
use watershed_protocol::{GroupVersionResource, Selection};

use super::traffic::RequestPurpose;
use super::{
    ConnectionClass, SendOptions, ServedBy, Upstream, UpstreamBody, UpstreamClient, UpstreamError,
};
use crate::body;

/// Timeout of an answer's headers. A replica that has the state need not wait for anything.
const HEADERS_TIMEOUT: Duration = Duration::from_secs(3);
/// Longest silence within a state, from wherever it comes.
pub const STATE_SILENCE: Duration = Duration::from_secs(3);
/// Connections on which it is asked. A Service may lead to this very process, or to a replica that
/// has just started, too.
const ATTEMPTS: usize = 4;
/// Longest pause before the last attempt, if one of those before met a replica that was busy.
const BUSY: Duration = Duration::from_millis(200);
/// Least bytes of a state in a second, after the first ones. With fewer, upstream's list comes sooner.
const RATE: u64 = 4 << 20;
/// Time after which the rate counts.
const GRACE: Duration = Duration::from_secs(5);
/// Chunks that wait for their reader.
const WAITING: usize = 4;

/// Asks other replicas at one address. A load balancer may stand before them.
#[derive(Debug)]
pub struct ReplicaClient {
    client: UpstreamClient,
    /// The connection of the last answer that was of use.
    last: Mutex<Option<ServedBy>>,
}

/// Reason why no replica gave what it was asked for.
#[derive(Debug, thiserror::Error)]
pub enum ReplicaError {
    /// No connection, or it broke.
    #[error(transparent)]
    Upstream(#[from] UpstreamError),
    /// No answer began in time.
    #[error("no answer within {0:?}")]
    Late(Duration),
    /// The body stood still.
    #[error("nothing of the answer came for {0:?}")]
    Silent(Duration),
    /// The body comes so slowly that upstream is asked instead.
    #[error("the answer comes too slowly: {0} bytes in {1:?}")]
    Slow(u64, Duration),
    /// The body broke off.
    #[error("the answer broke off: {0}")]
    Broken(String),
    /// None of those that were asked has it at the moment.
    #[error("no replica that was asked has it at the moment")]
    NotHeld,
    /// Some that have it perhaps have too much to do.
    #[error("the replicas that were asked do not have it, or are busy")]
    Busy,
    /// It refused, or is an API server.
    #[error("it answered {0}")]
    Refused(StatusCode),
    /// The answer has another form.
    #[error("its answer is not understood: {0}")]
    Unusable(String),
}

impl ReplicaError {
    /// Returns the metric label.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Upstream(_) | Self::Late(_) | Self::Broken(_) => "unreachable",
            Self::Silent(_) | Self::Slow(..) => "late",
            Self::NotHeld => "not-held",
            Self::Busy => "busy",
            Self::Refused(_) | Self::Unusable(_) => "refused",
        }
    }

    /// Returns `true` if another replica may well answer otherwise. One that refuses the form is of
    /// another release.
    pub fn is_replica_specific(&self) -> bool {
        match self {
            Self::Refused(status) => *status == StatusCode::NOT_ACCEPTABLE,
            Self::Slow(..) | Self::NotHeld | Self::Busy => false,
            _ => true,
        }
    }

    /// Returns `true` if it answers, and gives nothing.
    pub fn is_refusal(&self) -> bool {
        matches!(self, Self::Refused(_) | Self::Unusable(_))
    }

    /// Returns `true` if the replica cannot be reached, whatever it is asked for.
    pub fn is_unreachable(&self) -> bool {
        matches!(self, Self::Upstream(_) | Self::Late(_) | Self::Broken(_))
    }
}

impl ReplicaClient {
    /// Creates a client of the replicas at these addresses, with credentials for them. Needs a
    /// running runtime.
    pub fn new(replicas: &Upstream) -> Self {
        Self {
            client: UpstreamClient::beside_the_tree(replicas),
            last: Mutex::default(),
        }
    }

    /// Forgets which replica was of use, as its answer is of none.
    pub fn forget(&self) {
        *self.last.lock() = None;
    }

    /// Asks for some objects of a type in a form of the replicas' own. A fresh connection probably
    /// leads to another replica.
    pub async fn list(
        &self,
        gvr: &GroupVersionResource,
        selection: &Selection,
        media_type: &'static str,
        fresh_connection: bool,
    ) -> Result<UpstreamBody, ReplicaError> {
        let asked = self.ask_some(gvr, selection, media_type, fresh_connection);
        let asked = asked.await;
        // One that does not hold this type may hold the next.
        if asked.as_ref().is_err_and(ReplicaError::is_replica_specific) {
            self.forget();
        }
        asked
    }

    async fn ask_some(
        &self,
        gvr: &GroupVersionResource,
        selection: &Selection,
        media_type: &'static str,
        fresh_connection: bool,
    ) -> Result<UpstreamBody, ReplicaError> {
        let (path, parameters) = (selection.path(gvr), selection.parameters());
        let uri = format!("{path}?resourceVersion=0{parameters}");
        let mut options = SendOptions {
            beside: self.last.lock().clone().filter(|_| !fresh_connection),
            fresh_connection,
            purpose: RequestPurpose::List,
            ..SendOptions::default()
        };
        let mut is_busy = false;
        for attempt in 1..=ATTEMPTS {
            if is_busy && attempt == ATTEMPTS {
                sleep(BUSY.mul_f64(0.5 + fastrand::f64() / 2.0)).await;
            }
            let answer = self.ask(&uri, media_type, options).await?;
            let by = answer.extensions().get::<ServedBy>().cloned();
            match answer.status() {
                StatusCode::OK => {
                    check_form(&answer, media_type)?;
                    *self.last.lock() = by;
                    return Ok(answer.into_body());
                }
                status @ (StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS) => {
                    is_busy |= status == StatusCode::TOO_MANY_REQUESTS;
                    options = SendOptions {
                        fresh_connection: true,
                        instead_of: by,
                        purpose: RequestPurpose::List,
                        ..SendOptions::default()
                    };
                }
                status => return Err(ReplicaError::Refused(status)),
            }
        }
        Err(if is_busy {
            ReplicaError::Busy
        } else {
            ReplicaError::NotHeld
        })
    }

    async fn ask(
        &self,
        uri: &str,
        media_type: &'static str,
        options: SendOptions,
    ) -> Result<Response<UpstreamBody>, ReplicaError> {
        let request = Request::get(uri)
            .header(header::ACCEPT, media_type)
            .body(body::empty())
            .map_err(|error| ReplicaError::Unusable(error.to_string()))?;
        let answer = self.client.send(ConnectionClass::Watch, request, options);
        let answer = timeout(HEADERS_TIMEOUT, answer).await;
        Ok(answer.map_err(|_| ReplicaError::Late(HEADERS_TIMEOUT))??)
    }
}

fn check_form(answer: &Response<UpstreamBody>, media_type: &str) -> Result<(), ReplicaError> {
    let headers = answer.headers();
    let actual = headers.get(header::CONTENT_TYPE);
    if actual.is_none_or(|actual| actual.as_bytes() != media_type.as_bytes()) {
        return Err(ReplicaError::Unusable(format!("content type {actual:?}")));
    }
    match headers.get(header::CONTENT_ENCODING) {
        None => Ok(()),
        Some(coding) => Err(ReplicaError::Unusable(format!("coding {coding:?}"))),
    }
}

/// Reads an answer on a thread that may block, while a [`BodyFeeder`] receives it.
#[derive(Debug)]
pub struct BlockingBody {
    chunks: mpsc::Receiver<Fed>,
    current: Bytes,
    is_at_end: bool,
}

/// A piece of an answer.
#[derive(Debug)]
enum Fed {
    Chunk(Bytes),
    /// The answer is complete. Without this, it broke off.
    End,
}

/// Returns a reader of an answer, and what hands the answer to it.
pub fn blocking_body() -> (BodyFeeder, BlockingBody) {
    let (sender, chunks) = mpsc::channel(WAITING);
    let reader = BlockingBody {
        chunks,
        current: Bytes::new(),
        is_at_end: false,
    };
    (BodyFeeder(sender), reader)
}

/// Hands an answer to its reader.
#[derive(Debug)]
pub struct BodyFeeder(mpsc::Sender<Fed>);

impl BodyFeeder {
    /// Receives an answer until its end, or until its reader is dropped. It takes as long as it
    /// goes on fast enough.
    pub async fn feed<B>(self, mut body: B) -> Result<(), ReplicaError>
    where
        B: http_body::Body<Data = Bytes, Error: std::fmt::Display> + Unpin,
    {
        let (began, mut received) = (Instant::now(), 0);
        loop {
            let frame = tokio::select! {
                frame = timeout(STATE_SILENCE, body.frame()) => frame,
                // Without a reader, nobody wants the rest.
                () = self.0.closed() => return Ok(()),
            };
            let fed = match frame.map_err(|_| ReplicaError::Silent(STATE_SILENCE))? {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(chunk) => {
                        received += chunk.len() as u64;
                        check_rate(received, began.elapsed())?;
                        Fed::Chunk(chunk)
                    }
                    // Trailers say nothing.
                    Err(_) => continue,
                },
                Some(Err(error)) => return Err(ReplicaError::Broken(error.to_string())),
                None => Fed::End,
            };
            let is_end = matches!(fed, Fed::End);
            if self.0.send(fed).await.is_err() || is_end {
                return Ok(());
            }
        }
    }
}

fn check_rate(received: u64, elapsed: Duration) -> Result<(), ReplicaError> {
    if is_slower_than_a_list(received, elapsed) {
        return Err(ReplicaError::Slow(received, elapsed));
    }
    Ok(())
}

/// Returns `true` if so few bytes of a state came in this time that upstream's list comes sooner.
pub fn is_slower_than_a_list(received: u64, elapsed: Duration) -> bool {
    received < elapsed.saturating_sub(GRACE).as_secs().saturating_mul(RATE)
}

impl Read for BlockingBody {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        while self.current.is_empty() && !self.is_at_end {
            match self.chunks.blocking_recv() {
                Some(Fed::Chunk(chunk)) => self.current = chunk,
                Some(Fed::End) => self.is_at_end = true,
                None => return Err(io::Error::other("the answer broke off")),
            }
        }
        let length = out.len().min(self.current.len());
        self.current.copy_to_slice(&mut out[..length]);
        Ok(length)
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures_util::{FutureExt as _, StreamExt as _, stream};
    use http_body::Frame;
    use http_body_util::StreamBody;
    use tokio::task::spawn_blocking;

    use super::*;

    /// Returns what a reader gets of an answer, and how it ended.
    async fn read<E>(
        chunks: Vec<Result<&'static str, E>>,
    ) -> (Result<(), ReplicaError>, io::Result<String>)
    where
        E: std::fmt::Display,
    {
        let frames = chunks
            .into_iter()
            .map(|chunk| chunk.map(|text| Frame::data(Bytes::from_static(text.as_bytes()))));
        let body = StreamBody::new(stream::iter(frames));
        let (feeder, mut reader) = blocking_body();
        let reading = spawn_blocking(move || {
            let mut text = String::new();
            reader.read_to_string(&mut text).map(|_| text)
        });
        let (fed, text) = tokio::join!(feeder.feed(body), reading);
        (fed, text.unwrap())
    }

    #[tokio::test]
    async fn an_answer_is_read_to_its_end() {
        let chunks = ["a", "", "bcd", "e", "f", "g", "h"].map(Ok::<_, Infallible>);
        let (fed, text) = read(chunks.into()).await;
        assert!(fed.is_ok());
        assert_eq!(text.unwrap(), "abcdefgh");
    }

    #[tokio::test]
    async fn an_answer_that_breaks_off_does_not_end() {
        let (fed, text) = read(vec![Ok("a"), Err("reset")]).await;
        assert!(matches!(fed, Err(ReplicaError::Broken(how)) if how == "reset"));
        assert!(text.is_err());
    }

    #[tokio::test]
    async fn an_answer_that_nobody_reads_is_received_no_further() {
        let frames =
            stream::repeat_with(|| Ok::<_, Infallible>(Frame::data(Bytes::from_static(b"a"))));
        let (feeder, reader) = blocking_body();
        drop(reader);
        assert!(feeder.feed(StreamBody::new(frames)).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_answer_is_given_up() {
        let frames = stream::pending::<Result<Frame<Bytes>, Infallible>>();
        let (feeder, _reader) = blocking_body();
        let fed = feeder.feed(StreamBody::new(frames)).await;
        assert!(matches!(fed, Err(ReplicaError::Silent(_))));
    }

    /// Each piece comes after a second.
    #[tokio::test(start_paused = true)]
    async fn an_answer_may_take_long_and_not_trickle() {
        for (piece, is_slow) in [(RATE, false), (RATE / 8, true)] {
            let piece = Bytes::from(vec![0; usize::try_from(piece).unwrap()]);
            let frames = stream::iter(0..60).then(|_| {
                let frame = Frame::data(piece.clone());
                sleep(Duration::from_secs(1)).map(|()| Ok::<_, Infallible>(frame))
            });
            let (feeder, mut reader) = blocking_body();
            let body = StreamBody::new(Box::pin(frames));
            let taking = async { while reader.chunks.recv().await.is_some() {} };
            let (fed, ()) = tokio::join!(feeder.feed(body), taking);
            assert_eq!(
                matches!(fed, Err(ReplicaError::Slow(..))),
                is_slow,
                "{fed:?}"
            );
        }
    }
}
