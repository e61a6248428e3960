//! The version of an object or a list, as upstream numbers it.
use std::fmt;

/// A resourceVersion: an etcd revision of 64 bits, decimal on the wire.
///
/// Zero never names a state. As a request's parameter it means "any".
/// Source: `apiserver/pkg/storage/api_object_versioner.go` (ParseUint, base 10).
///
/// ```
/// use watershed_protocol::ResourceVersion;
///
/// let version = ResourceVersion::parse("287").expect("a decimal number");
/// assert!(version > ResourceVersion(5));
/// assert_eq!(version.to_string(), "287");
/// assert_eq!(ResourceVersion::parse("-1"), None);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ResourceVersion(pub u64);

impl ResourceVersion {
    /// Parses the decimal form. Returns `None` where upstream's `ParseUint` would fail.
    pub fn parse(text: &str) -> Option<Self> {
        if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        text.parse().ok().map(Self)
    }

    /// Returns the version right before this one, but never zero, which means "any".
    pub fn before(self) -> Self {
        Self(self.0.saturating_sub(1).max(1))
    }
}

impl fmt::Display for ResourceVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimal_versions_are_read_as_upstream_reads_them() {
        assert_eq!(ResourceVersion::parse("007"), Some(ResourceVersion(7)));
        for bad in ["", "+1", "-1", "1a", "18446744073709551616"] {
            assert_eq!(ResourceVersion::parse(bad), None, "{bad:?}");
        }
    }
}
