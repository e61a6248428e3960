//! Objects without managed fields are those that upstream prints if they have none.
use super::*;

/// Folder, kind and encodings of objects with managed fields and without.
const TYPES: &[(&str, &str, &[Encoding])] = &[
    ("pods", "Pod", &[Encoding::Json, Encoding::Protobuf]),
    (
        "partial",
        "PartialObjectMetadata",
        &[Encoding::Json, Encoding::Protobuf],
    ),
    ("foos", "Foo", &[Encoding::Json]),
];

/// Calls `check` with each type's format and a reader of its files, by folder and name.
fn each_type(check: impl Fn(WireFormat, &dyn Fn(&str, &str) -> Bytes)) {
    for (directory, kind, encodings) in TYPES {
        for &encoding in *encodings {
            let extension = match encoding {
                Encoding::Json => "json",
                Encoding::Protobuf => "pb",
            };
            let file = |folder: &str, name: &str| -> Bytes {
                let path = format!("{folder}/{directory}/{name}.{extension}");
                let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
                let read = std::fs::read(root.join("src/encoding/testdata").join(&path));
                read.unwrap_or_else(|error| panic!("{path}: {error}"))
                    .into()
            };
            let learned = WireFormat::learn(encoding, kind, &file("managed", "list"));
            check(learned.unwrap().0, &file);
        }
    }
}

#[test]
fn lists_and_events_are_upstreams_without_the_member() {
    each_type(|kept, file| {
        let dropped = kept.clone().with_managed_fields(ManagedFields::Drop);
        let (list, expected) = (file("managed", "list"), file("unmanaged", "list"));
        assert_ne!(list, expected);
        assert_eq!(kept.held_list(&list), Ok(list.clone()));
        assert_eq!(dropped.held_list(&list), Ok(expected.clone()));
        assert_eq!(dropped.held_list(&expected), Ok(expected.clone()));
        assert_eq!(dropped.read_list(&list), kept.read_list(&expected));
        let watch = |folder| decode(kept.encoding(), [file(folder, "watch")]).unwrap();
        let (with, without) = (watch("managed"), watch("unmanaged"));
        assert_ne!(with, without);
        for (with, without) in with.into_iter().zip(without) {
            assert_eq!(kept.held_frame(with.clone()), Ok(with.clone()));
            assert_eq!(dropped.held_frame(without.clone()), Ok(without.clone()));
            assert_eq!(dropped.held_frame(with), Ok(without));
        }
    });
}

#[test]
fn an_object_without_the_member_shares_its_bytes() {
    each_type(|format, file| {
        let format = format.with_managed_fields(ManagedFields::Drop);
        let page = format.read_list(&file("unmanaged", "list")).unwrap();
        for object in page.objects {
            let held = format.held(&object).unwrap();
            assert_eq!(held.as_ptr(), object.as_ptr());
        }
    });
}

#[test]
fn a_record_says_what_is_held() {
    each_type(|kept, _| {
        let record = serde_json::to_string(&kept.record()).unwrap();
        assert!(!record.contains("managedFields"), "{record}");
        let dropped = kept.with_managed_fields(ManagedFields::Drop);
        let record = serde_json::to_string(&dropped.record()).unwrap();
        let read: FormatRecord = serde_json::from_str(&record).unwrap();
        assert_eq!(WireFormat::of_record(&read), Ok(dropped));
    });
}

#[test]
fn another_spelling_of_the_member_is_refused() {
    let list = concat!(
        r#"{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"7"},"items":[]}"#,
        "\n"
    );
    let (format, _) = WireFormat::learn(Encoding::Json, "Pod", &list.into()).unwrap();
    let format = format.with_managed_fields(ManagedFields::Drop);
    let held = |metadata: &str| {
        let object = format!(r#"{{"kind":"Pod","apiVersion":"v1","metadata":{metadata}}}"#);
        format.held(&object.into())
    };
    assert!(held(r#"{"managedFields":[{}],"name":"n"}"#).is_ok());
    assert!(held(r#"{"managedFields":[{}]}"#).is_ok());
    for metadata in [
        r#"{"name":"n","managedFields": [{}]}"#,
        r#"{"name":"n", "managedFields" :[{}]}"#,
        r#"{"name":"n","managed\u0046ields":[{}]}"#,
        r#"{"managedFields":[{}],"managedFields":[{}]}"#,
        r#"{ "managedFields":[{}]}"#,
        r#"{"managedFields":[{}] }"#,
        r#"{"managedFields":[{}"#,
        "[]",
        "",
    ] {
        assert!(held(metadata).is_err(), "{metadata}");
    }
}
