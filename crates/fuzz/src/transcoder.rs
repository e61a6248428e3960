//! Messages of built-in types, of which JSON is derived.
use serde_json::value::RawValue;
use watershed_protocol::Encoding;
use watershed_transcode::{Heading, Transcoder};

use crate::FuzzTarget;
use crate::objects::recorded;

/// The first bytes of an object in protobuf. Its message follows in a field of its own.
const MAGIC: &[u8] = b"k8s\0";

/// Fuzzes the transcoder. The first two bytes of an input choose the type.
pub(crate) fn transcoded_objects() -> FuzzTarget {
    let mut types: Vec<_> = Transcoder::all().collect();
    types.sort_by_key(|it| (it.api_version(), it.kind()));
    let input = |kind: &str, message: &[u8]| {
        let place = types.iter().position(|it| it.kind() == kind).unwrap();
        [&(place as u16).to_be_bytes()[..], message].concat()
    };
    let mut corpus = vec![
        input(
            "Secret",
            b"\x0a\x05\x0a\x01a\x12\x00\x12\x07\x0a\x01k\x12\x02hi",
        ),
        input("Namespace", b"\x0a\x03\x0a\x01a\x1a\x08\x0a\x06Active"),
    ];
    for object in recorded(Encoding::Protobuf, &["get", "list"]) {
        let message = message_of(&object).unwrap_or_default();
        corpus.extend(["Pod", "Node", "ConfigMap", "Event"].map(|kind| input(kind, message)));
    }
    let words = &[
        "\n\x03\n\x01a",
        "\x12\x00",
        "\x1a\x02",
        "\u{80}\x01",
        "{}",
        "1Gi",
        "\x08\x01",
    ];
    FuzzTarget::new(corpus, words, move |input| {
        let (place, message) = input.split_first_chunk()?;
        let transcoder = types[usize::from(u16::from_be_bytes(*place)) % types.len()];
        let mut json = b"before".to_vec();
        let printed = transcoder.object_json(message, Heading::TypeMeta, &mut json);
        // A member of two bytes has a name of 40 and a value of 20 at most.
        assert!(json.len() <= 200 + 100 * message.len());
        assert!(json.capacity() <= 2 * (200 + 100 * message.len()));
        let json = json.strip_prefix(b"before").unwrap();
        match printed {
            Ok(()) => {
                // Embedded JSON is copied as Go copies it, with bytes that are not UTF-8.
                let text = String::from_utf8_lossy(json);
                assert!(serde_json::from_str::<&RawValue>(&text).is_ok(), "{text}");
                Some((transcoder.kind(), json.len(), String::new()))
            }
            Err(error) => {
                assert_eq!(json, b"", "nothing is appended");
                let reason = error.to_string();
                assert!(reason.len() < 1_000, "{reason}");
                Some((transcoder.kind(), 0, reason))
            }
        }
    })
}

/// Returns the message in a recorded object: {1: its type, 2: the message} behind [`MAGIC`].
fn message_of(object: &[u8]) -> Option<&[u8]> {
    let unknown = object.strip_prefix(MAGIC)?;
    let type_length = usize::from(*unknown.get(1)?);
    let mut rest = unknown.get(type_length + 3..)?;
    let (mut length, mut shift) = (0, 0);
    loop {
        let (byte, after) = rest.split_first()?;
        rest = after;
        length |= usize::from(byte & 0x7f) << shift;
        shift += 7;
        if byte & 0x80 == 0 {
            return rest.get(..length);
        }
    }
}
