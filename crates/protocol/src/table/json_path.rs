//! The paths of printer columns: fields, elements, and elements with a certain field.
//!
//! Other paths (unions, slices, recursion, comparisons) are not understood here.
//! Source: `client-go/util/jsonpath`.
use serde_json::value::RawValue;

use super::members::{ObjectMembers, member};

/// A path to values of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct JsonPath(Vec<PathNode>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum PathNode {
    Field(String),
    /// An element by its place; negative ones count from the end.
    Element(i64),
    AllElements,
    /// The elements in which the field has this text.
    Where {
        field: Vec<String>,
        text: String,
    },
}

/// A path leads through a value of the wrong type. Upstream prints nothing then.
#[derive(Debug)]
pub(super) struct WrongType;

impl JsonPath {
    /// Parses a path. Returns `None` if it is not understood here.
    pub(super) fn parse(path: &str) -> Option<Self> {
        let mut nodes = Vec::new();
        let mut rest = path;
        while !rest.is_empty() {
            let (node, left) = PathNode::parse(rest)?;
            nodes.extend(node);
            rest = left;
        }
        (!nodes.is_empty()).then_some(Self(nodes))
    }

    /// Returns the first value at the path, as text of JSON.
    pub(super) fn first<'a>(
        &self,
        object: &ObjectMembers<'a>,
    ) -> Result<Option<&'a RawValue>, WrongType> {
        let Some((PathNode::Field(name), rest)) = self.0.split_first() else {
            // An object has no elements.
            return Err(WrongType);
        };
        let mut values: Vec<_> = object.get(name).into_iter().collect();
        for node in rest {
            values = node.walk(values)?;
        }
        Ok(values.first().copied())
    }
}

impl PathNode {
    /// Parses the nodes that a path begins with. Returns the rest of the path.
    fn parse(path: &str) -> Option<(Vec<Self>, &str)> {
        if path.starts_with('.') {
            let (field, rest) = parse_field(path)?;
            return Some((vec![Self::Field(field)], rest));
        }
        if let Some(filter) = path.strip_prefix("[?(") {
            let (filter, rest) = filter.split_once(")]")?;
            return Some((vec![Self::parse_filter(filter)?], rest));
        }
        let (inside, rest) = path.strip_prefix('[')?.split_once(']')?;
        if inside == "*" {
            return Some((vec![Self::AllElements], rest));
        }
        if let Some(name) = inside
            .strip_prefix('\'')
            .and_then(|name| name.strip_suffix('\''))
        {
            // Upstream reads it as fields, dots included.
            let fields = parse_fields(&format!(".{name}"))?;
            return Some((fields.into_iter().map(Self::Field).collect(), rest));
        }
        let digits = inside.strip_prefix('-').unwrap_or(inside);
        let is_number =
            (1..=9).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_digit());
        let place = inside.parse().ok().filter(|_| is_number)?;
        Some((vec![Self::Element(place)], rest))
    }

    fn parse_filter(filter: &str) -> Option<Self> {
        let (left, right) = filter.split_once("==")?;
        let field = parse_fields(left.trim_matches(' ').strip_prefix('@')?)?;
        let quoted = right.trim_matches(' ');
        let quote = quoted.chars().next().filter(|c| "\"'".contains(*c))?;
        let text = quoted.strip_prefix(quote)?.strip_suffix(quote)?;
        let is_plain = |c: char| c.is_ascii_alphanumeric() || " _-./:".contains(c);
        let text = Some(text).filter(|text| !text.is_empty() && text.chars().all(is_plain))?;
        Some(Self::Where {
            field,
            text: text.to_owned(),
        })
    }

    fn walk<'a>(&self, values: Vec<&'a RawValue>) -> Result<Vec<&'a RawValue>, WrongType> {
        let mut found = Vec::new();
        for value in values {
            match self {
                Self::Field(name) => found.extend(member(value, name)),
                Self::Element(_) | Self::AllElements if is_null(value) => {}
                Self::Element(place) => {
                    let elements = elements(value)?;
                    let place = match usize::try_from(*place) {
                        Ok(place) => Some(place),
                        Err(_) => elements.len().checked_sub(place.unsigned_abs() as usize),
                    };
                    let element = place.and_then(|place| elements.get(place));
                    found.push(*element.ok_or(WrongType)?);
                }
                Self::AllElements => {
                    let elements = elements(value)?;
                    if elements.is_empty() {
                        // Upstream looks at no further list then (`evalArray`).
                        break;
                    }
                    found.extend(elements);
                }
                Self::Where { field, text } => {
                    for element in elements(value)? {
                        if has_text(element, field, text)? {
                            found.push(element);
                        }
                    }
                }
            }
        }
        Ok(found)
    }
}

/// Parses fields until the end.
fn parse_fields(mut path: &str) -> Option<Vec<String>> {
    let mut fields = Vec::new();
    while !path.is_empty() {
        let (field, rest) = parse_field(path)?;
        fields.push(field);
        path = rest;
    }
    (!fields.is_empty()).then_some(fields)
}

/// Parses a field, whose dots may be escaped. Returns the rest of the path.
fn parse_field(path: &str) -> Option<(String, &str)> {
    let text = path.strip_prefix('.')?;
    let mut name = String::new();
    let mut chars = text.char_indices();
    let end = loop {
        match chars.next() {
            None => break text.len(),
            Some((at, '.' | '[')) => break at,
            Some((_, '\\')) => match chars.next()? {
                (_, c @ ('.' | '/')) => name.push(c),
                _ => return None,
            },
            Some((_, c)) if c.is_ascii_alphanumeric() || "_-/:".contains(c) => name.push(c),
            Some(_) => return None,
        }
    };
    (!name.is_empty()).then(|| (name, &text[end..]))
}

fn is_null(value: &RawValue) -> bool {
    value.get() == "null"
}

fn elements(value: &RawValue) -> Result<Vec<&RawValue>, WrongType> {
    serde_json::from_str(value.get()).map_err(|_| WrongType)
}

/// Returns `true` if an element has this text at the path. Other values cannot be compared.
fn has_text(element: &RawValue, field: &[String], text: &str) -> Result<bool, WrongType> {
    let mut value = element;
    for name in field {
        match member(value, name) {
            None => return Ok(false),
            Some(inner) => value = inner,
        }
    }
    let found: String = serde_json::from_str(value.get()).map_err(|_| WrongType)?;
    Ok(found == text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OBJECT: &str = r#"{"spec":{"a":1,"list":[{"n":"x"},{"n":"y","v":true}],"empty":[],
        "lists":[{"m":[]},{"m":["z"]}],
        "full":[{"m":["z"]},{"m":[]}],"nil":null,"a.b/c":"dots"},
        "status":{"conditions":[{"type":"Other","status":"False"},
        {"status":"none"},{"type":"Ready","status":"True"}],"odd":[{"type":7}]}}"#;

    fn first(path: &str) -> Result<Option<String>, WrongType> {
        let object: ObjectMembers<'_> = serde_json::from_str(OBJECT).unwrap();
        let found = JsonPath::parse(path).expect(path).first(&object)?;
        Ok(found.map(|value| value.get().to_owned()))
    }

    #[test]
    fn values_are_found() {
        for (path, expected) in [
            (".spec.a", Some("1")),
            (".spec.missing", None),
            (".spec.a.b", None),
            (".spec.nil", Some("null")),
            (".spec.nil.x", None),
            (".spec.nil[0]", None),
            (".spec.list[1].n", Some(r#""y""#)),
            (".spec.list[-1].v", Some("true")),
            (".spec.list[*].v", Some("true")),
            (".spec.empty[*]", None),
            (".spec.lists[*].m[*]", None),
            (".spec.full[*].m[*]", Some(r#""z""#)),
            (r".spec.a\.b/c", Some(r#""dots""#)),
            (r".spec['a\.b/c']", Some(r#""dots""#)),
            (
                r#".status.conditions[?(@.type=="Ready")].status"#,
                Some(r#""True""#),
            ),
            (
                r".status.conditions[?(@.type == 'Ready')].status",
                Some(r#""True""#),
            ),
            (r#".status.conditions[?(@.type=="None")].status"#, None),
        ] {
            assert_eq!(first(path).unwrap().as_deref(), expected, "{path}");
        }
    }

    #[test]
    fn paths_through_other_types_lead_nowhere() {
        for path in [
            "[0]",
            "[*]",
            r#"[?(@.a=="b")]"#,
            ".spec[0]",
            ".spec.list[2]",
            ".spec.list[-3]",
            ".spec.empty[0]",
            r#".spec.nil[?(@.a=="b")]"#,
            r#".spec[?(@.a=="b")]"#,
            r#".status.odd[?(@.type=="b")]"#,
        ] {
            assert!(first(path).is_err(), "{path}");
        }
    }

    #[test]
    fn other_paths_are_not_understood() {
        for path in [
            "",
            ".",
            "spec",
            ".*",
            ".a.*",
            "..a",
            ".a..b",
            ".a[0,1]",
            ".a[0:1]",
            ".a[]",
            ".a['b','c']",
            ".a[?(@.b)]",
            ".a[?(@.b!=\"c\")]",
            ".a[?(@.b==1)]",
            ".a[?(@.b==\"c\\\"\")]",
            ".a[?(@.b==\"c\" || @.d==\"e\")]",
            ".a}{.b",
            ".a b",
            r".a\nb",
            ".a[0",
        ] {
            assert_eq!(JsonPath::parse(path), None, "{path}");
        }
    }
}
