//! Bookmarks have the form of upstream's own.
use super::*;

#[test]
fn bookmarks_are_derived_from_either_kind() {
    for case in Case::all() {
        let (format, _) = case.learn();
        let marks: Vec<Frame> = case
            .frames()
            .into_iter()
            .filter(|f| f.kind == EventKind::Bookmark)
            .collect();
        let [plain, end] = &marks[..] else {
            panic!("two bookmarks")
        };
        let read = |frame: &Frame| read_bookmark(case.encoding, &frame.object);
        assert_eq!(
            read(plain),
            Ok(Bookmark {
                version: ResourceVersion(225),
                initial_events_end: false
            })
        );
        assert_eq!(
            read(end),
            Ok(Bookmark {
                version: ResourceVersion(1225),
                initial_events_end: true
            })
        );
        for from in [plain, end] {
            let bookmarks = BookmarkFormat::learn(&format, &from.object).unwrap();
            assert_eq!(
                bookmarks.plain(ResourceVersion(225)),
                plain.frame,
                "{}",
                case.directory
            );
            let mark = bookmarks.initial_events_end(ResourceVersion(1225));
            assert_eq!(mark.as_ref(), Some(&end.frame), "{}", case.directory);
        }
        for object in case.objects() {
            assert!(
                BookmarkFormat::learn(&format, &object).is_err(),
                "an object is no bookmark"
            );
        }
    }
}

#[test]
fn bookmarks_of_older_servers() {
    let (format, _) = Case::find("pods", Encoding::Json).learn();
    let rest = r#""spec":{"containers":null},"status":{}"#;
    let line = |metadata: &str| {
        format!(
            "{{\"type\":\"BOOKMARK\",\"object\":{{\"kind\":\"Pod\",\"apiVersion\":\"v1\",\
             \"metadata\":{{{metadata}}},{rest}}}}}\n"
        )
    };
    let plain = line(r#""resourceVersion":"9","creationTimestamp":null"#);
    let end = line(concat!(
        r#""resourceVersion":"9","creationTimestamp":null,"#,
        r#""annotations":{"k8s.io/initial-events-end":"true"}"#,
    ));
    for from in [&plain, &end] {
        let frames = decode(Encoding::Json, [Bytes::from(from.clone())]).unwrap();
        let bookmarks = BookmarkFormat::learn(&format, &frames[0].object).unwrap();
        assert_eq!(bookmarks.plain(ResourceVersion(9)), plain);
        assert_eq!(
            bookmarks.initial_events_end(ResourceVersion(9)).unwrap(),
            end
        );
    }
    for odd in [
        r#"{"other":"x"}"#,
        r#"{"deprecated.daemonset.template.generation":"\""}"#,
    ] {
        let odd = line(&format!(r#""resourceVersion":"9","annotations":{odd}"#));
        let frames = decode(Encoding::Json, [Bytes::from(odd)]).unwrap();
        assert!(BookmarkFormat::learn(&format, &frames[0].object).is_err());
    }
}

/// Upstream adds an annotation to each DaemonSet that it converts, its bookmarks included.
#[test]
fn bookmarks_keep_the_annotations_that_all_objects_of_the_type_have() {
    let (format, _) = Case::find("pods", Encoding::Json).learn();
    let line = |mark: &str| {
        format!(
            "{{\"type\":\"BOOKMARK\",\"object\":{{\"kind\":\"Pod\",\"apiVersion\":\"v1\",\
             \"metadata\":{{\"resourceVersion\":\"9\",\"annotations\":{{\
             \"deprecated.daemonset.template.generation\":\"0\"{mark}}}}},\"spec\":{{}}}}}}\n"
        )
    };
    let (plain, end) = (line(""), line(r#","k8s.io/initial-events-end":"true""#));
    for from in [&plain, &end] {
        let frames = decode(Encoding::Json, [Bytes::from(from.clone())]).unwrap();
        let bookmarks = BookmarkFormat::learn(&format, &frames[0].object).unwrap();
        assert_eq!(bookmarks.plain(ResourceVersion(9)), plain);
        let marked = bookmarks.initial_events_end(ResourceVersion(9));
        assert_eq!(marked.unwrap(), end);
        let example = Bytes::from(bookmarks.example());
        let again = BookmarkFormat::learn(&format, &example).unwrap();
        assert_eq!(again.plain(ResourceVersion(9)), plain);
    }
}

/// The end of the initial events of 1.32, as recorded from it.
#[test]
fn end_marks_keep_their_blueprint() {
    const SECRETS: &str = concat!(
        r#"{"type":"BOOKMARK","object":{"kind":"Secret","apiVersion":"v1","#,
        r#""metadata":{"resourceVersion":"1","creationTimestamp":null,"#,
        r#""annotations":{"k8s.io/initial-events-end":"true","#,
        r#""kubernetes.io/initial-events-list-blueprint":"#,
        r#""eyJraW5kIjoiU2VjcmV0TGlzdCIsImFwaVZlcnNpb24iOiJ2MSIsIm1ldGFkYXRhIjp7fSwi"#,
        r#"aXRlbXMiOm51bGx9Cg=="}}}}"#,
        "\n"
    );
    const FOOS: &str = concat!(
        r#"{"type":"BOOKMARK","object":{"apiVersion":"ex.io/v1","kind":"Foo","#,
        r#""metadata":{"annotations":{"k8s.io/initial-events-end":"true","#,
        r#""kubernetes.io/initial-events-list-blueprint":"#,
        r#""eyJhcGlWZXJzaW9uIjoiZXguaW8vdjEiLCJpdGVtcyI6W10sImtpbmQiOiJGb29MaXN0In0K"},"#,
        r#""resourceVersion":"228"}}}"#,
        "\n"
    );
    const MESSAGE: &[u8] = b"\x00\x00\x00\xc3\n\x08BOOKMARK\x12\xb6\x01\n\xb3\x01k8s\x00\
        \n\x0c\n\x02v1\x12\x06Secret\x12\x9a\x01\n\x95\x01\
        \n\x00\x12\x00\x1a\x00\"\x00*\x002\x0118\x00B\x00\
        b!\n\x19k8s.io/initial-events-end\x12\x04true\
        b_\n+kubernetes.io/initial-events-list-blueprint\
        \x120azhzAAoQCgJ2MRIKU2VjcmV0TGlzdBIICgYKABIAGgAaACIA\x1a\x00\x1a\x00\"\x00";
    for (directory, encoding, end) in [
        ("secrets", Encoding::Json, SECRETS.as_bytes()),
        ("secrets", Encoding::Protobuf, MESSAGE),
        ("foos", Encoding::Json, FOOS.as_bytes()),
    ] {
        let (format, _) = Case::find(directory, encoding).learn();
        let read = |frame: Bytes| {
            read_bookmark(encoding, &decode(encoding, [frame]).unwrap()[0].object).unwrap()
        };
        let object = &decode(encoding, [Bytes::from_static(end)]).unwrap()[0].object;
        let bookmarks = BookmarkFormat::learn(&format, object).unwrap();
        let mark = read(Bytes::from_static(end));
        assert!(mark.initial_events_end);
        assert_eq!(
            bookmarks.initial_events_end(mark.version).unwrap(),
            end,
            "{directory}"
        );
        let plain = bookmarks.plain(ResourceVersion(7));
        assert!(!plain.windows(9).any(|text| text == b"blueprint"));
        let expected = Bookmark {
            version: ResourceVersion(7),
            initial_events_end: false,
        };
        assert_eq!(read(plain), expected);
        // Of objects reduced to their metadata another list would be encoded.
        let reduced = bookmarks
            .with_null_in_structs(Some(true))
            .partial(&PartialFormat::of(&format, encoding).unwrap())
            .unwrap();
        assert_eq!(reduced.initial_events_end(mark.version), None);
        assert_eq!(read(reduced.plain(ResourceVersion(7))), expected);
    }
}

#[test]
fn reduced_bookmarks_of_custom_types_wait_for_others_to_tell() {
    let case = Case::find("foos", Encoding::Json);
    let (format, _) = case.learn();
    let bookmark = case
        .frames()
        .into_iter()
        .find(|frame| frame.kind == EventKind::Bookmark)
        .unwrap();
    let learned = BookmarkFormat::learn(&format, &bookmark.object).unwrap();
    let reduced = PartialFormat::of(&format, Encoding::Json).unwrap();
    assert!(learned.partial(&reduced).is_none());
    assert!(
        learned
            .partial(&PartialFormat::of(&format, Encoding::Protobuf).unwrap())
            .is_some()
    );
    for (null, expected) in [
        (false, r#""metadata":{"resourceVersion":"7"}}"#),
        (
            true,
            r#""metadata":{"resourceVersion":"7","creationTimestamp":null}}"#,
        ),
    ] {
        let told = learned.clone().with_null_in_structs(Some(null));
        let frame = told.partial(&reduced).unwrap().plain(ResourceVersion(7));
        assert!(
            String::from_utf8_lossy(&frame).contains(expected),
            "{frame:?}"
        );
        assert_eq!(
            told.plain(ResourceVersion(7)),
            learned.plain(ResourceVersion(7))
        );
    }
}
