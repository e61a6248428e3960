//! Differences between memory and upstream at one version.
use std::cmp::Ordering;
use std::fmt;

use watershed_protocol::ResourceVersion;

use crate::scope::cached::DifferingPart;

/// Number of differences that a log line names.
const SHOWN: usize = 5;
/// Characters of a key that a log line shows.
const KEY_CHARS: usize = 160;

/// An object that differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectDifference {
    pub(super) key: String,
    pub(super) kind: DifferenceKind,
}

/// The way in which an object differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DifferenceKind {
    /// Upstream has it, and memory does not.
    Missing,
    /// Memory has it, and upstream does not.
    Surplus,
    /// Both have it, in two versions.
    Version {
        memory: ResourceVersion,
        upstream: ResourceVersion,
    },
    /// Both have it in one version, and its bytes differ from this offset on.
    Bytes { offset: usize },
    /// Lists of the type are written in another format.
    List,
}

impl ObjectDifference {
    /// Returns the part in which some objects differ.
    pub(super) fn part(differences: &[Self]) -> DifferingPart {
        let is_print =
            |it: &Self| matches!(it.kind, DifferenceKind::Bytes { .. } | DifferenceKind::List);
        if differences.iter().all(is_print) {
            DifferingPart::Print
        } else {
            DifferingPart::Objects
        }
    }

    /// Returns the difference of lists in two formats, which is of no object.
    pub(super) fn of_list() -> Self {
        Self {
            key: String::new(),
            kind: DifferenceKind::List,
        }
    }

    /// Compares objects by key and version. Both sides are in the order of their keys.
    pub fn between<'a>(
        memory: impl Iterator<Item = (&'a str, ResourceVersion)>,
        upstream: impl Iterator<Item = (&'a str, ResourceVersion)>,
    ) -> Vec<Self> {
        let (mut memory, mut upstream) = (memory.peekable(), upstream.peekable());
        let mut found = Vec::new();
        loop {
            let order = match (memory.peek(), upstream.peek()) {
                (None, None) => return found,
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some((here, _)), Some((there, _))) => here.cmp(there),
            };
            let here = memory.next_if(|_| order.is_le());
            let there = upstream.next_if(|_| order.is_ge());
            let (key, kind) = match (here, there) {
                (Some((key, _)), None) => (key, DifferenceKind::Surplus),
                (None, Some((key, _))) => (key, DifferenceKind::Missing),
                (Some((key, memory)), Some((_, upstream))) if memory != upstream => {
                    (key, DifferenceKind::Version { memory, upstream })
                }
                _ => continue,
            };
            found.push(Self {
                key: key.to_owned(),
                kind,
            });
        }
    }

    /// Compares the bytes of one object.
    pub fn of_bytes(key: &str, memory: &[u8], upstream: &[u8]) -> Option<Self> {
        let pairs = memory.iter().zip(upstream);
        let offset = pairs.take_while(|(here, there)| here == there);
        (memory != upstream).then(|| Self {
            key: key.to_owned(),
            kind: DifferenceKind::Bytes {
                offset: offset.count(),
            },
        })
    }
}

impl fmt::Display for ObjectDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key: String = self.key.chars().take(KEY_CHARS).collect();
        match self.kind {
            DifferenceKind::Missing => write!(f, "{key}: only upstream"),
            DifferenceKind::Surplus => write!(f, "{key}: only in memory"),
            DifferenceKind::Version { memory, upstream } => {
                write!(f, "{key}: version {memory} in memory, {upstream} upstream")
            }
            DifferenceKind::List => f.write_str("lists of another format upstream"),
            // The bytes themselves may be secret, and the log is read by others.
            DifferenceKind::Bytes { offset } => write!(f, "{key}: other bytes at offset {offset}"),
        }
    }
}

/// The first differences, for the log.
pub struct DifferenceExcerpt<'a>(pub &'a [ObjectDifference]);

impl fmt::Display for DifferenceExcerpt<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, difference) in self.0.iter().take(SHOWN).enumerate() {
            let separator = if index > 0 { "; " } else { "" };
            write!(f, "{separator}{difference}")?;
        }
        if self.0.len() > SHOWN {
            f.write_str("; …")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Side<'a> = &'a [(&'a str, u64)];

    fn side(objects: Side<'_>) -> impl Iterator<Item = (&str, ResourceVersion)> {
        let objects = objects.iter();
        objects.map(|(key, version)| (*key, ResourceVersion(*version)))
    }

    fn between(memory: Side<'_>, upstream: Side<'_>) -> String {
        DifferenceExcerpt(&ObjectDifference::between(side(memory), side(upstream))).to_string()
    }

    #[test]
    fn every_kind_of_difference_is_found_and_named() {
        let same = [("a/x", 1), ("a/y", 2)];
        assert_eq!(between(&same, &same), "");
        assert_eq!(between(&[], &[]), "");
        assert_eq!(
            between(
                &[("a/x", 1), ("a/y", 2), ("b/z", 3)],
                &[("a/x", 1), ("a/xx", 7), ("a/y", 4), ("c/z", 3)],
            ),
            "a/xx: only upstream; a/y: version 2 in memory, 4 upstream; b/z: only in memory; \
             c/z: only upstream"
        );
        assert_eq!(
            between(&same, &[]),
            "a/x: only in memory; a/y: only in memory"
        );
        assert_eq!(ObjectDifference::of_bytes("a", b"one", b"one"), None);
        let bytes = ObjectDifference::of_bytes("a", b"one", b"once").unwrap();
        assert_eq!(bytes.to_string(), "a: other bytes at offset 2");
        let list = ObjectDifference::of_list();
        assert_eq!(ObjectDifference::part(&[list, bytes]), DifferingPart::Print);
    }

    #[test]
    fn a_log_line_is_bounded() {
        let key = "k".repeat(5000);
        let kind = DifferenceKind::Missing;
        let many = vec![ObjectDifference { key, kind }; 1000];
        assert!(DifferenceExcerpt(&many).to_string().len() < 1000);
    }
}
