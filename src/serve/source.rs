//! Where an answer came from, and why a request was forwarded: for headers, logs and metrics alike.
use http::HeaderValue;

/// Where an answer came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerSource {
    /// From the newest snapshot.
    Snapshot,
    /// From the window of recent events.
    Window,
    /// From a snapshot that was shown to be no older than the request.
    Fence,
    /// A consistent read, from a snapshot that may be older than it: the operator's choice.
    Cache,
    /// From the discovery and OpenAPI documents that are kept.
    Document,
    /// From upstream, for several who asked the same at the same time.
    Shared,
    /// Refused by what upstream said of the caller.
    Access,
    /// Refused, as this caller has asked for too much.
    Limit,
    /// Refused, as the process ends.
    Shutdown,
    /// From upstream.
    Forward(ForwardReason),
}

impl AnswerSource {
    /// The metric labels of all sources, in the order of [`AnswerSource::index`].
    pub const NAMES: [&str; 10] = [
        "snapshot",
        "window",
        "linearizable",
        "stale",
        "document",
        "coalesced",
        "access",
        "limit",
        "shutdown",
        "forward",
    ];

    /// Its place among all sources.
    pub(super) fn index(self) -> usize {
        match self {
            Self::Snapshot => 0,
            Self::Window => 1,
            Self::Fence => 2,
            Self::Cache => 3,
            Self::Document => 4,
            Self::Shared => 5,
            Self::Access => 6,
            Self::Limit => 7,
            Self::Shutdown => 8,
            Self::Forward(_) => 9,
        }
    }

    /// The metric label.
    pub fn as_str(self) -> &'static str {
        Self::NAMES[self.index()]
    }

    /// The reason for forwarding, empty for the other sources.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Forward(reason) => reason.as_str(),
            _ => "",
        }
    }

    /// The value of the X-Watershed-Source header.
    pub(super) fn header(self) -> HeaderValue {
        match self {
            Self::Forward(reason) => HeaderValue::from_static(reason.header()),
            other => HeaderValue::from_static(other.as_str()),
        }
    }
}

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// Why a request was not answered from memory.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum ForwardReason {
            $($(#[$doc])* $name,)*
        }

        impl ForwardReason {
            /// The metric labels of all reasons, in their order.
            pub const NAMES: &[&str] = &[$($text,)*];

            /// The metric label.
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
    /// Not a resource's path, nor that of a document that is kept: health, metrics, or not
    /// understood.
    NotAResource = "not-a-resource",
    /// A type that discovery does not show as listable and watchable, or does not show so.
    UnknownType = "unknown-type",
    /// A subresource, such as a pod's log.
    Subresource = "subresource",
    /// An Upgrade to another protocol.
    Upgrade = "upgrade",
    /// The deprecated `/watch/` paths.
    LegacyWatch = "legacy-watch",
    /// Table, PartialObjectMetadata, YAML, CBOR, or nothing this proxy holds.
    Representation = "representation",
    /// Indented JSON.
    Pretty = "pretty",
    /// Parameters that upstream would refuse, or that are not understood here.
    Parameters = "parameters",
    /// A selector that upstream would refuse, or that is not understood here.
    Selector = "selector",
    /// A consistent read that is upstream's to answer: a get, or by the operator's choice.
    Consistent = "consistent-read",
    /// A consistent read, for which memory was not shown to be new enough in time.
    Unproven = "unproven",
    /// A read at exactly one version, which is not held (any more).
    Exact = "exact-version",
    /// A page of a list whose selector upstream reads in another way.
    Paging = "paging",
    /// A continue token that upstream would refuse, or that asks for the newest state.
    ContinueToken = "continue-token",
    /// Initial events whose end upstream does not mark, or in a way that is not known.
    InitialEvents = "initial-events",
    /// A version that this cache has not reached.
    VersionAhead = "version-ahead",
    /// A watch from before this cache's first list.
    BeforeFirstList = "before-first-list",
    /// No credentials that can be checked here.
    Identity = "identity",
    /// Upstream could not be asked about the caller.
    ReviewFailed = "review-failed",
    /// More than may be kept in memory of the type, by the operator's choice or because it is
    /// sensitive.
    Policy = "policy",
    /// Objects that no scope of the configuration is certain to hold.
    NotCovered = "not-covered",
    /// The type's first list is not in yet.
    Syncing = "syncing",
    /// The proxy itself may not list and watch it.
    NotPermitted = "not-permitted",
    /// The type cannot be cached.
    NotCached = "not-cached",
}
