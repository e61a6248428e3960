//! Protobuf's own encoding: tags, varints, length-delimited fields.
use super::Malformed;

const CUT: Malformed = Malformed("protobuf message cut short");
const BAD_VARINT: Malformed = Malformed("protobuf varint longer than 64 bits");
const BAD_TAG: Malformed = Malformed("protobuf tag that does not exist");

/// One field's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::encoding) enum Value<'a> {
    Varint(u64),
    Bytes(&'a [u8]),
    /// Four or eight bytes; nothing of interest here is written so.
    Fixed,
}

/// Walks over the fields of a message. Never recurses, so hostile nesting costs nothing.
pub(in crate::encoding) struct Reader<'a> {
    message: &'a [u8],
    position: usize,
}

impl<'a> Reader<'a> {
    pub(in crate::encoding) fn new(message: &'a [u8]) -> Self {
        Self {
            message,
            position: 0,
        }
    }

    /// Where the next field starts.
    pub(in crate::encoding) fn position(&self) -> usize {
        self.position
    }

    /// The next field's number and value.
    pub(in crate::encoding) fn next(&mut self) -> Result<Option<(u32, Value<'a>)>, Malformed> {
        if self.position == self.message.len() {
            return Ok(None);
        }
        let tag = self.varint()?;
        let number = u32::try_from(tag >> 3)
            .ok()
            .filter(|number| (1..1 << 29).contains(number))
            .ok_or(BAD_TAG)?;
        let value = match tag & 7 {
            0 => Value::Varint(self.varint()?),
            1 => self.take(8).map(|_| Value::Fixed)?,
            2 => {
                let length = usize::try_from(self.varint()?).map_err(|_| CUT)?;
                Value::Bytes(self.take(length)?)
            }
            5 => self.take(4).map(|_| Value::Fixed)?,
            // 3 and 4 are groups, which proto3 and gogo never write.
            _ => return Err(BAD_TAG),
        };
        Ok(Some((number, value)))
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], Malformed> {
        let end = self.position.checked_add(length).ok_or(CUT)?;
        let taken = self.message.get(self.position..end).ok_or(CUT)?;
        self.position = end;
        Ok(taken)
    }

    fn varint(&mut self) -> Result<u64, Malformed> {
        let mut value = 0;
        for shift in (0..).step_by(7).take(10) {
            let byte = *self.message.get(self.position).ok_or(CUT)?;
            self.position += 1;
            // The tenth byte carries the 64th bit and no more.
            if shift == 63 && byte > 1 {
                return Err(BAD_VARINT);
            }
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(BAD_VARINT)
    }
}

/// Bytes a varint takes.
pub(in crate::encoding) fn varint_len(value: u64) -> usize {
    (64 - (value | 1).leading_zeros() as usize).div_ceil(7)
}

/// Bytes of a length-delimited field with a number below 16, tag and length included.
pub(in crate::encoding) fn bytes_field_len(length: usize) -> usize {
    1 + varint_len(length as u64) + length
}

/// Writes a varint.
pub(in crate::encoding) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Writes tag and length of a length-delimited field.
pub(in crate::encoding) fn put_header(out: &mut Vec<u8>, number: u32, length: usize) {
    put_varint(out, u64::from(number) << 3 | 2);
    put_varint(out, length as u64);
}

/// Writes a length-delimited field.
pub(in crate::encoding) fn put_bytes(out: &mut Vec<u8>, number: u32, value: &[u8]) {
    put_header(out, number, value.len());
    out.extend_from_slice(value);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(message: &[u8]) -> Result<Vec<(u32, Value<'_>)>, Malformed> {
        let mut reader = Reader::new(message);
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
            put_varint(&mut message, value);
            assert_eq!(message.len(), 1 + varint_len(value));
            assert_eq!(read(&message), Ok(vec![(1, Value::Varint(value))]));
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
            Ok(vec![(1, Value::Fixed), (2, Value::Bytes(&[7]))])
        );
    }
}
