//! Wire formats as records that can be stored.
use serde::{Deserialize, Serialize};

use super::malformed::Malformed;
use super::managed_fields::ManagedFields;
use super::wire_format::{PrintStyle, WireFormat};

/// A [`WireFormat`] in a form that can be stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FormatRecord {
    kind: String,
    api_version: String,
    list_kind: String,
    style: StyleRecord,
    /// Absent in records of formats that keep them, as in those of earlier versions.
    #[serde(default, skip_serializing_if = "ManagedFields::are_kept")]
    managed_fields: ManagedFields,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
enum StyleRecord {
    Struct { bare_items: bool, null_items: bool },
    Sorted,
    Message,
}

impl WireFormat {
    /// Returns the format as a record.
    pub fn record(&self) -> FormatRecord {
        FormatRecord {
            kind: self.kind().to_owned(),
            api_version: self.api_version().to_owned(),
            list_kind: self.list_kind.to_string(),
            style: match self.style {
                PrintStyle::Struct {
                    bare_items,
                    null_items,
                } => StyleRecord::Struct {
                    bare_items,
                    null_items,
                },
                PrintStyle::Sorted => StyleRecord::Sorted,
                PrintStyle::Message => StyleRecord::Message,
            },
            managed_fields: self.managed_fields(),
        }
    }

    /// Returns the format of a record. Refuses names that upstream would not print as they are.
    pub fn of_record(record: &FormatRecord) -> Result<Self, Malformed> {
        let style = match record.style {
            StyleRecord::Struct {
                bare_items,
                null_items,
            } => PrintStyle::Struct {
                bare_items,
                null_items,
            },
            StyleRecord::Sorted => PrintStyle::Sorted,
            StyleRecord::Message => PrintStyle::Message,
        };
        let format = Self::new(&record.kind, &record.api_version, &record.list_kind, style)?;
        Ok(format.with_managed_fields(record.managed_fields))
    }

    /// Returns `true` if the objects are custom resources, whose definition decides about their
    /// form.
    pub fn is_custom(&self) -> bool {
        self.style == PrintStyle::Sorted
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::Encoding;

    #[test]
    fn a_record_is_its_format() {
        let pods = concat!(
            r#"{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"7"},"#,
            r#""items":[]}"#,
        );
        let widgets = concat!(
            r#"{"apiVersion":"a.b/v1","items":[],"kind":"WidgetList","#,
            r#""metadata":{"continue":"","resourceVersion":"7"}}"#,
        );
        for (kind, list) in [("Pod", pods), ("Widget", widgets)] {
            let list = Bytes::from(format!("{list}\n"));
            let (format, _) = WireFormat::learn(Encoding::Json, kind, &list).unwrap();
            assert_eq!(format.is_custom(), kind == "Widget");
            let text = serde_json::to_string(&format.record()).unwrap();
            let record: FormatRecord = serde_json::from_str(&text).unwrap();
            assert_eq!(WireFormat::of_record(&record), Ok(format));
            let odd = text.replace(kind, r#"a\"b"#);
            let odd: FormatRecord = serde_json::from_str(&odd).unwrap();
            assert!(WireFormat::of_record(&odd).is_err());
        }
    }
}
