//! Values whose types print themselves in Go.
use prost::encoding::WireType;

use crate::duration::put_duration;
use crate::number::put_integer;
use crate::raw::put_compact;
use crate::table::ValueKind;
use crate::text::put_string;
use crate::time::{TimePrecision, put_time};
use crate::unexplained::Reason;
use crate::wire::{SmallField, int32, small_message, take_bytes, take_key};

/// Appends a value, given its message.
pub(crate) fn put_well_known(
    kind: ValueKind,
    message: &[u8],
    out: &mut Vec<u8>,
) -> Result<(), Reason> {
    match kind {
        ValueKind::Time => put_time(message, TimePrecision::Seconds, out),
        ValueKind::MicroTime => put_time(message, TimePrecision::Microseconds, out),
        ValueKind::Duration => {
            let [duration] = small_message(message, [WireType::Varint])?;
            put_duration(duration.map_or(0, SmallField::varint).cast_signed(), out);
            Ok(())
        }
        ValueKind::Quantity => put_quantity(message, out),
        ValueKind::IntOrString => put_int_or_string(message, out),
        ValueKind::RawExtension => match embedded(message)? {
            Some(json) => put_compact(json, out),
            None => put_null(out),
        },
        // Unlike the former, these print `null` for bytes that are empty.
        ValueKind::EmbeddedJson => match embedded(message)? {
            Some(json) if !json.is_empty() => put_compact(json, out),
            _ => put_null(out),
        },
        _ => Err(Reason::Value("a value of a type without a printer")),
    }
}

/// Appends a list of strings that is a message, which Go reads into a list that is not nil.
pub(crate) fn put_strings(mut message: &[u8], out: &mut Vec<u8>) -> Result<(), Reason> {
    out.push(b'[');
    let mut separator: &[u8] = b"";
    while !message.is_empty() {
        match take_key(&mut message)? {
            (1, WireType::LengthDelimited) => {}
            (1, _) => return Err(Reason::WrongWireType(1)),
            (number, _) => return Err(Reason::UnknownField(number)),
        }
        out.extend_from_slice(separator);
        separator = b",";
        put_string(take_bytes(&mut message)?, out);
    }
    out.push(b']');
    Ok(())
}

/// Appends a quantity. Its text in protobuf is the one that Go prints in JSON.
fn put_quantity(message: &[u8], out: &mut Vec<u8>) -> Result<(), Reason> {
    let [text] = small_message(message, [WireType::LengthDelimited])?;
    let text = text.map_or(&[][..], SmallField::bytes);
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"+-.".contains(byte);
    if text.is_empty() || !text.iter().all(is_plain) {
        return Err(Reason::Value("a quantity that is not a number"));
    }
    put_string(text, out);
    Ok(())
}

fn put_int_or_string(message: &[u8], out: &mut Vec<u8>) -> Result<(), Reason> {
    let wire_types = [
        WireType::Varint,
        WireType::Varint,
        WireType::LengthDelimited,
    ];
    let [choice, number, text] = small_message(message, wire_types)?;
    match choice.map_or(0, SmallField::varint) {
        0 => put_integer(int32(number.map_or(0, SmallField::varint))?.into(), out),
        1 => put_string(text.map_or(&[], SmallField::bytes), out),
        _ => return Err(Reason::Value("an IntOrString that is neither")),
    }
    Ok(())
}

/// Returns the bytes of a message whose only field is JSON.
fn embedded(message: &[u8]) -> Result<Option<&[u8]>, Reason> {
    let [json] = small_message(message, [WireType::LengthDelimited])?;
    Ok(json.map(SmallField::bytes))
}

#[expect(clippy::unnecessary_wraps, reason = "the other printers can fail")]
fn put_null(out: &mut Vec<u8>) -> Result<(), Reason> {
    out.extend_from_slice(b"null");
    Ok(())
}
