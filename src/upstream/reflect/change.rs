//! Results of a reflector: changes of a scope, and the reasons to stop.

use std::sync::Arc;

use bytes::Bytes;
use http::HeaderValue;
use watershed_protocol::{
    BookmarkFormat, FieldTable, Frame, GroupVersionResource, ManagedFields, Representation,
    ResourceVersion, Scanned, Selection, WireFormat,
};

use crate::budget::{DoesNotFit, MemoryLoad};
use crate::upstream::AnswerCompression;
use crate::upstream::stream::WatchStream;

/// The objects that a reflector follows.
#[derive(Clone, Debug)]
pub struct ReflectorTarget {
    /// The type.
    pub gvr: GroupVersionResource,
    /// The selected objects.
    pub selection: Arc<Selection>,
    /// Its kind, from discovery.
    pub kind: Arc<str>,
    /// The requested representation. Upstream sends nothing beyond it.
    pub representation: Representation,
    /// Paths of the selectable fields.
    pub fields: Arc<FieldTable>,
    /// The treatment of managed fields in what upstream sends.
    pub managed_fields: ManagedFields,
}

impl ReflectorTarget {
    /// Returns the URL of a request with this query that matches none of the objects. It costs
    /// upstream the same for any number of them.
    pub(in crate::upstream) fn url_of_none(&self, query: &str) -> String {
        self.selection
            .url_of_nothing(&self.gvr, self.fields.namespaced(), query)
    }

    /// Returns all objects of the core type with these names, in JSON.
    #[cfg(test)]
    pub(in crate::upstream) fn core([resource, kind]: [&str; 2]) -> Self {
        use watershed_protocol::Encoding;

        let gvr = GroupVersionResource::new("", "v1", resource);
        Self {
            fields: Arc::new(FieldTable::builtin(&gvr, true).unwrap()),
            gvr,
            selection: Arc::default(),
            kind: kind.into(),
            representation: Representation::whole(Encoding::Json),
            managed_fields: ManagedFields::Keep,
        }
    }
}

/// Collects the objects of a list as they arrive. A list that fails drops it.
pub trait Collect: Send {
    /// Creates an empty collection for objects of this format.
    fn begin(format: &Arc<WireFormat>, fields: &FieldTable) -> Self;

    /// Takes the next object, which has the list's wire format.
    ///
    /// The object is a slice of the chunk it arrived in. Keeping it keeps the whole chunk.
    fn add(&mut self, object: &Bytes, scanned: Scanned);
}

/// The result of a step.
#[derive(Debug)]
pub enum Change<C> {
    /// Upstream ended the watch cleanly. It is opened again at once.
    Ended,
    /// All objects at one version. They replace everything known before.
    Listed(Box<ListedState<C>>),
    /// One object changed. The frame has it as it is held.
    Event(Frame, Scanned),
    /// A bookmark: all events up to this version were sent.
    Progress {
        /// The bookmark's version.
        version: ResourceVersion,
        /// Upstream's form of bookmarks, with the first one.
        format: Option<BookmarkFormat>,
    },
    /// The watch goes on after an interruption; nothing was lost.
    Resumed {
        /// The proof that upstream has the history that was followed.
        proof: ResumeProof,
    },
    /// The watch was resumed, and does not show the last known event: upstream has another history.
    /// The next change is a fresh list.
    OtherHistory {
        /// The version of the missing event.
        missing: ResourceVersion,
    },
    /// Upstream cannot be followed at the moment. The reflector tries again.
    Interrupted,
}

/// The proof of the history behind a resumed watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResumeProof {
    /// The watch began with the last known event, which is the next change.
    RepeatedEvent,
    /// Upstream is a proxy, and says that this watch and the last one belong to one history.
    NamedHistory,
    /// Nothing. The caller has to find out, before it takes the next change.
    None,
}

/// All objects of a scope at one version.
#[derive(Debug)]
pub struct ListedState<C> {
    /// The wire format of objects of this type.
    pub format: Arc<WireFormat>,
    /// The version of this state.
    pub version: ResourceVersion,
    /// All objects.
    pub objects: C,
    /// `true` if upstream serves sendInitialEvents for this type.
    pub streams_initial_events: bool,
    /// The Warning headers upstream sends with reads of this type.
    pub warnings: Vec<HeaderValue>,
    /// Upstream's form of bookmarks, if it ended the initial state with one.
    pub bookmark: Option<BookmarkFormat>,
    /// Upstream's answer to `Accept-Encoding`, if the state was streamed.
    pub compression: AnswerCompression,
    /// Counts the objects until the caller does.
    pub load: MemoryLoad,
}

/// The state that a scope begins with.
pub(super) struct InitialList<C> {
    pub(super) listed: Box<ListedState<C>>,
    /// The watch that brought it, if it was streamed.
    pub(super) stream: Option<Box<WatchStream>>,
}

/// Reason why a scope can no longer be followed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Stopped {
    /// Upstream does not serve the type.
    #[error("upstream does not know the type")]
    Vanished,
    /// The proxy's own identity may not list and watch the type.
    #[error("the proxy may not list and watch it: {0}")]
    Forbidden(String),
    /// Upstream does not accept the proxy's own credentials.
    #[error("upstream does not accept the proxy's credentials: {0}")]
    Unauthorized(String),
    /// The type has no such representation.
    #[error("upstream does not offer this representation")]
    NotAcceptable,
    /// Upstream's answers are not understood, so they cannot be cached exactly.
    #[error("upstream's answers are not understood: {0}")]
    NotUnderstood(String),
    /// The objects do not fit into memory.
    #[error(transparent)]
    DoesNotFit(#[from] DoesNotFit),
    /// The scope was closed: the type changed its shape, or the process ends.
    #[error("it was closed")]
    Closed,
    /// A defect of this program.
    #[error("its task failed")]
    Failed,
}

impl Stopped {
    /// Returns `true` if one answer of upstream gave the reason, which another may contradict.
    pub fn may_pass(&self) -> bool {
        match self {
            Self::Vanished
            | Self::Forbidden(_)
            | Self::Unauthorized(_)
            | Self::NotUnderstood(_) => true,
            Self::NotAcceptable | Self::DoesNotFit(_) | Self::Closed | Self::Failed => false,
        }
    }

    /// Returns the metric label.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Vanished => "vanished",
            Self::Forbidden(_) => "forbidden",
            Self::Unauthorized(_) => "unauthorized",
            Self::NotAcceptable => "not-acceptable",
            Self::NotUnderstood(_) => "not-understood",
            Self::DoesNotFit(_) => "does-not-fit",
            Self::Closed => "closed",
            Self::Failed => "failed",
        }
    }
}
