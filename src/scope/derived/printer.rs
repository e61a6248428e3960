//! Prints objects in protobuf as JSON.
use std::sync::Arc;

use bytes::Bytes;
use watershed_protocol::{
    Frame, GroupVersionResource, ItemBytes, PartialFormat, Scanned, WireFormat,
};
use watershed_transcode::{Heading, Transcoder};

use super::failures::FallbackReason;
use crate::store::WindowEvent;
use crate::upstream::Release;

/// Group and version of metadata alone.
const META: &str = "meta.k8s.io/v1";

/// Prints the objects of one type, or their metadata.
pub(in crate::scope) struct JsonPrinter {
    transcoder: Transcoder,
    /// Used for each object anew.
    text: Vec<u8>,
}

/// The manner in which a server prints the objects of a type.
#[derive(Clone)]
pub(super) struct PrintManner {
    transcoder: Transcoder,
    pub(super) format: Arc<WireFormat>,
}

impl JsonPrinter {
    /// Returns a printer of a type; `None` if the tables do not have it.
    pub(in crate::scope) fn of_type(
        gvr: &GroupVersionResource,
        kind: &str,
        metadata_only: bool,
    ) -> Option<Self> {
        let transcoder = match (metadata_only, &*gvr.group) {
            (true, _) => Transcoder::for_type(META, PartialFormat::KIND),
            (false, "") => Transcoder::for_type(&gvr.version, kind),
            (false, group) => Transcoder::for_type(&format!("{group}/{}", gvr.version), kind),
        };
        Some(Self {
            transcoder: transcoder?,
            text: Vec::new(),
        })
    }

    /// Returns the manner of a release, and that of the newest one if a server does not tell its.
    pub(super) fn manner(
        &self,
        release: Option<&Release>,
        format: &Arc<WireFormat>,
    ) -> PrintManner {
        let minor = release.and_then(Release::minor);
        PrintManner {
            transcoder: minor.map_or(self.transcoder, |minor| self.transcoder.for_release(minor)),
            format: Arc::clone(format),
        }
    }

    /// Returns the text of an object, with its kind and apiVersion.
    pub(super) fn print(
        &mut self,
        manner: &PrintManner,
        message: &ItemBytes,
    ) -> Result<Bytes, FallbackReason> {
        self.put(manner, message)?;
        let text = Bytes::copy_from_slice(&self.text);
        manner.format.check(&text)?;
        Ok(text)
    }

    /// Returns a watch event, with what a scan of it would find.
    pub(super) fn print_event(
        &mut self,
        manner: &PrintManner,
        event: &WindowEvent,
    ) -> Result<(Frame, Scanned), FallbackReason> {
        self.put(manner, &event.object.bytes.get())?;
        let frame = manner.format.frame(event.kind, &self.text);
        manner.format.check(&frame.object)?;
        let scanned = Scanned {
            version: event.version,
            attributes: event.object.attributes.clone(),
        };
        Ok((frame, scanned))
    }

    fn put(&mut self, manner: &PrintManner, message: &ItemBytes) -> Result<(), FallbackReason> {
        self.text.clear();
        manner
            .transcoder
            .object_json(message.as_slice(), Heading::TypeMeta, &mut self.text)?;
        Ok(())
    }
}

impl PrintManner {
    /// Returns true if another manner prints every object of the type as this one does.
    pub(super) fn prints_like(&self, other: &Self) -> bool {
        self.transcoder.prints_like(&other.transcoder)
    }
}
