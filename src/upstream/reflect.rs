//! Follows one scope at the API server: lists it once, then watches, and recovers.
//!
//! A state machine: [`Reflector::next`] takes one step and returns the change. It knows no store:
//! the caller decides what collects the objects of a list ([`Collect`]).

use std::sync::Arc;
use std::time::Duration;

use http::HeaderValue;
use tokio::time::{Instant, timeout};
use watershed_connect::Address;
use watershed_protocol::{ResourceVersion, WireFormat};

use super::stream::WatchStream;
use super::{ListCompression, ServedBy, UpstreamClient};
use crate::budget::MemoryBudget;
use crate::headers::HistoryName;

mod answer;
mod bookmarks;
mod change;
mod error;
mod event;
mod failures;
mod lifetime;
mod list;
mod list_server;
mod recovery;
mod request;
mod resume;

use bookmarks::BookmarkKnowledge;
use error::ReflectorError;
use list_server::ListServer;
use recovery::Recovery;

use change::InitialList;
pub use change::{Change, Collect, ListedState, ReflectorTarget, ResumeProof, Stopped};
pub use lifetime::WatchLifetime;
pub use resume::KnownState;

/// The schema that upstream's objects have.
enum SchemaUse {
    /// It did not change lately.
    Settled,
    /// It changed, and the type is not listed since.
    Changed,
    /// It was listed at this moment. Some API servers may use the schema of before.
    Listed(Instant),
}

/// Time within which an API server uses a changed schema.
const REBUILT: Duration = Duration::from_secs(30);

enum ReflectorState {
    /// Nothing is known.
    Start,
    /// The state up to `version` is known; a stream must be opened from there.
    Resuming { version: ResourceVersion },
    /// A stream was opened again. If the last event is known, it has to begin with it.
    Replaying {
        version: ResourceVersion,
        last_event: Option<ResourceVersion>,
        history: Option<HistoryName>,
        stream: Box<WatchStream>,
    },
    /// A stream is open.
    Watching {
        version: ResourceVersion,
        stream: Box<WatchStream>,
    },
}

/// The history of what is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FollowedHistory {
    /// No proxy gave it a name.
    Unnamed,
    /// The open stream has this name, and nothing has shown yet that it goes on from what was known.
    Unproven(HistoryName),
    /// A proxy gave it this name.
    Named(HistoryName),
}

/// The way to learn how upstream writes a built-in type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FormatSource {
    /// All built-in types are written alike, and the first frame shows if this one is.
    Presumed,
    /// A small list shows it.
    List,
}

/// The age that a list may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ListFreshness {
    /// The first list is to come, and may show any state.
    AnyDue,
    /// The last list may have shown any state.
    Any,
    /// Lists are no older than their requests.
    MostRecent,
}

/// Follows one [`ReflectorTarget`].
pub struct Reflector {
    client: UpstreamClient,
    target: ReflectorTarget,
    state: ReflectorState,
    format: Option<Arc<WireFormat>>,
    warnings: Vec<HeaderValue>,
    bookmarks: BookmarkKnowledge,
    /// The next list is streamed. `false` after upstream did not stream one.
    streaming: bool,
    /// Streamed lists in a row that broke off.
    broken_lists: u32,
    list_freshness: ListFreshness,
    format_source: FormatSource,
    /// The server of the last answer.
    server: Option<ServedBy>,
    /// The server of the last list.
    listed_by: ListServer,
    recovery: Recovery,
    schema: SchemaUse,
    /// The last event was a deletion of this version, and more of the same version may come: etcd
    /// deletes all objects of an expired lease at once.
    unfinished: Option<ResourceVersion>,
    /// The version of the last event since the list, if upstream still shows it.
    last_event: Option<ResourceVersion>,
    history: FollowedHistory,
    /// The budget for the objects of a list.
    budget: MemoryBudget,
    /// Lists are estimated before they are loaded.
    estimates: bool,
    /// Bytes that an object of the last list took in memory, on average.
    object_bytes: Option<usize>,
    /// The conditions on which lists and watches are compressed.
    compression: ListCompression,
    lifetime: WatchLifetime,
    /// The last failure, in words for an operator.
    last_failure: Option<String>,
}

impl Reflector {
    /// Creates a reflector that knows nothing yet.
    pub fn new(client: UpstreamClient, target: ReflectorTarget) -> Self {
        Self {
            client,
            target,
            state: ReflectorState::Start,
            format: None,
            warnings: Vec::new(),
            bookmarks: BookmarkKnowledge::default(),
            streaming: true,
            broken_lists: 0,
            list_freshness: ListFreshness::MostRecent,
            format_source: FormatSource::Presumed,
            server: None,
            listed_by: ListServer::None,
            recovery: Recovery::new(),
            schema: SchemaUse::Settled,
            unfinished: None,
            last_event: None,
            history: FollowedHistory::Unnamed,
            budget: MemoryBudget::default(),
            estimates: true,
            object_bytes: None,
            compression: ListCompression::Never,
            lifetime: WatchLifetime::default(),
            last_failure: None,
        }
    }

    /// Returns the last failure since upstream was last followed, in words for an operator.
    pub fn last_failure(&self) -> Option<&str> {
        self.last_failure.as_deref()
    }

    /// Sets the policy for compressing lists and watches. Compression saves bytes and costs time at
    /// both ends.
    #[must_use]
    pub fn compressed(self, compression: ListCompression) -> Self {
        Self {
            compression,
            ..self
        }
    }

    /// Lets the first list show any state that upstream has, so that upstream need not find out which
    /// one is the most recent. Lists that are not streamed are of the most recent state all the same.
    #[must_use]
    pub fn beginning_with_any_state(self, begins_with_any_state: bool) -> Self {
        let list_freshness = if begins_with_any_state {
            ListFreshness::AnyDue
        } else {
            ListFreshness::MostRecent
        };
        Self {
            list_freshness,
            ..self
        }
    }

    /// Asks for the most recent state even with the first list.
    pub fn begin_with_most_recent(&mut self) {
        if self.list_freshness == ListFreshness::AnyDue {
            self.list_freshness = ListFreshness::MostRecent;
        }
    }

    /// Returns `true` if the last list was no older than its request.
    pub fn lists_most_recent(&self) -> bool {
        self.list_freshness == ListFreshness::MostRecent
    }

    /// Sets the lifetime of watches that is asked for.
    #[must_use]
    pub fn lasting(self, lifetime: WatchLifetime) -> Self {
        Self { lifetime, ..self }
    }

    /// Stops lists that do not fit into this budget. Without it there is no limit.
    ///
    /// `estimates` says that a list is not begun if its estimate does not fit. An estimate can be
    /// wrong for as long as the first objects are unlike the others.
    #[must_use]
    pub fn within(self, budget: &MemoryBudget, estimates: bool) -> Self {
        Self {
            budget: budget.clone(),
            estimates,
            ..self
        }
    }

    /// Returns the budget for the objects.
    pub fn budget(&self) -> &MemoryBudget {
        &self.budget
    }

    /// Forgets everything: the next change is a fresh list. It comes later if this happens often.
    pub fn restart(&mut self) {
        // Otherwise a list is about to come, and its pause begun.
        if !self.is_listing() {
            if self.is_rebuilding() {
                self.recovery.list_rebuilt();
            } else {
                self.recovery.list_again();
            }
        }
        self.recovery.forget_earlier_grant();
        self.begin_anew();
    }

    /// Forgets everything, as the schema that [`Reflector::schema_changed`] told of is in use by now.
    pub fn list_changed_schema(&mut self) {
        self.recovery.list_at_once();
        self.begin_anew();
    }

    fn begin_anew(&mut self) {
        self.state = ReflectorState::Start;
        if matches!(self.schema, SchemaUse::Changed) {
            self.schema = SchemaUse::Listed(Instant::now());
        }
    }

    /// Returns `true` if upstream has sent bookmarks of the type, and nothing shows that it does no longer.
    pub fn sends_bookmarks(&self) -> bool {
        self.bookmarks.are_sent() && self.expects_bookmarks()
    }

    /// Returns `true` if the last stream fell silent, although upstream sends bookmarks of the type.
    pub fn fell_silent(&self) -> bool {
        self.bookmarks.has_fallen_silent() && self.sends_bookmarks()
    }

    /// Opens the watch again, elsewhere if possible, as it does not bring what upstream has. Returns
    /// `false` if none is open.
    pub fn reopen(&mut self) -> bool {
        let (ReflectorState::Replaying { version, .. } | ReflectorState::Watching { version, .. }) =
            self.state
        else {
            return false;
        };
        self.state = ReflectorState::Resuming { version };
        self.recovery.overdue(self.served_by());
        true
    }

    /// Notes that the stream of the last [`Change::Resumed`] goes on from what was known.
    pub fn resumption_is_proven(&mut self) {
        if let FollowedHistory::Unproven(name) = self.history {
            self.history = FollowedHistory::Named(name);
        }
    }

    /// Delays the next attempt, for example after a [`Stopped`].
    pub fn pause(&mut self, pause: Duration) {
        self.recovery.pause_until(Instant::now() + pause);
    }

    /// Notes that the type is gone. If upstream refuses it now, the reflector stops at once.
    pub fn type_removed(&mut self) {
        self.recovery.type_removed();
    }

    /// Returns `true` if the next change is a fresh list, or a failure.
    pub fn is_listing(&self) -> bool {
        matches!(self.state, ReflectorState::Start)
    }

    /// Returns `true` if a watch is open and takes events, so that [`Reflector::next`] has no request
    /// under way.
    pub fn is_watching(&self) -> bool {
        matches!(self.state, ReflectorState::Watching { .. })
    }

    /// Notes that the type's schema changed.
    ///
    /// Each API server uses the new schema after a while and then ends the type's watches. A list
    /// taken before shows the old schema. So for some time after the next list, which is the
    /// caller's to begin, the end of a stream means a new list.
    pub fn schema_changed(&mut self) {
        self.recovery.schema_changed();
        self.schema = SchemaUse::Changed;
    }

    /// Returns the server of the open watch, after [`Change::Resumed`] or a streamed list.
    pub fn server(&self) -> Option<&ServedBy> {
        self.server.as_ref()
    }

    /// Returns the address of the last answer.
    fn served_by(&self) -> Option<Address> {
        self.server.as_ref().map(|server| server.address.clone())
    }

    /// Returns the server of all objects in the last [`Change::Listed`], if one printed them all.
    pub fn listed_by(&self) -> Option<&ServedBy> {
        self.listed_by.one()
    }

    /// Learns the form of bookmarks again from the next one.
    pub fn forget_bookmark(&mut self) {
        self.bookmarks.forget_form();
    }

    fn is_rebuilding(&self) -> bool {
        matches!(self.schema, SchemaUse::Listed(since) if since.elapsed() < REBUILT)
    }

    /// Returns the next change. Retries forever with backoff, except where retrying cannot help.
    ///
    /// Cancelling a call loses no change. A list or a watch that was not there yet is asked for anew
    /// by the next call, so that a caller who cancels again and again never gets one.
    pub async fn next<C: Collect>(&mut self) -> Result<Change<C>, Stopped> {
        loop {
            // What an open stream brings waits for nothing.
            if matches!(
                self.state,
                ReflectorState::Start | ReflectorState::Resuming { .. }
            ) {
                self.recovery.wait().await;
            }
            match self.step().await {
                Ok(Some(change)) => return Ok(change),
                Ok(None) => {}
                // It would be loaded halfway again and again.
                Err(ReflectorError::Stopped(stopped @ Stopped::DoesNotFit(_))) => {
                    return Err(stopped);
                }
                Err(ReflectorError::Stopped(stopped)) => {
                    let may_pass = stopped.may_pass();
                    if self.recovery.refused(self.served_by(), may_pass) {
                        return Err(stopped);
                    }
                    self.recover(&ReflectorError::Stopped(stopped));
                    return Ok(Change::Interrupted);
                }
                // Older releases do not stream: that is no failure. Nor is it known from one
                // answer, or from a silence, that this release does not.
                Err(ReflectorError::NoInitialEvents) => {
                    tracing::info!(
                        resource = %self.target.gvr,
                        "upstream did not stream initial events; listing instead"
                    );
                    self.streaming = false;
                }
                // A custom type may have the group of built-in ones.
                Err(ReflectorError::OtherFormat(error))
                    if self.format_source == FormatSource::Presumed =>
                {
                    tracing::info!(
                        resource = %self.target.gvr,
                        %error,
                        "the type is not printed as built-in ones are; learning its format"
                    );
                    self.format_source = FormatSource::List;
                }
                Err(error) => {
                    self.recover(&error);
                    return Ok(Change::Interrupted);
                }
            }
        }
    }

    /// Takes one step. An open stream stays in the state meanwhile, as a call may be cancelled.
    async fn step<C: Collect>(&mut self) -> Result<Option<Change<C>>, ReflectorError> {
        match &mut self.state {
            ReflectorState::Start => {
                let InitialList { listed, stream } = self.list().await?;
                let version = listed.version;
                self.recovery.succeeded();
                self.last_failure = None;
                self.bookmarks.nothing_is_silent();
                self.unfinished = None;
                self.last_event = None;
                self.state = match stream {
                    Some(stream) => ReflectorState::Watching { version, stream },
                    None => ReflectorState::Resuming { version },
                };
                Ok(Some(Change::Listed(listed)))
            }
            ReflectorState::Resuming { version } => {
                let version = *version;
                if self.recovery.asks_if_lists_are_answered() {
                    let is_answered = self.try_to_list().await.is_ok();
                    self.recovery.set_lists_answered(is_answered);
                }
                self.resume(version).await
            }
            ReflectorState::Replaying {
                version,
                last_event,
                history,
                stream,
            } => {
                let (version, last_event, history) = (*version, *last_event, *history);
                let silence = Self::replay_silence(last_event);
                let first = timeout(silence, stream.next_frame()).await;
                let first = first.map_err(|_| ReflectorError::Silent(silence));
                match self.take_stream(version) {
                    Some(stream) => self.replay(version, last_event, history, first, stream),
                    None => Ok(None),
                }
            }
            ReflectorState::Watching { version, stream } => {
                let version = *version;
                let frame = stream.next_frame().await;
                match self.take_stream(version) {
                    Some(stream) => self.watch_on(version, frame, stream),
                    None => Ok(None),
                }
            }
        }
    }

    /// Returns the open stream. The next step resumes from `version`, unless it is put back.
    fn take_stream(&mut self, version: ResourceVersion) -> Option<Box<WatchStream>> {
        match std::mem::replace(&mut self.state, ReflectorState::Resuming { version }) {
            ReflectorState::Replaying { stream, .. } | ReflectorState::Watching { stream, .. } => {
                Some(stream)
            }
            ReflectorState::Start | ReflectorState::Resuming { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests;
