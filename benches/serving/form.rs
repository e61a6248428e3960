//! Encodings of answers: requested, and checked on arrival.
use std::io::Write;

use anyhow::ensure;
use flate2::write::MultiGzDecoder;
use http::{HeaderMap, header};

use crate::stamp::stamps;

/// Annotation that marks the end of a watch's first state.
const END_MARK: &[u8] = b"k8s.io/initial-events-end";

/// Encoding and coding that a client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Json,
    JsonGzip,
    Protobuf,
    ProtobufGzip,
}

/// Looks into an answer as it comes: whether the mark has come that ends the objects a watch begins
/// with, and, if that is wanted, how many pods it holds.
pub(crate) struct Reader(Decoder);

enum Decoder {
    Plain(Found),
    Gzip(Box<MultiGzDecoder<Found>>),
}

/// Findings in the part of the answer that has come.
#[derive(Default)]
struct Found {
    /// The end of what came before, in which something may have begun.
    tail: Vec<u8>,
    counts: bool,
    /// Pods before the tail.
    pods: usize,
    ended: bool,
}

impl Form {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Json => "JSON",
            Self::JsonGzip => "JSON gzip",
            Self::Protobuf => "protobuf",
            Self::ProtobufGzip => "protobuf gzip",
        }
    }

    pub(crate) fn accept(self) -> &'static str {
        if self.is_protobuf() {
            "application/vnd.kubernetes.protobuf"
        } else {
            "application/json"
        }
    }

    pub(crate) fn is_protobuf(self) -> bool {
        matches!(self, Self::Protobuf | Self::ProtobufGzip)
    }

    pub(crate) fn is_gzip(self) -> bool {
        matches!(self, Self::JsonGzip | Self::ProtobufGzip)
    }

    /// Returns `true` if the head of an answer names this form.
    pub(crate) fn is_of(self, head: &HeaderMap) -> bool {
        let value = |name| {
            head.get(name)
                .and_then(|value| value.to_str().ok())
                .unwrap_or_default()
        };
        value(header::CONTENT_TYPE).starts_with(self.accept())
            && (value(header::CONTENT_ENCODING) == "gzip") == self.is_gzip()
    }

    /// The same as a check.
    pub(crate) fn expect(self, head: &HeaderMap) -> anyhow::Result<()> {
        ensure!(
            self.is_of(head),
            "{} was asked for, and this came: {head:?}",
            self.name()
        );
        Ok(())
    }
}

impl Reader {
    /// Looks for the mark.
    pub(crate) fn new(form: Form) -> Self {
        Self::of(form, Found::default())
    }

    /// Counts pods, too.
    pub(crate) fn counting(form: Form) -> Self {
        Self::of(
            form,
            Found {
                counts: true,
                ..Found::default()
            },
        )
    }

    fn of(form: Form, found: Found) -> Self {
        Self(if form.is_gzip() {
            Decoder::Gzip(Box::new(MultiGzDecoder::new(found)))
        } else {
            Decoder::Plain(found)
        })
    }

    /// Takes the next piece of the body.
    pub(crate) fn push(&mut self, piece: &[u8]) -> anyhow::Result<()> {
        match &mut self.0 {
            Decoder::Plain(found) => found.write_all(piece)?,
            // What has come is decoded as far as it goes.
            Decoder::Gzip(decoder) => {
                decoder.write_all(piece)?;
                decoder.flush()?;
            }
        }
        Ok(())
    }

    /// The mark has come.
    pub(crate) fn ended(&self) -> bool {
        self.found().ended
    }

    /// Pods so far.
    pub(crate) fn pods(&self) -> usize {
        let found = self.found();
        found.pods + stamps(&found.tail)
    }

    fn found(&self) -> &Found {
        match &self.0 {
            Decoder::Plain(found) => found,
            Decoder::Gzip(decoder) => decoder.get_ref(),
        }
    }
}

impl Write for Found {
    fn write(&mut self, piece: &[u8]) -> std::io::Result<usize> {
        // Longer than anything that is looked for.
        const OVERLAP: usize = 64;
        self.tail.extend_from_slice(piece);
        self.ended |= memchr::memmem::find(&self.tail, END_MARK).is_some();
        let cut = self.tail.len().saturating_sub(OVERLAP);
        if self.counts {
            // One over the cut is counted here, and is not whole behind it.
            self.pods += stamps(&self.tail) - stamps(&self.tail[cut..]);
        }
        self.tail.drain(..cut);
        Ok(piece.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
