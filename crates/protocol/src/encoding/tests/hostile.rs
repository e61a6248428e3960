//! Whatever arrives: an error at most, and nothing that comes out wrong.
use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

/// Feeds bytes to everything that reads upstream's.
fn read_everything(case: &Case, bytes: &Bytes) {
    let (format, _) = case.learn();
    let _ = scan(case.encoding, bytes, &case.fields);
    let _ = read_error(case.encoding, bytes);
    let _ = read_bookmark(case.encoding, bytes);
    if format.check(bytes).is_ok() {
        let stored = format.item_bytes(bytes);
        let _ = format.with_version(&stored, ResourceVersion(7));
        let _ = read_identity(case.encoding, &stored);
        let partial = PartialFormat::of(&format, case.encoding).unwrap();
        let _ = partial.metadata(&stored);
    }
    let _ = BookmarkFormat::learn(&format, bytes);
    if let Ok((format, page)) = WireFormat::learn(case.encoding, case.kind, bytes) {
        assert_eq!(
            write_list(&format, &page),
            *bytes,
            "what is accepted can be written again"
        );
    }
    if let Ok(page) = format.read_list(bytes) {
        assert_eq!(write_list(&format, &page), *bytes);
    }
    let _ = decode(case.encoding, [bytes.clone()]);
}

/// All files of a case, as raw material.
fn material(case: &Case) -> Vec<Bytes> {
    let mut files = vec![case.file("list"), case.file("watch"), case.file("get")];
    files.extend(case.frames().into_iter().map(|frame| frame.object));
    files
}

#[test]
fn truncated_input() {
    for directory in ["pods", "events", "foos", "partial"] {
        for case in Case::all().filter(|case| case.directory == directory) {
            for file in material(&case) {
                for end in 0..file.len() {
                    read_everything(&case, &file.slice(..end));
                }
            }
        }
    }
}

#[test]
fn a_stream_cut_within_a_frame_is_not_clean() {
    for case in [
        Case::find("pods", Encoding::Json),
        Case::find("pods", Encoding::Protobuf),
    ] {
        let stream = case.file("watch");
        let mut ends = vec![0];
        for frame in case.frames() {
            ends.push(ends.last().unwrap() + frame.frame.len());
        }
        for end in 0..=stream.len() {
            assert_eq!(
                decode(case.encoding, [stream.slice(..end)]).is_ok(),
                ends.contains(&end),
                "{end}"
            );
        }
    }
}

#[test]
fn frames_above_the_limit() {
    for case in [
        Case::find("pods", Encoding::Json),
        Case::find("pods", Encoding::Protobuf),
    ] {
        let stream = case.file("watch");
        let longest = case
            .frames()
            .iter()
            .map(|frame| frame.frame.len())
            .max()
            .unwrap();
        for (limit, fits) in [(longest, true), (longest - 1, false), (0, false)] {
            for size in [1, 7, stream.len()] {
                let mut decoder = FrameDecoder::new(case.encoding, limit);
                let mut result = Ok(());
                'stream: for start in (0..stream.len()).step_by(size) {
                    decoder.push(stream.slice(start..stream.len().min(start + size)));
                    loop {
                        match decoder.next_frame() {
                            Ok(Some(_)) => {}
                            Ok(None) => break,
                            Err(error) => {
                                result = Err(error);
                                break 'stream;
                            }
                        }
                    }
                }
                assert_eq!(result.is_ok(), fits, "{limit} {size}");
                assert_eq!(decoder.is_clean(), fits);
                assert_eq!(
                    decoder.next_frame().is_ok(),
                    fits,
                    "a failed decoder stays failed"
                );
            }
        }
    }
    let mut decoder = FrameDecoder::new(Encoding::Protobuf, 100);
    decoder.push(Bytes::from_static(&[0xff; 4]));
    assert!(
        decoder.next_frame().is_err(),
        "an announced length is believed before its bytes arrive"
    );
}

#[test]
fn kept_frames_do_not_pin_chunks() {
    let line = "{\"type\":\"ADDED\",\"object\":{\"a\":1}}\n";
    let chunk = Bytes::from(line.repeat(100));
    let mut decoder = FrameDecoder::new(Encoding::Json, 1000);
    decoder.push(chunk.clone());
    let frame = decoder.next_frame().unwrap().unwrap();
    assert!(!chunk.as_ptr_range().contains(&frame.frame.as_ptr()));
    assert_eq!(frame.object, r#"{"a":1}"#);
    assert!(
        frame.frame.as_ptr_range().contains(&frame.object.as_ptr()),
        "the object is a slice of its frame"
    );

    // Who lets go of it at once does not need the copy; the next one may keep its frame again.
    let passing = decoder.next_transient_frame().unwrap().unwrap();
    assert_eq!(passing, frame);
    assert!(chunk.as_ptr_range().contains(&passing.frame.as_ptr()));
    let kept = [passing.detached(), decoder.next_frame().unwrap().unwrap()];
    assert!(
        kept.iter()
            .all(|kept| *kept == frame && !chunk.as_ptr_range().contains(&kept.frame.as_ptr()))
    );
    assert!(
        kept.iter()
            .all(|kept| kept.frame.as_ptr_range().contains(&kept.object.as_ptr()))
    );

    let chunk = Bytes::from(line);
    decoder = FrameDecoder::new(Encoding::Json, 1000);
    decoder.push(chunk.clone());
    let frame = decoder.next_frame().unwrap().unwrap();
    assert_ne!(
        frame.frame.as_ptr(),
        chunk.as_ptr(),
        "the chunk may be a slice of a larger buffer"
    );
}

#[test]
fn other_spellings_of_an_event() {
    let read = |line: &'static str| decode(Encoding::Json, [Bytes::from_static(line.as_bytes())]);
    let odd = read("{ \"object\": {\"a\": 1} , \"type\": \"DELETED\" }\n").unwrap();
    assert_eq!(
        (odd[0].kind, &odd[0].object[..]),
        (EventKind::Deleted, br#"{"a": 1}"#.as_slice())
    );
    for bad in [
        "\n",
        "{}\n",
        "[]\n",
        "{\"type\":\"NEWS\",\"object\":{}}\n",
        "{\"type\":\"ADDED\"}\n",
    ] {
        assert!(read(bad).is_err(), "{bad:?}");
    }
    let smuggled = read("{\"type\":\"ADDED\",\"object\":{\"a\":1},\"b\":{}}\n").unwrap();
    let table = FieldTable::metadata_only(true);
    assert!(
        scan(Encoding::Json, &smuggled[0].object, &table).is_err(),
        "the scan finds what framing let pass"
    );
}

#[test]
fn odd_objects() {
    let table = FieldTable::custom(true, &[".spec.a".to_owned()]);
    let read = |text: &str| scan(Encoding::Json, text.as_bytes(), &table);
    let metadata = r#""metadata":{"name":"n","namespace":"s","resourceVersion":"5"}"#;
    for good in [
        format!("{{{metadata},\"spec\":null}}"),
        format!("{{{metadata},\"spec\":[1,[2]]}}"),
        format!("{{\"metadata\":{{}},{metadata}}}"),
    ] {
        assert_eq!(read(&good).unwrap().attributes.field(2), "", "{good}");
    }
    let twice = read(&format!(
        "{{{metadata},\"spec\":{{\"a\":\"x\",\"a\":\"y\"}}}}"
    ))
    .unwrap();
    assert_eq!(twice.attributes.field(2), "y");
    for bad in [
        "",
        "{}",
        "null",
        "[]",
        r#"{"metadata":null}"#,
        r#"{"metadata":{"name":"n","namespace":"s"}}"#,
        r#"{"metadata":{"name":"n","resourceVersion":"5"}}"#,
        r#"{"metadata":{"name":"n","namespace":"s","resourceVersion":5}}"#,
        r#"{"metadata":{"name":{},"namespace":"s","resourceVersion":"5"}}"#,
        &format!("{{{metadata}}} {{}}"),
        &format!("{{{metadata},\"spec\":{{\"a\":1.5}}}}"),
        &format!("{{{metadata},\"spec\":{{\"a\":{{\"a\":\"x\"}}}}}}"),
        &format!("{{{metadata},\"spec\":{{\"a\":[1]}}}}"),
    ] {
        assert!(read(bad).is_err(), "{bad}");
    }
    // Nesting is passed over without recursion.
    let deep = format!(
        "{{{metadata},\"x\":{}{}}}",
        "[".repeat(100_000),
        "]".repeat(100_000)
    );
    assert!(read(&deep).is_ok());
    let deep = format!(
        "{{{metadata},\"spec\":{}{}}}",
        "[".repeat(100_000),
        "]".repeat(100_000)
    );
    assert!(read(&deep).is_ok());
}

#[test]
fn a_list_in_no_known_style_is_refused() {
    let item = r#"{"metadata":{"name":"n","namespace":"s","resourceVersion":"5"}}"#;
    let good = format!(
        "{{\"kind\":\"FooList\",\"apiVersion\":\"v1\",\
         \"metadata\":{{\"resourceVersion\":\"5\"}},\"items\":[{item},{item}]}}\n"
    );
    let learn =
        |text: &str| WireFormat::learn(Encoding::Json, "Foo", &Bytes::from(text.to_owned()));
    assert!(learn(&good).is_ok());
    for (from, to) in [
        ("\n", ""),
        (",{", ", {"),
        ("\"items\"", " \"items\""),
        ("[{", "[ {"),
        ("}]", "} ]"),
        ("\"5\"},\"items\"", "\"5\",\"continue\":\"\"},\"items\""),
        ("\"5\"},\"items\"", "\"5\",\"selfLink\":\"x\"},\"items\""),
        ("\"5\"},\"items\"", "\"05\"},\"items\""),
        ("FooList", "Foo\\u004cist"),
        ("]}", "],\"more\":1}"),
        ("[{\"metadata\"", "[{\"apiVersion\":\"v1\",\"metadata\""),
        (",{\"metadata\"", ",{\"kind\":\"Foo\",\"metadata\""),
        (item, "null"),
    ] {
        assert!(good.contains(from));
        assert!(
            learn(&good.replacen(from, to, 1)).is_err(),
            "{from} -> {to}"
        );
    }
}

#[test]
fn custom_resources_with_members_before_api_version() {
    let body = concat!(
        r#"{"apiVersion":"ex.io/v1","items":[{"action":"x","apiVersion":"ex.io/v1","kind":"Foo","#,
        r#""metadata":{"name":"n"}}],"kind":"FooList","#,
        r#""metadata":{"continue":"","resourceVersion":"5"}}"#,
        "\n"
    );
    let (format, page) = WireFormat::learn(Encoding::Json, "Foo", &Bytes::from(body)).unwrap();
    assert_eq!(write_list(&format, &page), body.as_bytes());
    for other in [
        r#"{"kind":"Foo","apiVersion":"ex.io/v1"}"#,
        r#"{"apiVersion":"ex.io/v2","kind":"Foo"}"#,
        "{}",
    ] {
        assert!(format.check(&Bytes::from(other)).is_err(), "{other}");
    }
}

proptest! {
    #[test]
    fn random_input(bytes in vec(any::<u8>(), 0..300), index in any::<prop::sample::Index>()) {
        let cases: Vec<Case> = Case::all().collect();
        read_everything(&cases[index.index(cases.len())], &bytes.into());
    }

    #[test]
    fn damaged_input(
        case in any::<prop::sample::Index>(),
        file in any::<prop::sample::Index>(),
        damage in vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let cases: Vec<Case> = Case::all().collect();
        let case = &cases[case.index(cases.len())];
        let files = material(case);
        let mut bytes = files[file.index(files.len())].to_vec();
        for (at, byte) in damage {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        read_everything(case, &bytes.into());
    }

    #[test]
    fn any_chunking_gives_the_same_frames(
        case in any::<prop::sample::Index>(),
        cuts in vec(1usize..200, 0..60),
    ) {
        let cases: Vec<Case> = Case::all().collect();
        let case = &cases[case.index(cases.len())];
        let mut rest = case.file("watch");
        let mut chunks = Vec::new();
        for cut in cuts {
            chunks.push(rest.split_to(cut.min(rest.len())));
        }
        chunks.push(rest);
        prop_assert_eq!(decode(case.encoding, chunks.clone()).unwrap(), case.frames());
        // The same when all chunks are there before the first frame is taken.
        let mut decoder = FrameDecoder::new(case.encoding, 1 << 20);
        for chunk in chunks {
            decoder.push(chunk);
        }
        for (index, frame) in case.frames().into_iter().enumerate() {
            let passing = index % 2 == 0;
            let next = if passing { decoder.next_transient_frame() } else { decoder.next_frame() };
            prop_assert_eq!(next, Ok(Some(frame)));
        }
        prop_assert!(decoder.is_clean());
    }

    #[test]
    fn lists_come_back_as_written(
        case in any::<prop::sample::Index>(),
        picks in vec(any::<prop::sample::Index>(), 0..9),
        version in any::<u64>(),
        token in proptest::option::of("[A-Za-z0-9_-]{1,40}"),
        remaining in proptest::option::of(any::<i64>()),
    ) {
        let cases: Vec<Case> = Case::all().collect();
        let case = &cases[case.index(cases.len())];
        let (format, _) = case.learn();
        let objects = case.objects();
        let page = ListPage {
            version: ResourceVersion(version),
            continue_token: token,
            remaining,
            objects: picks.iter().map(|pick| objects[pick.index(objects.len())].clone()).collect(),
        };
        let body = Bytes::from(write_list(&format, &page));
        prop_assert_eq!(format.read_list(&body), Ok(page));
    }
}
