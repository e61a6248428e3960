//! Protobuf's own encoding: tags, varints and length-delimited fields, by `prost::encoding`.
//!
//! The reader is written by hand, because objects are handed out as slices of the received bytes:
//! a message derived by prost owns or copies its fields and does not give their offsets.
use bytes::BufMut;
use prost::encoding::{
    WireType, decode_varint, encode_key, encode_varint, encoded_len_varint, key_len,
};

use crate::encoding::malformed::Malformed;

const CUT: Malformed = Malformed("protobuf message cut short");
const BAD_VARINT: Malformed = Malformed("protobuf varint longer than 64 bits");
const BAD_TAG: Malformed = Malformed("protobuf tag that does not exist");
const WRONG_TYPE: Malformed = Malformed("protobuf field of an unexpected type");
const NOT_TEXT: Malformed = Malformed("protobuf string that is not UTF-8");

/// Bytes of the longest varint.
const MAX_VARINT: usize = 10;

/// The value of one field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::encoding) enum FieldValue<'a> {
    Varint(u64),
    Bytes(&'a [u8]),
    /// Four or eight bytes. No field of interest has this type.
    Fixed,
}

impl<'a> FieldValue<'a> {
    pub(in crate::encoding) fn bytes(self) -> Result<&'a [u8], Malformed> {
        match self {
            Self::Bytes(bytes) => Ok(bytes),
            _ => Err(WRONG_TYPE),
        }
    }

    pub(in crate::encoding) fn text(self) -> Result<&'a str, Malformed> {
        std::str::from_utf8(self.bytes()?).map_err(|_| NOT_TEXT)
    }

    pub(in crate::encoding) fn varint(self) -> Result<u64, Malformed> {
        match self {
            Self::Varint(value) => Ok(value),
            _ => Err(WRONG_TYPE),
        }
    }
}

/// Walks over the fields of a message. It never recurses, so hostile nesting is harmless.
pub(in crate::encoding) struct FieldReader<'a> {
    message: &'a [u8],
    rest: &'a [u8],
}

impl<'a> FieldReader<'a> {
    pub(in crate::encoding) fn new(message: &'a [u8]) -> Self {
        Self {
            message,
            rest: message,
        }
    }

    /// Returns the offset of the next field.
    pub(in crate::encoding) fn position(&self) -> usize {
        self.message.len() - self.rest.len()
    }

    /// Returns the number and the value of the next field.
    pub(in crate::encoding) fn next(&mut self) -> Result<Option<(u32, FieldValue<'a>)>, Malformed> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let key = self.varint()?;
        let number = u32::try_from(key >> 3)
            .ok()
            .filter(|number| (1..1 << 29).contains(number))
            .ok_or(BAD_TAG)?;
        let value = match WireType::try_from(key & 7).map_err(|_| BAD_TAG)? {
            WireType::Varint => FieldValue::Varint(self.varint()?),
            WireType::SixtyFourBit => self.take(8).map(|_| FieldValue::Fixed)?,
            WireType::LengthDelimited => {
                let length = usize::try_from(self.varint()?).map_err(|_| CUT)?;
                FieldValue::Bytes(self.take(length)?)
            }
            WireType::ThirtyTwoBit => self.take(4).map(|_| FieldValue::Fixed)?,
            // Neither proto3 nor gogo writes groups.
            WireType::StartGroup | WireType::EndGroup => return Err(BAD_TAG),
        };
        Ok(Some((number, value)))
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.rest.split_at_checked(length).ok_or(CUT)?;
        self.rest = rest;
        Ok(taken)
    }

    fn varint(&mut self) -> Result<u64, Malformed> {
        let start = self.rest;
        decode_varint(&mut self.rest).map_err(|_| {
            // prost does not tell a varint without an end from one that is too long.
            let is_cut = start.len() < MAX_VARINT && start.iter().all(|byte| *byte >= 0x80);
            if is_cut { CUT } else { BAD_VARINT }
        })
    }
}

/// Returns the bytes of a length-delimited field with a number below 16, key and length included.
pub(in crate::encoding) fn bytes_field_len(length: usize) -> usize {
    key_len(1) + encoded_len_varint(length as u64) + length
}

/// Appends key and length of a length-delimited field.
pub(in crate::encoding) fn put_header(out: &mut impl BufMut, number: u32, length: usize) {
    encode_key(number, WireType::LengthDelimited, out);
    encode_varint(length as u64, out);
}

/// Appends a length-delimited field.
pub(in crate::encoding) fn put_bytes(out: &mut impl BufMut, number: u32, value: &[u8]) {
    put_header(out, number, value.len());
    out.put_slice(value);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(message: &[u8]) -> Result<Vec<(u32, FieldValue<'_>)>, Malformed> {
        let mut reader = FieldReader::new(message);
        std::iter::from_fn(|| reader.next().transpose()).collect()
    }

    #[test]
    fn varints_at_their_limits() {
        for value in [
            0,
            1,
            127,
            128,
            16_383,
            16_384,
            u64::from(u32::MAX),
            u64::MAX - 1,
            u64::MAX,
        ] {
            let mut message = vec![8];
            encode_varint(value, &mut message);
            assert_eq!(message.len(), 1 + encoded_len_varint(value));
            assert_eq!(read(&message), Ok(vec![(1, FieldValue::Varint(value))]));
            assert_eq!(read(&message[..message.len() - 1]), Err(CUT));
        }
        let mut long = vec![8];
        long.extend([0xff; 9]);
        assert_eq!(read(&[&long[..], &[2]].concat()), Err(BAD_VARINT));
        assert_eq!(read(&[&long[..], &[0x81, 0]].concat()), Err(BAD_VARINT));
    }

    #[test]
    fn hostile_tags_and_lengths() {
        assert_eq!(read(&[0x02]), Err(BAD_TAG), "field number 0");
        assert_eq!(read(&[0x0b]), Err(BAD_TAG), "a group");
        assert_eq!(read(&[0x0f]), Err(BAD_TAG), "wire type 7");
        assert_eq!(read(&[0x0a, 2, 0]), Err(CUT));
        assert_eq!(
            read(&[
                0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1
            ]),
            Err(CUT)
        );
        assert_eq!(
            read(&[0x0d, 1, 2, 3, 4, 0x12, 1, 7]),
            Ok(vec![(1, FieldValue::Fixed), (2, FieldValue::Bytes(&[7]))])
        );
    }
}
