//! Tables that are learned and printed.
use bytes::{Bytes, BytesMut};
use jiff::Timestamp;

use super::*;
use crate::encoding::{BookmarkFormat, EventKind, ItemBytes, Malformed, WireFormat};
use crate::{Encoding, GroupVersionResource, ResourceVersion};

const COLUMNS: &str = concat!(
    r#"[{"name":"Name","type":"string","format":"name","description":"N","priority":0},"#,
    r#"{"name":"Data","type":"string","format":"","description":"D","priority":0},"#,
    r#"{"name":"Age","type":"string","format":"","description":"A","priority":0}]"#,
);
const META: &str = r#"{"name":"a","namespace":"b","resourceVersion":"7","creationTimestamp":"2026-11-23T00:00:00Z"}"#;

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

/// Upstream's answer, two minutes and a second after the object was made.
fn answer() -> String {
    format!(
        "{{\"kind\":\"Table\",\"apiVersion\":\"meta.k8s.io/v1\",\
         \"metadata\":{{\"resourceVersion\":\"9\"}},\"columnDefinitions\":{COLUMNS},\
         \"rows\":[{{\"cells\":[\"a\",2,\"2m1s\"],\"object\":{}}}]}}\n",
        object()
    )
}

fn object() -> String {
    format!(
        r#"{{"kind":"ConfigMap","apiVersion":"v1","metadata":{META},"data":{{"x":"","y":""}}}}"#
    )
}

fn format() -> WireFormat {
    let list = Bytes::from(
        r#"{"kind":"ConfigMapList","apiVersion":"v1","metadata":{"resourceVersion":"9"},"items":[]}"#
            .to_owned()
            + "\n",
    );
    WireFormat::learn(Encoding::Json, "ConfigMap", &list)
        .unwrap()
        .0
}

fn printer() -> TablePrinter {
    TablePrinter::builtin(&GroupVersionResource::new("", "v1", "configmaps")).unwrap()
}

fn learn(answer: &str) -> Result<TableForm, Malformed> {
    learn_of(answer, Some(37))
}

fn learn_of(answer: &str, minor: Option<u32>) -> Result<TableForm, Malformed> {
    let asked = at("2026-11-23T00:02:01.1Z")..=at("2026-11-23T00:02:01.3Z");
    TableForm::learn(&format(), &printer(), answer.as_bytes(), asked, minor)
}

fn request(version: TableVersion, include: IncludedObject) -> TableRequest {
    TableRequest { version, include }
}

fn item() -> ItemBytes {
    format().item_bytes(&object().into())
}

fn row(include: IncludedObject) -> String {
    let form = learn(&answer()).unwrap();
    let now = at("2026-11-23T05:00:00Z");
    let request = request(TableVersion::V1, include);
    let mut out = BytesMut::new();
    let row = form.row(request, &item(), now).unwrap();
    row.put(&mut out);
    assert_eq!(out.len(), row.byte_len());
    String::from_utf8(out.to_vec()).unwrap()
}

#[test]
fn a_form_that_prints_upstreams_answer_is_learned() {
    let form = learn(&answer()).unwrap();
    assert_eq!(form.samples(), 1);
    assert!(form.is_of(&format(), &printer()));
    let skewed = answer().replace("2m1s", "2m3s");
    assert!(learn(&skewed).is_ok(), "two seconds are a clock's");
    let empty = answer().split("[{\"cells\"").next().unwrap().to_owned() + "[]}\n";
    assert_eq!(learn(&empty).unwrap().samples(), 0);
}

#[test]
fn each_row_may_be_of_another_moment() {
    let row = |age: &str| format!(r#"{{"cells":["a",2,"{age}"],"object":{}}}"#, object());
    let beside = |age: &str| answer().replace("]}\n", &format!(",{}]}}\n", row(age)));
    for age in ["119s", "2m", "2m1s", "2m2s", "2m3s"] {
        assert_eq!(learn(&beside(age)).unwrap().samples(), 2, "{age}");
        let reversed = beside(age).replacen("2m1s", "2m3s", 1);
        assert_eq!(learn(&reversed).unwrap().samples(), 2, "{age}");
    }
    for age in ["118s", "2m4s", "2h"] {
        assert!(learn(&beside(age)).is_err(), "{age}");
    }
}

/// The object is older than a day, so that its age is the same all the time.
#[test]
fn rows_of_old_objects_are_compared() {
    let old = answer().replace("-11-23T00:", "-11-20T00:");
    assert!(learn(&old).is_err());
    let aged = old.replace("2m1s", "3d");
    assert_eq!(learn(&aged).unwrap().samples(), 1);
}

/// Such a row says nothing about the others.
#[test]
fn a_row_that_is_upstreams_to_print_does_not_keep_the_form_from_being_learned() {
    let object = object().replace(r#""x":"""#, r#""x":"\ufffd""#);
    let uncertain = format!(r#"{{"cells":["a",2,"2m1s"],"object":{object}}}"#);
    let beside = answer().replace("]}\n", &format!(",{uncertain}]}}\n"));
    assert_eq!(learn(&beside).unwrap().samples(), 1);
    let differs = beside.replacen(r#""a",2"#, r#""a",3"#, 1);
    assert!(learn(&differs).is_err());
    let alone = answer().split("{\"cells\"").next().unwrap().to_owned() + &uncertain + "]}\n";
    assert!(learn(&alone).is_err());
}

/// Each difference that a release may have is found.
#[test]
fn a_form_that_differs_from_upstreams_is_not_learned() {
    for (upstreams, theirs) in [
        (r#""a",2"#, r#""a",3"#),
        (r#""a",2"#, r#""a","2""#),
        (r#"2,"2m1s""#, r#"2,"3m""#),
        (r#""2m1s"]"#, r#""2m1s",null]"#),
        (r#""2m1s"]"#, r#""2m1s"],"conditions":[]"#),
        (r#""name":"Data""#, r#""name":"Keys""#),
        (r#""format":"name""#, r#""format":"""#),
        (
            r#""description":"D","priority":0"#,
            r#""description":"D","priority":1"#,
        ),
        (r#""rows":["#, r#""rows": ["#),
        (r#""kind":"Table""#, r#""kind":"Tables""#),
        (
            r#""resourceVersion":"9""#,
            r#""resourceVersion":"9","selfLink":"x""#,
        ),
        ("]}\n", "]}"),
    ] {
        let changed = answer().replacen(upstreams, theirs, 1);
        assert_ne!(changed, answer());
        assert!(learn(&changed).is_err(), "{theirs}");
    }
    assert!(learn("{}").is_err());
    assert!(learn(r#"{"kind":"Status"}"#).is_err());
}

#[test]
fn rows_have_what_the_client_asks_for() {
    let cells = r#"{"cells":["a",2,"5h"],"object":"#;
    assert_eq!(row(IncludedObject::None), format!("{cells}null}}"));
    assert_eq!(
        row(IncludedObject::Metadata),
        format!(
            r#"{cells}{{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{META}}}}}"#
        )
    );
    assert_eq!(
        row(IncludedObject::Object),
        format!("{cells}{}}}", object())
    );
}

#[test]
fn gets_and_events_are_tables_of_one_row() {
    let form = learn(&answer()).unwrap();
    let now = at("2026-11-23T00:00:30Z");
    let request = request(TableVersion::V1Beta1, IncludedObject::None);
    let table = |columns: &str, version| {
        format!(
            r#"{{"kind":"Table","apiVersion":"meta.k8s.io/v1beta1","metadata":{{"resourceVersion":"{version}"}},"columnDefinitions":{columns},"rows":[{{"cells":["a",2,"30s"],"object":null}}]}}"#
        )
    };
    let of = |version, has_columns| RowTable {
        request,
        version: ResourceVersion(version),
        has_columns,
        now,
    };
    let body = form.get_body(&item(), &of(7, true)).unwrap();
    assert_eq!(body, table(COLUMNS, 7) + "\n");
    for (is_first, columns) in [(true, COLUMNS), (false, "null")] {
        let frame = form.event(EventKind::Deleted, &item(), &of(8, is_first));
        let expected = format!(
            "{{\"type\":\"DELETED\",\"object\":{}}}\n",
            table(columns, 8)
        );
        assert_eq!(frame.unwrap(), expected);
    }
}

fn bookmark_table() -> RowTable {
    RowTable {
        request: request(TableVersion::V1, IncludedObject::None),
        version: ResourceVersion(6),
        has_columns: false,
        now: at("2026-11-23T00:00:30Z"),
    }
}

#[test]
fn bookmarks_are_rows_of_nothing() {
    let bookmark = Bytes::from_static(
        br#"{"kind":"ConfigMap","apiVersion":"v1","metadata":{"resourceVersion":"5"}}"#,
    );
    let bookmarks = BookmarkFormat::learn(&format(), &bookmark).unwrap();
    let frame_of = |ends, minor| {
        let form = learn_of(&answer(), minor).unwrap();
        form.bookmark(&bookmarks, ends, &bookmark_table())
    };
    let frame = |ends| frame_of(ends, Some(34)).unwrap();
    let table = |object: &str| {
        format!(
            "{{\"type\":\"BOOKMARK\",\"object\":{{\"kind\":\"Table\",\
             \"apiVersion\":\"meta.k8s.io/v1\",\"metadata\":{{\"resourceVersion\":\"6\"}},\
             \"columnDefinitions\":null,\"rows\":[{{\"cells\":[\"\",0,\"<unknown>\"],\
             \"object\":{object}}}]}}}}\n"
        )
        .replace("<unknown>", r"\u003cunknown\u003e")
    };
    assert_eq!(frame(false), table("null"));
    // The end of the initial events is told even to those who want no objects.
    let end = r#"{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{"resourceVersion":"6","annotations":{"k8s.io/initial-events-end":"true"}}}"#;
    assert_eq!(frame(true), table(end));
    // Older releases leave it out, too.
    assert_eq!(frame_of(true, Some(33)).unwrap(), table("null"));
    assert_eq!(frame_of(true, None), None);
    assert_eq!(frame_of(false, None).unwrap(), table("null"));
}

#[test]
fn end_marks_have_cells_of_their_annotation() {
    let columns = r#"[{"name":"Value","type":"string","jsonPath":".metadata.annotations"}]"#;
    let columns: Vec<PrinterColumn> = serde_json::from_str(columns).unwrap();
    let printer = TablePrinter::custom(&columns).unwrap();
    let answer = concat!(
        r#"{"kind":"Table","apiVersion":"meta.k8s.io/v1","metadata":{"resourceVersion":"9"},"#,
        r#""columnDefinitions":[{"name":"Name","type":"string","format":"name","description":"N","priority":0},"#,
        r#"{"name":"Value","type":"string","format":"","description":"","priority":0}],"rows":[]}"#,
        "\n"
    );
    let now = at("2026-11-23T00:00:30Z");
    let learned = TableForm::learn(&format(), &printer, answer.as_bytes(), now..=now, Some(37));
    let bookmark = Bytes::from_static(
        br#"{"kind":"ConfigMap","apiVersion":"v1","metadata":{"resourceVersion":"5"}}"#,
    );
    let bookmarks = BookmarkFormat::learn(&format(), &bookmark).unwrap();
    let cells = |ends| {
        let form = learned.as_ref().unwrap();
        let frame = form.bookmark(&bookmarks, ends, &bookmark_table()).unwrap();
        let text = String::from_utf8(frame.to_vec()).unwrap();
        let (_, cells) = text.split_once(r#""cells":"#).unwrap();
        cells.split_once(r#","object""#).unwrap().0.to_owned()
    };
    assert_eq!(cells(false), r#"["",null]"#);
    assert_eq!(
        cells(true),
        r#"["","{\"k8s.io/initial-events-end\":\"true\"}"]"#
    );
}

#[test]
fn rows_of_text_that_is_not_utf8_are_upstreams_to_print() {
    let form = learn(&answer()).unwrap();
    let request = request(TableVersion::V1, IncludedObject::None);
    let now = at("2026-11-23T05:00:00Z");
    let row = |data: &str| {
        let object = object().replace(r#""x":"""#, &format!(r#""x":"{data}""#));
        form.row(request, &format().item_bytes(&object.into()), now)
    };
    assert!(row("\u{fffd}").is_ok());
    assert!(row(r"\ufffd").is_err());
}

/// Returns the JSON of a pod whose containers have ended with these codes.
fn ended_pod(phase: &str, codes: &[i64], metadata: &str) -> String {
    let status = |code: &i64| {
        let reason = if *code == 0 { "Completed" } else { "Error" };
        format!(
            r#"{{"name":"c","ready":false,"restartCount":0,"image":"","imageID":"",
                "state":{{"terminated":{{"exitCode":{code},"reason":"{reason}"}}}}}}"#
        )
    };
    let statuses: Vec<_> = codes.iter().map(status).collect();
    format!(
        r#"{{"metadata":{{"name":"a"{metadata}}},"spec":{{"containers":[]}},
            "status":{{"phase":"{phase}","containerStatuses":[{}]}}}}"#,
        statuses.join(",")
    )
}

#[test]
fn rows_are_those_of_upstreams_release() {
    let met = r#"{"metadata":{"name":"a"},"status":{"conditions":[
        {"type":"SuccessCriteriaMet","status":"True"}]}}"#;
    let node = r#"{"metadata":{"name":"a"},"status":{"nodeInfo":{"kernelVersion":"6.1",
        "architecture":"arm64"}}}"#;
    let deleted = r#","deletionTimestamp":"2026-11-23T00:00:00Z""#;
    for ((group, version, plural), object, since, [old, new]) in [
        (
            ("", "v1", "pods"),
            ended_pod("Failed", &[0, 1], ""),
            35,
            ["\"Completed\"", "\"Error\""],
        ),
        (
            ("", "v1", "pods"),
            ended_pod("Succeeded", &[0], deleted),
            31,
            ["\"Terminating\"", "\"Completed\""],
        ),
        (
            ("batch", "v1", "jobs"),
            met.to_owned(),
            34,
            ["\"Running\"", "\"SuccessCriteriaMet\""],
        ),
        (
            ("", "v1", "nodes"),
            node.to_owned(),
            36,
            ["\"6.1\"", "\"6.1 (arm64)\""],
        ),
    ] {
        let printer =
            TablePrinter::builtin(&GroupVersionResource::new(group, version, plural)).unwrap();
        let now = at("2026-11-23T05:00:00Z");
        let print = |minor| {
            let cells = printer.print(object.as_bytes(), now, minor)?;
            Ok::<_, Malformed>(cells.row_head())
        };
        for (minor, expected) in [(since - 1, old), (since, new), (since + 1, new)] {
            let row = print(Some(minor)).unwrap();
            assert!(row.contains(expected), "{plural} of 1.{minor}: {row}");
        }
        assert!(print(None).is_err(), "{plural} of an unknown release");
    }
    // Most rows are the same in all releases.
    let printer = TablePrinter::builtin(&GroupVersionResource::new("", "v1", "pods")).unwrap();
    let now = at("2026-11-23T05:00:00Z");
    let ended = ended_pod("Succeeded", &[0, 0], "");
    assert!(printer.print(ended.as_bytes(), now, None).is_ok());
}
