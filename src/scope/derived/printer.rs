//! Prints objects in protobuf as JSON.
use bytes::Bytes;
use watershed_protocol::{
    Frame, GroupVersionResource, ItemBytes, PartialFormat, Scanned, WireFormat,
};
use watershed_transcode::{Heading, Transcoder};

use super::failures::FallbackReason;
use crate::store::WindowEvent;

/// Group and version of metadata alone.
const META: &str = "meta.k8s.io/v1";

/// Prints the objects of one type, or their metadata.
pub(in crate::scope) struct JsonPrinter {
    transcoder: Transcoder,
    /// Used for each object anew.
    text: Vec<u8>,
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

    /// Returns the text of an object, with its kind and apiVersion.
    pub(super) fn print(
        &mut self,
        format: &WireFormat,
        message: &ItemBytes,
    ) -> Result<Bytes, FallbackReason> {
        self.put(message)?;
        let text = Bytes::copy_from_slice(&self.text);
        format.check(&text)?;
        Ok(text)
    }

    /// Returns a watch event, with what a scan of it would find.
    pub(super) fn print_event(
        &mut self,
        format: &WireFormat,
        event: &WindowEvent,
    ) -> Result<(Frame, Scanned), FallbackReason> {
        self.put(&event.object.bytes.get())?;
        let frame = format.frame(event.kind, &self.text);
        format.check(&frame.object)?;
        let scanned = Scanned {
            version: event.version,
            attributes: event.object.attributes.clone(),
        };
        Ok((frame, scanned))
    }

    fn put(&mut self, message: &ItemBytes) -> Result<(), FallbackReason> {
        self.text.clear();
        self.transcoder
            .object_json(message.as_slice(), Heading::TypeMeta, &mut self.text)?;
        Ok(())
    }
}
