//! Upstream's own bytes come out as they went in.
use super::*;
use crate::is_built_in_group;

#[test]
fn the_format_of_a_built_in_type_is_known_before_its_first_list() {
    for case in Case::all() {
        let known = WireFormat::built_in(&case.gvr, case.kind, case.encoding);
        let (learned, _) = case.learn();
        if is_built_in_group(&case.gvr.group) {
            assert_eq!(known.as_ref(), Some(&learned), "{}", case.directory);
        } else {
            assert_eq!(known, None, "{}", case.directory);
        }
    }
}

#[test]
fn lists_are_read_and_written_byte_for_byte() {
    for case in Case::all() {
        let (format, page) = case.learn();
        assert_eq!(format.encoding(), case.encoding);
        assert_eq!(format.kind(), case.kind);
        assert_eq!(
            write_list(&format, &page),
            case.file("list"),
            "{}",
            case.directory
        );
        assert_eq!(format.read_list(&case.file("list")), Ok(page.clone()));
        if !page.objects.is_empty() {
            assert_eq!(
                page.objects,
                case.objects(),
                "list items and watch objects are the same bytes"
            );
        }
    }
}

#[test]
fn a_paged_list_keeps_its_token_and_count() {
    for encoding in [Encoding::Json, Encoding::Protobuf] {
        let (_, page) = Case::find("pods", encoding).learn();
        assert_eq!(page.version, ResourceVersion(500));
        assert_eq!(
            page.continue_token.as_deref(),
            Some("eyJ2IjoibWV0YS5rOHMuaW8vdjEifQ")
        );
        assert_eq!(page.remaining, Some(7));
    }
    let case = Case::find("foos", Encoding::Json);
    let (format, last) = case.learn();
    assert_eq!(last.continue_token, None);
    let page = format.read_list(&case.file("paged")).unwrap();
    assert_eq!(
        (page.continue_token.as_deref(), page.remaining),
        (Some("abc"), Some(3))
    );
    assert_eq!(write_list(&format, &page), case.file("paged"));
}

#[test]
fn protobuf_is_not_reduced_to_json() {
    let (pods, _) = Case::find("pods", Encoding::Protobuf).learn();
    assert_eq!(PartialFormat::of(&pods, Encoding::Json), None);
}

#[test]
fn metadata_is_cut_out_as_upstream_does() {
    for encoding in [Encoding::Json, Encoding::Protobuf] {
        let case = Case::find("partial", encoding);
        let (expected, page) = case.learn();
        let (pods, _) = Case::find("pods", encoding).learn();
        let partial = PartialFormat::of(&pods, encoding).unwrap();
        assert_eq!(*partial.format(), expected);
        // An object that is nothing but metadata is reduced to itself.
        let reduce = |object| partial.metadata(&expected.item_bytes(object)).unwrap();
        let metadata: Vec<_> = page.objects.iter().map(reduce).collect();
        for (object, metadata) in page.objects.iter().zip(&metadata) {
            assert_eq!(partial.object(metadata), object);
        }
        let token = page.continue_token.as_deref();
        let mut items = BytesMut::new();
        for metadata in &metadata {
            partial.put_item(metadata, &mut items);
        }
        assert_eq!(
            items.len(),
            metadata
                .iter()
                .map(|metadata| partial.item_len(metadata))
                .sum::<usize>()
        );
        items.truncate(items.len() - expected.separator());
        let count = metadata.len();
        let listed = ListMetadata {
            continue_token: token,
            remaining: page.remaining,
            ..ListMetadata::of(page.version)
        };
        let parts = expected.list_parts(&listed, count, items.len() as u64);
        let list = [&parts.head[..], &items, &parts.tail].concat();
        assert_eq!(list, case.file("list"));
        assert_eq!(parts.body_len(), list.len() as u64);
        for frame in case.frames() {
            if matches!(
                frame.kind,
                EventKind::Added | EventKind::Modified | EventKind::Deleted
            ) {
                assert_eq!(
                    partial.event(frame.kind, &expected.item_bytes(&frame.object)),
                    Ok(frame.frame)
                );
            }
        }
        let bookmark = Case::find("pods", encoding)
            .frames()
            .into_iter()
            .find(|f| f.kind == EventKind::Bookmark);
        let format = BookmarkFormat::learn(&pods, &bookmark.unwrap().object)
            .unwrap()
            .partial(&partial)
            .unwrap();
        let reduced = format.plain(ResourceVersion(9));
        let frames = decode(encoding, [reduced]).unwrap();
        assert_eq!(
            read_bookmark(encoding, &frames[0].object).unwrap().version,
            ResourceVersion(9)
        );
        assert_eq!(partial.format().check_frame(&frames[0]), Ok(()));
    }
}

#[test]
fn empty_lists() {
    for (directory, encoding) in [
        ("foos", Encoding::Json),
        ("partial", Encoding::Json),
        ("partial", Encoding::Protobuf),
    ] {
        let case = Case::find(directory, encoding);
        let (from_objects, _) = case.learn();
        let (from_nothing, page) =
            WireFormat::learn(encoding, case.kind, &case.file("empty")).unwrap();
        assert_eq!(from_objects, from_nothing);
        assert_eq!(write_list(&from_objects, &page), case.file("empty"));
    }
}

#[test]
fn watch_events_are_framed_byte_for_byte() {
    for case in Case::all() {
        let (format, _) = case.learn();
        let stream = case.file("watch");
        let frames = case.frames();
        assert_eq!(
            frames
                .iter()
                .map(|frame| &frame.frame[..])
                .collect::<Vec<_>>()
                .concat(),
            stream
        );
        for frame in &frames {
            if frame.kind == EventKind::Error {
                assert_eq!(format.status_event(&frame.object), frame.frame);
            } else {
                assert_eq!(
                    format.event(frame.kind, &format.item_bytes(&frame.object)),
                    frame.frame
                );
            }
            assert_eq!(format.check_frame(frame), Ok(()));
        }
        let last = frames.last().unwrap();
        assert_eq!(last.kind, EventKind::Error);
        assert_eq!(format.status_event(&last.object), last.frame);
        let status = read_error(case.encoding, &last.object);
        assert_eq!((status.code, status.reason.as_str()), (410, "Expired"));
        assert_eq!(status.message, "too old resource version: 5 (287)");
        assert_eq!(
            format.get_body(&format.item_bytes(&frames[0].object)),
            case.file("get"),
            "{}",
            case.directory
        );
    }
}

#[test]
fn a_deleted_event_changes_only_the_version() {
    for case in Case::all() {
        let (format, _) = case.learn();
        for object in case.objects() {
            let scanned = scan(case.encoding, &object, &case.fields).unwrap();
            for version in [1, 99, 12_345_678_901, u64::MAX].map(ResourceVersion) {
                let stored = format.item_bytes(&object);
                let spliced = format.with_version(&stored, version).unwrap();
                let again = scan(case.encoding, &spliced.text(), &case.fields).unwrap();
                assert_eq!(
                    (again.version, &again.attributes),
                    (version, &scanned.attributes)
                );
                assert_eq!(
                    format.with_version(&spliced, scanned.version).unwrap(),
                    stored
                );
            }
        }
    }
}

#[test]
fn attributes_are_the_same_in_both_encodings() {
    for case in Case::all() {
        for object in case.objects() {
            let scanned = scan(case.encoding, &object, &case.fields).unwrap();
            if case.directory != "foos" {
                assert_eq!(
                    scanned.attributes.label("tier"),
                    Some("<front>&"),
                    "escapes are read"
                );
                assert_eq!(scanned.attributes.label("a/empty"), Some(""));
                let keys: Vec<_> = scanned.attributes.labels().map(|(key, _)| key).collect();
                assert_eq!(keys, ["a/empty", "app", "tier"]);
                let other = Case::find(case.directory, Encoding::Json);
                let seen = other
                    .objects()
                    .iter()
                    .any(|o| scan(Encoding::Json, o, &other.fields) == Ok(scanned.clone()));
                assert!(seen, "{}", case.directory);
            }
        }
    }
}

#[test]
fn field_values_are_upstreams() {
    let expected: &[(&str, &[(&str, &str)])] = &[
        (
            "pods",
            &[
                ("metadata.name", "web-0"),
                ("metadata.namespace", "shop"),
                ("spec.nodeName", "node-1"),
                ("spec.host", "node-1"),
                ("spec.restartPolicy", "Always"),
                ("spec.schedulerName", "default-scheduler"),
                ("spec.serviceAccountName", "sa"),
                ("spec.hostNetwork", "true"),
                ("status.phase", "Running"),
                ("status.podIP", "10.0.0.1"),
                ("status.podIPs", ""),
                ("status.nominatedNodeName", "node-2"),
            ],
        ),
        (
            "nodes",
            &[("metadata.name", "node-1"), ("spec.unschedulable", "true")],
        ),
        ("namespaces", &[("status.phase", "Active")]),
        ("secrets", &[("type", "Opaque")]),
        (
            "services",
            &[("spec.clusterIP", "10.0.0.9"), ("spec.type", "ClusterIP")],
        ),
        ("replicationcontrollers", &[("status.replicas", "4")]),
        ("jobs", &[("status.successful", "2")]),
        (
            "events",
            &[
                ("involvedObject.kind", "Pod"),
                ("involvedObject.namespace", "shop"),
                ("involvedObject.name", "web-0"),
                ("involvedObject.uid", "u-1"),
                ("involvedObject.apiVersion", "v1"),
                ("involvedObject.resourceVersion", "5"),
                ("involvedObject.fieldPath", "spec.containers{c}"),
                ("reason", "Started"),
                ("reportingComponent", "rep"),
                ("source", "kubelet"),
                ("type", "Normal"),
            ],
        ),
        (
            "events.events.k8s.io",
            &[
                ("regarding.kind", "Pod"),
                ("regarding.namespace", "shop"),
                ("regarding.name", "web-0"),
                ("regarding.uid", "u-1"),
                ("regarding.apiVersion", "v1"),
                ("regarding.resourceVersion", "5"),
                ("regarding.fieldPath", "spec.containers{c}"),
                ("reason", "Started"),
                ("reportingController", "rep"),
                ("type", "Normal"),
            ],
        ),
        (
            "certificatesigningrequests",
            &[("spec.signerName", "x.io/signer")],
        ),
        ("clustertrustbundles", &[("spec.signerName", "x.io/signer")]),
        (
            "podcertificaterequests",
            &[
                ("spec.signerName", "x.io/signer"),
                ("spec.podName", "web-0"),
                ("spec.nodeName", "node-1"),
            ],
        ),
        (
            "resourceslices",
            &[
                ("spec.nodeName", "node-1"),
                ("spec.driver", "gpu.x.io"),
                ("spec.pool.name", "pool-1"),
            ],
        ),
        (
            "foos",
            &[
                ("spec.color", "red & blue"),
                ("spec.size", "-5"),
                ("spec.on", "true"),
                ("spec.none", ""),
                ("spec.nested.deep", "x\u{2029}"),
            ],
        ),
    ];
    for (directory, values) in expected {
        for case in Case::all().filter(|case| case.directory == *directory) {
            let scanned = scan(case.encoding, &case.objects()[0], &case.fields).unwrap();
            for (label, value) in *values {
                let position = case.fields.position(label).unwrap();
                assert_eq!(
                    scanned.attributes.field(position),
                    *value,
                    "{directory} {label} {:?}",
                    case.encoding
                );
            }
        }
    }
}

#[test]
fn absent_fields_have_upstreams_zero_values() {
    for encoding in [Encoding::Json, Encoding::Protobuf] {
        let pods = Case::find("pods", encoding);
        let second = scan(encoding, &pods.objects()[1], &pods.fields)
            .unwrap()
            .attributes;
        let field = |label| {
            second
                .field(pods.fields.position(label).unwrap())
                .to_owned()
        };
        assert_eq!(field("spec.hostNetwork"), "false");
        assert_eq!(field("status.podIP"), "", "no podIPs");
        let events = Case::find("events", encoding);
        let second = scan(encoding, &events.objects()[1], &events.fields)
            .unwrap()
            .attributes;
        assert_eq!(
            second.field(events.fields.position("source").unwrap()),
            "rep",
            "no component"
        );
        // Bookmarks are zero values of their kinds.
        for (directory, label, value) in [
            ("nodes", "spec.unschedulable", "false"),
            ("jobs", "status.successful", "0"),
            ("replicationcontrollers", "status.replicas", "0"),
            ("resourceslices", "spec.nodeName", ""),
        ] {
            let case = Case::find(directory, encoding);
            let bookmark = case
                .frames()
                .into_iter()
                .find(|frame| frame.kind == EventKind::Bookmark)
                .unwrap();
            let scanned = scan(encoding, &bookmark.object, &case.fields)
                .unwrap()
                .attributes;
            assert_eq!(
                scanned.field(case.fields.position(label).unwrap()),
                value,
                "{directory}"
            );
        }
    }
}

/// The text is that of kube-apiserver 1.37 with the gate `ShardedListAndWatch`.
#[test]
fn a_list_repeats_its_shard_where_upstream_does() {
    let text = "shardRange(object.metadata.uid, '0x0000000000000000', '0x8000000000000000')";
    let shard = ShardSelector::parse(text).unwrap();
    let metadata = ListMetadata {
        continue_token: Some("T"),
        shard: Some(&shard),
        ..ListMetadata::of(ResourceVersion(7))
    };
    let head = |directory: &str, encoding| {
        let (format, _) = Case::find(directory, encoding).learn();
        let parts = format.list_parts(&metadata, 0, 0);
        String::from_utf8_lossy(&[parts.head, parts.tail].concat()).into_owned()
    };
    let json = format!(
        r#""metadata":{{"resourceVersion":"7","continue":"T","shardInfo":{{"selector":"{text}"}}}}"#
    );
    assert!(head("pods", Encoding::Json).contains(&json));
    let length = char::from(text.len() as u8);
    let outer = char::from(text.len() as u8 + 2);
    let message = format!("\u{12}\u{1}7\u{1a}\u{1}T\u{2a}{outer}\n{length}{text}");
    assert!(head("pods", Encoding::Protobuf).contains(&message));
    for (directory, encoding) in [
        ("foos", Encoding::Json),
        ("partial", Encoding::Json),
        ("partial", Encoding::Protobuf),
    ] {
        assert!(!head(directory, encoding).contains("shard"), "{directory}");
    }
}
