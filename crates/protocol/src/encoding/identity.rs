//! An object's identity: its uid, and the mark of its deletion.
use std::borrow::Cow;

use serde::Deserialize;

use super::item_bytes::ItemBytes;
use super::malformed::Malformed;
use super::protobuf::{self, FieldReader};
use crate::Encoding;

/// Distinguishes an object from others that had its name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObjectIdentity {
    /// `metadata.uid`; may be empty.
    pub uid: String,
    /// `metadata.deletionTimestamp` is set.
    pub is_being_deleted: bool,
}

/// Reads the identity of a held object.
pub fn read_identity(encoding: Encoding, object: &ItemBytes) -> Result<ObjectIdentity, Malformed> {
    read(encoding, &object.text())
}

fn read(encoding: Encoding, object: &[u8]) -> Result<ObjectIdentity, Malformed> {
    match encoding {
        Encoding::Json => read_json(object),
        Encoding::Protobuf => read_protobuf(object),
    }
}

fn read_json(object: &[u8]) -> Result<ObjectIdentity, Malformed> {
    #[derive(Deserialize)]
    struct Object<'a> {
        #[serde(borrow)]
        metadata: Metadata<'a>,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Metadata<'a> {
        #[serde(borrow, default)]
        uid: Cow<'a, str>,
        #[serde(borrow)]
        deletion_timestamp: Option<Cow<'a, str>>,
    }
    let object: Object<'_> =
        serde_json::from_slice(object).map_err(|_| Malformed("metadata that can't be read"))?;
    let Metadata {
        uid,
        deletion_timestamp,
    } = object.metadata;
    Ok(ObjectIdentity {
        uid: uid.into_owned(),
        is_being_deleted: deletion_timestamp.is_some(),
    })
}

fn read_protobuf(object: &[u8]) -> Result<ObjectIdentity, Malformed> {
    let [_, metadata, _] = protobuf::split_metadata(object)?;
    let mut identity = ObjectIdentity::default();
    let mut fields = FieldReader::new(metadata);
    while let Some((number, value)) = fields.next()? {
        match number {
            5 => value.text()?.clone_into(&mut identity.uid),
            9 => identity.is_being_deleted = true,
            _ => {}
        }
    }
    Ok(identity)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identities_are_read_from_both_encodings() {
        let identity = |uid: &str, is_being_deleted| ObjectIdentity {
            uid: uid.to_owned(),
            is_being_deleted,
        };
        let json = concat!(
            r#"{"kind":"Pod","metadata":{"name":"a","uid":"u-1","#,
            r#""deletionTimestamp":"2026-01-01T00:00:00Z"}}"#,
        )
        .as_bytes();
        assert_eq!(read(Encoding::Json, json).unwrap(), identity("u-1", true));
        assert_eq!(
            read(Encoding::Json, br#"{"metadata":{"uid":"u"}}"#).unwrap(),
            identity("u", false)
        );
        // Field 1 is the metadata: uid is its field 5, deletionTimestamp its field 9.
        let mut message = vec![0x0a, 5, 0x2a, 3, b'u', b'-', b'1'];
        assert_eq!(
            read(Encoding::Protobuf, &message).unwrap(),
            identity("u-1", false)
        );
        message.splice(1..2, [9]);
        message.extend([0x4a, 2, 8, 1]);
        assert_eq!(
            read(Encoding::Protobuf, &message).unwrap(),
            identity("u-1", true)
        );
        for garbage in [&b"{}"[..], b"", b"\xff\xff", b"{\"metadata\":3}"] {
            assert!(read(Encoding::Json, garbage).is_err(), "{garbage:?}");
        }
    }
}
