//! gzip as upstream negotiates it, its level, and members.
use std::cell::RefCell;
use std::io::{self, Write};

use bytes::{Bytes, BytesMut};
use flate2::write::GzEncoder;
use flate2::{Compress, Compression, Crc, Decompress, FlushCompress, FlushDecompress, Status};
use http::{HeaderMap, header};
use zlib_rs::crc32::{crc32_combine_gen, crc32_combine_op};

/// The level of all that is compressed, for clients and in memory.
///
/// Upstream has level 1 of Go. That of zlib-rs has fixed codes, and its output is larger than
/// upstream's. Level 2 is the fastest one that chooses codes, and takes as long as upstream's.
/// Source: `apiserver/pkg/endpoints/handlers/responsewriters/compression.go`
/// (gzipContentEncodingLevel).
const LEVEL: Compression = Compression::new(2);

/// The window of gzip, as a power of two.
const WINDOW_BITS: u8 = 15;

thread_local! {
    /// Compressor of whole members. Its state takes hundreds of kilobytes, so each thread has one,
    /// and a waiting watch holds none.
    static COMPRESSOR: RefCell<Compress> =
        RefCell::new(Compress::new_gzip(LEVEL, WINDOW_BITS));
    /// Compressor of pieces of members.
    static DEFLATER: RefCell<Compress> = RefCell::new(Compress::new(LEVEL, false));
    /// Decompressor of pieces of members.
    static INFLATER: RefCell<Decompress> = RefCell::new(Decompress::new(false));
}

/// The head of a member: deflate, no flags, no time, fast, an unknown system (RFC 1952, 2.3).
const HEAD: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 4, 255];
/// An empty last block, with fixed codes, that begins on a byte (RFC 1951, 3.2.3).
const LAST_BLOCK: [u8; 2] = [3, 0];

/// A piece of a member: compressed bytes, and their part of the member's trailer.
///
/// It refers to no bytes before it and ends on a byte boundary, so any member can have it anywhere.
#[derive(Debug)]
pub struct Deflated {
    /// Blocks of deflate (RFC 1951), none of them the last.
    pub bytes: Bytes,
    checksum: u32,
    /// The effect of its length on the checksum of the data before it. Computing it is most of the
    /// work of joining two checksums, and each piece is joined again for each client.
    shift: u32,
    length: u32,
}

/// The checksum and length of a member that consists of pieces.
#[derive(Debug)]
pub struct GzipMember {
    checksum: u32,
    length: u32,
}

/// Compresses a body to one member, piece by piece.
#[derive(Debug)]
pub struct GzipWriter(GzEncoder<Vec<u8>>);

/// Compresses a piece of a member.
pub fn deflate(data: &[u8]) -> Deflated {
    let bytes =
        DEFLATER.with_borrow_mut(|deflater| compress(deflater, data, &[FlushCompress::Sync]));
    Deflated::new(bytes, data)
}

impl Deflated {
    fn new(bytes: Bytes, data: &[u8]) -> Self {
        let mut checksum = Crc::new();
        checksum.update(data);
        let shift = crc32_combine_gen(data.len() as u64);
        Self {
            bytes,
            checksum: checksum.sum(),
            shift,
            length: checksum.amount(),
        }
    }

    /// Returns the number of bytes that were compressed.
    pub fn data_len(&self) -> usize {
        self.length as usize
    }

    /// Appends the data that the piece was made of. Returns `false` if it is not in it.
    #[must_use]
    pub fn inflate(&self, out: &mut Vec<u8>) -> bool {
        let begin = out.len();
        out.reserve_exact(self.data_len());
        let is_read = INFLATER.with_borrow_mut(|inflater| {
            inflater.reset(false);
            while out.len() - begin < self.data_len() {
                let (taken, made) = (inflater.total_in() as usize, out.len());
                let rest = &self.bytes[taken.min(self.bytes.len())..];
                let status = inflater.decompress_vec(rest, out, FlushDecompress::Sync);
                if status.is_err() || out.len() == made {
                    return false;
                }
            }
            true
        });
        let mut checksum = Crc::new();
        checksum.update(&out[begin..]);
        is_read && out.len() - begin == self.data_len() && checksum.sum() == self.checksum
    }

    /// Creates a piece with one uncompressed byte (RFC 1951, 3.2.4).
    pub fn stored(data: &'static [u8; 1]) -> Self {
        Self::new(vec![0, 1, 0, 0xfe, 0xff, data[0]].into(), data)
    }
}

impl GzipMember {
    /// Begins a member in `out`.
    pub fn begin(out: &mut BytesMut) -> Self {
        out.extend_from_slice(&HEAD);
        Self {
            checksum: 0,
            length: 0,
        }
    }

    /// Appends a piece.
    pub fn put(&mut self, piece: &Deflated, out: &mut BytesMut) {
        out.extend_from_slice(&piece.bytes);
        self.checksum = crc32_combine_op(self.checksum, piece.checksum, piece.shift);
        self.length = self.length.wrapping_add(piece.length);
    }

    /// Ends the member.
    pub fn end(self, out: &mut BytesMut) {
        out.extend_from_slice(&LAST_BLOCK);
        out.extend_from_slice(&self.checksum.to_le_bytes());
        out.extend_from_slice(&self.length.to_le_bytes());
    }
}

impl Default for GzipWriter {
    /// Begins a member.
    fn default() -> Self {
        Self(GzEncoder::new(Vec::new(), LEVEL))
    }
}

impl GzipWriter {
    /// Compresses more of the body. Returns the bytes of the member that are ready, which may be none.
    pub fn push(&mut self, data: &[u8]) -> io::Result<Vec<u8>> {
        self.0.write_all(data)?;
        Ok(std::mem::take(self.0.get_mut()))
    }

    /// Ends the member. Returns the rest of it.
    pub fn finish(self) -> io::Result<Vec<u8>> {
        self.0.finish()
    }
}

/// Returns `true` if the client accepts gzip.
///
/// As upstream, it reads the first header line only, and a clause must be exactly `gzip`.
/// Source: `apiserver/pkg/endpoints/handlers/responsewriters/compression.go`
/// (ContentEncodingSupported).
pub fn accepts_gzip(headers: &HeaderMap) -> bool {
    let accepted = headers
        .get(header::ACCEPT_ENCODING)
        .and_then(|value| value.to_str().ok());
    accepted.is_some_and(|accepted| accepted.split(',').any(|clause| clause.trim() == "gzip"))
}

/// Compresses data to one whole member of gzip, which is never empty.
///
/// Members can follow each other (RFC 1952, 2.2), and upstream ends one at each flush of a watch.
/// Source: `apiserver/pkg/endpoints/handlers/watch.go` (perFlushGzipWriter).
///
/// As upstream, it flushes before the end. Otherwise Go's reader would keep the last bytes of a
/// member until the next one begins, and every Go client would be one event late.
pub fn gzip_member(data: &[u8]) -> Bytes {
    COMPRESSOR.with_borrow_mut(|compressor| {
        compress(
            compressor,
            data,
            &[FlushCompress::Sync, FlushCompress::Finish],
        )
    })
}

/// Compresses from the start, with these flushes at the end.
fn compress(compressor: &mut Compress, data: &[u8], flushes: &[FlushCompress]) -> Bytes {
    compressor.reset();
    let mut out = Vec::with_capacity(data.len() / 4 + 128);
    for &flush in flushes {
        loop {
            let rest = &data[compressor.total_in() as usize..];
            let status = compressor.compress_vec(rest, &mut out, flush);
            let status = status.expect("a compressor that was reset takes whatever comes");
            // Where room is left, nothing is.
            if status == Status::StreamEnd || out.len() < out.capacity() {
                break;
            }
            out.reserve(data.len() / 2 + 128);
        }
    }
    // Kept as long as what it is made of: without the room that was left.
    Bytes::from(out.into_boxed_slice())
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Seek, Write};
    use std::process::Command;

    use flate2::read::{GzDecoder, MultiGzDecoder};
    use http::HeaderValue;

    use super::*;

    #[test]
    fn a_client_must_say_so_plainly() {
        let accepting = |text| {
            HeaderMap::from_iter([(header::ACCEPT_ENCODING, HeaderValue::from_static(text))])
        };
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
        let words: Vec<u8> = (0..9999_u32)
            .flat_map(|n| (n % 977).to_string().into_bytes())
            .collect();
        let mut noise = vec![0; 70_000];
        fastrand::Rng::with_seed(1).fill(&mut noise);
        let (mut members, mut all) = (Vec::new(), Vec::new());
        for data in [&b"{}\n"[..], &words, &noise, b"", &noise[..1]] {
            let member = gzip_member(data);
            // A flush, an end without data, checksum and length.
            assert_eq!(
                member[member.len() - 14..member.len() - 8],
                [0, 0, 0xff, 0xff, 3, 0]
            );
            let mut again = Vec::new();
            // Reads a single member only.
            GzDecoder::new(&member[..]).read_to_end(&mut again).unwrap();
            assert!(again == data);
            members.extend_from_slice(&member);
            all.extend_from_slice(data);
        }
        let mut again = Vec::new();
        MultiGzDecoder::new(&members[..])
            .read_to_end(&mut again)
            .unwrap();
        assert!(again == all);
    }

    #[test]
    fn a_piece_gives_its_data_back() {
        let words: Vec<u8> = (0..9999_u32)
            .flat_map(|n| (n % 977).to_string().into_bytes())
            .collect();
        let mut noise = vec![0; 70_000];
        fastrand::Rng::with_seed(1).fill(&mut noise);
        for data in [&b"{}"[..], &words, &noise, b"", &noise[..1]] {
            let piece = deflate(data);
            assert_eq!(piece.data_len(), data.len());
            let mut out = b"before".to_vec();
            assert!(piece.inflate(&mut out));
            assert!(out == [b"before", data].concat());
        }
        let piece = deflate(&words);
        let cut = piece.bytes.slice(..piece.bytes.len() / 2);
        assert!(
            !Deflated {
                bytes: cut,
                ..piece
            }
            .inflate(&mut Vec::new()),
            "cut off"
        );
        let other = deflate(&noise).bytes;
        let piece = deflate(&words);
        assert!(
            !Deflated {
                bytes: other,
                ..piece
            }
            .inflate(&mut Vec::new()),
            "other data"
        );
    }

    #[test]
    fn pieces_make_one_member() {
        let words: Vec<u8> = (0..9999_u32)
            .flat_map(|n| (n % 977).to_string().into_bytes())
            .collect();
        let mut noise = vec![0; 70_000];
        fastrand::Rng::with_seed(1).fill(&mut noise);
        for count in 0..6 {
            let (mut out, mut all) = (BytesMut::new(), Vec::new());
            let mut member = GzipMember::begin(&mut out);
            for data in [&b"{\"items\":["[..], &words, &noise, b"", &words, b"]}\n"]
                .into_iter()
                .take(count)
            {
                let before = out.len();
                member.put(&deflate(data), &mut out);
                assert!(
                    data.is_empty() || out[before..].ends_with(&[0, 0, 0xff, 0xff]),
                    "it ends on a byte"
                );
                member.put(&Deflated::stored(b","), &mut out);
                all.extend_from_slice(data);
                all.push(b',');
            }
            member.end(&mut out);
            let mut again = Vec::new();
            // Reads a single member only, and checks its trailer.
            let mut reader = GzDecoder::new(&out[..]);
            reader.read_to_end(&mut again).unwrap();
            assert!(again == all);
            assert!(reader.into_inner().is_empty(), "nothing follows it");
            for (program, arguments) in OTHERS {
                // Where it is installed.
                let Some(read) = read_by(program, arguments, &out) else {
                    continue;
                };
                assert!(read == all, "{program} {arguments:?}");
            }
        }
    }

    /// Programs that read gzip, besides flate2 here and Go in `tests/real`: Python, zlib and GNU.
    const OTHERS: [(&str, &[&str]); 3] = [
        (
            "python3",
            &[
                "-c",
                "import gzip, sys; \
                 sys.stdout.buffer.write(gzip.decompress(sys.stdin.buffer.read()))",
            ],
        ),
        (
            "python3",
            &[
                "-c",
                "import sys, zlib\nmember = zlib.decompressobj(31)\n\
                 all = member.decompress(sys.stdin.buffer.read())\n\
                 assert member.eof and not member.unused_data\nsys.stdout.buffer.write(all)",
            ],
        ),
        ("gzip", &["-dc"]),
    ];

    /// Returns a program's output for a member; `None` if there is no such program.
    fn read_by(program: &str, arguments: &[&str], member: &[u8]) -> Option<Vec<u8>> {
        let mut input = tempfile::tempfile().unwrap();
        input.write_all(member).unwrap();
        input.rewind().unwrap();
        let output = Command::new(program)
            .args(arguments)
            .stdin(input)
            .output()
            .ok()?;
        assert!(
            output.status.success(),
            "{program}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        Some(output.stdout)
    }
}
