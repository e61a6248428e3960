//! Compressed bodies, as they come.
use std::io::Write as _;

use bytes::Bytes;
use flate2::write::MultiGzDecoder;

use super::trouble::LoadError;

/// Takes the pieces of a body and gives what is in them at once: each event of a compressed watch
/// ends a flush.
pub(super) struct Inflate(Option<MultiGzDecoder<Vec<u8>>>);

impl Inflate {
    /// Without `gzip` it changes nothing.
    pub(super) fn new(gzip: bool) -> Self {
        Self(gzip.then(|| MultiGzDecoder::new(Vec::new())))
    }

    pub(super) fn push(&mut self, data: Bytes) -> Result<Bytes, LoadError> {
        let Some(decoder) = &mut self.0 else {
            return Ok(data);
        };
        decoder
            .write_all(&data)
            .and_then(|()| decoder.flush())
            .map_err(LoadError::Gzip)?;
        Ok(std::mem::take(decoder.get_mut()).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use watershed_protocol::gzip_member;

    #[test]
    fn each_event_is_complete_with_its_last_byte() {
        let mut inflate = Inflate::new(true);
        for text in ["one\n", "two\n", "three\n"] {
            assert_eq!(inflate.push(gzip_member(text.as_bytes())).unwrap(), text);
        }
        let long: Vec<u8> = (0..99_999_u32).flat_map(u32::to_le_bytes).collect();
        assert_eq!(inflate.push(gzip_member(&long)).unwrap(), long);
        assert!(
            Inflate::new(true)
                .push(Bytes::from_static(b"plain text, no gzip"))
                .is_err()
        );
        assert_eq!(
            Inflate::new(false)
                .push(Bytes::from_static(b"plain"))
                .unwrap(),
            "plain"
        );
    }
}
