//! Reads the members of interest of JSON objects, borrowed from the text.
use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::error_status::ErrorStatus;
use super::malformed::{Malformed, offset_in};
use super::scanned::ScanValues;
use crate::fields::{PathStep, StepTarget};
use crate::nullable_text::NullableText;

/// Fills `found` from an object's text, which must be one JSON value and nothing else.
pub(super) fn scan<'a>(
    object: &'a [u8],
    steps: &[PathStep],
    found: &mut ScanValues<'a>,
) -> Result<(), Malformed> {
    let mut text = serde_json::Deserializer::from_slice(object);
    ObjectVisitor { steps, found }
        .deserialize(&mut text)
        .and_then(|()| text.end())
        .map_err(|_| Malformed("object is not JSON of the expected shape"))
}

/// Reads a Status.
pub(super) fn read_error(object: &[u8]) -> Option<ErrorStatus> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Status {
        code: Option<i64>,
        reason: Option<String>,
        message: Option<String>,
    }
    let status: Status = serde_json::from_slice(object).ok()?;
    Some(ErrorStatus {
        code: status.code.unwrap_or_default(),
        reason: status.reason.unwrap_or_default(),
        message: status.message.unwrap_or_default(),
    })
}

/// Returns the range of the value of an object's `metadata`.
pub(super) fn metadata_span(object: &[u8]) -> Result<Range<usize>, Malformed> {
    #[derive(Deserialize)]
    struct Outer<'a> {
        #[serde(borrow)]
        metadata: &'a RawValue,
    }
    let outer: Outer<'_> =
        serde_json::from_slice(object).map_err(|_| Malformed("object without metadata"))?;
    Ok(span(object, outer.metadata))
}

/// Returns the range of the value of `metadata` in the bytes held of an object.
///
/// They are its whole text, or the text after kind and apiVersion. In a struct, metadata comes
/// next, and the rest is not read.
pub(super) fn item_metadata_span(item: &[u8]) -> Result<Range<usize>, Malformed> {
    const FIRST: &[u8] = br#""metadata":"#;
    if !item.starts_with(b"\"") {
        return metadata_span(item);
    }
    if let Some(rest) = item.strip_prefix(FIRST) {
        let mut values = serde_json::Deserializer::from_slice(rest).into_iter::<&RawValue>();
        if let Some(Ok(metadata)) = values.next() {
            return Ok(span(item, metadata));
        }
    }
    let text = [b"{", item].concat();
    let Range { start, end } = metadata_span(&text)?;
    Ok(start - 1..end - 1)
}

/// Returns the range of the digits of an object's `metadata.resourceVersion`, without the quotes.
pub(super) fn version_span(object: &[u8]) -> Result<Range<usize>, Malformed> {
    #[derive(Deserialize)]
    struct Metadata<'a> {
        #[serde(borrow, rename = "resourceVersion")]
        version: &'a RawValue,
    }
    const ABSENT: Malformed = Malformed("object without a resourceVersion");
    let metadata = metadata_span(object)?;
    let inner: Metadata<'_> = serde_json::from_slice(&object[metadata]).map_err(|_| ABSENT)?;
    let Range { start, end } = span(object, inner.version);
    let digits = object[start..end]
        .strip_prefix(b"\"")
        .and_then(|rest| rest.strip_suffix(b"\""));
    match digits {
        Some(digits) if !digits.is_empty() && digits.iter().all(u8::is_ascii_digit) => {
            Ok(start + 1..end - 1)
        }
        _ => Err(ABSENT),
    }
}

/// Returns the range in `outer` of a value that was parsed from it.
pub(super) fn span(outer: &[u8], value: &RawValue) -> Range<usize> {
    let start = offset_in(outer, value.get().as_bytes());
    start..start + value.get().len()
}

/// Cuts a text around a member of an object in it. `name` is the member's name with its quotes and colon,
/// and `value` the place of its value. One of the commas goes with it. `None` if it is in another style.
pub(super) fn around_member<'a>(
    text: &'a [u8],
    name: &[u8],
    value: Range<usize>,
) -> Option<(&'a [u8], &'a [u8])> {
    let (before, after) = (&text[..value.start], &text[value.end..]);
    match (before.strip_suffix(name)?, after) {
        ([before @ .., b','], [b',' | b'}', ..]) | (before @ [.., b'{'], [b'}', ..]) => {
            Some((before, after))
        }
        (before @ [.., b'{'], [b',', after @ ..]) => Some((before, after)),
        _ => None,
    }
}

/// The object itself.
struct ObjectVisitor<'f, 'a> {
    steps: &'f [PathStep],
    found: &'f mut ScanValues<'a>,
}

/// The object's `metadata`.
struct MetadataVisitor<'f, 'a>(&'f mut ScanValues<'a>);

/// A map of strings.
struct LabelsVisitor<'f, 'a>(&'f mut Vec<(Cow<'a, str>, Cow<'a, str>)>);

/// A member on the way to a field value.
struct MemberVisitor<'f, 'a> {
    next: &'f StepTarget,
    /// Only the first element of a list counts.
    first: bool,
    places: &'f mut Vec<Option<Cow<'a, str>>>,
}

impl<'de> DeserializeSeed<'de> for ObjectVisitor<'_, 'de> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for ObjectVisitor<'_, 'de> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key_seed(NullableText)? {
            if key == "metadata" {
                map.next_value_seed(MetadataVisitor(self.found))?;
            } else {
                visit_member(&mut map, &key, self.steps, &mut self.found.places)?;
            }
        }
        Ok(())
    }
}

/// Goes into the member if a step leads there, otherwise passes over it.
fn visit_member<'de, A: MapAccess<'de>>(
    map: &mut A,
    key: &str,
    steps: &[PathStep],
    places: &mut Vec<Option<Cow<'de, str>>>,
) -> Result<(), A::Error> {
    match steps.iter().find(|step| &*step.key == key) {
        Some(step) => map.next_value_seed(MemberVisitor {
            next: &step.next,
            first: step.first,
            places,
        }),
        None => map.next_value::<IgnoredAny>().map(drop),
    }
}

impl<'de> DeserializeSeed<'de> for MetadataVisitor<'_, 'de> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for MetadataVisitor<'_, 'de> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("object metadata")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let found = self.0;
        while let Some(key) = map.next_key_seed(NullableText)? {
            match &*key {
                "name" => found.name = map.next_value_seed(NullableText)?,
                "namespace" => found.namespace = map.next_value_seed(NullableText)?,
                "uid" => found.uid = map.next_value_seed(NullableText)?,
                "resourceVersion" => found.version = map.next_value_seed(NullableText)?,
                "labels" => {
                    found.labels.clear();
                    map.next_value_seed(LabelsVisitor(&mut found.labels))?;
                }
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for LabelsVisitor<'_, 'de> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for LabelsVisitor<'_, 'de> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("labels")
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key_seed(NullableText)? {
            self.0.push((key, map.next_value_seed(NullableText)?));
        }
        Ok(())
    }
}

impl<'a> MemberVisitor<'_, 'a> {
    fn put(self, value: impl Into<Cow<'a, str>>) {
        if let (StepTarget::Place(place, _), false) = (self.next, self.first) {
            self.places[*place] = Some(value.into());
        }
    }

    /// Refuses a value of a selectable field that is no string, boolean or integer. A schema allows no
    /// other, but an object may be older than it, and Go selects by what it prints of such a value.
    fn refuse<E: Error>(&self) -> Result<(), E> {
        match (self.next, self.first) {
            (StepTarget::Place(..), false) => Err(E::custom(
                "a selectable field of a type that no schema allows",
            )),
            _ => Ok(()),
        }
    }
}

impl<'de> DeserializeSeed<'de> for MemberVisitor<'_, 'de> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for MemberVisitor<'_, 'de> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        self.refuse()?;
        let steps = match self.next {
            StepTarget::Members(steps) if !self.first => steps.as_slice(),
            _ => &[],
        };
        while let Some(key) = map.next_key_seed(NullableText)? {
            visit_member(&mut map, &key, steps, self.places)?;
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        self.refuse()?;
        if self.first {
            let element = MemberVisitor {
                next: self.next,
                first: false,
                places: self.places,
            };
            if list.next_element_seed(element)?.is_none() {
                return Ok(());
            }
        }
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(())
    }

    fn visit_borrowed_str<E: Error>(self, value: &'de str) -> Result<(), E> {
        self.put(value);
        Ok(())
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<(), E> {
        self.put(value.to_owned());
        Ok(())
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<(), E> {
        self.put(if value { "true" } else { "false" });
        Ok(())
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<(), E> {
        self.put(value.to_string());
        Ok(())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<(), E> {
        self.put(value.to_string());
        Ok(())
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<(), E> {
        self.refuse()
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        Ok(())
    }
}
