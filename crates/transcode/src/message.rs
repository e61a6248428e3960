//! The walk over a message: its fields are found in one pass, and printed in the order of the JSON.
use prost::encoding::WireType;

use crate::member_set::MemberSet;
use crate::number::{put_float, put_integer};
use crate::table::{Arity, Member, MessageId, MessageTable, ValueKind};
use crate::text::{put_base64, put_string};
use crate::unexplained::{Reason, Unexplained};
use crate::well_known::{put_strings, put_well_known};
use crate::wire::{int32, take_bytes, take_fixed64, take_key, take_value, take_varint};

/// Levels of messages that are followed. The deepest type that does not contain itself has 12.
const MAX_DEPTH: usize = 128;

/// Prints one object.
pub(crate) struct Printer<'a, 'o> {
    table: &'static MessageTable,
    /// True if the absence of a list leaves its JSON unknown.
    is_stored_as_json: bool,
    /// The minor release in whose manner it is printed.
    release: u32,
    out: &'o mut Vec<u8>,
    /// The fields of the messages that are being printed. Of a list or map these are the bytes from
    /// the tag of its first element to the end of its last one, of another member those of its value.
    fields: Vec<&'a [u8]>,
    depth: usize,
}

impl<'a, 'o> Printer<'a, 'o> {
    pub(crate) fn new(
        table: &'static MessageTable,
        is_stored_as_json: bool,
        release: u32,
        out: &'o mut Vec<u8>,
    ) -> Self {
        Self {
            table,
            is_stored_as_json,
            release,
            out,
            fields: Vec::new(),
            depth: 0,
        }
    }

    /// Appends the members of a message. The first has no comma before it if `is_first`.
    pub(crate) fn put_members(
        &mut self,
        id: MessageId,
        message: &'a [u8],
        is_first: bool,
    ) -> Result<(), Unexplained> {
        self.members(id, message, is_first).map(drop)
    }

    /// Appends the members of a message, and returns `true` if the next one is still the first.
    fn members(
        &mut self,
        id: MessageId,
        message: &'a [u8],
        mut is_first: bool,
    ) -> Result<bool, Unexplained> {
        let (base, present) = self.enter(id, message)?;
        let message_type = self.table.message(id);
        let shown = present.union(message_type.printed_if_absent);
        for index in shown.positions() {
            let (member, field) = (&message_type.members[index], self.fields[base + index]);
            let printed = if present.contains(index) {
                self.member(member, field, is_first)
            } else {
                self.absent_member(member, is_first)
            };
            is_first = printed.map_err(|error| error.within(member.name))?;
        }
        self.leave(base);
        Ok(is_first)
    }

    /// Finds each member's field in one pass. Returns where the first member's is in `fields`, and the
    /// members that are present.
    fn enter(&mut self, id: MessageId, message: &'a [u8]) -> Result<(usize, MemberSet), Reason> {
        if self.depth == MAX_DEPTH {
            return Err(Reason::TooDeep);
        }
        self.depth += 1;
        let message_type = self.table.message(id);
        let base = self.fields.len();
        self.fields.resize(base + message_type.members.len(), &[]);
        let (mut rest, mut run, mut last) = (message, message, None);
        let mut present = MemberSet::default();
        while !rest.is_empty() {
            let start = rest;
            let (number, wire_type) = take_key(&mut rest)?;
            let index = message_type
                .position(number)
                .ok_or(Reason::UnknownField(number))?;
            let member = &message_type.members[index];
            if wire_type != member.wire_type() {
                return Err(Reason::WrongWireType(number));
            }
            let value = take_value(wire_type, &mut rest)?;
            let repeats = member.repeats();
            let continues = repeats && last == Some(index);
            if !continues && !present.insert(index) {
                return Err(Reason::RepeatedField(number));
            }
            if !continues {
                (run, last) = (start, Some(index));
            }
            self.fields[base + index] = if repeats {
                &run[..run.len() - rest.len()]
            } else {
                value
            };
        }
        Ok((base, present))
    }

    /// Forgets the fields of a message.
    fn leave(&mut self, base: usize) {
        self.fields.truncate(base);
        self.depth -= 1;
    }

    /// Appends a member that is present, and returns `true` if the next one is still the first.
    fn member(
        &mut self,
        member: &'static Member,
        field: &'a [u8],
        is_first: bool,
    ) -> Result<bool, Unexplained> {
        if let (Arity::Inline, ValueKind::Message(id)) = (member.arity, member.value) {
            return self.members(id, field, is_first);
        }
        let may_omit = member.arity == Arity::Always && member.omits_empty(self.release);
        if may_omit && is_empty(member.value, field)? {
            return Ok(is_first);
        }
        self.key(member, is_first);
        self.present_value(member, field)?;
        Ok(false)
    }

    /// Appends the value of a member, given its field.
    fn present_value(&mut self, member: &Member, field: &'a [u8]) -> Result<(), Unexplained> {
        match member.arity {
            Arity::List => self.list(member.value, field),
            Arity::Map => self.map(member.value, field),
            Arity::Always | Arity::Inline | Arity::Optional => self.value(member.value, field),
        }
    }

    fn absent_member(&mut self, member: &Member, is_first: bool) -> Result<bool, Unexplained> {
        if !member.is_nil_if_absent() || member.omits_empty(self.release) {
            return Ok(is_first);
        }
        if self.is_stored_as_json && matches!(member.arity, Arity::List | Arity::Map) {
            return Err(Reason::AbsentOrEmpty.into());
        }
        self.key(member, is_first);
        self.out.extend_from_slice(b"null");
        Ok(false)
    }

    fn key(&mut self, member: &Member, is_first: bool) {
        let comma = usize::from(is_first);
        self.out.extend_from_slice(&member.key.as_bytes()[comma..]);
    }

    /// Appends a list, given the fields of its elements.
    fn list(&mut self, value: ValueKind, mut rest: &'a [u8]) -> Result<(), Unexplained> {
        let mut separator = b'[';
        while !rest.is_empty() {
            let (_, wire_type) = take_key(&mut rest)?;
            self.out.push(separator);
            separator = b',';
            self.value(value, take_value(wire_type, &mut rest)?)?;
        }
        self.out.push(b']');
        Ok(())
    }

    /// Appends a map, given the fields of its entries. Go writes them sorted, and prints them so.
    fn map(&mut self, value: ValueKind, mut rest: &'a [u8]) -> Result<(), Unexplained> {
        let mut separator = b'{';
        let mut previous: Option<&[u8]> = None;
        while !rest.is_empty() {
            take_key(&mut rest)?;
            let entry = MapEntry::read(take_bytes(&mut rest)?, value)?;
            if previous.is_some_and(|previous| previous >= entry.key) {
                return Err(Reason::UnsortedMap.into());
            }
            previous = Some(entry.key);
            self.out.push(separator);
            separator = b',';
            put_string(entry.key, self.out);
            self.out.push(b':');
            match entry.value {
                Some(field) => self.value(value, field)?,
                // Go writes no field for bytes that are nil, and reads them as empty.
                None => put_base64(b"", self.out),
            }
        }
        self.out.push(b'}');
        Ok(())
    }

    /// Appends a value, given its bytes without a tag or length.
    fn value(&mut self, value: ValueKind, mut bytes: &'a [u8]) -> Result<(), Unexplained> {
        match value {
            ValueKind::Bool => {
                let text: &[u8] = match take_varint(&mut bytes)? {
                    0 => b"false",
                    1 => b"true",
                    _ => return Err(Reason::Value("a bool that is neither 0 nor 1").into()),
                };
                self.out.extend_from_slice(text);
            }
            ValueKind::Int32 => put_integer(int32(take_varint(&mut bytes)?)?.into(), self.out),
            ValueKind::Int64 => put_integer(take_varint(&mut bytes)?.cast_signed(), self.out),
            ValueKind::Float64 => {
                put_float(f64::from_le_bytes(take_fixed64(&mut bytes)?), self.out)?;
            }
            ValueKind::String => put_string(bytes, self.out),
            ValueKind::Bytes => put_base64(bytes, self.out),
            ValueKind::Message(id) => {
                self.out.push(b'{');
                self.put_members(id, bytes, true)?;
                self.out.push(b'}');
            }
            ValueKind::Object(id) => {
                let built_in = self.table.built_in(id);
                built_in.put_type_meta(self.out);
                self.put_members(built_in.message, bytes, false)?;
                self.out.push(b'}');
            }
            ValueKind::Strings => put_strings(bytes, self.out)?,
            ValueKind::Either(id) => self.either(id, bytes)?,
            ValueKind::Time
            | ValueKind::MicroTime
            | ValueKind::Duration
            | ValueKind::Quantity
            | ValueKind::IntOrString
            | ValueKind::RawExtension
            | ValueKind::EmbeddedJson => put_well_known(value, bytes, self.out)?,
        }
        Ok(())
    }

    /// Appends the one of two members that a message has, without its name.
    fn either(&mut self, id: MessageId, message: &'a [u8]) -> Result<(), Unexplained> {
        let (base, present) = self.enter(id, message)?;
        let members = &self.table.message(id).members;
        match present.last() {
            Some(index) => {
                let field = self.fields[base + index];
                self.present_value(&members[index], field)
                    .map_err(|error| error.within(members[index].name))?;
            }
            // Go always writes a bool, and prints `null` for a pointer and a list without elements.
            None if members.iter().any(|member| member.arity == Arity::Always) => {
                return Err(Reason::Value("a message without the member it always has").into());
            }
            None => self.out.extend_from_slice(b"null"),
        }
        self.leave(base);
        Ok(())
    }
}

/// Returns `true` if `omitempty` leaves out a value.
fn is_empty(value: ValueKind, mut bytes: &[u8]) -> Result<bool, Reason> {
    Ok(match value.wire_type() {
        WireType::Varint => take_varint(&mut bytes)? == 0,
        WireType::SixtyFourBit => f64::from_le_bytes(take_fixed64(&mut bytes)?) == 0.0,
        _ => bytes.is_empty(),
    })
}

/// An entry of a map.
struct MapEntry<'a> {
    key: &'a [u8],
    /// The bytes of the value.
    value: Option<&'a [u8]>,
}

impl<'a> MapEntry<'a> {
    /// Reads an entry as Go writes it: the key, and then the value.
    fn read(mut entry: &'a [u8], value: ValueKind) -> Result<Self, Reason> {
        const INCOMPLETE: Reason = Reason::Value("a map entry that is not a key and a value");
        if entry.is_empty() || take_key(&mut entry)? != (1, WireType::LengthDelimited) {
            return Err(INCOMPLETE);
        }
        let key = take_bytes(&mut entry)?;
        if entry.is_empty() && value == ValueKind::Bytes {
            return Ok(Self { key, value: None });
        }
        if entry.is_empty() || take_key(&mut entry)? != (2, value.wire_type()) {
            return Err(INCOMPLETE);
        }
        let value = take_value(value.wire_type(), &mut entry)?;
        if !entry.is_empty() {
            return Err(INCOMPLETE);
        }
        Ok(Self {
            key,
            value: Some(value),
        })
    }
}
