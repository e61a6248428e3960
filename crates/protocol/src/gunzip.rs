//! Reading gzip as upstream sends it: members, one for each flush.
use bytes::Bytes;
use flate2::{Decompress, FlushDecompress, Status};

use crate::Malformed;

/// The largest window of gzip, as a power of two.
const WINDOW_BITS: u8 = 15;
/// Size of the pieces that come out.
const PIECE: usize = 16 * 1024;
/// Bytes that [`gunzip`] unpacks before it looks at its limit. They become four MiB at most, as
/// deflate makes nothing smaller than a thousandth.
const STEP: usize = 4096;

/// The reason why a body was not unpacked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GunzipError {
    /// It is larger than the limit, in bytes.
    #[error("more than {0} bytes without compression")]
    TooLarge(usize),
    /// It is not gzip, or was cut.
    #[error(transparent)]
    Malformed(#[from] Malformed),
}

/// Unpacks a whole body, in one piece or several. It takes hardly more memory than `limit`, whatever
/// the body would unpack to.
///
/// ```
/// use watershed_protocol::{gunzip, gzip_member};
///
/// let body = gzip_member(b"a list");
/// assert_eq!(gunzip([&body[..]], 100)?, "a list");
/// # Ok::<(), watershed_protocol::GunzipError>(())
/// ```
pub fn gunzip<'a>(
    body: impl IntoIterator<Item = &'a [u8]>,
    limit: usize,
) -> Result<Bytes, GunzipError> {
    let (mut reader, mut unpacked) = (GzipReader::default(), Vec::new());
    for step in body.into_iter().flat_map(|piece| piece.chunks(STEP)) {
        reader.read(step, |piece| unpacked.extend_from_slice(&piece))?;
        if unpacked.len() > limit {
            return Err(GunzipError::TooLarge(limit));
        }
    }
    if !reader.is_between() {
        return Err(Malformed("gzip that was cut").into());
    }
    Ok(unpacked.into())
}

/// Unpacks a body as it arrives, and knows when it is between two members.
///
/// It holds a decompressor only within a member.
///
/// ```
/// use watershed_protocol::{GzipReader, gzip_member};
///
/// let mut reader = GzipReader::default();
/// let (mut text, member) = (Vec::new(), gzip_member(b"an event\n"));
/// for half in member.chunks(member.len().div_ceil(2)) {
///     reader.read(half, |piece| text.extend_from_slice(&piece))?;
/// }
/// assert!(reader.is_between());
/// assert_eq!(text, b"an event\n");
/// # Ok::<(), watershed_protocol::Malformed>(())
/// ```
#[derive(Debug, Default)]
pub struct GzipReader {
    /// The member that was begun.
    member: Option<Box<Decompress>>,
}

impl GzipReader {
    /// Returns `true` if no member is half-read.
    pub fn is_between(&self) -> bool {
        self.member.is_none()
    }

    /// Takes the next bytes of the body, and hands out what they unpack to.
    pub fn read(&mut self, mut data: &[u8], mut take: impl FnMut(Bytes)) -> Result<(), Malformed> {
        while !data.is_empty() {
            let member = self
                .member
                .get_or_insert_with(|| Box::new(Decompress::new_gzip(WINDOW_BITS)));
            let (ended, read) = unpack(member, data, &mut take)?;
            data = &data[read..];
            if ended {
                self.member = None;
            }
        }
        Ok(())
    }
}

/// Unpacks up to the end of a member or of the data. Returns whether the member ended, and how much
/// of the data was read.
fn unpack(
    member: &mut Decompress,
    data: &[u8],
    take: &mut impl FnMut(Bytes),
) -> Result<(bool, usize), Malformed> {
    let begun = member.total_in();
    loop {
        let read = (member.total_in() - begun) as usize;
        let mut piece = Vec::with_capacity(PIECE);
        let status = member
            .decompress_vec(&data[read..], &mut piece, FlushDecompress::None)
            .map_err(|_| Malformed("gzip that can't be read"))?;
        let is_full = piece.len() == piece.capacity();
        if !piece.is_empty() {
            take(piece.into());
        }
        let read = (member.total_in() - begun) as usize;
        match status {
            Status::StreamEnd => return Ok((true, read)),
            // A full piece may leave more behind.
            Status::Ok | Status::BufError if is_full => {}
            Status::Ok | Status::BufError if read == data.len() => return Ok((false, read)),
            Status::Ok => {}
            Status::BufError => return Err(Malformed("gzip that can't be read")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gzip_member;

    #[test]
    fn the_ends_of_members_are_found_in_any_chunking() {
        let long = (0..20_000).fold(String::new(), |text, n| text + &n.to_string() + "\n");
        let texts = ["one\n", "two\nthree\n", &long, "four\n"];
        let members: Vec<_> = texts.map(|text| gzip_member(text.as_bytes())).into();
        let body = members.concat();
        let mut ends = vec![0];
        for member in &members {
            ends.push(ends[ends.len() - 1] + member.len());
        }
        for size in [1, 7, 100, body.len()] {
            let (mut reader, mut text, mut at) = (GzipReader::default(), Vec::new(), 0);
            for chunk in body.chunks(size) {
                reader
                    .read(chunk, |piece| text.extend_from_slice(&piece))
                    .unwrap();
                at += chunk.len();
                assert_eq!(reader.is_between(), ends.contains(&at), "{at} by {size}");
            }
            assert_eq!(text, texts.concat().as_bytes());
        }
    }

    #[test]
    fn whole_bodies_are_unpacked_up_to_a_limit() {
        let text = b"an answer ".repeat(5000);
        let body = [gzip_member(&text[..7]), gzip_member(&text[7..])].concat();
        let halves = || [&body[..body.len() / 2], &body[body.len() / 2..]];
        assert_eq!(gunzip(halves(), text.len()), Ok(text.clone().into()));
        assert_eq!(
            gunzip(halves(), text.len() - 1),
            Err(GunzipError::TooLarge(text.len() - 1))
        );
        let cut = Malformed("gzip that was cut");
        let half = gunzip(halves().into_iter().take(1), text.len());
        assert_eq!(half, Err(cut.into()));
        assert!(matches!(
            gunzip([&b"no gzip"[..]], 100),
            Err(GunzipError::Malformed(_))
        ));
        assert_eq!(gunzip([], 0), Ok(Bytes::new()));
    }

    #[test]
    fn a_body_that_unpacks_to_any_size_takes_little_more_than_the_limit() {
        let bomb = gzip_member(&vec![0; 64 << 20]);
        let (mut reader, mut most) = (GzipReader::default(), 0);
        for step in bomb.chunks(STEP) {
            let mut unpacked = 0;
            reader.read(step, |piece| unpacked += piece.len()).unwrap();
            most = unpacked.max(most);
        }
        assert!(most <= 5 << 20, "{most} bytes in one step");
        let limit = 1 << 20;
        assert_eq!(
            gunzip([&bomb[..]], limit),
            Err(GunzipError::TooLarge(limit))
        );
    }

    #[test]
    fn what_is_no_gzip_is_refused() {
        let damaged = {
            let mut member = gzip_member(b"one\n").to_vec();
            let last = member.len() - 5;
            member[last] ^= 1;
            member
        };
        for body in [&b"plain text, no gzip"[..], &damaged] {
            assert!(GzipReader::default().read(body, drop).is_err());
        }
    }
}
