//! The table of types: the messages of every built-in type, as `types.table` describes them.
//!
//! The table is text, one line each, written by `tests/real/internal/transcode`:
//!
//! - the first line: the version of this format, and the release of the types;
//! - `= apps/v1 Deployment apps/v1.Deployment`: a type that can be listed, and its message;
//! - `@ apps/v1.Deployment`: a message, followed by its members in the order of their JSON;
//! - `name 3 ?[]string`: a member's name in JSON (`+` if its own members take its place), its number
//!   in protobuf, `?` if its empty value is omitted, `*` for a pointer, `[]` for a list, `{}` for a
//!   map of strings, and the type of its values: `object:` before it if these have their own kind
//!   and apiVersion, `either:` if they are printed as one of two members. `<34` after it: releases
//!   before 1.34 omit the empty value if this one does not, and do not if it does.
use std::collections::HashMap;
use std::sync::LazyLock;

use prost::encoding::WireType;

use crate::member_set::MemberSet;

/// The first line of a table in the format that is read here.
const FORMAT: &str = "watershed-transcode 1 ";

static TABLE: LazyLock<MessageTable> = LazyLock::new(|| {
    MessageTable::parse(include_str!("types.table")).expect("a test reads the table")
});

/// The messages of all types.
#[derive(Debug)]
pub(crate) struct MessageTable {
    /// The release that the types are of, as `kubernetes v1.37.1`.
    pub(crate) release: &'static str,
    /// Its minor number.
    pub(crate) minor: u32,
    /// The types by apiVersion and kind.
    positions: HashMap<(&'static str, &'static str), TypeId>,
    types: Vec<BuiltInType>,
    messages: Vec<MessageType>,
}

/// A type that can be listed and watched.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BuiltInType {
    pub(crate) api_version: &'static str,
    pub(crate) kind: &'static str,
    pub(crate) message: MessageId,
}

/// The position of a type in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TypeId(u16);

/// The position of a message in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct MessageId(u16);

/// A message's members in the order of their JSON.
#[derive(Debug, Default)]
pub(crate) struct MessageType {
    pub(crate) members: Vec<Member>,
    /// The members that some release prints where their fields are absent.
    pub(crate) printed_if_absent: MemberSet,
    /// One more than the position of each field's member; zero where there is no field.
    by_number: Vec<u8>,
}

/// A member of a message.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) name: &'static str,
    /// The name as it is printed after another member: `,"name":`.
    pub(crate) key: Box<str>,
    pub(crate) number: u32,
    pub(crate) arity: Arity,
    /// True if the newest release leaves out the empty value.
    omits_empty: bool,
    /// The first minor release that does so. Those before do the opposite.
    omits_so_since: u32,
    pub(crate) value: ValueKind,
}

/// The number of times that a member's field may occur.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arity {
    /// Exactly once.
    Always,
    /// Exactly once, and its members stand in its place.
    Inline,
    /// Once, or not at all: a pointer.
    Optional,
    /// Once for each element.
    List,
    /// Once for each entry: a message of a string and a value.
    Map,
}

/// The type of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ValueKind {
    String,
    Bytes,
    Bool,
    Int32,
    Int64,
    Float64,
    Message(MessageId),
    /// An object within another, with kind and apiVersion.
    Object(TypeId),
    /// A list of strings that is a message.
    Strings,
    Time,
    MicroTime,
    Duration,
    Quantity,
    IntOrString,
    RawExtension,
    /// `FieldsV1`, and the `JSON` of schemas, which are printed alike.
    EmbeddedJson,
    /// A message of two members, of which one is printed in its place: the second if it is there.
    Either(MessageId),
}

/// The line of a table that cannot be read.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {0} of the table of types cannot be read")]
pub(crate) struct BadLine(usize);

impl MessageTable {
    /// Returns the table of this program.
    pub(crate) fn get() -> &'static Self {
        &TABLE
    }

    /// Finds a type.
    pub(crate) fn find(&self, api_version: &str, kind: &str) -> Option<BuiltInType> {
        let position = *self.positions.get(&(api_version, kind))?;
        Some(self.built_in(position))
    }

    /// Returns every type.
    pub(crate) fn types(&self) -> impl Iterator<Item = BuiltInType> {
        self.types.iter().copied()
    }

    pub(crate) fn built_in(&self, id: TypeId) -> BuiltInType {
        self.types[usize::from(id.0)]
    }

    pub(crate) fn message(&self, id: MessageId) -> &MessageType {
        &self.messages[usize::from(id.0)]
    }

    /// Returns the message of a value, if it has one.
    pub(crate) fn message_of(&self, value: ValueKind) -> Option<MessageId> {
        match value {
            ValueKind::Message(id) | ValueKind::Either(id) => Some(id),
            ValueKind::Object(id) => Some(self.built_in(id).message),
            _ => None,
        }
    }

    fn parse(text: &'static str) -> Result<Self, BadLine> {
        let release = text
            .lines()
            .next()
            .and_then(|line| line.strip_prefix(FORMAT))
            .ok_or(BadLine(1))?;
        let names = message_names(text)?;
        let mut table = Self {
            minor: minor_of(release).ok_or(BadLine(1))?,
            release,
            positions: HashMap::new(),
            types: Vec::new(),
            messages: Vec::with_capacity(names.len()),
        };
        for (index, line) in text.lines().enumerate().skip(1) {
            table.read_line(line, &names).ok_or(BadLine(index + 1))?;
        }
        Ok(table)
    }

    fn read_line(&mut self, line: &'static str, names: &HashMap<&str, MessageId>) -> Option<()> {
        let (first, rest) = line.split_once(' ')?;
        match first {
            "@" => self.messages.push(MessageType::default()),
            "=" => {
                let mut words = rest.split(' ');
                let (api_version, kind) = (words.next()?, words.next()?);
                let built_in = BuiltInType {
                    api_version,
                    kind,
                    message: *names.get(words.next()?)?,
                };
                let position = TypeId(self.types.len().try_into().ok()?);
                self.positions.insert((api_version, kind), position);
                self.types.push(built_in);
            }
            name => {
                let member = Member::parse(name, rest, &Names(names, &self.types))?;
                self.messages.last_mut()?.push(member)?;
            }
        }
        Some(())
    }
}

/// Returns the minor number of a release such as `kubernetes v1.37.1`.
fn minor_of(release: &str) -> Option<u32> {
    let minor = release.strip_prefix("kubernetes v1.")?;
    minor.split('.').next()?.parse().ok()
}

/// Returns the position of each message.
fn message_names(text: &str) -> Result<HashMap<&str, MessageId>, BadLine> {
    let mut names = HashMap::new();
    for (index, line) in text.lines().enumerate() {
        if let Some(name) = line.strip_prefix("@ ") {
            let id = u16::try_from(names.len()).map_err(|_| BadLine(index + 1))?;
            names.insert(name, MessageId(id));
        }
    }
    Ok(names)
}

/// The names that a member can refer to: messages, and types, which come first in a table.
struct Names<'a>(&'a HashMap<&'a str, MessageId>, &'a [BuiltInType]);

impl Names<'_> {
    fn message(&self, name: &str) -> Option<MessageId> {
        self.0.get(name).copied()
    }

    fn object(&self, name: &str) -> Option<TypeId> {
        let message = self.message(name)?;
        let position = self.1.iter().position(|known| known.message == message)?;
        Some(TypeId(position.try_into().ok()?))
    }
}

impl BuiltInType {
    /// Appends the start of an object: kind and apiVersion.
    pub(crate) fn put_type_meta(&self, out: &mut Vec<u8>) {
        let (kind, api_version) = (self.kind, self.api_version);
        for part in [
            r#"{"kind":""#,
            kind,
            r#"","apiVersion":""#,
            api_version,
            "\"",
        ] {
            out.extend_from_slice(part.as_bytes());
        }
    }
}

impl MessageType {
    /// Returns the position of the member with a field number.
    pub(crate) fn position(&self, number: u32) -> Option<usize> {
        let position = *self.by_number.get(number as usize)?;
        usize::from(position).checked_sub(1)
    }

    fn push(&mut self, member: Member) -> Option<()> {
        let number = usize::try_from(member.number).ok()?;
        if self.by_number.len() <= number {
            self.by_number.resize(number + 1, 0);
        }
        let position = &mut self.by_number[number];
        if self.members.len() == MemberSet::CAPACITY {
            return None;
        }
        if member.may_be_printed_if_absent() {
            self.printed_if_absent.insert(self.members.len());
        }
        self.members.push(member);
        // No two members have one number.
        (*position == 0).then_some(())?;
        *position = u8::try_from(self.members.len()).ok()?;
        Some(())
    }
}

impl Member {
    fn parse(name: &'static str, rest: &str, names: &Names<'_>) -> Option<Self> {
        let (number, shape) = rest.split_once(' ')?;
        let (shape, since) = shape.split_once(" <").unwrap_or((shape, "0"));
        let (omits_empty, shape) = flag(shape, "?");
        let (is_pointer, shape) = flag(shape, "*");
        let (is_list, shape) = flag(shape, "[]");
        let (is_map, shape) = flag(shape, "{}");
        let arity = match (is_pointer, is_list, is_map) {
            (false, false, false) if name == "+" => Arity::Inline,
            (false, false, false) => Arity::Always,
            (true, false, false) => Arity::Optional,
            (false, true, false) => Arity::List,
            (false, false, true) => Arity::Map,
            _ => return None,
        };
        let value = ValueKind::parse(shape, names)?;
        if arity == Arity::Inline && !matches!(value, ValueKind::Message(_)) {
            return None;
        }
        Some(Self {
            name,
            key: format!(r#","{name}":"#).into(),
            number: number
                .parse()
                .ok()
                .filter(|number| (1..256).contains(number))?,
            arity,
            omits_empty,
            omits_so_since: since.parse().ok()?,
            value,
        })
    }

    /// Returns `true` if the absence of the field is a nil of Go's, which JSON can show. Go always
    /// writes the other fields: a release that does not is one without the member, and prints nothing.
    pub(crate) fn is_nil_if_absent(&self) -> bool {
        match self.arity {
            Arity::Always | Arity::Inline => self.value == ValueKind::Bytes,
            Arity::Optional | Arity::List | Arity::Map => true,
        }
    }

    /// Returns `true` if some release prints the member where its field is absent.
    fn may_be_printed_if_absent(&self) -> bool {
        let differs = self.omits_so_since > 0;
        self.is_nil_if_absent() && (!self.omits_empty || differs)
    }

    /// Returns `true` if a minor release leaves out the empty value.
    pub(crate) fn omits_empty(&self, release: u32) -> bool {
        self.omits_empty == (release >= self.omits_so_since)
    }

    /// Returns `true` if the field occurs for each element or entry.
    pub(crate) fn repeats(&self) -> bool {
        matches!(self.arity, Arity::List | Arity::Map)
    }

    /// Returns the wire type of the field.
    pub(crate) fn wire_type(&self) -> WireType {
        match self.arity {
            Arity::Map => WireType::LengthDelimited,
            _ => self.value.wire_type(),
        }
    }
}

impl ValueKind {
    fn parse(name: &str, names: &Names<'_>) -> Option<Self> {
        Some(match name {
            "string" => Self::String,
            "bytes" => Self::Bytes,
            "bool" => Self::Bool,
            "int32" => Self::Int32,
            "int64" => Self::Int64,
            "float64" => Self::Float64,
            "strings" => Self::Strings,
            "time" => Self::Time,
            "microtime" => Self::MicroTime,
            "duration" => Self::Duration,
            "quantity" => Self::Quantity,
            "intorstring" => Self::IntOrString,
            "raw" => Self::RawExtension,
            "fields" | "json" => Self::EmbeddedJson,
            name => match name.split_once(':') {
                Some(("either", name)) => Self::Either(names.message(name)?),
                Some(("object", name)) => Self::Object(names.object(name)?),
                Some(_) => return None,
                None => Self::Message(names.message(name)?),
            },
        })
    }

    /// Returns the wire type of one value.
    pub(crate) fn wire_type(self) -> WireType {
        match self {
            Self::Bool | Self::Int32 | Self::Int64 => WireType::Varint,
            Self::Float64 => WireType::SixtyFourBit,
            _ => WireType::LengthDelimited,
        }
    }
}

fn flag<'a>(text: &'a str, sign: &str) -> (bool, &'a str) {
    match text.strip_prefix(sign) {
        Some(rest) => (true, rest),
        None => (false, text),
    }
}
