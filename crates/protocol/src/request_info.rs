//! The subject of a request: verb, resource type, namespace and name.
//!
//! Source: `apiserver/pkg/endpoints/request/requestinfo.go` (`NewRequestInfo`).

use http::Method;

use super::{FieldSelector, GroupVersionResource, LabelSelector, Query, is_key_part};

/// Subresources that are conversations of a client with a container or a server.
const SESSIONS: [&str; 4] = ["attach", "exec", "portforward", PROXY];
/// The subresource by which a pod, a service or a node is asked.
const PROXY: &str = "proxy";
/// The subresource of a container's output.
const LOG: &str = "log";

/// The kind of a request, as authorizers name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verb {
    /// Read one object. Also GET of a path that is no resource.
    Get,
    /// Read a collection.
    List,
    /// Stream a collection's changes.
    Watch,
    /// POST
    Create,
    /// PUT
    Update,
    /// PATCH
    Patch,
    /// DELETE of one object.
    Delete,
    /// DELETE of a collection.
    DeleteCollection,
    /// Anything else, HEAD included: only ever forwarded.
    Other,
}

/// The end of the answer to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerEnd {
    /// It ends by itself.
    ByItself,
    /// It may stay open as long as its client likes.
    ByClient,
    /// Either: upstream may read more of the query than could be read here, or less.
    Unknown,
}

/// A request's attributes, as far as its method and URL give them.
///
/// ```
/// use http::Method;
/// use watershed_protocol::{RequestInfo, Verb};
///
/// let info = RequestInfo::parse(&Method::GET, "/apis/apps/v1/deployments", Some("watch=1"));
/// assert_eq!(info.verb, Verb::Watch);
/// let resource = info.resource.expect("a resource");
/// assert_eq!(resource.gvr.to_string(), "deployments.v1.apps");
/// assert_eq!(resource.namespace, None);
///
/// let other = RequestInfo::parse(&Method::GET, "/healthz", None);
/// assert_eq!(other.resource, None);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestInfo {
    /// The verb. If `resource` is `None`, it is a best guess: it can choose a connection, but no
    /// permission may depend on it.
    pub verb: Verb,
    /// The resource. `None` for other paths and for URLs that are not certainly understood; both
    /// are forwarded.
    pub resource: Option<ResourceRequest>,
    /// The URL has the deprecated `/watch/` prefix. Authorization then sees no selectors, and the
    /// options may lack `watch`.
    pub legacy_watch: bool,
}

/// The resource of a request, and its part.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ResourceRequest {
    /// The resource type.
    pub gvr: GroupVersionResource,
    /// The namespace; `None` for all of them and for types without. A request for one `namespaces`
    /// object has that object's own name here, which is what authorizers see.
    pub namespace: Option<String>,
    /// The object's name, from the path. That of a list, or of a watch without the prefix `/watch/`, comes
    /// from its `metadata.name` field selector: permissions are asked for that name, but the request is about
    /// the collection.
    pub name: Option<String>,
    /// For example `status` or `log`.
    pub subresource: Option<String>,
}

impl Verb {
    /// Returns upstream's name of the verb, as in SubjectAccessReviews.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::List => "list",
            Self::Watch => "watch",
            Self::Create => "create",
            Self::Update => "update",
            Self::Patch => "patch",
            Self::Delete => "delete",
            Self::DeleteCollection => "deletecollection",
            Self::Other => "other",
        }
    }

    fn of_method(method: &Method) -> Self {
        match *method {
            Method::GET => Self::Get,
            Method::POST => Self::Create,
            Method::PUT => Self::Update,
            Method::PATCH => Self::Patch,
            Method::DELETE => Self::Delete,
            _ => Self::Other,
        }
    }
}

impl RequestInfo {
    /// Parses method, path and query.
    ///
    /// It never fails. The result for a URL that is not understood has no resource.
    pub fn parse(method: &Method, path: &str, query: Option<&str>) -> Self {
        Self::of(method, path, &Query::parse(query))
    }

    /// Reads method, path and query.
    pub fn of(method: &Method, path: &str, query: &Query<'_>) -> Self {
        let verb = Verb::of_method(method);
        let other = Self {
            verb: match verb {
                Verb::Get => Verb::Get,
                _ => Verb::Other,
            },
            resource: None,
            legacy_watch: false,
        };

        let segments: Vec<&str> = path.trim_matches('/').split('/').collect();
        let (group, version, rest) = match segments[..] {
            ["api", version, ref rest @ ..] if !rest.is_empty() => ("", version, rest),
            ["apis", group, version, ref rest @ ..] if !rest.is_empty() => (group, version, rest),
            _ => return other,
        };
        let (legacy_watch, rest) = match rest {
            ["watch"] | ["proxy", ..] => return other,
            ["watch", rest @ ..] => (true, rest),
            rest => (false, rest),
        };
        let (namespace, parts) = split_namespace(rest);
        let resource = parts.first().copied().unwrap_or_default();
        // An empty segment is no name for upstream either.
        let name = parts.get(1).copied().filter(|name| !name.is_empty());
        let subresource = parts.get(2).copied();

        let (verb, selected_name) = match (verb, name) {
            (Verb::Get, _) if legacy_watch => (Verb::Watch, None),
            (_, _) if legacy_watch => (Verb::Other, None),
            (Verb::Get, None) => collection_read(query),
            (Verb::Delete, None) => (Verb::DeleteCollection, None),
            (verb, _) => (verb, None),
        };

        // Upstream has no such path. Read as one of a namespace object, it would be authorized for
        // another namespace than it names.
        let namespace_in_namespace = matches!(rest, ["namespaces", _, "namespaces", ..]);
        let understood = path.starts_with('/')
            && !namespace_in_namespace
            && !path.contains("//")
            && [group, version, resource].into_iter().all(is_plain_word)
            && namespace.is_none_or(is_plain_word)
            && parts.iter().skip(1).all(|part| is_plain_segment(part));
        let resource = understood.then(|| ResourceRequest {
            gvr: GroupVersionResource::new(group, version, resource),
            namespace: namespace.map(str::to_owned),
            name: name.map(str::to_owned).or(selected_name),
            subresource: subresource.map(str::to_owned),
        });
        Self {
            verb,
            resource,
            legacy_watch,
        }
    }

    /// Returns `true` if upstream treats the request, which has this path, as long-running.
    ///
    /// Source: `BasicLongRunningRequestCheck` in `apiserver/pkg/server/filters/longrunning.go`, with
    /// the words of `controlplane/apiserver/config.go`.
    pub fn is_long_running(&self, path: &str) -> bool {
        match (&self.resource, self.subresource()) {
            (None, _) => path.starts_with("/debug/pprof/"),
            (Some(_), Some(part)) if part == LOG || SESSIONS.contains(&part) => true,
            (Some(_), _) => self.verb == Verb::Watch,
        }
    }

    /// Returns the end of the answer to the request, which has this query. Logs are long-running for upstream
    /// either way, but end by themselves unless they are followed.
    pub fn answer_end(&self, query: &Query<'_>) -> AnswerEnd {
        let (asks, name) = match self.subresource() {
            Some(LOG) => (query.flag("follow") == Some(true), "follow"),
            Some(part) if SESSIONS.contains(&part) => return AnswerEnd::ByClient,
            _ if self.legacy_watch => return AnswerEnd::ByClient,
            _ => (self.verb == Verb::Watch, "watch"),
        };
        let is_read = matches!(self.verb, Verb::Get | Verb::List | Verb::Watch);
        if is_read && !query.is_whole() && query.has_name(name) {
            AnswerEnd::Unknown
        } else if asks {
            AnswerEnd::ByClient
        } else {
            AnswerEnd::ByItself
        }
    }

    /// Returns `true` if a pod, a service or a node may write the answer to the request, which has this path:
    /// it is proxied to one, or asks for a log.
    pub fn is_relayed(&self, path: &str) -> bool {
        if let Some(subresource) = self.subresource() {
            return [PROXY, LOG].contains(&subresource);
        }
        // One that is not understood may be proxied as well: upstream decodes it. Documents have fewer segments.
        let is_of_types = path.starts_with("/api/") || path.starts_with("/apis/");
        let is_long = is_of_types && path.split('/').nth(5).is_some();
        self.resource.is_none() && (is_long || path.contains('%'))
    }

    fn subresource(&self) -> Option<&str> {
        self.resource.as_ref()?.subresource.as_deref()
    }
}

/// Splits the namespace from the segments that follow the version.
///
/// A request for a namespace object keeps all segments: upstream places the object in itself.
fn split_namespace<'a, 's>(rest: &'a [&'s str]) -> (Option<&'s str>, &'a [&'s str]) {
    match rest {
        // Only these two words are subresources of a namespace; others are types in it.
        ["namespaces", namespace, "status" | "finalize", ..] | ["namespaces", namespace] => {
            (Some(*namespace), rest)
        }
        ["namespaces", namespace, parts @ ..] => (Some(*namespace), parts),
        _ => (None, rest),
    }
}

/// Returns the verb of a GET of a collection, and the name that its field selector requires.
fn collection_read(query: &Query<'_>) -> (Verb, Option<String>) {
    let verb = if query.flag("watch") == Some(true) {
        Verb::Watch
    } else {
        Verb::List
    };
    (verb, required_name(query))
}

/// Returns the name that a `metadata.name` field selector requires, if an object can have it.
fn required_name(parameters: &Query<'_>) -> Option<String> {
    let text = parameters.first("fieldSelector")?;
    if !decode_as_list_options(parameters) {
        return None;
    }
    let selector = FieldSelector::parse(text).ok()?;
    let name = selector.required_value("metadata.name")?;
    is_key_part(name).then(|| name.to_owned())
}

/// Returns `true` if upstream can decode the parameters as list options, selectors included.
fn decode_as_list_options(parameters: &Query<'_>) -> bool {
    let labels = parameters.first("labelSelector");
    let fields = parameters.first("fieldSelector");
    parameters.integer("limit").is_ok()
        && parameters.integer("timeoutSeconds").is_ok()
        && labels.is_none_or(|text| LabelSelector::parse(text).is_ok())
        && fields.is_none_or(|text| FieldSelector::parse(text).is_ok())
}

/// Returns `true` for lower-case letters, digits, hyphens and dots.
///
/// Groups, versions, types and namespaces consist of them. Only the core group is empty, and no
/// path names it.
fn is_plain_word(word: &str) -> bool {
    !matches!(word, "." | "..")
        && word
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'.'))
}

/// Returns `true` for a path segment of RFC 3986's characters without percent-encoding.
fn is_plain_segment(segment: &str) -> bool {
    !matches!(segment, "" | "." | "..")
        && segment
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"-._~:@!$&'()*+,;=".contains(&b))
}

#[cfg(test)]
mod tests;
