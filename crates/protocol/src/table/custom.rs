//! Rows of custom types.
//!
//! Source: `apiextensions-apiserver/pkg/registry/customresource/tableconvertor/tableconvertor.go`.
use std::borrow::Cow;
use std::iter;

use serde::Deserialize;

use super::age::ObjectTime;
use super::cells::Cells;
use super::column::{KnownColumn, NAME, PrinterColumn};
use super::json_path::JsonPath;
use super::members::ObjectMembers;
use crate::encoding::Malformed;

const NO_OBJECT: Malformed = Malformed("a custom object that can't be read");
const NO_NUMBER: Malformed = Malformed("a number that can't be read");
/// The most columns that are printed. An object is read once for each, and upstream has no limit of their
/// number.
const MAX_COLUMNS: usize = 64;
/// 2⁶³: the first floating point number that is too large for an integer of Go.
const INTEGER_END: f64 = 9_223_372_036_854_775_808.0;

/// Prints the objects of a custom type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CustomPrinter(Vec<CustomColumn>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct CustomColumn {
    definition: PrinterColumn,
    path: JsonPath,
}

impl CustomPrinter {
    /// Returns the printer of a type with these columns; `None` if it cannot print what upstream prints, or
    /// not cheaply.
    pub(super) fn new(columns: &[PrinterColumn]) -> Option<Self> {
        if columns.len() > MAX_COLUMNS {
            return None;
        }
        let age = [PrinterColumn::age()];
        let definitions = if columns.is_empty() { &age } else { columns };
        let parsed = definitions.iter().map(|definition| {
            Some(CustomColumn {
                definition: definition.clone(),
                path: JsonPath::parse(&definition.json_path)?,
            })
        });
        parsed.collect::<Option<Vec<_>>>().map(Self)
    }

    pub(super) fn columns(&self) -> impl Iterator<Item = KnownColumn<'_>> {
        iter::once(NAME).chain(self.0.iter().map(|column| column.definition.known()))
    }

    pub(super) fn print(&self, object: &[u8], cells: &mut Cells) -> Result<(), Malformed> {
        let object: ObjectMembers<'_> = serde_json::from_slice(object).map_err(|_| NO_OBJECT)?;
        cells.text(&name_of(&object)?);
        for column in &self.0 {
            match column.path.first(&object) {
                Ok(Some(value)) => column.print(value.get(), cells)?,
                _ => cells.null(),
            }
        }
        Ok(())
    }
}

impl CustomColumn {
    /// Prints a value, of which this is JSON.
    fn print(&self, value: &str, cells: &mut Cells) -> Result<(), Malformed> {
        let begin = value.as_bytes().first().copied().unwrap_or_default();
        let is_number = begin == b'-' || begin.is_ascii_digit();
        match (self.definition.kind.as_str(), begin) {
            ("string", _) => cells.text(&as_text(value)?),
            ("integer", _) if is_number => cells.integer(as_integer(value)?),
            ("number", _) if is_number => cells.json(&as_float(value)),
            ("boolean", b't' | b'f') => cells.json(value),
            ("date", b'"') => match as_moment(value)? {
                Some(moment) => cells.since(moment),
                None => cells.text("<invalid>"),
            },
            ("integer" | "number" | "boolean" | "date", _) => cells.null(),
            _ => return Err(Malformed("a column of an unknown type")),
        }
        Ok(())
    }
}

/// Returns the name of an object; an empty one if it has none.
fn name_of<'a>(object: &ObjectMembers<'a>) -> Result<Cow<'a, str>, Malformed> {
    #[derive(Deserialize)]
    struct Metadata<'a> {
        #[serde(borrow, default)]
        name: Cow<'a, str>,
    }
    let text = object.only("metadata").ok_or(NO_OBJECT)?.get();
    let metadata: Metadata<'_> = serde_json::from_str(text).map_err(|_| NO_OBJECT)?;
    Ok(metadata.name)
}

/// Returns a value as Go prints it.
fn as_text(value: &str) -> Result<String, Malformed> {
    match value.as_bytes().first() {
        Some(b'"') => unquote(value),
        Some(b'n') => Ok("<no value>".to_owned()),
        Some(b'-' | b'0'..=b'9') => match value.parse::<i64>() {
            Ok(integer) => Ok(integer.to_string()),
            Err(_) => float_text(value),
        },
        // The object was printed from maps by the same encoder.
        _ => Ok(value.to_owned()),
    }
}

/// Returns a floating point number of Go's JSON as its `%v` prints it: with the same digits, and with an
/// exponent of at least two digits if it is large or small.
///
/// Source: `strconv/ftoa.go` (the form `g`).
fn float_text(value: &str) -> Result<String, Malformed> {
    let (sign, size) = match value.strip_prefix('-') {
        Some(size) => ("-", size),
        None => ("", value),
    };
    let (mantissa, power) = size.split_once('e').unwrap_or((size, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let all = [whole, fraction].concat();
    let digits = all.trim_start_matches('0');
    let power: i16 = power.parse().map_err(|_| NO_NUMBER)?;
    let number = |length| i32::try_from(length).map_err(|_| NO_NUMBER);
    let zeros = number(all.len() - digits.len())?;
    let exponent = i32::from(power) + number(whole.len())? - 1 - zeros;
    if (-4..6).contains(&exponent) || digits.is_empty() {
        return Ok(value.to_owned());
    }
    let (first, more) = digits.trim_end_matches('0').split_at(1);
    let point = if more.is_empty() { "" } else { "." };
    let direction = if exponent < 0 { '-' } else { '+' };
    let power_digits = exponent.unsigned_abs();
    Ok(format!(
        "{sign}{first}{point}{more}e{direction}{power_digits:02}"
    ))
}

/// Returns a number without its fraction. What Go makes of a larger number depends on its processor.
fn as_integer(value: &str) -> Result<i64, Malformed> {
    if let Ok(integer) = value.parse() {
        return Ok(integer);
    }
    let float: f64 = value.parse().map_err(|_| NO_NUMBER)?;
    if float.abs() < INTEGER_END {
        Ok(float as i64)
    } else {
        Err(Malformed("a number that is too large for an integer"))
    }
}

/// Returns a number as Go's JSON has it after it was made a floating point number.
fn as_float(value: &str) -> Cow<'_, str> {
    match value.parse::<i64>() {
        // No integer is large enough for an exponent.
        Ok(integer) => (integer as f64).to_string().into(),
        // Upstream's encoder has printed a floating point number.
        Err(_) => value.into(),
    }
}

/// Returns the moment of a text, or `None` if it is not a time.
///
/// Source: `apimachinery/pkg/apis/meta/v1/time.go` (UnmarshalQueryParameter).
fn as_moment(value: &str) -> Result<Option<ObjectTime>, Malformed> {
    match unquote(value)?.as_str() {
        "" | "null" => Ok(Some(ObjectTime(None))),
        text if !ObjectTime::can_be(text) => Ok(None),
        text => {
            let moment = ObjectTime::parse(text);
            moment
                .map(Some)
                .ok_or(Malformed("an odd time in a column of dates"))
        }
    }
}

fn unquote(value: &str) -> Result<String, Malformed> {
    serde_json::from_str(value).map_err(|_| Malformed("a text that can't be read"))
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;

    fn column_of(path: &str) -> PrinterColumn {
        let text = format!(r#"{{"name":"C","type":"string","jsonPath":"{path}"}}"#);
        serde_json::from_str(&text).unwrap()
    }

    /// Returns the cells of an object in columns of these paths.
    fn cells_of(object: &str, paths: &[&str]) -> Result<String, Malformed> {
        let columns: Vec<_> = paths.iter().map(|path| column_of(path)).collect();
        let mut cells = Cells::new(Timestamp::UNIX_EPOCH, None);
        CustomPrinter::new(&columns)
            .unwrap()
            .print(object.as_bytes(), &mut cells)?;
        let row = cells.row_head();
        let inside = row.strip_prefix(r#"{"cells":["#).unwrap();
        Ok(inside.split_once(r#"],"object""#).unwrap().0.to_owned())
    }

    #[test]
    fn very_many_columns_are_not_printed() {
        let columns = vec![column_of(".spec.a"); MAX_COLUMNS + 1];
        assert!(CustomPrinter::new(&columns[1..]).is_some());
        assert!(CustomPrinter::new(&columns).is_none());
    }

    #[test]
    fn cells_of_missing_values_are_null() {
        let paths = [".spec.a", ".spec.b.c", ".status.x", ".spec.list[1]", "[0]"];
        for (object, expected) in [
            (
                r#"{"metadata":{"name":"n"},"spec":{"a":1,"b":{"c":"d"},"list":["x","y"]}}"#,
                r#""n","1","d",null,"y",null"#,
            ),
            (
                r#"{"spec":{"a":null,"b":[],"list":[1]},"metadata":{"name":"n"}}"#,
                r#""n","\u003cno value\u003e",null,null,null,null"#,
            ),
            (
                r#"{"metadata":{},"spec":7,"status":null}"#,
                r#""",null,null,null,null,null"#,
            ),
            (r#"{"metadata":{}}"#, r#""",null,null,null,null,null"#),
        ] {
            assert_eq!(cells_of(object, &paths).as_deref(), Ok(expected));
        }
    }

    #[test]
    fn the_later_of_two_members_is_printed() {
        let object = r#"{"metadata":{"name":"n"},"spec":{"a":0},"spec":{"a":1,"b":1,"a":2}}"#;
        let cells = cells_of(object, &[".spec.a", ".spec.b"]);
        assert_eq!(cells.as_deref(), Ok(r#""n","2","1""#));
    }

    #[test]
    fn objects_without_one_name_are_not_printed() {
        for object in [
            "{}",
            "[]",
            r#"{"metadata":null}"#,
            r#"{"metadata":{"name":null}}"#,
            r#"{"metadata":{"name":7}}"#,
            r#"{"metadata":{"name":"a","name":"b"}}"#,
            r#"{"metadata":{"name":"a"},"metadata":{"name":"b"}}"#,
            r#"{"metadata":{"name":"a"}}x"#,
            r#"{"metadata":{"name":"a"}"#,
        ] {
            assert_eq!(cells_of(object, &[".spec.a"]), Err(NO_OBJECT), "{object}");
        }
    }

    #[test]
    fn numbers_are_printed_as_go_does() {
        for (json, text) in [
            ("-7", "-7"),
            ("1.5", "1.5"),
            ("-0.5", "-0.5"),
            ("0.0001", "0.0001"),
            ("0.00001", "1e-05"),
            ("0.000001", "1e-06"),
            ("1e-7", "1e-07"),
            ("-2.5e-7", "-2.5e-07"),
            ("123456.789", "123456.789"),
            ("999999.9", "999999.9"),
            ("1234567.25", "1.23456725e+06"),
            ("2023347301156851.2", "2.0233473011568512e+15"),
            ("9223372036854776000", "9.223372036854776e+18"),
            ("1e+21", "1e+21"),
            ("1.7976931348623157e+308", "1.7976931348623157e+308"),
            ("5e-324", "5e-324"),
        ] {
            assert_eq!(as_text(json), Ok(text.to_owned()), "{json}");
        }
        assert_eq!(as_float("9007199254740993"), "9007199254740992");
        assert_eq!(as_float("9223372036854775807"), "9223372036854776000");
        assert_eq!(as_float("1e+21"), "1e+21");
        assert_eq!(as_integer("-2.9"), Ok(-2));
        assert_eq!(as_integer("1e18"), Ok(1_000_000_000_000_000_000));
        assert!(as_integer("1e19").is_err());
    }
}
