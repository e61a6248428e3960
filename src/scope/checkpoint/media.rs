//! The media types by which a replica asks another one for a checkpoint.
//!
//! It is a list of the type, in this form. API servers do not know it and answer 406, as does a
//! replica that writes checkpoints in another layout.

use http::HeaderMap;
use http::header::ACCEPT;
use watershed_protocol::{Encoding, Representation};

const MEDIA_TYPES: [(Encoding, bool, &str); 4] = [
    (
        Encoding::Protobuf,
        false,
        "application/vnd.watershed.checkpoint;layout=2;encoding=protobuf",
    ),
    (
        Encoding::Protobuf,
        true,
        "application/vnd.watershed.checkpoint;layout=2;encoding=protobuf;part=metadata",
    ),
    (
        Encoding::Json,
        false,
        "application/vnd.watershed.checkpoint;layout=2;encoding=json",
    ),
    (
        Encoding::Json,
        true,
        "application/vnd.watershed.checkpoint;layout=2;encoding=json;part=metadata",
    ),
];

/// Returns the media type of a checkpoint of objects in this representation.
pub fn checkpoint_media_type(of: Representation) -> &'static str {
    let known = MEDIA_TYPES.iter().find(|(encoding, metadata_only, _)| {
        (*encoding, *metadata_only) == (of.encoding, of.metadata_only)
    });
    known.map_or("", |(_, _, media_type)| media_type)
}

/// Returns the representation of which a request asks for a checkpoint; `None` if it does not.
pub fn wanted_checkpoint(headers: &HeaderMap) -> Option<Representation> {
    let mut lines = headers.get_all(ACCEPT).iter();
    let only = lines.next().filter(|_| lines.next().is_none())?;
    let (encoding, metadata_only, _) = MEDIA_TYPES
        .iter()
        .find(|(_, _, media_type)| only.as_bytes() == media_type.as_bytes())?;
    Some(Representation {
        encoding: *encoding,
        metadata_only: *metadata_only,
    })
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::super::file::MAGIC;
    use super::*;

    #[test]
    fn each_representation_has_a_media_type_with_the_number_of_the_layout() {
        let magic = std::str::from_utf8(MAGIC).unwrap();
        let layout = magic.trim_end().rsplit(' ').next().unwrap();
        for encoding in [Encoding::Json, Encoding::Protobuf] {
            for metadata_only in [false, true] {
                let representation = Representation {
                    encoding,
                    metadata_only,
                };
                let media_type = checkpoint_media_type(representation);
                assert!(media_type.contains(&format!(";layout={layout};")));
                let value = HeaderValue::from_static(media_type);
                let headers = HeaderMap::from_iter([(ACCEPT, value)]);
                assert_eq!(wanted_checkpoint(&headers), Some(representation));
            }
        }
    }

    #[test]
    fn other_requests_ask_for_none() {
        assert_eq!(wanted_checkpoint(&HeaderMap::new()), None);
        let own = checkpoint_media_type(Representation::whole(Encoding::Json));
        let others = [
            "*/*",
            "application/json",
            "application/vnd.watershed.checkpoint",
        ];
        for other in others {
            let headers = HeaderMap::from_iter([(ACCEPT, HeaderValue::from_static(other))]);
            assert_eq!(wanted_checkpoint(&headers), None, "{other}");
        }
        let mut twice = HeaderMap::from_iter([(ACCEPT, HeaderValue::from_static(own))]);
        twice.append(ACCEPT, HeaderValue::from_static(own));
        assert_eq!(wanted_checkpoint(&twice), None);
    }
}
