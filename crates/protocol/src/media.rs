//! Content negotiation: the representation a client wants.
//!
//! Source: `apiserver/pkg/endpoints/handlers/negotiation/negotiate.go`,
//! `github.com/munnerz/goautoneg` (order of the clauses), `go-restful/v3/route.go`
//! (`matchesAccept`).
use std::cmp::Ordering;
use std::fmt;

use http::HeaderMap;
use http::header::{ACCEPT, USER_AGENT};

use super::table::TableVersion;
use super::{Query, Verb};

/// The encodings that objects are held in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Encoding {
    /// Compact JSON.
    Json,
    /// Kubernetes' protobuf: `k8s\0` and an `Unknown` message.
    Protobuf,
}

/// The kind of objects that are reduced to their metadata.
pub(crate) const PARTIAL_OBJECT: &str = "PartialObjectMetadata";
/// The kind of lists of these.
pub(crate) const PARTIAL_LIST: &str = "PartialObjectMetadataList";

/// An encoding, and the part of each object that is in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Representation {
    /// The encoding.
    pub encoding: Encoding,
    /// `PartialObjectMetadata` in place of the object.
    pub metadata_only: bool,
}

impl Representation {
    /// Creates the representation of whole objects.
    pub const fn whole(encoding: Encoding) -> Self {
        Self {
            encoding,
            metadata_only: false,
        }
    }

    /// Returns the `Accept` header that asks for lists in this representation only.
    pub fn list_accept_header(self) -> &'static str {
        match (self.encoding, self.metadata_only) {
            (encoding, false) => encoding.content_type(),
            (Encoding::Json, true) => {
                "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
            }
            (Encoding::Protobuf, true) => {
                "application/vnd.kubernetes.protobuf;\
                 as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
            }
        }
    }

    /// Returns the `Accept` header that asks for watches in this representation only.
    pub fn watch_accept_header(self) -> &'static str {
        match (self.encoding, self.metadata_only) {
            (encoding, false) => encoding.watch_content_type(),
            (Encoding::Json, true) => {
                "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
            }
            (Encoding::Protobuf, true) => {
                "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
            }
        }
    }
}

impl fmt::Display for Representation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let content = if self.metadata_only {
            "metadata"
        } else {
            "objects"
        };
        write!(f, "{content} in {}", self.encoding.as_str())
    }
}

/// One clause of an `Accept` header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AcceptClause {
    /// A representation that can be made of held objects.
    Supported(Representation),
    /// A Table in JSON.
    Table(TableVersion),
    /// Anything else: YAML, CBOR, indented JSON, or a clause that is not understood.
    Other,
}

impl Encoding {
    /// Returns the name in metrics, logs and reports.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Json => "json",
            Self::Protobuf => "protobuf",
        }
    }

    /// Returns the `Content-Type` of an answer that is no watch.
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::Json => "application/json",
            Self::Protobuf => "application/vnd.kubernetes.protobuf",
        }
    }

    /// Returns the `Content-Type` of a watch. That of protobuf has a parameter.
    pub const fn watch_content_type(self) -> &'static str {
        match self {
            Self::Json => "application/json",
            Self::Protobuf => "application/vnd.kubernetes.protobuf;stream=watch",
        }
    }

    fn of_media_type(media_type: &str) -> Option<Self> {
        match media_type {
            // Upstream offers JSON first.
            "application/json" | "*/*" => Some(Self::Json),
            "application/vnd.kubernetes.protobuf" => Some(Self::Protobuf),
            _ => None,
        }
    }
}

/// Parses a request's `Accept` header into the clauses that upstream would try, in its order.
///
/// The caller answers with the first representation that its resource type has. It forwards the
/// request if `Other` comes first, or nothing.
///
/// ```
/// use http::{HeaderMap, HeaderValue, header::ACCEPT};
/// use watershed_protocol::{AcceptClause, Encoding, Representation, Verb, acceptable};
///
/// let header = HeaderValue::from_static("application/vnd.kubernetes.protobuf,application/json");
/// let headers = HeaderMap::from_iter([(ACCEPT, header)]);
/// let expected = [Encoding::Protobuf, Encoding::Json]
///     .map(|encoding| AcceptClause::Supported(Representation::whole(encoding)));
/// assert_eq!(acceptable(&headers, Verb::List), expected);
/// ```
pub fn acceptable(headers: &HeaderMap, verb: Verb) -> Vec<AcceptClause> {
    acceptable_ignoring(headers, verb, &[])
}

/// Parses the header like [`acceptable`], for an upstream that ignores these parameters.
pub fn acceptable_ignoring(headers: &HeaderMap, verb: Verb, ignored: &[&str]) -> Vec<AcceptClause> {
    const DEFAULT: AcceptClause = AcceptClause::Supported(Representation {
        encoding: Encoding::Json,
        metadata_only: false,
    });
    let mut lines = headers.get_all(ACCEPT).iter();
    let Some(header) = lines.next() else {
        return vec![DEFAULT];
    };
    // Upstream looks at the first line only. Two lines are too rare to rely on that.
    let clauses = match header.to_str() {
        Ok("") => return vec![DEFAULT],
        Ok(text) if lines.next().is_none() => WeightedClause::parse_all(text, verb, ignored),
        _ => None,
    };
    match clauses {
        Some(clauses) => clauses.into_iter().map(|clause| clause.accepted).collect(),
        None => vec![AcceptClause::Other],
    }
}

/// Returns `true` if upstream would indent its JSON.
///
/// The `pretty` parameter decides if it has a value, otherwise the name of the client. Refusals of
/// watches are indented, and their events never are.
/// Source: `isPrettyPrint` and `NegotiateOutputMediaTypeStream` in `negotiate.go`.
pub fn wants_pretty(query: &Query<'_>, headers: &HeaderMap) -> bool {
    // Upstream does not decode a query without the word, so an escaped name does not count.
    let is_read = query.as_str().contains("pretty");
    let given = if is_read { query.pretty() } else { None };
    given.unwrap_or_else(|| {
        let agent = headers
            .get(USER_AGENT)
            .map(http::HeaderValue::as_bytes)
            .unwrap_or_default();
        [&b"curl"[..], b"Wget", b"Mozilla/5.0"]
            .iter()
            .any(|human| agent.starts_with(human))
    })
}

/// An element of an `Accept` header.
struct WeightedClause {
    accepted: AcceptClause,
    quality: f32,
    any_type: bool,
    any_subtype: bool,
}

impl WeightedClause {
    /// Go sorts up to this many elements by insertion, as [`sort`] does.
    const MAX: usize = 12;

    /// Parses and sorts the clauses. Returns `None` if their order is not certain.
    fn parse_all(text: &str, verb: Verb, ignored: &[&str]) -> Option<Vec<Self>> {
        let mut clauses = Vec::new();
        for part in text.split(',').map(trim).filter(|part| !part.is_empty()) {
            clauses.push(Self::parse(part, verb, ignored)?);
        }
        if clauses.len() > Self::MAX {
            return None;
        }
        sort(&mut clauses);
        Some(clauses)
    }

    fn parse(part: &str, verb: Verb, ignored: &[&str]) -> Option<Self> {
        let mut parameters = part.split(';');
        let media_type = parameters.next().map(trim).unwrap_or_default();
        let (kind, subtype) = media_type.split_once('/')?;
        let mut quality = 1.0;
        let mut known = true;
        // Of `as`, group and version.
        let mut conversion: [Option<&str>; 3] = [None; 3];
        for untrimmed in parameters {
            let parameter = trim(untrimmed);
            if parameter.is_empty() {
                continue;
            }
            match parameter.split_once('=')? {
                // A blank behind the number makes it none, which upstream takes for zero.
                ("q", _) if untrimmed.ends_with(' ') => return None,
                ("q", number) => quality = parse_quality(number)?,
                ("charset", _) => {}
                (name, _) if ignored.contains(&name) => {}
                ("stream", "watch") if verb == Verb::Watch => {}
                (name @ ("as" | "g" | "v"), value) => {
                    let place = &mut conversion
                        [["as", "g", "v"].iter().position(|known| *known == name)?];
                    // Named twice: too rare to rely on which one counts.
                    known &= place.replace(value).is_none();
                }
                _ => known = false,
            }
        }
        // A list of metadata for a list, single ones for gets and watches; upstream refuses it the
        // other way.
        let metadata = if verb == Verb::List {
            PARTIAL_LIST
        } else {
            PARTIAL_OBJECT
        };
        let encoding = Encoding::of_media_type(media_type).filter(|_| known);
        let representation = |metadata_only| {
            encoding.map(|encoding| {
                AcceptClause::Supported(Representation {
                    encoding,
                    metadata_only,
                })
            })
        };
        let accepted = match conversion {
            [None, None, None] => representation(false),
            [Some(wanted), Some("meta.k8s.io"), Some("v1")] if wanted == metadata => {
                representation(true)
            }
            // There is no such Table in protobuf.
            [Some("Table"), Some("meta.k8s.io"), Some(version)]
                if encoding == Some(Encoding::Json) =>
            {
                TableVersion::parse(version).map(AcceptClause::Table)
            }
            _ => None,
        };
        Some(Self {
            accepted: accepted.unwrap_or(AcceptClause::Other),
            quality,
            any_type: kind == "*",
            any_subtype: subtype == "*",
        })
    }

    /// Compares as goautoneg's `Less` does, which is not an order.
    ///
    /// A wildcard of higher quality and a type of lower quality each come before the other.
    fn is_before(&self, other: &Self) -> bool {
        self.quality.partial_cmp(&other.quality) == Some(Ordering::Greater)
            || (!self.any_type && other.any_type)
            || (!self.any_subtype && other.any_subtype)
    }
}

/// Sorts by insertion, as Go does.
///
/// The comparison is not an order, so only the same steps lead to the same result.
fn sort(clauses: &mut [WeightedClause]) {
    for i in 1..clauses.len() {
        for j in (1..=i).rev() {
            if !clauses[j].is_before(&clauses[j - 1]) {
                break;
            }
            clauses.swap(j, j - 1);
        }
    }
}

/// Parses a decimal number. Upstream accepts all that `ParseFloat` does, and takes the rest as
/// zero.
fn parse_quality(text: &str) -> Option<f32> {
    let decimal = text.len() <= 8 && text.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    text.parse().ok().filter(|_| decimal)
}

fn trim(text: &str) -> &str {
    text.trim_matches(' ')
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use proptest::prelude::*;

    use super::*;

    const JSON: AcceptClause = held(Encoding::Json, false);
    const PROTOBUF: AcceptClause = held(Encoding::Protobuf, false);
    const OTHER: AcceptClause = AcceptClause::Other;

    const fn held(encoding: Encoding, metadata_only: bool) -> AcceptClause {
        AcceptClause::Supported(Representation {
            encoding,
            metadata_only,
        })
    }

    fn accept(text: &str) -> HeaderMap {
        HeaderMap::from_iter([(ACCEPT, HeaderValue::from_str(text).unwrap())])
    }

    #[test]
    fn clauses_come_in_upstreams_order() {
        for (text, expected) in [
            ("", &[JSON][..]),
            ("*/*", &[JSON]),
            ("application/json", &[JSON]),
            ("application/json, */*", &[JSON, JSON]),
            (
                "application/vnd.kubernetes.protobuf,application/json",
                &[PROTOBUF, JSON],
            ),
            (
                "application/json,application/vnd.kubernetes.protobuf",
                &[JSON, PROTOBUF],
            ),
            (
                "application/json;q=0.5 , application/vnd.kubernetes.protobuf;q=0.9,",
                &[PROTOBUF, JSON],
            ),
            (
                "*/*, application/vnd.kubernetes.protobuf",
                &[PROTOBUF, JSON],
            ),
            (
                "*/*;q=0.8,application/vnd.kubernetes.protobuf;q=0.5",
                &[PROTOBUF, JSON],
            ),
            (
                "application/vnd.kubernetes.protobuf;q=0.5,*/*;q=0.8",
                &[JSON, PROTOBUF],
            ),
            ("application/json;charset=utf-8", &[JSON]),
            ("application/json;", &[JSON]),
            ("application/json;q=0", &[JSON]),
            ("application/*", &[OTHER]),
            ("application/*, application/json", &[JSON, OTHER]),
            ("application/yaml", &[OTHER]),
            ("application/cbor,application/json", &[OTHER, JSON]),
            ("Application/JSON", &[OTHER]),
            ("application / json", &[OTHER]),
            (
                "application/json;as=Table;v=v1;g=meta.k8s.io,application/json",
                &[AcceptClause::Table(TableVersion::V1), JSON],
            ),
            (
                "application/json,application/json;g=meta.k8s.io;v=v1beta1;as=Table",
                &[JSON, AcceptClause::Table(TableVersion::V1Beta1)],
            ),
            ("application/json;as=Table;v=v2;g=meta.k8s.io", &[OTHER]),
            ("application/json;as=Table", &[OTHER]),
            (
                "application/vnd.kubernetes.protobuf;as=Table;v=v1;g=meta.k8s.io",
                &[OTHER],
            ),
            ("application/json;pretty=1", &[OTHER]),
            ("application/json;stream=watch", &[OTHER]),
            ("*", &[OTHER]),
            ("application/json;q", &[OTHER]),
            ("application/json;q=high", &[OTHER]),
            ("application/json;q=nan", &[OTHER]),
            (
                "application/json;q=0.9 ;charset=utf-8,application/vnd.kubernetes.protobuf;q=0.5",
                &[OTHER],
            ),
            ("application/json/x", &[OTHER]),
            (
                "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8",
                &[OTHER, OTHER, OTHER, JSON],
            ),
        ] {
            assert_eq!(acceptable(&accept(text), Verb::List), expected, "{text:?}");
        }
        assert_eq!(acceptable(&HeaderMap::new(), Verb::List), [JSON]);
    }

    #[test]
    fn parameters_that_upstream_ignores_can_be_named() {
        let plain = accept("application/json;drop=metadata.managedFields");
        assert_eq!(acceptable(&plain, Verb::List), [OTHER]);
        assert_eq!(acceptable_ignoring(&plain, Verb::List, &["drop"]), [JSON]);
        let partial = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;\
            g=meta.k8s.io;v=v1;drop=metadata.managedFields,application/json;drop=;pretty=1";
        assert_eq!(
            acceptable_ignoring(&accept(partial), Verb::Watch, &["drop"]),
            [held(Encoding::Protobuf, true), OTHER]
        );
    }

    #[test]
    fn metadata_only_clauses_are_supported() {
        let one = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
        let list = "application/vnd.kubernetes.protobuf;v=v1;g=meta.k8s.io;\
            as=PartialObjectMetadataList,application/json";
        assert_eq!(
            acceptable(&accept(one), Verb::Get),
            [held(Encoding::Json, true)]
        );
        assert_eq!(
            acceptable(&accept(one), Verb::Watch),
            [held(Encoding::Json, true)]
        );
        assert_eq!(acceptable(&accept(one), Verb::List), [OTHER]);
        assert_eq!(
            acceptable(&accept(list), Verb::List),
            [held(Encoding::Protobuf, true), JSON]
        );
        assert_eq!(acceptable(&accept(list), Verb::Watch), [OTHER, JSON]);
        for odd in [
            "as=PartialObjectMetadata;v=v1",
            "as=PartialObjectMetadata;g=meta.k8s.io;v=v1beta1",
            "g=meta.k8s.io",
            "v=v1;v=v1",
        ] {
            assert_eq!(
                acceptable(&accept(&format!("application/json;{odd}")), Verb::Get),
                [OTHER],
                "{odd}"
            );
        }
    }

    #[test]
    fn requested_representations_are_understood() {
        for encoding in [Encoding::Json, Encoding::Protobuf] {
            for metadata_only in [false, true] {
                let asked = Representation {
                    encoding,
                    metadata_only,
                };
                let wanted = [AcceptClause::Supported(asked)];
                assert_eq!(
                    acceptable(&accept(asked.list_accept_header()), Verb::List),
                    wanted
                );
                assert_eq!(
                    acceptable(&accept(asked.watch_accept_header()), Verb::Watch),
                    wanted
                );
            }
        }
    }

    #[test]
    fn watches_may_name_their_stream() {
        let text = "application/json;stream=watch,application/vnd.kubernetes.protobuf;stream=watch";
        assert_eq!(acceptable(&accept(text), Verb::Watch), [JSON, PROTOBUF]);
        assert_eq!(
            acceptable(&accept("application/json;stream=other"), Verb::Watch),
            [OTHER]
        );
        assert_eq!(
            Encoding::Protobuf.watch_content_type(),
            "application/vnd.kubernetes.protobuf;stream=watch",
        );
    }

    #[test]
    fn unclear_headers_are_other() {
        let mut two = accept("application/json");
        two.append(ACCEPT, HeaderValue::from_static("*/*"));
        assert_eq!(acceptable(&two, Verb::List), [OTHER]);
        let opaque = HeaderMap::from_iter([(
            ACCEPT,
            HeaderValue::from_bytes(b"application/json\xff").unwrap(),
        )]);
        assert_eq!(acceptable(&opaque, Verb::List), [OTHER]);
        assert_eq!(
            acceptable(&accept(&["*/*"; 13].join(",")), Verb::List),
            [OTHER]
        );
    }

    #[test]
    fn json_is_indented_for_people() {
        let agent = |text| HeaderMap::from_iter([(USER_AGENT, HeaderValue::from_static(text))]);
        for (query, name, is_pretty) in [
            (None, "curl/8.5.0", true),
            (Some("pretty="), "Mozilla/5.0 (X11)", true),
            (Some("limit=1&pretty=true"), "kubectl/v1.37", true),
            (Some("pretty=false"), "curl/8.5.0", false),
            (Some("pretty=yes"), "Wget/1", false),
            (Some("p%72etty=0"), "Wget/1", true),
            (Some("p%72etty=0&x=pretty"), "Wget/1", false),
            (None, "kubectl/v1.37", false),
        ] {
            let found = wants_pretty(&Query::parse(query), &agent(name));
            assert_eq!(found, is_pretty, "{query:?} of {name}");
        }
        assert!(!wants_pretty(&Query::parse(None), &HeaderMap::new()));
    }

    proptest! {
        #[test]
        fn never_panics(
            text in "([ -~]|[*/;,=q. ]|application/json|\\*/\\*){0,20}",
            watch in any::<bool>(),
        ) {
            let _ = acceptable(&accept(&text), if watch { Verb::Watch } else { Verb::Get });
        }

        /// Equal qualities keep the client's order among clauses that are equally specific.
        #[test]
        fn specific_clauses_come_before_wildcards(
            clauses in prop::collection::vec(
                prop::sample::select(vec![
                    "application/json",
                    "application/vnd.kubernetes.protobuf",
                    "*/*",
                ]),
                1..8,
            ),
        ) {
            let (specific, wild): (Vec<_>, Vec<_>) =
                clauses.iter().partition(|clause| **clause != "*/*");
            let expected: Vec<_> = specific.into_iter().chain(wild)
                .map(|clause| held(Encoding::of_media_type(clause).unwrap(), false))
                .collect();
            prop_assert_eq!(acceptable(&accept(&clauses.join(",")), Verb::List), expected);
        }
    }
}
