//! Shard selectors (KEP-5866): the objects whose hash lies in certain ranges.
//!
//! Sources: `apiserver/pkg/sharding/parser.go`, `apimachinery/pkg/sharding/{selector,hash}.go`.
use std::fmt;

use super::{InvalidSelector, ObjectAttributes};

/// Most ranges of a selector that is understood here. Clients send one or a few.
const MAX_RANGES: usize = 64;
/// The exclusive end of the hashes, 2^64.
const END: u128 = 1 << 64;
const NOT_PLAIN: InvalidSelector = InvalidSelector("a shard selector in an unusual form");

/// A part of a type's objects, cut out by ranges of a hash.
///
/// Upstream reads an expression of CEL. This type reads the form that clients write, and that
/// upstream repeats in its answers; it refuses comments, parentheses and escapes.
///
/// ```
/// use watershed_protocol::ShardSelector;
///
/// let text = "shardRange(object.metadata.uid,'0x0000000000000000','0x8000000000000000')";
/// let selector = ShardSelector::parse(text)?;
/// assert_eq!(
///     selector.to_string(),
///     "shardRange(object.metadata.uid, '0x0000000000000000', '0x8000000000000000')"
/// );
/// # Ok::<(), watershed_protocol::InvalidSelector>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardSelector {
    key: ShardKey,
    /// In the client's order; never empty.
    ranges: Box<[HashRange]>,
}

/// The value that is hashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ShardKey {
    Uid,
    Namespace,
}

/// A range of hashes, with both of its bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct HashRange {
    first: u64,
    last: u64,
}

/// Returns the 64-bit FNV-1a hash of a text.
pub(super) fn hash(text: &str) -> u64 {
    const BASIS: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0100_0000_01b3;
    text.bytes()
        .fold(BASIS, |hash, b| (hash ^ u64::from(b)).wrapping_mul(PRIME))
}

impl ShardSelector {
    /// Parses the value of a `shardSelector` parameter.
    ///
    /// Refuses what upstream refuses, and forms of CEL that no client is known to write.
    pub fn parse(text: &str) -> Result<Self, InvalidSelector> {
        let mut parser = Parser(text);
        let (key, first) = parser.range()?;
        let mut ranges = vec![first];
        while !parser.is_at_end() {
            parser.expect("||")?;
            let (next_key, range) = parser.range()?;
            if next_key != key {
                return Err(InvalidSelector("shard ranges of different fields"));
            }
            if ranges.len() == MAX_RANGES {
                return Err(NOT_PLAIN);
            }
            ranges.push(range);
        }
        let ranges = ranges.into();
        Ok(Self { key, ranges })
    }

    /// Returns `true` if an object is in the shard. It never leaves it: neither its uid nor its
    /// namespace changes.
    pub fn matches(&self, object: &ObjectAttributes) -> bool {
        let hash = match self.key {
            ShardKey::Uid => object.uid_hash(),
            ShardKey::Namespace => hash(object.namespace()),
        };
        let is_in = |range: &HashRange| (range.first..=range.last).contains(&hash);
        self.ranges.iter().any(is_in)
    }
}

/// In upstream's form, which is the same for all spellings of a selector.
impl fmt::Display for ShardSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.key.path();
        for (index, HashRange { first, last }) in self.ranges.iter().enumerate() {
            let between = if index > 0 { " || " } else { "" };
            let end = u128::from(*last) + 1;
            write!(
                f,
                "{between}shardRange({path}, '{first:#018x}', '{end:#018x}')"
            )?;
        }
        Ok(())
    }
}

impl ShardKey {
    const ALL: [Self; 2] = [Self::Uid, Self::Namespace];

    fn path(self) -> &'static str {
        match self {
            Self::Uid => "object.metadata.uid",
            Self::Namespace => "object.metadata.namespace",
        }
    }
}

/// The text that is not read yet.
struct Parser<'a>(&'a str);

impl Parser<'_> {
    fn range(&mut self) -> Result<(ShardKey, HashRange), InvalidSelector> {
        self.expect("shardRange")?;
        self.expect("(")?;
        let key = self.key()?;
        self.expect(",")?;
        let start = self.bound()?;
        self.expect(",")?;
        let end = self.bound()?;
        self.expect(")")?;
        let first = u64::try_from(start).ok().filter(|_| start < end);
        let first = first.ok_or(InvalidSelector("a shard range without hashes"))?;
        // One less than the end is at least `first`.
        let last = u64::try_from(end - 1).map_err(|_| NOT_PLAIN)?;
        Ok((key, HashRange { first, last }))
    }

    fn key(&mut self) -> Result<ShardKey, InvalidSelector> {
        self.skip_space();
        for key in ShardKey::ALL {
            // The comma that follows shows that the name ends here.
            if let Some(rest) = self.0.strip_prefix(key.path()) {
                self.0 = rest;
                return Ok(key);
            }
        }
        Err(InvalidSelector("a shard range of another field"))
    }

    /// Parses a bound: `0x` and sixteen lower-case digits in quotes, or 2^64.
    fn bound(&mut self) -> Result<u128, InvalidSelector> {
        self.skip_space();
        let quote = match self.0.as_bytes().first() {
            Some(b'\'') => '\'',
            Some(b'"') => '"',
            _ => return Err(NOT_PLAIN),
        };
        let (literal, rest) = self.0[1..].split_once(quote).ok_or(NOT_PLAIN)?;
        self.0 = rest;
        let digits = literal.strip_prefix("0x").ok_or(NOT_PLAIN)?;
        let is_hex = |b: u8| matches!(b, b'0'..=b'9' | b'a'..=b'f');
        if !matches!(digits.len(), 16 | 17) || !digits.bytes().all(is_hex) {
            return Err(NOT_PLAIN);
        }
        let value = u128::from_str_radix(digits, 16).map_err(|_| NOT_PLAIN)?;
        if digits.len() == 17 && value != END {
            return Err(NOT_PLAIN);
        }
        Ok(value)
    }

    fn expect(&mut self, token: &str) -> Result<(), InvalidSelector> {
        self.skip_space();
        self.0 = self.0.strip_prefix(token).ok_or(NOT_PLAIN)?;
        Ok(())
    }

    fn is_at_end(&mut self) -> bool {
        self.skip_space();
        self.0.is_empty()
    }

    /// Skips what CEL takes as white space.
    fn skip_space(&mut self) {
        self.0 = self.0.trim_start_matches([' ', '\t', '\n', '\r', '\u{c}']);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Encoding, FieldTable, scan};

    fn range(key: &str, start: &str, end: &str) -> String {
        format!("shardRange({key}, '{start}', '{end}')")
    }

    fn object(namespace: &str, uid: &str) -> ObjectAttributes {
        let text = format!(
            concat!(
                r#"{{"metadata":{{"name":"a","namespace":"{}","#,
                r#""uid":"{}","resourceVersion":"1"}}}}"#
            ),
            namespace, uid
        );
        let fields = FieldTable::metadata_only(true);
        let scanned = scan(Encoding::Json, text.as_bytes(), &fields).unwrap();
        scanned.attributes
    }

    const UID: &str = "object.metadata.uid";
    const ZERO: &str = "0x0000000000000000";
    const HALF: &str = "0x8000000000000000";
    const WHOLE: &str = "0x10000000000000000";

    /// The cases of upstream's `parser_test.go` and a few more.
    #[test]
    fn selectors_are_read_as_upstream_reads_them() {
        let halves = format!("{} || {}", range(UID, ZERO, HALF), range(UID, HALF, WHOLE));
        let namespace = "object.metadata.namespace";
        let small = range(namespace, "0x00000000000000aa", "0x00000000000000ff");
        for text in [&range(UID, ZERO, HALF), &halves, &small] {
            assert_eq!(ShardSelector::parse(text).unwrap().to_string(), **text);
        }
        for spelling in [
            format!("shardRange({UID},'{ZERO}','{HALF}')"),
            format!("  shardRange( {UID} ,\t\"{ZERO}\" ,\n '{HALF}' )  "),
        ] {
            let selector = ShardSelector::parse(&spelling).unwrap();
            assert_eq!(selector.to_string(), range(UID, ZERO, HALF));
        }
        let tight = halves.replace(" || ", "||");
        assert_eq!(ShardSelector::parse(&tight).unwrap().to_string(), halves);
    }

    #[test]
    fn other_expressions_are_refused() {
        let half = range(UID, ZERO, HALF);
        for text in [
            String::new(),
            " ".to_owned(),
            range(UID, "0000000000000000", HALF),
            range(UID, "0x", HALF),
            range(UID, "0x0", HALF),
            range(UID, ZERO, "0xFF00000000000000"),
            range(UID, ZERO, "0x10000000000000001"),
            range(UID, HALF, HALF),
            range(UID, HALF, ZERO),
            range(UID, WHOLE, WHOLE),
            range("object.metadata.name", ZERO, HALF),
            range("object.metadata.uids", ZERO, HALF),
            range("object.metadata.namespace", ZERO, HALF) + " || " + &half,
            format!("{half} && {half}"),
            format!("{half} ||"),
            format!("|| {half}"),
            format!("{half} {half}"),
            format!("({half})"),
            format!("{half} // a comment"),
            format!("shardRange({UID}, 0, 8)"),
            format!("shardRange({UID}, '{ZERO}')"),
            format!("shardRange({UID}, '{ZERO}', '{HALF}', '{HALF}')"),
            format!("shardRange({UID}, '{ZERO}', '{HALF}"),
            "object.metadata.uid > '0x0'".to_owned(),
            "other(object.metadata.uid)".to_owned(),
            vec![half.as_str(); MAX_RANGES + 1].join(" || "),
        ] {
            assert!(ShardSelector::parse(&text).is_err(), "{text}");
        }
    }

    /// The values of Go's `hash/fnv`.
    #[test]
    fn hashes_are_fnv_1a() {
        for (text, expected) in [
            ("", 0xcbf2_9ce4_8422_2325),
            ("a", 0xaf63_dc4c_8601_ec8c),
            ("foobar", 0x8594_4171_f739_67e8),
        ] {
            assert_eq!(hash(text), expected, "{text}");
        }
    }

    #[test]
    fn bounds_of_ranges_are_inclusive_and_exclusive() {
        let (object, hash) = (object("ns", "foobar"), hash("foobar"));
        let bound = |value: u64| format!("{value:#018x}");
        let selects = |text: &str| ShardSelector::parse(text).unwrap().matches(&object);
        assert!(selects(&range(UID, &bound(hash), &bound(hash + 1))));
        assert!(selects(&range(UID, ZERO, WHOLE)));
        assert!(!selects(&range(UID, ZERO, &bound(hash))));
        assert!(!selects(&range(UID, &bound(hash + 1), WHOLE)));
        let around = format!(
            "{} || {}",
            range(UID, ZERO, &bound(hash)),
            range(UID, &bound(hash + 1), WHOLE)
        );
        assert!(!selects(&around));
    }

    proptest! {
        /// Each object is in one of two shards that share the hashes between them.
        #[test]
        fn shards_divide_the_objects(
            namespace in "[a-z]{1,9}", uid in "[a-f0-9-]{0,36}", cut in 1..u64::MAX, by_uid: bool,
        ) {
            let object = object(&namespace, &uid);
            let key = if by_uid { UID } else { "object.metadata.namespace" };
            let cut = format!("{cut:#018x}");
            let one = ShardSelector::parse(&range(key, ZERO, &cut)).unwrap();
            let other = ShardSelector::parse(&range(key, &cut, WHOLE)).unwrap();
            prop_assert_ne!(one.matches(&object), other.matches(&object));
        }

        #[test]
        fn arbitrary_text_never_panics(text in "[ -~]{0,80}|shardRange\\(.{0,90}") {
            let _ = ShardSelector::parse(&text);
        }
    }
}
