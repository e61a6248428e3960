//! Bookmarks: upstream's own, with only version and end mark changed.
use std::collections::BTreeMap;

use bytes::Bytes;
use prost::Message;
use serde::Deserialize;

use super::frames::EventKind;
use super::json;
use super::malformed::Malformed;
use super::object_meta::ObjectMeta;
use super::partial::PartialFormat;
use super::protobuf::messages::StringEntry;
use super::protobuf::{self, FieldReader};
use super::wire_format::{PrintStyle, WireFormat};
use crate::{Encoding, ResourceVersion};

/// Annotation of the bookmark that ends the initial events; its value is `true`.
/// Source: `apimachinery/pkg/apis/meta/v1/types.go`, `InitialEventsAnnotationKey`.
const END_MARK: &str = "k8s.io/initial-events-end";
/// Annotation beside it in releases from 1.32 on that were soon without it again: an empty list of
/// the type in the watch's representation, in base64.
/// Source: `apiserver/pkg/endpoints/handlers/response.go` of 1.32 and 1.33, `watchListTransformer`.
const BLUEPRINT: &str = "kubernetes.io/initial-events-list-blueprint";
/// Annotation that DaemonSets get when they are converted into their version, bookmarks included.
/// Source: `kubernetes/pkg/apis/apps/v1/conversion.go`.
const TEMPLATE_GENERATION: &str = "deprecated.daemonset.template.generation";

/// The content of a bookmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bookmark {
    /// Everything up to this version has been sent.
    pub version: ResourceVersion,
    /// All initial events have been sent.
    pub initial_events_end: bool,
}

/// Reads the object of a BOOKMARK event.
pub fn read_bookmark(encoding: Encoding, object: &[u8]) -> Result<Bookmark, Malformed> {
    read(encoding, object).map(|(bookmark, _)| bookmark)
}

/// A bookmark's annotations beside the end mark, in the order in which they are printed.
type Annotations = BTreeMap<String, String>;

/// Reads a bookmark and its other annotations.
fn read(encoding: Encoding, object: &[u8]) -> Result<(Bookmark, Annotations), Malformed> {
    match encoding {
        Encoding::Json => read_json(object),
        Encoding::Protobuf => read_protobuf(object),
    }
}

fn read_json(object: &[u8]) -> Result<(Bookmark, Annotations), Malformed> {
    #[derive(Deserialize)]
    struct Object {
        metadata: Metadata,
    }
    #[derive(Deserialize)]
    struct Metadata {
        #[serde(rename = "resourceVersion")]
        version: String,
        annotations: Option<Annotations>,
    }
    let object: Object =
        serde_json::from_slice(object).map_err(|_| Malformed("bookmark that can't be read"))?;
    let mut annotations = object.metadata.annotations.unwrap_or_default();
    let end = annotations.remove(END_MARK);
    let bookmark = bookmark(&object.metadata.version, end.as_deref())?;
    Ok((bookmark, annotations))
}

fn read_protobuf(object: &[u8]) -> Result<(Bookmark, Annotations), Malformed> {
    let [_, metadata, _] = protobuf::split_metadata(object)?;
    let (mut version, mut annotations) = ("", Annotations::new());
    let mut fields = FieldReader::new(metadata);
    while let Some((number, value)) = fields.next()? {
        match number {
            6 => version = value.text()?,
            12 => {
                let (key, value) = protobuf::map_entry(value.bytes()?)?;
                annotations.insert(key.to_owned(), value.to_owned());
            }
            _ => {}
        }
    }
    let end = annotations.remove(END_MARK);
    Ok((bookmark(version, end.as_deref())?, annotations))
}

fn bookmark(version: &str, end: Option<&str>) -> Result<Bookmark, Malformed> {
    let version =
        ResourceVersion::parse(version).ok_or(Malformed("bookmark without a resourceVersion"))?;
    Ok(Bookmark {
        version,
        initial_events_end: end == Some("true"),
    })
}

/// Prints a type's bookmarks as upstream does, learned from one of upstream's own.
///
/// A bookmark is the zero value of its kind, which has mandatory empty members that differ from
/// kind to kind; those are kept as upstream printed them. Source:
/// `apiserver/pkg/storage/cacher/cacher.go:1358-1376`.
#[derive(Clone, Debug)]
pub struct BookmarkFormat {
    format: WireFormat,
    /// The object before its metadata's value; in protobuf nothing.
    before: Bytes,
    /// The object after its metadata's value.
    after: Bytes,
    /// Upstream prints `"creationTimestamp":null`, as servers before 1.34 do.
    null_creation: bool,
    /// The same of structs, as which objects reduced to their metadata are printed. Bookmarks of
    /// types that are printed as maps do not tell.
    null_in_structs: Option<bool>,
    blueprint: Blueprint,
    /// Annotations that the conversion into the type's version adds to each of its objects, these
    /// included.
    converted: Annotations,
}

/// The annotation beside the end mark.
#[derive(Clone, Debug)]
enum Blueprint {
    None,
    Known(Box<str>),
    /// One of a list that was not seen.
    Unknown,
}

impl BookmarkFormat {
    /// Learns from the object of any bookmark of the type, with or without the end mark.
    ///
    /// Refuses a bookmark with metadata other than version and the annotations that are known. Only
    /// of these it is known which bookmarks have them.
    pub fn learn(format: &WireFormat, bookmark_object: &Bytes) -> Result<Self, Malformed> {
        format.check(bookmark_object)?;
        let (seen, mut converted) = read(format.encoding(), bookmark_object)?;
        let blueprint = converted.remove(BLUEPRINT);
        if converted.keys().any(|key| key != TEMPLATE_GENERATION) {
            return Err(Malformed("bookmark with an unknown annotation"));
        }
        let blueprint = blueprint.map_or(Blueprint::None, |text| Blueprint::Known(text.into()));
        let (before, after) = match format.encoding() {
            Encoding::Json => {
                let span = json::metadata_span(bookmark_object)?;
                (
                    bookmark_object.slice(..span.start),
                    bookmark_object.slice(span.end..),
                )
            }
            Encoding::Protobuf => {
                let [before, _, after] = protobuf::split_metadata(bookmark_object)?;
                (
                    bookmark_object.slice_ref(before),
                    bookmark_object.slice_ref(after),
                )
            }
        };
        // Copied, so that a small template does not keep a chunk of the stream.
        let (before, after) = (
            Bytes::copy_from_slice(&before),
            Bytes::copy_from_slice(&after),
        );
        [false, true]
            .into_iter()
            .map(|null_creation| Self {
                format: format.clone(),
                before: before.clone(),
                after: after.clone(),
                null_creation,
                null_in_structs: matches!(format.style, PrintStyle::Struct { .. })
                    .then_some(null_creation),
                blueprint: blueprint.clone(),
                converted: converted.clone(),
            })
            .find(|learned| {
                learned.object(seen.version, seen.initial_events_end) == *bookmark_object
            })
            .ok_or(Malformed("bookmark with unexpected metadata"))
    }

    /// Returns `true` if upstream prints `"creationTimestamp":null` in structs. `None` if this
    /// type's bookmarks do not show it.
    pub fn null_in_structs(&self) -> Option<bool> {
        self.null_in_structs
    }

    /// Returns the same format, completed by what other types' bookmarks show.
    #[must_use]
    pub fn with_null_in_structs(mut self, null_in_structs: Option<bool>) -> Self {
        self.null_in_structs = self.null_in_structs.or(null_in_structs);
        self
    }

    /// Returns the format for clients that only want metadata, if it is known.
    pub fn partial(&self, partial: &PartialFormat) -> Option<Self> {
        let null_in_structs = match partial.format().style {
            PrintStyle::Message => self.null_in_structs,
            PrintStyle::Struct { .. } | PrintStyle::Sorted => Some(self.null_in_structs?),
        };
        let (before, after) = partial.around();
        Some(Self {
            format: partial.format().clone(),
            before: Bytes::from_static(before),
            after: Bytes::from_static(after),
            null_creation: null_in_structs.unwrap_or_default(),
            null_in_structs,
            blueprint: match self.blueprint {
                Blueprint::None => Blueprint::None,
                // That of a list of metadata.
                Blueprint::Known(_) | Blueprint::Unknown => Blueprint::Unknown,
            },
            // Upstream reduces objects before it converts them.
            converted: Annotations::new(),
        })
    }

    /// Returns the object of a bookmark from which the same format can be learned again.
    pub fn example(&self) -> Vec<u8> {
        self.object(
            ResourceVersion(1),
            matches!(self.blueprint, Blueprint::Known(_)),
        )
    }

    /// Returns a whole frame of a bookmark at a version.
    pub fn plain(&self, version: ResourceVersion) -> Bytes {
        self.format
            .event_of(EventKind::Bookmark, &self.object(version, false))
    }

    /// Returns a whole frame of the bookmark that ends the initial events, if all of it is known.
    pub fn initial_events_end(&self, version: ResourceVersion) -> Option<Bytes> {
        let known = !matches!(self.blueprint, Blueprint::Unknown);
        known.then(|| {
            self.format
                .event_of(EventKind::Bookmark, &self.object(version, true))
        })
    }

    /// Returns the object of a bookmark, or of the one that ends the initial events, if all of it is
    /// known.
    pub(crate) fn object_at(&self, version: ResourceVersion, end: bool) -> Option<Vec<u8>> {
        let is_known = !(end && matches!(self.blueprint, Blueprint::Unknown));
        is_known.then(|| self.object(version, end))
    }

    fn object(&self, version: ResourceVersion, end: bool) -> Vec<u8> {
        let metadata = match self.format.style {
            PrintStyle::Struct { .. } => self.struct_metadata(version, end).into_bytes(),
            PrintStyle::Sorted => self.sorted_metadata(version, end).into_bytes(),
            PrintStyle::Message => self.message_metadata(version, end),
        };
        let mut out = Vec::with_capacity(self.before.len() + metadata.len() + self.after.len() + 6);
        out.extend_from_slice(&self.before);
        match self.format.encoding() {
            Encoding::Json => out.extend_from_slice(&metadata),
            Encoding::Protobuf => protobuf::put_bytes(&mut out, 1, &metadata),
        }
        out.extend_from_slice(&self.after);
        out
    }

    /// Returns ObjectMeta in struct order: resourceVersion, creationTimestamp, annotations.
    /// Source: `apimachinery/pkg/apis/meta/v1/types.go:139-306`.
    fn struct_metadata(&self, version: ResourceVersion, end: bool) -> String {
        let creation = if self.null_creation {
            r#","creationTimestamp":null"#
        } else {
            ""
        };
        let annotations = match self.annotations_text(end) {
            Some(text) => format!(",{text}"),
            None => String::new(),
        };
        format!(r#"{{"resourceVersion":"{version}"{creation}{annotations}}}"#)
    }

    /// Returns ObjectMeta sorted, as custom resources are printed.
    fn sorted_metadata(&self, version: ResourceVersion, end: bool) -> String {
        let creation = if self.null_creation {
            r#""creationTimestamp":null,"#
        } else {
            ""
        };
        let annotations = match self.annotations_text(end) {
            Some(text) => format!("{text},"),
            None => String::new(),
        };
        format!(r#"{{{annotations}{creation}"resourceVersion":"{version}"}}"#)
    }

    /// Returns the member with the annotations, if there are any. Values that JSON would escape do
    /// not occur: such a bookmark is not learned from.
    fn annotations_text(&self, end: bool) -> Option<String> {
        let entries: Vec<_> = self
            .annotations(end)
            .map(|(key, value)| format!(r#""{key}":"{value}""#))
            .collect();
        (!entries.is_empty()).then(|| format!(r#""annotations":{{{}}}"#, entries.join(",")))
    }

    fn message_metadata(&self, version: ResourceVersion, end: bool) -> Vec<u8> {
        let entries = self
            .annotations(end)
            .map(|(key, value)| annotation(key, value));
        ObjectMeta::new(version.to_string(), entries.collect()).encode_to_vec()
    }

    /// Returns the annotations of a bookmark in the order of their keys.
    fn annotations(&self, end: bool) -> impl Iterator<Item = (&str, &str)> {
        let blueprint = match &self.blueprint {
            Blueprint::Known(text) => Some((BLUEPRINT, &**text)),
            Blueprint::None | Blueprint::Unknown => None,
        };
        let marks = [(END_MARK, "true")].into_iter().chain(blueprint);
        let converted = self.converted.iter().map(|(key, value)| (&**key, &**value));
        let all: BTreeMap<_, _> = converted.chain(marks.filter(|_| end)).collect();
        all.into_iter()
    }
}

fn annotation(key: &str, value: &str) -> StringEntry {
    StringEntry {
        key: key.to_owned(),
        value: value.to_owned(),
    }
}
