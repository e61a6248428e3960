//! Protobuf's tags, varints and lengths, by `prost::encoding`.
use prost::encoding::{WireType, decode_varint};

use crate::unexplained::Reason;

/// Takes a varint off the front.
#[inline]
pub(crate) fn take_varint(rest: &mut &[u8]) -> Result<u64, Reason> {
    // Most tags and lengths have one or two bytes.
    match *rest {
        [byte @ ..0x80, after @ ..] => {
            *rest = after;
            Ok((*byte).into())
        }
        [low, high @ ..0x80, after @ ..] => {
            *rest = after;
            Ok(u64::from(low & 0x7f) | u64::from(*high) << 7)
        }
        _ => take_long_varint(rest),
    }
}

#[cold]
fn take_long_varint(rest: &mut &[u8]) -> Result<u64, Reason> {
    decode_varint(rest).map_err(|_| Reason::Malformed)
}

/// Takes a field's number and wire type off the front.
#[inline]
pub(crate) fn take_key(rest: &mut &[u8]) -> Result<(u32, WireType), Reason> {
    let key = take_varint(rest)?;
    let number = u32::try_from(key >> 3)
        .ok()
        .filter(|number| (1..1 << 29).contains(number))
        .ok_or(Reason::Malformed)?;
    let wire_type = WireType::try_from(key & 7).map_err(|_| Reason::Malformed)?;
    Ok((number, wire_type))
}

/// Takes a length and as many bytes off the front.
#[inline]
pub(crate) fn take_bytes<'a>(rest: &mut &'a [u8]) -> Result<&'a [u8], Reason> {
    let length = usize::try_from(take_varint(rest)?).map_err(|_| Reason::Malformed)?;
    let (taken, after) = rest.split_at_checked(length).ok_or(Reason::Malformed)?;
    *rest = after;
    Ok(taken)
}

/// Takes eight bytes off the front.
pub(crate) fn take_fixed64(rest: &mut &[u8]) -> Result<[u8; 8], Reason> {
    let (taken, after) = rest.split_first_chunk().ok_or(Reason::Malformed)?;
    *rest = after;
    Ok(*taken)
}

/// Takes the value of a field off the front. Its length is not among its bytes.
#[inline]
pub(crate) fn take_value<'a>(wire_type: WireType, rest: &mut &'a [u8]) -> Result<&'a [u8], Reason> {
    match wire_type {
        WireType::Varint => {
            let start = *rest;
            take_varint(rest)?;
            Ok(&start[..start.len() - rest.len()])
        }
        WireType::SixtyFourBit => {
            let (taken, after) = rest.split_at_checked(8).ok_or(Reason::Malformed)?;
            *rest = after;
            Ok(taken)
        }
        WireType::LengthDelimited => take_bytes(rest),
        // No type of the API has these.
        WireType::ThirtyTwoBit | WireType::StartGroup | WireType::EndGroup => {
            Err(Reason::Malformed)
        }
    }
}

/// Reads an int32, which is written as an int64 is.
pub(crate) fn int32(varint: u64) -> Result<i32, Reason> {
    i32::try_from(varint.cast_signed()).map_err(|_| Reason::Value("an int32 beyond its range"))
}

/// Reads the fields of a small message whose fields are a varint or bytes, each at most once.
///
/// The fields have the numbers from 1 to `N`, and these wire types.
pub(crate) fn small_message<const N: usize>(
    mut message: &[u8],
    wire_types: [WireType; N],
) -> Result<[Option<SmallField<'_>>; N], Reason> {
    let mut found = [None; N];
    while !message.is_empty() {
        let (number, wire_type) = take_key(&mut message)?;
        let index = number as usize - 1;
        let slot = found.get_mut(index).ok_or(Reason::UnknownField(number))?;
        if wire_type != wire_types[index] {
            return Err(Reason::WrongWireType(number));
        }
        let field = match wire_type {
            WireType::LengthDelimited => SmallField::Bytes(take_bytes(&mut message)?),
            _ => SmallField::Varint(take_varint(&mut message)?),
        };
        if slot.replace(field).is_some() {
            return Err(Reason::RepeatedField(number));
        }
    }
    Ok(found)
}

/// A field's value in a [`small_message`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SmallField<'a> {
    Varint(u64),
    Bytes(&'a [u8]),
}

impl<'a> SmallField<'a> {
    /// Returns the bytes; empty of a varint.
    pub(crate) fn bytes(self) -> &'a [u8] {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Varint(_) => &[],
        }
    }

    /// Returns the varint; zero of bytes.
    pub(crate) fn varint(self) -> u64 {
        match self {
            Self::Varint(value) => value,
            Self::Bytes(_) => 0,
        }
    }
}
