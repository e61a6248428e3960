//! Objects and lists in JSON and protobuf: what upstream sends.
use std::fs;
use std::path::PathBuf;

use bytes::{Bytes, BytesMut};
use watershed_protocol::{
    BookmarkFormat, Encoding, FieldTable, GroupVersionResource, ListMetadata, ListPage,
    ManagedFields, PartialFormat, WireFormat, indent, read_bookmark, read_error, read_identity,
    scan,
};

use crate::FuzzTarget;

/// Recorded answers of kube-apiserver in one encoding.
pub(crate) fn recorded(encoding: Encoding, names: &[&str]) -> Vec<Vec<u8>> {
    let folder =
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../protocol/src/encoding/testdata");
    let extension = match encoding {
        Encoding::Json => "json",
        Encoding::Protobuf => "pb",
    };
    let mut found = Vec::new();
    for directory in [
        "pods",
        "events",
        "partial",
        "foos",
        "nodes",
        "configmaps",
        "managed/pods",
    ] {
        for name in names {
            let path = folder.join(directory).join(format!("{name}.{extension}"));
            found.extend(fs::read(path));
        }
    }
    assert!(found.len() >= 3, "{found:?}");
    found
}

const WORDS: &[&str] = &[
    "\"metadata\":{",
    "\"name\":\"",
    "\"resourceVersion\":\"",
    "\"items\":[",
    "null",
    "{}",
    "[]",
    "\\u0000",
    "\\ud800",
    "\"continue\":\"",
    "1e999",
    "-0",
    "k8s\0",
    "\n\x0b",
    "\x12\x00",
    "\u{80}",
];

pub(crate) fn objects_in_json() -> FuzzTarget {
    objects(Encoding::Json)
}

pub(crate) fn objects_in_protobuf() -> FuzzTarget {
    objects(Encoding::Protobuf)
}

fn objects(encoding: Encoding) -> FuzzTarget {
    let pods = GroupVersionResource::new("", "v1", "pods");
    let fields = FieldTable::builtin(&pods, true).unwrap();
    let list = recorded(encoding, &["list"]).swap_remove(0);
    let (format, _) = WireFormat::learn(encoding, "Pod", &list.into()).unwrap();
    let partial = PartialFormat::of(&format, encoding).unwrap();
    let dropping = format.clone().with_managed_fields(ManagedFields::Drop);
    let corpus = recorded(encoding, &["get", "list"]);
    FuzzTarget::new(corpus, WORDS, move |input| {
        let object = Bytes::copy_from_slice(input);
        let scanned = scan(encoding, &object, &fields);
        if let (Ok(scanned), Encoding::Json) = (&scanned, encoding)
            && let Ok(value) = serde_json::from_slice::<serde_json::Value>(&object)
            && let Some(name) = value["metadata"]["name"].as_str()
        {
            assert_eq!(
                scanned.attributes.name(),
                name,
                "another reader finds another name"
            );
        }
        let _ = read_error(encoding, &object);
        let bookmark = read_bookmark(encoding, &object).is_ok();
        let learned = BookmarkFormat::learn(&format, &object).is_ok();
        let mut reduced = None;
        if format.check(&object).is_ok() {
            if let Ok(held) = dropping.held(&object) {
                lacks_nothing_else(encoding, &object, &held);
            }
            let item = format.item_bytes(&object);
            let _ = read_identity(encoding, &item);
            reduced = partial.metadata(&item).ok().map(|metadata| {
                let whole = partial.object(&metadata);
                scan(encoding, &whole, &FieldTable::metadata_only(true)).is_ok()
            });
        }
        let key = scanned.as_ref().map(|it| it.attributes.key().len());
        (format!("{key:?}"), bookmark, learned, reduced)
    })
}

/// Checks that an object in JSON lacks managed fields, and nothing else that another reader finds.
fn lacks_nothing_else(encoding: Encoding, object: &[u8], held: &[u8]) {
    /// Refuses two members of this name, of which the readers take different ones.
    #[derive(serde::Deserialize)]
    struct OneMetadata {
        #[serde(rename = "metadata")]
        _metadata: serde::de::IgnoredAny,
    }
    let read = |text: &[u8]| serde_json::from_slice::<serde_json::Value>(text).ok();
    let is_plain = serde_json::from_slice::<OneMetadata>(object).is_ok();
    let (Encoding::Json, true, Some(mut object)) = (encoding, is_plain, read(object)) else {
        return;
    };
    if let Some(metadata) = object["metadata"].as_object_mut()
        && !metadata
            .get("managedFields")
            .is_some_and(serde_json::Value::is_null)
    {
        metadata.remove("managedFields");
    }
    assert_eq!(read(held), Some(object));
}

pub(crate) fn lists_in_json() -> FuzzTarget {
    lists(Encoding::Json)
}

pub(crate) fn lists_in_protobuf() -> FuzzTarget {
    lists(Encoding::Protobuf)
}

fn lists(encoding: Encoding) -> FuzzTarget {
    let corpus = recorded(encoding, &["list", "empty", "paged"]);
    FuzzTarget::new(corpus, WORDS, move |input| {
        let body = Bytes::copy_from_slice(input);
        ["Pod", "PartialObjectMetadata", "Foo"].map(|kind| {
            let (format, page) = WireFormat::learn(encoding, kind, &body).ok()?;
            // What is accepted can be written again.
            assert_eq!(written(&format, &page), body);
            assert_eq!(format.read_list(&body).as_ref(), Ok(&page));
            Some((
                page.objects.len(),
                page.continue_token.is_some(),
                page.remaining.is_some(),
            ))
        })
    })
}

fn written(format: &WireFormat, page: &ListPage) -> Bytes {
    let mut items = BytesMut::new();
    for object in &page.objects {
        format.put_item(&format.item_bytes(object), &mut items);
    }
    items.truncate(items.len().saturating_sub(format.separator()));
    let metadata = ListMetadata {
        continue_token: page.continue_token.as_deref(),
        remaining: page.remaining,
        ..ListMetadata::of(page.version)
    };
    let parts = format.list_parts(&metadata, page.objects.len(), items.len() as u64);
    [&parts.head[..], &items, &parts.tail].concat().into()
}

pub(crate) fn indented_json() -> FuzzTarget {
    let corpus = recorded(Encoding::Json, &["get", "list"]);
    FuzzTarget::new(corpus, WORDS, |input| {
        let indented = indent(input).ok();
        if let (Some(indented), Ok(value)) = (
            &indented,
            serde_json::from_slice::<serde_json::Value>(input),
        ) {
            assert_eq!(
                serde_json::from_slice::<serde_json::Value>(indented).unwrap(),
                value
            );
        }
        indented.map(|text| text.split(|byte| *byte == b'\n').count())
    })
}
