//! Tests of whole messages. Those of single values are beside them; that the table fits the Go
//! types is tested in `tests/real/internal/transcode`.
mod hostile;

use prost::encoding::{WireType, encode_key, encode_varint};

use crate::{Heading, Reason, Transcoder, Unexplained};

/// A message that is put together field by field.
#[derive(Clone, Default)]
struct Fields(Vec<u8>);

impl Fields {
    fn varint(mut self, number: u32, value: i64) -> Self {
        encode_key(number, WireType::Varint, &mut self.0);
        encode_varint(value.cast_unsigned(), &mut self.0);
        self
    }

    fn bytes(mut self, number: u32, value: impl AsRef<[u8]>) -> Self {
        encode_key(number, WireType::LengthDelimited, &mut self.0);
        encode_varint(value.as_ref().len() as u64, &mut self.0);
        self.0.extend_from_slice(value.as_ref());
        self
    }

    fn entry(self, number: u32, key: &str, value: impl AsRef<[u8]>) -> Self {
        self.bytes(number, fields().bytes(1, key).bytes(2, value))
    }
}

impl AsRef<[u8]> for Fields {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

fn fields() -> Fields {
    Fields::default()
}

fn transcoder(kind: &str) -> Transcoder {
    let (api_version, kind) = kind.rsplit_once(' ').unwrap_or(("v1", kind));
    Transcoder::for_type(api_version, kind).expect("the type is built in")
}

/// Returns the text in the manner of a minor release.
fn print_in(release: u32, kind: &str, message: &Fields) -> String {
    let (transcoder, mut out) = (transcoder(kind).for_release(release), Vec::new());
    let result = transcoder.object_json(message.as_ref(), Heading::Brace, &mut out);
    assert_eq!(result, Ok(()), "1.{release}");
    String::from_utf8(out).expect("JSON is UTF-8")
}

fn print(kind: &str, message: impl AsRef<[u8]>) -> Result<String, Unexplained> {
    let transcoder = transcoder(kind);
    let mut out = b"before".to_vec();
    let result = transcoder.object_json(message.as_ref(), Heading::Brace, &mut out);
    let text = String::from_utf8(out.split_off(6)).expect("JSON is UTF-8");
    assert_eq!(out, b"before");
    match result {
        Ok(()) => Ok(text),
        Err(error) => {
            assert_eq!(text, "", "nothing is left of an object that is unexplained");
            Err(error)
        }
    }
}

fn reason(kind: &str, message: impl AsRef<[u8]>) -> (String, Reason) {
    let error = print(kind, message).expect_err("the message is not explained");
    (error.path(), error.reason())
}

#[test]
fn an_object_begins_as_it_does_in_an_answer_in_a_list_and_after_a_held_heading() {
    let message = fields().bytes(1, fields().bytes(1, "a"));
    for (heading, expected) in [
        (
            Heading::TypeMeta,
            r#"{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"a"}}"#,
        ),
        (Heading::Brace, r#"{"metadata":{"name":"a"}}"#),
        (Heading::None, r#""metadata":{"name":"a"}}"#),
    ] {
        let mut out = Vec::new();
        Transcoder::for_type("v1", "ConfigMap")
            .expect("the type is built in")
            .object_json(message.as_ref(), heading, &mut out)
            .expect("the message is explained");
        assert_eq!(String::from_utf8_lossy(&out), expected);
    }
}

#[test]
fn members_are_printed_in_the_order_of_the_go_type() {
    // Of a webhook, `name` has the number 1, and is the first; of rules, `operations` comes first and
    // the members of the inlined `Rule` stand after it.
    let rule = fields()
        .bytes(1, "CREATE")
        .bytes(2, fields().bytes(1, "").bytes(2, "v1").bytes(3, "pods"));
    let webhook = fields().bytes(3, rule).bytes(1, "w");
    let text = print(
        "admissionregistration.k8s.io/v1 ValidatingWebhookConfiguration",
        fields().bytes(2, webhook),
    );
    assert_eq!(
        text.as_deref(),
        Ok(concat!(
            r#"{"webhooks":[{"name":"w","rules":[{"operations":["CREATE"],"apiGroups":[""],"#,
            r#""apiVersions":["v1"],"resources":["pods"]}],"sideEffects":null,"#,
            r#""admissionReviewVersions":null}]}"#
        ))
    );
}

#[test]
fn zero_values_are_printed_unless_the_member_omits_them() {
    let status = fields().varint(1, 0).varint(2, 0);
    // `replicas` has no omitempty; `fullyLabeledReplicas` has.
    assert_eq!(
        print("ReplicationController", fields().bytes(3, status)).as_deref(),
        Ok(r#"{"status":{"replicas":0}}"#)
    );
    let rules = "rbac.authorization.k8s.io/v1 Role";
    assert_eq!(print(rules, b"").as_deref(), Ok(r#"{"rules":null}"#));
    assert_eq!(
        print(rules, fields().bytes(2, b"")).as_deref(),
        Ok(r#"{"rules":[{"verbs":null}]}"#)
    );
    // A pointer to a zero value, and bytes that are empty and not nil.
    let spec = fields().varint(1, 0);
    assert_eq!(
        print("ReplicationController", fields().bytes(2, spec)).as_deref(),
        Ok(r#"{"spec":{"replicas":0}}"#)
    );
    let webhook = fields().bytes(2, fields().bytes(2, b""));
    assert_eq!(
        print("apiregistration.k8s.io/v1 APIService", webhook).as_deref(),
        Ok(r#"{"spec":{}}"#)
    );
}

#[test]
fn times_that_are_zero_are_null_or_omitted() {
    let metadata = fields().bytes(8, b"");
    assert_eq!(
        print("ConfigMap", fields().bytes(1, metadata)).as_deref(),
        Ok(r#"{"metadata":{}}"#)
    );
    let metadata = fields()
        .bytes(8, fields().varint(1, 0).varint(2, 0))
        .bytes(9, b"");
    assert_eq!(
        print("ConfigMap", fields().bytes(1, metadata)).as_deref(),
        Ok(concat!(
            r#"{"metadata":{"creationTimestamp":"1970-01-01T00:00:00Z","#,
            r#""deletionTimestamp":null}}"#
        ))
    );
}

#[test]
fn older_releases_print_other_members_that_are_empty() {
    let status = fields().bytes(12, fields().bytes(1, ""));
    let pod = fields().bytes(1, fields().bytes(8, b"")).bytes(3, status);
    for (release, expected) in [
        (
            30,
            r#"{"metadata":{"creationTimestamp":null},"status":{"podIPs":[{}]}}"#,
        ),
        (
            33,
            r#"{"metadata":{"creationTimestamp":null},"status":{"podIPs":[{"ip":""}]}}"#,
        ),
        (34, r#"{"metadata":{},"status":{"podIPs":[{"ip":""}]}}"#),
        (99, r#"{"metadata":{},"status":{"podIPs":[{"ip":""}]}}"#),
    ] {
        assert_eq!(print_in(release, "Pod", &pod), expected);
    }
}

#[test]
fn older_releases_print_other_lists_that_are_absent() {
    let slice = fields().bytes(2, b"");
    for (release, expected) in [(34, r#"{"spec":{"devices":null}}"#), (35, r#"{"spec":{}}"#)] {
        assert_eq!(
            print_in(release, "resource.k8s.io/v1 ResourceSlice", &slice),
            expected
        );
    }
}

#[test]
fn releases_that_were_not_compared_with_the_table_are_unknown() {
    let known: Vec<_> = (0..100)
        .filter(|it| Transcoder::knows_release(*it))
        .collect();
    assert_eq!(known.first(), Some(&30));
    let newest = format!("kubernetes v1.{}.", known.last().unwrap());
    assert!(Transcoder::release().starts_with(&newest), "{newest}");
    assert_eq!(known.len() as u32, known.last().unwrap() - 29);
    assert!(!Transcoder::knows_release(u32::MAX));
}

#[test]
fn releases_that_print_a_type_alike_are_told_from_those_that_do_not() {
    let alike = |kind: &str, one: u32, other: u32| {
        let (api_version, kind) = kind.rsplit_once(' ').unwrap_or(("v1", kind));
        let transcoder = Transcoder::for_type(api_version, kind).expect("the type is built in");
        let releases = [one, other].map(|release| transcoder.for_release(release));
        assert_eq!(
            releases[0].prints_like(&releases[1]),
            releases[1].prints_like(&releases[0])
        );
        releases[0].prints_like(&releases[1])
    };
    // All have metadata, whose creationTimestamp is omitted since 1.34.
    assert!(!alike("ConfigMap", 33, 34));
    assert!(alike("ConfigMap", 34, 37));
    assert!(alike("ConfigMap", 30, 33));
    assert!(alike("ConfigMap", 37, u32::MAX));
    // The difference is in a member of a member of a list.
    assert!(!alike("Pod", 30, 31));
    assert!(!alike("batch/v1 CronJob", 30, 31));
    // The message contains itself.
    let definition = "apiextensions.k8s.io/v1 CustomResourceDefinition";
    assert!(alike(definition, 34, 37));
}

#[test]
fn well_known_values_are_printed_as_their_types_print_them() {
    // Of a Secret: bytes, and bytes that are absent. Of a LimitRange: quantities.
    let secret = fields()
        .entry(2, "a", [0xff, 0])
        .bytes(2, fields().bytes(1, "b"));
    assert_eq!(
        print("Secret", secret).as_deref(),
        Ok(r#"{"data":{"a":"/wA=","b":""}}"#)
    );
    let item = fields()
        .bytes(1, "Pod")
        .entry(2, "cpu", fields().bytes(1, "100m"));
    let range = fields().bytes(2, fields().bytes(1, &item));
    assert_eq!(
        print("LimitRange", range).as_deref(),
        Ok(r#"{"spec":{"limits":[{"type":"Pod","max":{"cpu":"100m"}}]}}"#)
    );
    for (choice, expected) in [(0, "7"), (1, "\"x%\"")] {
        let port = fields().varint(1, choice).varint(2, 7).bytes(3, "x%");
        let service = fields().bytes(2, fields().bytes(1, fields().bytes(4, port)));
        let expected = format!(r#"{{"spec":{{"ports":[{{"targetPort":{expected}}}]}}}}"#);
        assert_eq!(print("Service", service), Ok(expected));
    }
    let revision = |data: &[u8]| {
        let data = fields().bytes(1, data);
        print(
            "apps/v1 ControllerRevision",
            fields().bytes(2, data).varint(3, -1),
        )
    };
    assert_eq!(
        revision(br#"{ "<": [] }"#).as_deref(),
        Ok(r#"{"data":{"\u003c":[]},"revision":-1}"#)
    );
    assert!(revision(b"").is_err(), "Go does not print it either");
}

#[test]
fn claims_within_a_stateful_set_have_their_kind() {
    let spec = fields().bytes(4, fields().bytes(1, fields().bytes(1, "data")));
    assert_eq!(
        print("apps/v1 StatefulSet", fields().bytes(2, spec)).as_deref(),
        Ok(concat!(
            r#"{"spec":{"selector":null,"volumeClaimTemplates":[{"kind":"PersistentVolumeClaim","apiVersion":"v1","#,
            r#""metadata":{"name":"data"}}]}}"#
        ))
    );
}

#[test]
fn what_the_table_does_not_explain_is_named() {
    let pod = |field: Fields| fields().bytes(2, fields().bytes(2, field));
    let path = "spec.containers";
    assert_eq!(
        reason("Pod", pod(fields().bytes(1, "a").varint(99, 1))),
        (path.to_owned(), Reason::UnknownField(99))
    );
    assert_eq!(
        reason("Pod", pod(fields().varint(1, 1))),
        (path.to_owned(), Reason::WrongWireType(1))
    );
    assert_eq!(
        reason("Pod", pod(fields().bytes(1, "a").bytes(1, "b"))),
        (path.to_owned(), Reason::RepeatedField(1))
    );
    assert_eq!(
        reason(
            "Pod",
            pod(fields().bytes(3, "a").bytes(2, "b").bytes(3, "c"))
        ),
        (path.to_owned(), Reason::RepeatedField(3))
    );
    let map = fields().entry(2, "b", "").entry(2, "a", "");
    assert_eq!(
        reason("ConfigMap", map),
        ("data".to_owned(), Reason::UnsortedMap)
    );
    let map = fields().bytes(2, fields().bytes(2, "").bytes(1, "a"));
    assert!(matches!(reason("ConfigMap", map).1, Reason::Value(_)));
    assert_eq!(reason("ConfigMap", [0x0a, 9]).1, Reason::Malformed);
    let error = print("Pod", pod(fields().varint(99, 1))).expect_err("it is unexplained");
    assert_eq!(
        error.to_string(),
        "spec.containers: field 99 is not in the table of types"
    );
}

#[test]
fn an_absent_list_of_an_object_that_is_stored_in_json_is_unexplained() {
    let definition = "apiextensions.k8s.io/v1 CustomResourceDefinition";
    let status = fields().bytes(3, fields().bytes(3, "v1"));
    assert_eq!(
        reason(definition, &status),
        ("status.conditions".to_owned(), Reason::AbsentOrEmpty)
    );
}

#[test]
fn schemas_are_printed_as_what_they_are_instead_of() {
    let either = |number, message: Fields| {
        let schema = fields().bytes(number, message);
        let version = fields().bytes(1, "v1").bytes(4, fields().bytes(1, schema));
        let spec = fields().bytes(7, version);
        let text = print(
            "apiextensions.k8s.io/v1 CustomResourceDefinition",
            fields().bytes(2, spec),
        )
        .expect("the message is explained");
        let (_, schema) = text.split_once(r#""openAPIV3Schema":{"#).expect("a schema");
        schema
            .strip_suffix("}}}]}}")
            .expect("the end of a definition")
            .to_owned()
    };
    let schema = fields().bytes(5, "object");
    let allowed = fields().varint(1, 1);
    for (number, message, expected) in [
        (30, allowed.clone(), r#""additionalProperties":true"#),
        (
            30,
            allowed.bytes(2, &schema),
            r#""additionalProperties":{"type":"object"}"#,
        ),
        (
            24,
            fields().bytes(1, &schema),
            r#""items":{"type":"object"}"#,
        ),
        (
            24,
            fields().bytes(2, &schema).bytes(2, b""),
            r#""items":[{"type":"object"},{}]"#,
        ),
        (24, fields(), r#""items":null"#),
    ] {
        assert_eq!(either(number, message), expected);
    }
}

#[test]
fn nesting_is_bounded() {
    let schema = |depth: usize| {
        let mut schema = Vec::new();
        for _ in 0..depth {
            schema = fields().bytes(28, schema).0;
        }
        let version = fields().bytes(4, fields().bytes(1, schema));
        fields().bytes(2, fields().bytes(7, version))
    };
    let definition = "apiextensions.k8s.io/v1 CustomResourceDefinition";
    assert!(print(definition, schema(100)).is_ok());
    assert_eq!(reason(definition, schema(200)).1, Reason::TooDeep);
    assert_eq!(reason(definition, schema(20_000)).1, Reason::TooDeep);
}
