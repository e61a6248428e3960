//! Reads members of JSON objects, borrowed from the text.
//!
//! The later of two members with the same name counts.
use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::nullable_text::NullableText;

/// All members of a JSON object.
#[derive(Debug)]
pub(super) struct ObjectMembers<'a>(Vec<(Cow<'a, str>, &'a RawValue)>);

impl<'a> ObjectMembers<'a> {
    /// Returns the member of this name.
    pub(super) fn get(&self, name: &str) -> Option<&'a RawValue> {
        self.named(name).last()
    }

    /// Returns the member of this name if no other one has that name.
    pub(super) fn only(&self, name: &str) -> Option<&'a RawValue> {
        let mut values = self.named(name);
        let first = values.next()?;
        values.next().is_none().then_some(first)
    }

    fn named(&self, name: &str) -> impl Iterator<Item = &'a RawValue> {
        let members = self.0.iter().filter(move |(key, _)| key == name);
        members.map(|(_, value)| *value)
    }
}

impl<'de> Deserialize<'de> for ObjectMembers<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(AllMembers)
    }
}

/// Returns a member of an object; `None` of any other value.
pub(super) fn member<'a>(value: &'a RawValue, name: &str) -> Option<&'a RawValue> {
    let mut text = serde_json::Deserializer::from_str(value.get());
    text.deserialize_map(OneMember(name)).ok().flatten()
}

/// Keeps all members of an object.
struct AllMembers;

/// Keeps the member of this name, and passes over the others.
struct OneMember<'n>(&'n str);

/// Returns `true` if a key is this name.
struct KeyIs<'n>(&'n str);

impl<'de> Visitor<'de> for AllMembers {
    type Value = ObjectMembers<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut members = Vec::new();
        while let Some(key) = map.next_key_seed(NullableText)? {
            members.push((key, map.next_value()?));
        }
        Ok(ObjectMembers(members))
    }
}

impl<'de> Visitor<'de> for OneMember<'_> {
    type Value = Option<&'de RawValue>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut found = None;
        while let Some(is_wanted) = map.next_key_seed(KeyIs(self.0))? {
            if is_wanted {
                found = Some(map.next_value()?);
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(found)
    }
}

impl<'de> DeserializeSeed<'de> for KeyIs<'_> {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<bool, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for KeyIs<'_> {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E: Error>(self, key: &str) -> Result<bool, E> {
        Ok(key == self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OBJECT: &str = r#"{"a":1,"b":{"a":2},"\u0063":[3],"a":{"a":4},"\"":null}"#;

    fn found(name: &str) -> [Option<&'static str>; 2] {
        let members: ObjectMembers<'static> = serde_json::from_str(OBJECT).unwrap();
        let object: &'static RawValue = serde_json::from_str(OBJECT).unwrap();
        [members.get(name), member(object, name)].map(|value| value.map(RawValue::get))
    }

    #[test]
    fn members_are_found_by_their_names() {
        for (name, expected) in [
            ("b", Some(r#"{"a":2}"#)),
            ("c", Some("[3]")),
            ("\"", Some("null")),
            (r"\u0063", None),
            ("d", None),
            ("", None),
        ] {
            assert_eq!(found(name), [expected; 2], "{name}");
        }
    }

    #[test]
    fn the_later_of_two_members_counts() {
        assert_eq!(found("a"), [Some(r#"{"a":4}"#); 2]);
        let members: ObjectMembers<'_> = serde_json::from_str(OBJECT).unwrap();
        assert!(members.only("a").is_none());
        assert!(members.only("b").is_some());
        assert!(members.only("d").is_none());
    }

    #[test]
    fn other_values_have_no_members() {
        for text in [
            "null",
            "[]",
            r#"["a"]"#,
            r#""a""#,
            "1",
            r#"{"\ud800":1,"a":2}"#,
        ] {
            let value: &RawValue = serde_json::from_str(text).unwrap();
            assert!(member(value, "a").is_none(), "{text}");
            assert!(
                serde_json::from_str::<ObjectMembers<'_>>(text).is_err(),
                "{text}"
            );
        }
    }
}
