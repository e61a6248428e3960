//! Names in certificates.
use std::borrow::Cow;

use x509_parser::asn1_rs::{Any, FromDer, Oid, Sequence, Set};
use x509_parser::x509::X509Name;

/// Returns `true` if all of a name was read.
///
/// x509-parser reads a name up to the first part that it does not understand, such as an empty set,
/// and leaves the rest out. Go reads on, so that the same certificate would be another user's.
/// Source: Go's `crypto/x509/parser.go` (`parseName`).
pub(super) fn is_whole(name: &X509Name<'_>) -> bool {
    attributes(name.as_raw()).is_some_and(|count| count == name.iter_attributes().count())
}

/// Returns the number of attributes in a name; `None` if it is not well-formed to its end.
fn attributes(name: &[u8]) -> Option<usize> {
    let (rest, name) = Sequence::from_der(name).ok()?;
    let Cow::Borrowed(mut sets) = name.content else {
        return None;
    };
    let mut count = 0;
    while !sets.is_empty() {
        let (after, set) = Set::from_der(sets).ok()?;
        sets = after;
        let Cow::Borrowed(mut parts) = set.content else {
            return None;
        };
        while !parts.is_empty() {
            let (after, part) = Sequence::from_der(parts).ok()?;
            parts = after;
            let (value, _) = Oid::from_der(&part.content).ok()?;
            let (end, _) = Any::from_der(value).ok()?;
            end.is_empty().then_some(())?;
            count += 1;
        }
    }
    rest.is_empty().then_some(count)
}
