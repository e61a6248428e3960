//! Lists: reading upstream's into objects, and writing objects as upstream would.
use std::ops::Range;

use bytes::Bytes;
use prost::Message;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::json;
use super::malformed::{Malformed, offset_in};
use super::protobuf::messages::{ListMeta, ShardInfo};
use super::protobuf::{self, FieldReader, UnknownEnvelope};
use super::wire_format::{PrintStyle, WireFormat};
use crate::media::PARTIAL_OBJECT;
use crate::{Encoding, ResourceVersion, ShardSelector};

/// One answer to a LIST.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListPage {
    /// Version of the list.
    pub version: ResourceVersion,
    /// The token of the next page; `None` on the last one.
    pub continue_token: Option<String>,
    /// The number of remaining objects that upstream reports.
    pub remaining: Option<i64>,
    /// The objects. They are slices of the answer, except in JSON whose items lack kind and
    /// apiVersion.
    pub objects: Vec<Bytes>,
}

/// The metadata of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListMetadata<'a> {
    /// Version of the list.
    pub version: ResourceVersion,
    /// The token of the next page; `None` or empty on the last one.
    pub continue_token: Option<&'a str>,
    /// The number of remaining objects.
    pub remaining: Option<i64>,
    /// The shard that the list shows. Lists of types that upstream does not mark as sharded leave
    /// it out.
    pub shard: Option<&'a ShardSelector>,
}

impl ListMetadata<'_> {
    /// Creates the metadata of a whole list.
    pub fn of(version: ResourceVersion) -> Self {
        Self {
            version,
            continue_token: None,
            remaining: None,
            shard: None,
        }
    }
}

/// The parts of a list around its items.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListParts {
    /// Everything before the first item.
    pub head: Bytes,
    /// Everything after the last item.
    pub tail: Bytes,
    items: u64,
}

impl ListParts {
    /// Creates the parts around items of so many bytes, separators included.
    pub(crate) fn new(head: Bytes, tail: Bytes, items: u64) -> Self {
        Self { head, tail, items }
    }

    /// Returns the number of bytes of the whole body: the Content-Length.
    pub fn body_len(&self) -> u64 {
        self.head.len() as u64 + self.items + self.tail.len() as u64
    }
}

const NOT_A_LIST: Malformed = Malformed("answer that is not a list");
const OTHER_STYLE: Malformed = Malformed("list in another style");

impl WireFormat {
    /// Learns a type's format from an answer to a LIST, typically with `limit=1`, and reads that
    /// answer.
    ///
    /// Refuses an answer that it could not write again byte for byte. Such a type can only be
    /// forwarded. The format keeps managed fields
    /// ([`with_managed_fields`](Self::with_managed_fields)).
    /// Source: `apimachinery/pkg/runtime/serializer/{json,protobuf}/collections.go`.
    pub fn learn(
        encoding: Encoding,
        kind: &str,
        list_body: &Bytes,
    ) -> Result<(Self, ListPage), Malformed> {
        match encoding {
            Encoding::Json => {
                let list = JsonList::parse(list_body)?;
                let first = list.items.iter().flatten().next();
                // Lists of metadata keep kind and apiVersion in items, and are `null` when empty.
                // Source: `apiserver/pkg/endpoints/handlers/response.go:463-481`.
                let is_partial = kind == PARTIAL_OBJECT;
                let style = if list_body.starts_with(br#"{"apiVersion":"#) {
                    PrintStyle::Sorted
                } else {
                    PrintStyle::Struct {
                        bare_items: first
                            .map_or(!is_partial, |item| !item.get().starts_with(r#"{"kind":"#)),
                        null_items: list.items.is_none() || (first.is_some() && is_partial),
                    }
                };
                let format = Self::new(kind, list.api_version, list.kind, style)?;
                let page = format.json_page(list_body, &list)?;
                Ok((format, page))
            }
            Encoding::Protobuf => {
                let unknown = UnknownEnvelope::read(list_body)?;
                let format =
                    Self::new(kind, unknown.api_version, unknown.kind, PrintStyle::Message)?;
                let page = format.protobuf_page(list_body, &unknown)?;
                Ok((format, page))
            }
        }
    }

    /// Reads an answer to a LIST, which must be byte for byte as this format would write it, and
    /// returns its objects as they are held.
    pub fn read_list(&self, body: &Bytes) -> Result<ListPage, Malformed> {
        let mut page = match self.encoding() {
            Encoding::Json => self.json_page(body, &JsonList::parse(body)?)?,
            Encoding::Protobuf => self.protobuf_page(body, &UnknownEnvelope::read(body)?)?,
        };
        for object in &mut page.objects {
            *object = self.held(object)?;
        }
        Ok(page)
    }

    /// Returns the parts of a list around `count` items, which have `items` bytes with the
    /// separators between them.
    pub fn list_parts(&self, metadata: &ListMetadata<'_>, count: usize, items: u64) -> ListParts {
        let (head, tail) = match self.style {
            PrintStyle::Struct { null_items, .. } => {
                let metadata = struct_metadata(metadata, self.shard_info(metadata));
                let null = null_items && count == 0;
                let open = if null { "null" } else { "[" };
                let start = format!(
                    r#"{{"kind":"{}","apiVersion":"{}","metadata":{metadata},"items":{open}"#,
                    self.list_kind,
                    self.api_version()
                );
                (start.into_bytes(), if null { "}\n" } else { "]}\n" }.into())
            }
            PrintStyle::Sorted => {
                let metadata = sorted_metadata(metadata);
                let start = format!(r#"{{"apiVersion":"{}","items":["#, self.api_version());
                let end = format!(
                    "],\"kind\":\"{}\",\"metadata\":{metadata}}}\n",
                    self.list_kind
                );
                (start.into_bytes(), end.into())
            }
            PrintStyle::Message => {
                let metadata = message_metadata(metadata, self.shard_info(metadata));
                let raw = protobuf::bytes_field_len(metadata.len()) + items as usize;
                let names = protobuf::type_meta(self.api_version(), &self.list_kind);
                let mut start =
                    Vec::with_capacity(protobuf::envelope_len(&names, raw) - items as usize);
                protobuf::put_envelope_head(&mut start, &names, raw);
                protobuf::put_bytes(&mut start, 1, &metadata);
                (start, Bytes::from_static(protobuf::UNKNOWN_TAIL))
            }
        };
        ListParts {
            head: head.into(),
            tail,
            items,
        }
    }

    /// Returns the selector that a list of a shard repeats. Lists of metadata do not repeat it,
    /// nor do those of custom types.
    ///
    /// Sources: `apiserver/pkg/storage/selection_predicate.go` (`SetShardInfoOnList`),
    /// `apiserver/pkg/endpoints/handlers/response.go` (`asPartialObjectMetadataList`).
    fn shard_info(&self, metadata: &ListMetadata<'_>) -> Option<String> {
        let is_marked = self.kind() != PARTIAL_OBJECT && self.style != PrintStyle::Sorted;
        metadata
            .shard
            .filter(|_| is_marked)
            .map(ToString::to_string)
    }

    /// Returns the object of an item.
    fn object(&self, item: Bytes) -> Result<Bytes, Malformed> {
        if !matches!(
            self.style,
            PrintStyle::Struct {
                bare_items: true,
                ..
            }
        ) {
            self.check(&item)?;
            return Ok(item);
        }
        let named = [r#"{"kind":"#, r#"{"apiVersion":"#]
            .iter()
            .any(|start| item.starts_with(start.as_bytes()));
        // An item has metadata, so there is always a member for the opening's comma to stand
        // before.
        if named || !item.starts_with(b"{\"") {
            return Err(OTHER_STYLE);
        }
        Ok([&self.opening[..], &item[1..]].concat().into())
    }

    /// Returns the number of bytes of an item at a place, with the separator before all but the first.
    fn place_len(&self, index: usize, item: usize) -> usize {
        match self.style {
            PrintStyle::Message => protobuf::bytes_field_len(item),
            PrintStyle::Struct { .. } | PrintStyle::Sorted => usize::from(index > 0) + item,
        }
    }

    fn json_page(&self, body: &Bytes, list: &JsonList<'_>) -> Result<ListPage, Malformed> {
        let items = list.items.as_deref().unwrap_or_default();
        let places = items.iter().map(|item| json::span(body, item)).collect();
        let metadata = ListMetadata {
            version: ResourceVersion::parse(list.metadata.version).ok_or(OTHER_STYLE)?,
            continue_token: list.metadata.continue_token.as_deref(),
            remaining: list.metadata.remaining,
            shard: None,
        };
        self.page(body, places, metadata)
    }

    fn protobuf_page(
        &self,
        body: &Bytes,
        list: &UnknownEnvelope<'_>,
    ) -> Result<ListPage, Malformed> {
        let (mut metadata, mut places) = (None, Vec::new());
        let mut fields = FieldReader::new(list.raw);
        while let Some((number, value)) = fields.next()? {
            let value = value.bytes()?;
            let start = offset_in(body, value);
            match number {
                1 => metadata = Some(value),
                protobuf::ITEMS => places.push(start..start + value.len()),
                _ => return Err(OTHER_STYLE),
            }
        }
        let (mut version, mut token, mut remaining) = (None, None, None);
        let mut fields = FieldReader::new(metadata.ok_or(NOT_A_LIST)?);
        while let Some((number, value)) = fields.next()? {
            match number {
                2 => version = ResourceVersion::parse(value.text()?),
                3 => token = Some(value.text()?),
                4 => remaining = Some(value.varint()?.cast_signed()),
                _ => {}
            }
        }
        let metadata = ListMetadata {
            version: version.ok_or(OTHER_STYLE)?,
            continue_token: token,
            remaining,
            shard: None,
        };
        self.page(body, places, metadata)
    }

    /// Puts a page together, once the body proves to be what this form writes for it.
    fn page(
        &self,
        body: &Bytes,
        places: Vec<Range<usize>>,
        metadata: ListMetadata<'_>,
    ) -> Result<ListPage, Malformed> {
        let token = metadata.continue_token.filter(|token| !token.is_empty());
        let metadata = ListMetadata {
            continue_token: token,
            ..metadata
        };
        let items = places
            .iter()
            .enumerate()
            .map(|(index, place)| self.place_len(index, place.len()) as u64);
        let parts = self.list_parts(&metadata, places.len(), items.sum());
        if parts.body_len() != body.len() as u64
            || !body.starts_with(&parts.head)
            || !body.ends_with(&parts.tail)
        {
            return Err(OTHER_STYLE);
        }
        let mut position = parts.head.len();
        let mut objects = Vec::with_capacity(places.len());
        for (index, place) in places.into_iter().enumerate() {
            // Item by item, so that nothing but upstream's own separators can hide between them.
            position += self.place_len(index, place.len());
            if place.end != position {
                return Err(OTHER_STYLE);
            }
            objects.push(self.object(body.slice(place))?);
        }
        Ok(ListPage {
            version: metadata.version,
            continue_token: token.map(str::to_owned),
            remaining: metadata.remaining,
            objects,
        })
    }
}

/// A list's parts, borrowed. Members that are not known here make it unreadable, as they would be
/// lost.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonList<'a> {
    kind: &'a str,
    #[serde(rename = "apiVersion")]
    api_version: &'a str,
    metadata: JsonListMeta<'a>,
    #[serde(borrow)]
    items: Option<Vec<&'a RawValue>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonListMeta<'a> {
    #[serde(rename = "resourceVersion")]
    version: &'a str,
    #[serde(rename = "continue")]
    continue_token: Option<String>,
    #[serde(rename = "remainingItemCount")]
    remaining: Option<i64>,
}

impl<'a> JsonList<'a> {
    fn parse(body: &'a [u8]) -> Result<Self, Malformed> {
        serde_json::from_slice(body).map_err(|_| NOT_A_LIST)
    }
}

/// Returns ListMeta in struct order. Source: `apimachinery/pkg/apis/meta/v1/types.go:61-106`.
pub(crate) fn struct_metadata(metadata: &ListMetadata<'_>, shard: Option<String>) -> String {
    let version = metadata.version;
    let token = metadata
        .continue_token
        .filter(|token| !token.is_empty())
        .map(|token| format!(r#","continue":{}"#, quoted(token)))
        .unwrap_or_default();
    let remaining = metadata
        .remaining
        .map(|count| format!(r#","remainingItemCount":{count}"#))
        .unwrap_or_default();
    let shard_info = shard
        .map(|selector| format!(r#","shardInfo":{{"selector":{}}}"#, quoted(&selector)))
        .unwrap_or_default();
    format!(r#"{{"resourceVersion":"{version}"{token}{remaining}{shard_info}}}"#)
}

/// Returns ListMeta of custom resources: sorted, and `continue` always there.
/// Source: `apimachinery/pkg/apis/meta/v1/unstructured/unstructured_list.go:184-198`.
fn sorted_metadata(metadata: &ListMetadata<'_>) -> String {
    let version = metadata.version;
    let token = quoted(metadata.continue_token.unwrap_or_default());
    let remaining = metadata
        .remaining
        .map(|count| format!(r#""remainingItemCount":{count},"#))
        .unwrap_or_default();
    format!(r#"{{"continue":{token},{remaining}"resourceVersion":"{version}"}}"#)
}

fn message_metadata(metadata: &ListMetadata<'_>, shard: Option<String>) -> Vec<u8> {
    let message = ListMeta {
        self_link: String::new(),
        resource_version: metadata.version.to_string(),
        continue_token: metadata.continue_token.unwrap_or_default().to_owned(),
        remaining: metadata.remaining,
        shard_info: shard.map(|selector| ShardInfo { selector }),
    };
    message.encode_to_vec()
}

/// Returns a JSON string. Continue tokens are base64url, and shard selectors have no character that Go
/// escapes, so its extra escapes never matter.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
