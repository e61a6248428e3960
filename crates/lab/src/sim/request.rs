//! The parts of a request: its URL's attributes, its list and watch options, its Accept header.
//!
//! This module deliberately does not use [`watershed_protocol`] to read URLs. The server is the
//! witness in tests of the proxy, and nobody would see a mistake that both share. Selectors and
//! versions are the exception: both read them with that crate, which has tests of its own.
use std::borrow::Cow;

use http::{HeaderMap, Method, header};

use super::attributes::SimulatedAccess;
use super::kinds::ResourceKind;
use super::message;
use super::status::Failure;
use watershed_protocol::{FieldSelector, LabelSelector};

/// A parsed request URL.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RequestTarget {
    /// The access that the authorizer decides on.
    pub(crate) attributes: SimulatedAccess,
    /// Version in the URL, empty for paths.
    pub(crate) version: String,
}

/// Query parameters of list and watch, as the client sent them.
#[derive(Clone, Debug, Default)]
pub(crate) struct QueryParameters {
    pub(crate) watch: bool,
    pub(crate) version: Option<String>,
    pub(crate) version_match: Option<String>,
    pub(crate) continue_token: Option<String>,
    pub(crate) limit: i64,
    pub(crate) timeout_seconds: Option<i64>,
    pub(crate) bookmarks: bool,
    pub(crate) initial_events: Option<bool>,
    pub(crate) label: String,
    pub(crate) field: String,
}

/// The objects of a type that a request selects.
#[derive(Clone, Debug)]
pub(crate) struct ObjectFilter {
    /// Empty for all namespaces.
    pub(crate) namespace: String,
    /// The name in the path of a watch; empty for all.
    name: String,
    labels: LabelSelector,
    fields: FieldSelector,
}

/// The form of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AnswerShape {
    Full,
    /// Whole objects in protobuf.
    Message,
    /// PartialObjectMetadata.
    Partial,
}

impl RequestTarget {
    /// The attributes of a URL. Source: apiserver `pkg/endpoints/request/requestinfo.go`.
    pub(crate) fn read(method: &Method, path: &str, query: &QueryParameters) -> Self {
        let parts: Vec<_> = path.trim_matches('/').split('/').collect();
        let plain = || Self {
            attributes: SimulatedAccess {
                verb: method.as_str().to_ascii_lowercase(),
                path: path.to_owned(),
                ..SimulatedAccess::default()
            },
            version: String::new(),
        };
        let (group, version, mut rest) = match parts.as_slice() {
            ["api", version, rest @ ..] if !rest.is_empty() => ("", *version, rest),
            ["apis", group, version, rest @ ..] if !rest.is_empty() => (*group, *version, rest),
            _ => return plain(),
        };
        let watch_prefix = rest[0] == "watch" && rest.len() > 1;
        if watch_prefix {
            rest = &rest[1..];
        }
        let Some(path_parts) = ResourcePath::read(rest) else {
            return plain();
        };
        let ResourcePath {
            namespace,
            resource,
            name,
            subresource,
        } = path_parts;
        let verb = match *method {
            _ if watch_prefix => "watch",
            Method::GET | Method::HEAD if name.is_empty() && query.watch => "watch",
            Method::GET | Method::HEAD if name.is_empty() => "list",
            Method::GET | Method::HEAD => "get",
            Method::POST => "create",
            Method::PUT => "update",
            Method::PATCH => "patch",
            Method::DELETE if name.is_empty() => "deletecollection",
            Method::DELETE => "delete",
            _ => "",
        };
        let fields = FieldSelector::parse(&query.field).unwrap_or_default();
        let name = if matches!(verb, "list" | "watch") && name.is_empty() {
            fields.required_value("metadata.name").unwrap_or("")
        } else {
            name
        };
        Self {
            attributes: SimulatedAccess {
                verb: verb.to_owned(),
                group: group.to_owned(),
                resource: resource.to_owned(),
                subresource: subresource.to_owned(),
                namespace: decode(namespace),
                name: decode(name),
                path: path.to_owned(),
            },
            version: version.to_owned(),
        }
    }

    /// Returns the label of counters: `pods`, `deployments.apps`, or an empty text for paths.
    pub(crate) fn resource(&self) -> String {
        let SimulatedAccess {
            group, resource, ..
        } = &self.attributes;
        if group.is_empty() || resource.is_empty() {
            resource.clone()
        } else {
            format!("{resource}.{group}")
        }
    }

    /// Returns the verb as upstream's metrics name it.
    pub(crate) fn metric_verb(&self) -> &'static str {
        match self.attributes.verb.as_str() {
            "list" => "LIST",
            "watch" => "WATCH",
            "create" | "post" => "POST",
            "update" | "put" => "PUT",
            "patch" => "PATCH",
            "delete" | "deletecollection" => "DELETE",
            _ => "GET",
        }
    }
}

/// The parts of a path below its group and version.
struct ResourcePath<'a> {
    namespace: &'a str,
    resource: &'a str,
    name: &'a str,
    subresource: &'a str,
}

impl<'a> ResourcePath<'a> {
    fn read(rest: &[&'a str]) -> Option<Self> {
        let (namespace, resource, name, subresource) = match rest {
            // Only these two words below a namespace are its subresources, everything else is a
            // resource in it.
            ["namespaces", name] => (*name, "namespaces", *name, ""),
            ["namespaces", name, sub @ ("status" | "finalize")] => {
                (*name, "namespaces", *name, *sub)
            }
            ["namespaces", namespace, resource] => (*namespace, *resource, "", ""),
            ["namespaces", namespace, resource, name] => (*namespace, *resource, *name, ""),
            ["namespaces", namespace, resource, name, sub, ..] => {
                (*namespace, *resource, *name, *sub)
            }
            [resource] => ("", *resource, "", ""),
            [resource, name] => ("", *resource, *name, ""),
            [resource, name, sub, ..] => ("", *resource, *name, *sub),
            [] => return None,
        };
        Some(Self {
            namespace,
            resource,
            name,
            subresource,
        })
    }
}

fn decode(text: &str) -> String {
    percent_encoding::percent_decode_str(text)
        .decode_utf8_lossy()
        .into_owned()
}

impl QueryParameters {
    /// Parses the query. The first of repeated parameters wins, as upstream decodes them.
    pub(crate) fn read(query: &str) -> Result<Self, Failure> {
        let pairs: Vec<_> = form_urlencoded::parse(query.as_bytes()).collect();
        let first = |name: &str| {
            pairs
                .iter()
                .find(|(k, _)| k == name)
                .map(|(_, v)| v.clone())
        };
        let flag = |name: &str| first(name).map(|v| is_true(&v));
        let number = |name: &str| first(name).map(|v| integer(&v)).transpose();
        let text = |name: &str| first(name).map(Cow::into_owned).filter(|v| !v.is_empty());
        Ok(Self {
            watch: flag("watch").unwrap_or(false),
            version: text("resourceVersion"),
            version_match: text("resourceVersionMatch"),
            continue_token: text("continue"),
            limit: number("limit")?.unwrap_or(0),
            timeout_seconds: number("timeoutSeconds")?,
            bookmarks: flag("allowWatchBookmarks").unwrap_or(false),
            initial_events: flag("sendInitialEvents"),
            label: text("labelSelector").unwrap_or_default(),
            field: text("fieldSelector").unwrap_or_default(),
        })
    }

    /// Reads `watch` alone, of a query that cannot be read. Upstream tells the verb by it.
    ///
    /// Source: apiserver `pkg/endpoints/request/requestinfo.go` (`NewRequestInfo`).
    pub(crate) fn read_watch(query: &str) -> Self {
        let mut pairs = form_urlencoded::parse(query.as_bytes());
        let watch = pairs.find(|(name, _)| name == "watch");
        Self {
            watch: watch.is_some_and(|(_, value)| is_true(&value)),
            ..Self::default()
        }
    }

    /// The selectors, checked against what the type knows.
    pub(crate) fn filter(
        &self,
        kind: &ResourceKind,
        namespace: &str,
    ) -> Result<ObjectFilter, Failure> {
        let bad =
            |text: &str, e: String| Failure::bad_request(format!("unable to parse {text:?}: {e}"));
        let labels =
            LabelSelector::parse(&self.label).map_err(|e| bad(&self.label, e.to_string()))?;
        let fields =
            FieldSelector::parse(&self.field).map_err(|e| bad(&self.field, e.to_string()))?;
        for requirement in fields.requirements() {
            if let Some(message) = kind.refuse_field(&requirement.field) {
                return Err(Failure::bad_request(message));
            }
        }
        Ok(ObjectFilter {
            namespace: namespace.to_owned(),
            name: String::new(),
            labels,
            fields,
        })
    }

    /// Returns `resourceVersion` as a number. It is zero also when the parameter is absent.
    pub(crate) fn version_number(&self) -> Result<u64, String> {
        let text = self.version.as_deref().unwrap_or("0");
        watershed_protocol::ResourceVersion::parse(text)
            .map(|v| v.0)
            .ok_or_else(|| {
                format!(
                    "resourceVersion: Invalid value: {text:?}: \
                     strconv.ParseUint: parsing {text:?}: invalid syntax"
                )
            })
    }
}

/// Returns the boolean that a query's value stands for.
fn is_true(value: &str) -> bool {
    !(value == "0" || value.eq_ignore_ascii_case("false"))
}

fn integer(text: &str) -> Result<i64, Failure> {
    text.parse().map_err(|_| {
        Failure::bad_request(format!(
            "strconv.ParseInt: parsing {text:?}: invalid syntax"
        ))
    })
}

impl ObjectFilter {
    /// Leaves out all objects but one, unless the name is empty.
    ///
    /// Source: apiserver `pkg/endpoints/handlers/get.go` (`ListResource`).
    pub(crate) fn of_name(self, name: &str) -> Result<Self, Failure> {
        let selected = self.fields.required_value("metadata.name");
        if !name.is_empty() && !self.fields.requirements().is_empty() && selected != Some(name) {
            let message = "fieldSelector metadata.name doesn't match requested name";
            return Err(Failure::bad_request(message));
        }
        Ok(Self {
            name: name.to_owned(),
            ..self
        })
    }

    /// Returns `true` if the request selects an object.
    pub(crate) fn matches(&self, object: &super::object::SimulatedObject) -> bool {
        (self.namespace.is_empty() || !object.kind.namespaced || self.namespace == object.namespace)
            && (self.name.is_empty() || self.name == object.field("metadata.name"))
            && self
                .labels
                .matches(|key| object.labels.get(key).map(String::as_str))
            && self.fields.matches(|field| object.field(field))
    }

    /// Returns `true` if selectors leave objects of the range out. Such lists have no
    /// `remainingItemCount`.
    pub(crate) fn has_selectors(&self) -> bool {
        !self.labels.is_everything() || !self.fields.is_everything()
    }

    /// Returns `true` if the selector pins one object.
    pub(crate) fn pins_name(&self, kind: &ResourceKind) -> bool {
        let namespace = !self.namespace.is_empty()
            || self.fields.required_value("metadata.namespace").is_some();
        self.fields.required_value("metadata.name").is_some() && (namespace || !kind.namespaced)
    }
}

impl AnswerShape {
    /// Chooses by the Accept header; `suffix` is `List` for a list. Clauses this server can't serve
    /// are passed over.
    pub(crate) fn negotiate(
        headers: &HeaderMap,
        suffix: &str,
        protobuf: bool,
    ) -> Result<Self, Failure> {
        let accept: Vec<_> = headers
            .get_all(header::ACCEPT)
            .iter()
            .filter_map(|v| v.to_str().ok())
            .collect();
        let accept = accept.join(",");
        if accept.trim().is_empty() {
            return Ok(Self::Full);
        }
        let mut clauses: Vec<_> = accept.split(',').map(MediaRange::read).collect();
        clauses.sort_by(|a, b| b.quality.total_cmp(&a.quality));
        clauses
            .iter()
            .find_map(|c| c.shape(suffix, protobuf))
            .ok_or_else(Failure::not_acceptable)
    }

    /// Returns the content type of a list or an object.
    pub(crate) fn media_type(self) -> &'static str {
        match self {
            Self::Message => message::MEDIA_TYPE,
            Self::Full | Self::Partial => "application/json",
        }
    }

    /// Returns the content type of a watch.
    pub(crate) fn watch_media_type(self) -> &'static str {
        match self {
            Self::Message => message::WATCH_MEDIA_TYPE,
            Self::Full | Self::Partial => "application/json",
        }
    }

    /// Returns `true` if the Accept header asks for aggregated discovery in this server's version.
    pub(crate) fn aggregated_discovery(headers: &HeaderMap) -> bool {
        let accept = headers
            .get(header::ACCEPT)
            .and_then(|v| v.to_str().ok())
            .unwrap_or_default();
        accept.split(',').map(MediaRange::read).any(|c| {
            c.media == "application/json"
                && c.is("g", "apidiscovery.k8s.io")
                && c.is("v", "v2")
                && c.is("as", "APIGroupDiscoveryList")
        })
    }
}

/// One clause of an Accept header.
struct MediaRange<'a> {
    media: &'a str,
    parameters: Vec<(&'a str, &'a str)>,
    quality: f32,
}

impl<'a> MediaRange<'a> {
    fn read(text: &'a str) -> Self {
        let mut parts = text.split(';').map(str::trim);
        let media = parts.next().unwrap_or_default();
        let parameters: Vec<_> = parts.filter_map(|p| p.split_once('=')).collect();
        let quality = parameters
            .iter()
            .find(|(k, _)| *k == "q")
            .and_then(|(_, v)| v.parse().ok())
            .unwrap_or(1.0);
        Self {
            media,
            parameters,
            quality,
        }
    }

    fn names(&self, parameter: &str) -> bool {
        self.parameters.iter().any(|(name, _)| *name == parameter)
    }

    fn is(&self, name: &str, value: &str) -> bool {
        self.parameters.contains(&(name, value))
    }

    fn shape(&self, suffix: &str, protobuf: bool) -> Option<AnswerShape> {
        if protobuf && self.media == message::MEDIA_TYPE && !self.names("as") {
            return Some(AnswerShape::Message);
        }
        if !matches!(self.media, "application/json" | "application/*" | "*/*") {
            return None;
        }
        match self.parameters.iter().find(|(k, _)| *k == "as") {
            None => Some(AnswerShape::Full),
            Some((_, wanted)) => {
                let partial = wanted.strip_prefix("PartialObjectMetadata")?;
                (partial == suffix && self.is("g", "meta.k8s.io") && self.is("v", "v1"))
                    .then_some(AnswerShape::Partial)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(path: &str, query: &str) -> SimulatedAccess {
        RequestTarget::read(&Method::GET, path, &QueryParameters::read(query).unwrap()).attributes
    }

    #[test]
    fn urls_are_read_as_upstream_does() {
        let ns = read("/api/v1/namespaces/kube-system", "watch=1");
        assert_eq!(
            (ns.verb.as_str(), ns.namespace.as_str(), ns.name.as_str()),
            ("get", "kube-system", "kube-system")
        );
        assert_eq!(read("/api/v1/pods", "watch").verb, "watch");
        assert_eq!(read("/api/v1/pods", "watch=false").verb, "list");
        assert_eq!(
            read("/apis/apps/v1/watch/namespaces/n/deployments", "").namespace,
            "n"
        );
        assert_eq!(
            read("/api/v1/pods", "fieldSelector=metadata.name%3Dx").name,
            "x"
        );
        assert_eq!(read("/apis/apps/v1", "").resource, "");
    }

    #[test]
    fn the_verb_of_a_bad_query_is_that_of_its_watch() {
        for (query, watch) in [
            ("watch=false&limit=x", false),
            ("labelSelector=app%3Dwatchdog&limit=x", false),
            ("limit=x&watch", true),
            ("limit=x&watch=1&watch=0", true),
        ] {
            assert!(QueryParameters::read(query).is_err(), "{query}");
            assert_eq!(QueryParameters::read_watch(query).watch, watch, "{query}");
        }
    }

    #[test]
    fn accept_is_negotiated() {
        let shape = |accept: &str, suffix| {
            let mut headers = HeaderMap::new();
            headers.insert(header::ACCEPT, accept.parse().unwrap());
            AnswerShape::negotiate(&headers, suffix, false).map_err(|f| f.code)
        };
        assert_eq!(
            shape(
                "application/vnd.kubernetes.protobuf,application/json",
                "List"
            ),
            Ok(AnswerShape::Full)
        );
        assert_eq!(
            shape("application/vnd.kubernetes.protobuf", "List"),
            Err(406)
        );
        let partial = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
        assert_eq!(shape(partial, "List"), Ok(AnswerShape::Partial));
        assert_eq!(shape(partial, ""), Err(406));
        assert_eq!(
            shape(
                "application/json;as=Table;g=meta.k8s.io;v=v1,application/json",
                "List"
            ),
            Ok(AnswerShape::Full)
        );
    }
}
