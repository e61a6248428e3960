//! Watches, lists of versions and gzip: what arrives in pieces. However it is cut, it means the
//! same.
use bytes::Bytes;
use watershed_protocol::{
    Encoding, FieldTable, FrameDecoder, GzipReader, VersionListReader, gzip_member,
};

use crate::FuzzTarget;
use crate::objects::recorded;

const MAX_FRAME: usize = 8 << 10;

/// Cuts an input into pieces, by its own first byte.
fn pieces(input: &[u8]) -> Vec<&[u8]> {
    let size = usize::from(input.first().copied().unwrap_or(0) % 13) + 1;
    input.chunks(size).collect()
}

pub(crate) fn frames_in_json() -> FuzzTarget {
    frames(Encoding::Json)
}

pub(crate) fn frames_in_protobuf() -> FuzzTarget {
    frames(Encoding::Protobuf)
}

fn frames(encoding: Encoding) -> FuzzTarget {
    let words = &[
        "\n",
        "{\"type\":\"ADDED\",\"object\":",
        "BOOKMARK",
        "}}",
        "\0\0\0\x10",
        "\r\n",
    ];
    FuzzTarget::new(recorded(encoding, &["watch"]), words, move |input| {
        let decode = |pieces: &[&[u8]]| {
            let mut decoder = FrameDecoder::new(encoding, MAX_FRAME);
            let (mut kinds, mut failed) = (Vec::new(), false);
            for piece in pieces {
                decoder.push(Bytes::copy_from_slice(piece));
                while !failed {
                    match decoder.next_frame() {
                        Ok(Some(frame)) => {
                            assert!(frame.frame.len() <= MAX_FRAME);
                            kinds.push((frame.kind.as_str(), frame.object.len()));
                        }
                        Ok(None) => break,
                        Err(_) => failed = true,
                    }
                }
            }
            (kinds, failed, decoder.is_clean())
        };
        let whole = decode(&[input]);
        assert_eq!(decode(&pieces(input)), whole);
        whole
    })
}

pub(crate) fn lists_of_versions() -> FuzzTarget {
    let corpus = recorded(Encoding::Protobuf, &["list", "empty"]);
    let words = &["k8s\0", "\n\x0b", "\x12\x00", "\x0a\x00", "\u{80}\u{80}"];
    FuzzTarget::new(corpus, words, |input| {
        let read = |pieces: &[&[u8]]| {
            let mut reader = VersionListReader::new(FieldTable::metadata_only(true));
            let failed = pieces.iter().any(|piece| reader.push(piece).is_err());
            let count = reader.count();
            let list = reader.end().ok().filter(|_| !failed);
            (list.map(|list| (list.version.0, count)), count)
        };
        let (whole, count) = read(&[input]);
        assert_eq!(read(&pieces(input)).0, whole);
        (whole, count)
    })
}

pub(crate) fn gzip() -> FuzzTarget {
    let member = |text: &[u8]| gzip_member(text).to_vec();
    let corpus = [
        member(b""),
        member(b"an event\n"),
        member(&b"much of the same ".repeat(500)),
        [member(b"one"), member(b"two")].concat(),
    ];
    FuzzTarget::new(corpus, &["\x1f\u{8b}", "\0\0\0\0", "\u{ff}"], |input| {
        let read = |pieces: &[&[u8]]| {
            let (mut reader, mut length) = (GzipReader::default(), 0);
            for piece in pieces {
                if reader.read(piece, |out| length += out.len()).is_err() {
                    return None;
                }
            }
            Some((length, reader.is_between()))
        };
        let whole = read(&[input]);
        assert_eq!(read(&pieces(input)), whole);
        whole
    })
}
