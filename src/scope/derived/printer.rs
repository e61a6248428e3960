//! Prints objects in protobuf as JSON.
use std::sync::Arc;

use bytes::Bytes;
use watershed_protocol::{
    EventKind, Frame, GroupVersionResource, ItemBytes, PartialFormat, Scanned, WireFormat,
};
use watershed_transcode::{Heading, Transcoder};

use super::failures::FallbackReason;
use crate::store::{FrameOrigin, ItemsOrigin, ObjectPeek, StoredObject, WindowEvent};
use crate::upstream::Release;

/// Group and version of metadata alone.
const META: &str = "meta.k8s.io/v1";

/// Prints the objects of one type, or their metadata.
pub(in crate::scope) struct JsonPrinter {
    transcoder: Transcoder,
    /// Used for each object anew.
    text: Vec<u8>,
}

/// An event in JSON.
pub(in crate::scope) struct PrintedEvent {
    pub(in crate::scope) frame: Frame,
    /// The attributes that a scan of it would find.
    pub(in crate::scope) scanned: Scanned,
    /// Prints it again.
    pub(in crate::scope) origin: Box<dyn FrameOrigin>,
}

/// An object in protobuf from which the frame of an event was printed.
#[derive(Debug)]
struct PrintedFrom {
    kind: EventKind,
    message: ItemBytes,
    manner: PrintManner,
}

/// Objects in protobuf from which the items of a leaf are printed.
#[derive(Debug)]
pub(super) struct PrintedItems {
    manner: PrintManner,
    sources: Box<[Arc<StoredObject>]>,
}

/// The manner in which a server prints the objects of a type.
#[derive(Clone, Debug)]
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
        manner.print_into(message, &mut self.text)?;
        Ok(Bytes::copy_from_slice(&self.text))
    }

    /// Returns a watch event.
    pub(super) fn print_event(
        &mut self,
        manner: &PrintManner,
        event: &WindowEvent,
    ) -> Result<PrintedEvent, FallbackReason> {
        let message = event.object.bytes.get();
        self.text.clear();
        manner.put(&message, &mut self.text)?;
        let frame = manner.format.frame(event.kind, &self.text);
        manner.format.check(&frame.object)?;
        let scanned = Scanned {
            version: event.version,
            attributes: event.object.attributes.clone(),
        };
        let origin = Box::new(PrintedFrom {
            kind: event.kind,
            message,
            manner: manner.clone(),
        });
        Ok(PrintedEvent {
            frame,
            scanned,
            origin,
        })
    }
}

impl FrameOrigin for PrintedFrom {
    fn frame(&self) -> Bytes {
        let mut text = Vec::new();
        let printed = self.manner.put(&self.message, &mut text);
        printed.expect("the object was printed in this manner before");
        self.manner.format.frame(self.kind, &text).frame
    }

    fn size(&self) -> usize {
        size_of::<Self>() + self.message.len()
    }

    fn shared(&self) -> usize {
        self.message.len()
    }
}

impl PrintedItems {
    /// Returns the items of objects, each of which was printed in this manner.
    pub(super) fn new(manner: PrintManner, sources: Box<[Arc<StoredObject>]>) -> Self {
        Self { manner, sources }
    }
}

impl ItemsOrigin for PrintedItems {
    fn put_items(&self, items: &mut Vec<u8>) {
        let mut peek = ObjectPeek::default();
        let heading = if self.manner.format.has_bare_items() {
            Heading::Brace
        } else {
            Heading::TypeMeta
        };
        for source in &self.sources {
            let message = peek.bytes(source);
            let transcoder = &self.manner.transcoder;
            let printed = transcoder.object_json(message.as_slice(), heading, items);
            printed.expect("the object was printed in this manner before");
            items.push(b',');
        }
    }

    fn is_orphaned(&self) -> bool {
        // The scope in protobuf holds others instead.
        let is_alone = |source: &Arc<StoredObject>| Arc::strong_count(source) == 1;
        self.sources.iter().any(is_alone)
    }
}

impl PrintManner {
    /// Prints an object, with its kind and apiVersion, into `text`, whose content is dropped. Returns
    /// the number of bytes that would be held of it.
    pub(super) fn print_into(
        &self,
        message: &ItemBytes,
        text: &mut Vec<u8>,
    ) -> Result<usize, FallbackReason> {
        text.clear();
        self.put(message, text)?;
        self.format.check(text)?;
        Ok(self.format.item_bytes_len(text.len()))
    }

    fn put(&self, message: &ItemBytes, text: &mut Vec<u8>) -> Result<(), FallbackReason> {
        self.transcoder
            .object_json(message.as_slice(), Heading::TypeMeta, text)?;
        Ok(())
    }

    /// Returns `true` if another manner prints every object of the type as this one does.
    pub(super) fn prints_like(&self, other: &Self) -> bool {
        self.transcoder.prints_like(&other.transcoder)
    }
}
