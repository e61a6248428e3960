//! The Audit-Id header.
use http::{HeaderMap, HeaderName, HeaderValue};

pub(super) const NAME: HeaderName = HeaderName::from_static("audit-id");

/// Returns the caller's own id, or a new one. Source:
/// `apiserver/pkg/endpoints/filters/audit_init.go`.
pub(super) fn of(headers: &HeaderMap) -> HeaderValue {
    if let Some(given) = headers.get(NAME).filter(|given| !given.is_empty()) {
        return given.clone();
    }
    // The form of a random UUID (RFC 9562, version 4).
    let random = fastrand::u128(..) & !(0xf << 76) & !(0xc << 60) | (0x4 << 76) | (0x8 << 60);
    let hex = format!("{random:032x}");
    let id = format!(
        "{}-{}-{}-{}-{}",
        &hex[..8],
        &hex[8..12],
        &hex[12..16],
        &hex[16..20],
        &hex[20..]
    );
    HeaderValue::try_from(id).expect("hexadecimal digits and dashes are a header value")
}

/// Keeps the header out of the connection's HPACK table. An id never comes again, and the last
/// fifty would push out headers that do.
pub(super) fn never_index(headers: &mut HeaderMap) {
    if let Some(id) = headers.get_mut(NAME) {
        id.set_sensitive(true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_of_the_caller_is_kept() {
        let mut headers = HeaderMap::new();
        headers.insert("Audit-ID", "mine".parse().unwrap());
        assert_eq!(of(&headers), "mine");
    }

    #[test]
    fn a_new_id_is_a_random_uuid() {
        let id = of(&HeaderMap::new());
        let id = id.to_str().unwrap();
        assert_eq!(id.len(), 36);
        assert_eq!(&id[14..15], "4");
        assert!("89ab".contains(&id[19..20]), "{id}");
    }

    #[test]
    fn ids_are_never_indexed() {
        let mut headers = HeaderMap::new();
        never_index(&mut headers);
        headers.insert(NAME, of(&HeaderMap::new()));
        never_index(&mut headers);
        assert!(
            headers[NAME].is_sensitive(),
            "literal, and never indexed (RFC 7541, 6.2.3)"
        );
    }
}
