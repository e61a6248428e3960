//! The metadata in a row.
//!
//! Upstream takes it from its internal object. Of some types that one has in fields what is an
//! annotation elsewhere.
//! Source: `kubernetes/pkg/apis/apps/v1/conversion.go`.
use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::encoding::Malformed;

/// The difference between an object's metadata and those in its row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RowMetadata {
    /// There is none.
    AsIs,
    /// This annotation is missing in the row.
    Without(&'static str),
    /// Objects with this annotation are not printed here.
    Unless(&'static str),
}

impl RowMetadata {
    /// Returns the row's metadata; `metadata` is the object's, as upstream prints the struct.
    pub(super) fn apply(self, metadata: &str) -> Result<Cow<'_, str>, Malformed> {
        let name = match self {
            Self::AsIs => return Ok(metadata.into()),
            Self::Without(name) | Self::Unless(name) => name,
        };
        let Some(span) = Annotation::find(metadata, name)? else {
            return Ok(metadata.into());
        };
        if matches!(self, Self::Unless(_)) {
            return Err(Malformed("an annotation that is a field of its own"));
        }
        Ok(span.removed_from(metadata)?.into())
    }
}

/// The place of an annotation in the text of metadata.
struct Annotation<'a> {
    /// The text of all annotations.
    all: &'a str,
    /// The member, without a separator.
    member: String,
}

impl<'a> Annotation<'a> {
    fn find(metadata: &'a str, name: &str) -> Result<Option<Self>, Malformed> {
        #[derive(Deserialize)]
        struct Annotated<'a> {
            #[serde(borrow)]
            annotations: Option<&'a RawValue>,
        }
        let malformed = |_| Malformed("metadata that can't be read");
        let annotated: Annotated<'_> = serde_json::from_str(metadata).map_err(malformed)?;
        let Some(all) = annotated.annotations else {
            return Ok(None);
        };
        let values: std::collections::BTreeMap<String, &RawValue> =
            serde_json::from_str(all.get()).map_err(malformed)?;
        Ok(values.get(name).map(|value| Self {
            all: all.get(),
            member: format!(r#""{name}":{}"#, value.get()),
        }))
    }

    fn removed_from(&self, metadata: &str) -> Result<String, Malformed> {
        let whole = format!(r#","annotations":{}"#, self.all);
        let (before, after) = metadata
            .split_once(&whole)
            .ok_or(Malformed("annotations at an odd place"))?;
        if self.all == format!("{{{}}}", self.member) {
            return Ok(format!("{before}{after}"));
        }
        let others = self.others()?;
        Ok(format!(r#"{before},"annotations":{others}{after}"#))
    }

    /// Returns the text of the other annotations.
    fn others(&self) -> Result<String, Malformed> {
        let first = format!("{{{},", self.member);
        let later = format!(",{}", self.member);
        let others = if self.all.starts_with(&first) {
            self.all.replacen(&first, "{", 1)
        } else {
            self.all.replacen(&later, "", 1)
        };
        if others.len() + later.len() == self.all.len() {
            Ok(others)
        } else {
            Err(Malformed("an annotation in another style"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_annotation_is_taken_out_wherever_it_is() {
        let row = RowMetadata::Without("b");
        for (annotations, expected) in [
            (r#"{"b":"1"}"#, ""),
            (r#"{"b":"1","c":"2"}"#, r#","annotations":{"c":"2"}"#),
            (r#"{"a":"0","b":"1"}"#, r#","annotations":{"a":"0"}"#),
            (
                r#"{"a":",\"b\":\"1\"","b":"1","c":"2"}"#,
                r#","annotations":{"a":",\"b\":\"1\"","c":"2"}"#,
            ),
            (r#"{"a":"0"}"#, r#","annotations":{"a":"0"}"#),
        ] {
            let metadata = format!(r#"{{"name":"x","annotations":{annotations},"z":1}}"#);
            assert_eq!(
                row.apply(&metadata).unwrap(),
                format!(r#"{{"name":"x"{expected},"z":1}}"#)
            );
        }
        assert_eq!(row.apply(r#"{"name":"x"}"#).unwrap(), r#"{"name":"x"}"#);
    }

    #[test]
    fn objects_with_an_annotation_that_is_a_field_are_not_printed() {
        let row = RowMetadata::Unless("b");
        assert!(row.apply(r#"{"annotations":{"a":"1"}}"#).is_ok());
        assert!(row.apply(r#"{"annotations":{"b":"1"}}"#).is_err());
    }
}
