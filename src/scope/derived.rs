//! Follows the JSON of a type that is held in protobuf: the objects and events of the type's scope
//! in protobuf, printed as JSON.
//!
//! Upstream is asked for no second list and watch then. That is exact only while upstream prints
//! the type as the tables of `watershed-transcode` do. So nothing is shown before some of
//! upstream's own JSON was compared with what is made here ([`check`]), and whatever does not fit
//! ends the derivation: the caller lists and watches the type in JSON instead.
mod attempts;
mod check;
mod deriver;
mod failures;
mod following;
mod opened;
mod printer;
mod printing_threads;
mod rejoin;
mod state_print;
mod step;

use std::sync::Arc;
use std::time::Duration;

use super::cached::Scope;
use super::handle::ScopeHandle;
use crate::budget::MemoryBudget;
use crate::store::StoreReader;
use crate::upstream::{ReflectorTarget, Release, ServedBy, UpstreamClient};
use check::PrintCheck;
pub(super) use check::is_known_release;
use deriver::{Deriver, FollowingStep, OpenedStep};
pub(super) use failures::{DerivationFailures, FallbackReason, LONGEST_ATTEMPT};
use following::Following;
use opened::OpenedSource;
pub(super) use printer::JsonPrinter;
pub(super) use printing_threads::PrintingThreads;
pub(super) use rejoin::{RejoinPoint, Rejoined};
use state_print::StatePrint;
pub(super) use step::{CheckedServer, DerivedEnd, DerivedStep, ReprintedObjects};

/// Opens the scope in protobuf; `None` if memory is too short for it.
pub(super) type OpenSource = Box<dyn Fn() -> Option<ScopeHandle> + Send + Sync>;

/// Follows a scope in protobuf, and yields its changes in JSON.
pub(super) struct DerivedFeed {
    open_source: OpenSource,
    progress: DerivedProgress,
    deriver: Deriver,
}

/// The way from a closed source to one that is followed.
enum DerivedProgress {
    /// The source is to be opened.
    Closed,
    /// The source's state is awaited.
    Opened(OpenedSource),
    /// The source's state was shown. Its events follow.
    Following(Box<Following>),
}

impl DerivedFeed {
    /// Follows what `open_source` opens. `shown` reads what the caller made of the changes.
    pub(super) fn new(
        client: UpstreamClient,
        target: ReflectorTarget,
        printer: JsonPrinter,
        open_source: OpenSource,
        shown: StoreReader,
        threads: &PrintingThreads,
    ) -> Self {
        let check = PrintCheck::new(client, target, printer);
        let states = StatePrint {
            budget: MemoryBudget::default(),
            estimates: true,
            threads: threads.clone(),
        };
        Self {
            open_source,
            progress: DerivedProgress::Closed,
            deriver: Deriver::new(shown, check, states),
        }
    }

    /// Stops states that do not fit into this budget, as [`crate::upstream::Reflector::within`].
    pub(super) fn within(mut self, budget: &MemoryBudget, estimates: bool) -> Self {
        self.deriver.states.budget = budget.clone();
        self.deriver.states.estimates = estimates;
        self
    }

    /// Returns the scope in protobuf, while this feed reads it.
    pub(super) fn source(&self) -> Option<&Arc<Scope>> {
        match &self.progress {
            DerivedProgress::Closed => None,
            DerivedProgress::Opened(opened) => Some(opened.source()),
            DerivedProgress::Following(following) => Some(following.source()),
        }
    }

    /// Returns the number of quarantines of the source before the state was read that was shown.
    pub(super) fn source_quarantines(&self) -> Option<u64> {
        match &self.progress {
            DerivedProgress::Following(following) => Some(following.quarantines()),
            DerivedProgress::Closed | DerivedProgress::Opened(_) => None,
        }
    }

    /// Returns the server whose JSON was compared last.
    pub(super) fn server(&self) -> Option<&ServedBy> {
        let checked = self.deriver.checked.as_ref();
        checked.map(|checked| &checked.server)
    }

    /// Returns the release of that server, if it is known.
    pub(super) fn release(&self) -> Option<&Release> {
        self.deriver.checked.as_ref()?.release.as_ref()
    }

    /// Returns `true` if the caller's objects are what the source's events led to so far.
    pub(super) fn is_following(&self) -> bool {
        matches!(self.progress, DerivedProgress::Following(_))
    }

    /// Forgets the state: the next change is a fresh list.
    pub(super) fn restart(&mut self) {
        if let DerivedProgress::Following(following) = &self.progress {
            self.progress = DerivedProgress::restart(following);
        }
    }

    /// Lets go of the source.
    pub(super) fn close(&mut self) {
        self.progress = DerivedProgress::Closed;
    }

    /// Forgets all that was learned, and why the derivation ended.
    pub(super) fn begin_anew(&mut self) {
        self.close();
        self.deriver.begin_anew();
    }

    /// Delays the next step.
    pub(super) fn pause(&mut self, pause: Duration) {
        self.deriver.attempts.delay(pause);
    }

    /// Returns the next step. Cancelling a call loses nothing.
    pub(super) async fn next(&mut self) -> Result<DerivedStep, DerivedEnd> {
        loop {
            self.wait_for_attempt().await;
            let step = match &mut self.progress {
                DerivedProgress::Closed => {
                    self.progress = DerivedProgress::Opened(self.open()?);
                    None
                }
                DerivedProgress::Opened(opened) => match self.deriver.begin(opened).await? {
                    OpenedStep::Unread(step) => step,
                    OpenedStep::Listed(following, change) => {
                        self.progress = DerivedProgress::Following(following);
                        Some(DerivedStep::Change(change))
                    }
                },
                DerivedProgress::Following(following) => {
                    match self.deriver.follow(following).await? {
                        FollowingStep::Reported(step) => step,
                        FollowingStep::Restart(step) => {
                            self.progress = DerivedProgress::restart(following);
                            step
                        }
                    }
                }
            };
            if let Some(step) = step {
                return Ok(step);
            }
        }
    }

    /// Opens the source.
    fn open(&self) -> Result<OpenedSource, FallbackReason> {
        let source = (self.open_source)();
        let source = source.ok_or(FallbackReason::Source("memory is short"))?;
        Ok(OpenedSource::new(source))
    }

    /// Waits until the next attempt is due, or the state that was shown is doubted.
    async fn wait_for_attempt(&mut self) {
        if !self.deriver.attempts.is_delayed() {
            return;
        }
        tokio::select! {
            () = self.deriver.attempts.wait() => {}
            // What is held is not to be served meanwhile.
            () = self.progress.until_doubted() => {}
        }
        self.deriver.attempts.begin();
    }
}

impl DerivedProgress {
    /// Lets the state of a followed source be read again.
    fn restart(following: &Following) -> Self {
        let source = ScopeHandle::new(following.source());
        Self::Opened(OpenedSource::new(source))
    }

    /// Waits until the objects that were shown are known not to be upstream's.
    async fn until_doubted(&self) {
        match self {
            Self::Following(following) => following.until_doubted().await,
            Self::Closed | Self::Opened(_) => std::future::pending().await,
        }
    }
}
