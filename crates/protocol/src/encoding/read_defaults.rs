//! Changes that API servers make to objects of two types whenever these are read, but not in events.
//!
//! Gets, lists and the events that a watch begins with pass a function of the type. Events of an open
//! watch do not: all watches share them, and the function does not know their shared form. So the
//! object in such an event is not always what a get returns at the same version.
//!
//! Not covered are services that were stored before 1.20, which lack `clusterIPs` and `ipFamilies` until
//! they are written: their values depend on the API server's flags.
//!
//! Sources: `pkg/registry/core/service/storage/storage.go` (defaultOnReadInternalTrafficPolicy) and
//! `pkg/registry/core/persistentvolumeclaim/storage/storage.go` (defaultOnReadPvc) of Kubernetes,
//! `apiserver/pkg/registry/generic/registry/decorated_watcher.go`. Names, order and numbers of the
//! members: `api/core/v1/{types.go,generated.proto}`.
use std::borrow::Cow;

use bytes::Bytes;
use memchr::memmem;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::protobuf::{self, FieldReader, FieldValue};
use super::{Encoding, json};
use crate::resource::GroupVersionResource;

/// Number of the field `spec` of both types.
const SPEC: u32 = 2;

/// The changes that API servers make to objects of a type when these are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadDefaults {
    /// Nothing.
    None,
    /// Services of the type `ExternalName` have no `internalTrafficPolicy`. It was once stored by
    /// mistake, and still is.
    Services,
    /// Claims with one of `dataSource` and `dataSourceRef` have it as the other one, too, unless the
    /// latter names a namespace. Claims from before the second member was known lack it in etcd.
    Claims,
}

impl ReadDefaults {
    /// Returns the changes to objects of this type.
    pub fn of(gvr: &GroupVersionResource) -> Self {
        match (&*gvr.group, &*gvr.version, &*gvr.resource) {
            ("", "v1", "services") => Self::Services,
            ("", "v1", "persistentvolumeclaims") => Self::Claims,
            _ => Self::None,
        }
    }

    /// Returns the object of an event as it would be read; `None` if it is the same.
    pub fn applied(self, encoding: Encoding, object: &Bytes) -> Option<Bytes> {
        let sign: &[u8] = match (self, encoding) {
            (Self::None, _) => return None,
            (Self::Services, _) => b"ExternalName",
            (Self::Claims, Encoding::Json) => b"\"dataSource",
            // Fields have no names there, and most claims are small.
            (Self::Claims, Encoding::Protobuf) => b"",
        };
        // Few objects are concerned, and only those are parsed.
        memmem::find(object, sign)?;
        match encoding {
            Encoding::Json => self.applied_to_text(object),
            Encoding::Protobuf => self.applied_to_message(object),
        }
    }

    fn applied_to_text(self, object: &[u8]) -> Option<Bytes> {
        #[derive(Deserialize)]
        struct Object<'a> {
            #[serde(borrow)]
            spec: &'a RawValue,
        }
        let read: Object<'_> = serde_json::from_slice(object).ok()?;
        let changed = match self {
            Self::None => return None,
            Self::Services => text_without_policy(object, read.spec)?,
            Self::Claims => text_with_reference(object, read.spec)?,
        };
        Some(changed.into())
    }

    fn applied_to_message(self, object: &[u8]) -> Option<Bytes> {
        let [before, spec, after] = protobuf::split_at_field(object, SPEC).ok()?;
        let spec = match self {
            Self::None => return None,
            Self::Services => spec_without_policy(spec)?,
            Self::Claims => spec_with_reference(spec)?,
        };
        let mut out = Vec::with_capacity(object.len() + spec.len());
        out.extend_from_slice(before);
        protobuf::put_bytes(&mut out, SPEC, &spec);
        out.extend_from_slice(after);
        Some(out.into())
    }
}

/// Returns the text of a service without its policy, if it is of the type that has none.
fn text_without_policy(service: &[u8], spec: &RawValue) -> Option<Vec<u8>> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct ServiceSpec<'a> {
        #[serde(borrow, rename = "type")]
        kind: Option<&'a RawValue>,
        #[serde(borrow)]
        internal_traffic_policy: Option<&'a RawValue>,
    }
    let spec: ServiceSpec<'_> = serde_json::from_str(spec.get()).ok()?;
    let policy = spec.internal_traffic_policy?;
    if spec.kind?.get() != r#""ExternalName""# {
        return None;
    }
    let value = json::span(service, policy);
    let (before, after) = json::around_member(service, b"\"internalTrafficPolicy\":", value)?;
    Some([before, after].concat())
}

/// Returns the text of a claim with both members, if one implies the other.
fn text_with_reference(claim: &[u8], spec: &RawValue) -> Option<Vec<u8>> {
    const REFERENCE: &[u8] = b",\"dataSourceRef\":";
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct ClaimSpec<'a> {
        #[serde(borrow)]
        data_source: Option<&'a RawValue>,
        #[serde(borrow)]
        data_source_ref: Option<&'a RawValue>,
    }
    let spec: ClaimSpec<'_> = serde_json::from_str(spec.get()).ok()?;
    match (spec.data_source, spec.data_source_ref) {
        (Some(source), None) => {
            let (before, after) = claim.split_at(json::span(claim, source).end);
            Some([before, REFERENCE, source.get().as_bytes(), after].concat())
        }
        (None, Some(reference)) => {
            let start = json::span(claim, reference).start;
            // The source goes before the reference, and another member is always before these.
            let before = claim[..start].strip_suffix(REFERENCE)?;
            let after = &claim[before.len()..];
            let source = text_as_source(reference)?;
            Some([before, b",\"dataSource\":", &source, after].concat())
        }
        _ => None,
    }
}

/// Returns the spec of a service without its policy, if it is of the type that has none.
fn spec_without_policy(spec: &[u8]) -> Option<Vec<u8>> {
    const TYPE: u32 = 4;
    const INTERNAL_TRAFFIC_POLICY: u32 = 22;
    let (mut rest, mut is_external) = (Vec::with_capacity(spec.len()), false);
    let mut fields = FieldReader::new(spec);
    loop {
        let start = fields.position();
        let Some((number, value)) = fields.next().ok()? else {
            break;
        };
        is_external |= number == TYPE && value == FieldValue::Bytes(b"ExternalName");
        if number != INTERNAL_TRAFFIC_POLICY {
            rest.extend_from_slice(&spec[start..fields.position()]);
        }
    }
    (is_external && rest.len() < spec.len()).then_some(rest)
}

/// Returns the text of a reference as a source, which has no namespace. `None` if the reference names one,
/// or is odd.
fn text_as_source(reference: &RawValue) -> Option<Cow<'_, [u8]>> {
    #[derive(Deserialize)]
    struct Reference<'a> {
        #[serde(borrow)]
        namespace: Option<&'a RawValue>,
    }
    let text = reference.get().as_bytes();
    let read: Reference<'_> = serde_json::from_slice(text).ok()?;
    let Some(namespace) = read.namespace else {
        return Some(text.into());
    };
    if namespace.get() != r#""""# {
        return None;
    }
    let value = json::span(text, namespace);
    let (before, after) = json::around_member(text, b"\"namespace\":", value)?;
    Some([before, after].concat().into())
}

/// Returns the spec of a claim with both members, if one implies the other.
fn spec_with_reference(spec: &[u8]) -> Option<Vec<u8>> {
    const DATA_SOURCE: u32 = 7;
    const DATA_SOURCE_REF: u32 = 8;
    let (mut source, mut reference, mut fields) = (None, None, FieldReader::new(spec));
    loop {
        let start = fields.position();
        let Some((number, value)) = fields.next().ok()? else {
            break;
        };
        match number {
            DATA_SOURCE => source = Some((value.bytes().ok()?, fields.position())),
            DATA_SOURCE_REF => reference = Some((value.bytes().ok()?, start)),
            _ => {}
        }
    }
    let (number, content, at) = match (source, reference) {
        (Some((source, end)), None) => (DATA_SOURCE_REF, source.into(), end),
        (None, Some((reference, start))) => (DATA_SOURCE, message_as_source(reference)?, start),
        _ => return None,
    };
    let (before, after) = spec.split_at(at);
    let mut out = Vec::with_capacity(spec.len() + content.len() + 4);
    out.extend_from_slice(before);
    protobuf::put_bytes(&mut out, number, &content);
    out.extend_from_slice(after);
    Some(out)
}

/// Returns the message of a reference as a source, which has the same fields but the namespace. `None` if
/// the reference names one, or is odd.
fn message_as_source(reference: &[u8]) -> Option<Vec<u8>> {
    const NAMESPACE: u32 = 4;
    let mut source = Vec::with_capacity(reference.len());
    let mut fields = FieldReader::new(reference);
    loop {
        let start = fields.position();
        match fields.next().ok()? {
            None => return Some(source),
            Some((NAMESPACE, FieldValue::Bytes(b""))) => {}
            Some((NAMESPACE, _)) => return None,
            Some(_) => source.extend_from_slice(&reference[start..fields.position()]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVICE: &str = concat!(
        r#"{"kind":"Service","apiVersion":"v1","metadata":{"name":"a"},"spec":{"type":"ExternalName","#,
        r#""externalName":"b.test","internalTrafficPolicy":"Cluster","trafficDistribution":"x"},"status":{}}"#
    );
    const CLAIM: &str = concat!(
        r#"{"kind":"PersistentVolumeClaim","apiVersion":"v1","metadata":{"name":"a"},"spec":{"#,
        r#""dataSource":{"apiGroup":"s","kind":"V","name":"n"},"volumeAttributesClassName":"c"}}"#
    );

    fn text(defaults: ReadDefaults, object: &str) -> Option<String> {
        let read = defaults.applied(Encoding::Json, &Bytes::copy_from_slice(object.as_bytes()));
        read.map(|read| String::from_utf8(read.to_vec()).unwrap())
    }

    #[test]
    fn external_services_are_read_without_a_policy() {
        let wanted = SERVICE.replace(r#","internalTrafficPolicy":"Cluster""#, "");
        assert_eq!(text(ReadDefaults::Services, SERVICE), Some(wanted.clone()));
        let inner = SERVICE.replace(r#""type":"ExternalName""#, r#""type":"ClusterIP""#);
        for same in [wanted, inner.replace("b.test", "ExternalName"), inner] {
            assert_eq!(text(ReadDefaults::Services, &same), None);
        }
    }

    #[test]
    fn claims_are_read_with_the_reference_of_their_source() {
        let reference = r#""n"},"dataSourceRef":{"apiGroup":"s","kind":"V","name":"n"}"#;
        let wanted = CLAIM.replace(r#""n"}"#, reference);
        assert_eq!(text(ReadDefaults::Claims, CLAIM), Some(wanted.clone()));
        for same in [
            wanted,
            CLAIM.replace(r#""dataSource":{"#, r#""selector":{"#),
        ] {
            assert_eq!(text(ReadDefaults::Claims, &same), None);
        }
    }

    #[test]
    fn claims_are_read_with_the_source_of_their_reference() {
        let claim = |members: &str| {
            CLAIM.replace(
                r#""dataSource":{"apiGroup":"s","kind":"V","name":"n"}"#,
                members,
            )
        };
        let of = |namespace: &str| {
            let reference = format!(r#"{{"apiGroup":null,"kind":"V","name":"n"{namespace}}}"#);
            claim(&format!(r#""accessModes":[],"dataSourceRef":{reference}"#))
        };
        // A source has no namespace.
        for namespace in ["", r#","namespace":"""#] {
            let source = r#","dataSource":{"apiGroup":null,"kind":"V","name":"n"},"dataSourceRef""#;
            let wanted = of(namespace).replace(r#","dataSourceRef""#, source);
            assert_eq!(text(ReadDefaults::Claims, &of(namespace)), Some(wanted));
        }
        for elsewhere in [r#","namespace":"b""#, r#","namespace":7"#] {
            assert_eq!(text(ReadDefaults::Claims, &of(elsewhere)), None);
        }
    }

    /// Returns a message of these fields.
    fn message(fields: &[(u32, &[u8])]) -> Vec<u8> {
        let mut out = Vec::new();
        for (number, content) in fields {
            protobuf::put_bytes(&mut out, *number, content);
        }
        out
    }

    #[test]
    fn messages_are_read_as_texts_are() {
        type Field<'a> = (u32, &'a [u8]);
        type Fields<'a> = &'a [Field<'a>];
        let kind: Field<'_> = (4, b"ExternalName");
        let policy: Field<'_> = (22, b"Cluster");
        let source: &[u8] = b"source";
        let elsewhere = message(&[(2, b"V"), (4, b"b")]);
        let nowhere = message(&[(2, b"V"), (3, b"n"), (4, b"")]);
        let named = message(&[(2, b"V"), (3, b"n")]);
        let cases: [(ReadDefaults, Fields<'_>, Option<Fields<'_>>); 9] = [
            (
                ReadDefaults::Services,
                &[kind, policy, (23, b"x")],
                Some(&[kind, (23, b"x")]),
            ),
            (ReadDefaults::Services, &[kind, (23, b"x")], None),
            (
                ReadDefaults::Services,
                &[(4, b"ClusterIP"), (10, b"ExternalName"), policy],
                None,
            ),
            (
                ReadDefaults::Claims,
                &[(3, b"v"), (7, source), (9, b"c")],
                Some(&[(3, b"v"), (7, source), (8, source), (9, b"c")]),
            ),
            (ReadDefaults::Claims, &[(7, source), (8, b"other")], None),
            (ReadDefaults::Claims, &[(3, b"v")], None),
            (ReadDefaults::Claims, &[(8, &elsewhere)], None),
            (
                ReadDefaults::Claims,
                &[(8, &nowhere)],
                Some(&[(7, &named), (8, &nowhere)]),
            ),
            (
                ReadDefaults::Claims,
                &[(6, b"x"), (8, &[18, 1, b'V'])],
                Some(&[(6, b"x"), (7, &[18, 1, b'V']), (8, &[18, 1, b'V'])]),
            ),
        ];
        for (defaults, held, wanted) in cases {
            let whole = |spec: Fields<'_>| message(&[(1, b"m"), (2, &message(spec)), (3, b"s")]);
            let read = defaults.applied(Encoding::Protobuf, &whole(held).into());
            assert_eq!(read, wanted.map(|wanted| whole(wanted).into()), "{held:?}");
        }
    }
}
