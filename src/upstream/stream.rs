//! An open watch, frame by frame.

use std::time::Duration;

use http_body_util::BodyExt;
use tokio::time::{Instant, timeout_at};

use super::{AnswerCompression, UpstreamBody};
use watershed_protocol::{Encoding, Frame, FrameDecoder, GzipReader, Malformed};

/// Silence after which a stream is dead: bookmarks come every minute.
const SILENCE: Duration = Duration::from_secs(90);
/// Silence after which a stream of a type without bookmarks is renewed.
///
/// Upstream sends no bookmarks of types without a watch cache (events), so a quiet one stays at an
/// old version. etcd forgets that within ten minutes, and then a new watch costs a list and ends
/// every client's. So the stream is left alone for longer than an API server's watches last by
/// default. HTTP/2 pings find dead connections, and comparisons find streams that bring nothing.
const SILENCE_WITHOUT_BOOKMARKS: Duration = Duration::from_mins(65);
/// Time that a stream lasts at least, or its end is a failure.
const YOUNG: Duration = Duration::from_secs(1);
/// Limit of a single watch frame.
const MAX_FRAME_BYTES: usize = 64 << 20;

/// Reason why a stream cannot be read further.
#[derive(Debug, thiserror::Error)]
pub(super) enum StreamError {
    #[error("ended as soon as it began")]
    Brief,
    #[error("the stream broke: {0}")]
    Broken(String),
    #[error("nothing came for {0:?}")]
    Silent(Duration),
    #[error(transparent)]
    Malformed(#[from] Malformed),
}

/// The periodic bookmarks of a stream, as far as they are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StreamBookmarks {
    /// Upstream may send none for this type.
    Unknown,
    /// Upstream sends them for types like this one.
    Expected,
    /// This stream brought one.
    Seen,
}

/// An open watch.
pub(super) struct WatchStream {
    body: UpstreamBody,
    /// Unpacks the body, if it is compressed.
    gzip: Option<GzipReader>,
    compression: AnswerCompression,
    decoder: FrameDecoder,
    /// A frame that was read ahead and is returned again.
    pub(super) again: Option<Frame>,
    opened: Instant,
    /// The moment at which data came last.
    heard: Instant,
    /// Unless they are unknown, silence means that the stream is dead.
    pub(super) bookmarks: StreamBookmarks,
}

impl WatchStream {
    pub(super) fn new(body: UpstreamBody, encoding: Encoding) -> Self {
        let decoder = FrameDecoder::new(encoding, MAX_FRAME_BYTES);
        let now = Instant::now();
        Self {
            body,
            gzip: None,
            compression: AnswerCompression::NotAsked,
            decoder,
            again: None,
            opened: now,
            heard: now,
            bookmarks: StreamBookmarks::Unknown,
        }
    }

    /// Reads the body as it was compressed.
    pub(super) fn with_compression(self, compression: AnswerCompression) -> Self {
        let is_gzip = compression == AnswerCompression::Gzip;
        Self {
            gzip: is_gzip.then(GzipReader::default),
            compression,
            ..self
        }
    }

    /// Sets what is known of its bookmarks before the first one.
    pub(super) fn with_bookmarks(self, bookmarks: StreamBookmarks) -> Self {
        Self { bookmarks, ..self }
    }

    /// Returns how the body is compressed.
    pub(super) fn compression(&self) -> AnswerCompression {
        self.compression
    }

    /// Returns `true` if it lasts for so short a time that its end would be a failure.
    pub(super) fn is_young(&self) -> bool {
        self.opened.elapsed() < YOUNG
    }

    /// Returns the next frame; `None` at a clean end between two frames, and when a stream without
    /// bookmarks is to be renewed. Cancelling a call loses nothing.
    pub(super) async fn next_frame(&mut self) -> Result<Option<Frame>, StreamError> {
        self.next(FrameDecoder::next_frame).await
    }

    /// Returns the next frame, for callers that drop it at once
    /// ([`FrameDecoder::next_transient_frame`]).
    pub(super) async fn next_transient_frame(&mut self) -> Result<Option<Frame>, StreamError> {
        self.next(FrameDecoder::next_transient_frame).await
    }

    async fn next(
        &mut self,
        cut: fn(&mut FrameDecoder) -> Result<Option<Frame>, Malformed>,
    ) -> Result<Option<Frame>, StreamError> {
        if let Some(frame) = self.again.take() {
            return Ok(Some(frame));
        }
        let may_be_quiet = self.bookmarks == StreamBookmarks::Unknown;
        let silence = if may_be_quiet {
            SILENCE_WITHOUT_BOOKMARKS
        } else {
            SILENCE
        };
        loop {
            if let Some(frame) = cut(&mut self.decoder)? {
                return Ok(Some(frame));
            }
            match timeout_at(self.heard + silence, self.body.frame()).await {
                // A quiet type is no failure.
                Err(_) if may_be_quiet && self.is_clean() => return Ok(None),
                Err(_) => return Err(StreamError::Silent(silence)),
                Ok(Some(Ok(frame))) => {
                    self.heard = Instant::now();
                    let data = frame.into_data().unwrap_or_default();
                    match &mut self.gzip {
                        Some(gzip) => gzip.read(&data, |piece| self.decoder.push(piece))?,
                        None => self.decoder.push(data),
                    }
                }
                Ok(Some(Err(error))) => return Err(StreamError::Broken(error.to_string())),
                Ok(None) if self.is_clean() => {
                    // A server's timeout is longer: an immediate end would be repeated at once.
                    if self.is_young() {
                        return Err(StreamError::Brief);
                    }
                    return Ok(None);
                }
                Ok(None) => {
                    return Err(StreamError::Broken(
                        "ended in the middle of an event".into(),
                    ));
                }
            }
        }
    }

    /// Returns `true` between two frames.
    fn is_clean(&self) -> bool {
        self.decoder.is_clean() && self.gzip.as_ref().is_none_or(GzipReader::is_between)
    }
}
