//! Sources of answers, and reasons for forwarding. Headers, logs and metrics share these names.
use http::HeaderValue;

use crate::scope::{NotAcquired, NotReady};
use crate::upstream::Stopped;

/// Declares the sources besides upstream, and the names of all.
macro_rules! sources {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// The source of an answer.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum AnswerSource {
            $($(#[$doc])* $name,)*
            /// From upstream.
            Forward(ForwardReason),
        }

        /// The places of the sources among [`AnswerSource::NAMES`].
        enum SourceIndex {
            $($name,)*
            Forward,
        }

        impl AnswerSource {
            /// The metric labels of all sources.
            pub const NAMES: &[&str] = &[$($text,)* "forward"];

            /// Returns its index in [`AnswerSource::NAMES`].
            pub(super) fn index(self) -> usize {
                let index = match self {
                    $(Self::$name => SourceIndex::$name,)*
                    Self::Forward(_) => SourceIndex::Forward,
                };
                index as usize
            }
        }
    };
}

sources! {
    /// From the newest snapshot.
    Snapshot = "snapshot",
    /// From the window of recent events.
    Window = "window",
    /// From a snapshot that is proven no older than the request.
    Linearizable = "linearizable",
    /// A consistent read, from a snapshot that may be older than it, by the operator's choice.
    Stale = "stale",
    /// A discovery, OpenAPI or version document that upstream confirmed or sent after the request
    /// came.
    Document = "document",
    /// From upstream, for several callers that asked the same at the same time.
    Coalesced = "coalesced",
    /// A verdict about a caller of another proxy.
    Verdict = "verdict",
    /// Refused, because upstream does not allow it to the caller.
    Access = "access",
    /// Refused, because the caller exceeds a limit.
    Limit = "limit",
    /// Refused, because the process is shutting down.
    Shutdown = "shutdown",
    /// Refused, because a feature is off for the client, by the operator's choice.
    ClientRule = "client-rule",
    /// Refused, because the state that another replica asks for is not held.
    NoState = "no-state",
    /// Refused, because proxies sent the request in a loop.
    Loop = "loop",
}

impl AnswerSource {
    /// Returns the metric label.
    pub fn as_str(self) -> &'static str {
        Self::NAMES[self.index()]
    }

    /// Returns the reason for forwarding; empty for other sources.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Forward(reason) => reason.as_str(),
            _ => "",
        }
    }

    /// Returns the value of the X-Watershed-Source header.
    pub(super) fn header(self) -> HeaderValue {
        match self {
            Self::Forward(reason) => HeaderValue::from_static(reason.header()),
            other => HeaderValue::from_static(other.as_str()),
        }
    }
}

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// The reason why a request is forwarded.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum ForwardReason {
            $($(#[$doc])* $name,)*
        }

        impl ForwardReason {
            /// The metric labels of all reasons, in their order.
            pub const NAMES: &[&str] = &[$($text,)*];

            /// Returns the metric label.
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }

            fn header(self) -> &'static str {
                match self {
                    $(Self::$name => concat!("forward; reason=", $text),)*
                }
            }
        }
    };
}

reasons! {
    /// Not a get, list or watch.
    NotARead = "not-a-read",
    /// Neither a resource's path nor a cached document's: health, metrics, or not understood.
    NotAResource = "not-a-resource",
    /// A type that discovery does not show as listable and watchable, or does not show so.
    UnknownType = "unknown-type",
    /// A subresource, such as a pod's log.
    Subresource = "subresource",
    /// An Upgrade to another protocol.
    Upgrade = "upgrade",
    /// A page of another site asks (`Origin`). Upstream knows which ones may read its answer.
    CrossOrigin = "cross-origin",
    /// PartialObjectMetadata, YAML, CBOR, or another representation that is not cached; or a Table
    /// of a type that has no printer here.
    Representation = "representation",
    /// A Table that is not certain to be printed here as upstream does.
    Table = "table",
    /// Parameters that upstream would refuse, or that are not understood here.
    Parameters = "parameters",
    /// A selector that upstream would refuse, or that is not understood here.
    Selector = "selector",
    /// A shard of a type, while it is not known whether upstream supports `shardSelector`.
    Sharding = "sharding",
    /// A consistent read that upstream answers: a get, or by the operator's choice.
    Consistent = "consistent-read",
    /// A consistent read for which memory was not proven fresh in time.
    Unproven = "unproven",
    /// A read at exactly one version, which is not cached (any more).
    Exact = "exact-version",
    /// A page of a list whose selector upstream reads in another way.
    Paging = "paging",
    /// A continue token that upstream would refuse, or that asks for the newest state.
    ContinueToken = "continue-token",
    /// Initial events whose end upstream does not mark, or marks in an unknown way.
    InitialEvents = "initial-events",
    /// A version that this cache has not reached.
    VersionAhead = "version-ahead",
    /// A watch from before this cache's first list.
    BeforeFirstList = "before-first-list",
    /// A watch of events from before the history held here. etcd may have it.
    BeforeHistory = "before-history",
    /// No credentials that can be checked here.
    Identity = "identity",
    /// Upstream could not be asked about the caller.
    ReviewFailed = "review-failed",
    /// A get or list of a caller who was denied others of the type lately.
    OftenDenied = "often-denied",
    /// More than may be cached of the type, by the operator's choice or because it is sensitive.
    Policy = "policy",
    /// Objects that no configured scope is certain to hold.
    NotCovered = "not-covered",
    /// A type for which memory is too short (`--memory-limit`), or for its folded objects.
    Budget = "budget",
    /// The type's first list is not in yet.
    Syncing = "syncing",
    /// Upstream was not followed for longer than memory may be served.
    Stale = "max-staleness",
    /// Memory differed from upstream, and is listed again.
    Quarantined = "quarantined",
    /// The type's schema changed, and it is listed again in a moment.
    SchemaChanged = "schema-changed",
    /// The proxy itself may not list and watch it.
    NotPermitted = "not-permitted",
    /// The type cannot be cached.
    NotCached = "not-cached",
    /// Memory could answer, and the proxy only notes that (`--shadow`).
    Shadow = "shadow",
}

impl From<NotAcquired> for ForwardReason {
    fn from(error: NotAcquired) -> Self {
        match error {
            NotAcquired::NotChosen => Self::NotCovered,
            NotAcquired::NoMemory => Self::Budget,
        }
    }
}

impl From<NotReady> for ForwardReason {
    fn from(error: NotReady) -> Self {
        match error {
            NotReady::Syncing => Self::Syncing,
            NotReady::Stale => Self::Stale,
            NotReady::Quarantined => Self::Quarantined,
            NotReady::SchemaChanged => Self::SchemaChanged,
            NotReady::Stopped(stopped) => match stopped {
                Stopped::NotAcceptable => Self::Representation,
                Stopped::Forbidden(_) | Stopped::Unauthorized(_) => Self::NotPermitted,
                Stopped::DoesNotFit(_) => Self::Budget,
                _ => Self::NotCached,
            },
        }
    }
}
