//! gzip as upstream does it: who gets it, at which level, and in which pieces.
use std::cell::RefCell;

use bytes::Bytes;
use flate2::{Compress, Compression, FlushCompress, Status};
use http::{HeaderMap, header};

/// Upstream's level.
/// Source: `apiserver/pkg/endpoints/handlers/responsewriters/compression.go` (gzipContentEncodingLevel).
pub const GZIP_LEVEL: Compression = Compression::new(1);

/// The window of gzip, as a power of two.
const WINDOW_BITS: u8 = 15;

thread_local! {
    /// A compressor's state takes hundreds of kilobytes: one for each thread is used again and again, and
    /// none is held by a watch that is waiting.
    static COMPRESSOR: RefCell<Compress> = RefCell::new(Compress::new_gzip(GZIP_LEVEL, WINDOW_BITS));
}

/// Whether the client takes gzip, as upstream reads the header: the first line, and a clause that is `gzip`
/// and nothing else.
/// Source: `apiserver/pkg/endpoints/handlers/responsewriters/compression.go` (ContentEncodingSupported).
pub fn accepts_gzip(headers: &HeaderMap) -> bool {
    let accepted = headers.get(header::ACCEPT_ENCODING).and_then(|value| value.to_str().ok());
    accepted.is_some_and(|accepted| accepted.split(',').any(|clause| clause.trim() == "gzip"))
}

/// One whole member of gzip, never empty. Members one after another are what they hold one after another
/// (RFC 1952, 2.2): so upstream lets each flush of a watch end one.
/// Source: `apiserver/pkg/endpoints/handlers/watch.go` (perFlushGzipWriter).
///
/// As there, a flush comes before the end. Go's reader would else keep the last bytes of a member to itself
/// until the next one begins, and every Go client would be one event late.
pub fn gzip_member(data: &[u8]) -> Bytes {
    COMPRESSOR.with_borrow_mut(|compressor| {
        compressor.reset();
        let mut member = Vec::with_capacity(data.len() / 4 + 128);
        for flush in [FlushCompress::Sync, FlushCompress::Finish] {
            loop {
                let rest = &data[compressor.total_in() as usize..];
                let status = compressor.compress_vec(rest, &mut member, flush);
                let status = status.expect("a compressor that was reset takes whatever comes");
                // Where room is left, nothing is.
                if status == Status::StreamEnd || member.len() < member.capacity() {
                    break;
                }
                member.reserve(data.len() / 2 + 128);
            }
        }
        // Kept as long as its event is: without the room that was left.
        Bytes::from(member.into_boxed_slice())
    })
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use flate2::read::{GzDecoder, MultiGzDecoder};
    use http::HeaderValue;

    use super::*;

    #[test]
    fn a_client_must_say_so_plainly() {
        let accepting =
            |text| HeaderMap::from_iter([(header::ACCEPT_ENCODING, HeaderValue::from_static(text))]);
        for text in ["gzip", "deflate, gzip", "gzip,br;q=0.5"] {
            assert!(accepts_gzip(&accepting(text)), "{text}");
        }
        for text in ["", "gzip;q=1", "gzip;q=0", "*", "GZIP", "x-gzip"] {
            assert!(!accepts_gzip(&accepting(text)), "{text}");
        }
        assert!(!accepts_gzip(&HeaderMap::new()));
    }

    #[test]
    fn members_are_whole_and_follow_one_another() {
        let words: Vec<u8> = (0..9999_u32).flat_map(|n| (n % 977).to_string().into_bytes()).collect();
        let mut noise = vec![0; 70_000];
        fastrand::Rng::with_seed(1).fill(&mut noise);
        let (mut members, mut all) = (Vec::new(), Vec::new());
        for data in [&b"{}\n"[..], &words, &noise, b"", &noise[..1]] {
            let member = gzip_member(data);
            // A flush, an end without data, checksum and length.
            assert_eq!(member[member.len() - 14..member.len() - 8], [0, 0, 0xff, 0xff, 3, 0]);
            let mut again = Vec::new();
            // Reads a single member only.
            GzDecoder::new(&member[..]).read_to_end(&mut again).unwrap();
            assert!(again == data);
            members.extend_from_slice(&member);
            all.extend_from_slice(data);
        }
        let mut again = Vec::new();
        MultiGzDecoder::new(&members[..]).read_to_end(&mut again).unwrap();
        assert!(again == all);
    }
}
