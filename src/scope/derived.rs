//! Follows the JSON of a type that is held in protobuf: the objects and events of the type's scope
//! in protobuf, printed as JSON.
//!
//! Upstream is asked for no second list and watch then. That is exact only while upstream prints
//! the type as the tables of `watershed-transcode` do. So nothing is shown before some of
//! upstream's own JSON was compared with what is made here ([`check`]), and whatever does not fit
//! ends the derivation: the caller lists and watches the type in JSON instead.
mod attempts;
mod check;
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

use tokio::time::timeout_at;

use super::cached::Scope;
use super::handle::ScopeHandle;
use super::phase::ScopePhase;
use crate::budget::MemoryBudget;
use crate::store::{Interest, StoreReader, Subscription, SubscriptionStart};
use crate::upstream::{Change, ReflectorTarget, Release, ServedBy, UpstreamClient};
use attempts::Attempts;
pub(super) use check::is_known_release;
use check::{CheckError, CheckedPrint, PrintCheck};
pub(super) use failures::{DerivationFailures, FallbackReason, LONGEST_ATTEMPT};
use following::{FollowedChange, FollowedState, Following, FollowingReader};
use opened::{OpenedSource, Readiness, until_unreadable, until_unusable};
pub(super) use printer::JsonPrinter;
pub(super) use printing_threads::PrintingThreads;
pub(super) use rejoin::RejoinPoint;
use state_print::StatePrint;
use step::ToldState;
pub(super) use step::{CheckedServer, DerivedEnd, DerivedStep, ReprintedObjects};

/// Time within which another server's JSON must be compared. The source's history is about twice as
/// long (`SOURCE_WINDOW`): events that wait for longer would be lost, and every watch with them.
const COMPARISON_TIME: Duration = Duration::from_secs(15);

/// Opens the scope in protobuf; `None` if memory is too short for it.
pub(super) type OpenSource = Box<dyn Fn() -> Option<ScopeHandle> + Send + Sync>;

/// Follows a scope in protobuf, and yields its changes in JSON.
pub(super) struct DerivedFeed {
    open_source: OpenSource,
    /// The objects that the caller has.
    shown: StoreReader,
    check: PrintCheck,
    states: StatePrint,
    attempts: Attempts,
    progress: DerivedProgress,
    /// The last thing that the caller was told of the source.
    told: ToldState,
    /// The server whose JSON was compared last, and what was learned of it.
    checked: Option<CheckedPrint>,
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

/// The result of a look at the source, before its state is read.
enum SourceLook {
    /// Its server prints as is known. Its state may be read.
    Checked(Arc<Scope>),
    /// Something changed. Look again.
    Changed,
    /// The caller has to be told first.
    Worse(ToldState),
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
        Self {
            open_source,
            shown,
            check: PrintCheck::new(client, target, printer),
            states: StatePrint {
                budget: MemoryBudget::default(),
                estimates: true,
                threads: threads.clone(),
            },
            attempts: Attempts::new(),
            progress: DerivedProgress::Closed,
            told: ToldState::Followed,
            checked: None,
        }
    }

    /// Stops states that do not fit into this budget, as [`crate::upstream::Reflector::within`].
    pub(super) fn within(self, budget: &MemoryBudget, estimates: bool) -> Self {
        let states = StatePrint {
            budget: budget.clone(),
            estimates,
            ..self.states
        };
        Self { states, ..self }
    }

    /// Returns the scope in protobuf, while it is open.
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
        self.checked.as_ref().map(|checked| &checked.server)
    }

    /// Returns the release of that server, if it is known.
    pub(super) fn release(&self) -> Option<&Release> {
        self.checked.as_ref()?.release.as_ref()
    }

    /// Returns `true` if the caller's objects are what the source's events led to so far.
    pub(super) fn is_following(&self) -> bool {
        matches!(self.progress, DerivedProgress::Following(_))
    }

    /// Forgets the state: the next change is a fresh list.
    pub(super) fn restart(&mut self) {
        self.progress = match std::mem::replace(&mut self.progress, DerivedProgress::Closed) {
            DerivedProgress::Following(following) => {
                DerivedProgress::Opened(OpenedSource::new(following.into_source()))
            }
            progress => progress,
        };
    }

    /// Lets go of the source.
    pub(super) fn close(&mut self) {
        self.progress = DerivedProgress::Closed;
    }

    /// Forgets all that was learned, and why the derivation ended.
    pub(super) fn begin_anew(&mut self) {
        self.close();
        self.checked = None;
        self.attempts = Attempts::new();
        self.told = ToldState::Followed;
    }

    /// Delays the next step.
    pub(super) fn pause(&mut self, pause: Duration) {
        self.attempts.delay(pause);
    }

    /// Returns the next step. Cancelling a call loses nothing.
    pub(super) async fn next(&mut self) -> Result<DerivedStep, DerivedEnd> {
        loop {
            if self.attempts.is_delayed() {
                tokio::select! {
                    () = self.attempts.wait() => {}
                    // What is held is not to be served meanwhile.
                    () = self.until_doubted() => {}
                }
                self.attempts.begin();
            }
            let step = match &mut self.progress {
                DerivedProgress::Closed => {
                    let source = (self.open_source)();
                    let source = source.ok_or(FallbackReason::Source("memory is short"))?;
                    self.progress = DerivedProgress::Opened(OpenedSource::new(source));
                    None
                }
                DerivedProgress::Opened(_) => self.begin().await?,
                DerivedProgress::Following(_) => self.follow().await?,
            };
            if let Some(step) = step {
                return Ok(step);
            }
        }
    }

    /// Waits for the source's state, checks how upstream prints it, and prints it.
    async fn begin(&mut self) -> Result<Option<DerivedStep>, DerivedEnd> {
        let scope = match self.look().await? {
            SourceLook::Checked(scope) => scope,
            SourceLook::Changed => return Ok(None),
            SourceLook::Worse(state) => return Ok(self.tell(state)),
        };
        // Before the state is read: a quarantine after this may be about it.
        let quarantines = scope.differences.quarantines();
        let (subscription, snapshot) = scope
            .reader
            .subscribe(SubscriptionStart::Now, Interest::All);
        let now = scope.upstream.server();
        let is_checked = now.is_some_and(|now| self.is_checked(&now));
        let Some(checked) = self.checked.clone().filter(|_| is_checked) else {
            return Ok(None);
        };
        // The timeline may have ended since. Whatever is read before the source knows is dropped by
        // the caller, who knows as well.
        if !snapshot.is_listed() || !scope.is_current() {
            return Ok(None);
        }
        if !checked.has_seen_objects && !snapshot.is_empty() {
            // The first objects came after the check. Another one may see none again.
            self.checked = None;
            self.attempts.retry();
            return Ok(None);
        }
        let printed = self.states.print(&checked, &snapshot);
        let change = tokio::select! {
            printed = printed => printed?,
            // A large type takes seconds. The caller has to know of this before.
            () = until_unreadable(&scope) => return Ok(None),
        };
        if scope.differences.quarantines() != quarantines {
            return Ok(None);
        }
        let state = FollowedState {
            version: snapshot.version(),
            quarantines,
        };
        self.follow_from(subscription, state, checked);
        Ok(Some(DerivedStep::Change(change)))
    }

    /// Follows the opened source behind a state.
    fn follow_from(
        &mut self,
        subscription: Subscription,
        state: FollowedState,
        checked: CheckedPrint,
    ) {
        let progress = std::mem::replace(&mut self.progress, DerivedProgress::Closed);
        if let DerivedProgress::Opened(opened) = progress {
            let following = Following::new(opened.into_source(), subscription, state, checked);
            self.progress = DerivedProgress::Following(Box::new(following));
        }
        self.told = ToldState::Followed;
    }

    /// Waits until the source can be read, and checks how its server prints it.
    async fn look(&mut self) -> Result<SourceLook, DerivedEnd> {
        let DerivedProgress::Opened(opened) = &mut self.progress else {
            return Ok(SourceLook::Changed);
        };
        let scope = Arc::clone(opened.source());
        match opened.readiness(self.told).await? {
            Readiness::Ready => {}
            Readiness::Changed => return Ok(SourceLook::Changed),
            Readiness::Worse(state) => return Ok(SourceLook::Worse(state)),
        }
        let mut servers = scope.upstream.subscribe_server();
        let Some(server) = servers.borrow_and_update().clone() else {
            // It is known once the source's watch is open.
            let mut phases = scope.phase.clone();
            if matches!(*phases.borrow_and_update(), ScopePhase::Ready(_)) {
                tokio::select! {
                    _ = servers.changed() => {}
                    _ = phases.changed() => {}
                    () = until_unusable(&scope) => {}
                }
            }
            return Ok(SourceLook::Changed);
        };
        if self.is_checked(&server) {
            return Ok(SourceLook::Checked(scope));
        }
        let has_answer = self.check_print(&scope, &server).await?;
        Ok(if has_answer {
            SourceLook::Changed
        } else {
            SourceLook::Worse(ToldState::Lost)
        })
    }

    /// Waits until the objects that were shown are known not to be upstream's.
    async fn until_doubted(&self) {
        match &self.progress {
            DerivedProgress::Following(following) => following.until_doubted().await,
            DerivedProgress::Closed | DerivedProgress::Opened(_) => std::future::pending().await,
        }
    }

    /// Returns the step that tells the caller what became of the source, if it does not know of
    /// that, or of worse.
    fn tell(&mut self, now: ToldState) -> Option<DerivedStep> {
        if self.told >= now {
            return None;
        }
        self.told = now;
        now.step()
    }

    fn is_checked(&self, server: &ServedBy) -> bool {
        self.checked
            .as_ref()
            .is_some_and(|checked| checked.server.is_same(server))
    }

    /// Compares a server's JSON with what is printed here. Returns `false` if there was no answer:
    /// the next attempt comes after a pause, or once the source can be used again.
    async fn check_print(&mut self, source: &Scope, server: &ServedBy) -> Result<bool, DerivedEnd> {
        let known = self.checked.as_ref();
        let checked = tokio::select! {
            checked = self.check.check(source, server, known) => checked,
            // Upstream may take minutes. The caller has to know of this before.
            () = until_unusable(source) => return Ok(false),
        };
        if !matches!(checked, Err(CheckError::NoAnswer(_)))
            && let DerivedProgress::Following(following) = &mut self.progress
        {
            following.end_comparison();
        }
        match checked {
            Ok(checked) => {
                self.checked = Some(checked);
                self.attempts.checked();
                Ok(true)
            }
            Err(CheckError::FallBack(reason)) => Err(reason.into()),
            // The source learns it by itself, however long that takes.
            Err(CheckError::Outdated) => {
                self.attempts.retry();
                Ok(false)
            }
            Err(CheckError::NoAnswer(error)) => {
                let resource = &self.check.target.gvr;
                tracing::debug!(%resource, %error, "upstream's JSON could not be compared");
                // Where upstream cannot be reached at all, the source waits for it.
                if self.attempts.failed(source.upstream.is_following()) {
                    Ok(false)
                } else {
                    Err(FallbackReason::Unchecked(error.to_string()).into())
                }
            }
        }
    }

    /// Takes in what the source shows next.
    async fn follow(&mut self) -> Result<Option<DerivedStep>, DerivedEnd> {
        let DerivedProgress::Following(following) = &mut self.progress else {
            return Ok(None);
        };
        let has_seen_objects = self.checked.as_ref().is_some_and(|it| it.has_seen_objects);
        let change = following
            .next(FollowingReader {
                is_followed: self.told == ToldState::Followed,
                has_seen_objects,
            })
            .await;
        let scope = Arc::clone(following.source());
        match change {
            FollowedChange::Event => self.print_event(),
            // The source names the server before it takes in its events.
            FollowedChange::Unchecked(server) => {
                let has_events = following.event().is_some();
                self.recheck(&scope, &server, has_events).await
            }
            FollowedChange::Progress(version) => {
                self.attempts.advanced();
                let change = Change::Progress {
                    version,
                    format: None,
                };
                Ok(Some(DerivedStep::Change(change)))
            }
            FollowedChange::Followed(true) => {
                let before = std::mem::replace(&mut self.told, ToldState::Followed);
                Ok((before != ToldState::Followed).then_some(DerivedStep::Refollowed))
            }
            FollowedChange::Followed(false) => Ok(self.tell(ToldState::Lost)),
            FollowedChange::TooOld => Ok(self.tell(ToldState::TooOld)),
            FollowedChange::Expired => {
                self.restart();
                // The next state may be as short of history.
                self.attempts.retry();
                Ok(self.tell(ToldState::Lost))
            }
            FollowedChange::Quarantined => {
                self.restart();
                Ok(self.tell(ToldState::Doubted))
            }
            FollowedChange::Closed => {
                Err(FallbackReason::Source("its scope in protobuf was closed").into())
            }
        }
    }

    /// Compares the JSON of another server, or of a type that had no objects before.
    async fn recheck(
        &mut self,
        source: &Scope,
        server: &ServedBy,
        has_events: bool,
    ) -> Result<Option<DerivedStep>, DerivedEnd> {
        // Until upstream has answered, nothing of what the source has is shown.
        if let Some(step) = self.tell(ToldState::Lost) {
            return Ok(Some(step));
        }
        let is_known = self.checked.as_ref().is_some_and(|checked| {
            checked.server.is_same(server) && (checked.has_seen_objects || !has_events)
        });
        if !is_known {
            let DerivedProgress::Following(following) = &mut self.progress else {
                return Ok(None);
            };
            let by = following.compared_by(COMPARISON_TIME);
            let checked = timeout_at(by, self.check_print(source, server)).await;
            let late = |_| FallbackReason::Unchecked("upstream's answer is late".to_owned());
            if !checked.map_err(late)?? {
                return Ok(None);
            }
        }
        let (DerivedProgress::Following(following), Some(now)) =
            (&mut self.progress, &self.checked)
        else {
            return Ok(None);
        };
        if has_events && !now.has_seen_objects {
            let reason = "its objects came and went".to_owned();
            return Err(FallbackReason::Unchecked(reason).into());
        }
        let before = following.accepted();
        if before.manner.format != now.manner.format || before.warnings != now.warnings {
            self.restart();
            return Ok(None);
        }
        let reprinted = if before.manner.prints_like(&now.manner) {
            self.states.nothing_anew()
        } else {
            let (held, objects) = (self.shown.followed(), source.reader.followed());
            let printer = &mut self.check.printer;
            let print = self
                .states
                .print_anew(printer, &now.manner, &held, &objects);
            tokio::select! {
                printed = print => printed?,
                // A large type takes seconds. The caller has to know of this before.
                () = until_unusable(source) => return Ok(None),
            }
        };
        if !source.upstream.is_following() {
            return Ok(None);
        }
        following.accept(now.clone());
        // If the source does not follow any more, that is told next.
        self.told = ToldState::Followed;
        Ok(Some(DerivedStep::Checked(now.as_told(reprinted))))
    }

    /// Prints the next event, if there is one.
    fn print_event(&mut self) -> Result<Option<DerivedStep>, DerivedEnd> {
        let DerivedProgress::Following(following) = &mut self.progress else {
            return Ok(None);
        };
        let Some(event) = following.event() else {
            return Ok(None);
        };
        let manner = &following.accepted().manner;
        let printed = self.check.printer.print_event(manner, event)?;
        following.pass();
        self.attempts.advanced();
        Ok(Some(DerivedStep::Event(printed)))
    }
}
