//! The walk over a message: its fields are found in one pass, and printed in the order of the JSON.
use prost::encoding::WireType;

use crate::number::{put_float, put_integer};
use crate::table::{Arity, Member, MessageId, MessageTable, ValueKind};
use crate::text::{put_base64, put_string};
use crate::unexplained::{Reason, Unexplained};
use crate::well_known::{put_strings, put_well_known};
use crate::wire::{int32, skip_value, take_bytes, take_fixed64, take_key, take_varint};

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
    /// The fields of the messages that are being printed: for each member the bytes from the tag of
    /// its first occurrence to the end of its last one; empty if there is none.
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
        let base = self.enter(id, message)?;
        for (index, member) in self.table.message(id).members.iter().enumerate() {
            let field = self.fields[base + index];
            is_first = self
                .member(member, field, is_first)
                .map_err(|error| error.within(member.name))?;
        }
        self.leave(base);
        Ok(is_first)
    }

    /// Finds the bytes of each member's field in one pass. Returns the position of the first member.
    fn enter(&mut self, id: MessageId, message: &'a [u8]) -> Result<usize, Reason> {
        if self.depth == MAX_DEPTH {
            return Err(Reason::TooDeep);
        }
        self.depth += 1;
        let message_type = self.table.message(id);
        let base = self.fields.len();
        self.fields.resize(base + message_type.members.len(), &[]);
        let (mut rest, mut run, mut last) = (message, message, None);
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
            skip_value(wire_type, &mut rest)?;
            let repeats = matches!(member.arity, Arity::List | Arity::Map);
            let field = &mut self.fields[base + index];
            let continues = repeats && last == Some(index);
            if !continues && !field.is_empty() {
                return Err(Reason::RepeatedField(number));
            }
            if !continues {
                (run, last) = (start, Some(index));
            }
            *field = &run[..run.len() - rest.len()];
        }
        Ok(base)
    }

    /// Forgets the fields of a message.
    fn leave(&mut self, base: usize) {
        self.fields.truncate(base);
        self.depth -= 1;
    }

    /// Appends a member, and returns `true` if the next one is still the first.
    fn member(
        &mut self,
        member: &'static Member,
        field: &'a [u8],
        is_first: bool,
    ) -> Result<bool, Unexplained> {
        if field.is_empty() {
            return self.absent_member(member, is_first);
        }
        let mut value = field;
        take_key(&mut value)?;
        if let (Arity::Inline, ValueKind::Message(id)) = (member.arity, member.value) {
            return self.members(id, take_bytes(&mut value)?, is_first);
        }
        let may_omit = member.arity == Arity::Always && member.omits_empty(self.release);
        if may_omit && is_empty(member.value, value)? {
            return Ok(is_first);
        }
        self.key(member, is_first);
        self.present_value(member, field)?;
        Ok(false)
    }

    /// Appends the value of a member, given its field.
    fn present_value(&mut self, member: &Member, mut field: &'a [u8]) -> Result<(), Unexplained> {
        match member.arity {
            Arity::List => self.list(member.value, field),
            Arity::Map => self.map(member.value, field),
            Arity::Always | Arity::Inline | Arity::Optional => {
                take_key(&mut field)?;
                self.value(member.value, &mut field)
            }
        }
    }

    fn absent_member(&mut self, member: &Member, is_first: bool) -> Result<bool, Unexplained> {
        let is_nil = match member.arity {
            // Go always writes these. A release that does not know a member does not print it.
            Arity::Always | Arity::Inline => member.value == ValueKind::Bytes,
            Arity::Optional | Arity::List | Arity::Map => true,
        };
        if !is_nil || member.omits_empty(self.release) {
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
            take_key(&mut rest)?;
            self.out.push(separator);
            separator = b',';
            self.value(value, &mut rest)?;
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
                Some(mut field) => self.value(value, &mut field)?,
                // Go writes no field for bytes that are nil, and reads them as empty.
                None => put_base64(b"", self.out),
            }
        }
        self.out.push(b'}');
        Ok(())
    }

    /// Appends the value at the front, whose tag has been taken.
    fn value(&mut self, value: ValueKind, rest: &mut &'a [u8]) -> Result<(), Unexplained> {
        match value {
            ValueKind::Bool => {
                let text: &[u8] = match take_varint(rest)? {
                    0 => b"false",
                    1 => b"true",
                    _ => return Err(Reason::Value("a bool that is neither 0 nor 1").into()),
                };
                self.out.extend_from_slice(text);
            }
            ValueKind::Int32 => put_integer(int32(take_varint(rest)?)?.into(), self.out),
            ValueKind::Int64 => put_integer(take_varint(rest)?.cast_signed(), self.out),
            ValueKind::Float64 => put_float(f64::from_le_bytes(take_fixed64(rest)?), self.out)?,
            ValueKind::String => put_string(take_bytes(rest)?, self.out),
            ValueKind::Bytes => put_base64(take_bytes(rest)?, self.out),
            ValueKind::Message(id) => {
                self.out.push(b'{');
                self.put_members(id, take_bytes(rest)?, true)?;
                self.out.push(b'}');
            }
            ValueKind::Object(id) => {
                let built_in = self.table.built_in(id);
                built_in.put_type_meta(self.out);
                self.put_members(built_in.message, take_bytes(rest)?, false)?;
                self.out.push(b'}');
            }
            ValueKind::Strings => put_strings(take_bytes(rest)?, self.out)?,
            ValueKind::Either(id) => self.either(id, take_bytes(rest)?)?,
            ValueKind::Time
            | ValueKind::MicroTime
            | ValueKind::Duration
            | ValueKind::Quantity
            | ValueKind::IntOrString
            | ValueKind::RawExtension
            | ValueKind::EmbeddedJson => put_well_known(value, take_bytes(rest)?, self.out)?,
        }
        Ok(())
    }

    /// Appends the one of two members that a message has, without its name.
    fn either(&mut self, id: MessageId, message: &'a [u8]) -> Result<(), Unexplained> {
        let base = self.enter(id, message)?;
        let members = &self.table.message(id).members;
        let present = (0..members.len()).rfind(|index| !self.fields[base + index].is_empty());
        match present {
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

/// Returns `true` if `omitempty` leaves out the value at the front.
fn is_empty(value: ValueKind, mut rest: &[u8]) -> Result<bool, Reason> {
    Ok(match value.wire_type() {
        WireType::Varint => take_varint(&mut rest)? == 0,
        WireType::SixtyFourBit => f64::from_le_bytes(take_fixed64(&mut rest)?) == 0.0,
        _ => take_bytes(&mut rest)?.is_empty(),
    })
}

/// An entry of a map.
struct MapEntry<'a> {
    key: &'a [u8],
    /// The value after its tag.
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
        let mut rest = entry;
        skip_value(value.wire_type(), &mut rest)?;
        if !rest.is_empty() {
            return Err(INCOMPLETE);
        }
        Ok(Self {
            key,
            value: Some(entry),
        })
    }
}
