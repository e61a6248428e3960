//! The version of an object or a list, as upstream numbers it.
use std::fmt;

/// A resourceVersion of upstream's: an etcd revision, unsigned, 64 bits, decimal on the wire.
///
/// Zero never names a state: as a request's parameter it means "any".
/// Source: `apiserver/pkg/storage/api_object_versioner.go` (ParseUint, base 10).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ResourceVersion(pub u64);

impl ResourceVersion {
    /// Reads the decimal form; `None` for anything upstream's `ParseUint` would refuse.
    pub fn parse(text: &str) -> Option<Self> {
        if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        text.parse().ok().map(Self)
    }

    /// The version right before this one; never zero, which means something else.
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
    fn reads_what_upstream_reads() {
        assert_eq!(ResourceVersion::parse("007"), Some(ResourceVersion(7)));
        for bad in ["", "+1", "-1", "1a", "18446744073709551616"] {
            assert_eq!(ResourceVersion::parse(bad), None, "{bad:?}");
        }
    }
}
