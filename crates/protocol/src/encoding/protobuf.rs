//! The Kubernetes flavour of protobuf: a walk over the fields of interest, and the envelopes around
//! objects.
//!
//! Envelopes are read and written around the object's own bytes, which are never copied into a
//! message. [`messages`] has everything that is written from values.
//!
//! Sources: `apimachinery/pkg/runtime/generated.proto`, `.../apis/meta/v1/generated.proto`.
pub(crate) mod messages;
mod wire;

use std::borrow::Cow;

use prost::Message;

pub(super) use wire::{FieldReader, FieldValue, bytes_field_len, put_bytes, put_header};

use super::error_status::ErrorStatus;
use super::malformed::Malformed;
use super::scanned::ScanValues;
use crate::fields::{PathStep, StepTarget, ValueShape};
use messages::TypeMeta;

/// Prefix of every answer and of every event's object.
/// Source: `apimachinery/pkg/runtime/serializer/protobuf`.
pub(super) const MAGIC: &[u8; 4] = b"k8s\0";

/// The fields after `raw` in a `runtime.Unknown`: contentEncoding and contentType, always written,
/// always empty.
pub(super) const UNKNOWN_TAIL: &[u8; 4] = &[0x1a, 0, 0x22, 0];

/// Number of the field of a list message that has its items.
pub(super) const ITEMS: u32 = 2;

const REPEATED_FIELD: Malformed = Malformed("protobuf field of an unexpected type");

/// Returns an encoded message `runtime.TypeMeta`.
pub(crate) fn type_meta(api_version: &str, kind: &str) -> Vec<u8> {
    let message = TypeMeta {
        api_version: api_version.to_owned(),
        kind: kind.to_owned(),
    };
    message.encode_to_vec()
}

/// Returns an object's message in its `k8s\0` envelope.
pub(crate) fn envelope(type_meta: &[u8], object: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(envelope_len(type_meta, object.len()));
    put_envelope_head(&mut out, type_meta, object.len());
    out.extend_from_slice(object);
    out.extend_from_slice(UNKNOWN_TAIL);
    out
}

/// Returns the number of bytes of the `k8s\0` envelope around an object of `raw` bytes, all included.
pub(super) fn envelope_len(type_meta: &[u8], raw: usize) -> usize {
    MAGIC.len() + bytes_field_len(type_meta.len()) + bytes_field_len(raw) + UNKNOWN_TAIL.len()
}

/// Appends the part of the envelope before an object of `raw` bytes. [`UNKNOWN_TAIL`] is the part after it.
pub(super) fn put_envelope_head(out: &mut Vec<u8>, type_meta: &[u8], raw: usize) {
    out.extend_from_slice(MAGIC);
    put_bytes(out, 1, type_meta);
    put_header(out, 2, raw);
}

/// Returns the part of a watch frame before an object of `raw` bytes: length, WatchEvent,
/// RawExtension, envelope. [`UNKNOWN_TAIL`] comes after it.
///
/// Sources: `apimachinery/pkg/util/framer/framer.go:35-49`,
/// `apimachinery/pkg/apis/meta/v1/watch.go:31-40`.
pub(super) fn event_head(kind: &str, type_meta: &[u8], raw: usize) -> Vec<u8> {
    let envelope = envelope_len(type_meta, raw);
    let extension = bytes_field_len(envelope);
    let event = bytes_field_len(kind.len()) + bytes_field_len(extension);
    let mut out = Vec::with_capacity(4 + event - raw);
    out.extend_from_slice(&(event as u32).to_be_bytes());
    put_bytes(&mut out, 1, kind.as_bytes());
    put_header(&mut out, 2, extension);
    put_header(&mut out, 1, envelope);
    put_envelope_head(&mut out, type_meta, raw);
    out
}

/// A `runtime.Unknown` taken out of its `k8s\0` envelope.
pub(super) struct UnknownEnvelope<'a> {
    pub(super) api_version: &'a str,
    pub(super) kind: &'a str,
    pub(super) raw: &'a [u8],
}

impl<'a> UnknownEnvelope<'a> {
    pub(super) fn read(envelope: &'a [u8]) -> Result<Self, Malformed> {
        let message = envelope
            .strip_prefix(MAGIC)
            .ok_or(Malformed("protobuf without its k8s prefix"))?;
        let (mut api_version, mut kind, mut raw) = ("", "", None);
        let mut fields = FieldReader::new(message);
        while let Some((number, value)) = fields.next()? {
            match number {
                1 => {
                    let mut names = FieldReader::new(value.bytes()?);
                    while let Some((number, value)) = names.next()? {
                        match number {
                            1 => api_version = value.text()?,
                            2 => kind = value.text()?,
                            _ => {}
                        }
                    }
                }
                2 => raw = Some(value.bytes()?),
                // A coding of the object's bytes would make them unreadable; nobody uses one.
                3 if !value.bytes()?.is_empty() => {
                    return Err(Malformed("protobuf object in a content coding"));
                }
                _ => {}
            }
        }
        Ok(Self {
            api_version,
            kind,
            raw: raw.ok_or(Malformed("protobuf envelope without an object"))?,
        })
    }
}

/// Fills `found` from an object's message.
pub(super) fn scan<'a>(
    object: &'a [u8],
    steps: &[PathStep],
    found: &mut ScanValues<'a>,
) -> Result<(), Malformed> {
    let mut fields = FieldReader::new(object);
    while let Some((number, value)) = fields.next()? {
        // Metadata is field 1 of every object message (checked over all of upstream's
        // generated.proto).
        if number == 1 {
            scan_metadata(value.bytes()?, found)?;
        } else if let Some(step) = steps.iter().find(|step| step.number == number) {
            scan_member(value, step, &mut found.places)?;
        }
    }
    Ok(())
}

fn scan_metadata<'a>(metadata: &'a [u8], found: &mut ScanValues<'a>) -> Result<(), Malformed> {
    let mut fields = FieldReader::new(metadata);
    while let Some((number, value)) = fields.next()? {
        match number {
            1 => found.name = value.text()?.into(),
            3 => found.namespace = value.text()?.into(),
            5 => found.uid = value.text()?.into(),
            6 => found.version = value.text()?.into(),
            11 => {
                let (key, value) = map_entry(value.bytes()?)?;
                found.labels.push((key.into(), value.into()));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Returns key and value of a map's entry.
pub(super) fn map_entry(entry: &[u8]) -> Result<(&str, &str), Malformed> {
    let (mut key, mut text) = ("", "");
    let mut fields = FieldReader::new(entry);
    while let Some((number, value)) = fields.next()? {
        match number {
            1 => key = value.text()?,
            2 => text = value.text()?,
            _ => {}
        }
    }
    Ok((key, text))
}

fn scan_member<'a>(
    value: FieldValue<'a>,
    step: &PathStep,
    places: &mut [Option<Cow<'a, str>>],
) -> Result<(), Malformed> {
    match &step.next {
        StepTarget::Place(place, shape) => {
            let first_is_taken = step.first && places[*place].is_some();
            if !first_is_taken {
                places[*place] = Some(match shape {
                    ValueShape::Text => value.text()?.into(),
                    ValueShape::Flag => if value.varint()? == 0 {
                        "false"
                    } else {
                        "true"
                    }
                    .into(),
                    ValueShape::Number => value.varint()?.cast_signed().to_string().into(),
                });
            }
        }
        StepTarget::Members(steps) => {
            // Later elements of a list are known by the first one's value, which is always written.
            if step.first && steps.iter().any(|step| is_taken(step, places)) {
                return Ok(());
            }
            let mut fields = FieldReader::new(value.bytes()?);
            while let Some((number, value)) = fields.next()? {
                if let Some(step) = steps.iter().find(|step| step.number == number) {
                    scan_member(value, step, places)?;
                }
            }
        }
    }
    Ok(())
}

fn is_taken(step: &PathStep, places: &[Option<Cow<'_, str>>]) -> bool {
    match &step.next {
        StepTarget::Place(place, _) => places[*place].is_some(),
        StepTarget::Members(steps) => steps.iter().any(|step| is_taken(step, places)),
    }
}

/// Reads a Status, bare or in its envelope.
pub(super) fn read_error(object: &[u8]) -> Option<ErrorStatus> {
    let raw = if object.starts_with(MAGIC) {
        UnknownEnvelope::read(object).ok()?.raw
    } else {
        object
    };
    let mut status = ErrorStatus::default();
    let mut fields = FieldReader::new(raw);
    while let Ok(Some((number, value))) = fields.next() {
        let text = |value: FieldValue<'_>| {
            value
                .bytes()
                .map(|b| String::from_utf8_lossy(b).into_owned())
        };
        match number {
            3 => status.message = text(value).unwrap_or_default(),
            4 => status.reason = text(value).unwrap_or_default(),
            6 => status.code = value.varint().unwrap_or_default().cast_signed(),
            _ => {}
        }
    }
    Some(status)
}

/// Cuts an object's message around its metadata: the part before field 1, its content, the part after it.
pub(super) fn split_metadata(object: &[u8]) -> Result<[&[u8]; 3], Malformed> {
    split_at_field(object, 1).map_err(|_| Malformed("object without metadata"))
}

/// Returns the message with a new resourceVersion in its metadata. Source of the numbers: `ObjectMeta`
/// field 6.
pub(super) fn with_version(object: &[u8], version: &str) -> Result<Vec<u8>, Malformed> {
    let [before, metadata, after] = split_metadata(object)?;
    let [head, _, tail] =
        split_at_field(metadata, 6).map_err(|_| Malformed("object without a resourceVersion"))?;
    let metadata_len = head.len() + bytes_field_len(version.len()) + tail.len();
    let mut out = Vec::with_capacity(before.len() + bytes_field_len(metadata_len) + after.len());
    out.extend_from_slice(before);
    put_header(&mut out, 1, metadata_len);
    out.extend_from_slice(head);
    put_bytes(&mut out, 6, version.as_bytes());
    out.extend_from_slice(tail);
    out.extend_from_slice(after);
    Ok(out)
}

/// Cuts a message around the one occurrence of a length-delimited field.
pub(super) fn split_at_field(message: &[u8], wanted: u32) -> Result<[&[u8]; 3], Malformed> {
    let mut parts = None;
    let mut fields = FieldReader::new(message);
    loop {
        let start = fields.position();
        let Some((number, value)) = fields.next()? else {
            break;
        };
        if number == wanted {
            let content = value.bytes()?;
            // Two occurrences would merge into one message; nobody writes that.
            if parts
                .replace([&message[..start], content, &message[fields.position()..]])
                .is_some()
            {
                return Err(REPEATED_FIELD);
            }
        }
    }
    parts.ok_or(REPEATED_FIELD)
}
