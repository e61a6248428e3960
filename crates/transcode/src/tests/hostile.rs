//! Random messages, and messages that somebody has tampered with.
use fastrand::Rng;
use prost::encoding::{WireType, encode_key, encode_varint};

use super::fields;
use crate::table::{Arity, MessageId, MessageTable, ValueKind};
use crate::{Heading, Transcoder};

/// Appends random fields of a message, mostly as its type says.
fn put_random(table: &MessageTable, id: MessageId, rng: &mut Rng, depth: usize, out: &mut Vec<u8>) {
    for member in &table.message(id).members {
        let count = match member.arity {
            Arity::List | Arity::Map => rng.usize(0..3),
            _ => rng.usize(0..2),
        };
        for _ in 0..if depth < 6 { count } else { 0 } {
            encode_key(member.number, member.wire_type(), out);
            let mut value = Vec::new();
            put_random_value(table, member.value, rng, depth, &mut value);
            if member.arity == Arity::Map {
                let key = rng.u8(b'a'..=b'z');
                let mut entry = fields().bytes(1, [key]).0;
                encode_key(2, member.value.wire_type(), &mut entry);
                if member.value.wire_type() == WireType::LengthDelimited {
                    encode_varint(value.len() as u64, &mut entry);
                }
                entry.append(&mut value);
                value = entry;
            }
            if member.wire_type() == WireType::LengthDelimited {
                encode_varint(value.len() as u64, out);
            }
            out.append(&mut value);
        }
    }
}

fn put_random_value(
    table: &MessageTable,
    value: ValueKind,
    rng: &mut Rng,
    depth: usize,
    out: &mut Vec<u8>,
) {
    match value {
        ValueKind::Message(id) | ValueKind::Either(id) => {
            put_random(table, id, rng, depth + 1, out);
        }
        ValueKind::Object(id) => {
            put_random(table, table.built_in(id).message, rng, depth + 1, out);
        }
        ValueKind::Bool => out.push(rng.u8(0..2)),
        ValueKind::Int32 | ValueKind::Int64 => encode_varint(rng.u64(..) >> rng.u32(33..64), out),
        ValueKind::Float64 => out.extend(rng.f64().to_le_bytes()),
        ValueKind::Time | ValueKind::MicroTime | ValueKind::Duration => {
            *out = fields().varint(1, rng.i64(0..1 << 32)).0;
        }
        ValueKind::Quantity | ValueKind::RawExtension | ValueKind::EmbeddedJson => {
            *out = fields().bytes(1, b"17").0;
        }
        ValueKind::IntOrString => *out = fields().varint(1, 1).bytes(3, "a").0,
        ValueKind::Strings => *out = fields().bytes(1, "a").bytes(1, "<").0,
        ValueKind::String | ValueKind::Bytes => {
            out.extend((0..rng.usize(0..4)).map(|_| rng.u8(..)));
        }
    }
}

#[test]
fn hostile_messages_do_no_harm_and_their_json_is_bounded() {
    let table = MessageTable::get();
    let mut rng = Rng::with_seed(7);
    let (mut explained, mut refused) = (0, 0);
    for round in 0..20 {
        for transcoder in Transcoder::all() {
            let built_in = table
                .find(transcoder.api_version(), transcoder.kind())
                .expect("it is in the table");
            let mut message = Vec::new();
            put_random(table, built_in.message, &mut rng, 0, &mut message);
            // The first rounds are as the table says; then bytes change, or the end is missing.
            for _ in 0..round / 4 {
                if let Some(index) = (!message.is_empty()).then(|| rng.usize(0..message.len())) {
                    message[index] = rng.u8(..);
                }
            }
            if round == 19 {
                message.truncate(rng.usize(0..=message.len()));
            }
            let mut out = Vec::new();
            match transcoder.object_json(&message, Heading::TypeMeta, &mut out) {
                Ok(()) => explained += 1,
                Err(error) => {
                    assert!(error.to_string().len() < 1_000);
                    refused += 1;
                }
            }
            // A member of two bytes has a name of 40 and a value of 20 at most; an empty message
            // has some lists that are null.
            assert!(out.len() <= 200 + 100 * message.len());
            assert!(out.capacity() <= 2 * (200 + 100 * message.len()));
        }
    }
    assert!(
        explained > 200 && refused > 200,
        "{explained} explained, {refused} not"
    );
}
