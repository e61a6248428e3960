//! Makes the steps of a derived scope: what its open source shows, printed as JSON.
use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout_at;

use super::attempts::Attempts;
use super::check::{CheckError, CheckedPrint, PrintCheck};
use super::failures::FallbackReason;
use super::following::{FollowedChange, FollowedState, Following, FollowingReader};
use super::opened::{OpenedSource, Readiness, until_unreadable, until_unusable};
use super::state_print::StatePrint;
use super::step::{DerivedEnd, DerivedStep, ReportedState};
use crate::scope::cached::Scope;
use crate::scope::handle::ScopeHandle;
use crate::scope::phase::ScopePhase;
use crate::store::{Interest, SnapshotBuilder, StoreReader, SubscriptionStart, WindowEvent};
use crate::upstream::{Change, ServedBy};

/// Time within which another server's JSON must be compared. The source's history is about twice as
/// long (`SOURCE_WINDOW`): events that wait for longer would be lost, and every watch with them.
const COMPARISON_TIME: Duration = Duration::from_secs(15);

/// Reads an open source, and prints what is known to be printed as upstream does.
pub(super) struct Deriver {
    /// The objects that the caller has.
    shown: StoreReader,
    pub(super) check: PrintCheck,
    pub(super) states: StatePrint,
    pub(super) attempts: Attempts,
    /// The last thing that the caller was told of the source.
    reported: ReportedState,
    /// The server whose JSON was compared last, and what was learned of it.
    pub(super) checked: Option<CheckedPrint>,
}

/// The result of a look at the source, before its state is read.
pub(super) enum SourceLook {
    /// Its server prints as is known. Its state may be read.
    Checked(Arc<Scope>),
    /// Something changed. Look again.
    Changed,
    /// The caller has to be told first.
    Worse(ReportedState),
}

/// The result of an attempt to read the source's state.
pub(super) enum OpenedStep {
    /// It was not read. The caller may have to be told why.
    Unread(Option<DerivedStep>),
    /// It is the list that the caller gets. Its events follow.
    Listed(Box<Following>, Change<SnapshotBuilder>),
}

/// The next step of a source whose events are followed.
pub(super) enum FollowingStep {
    /// One that the caller may have to learn of.
    Reported(Option<DerivedStep>),
    /// The source's state has to be read again.
    Restart(Option<DerivedStep>),
}

/// The result of a comparison of a server's JSON.
enum CheckOutcome {
    /// It is as printed here.
    Same(Box<CheckedPrint>),
    /// The source's objects are those of another release yet. The next attempt comes after a pause.
    Outdated,
    /// There was no answer. The next attempt comes after a pause, or once the source can be used
    /// again.
    NoAnswer,
}

impl Deriver {
    /// Prints what the caller, whose objects `shown` reads, has not got yet.
    pub(super) fn new(shown: StoreReader, check: PrintCheck, states: StatePrint) -> Self {
        Self {
            shown,
            check,
            states,
            attempts: Attempts::new(),
            reported: ReportedState::Followed,
            checked: None,
        }
    }

    /// Forgets all that was learned.
    pub(super) fn begin_anew(&mut self) {
        self.checked = None;
        self.attempts = Attempts::new();
        self.reported = ReportedState::Followed;
    }

    /// Notes that the caller follows the source from now on.
    pub(super) fn begin_following(&mut self) {
        self.reported = ReportedState::Followed;
    }

    /// Waits for the source's state, checks how upstream prints it, and prints it.
    pub(super) async fn begin(
        &mut self,
        opened: &mut OpenedSource,
    ) -> Result<OpenedStep, DerivedEnd> {
        let scope = match self.look(opened).await? {
            SourceLook::Checked(scope) => scope,
            SourceLook::Changed => return Ok(OpenedStep::Unread(None)),
            SourceLook::Worse(state) => return Ok(OpenedStep::Unread(self.report(state))),
        };
        // Before the state is read: a quarantine after this may be about it.
        let quarantines = scope.differences.quarantines();
        let (subscription, snapshot) = scope
            .reader
            .subscribe(SubscriptionStart::Now, Interest::All);
        let now = scope.upstream.server();
        let is_checked = now.is_some_and(|now| self.is_checked(&now));
        let Some(checked) = self.checked.clone().filter(|_| is_checked) else {
            return Ok(OpenedStep::Unread(None));
        };
        // The timeline may have ended since. Whatever is read before the source knows is dropped by
        // the caller, who knows as well.
        if !snapshot.is_listed() || !scope.is_current() {
            return Ok(OpenedStep::Unread(None));
        }
        if !checked.has_seen_objects && !snapshot.is_empty() {
            // The first objects came after the check. Another one may see none again.
            self.checked = None;
            self.attempts.retry();
            return Ok(OpenedStep::Unread(None));
        }
        let printed = self.states.print(&checked, &snapshot);
        let change = tokio::select! {
            printed = printed => printed?,
            // A large type takes seconds. The caller has to know of this before.
            () = until_unreadable(&scope) => return Ok(OpenedStep::Unread(None)),
        };
        if scope.differences.quarantines() != quarantines {
            return Ok(OpenedStep::Unread(None));
        }
        let state = FollowedState {
            version: snapshot.version(),
            quarantines,
        };
        self.begin_following();
        let source = ScopeHandle::new(&scope);
        let following = Following::new(source, subscription, state, checked);
        Ok(OpenedStep::Listed(Box::new(following), change))
    }

    /// Waits until the source can be read, and checks how its server prints it.
    pub(super) async fn look(
        &mut self,
        opened: &mut OpenedSource,
    ) -> Result<SourceLook, DerivedEnd> {
        let scope = Arc::clone(opened.source());
        match opened.readiness(self.reported).await? {
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
        Ok(match self.check_print(&scope, &server).await? {
            CheckOutcome::Same(_) => SourceLook::Changed,
            CheckOutcome::Outdated | CheckOutcome::NoAnswer => {
                SourceLook::Worse(ReportedState::Lost)
            }
        })
    }

    /// Returns the step that tells the caller what became of the source, if it does not know of
    /// that, or of worse.
    fn report(&mut self, now: ReportedState) -> Option<DerivedStep> {
        if self.reported >= now {
            return None;
        }
        self.reported = now;
        now.step()
    }

    /// Returns `true` if this server was the last one whose JSON was compared.
    pub(super) fn is_checked(&self, server: &ServedBy) -> bool {
        self.checked
            .as_ref()
            .is_some_and(|checked| checked.server.is_same(server))
    }

    /// Compares a server's JSON with what is printed here.
    async fn check_print(
        &mut self,
        source: &Scope,
        server: &ServedBy,
    ) -> Result<CheckOutcome, DerivedEnd> {
        let known = self.checked.as_ref();
        let checked = tokio::select! {
            checked = self.check.check(source, server, known) => checked,
            // Upstream may take minutes. The caller has to know of this before.
            () = until_unusable(source) => return Ok(CheckOutcome::NoAnswer),
        };
        match checked {
            Ok(checked) => {
                self.checked = Some(checked.clone());
                self.attempts.checked();
                Ok(CheckOutcome::Same(Box::new(checked)))
            }
            Err(CheckError::FallBack(reason)) => Err(reason.into()),
            // The source learns it by itself, however long that takes.
            Err(CheckError::Outdated) => {
                self.attempts.retry();
                Ok(CheckOutcome::Outdated)
            }
            Err(CheckError::NoAnswer(error)) => {
                let resource = &self.check.target.gvr;
                tracing::debug!(%resource, %error, "upstream's JSON could not be compared");
                // Where upstream cannot be reached at all, the source waits for it.
                if self.attempts.failed(source.upstream.is_following()) {
                    Ok(CheckOutcome::NoAnswer)
                } else {
                    Err(FallbackReason::Unchecked(error.to_string()).into())
                }
            }
        }
    }

    /// Takes in what the source shows next.
    pub(super) async fn follow(
        &mut self,
        following: &mut Following,
    ) -> Result<FollowingStep, DerivedEnd> {
        let has_seen_objects = self.checked.as_ref().is_some_and(|it| it.has_seen_objects);
        let change = following
            .next(FollowingReader {
                is_followed: self.reported == ReportedState::Followed,
                has_seen_objects,
            })
            .await;
        let step = match change {
            FollowedChange::Event(event) => Some(self.print_event(following, &event)?),
            // The source names the server before it takes in its events.
            FollowedChange::Unchecked(server) => return self.recheck(following, &server).await,
            FollowedChange::Progress(version) => {
                self.attempts.advanced();
                let change = Change::Progress {
                    version,
                    format: None,
                };
                Some(DerivedStep::Change(change))
            }
            FollowedChange::Followed(true) => {
                let before = std::mem::replace(&mut self.reported, ReportedState::Followed);
                (before != ReportedState::Followed).then_some(DerivedStep::Refollowed)
            }
            FollowedChange::Followed(false) => self.report(ReportedState::Lost),
            FollowedChange::TooOld => self.report(ReportedState::TooOld),
            FollowedChange::Expired => {
                // The next state may be as short of history.
                self.attempts.retry();
                return Ok(FollowingStep::Restart(self.report(ReportedState::Lost)));
            }
            FollowedChange::Quarantined => {
                return Ok(FollowingStep::Restart(self.report(ReportedState::Doubted)));
            }
            FollowedChange::Closed => {
                return Err(FallbackReason::Source("its scope in protobuf was closed").into());
            }
        };
        Ok(FollowingStep::Reported(step))
    }

    /// Compares the JSON of another server, or of a type that had no objects before.
    async fn recheck(
        &mut self,
        following: &mut Following,
        server: &ServedBy,
    ) -> Result<FollowingStep, DerivedEnd> {
        // Until upstream has answered, nothing of what the source has is shown.
        if let Some(step) = self.report(ReportedState::Lost) {
            return Ok(FollowingStep::Reported(Some(step)));
        }
        let source = Arc::clone(following.source());
        let has_events = following.has_events();
        let known = self.checked.clone().filter(|checked| {
            checked.server.is_same(server) && (checked.has_seen_objects || !has_events)
        });
        let now = if let Some(known) = known {
            known
        } else {
            let by = following.compared_by(COMPARISON_TIME);
            let checked = timeout_at(by, self.check_print(&source, server)).await;
            let late = |_| FallbackReason::Unchecked("upstream's answer is late".to_owned());
            let checked = checked.map_err(late)??;
            if !matches!(checked, CheckOutcome::NoAnswer) {
                following.end_comparison();
            }
            let CheckOutcome::Same(now) = checked else {
                return Ok(FollowingStep::Reported(None));
            };
            *now
        };
        if has_events && !now.has_seen_objects {
            let reason = "its objects came and went".to_owned();
            return Err(FallbackReason::Unchecked(reason).into());
        }
        let before = following.accepted();
        if before.manner.format != now.manner.format || before.warnings != now.warnings {
            return Ok(FollowingStep::Restart(None));
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
                () = until_unusable(&source) => return Ok(FollowingStep::Reported(None)),
            }
        };
        if !source.upstream.is_following() {
            return Ok(FollowingStep::Reported(None));
        }
        let checked = DerivedStep::Checked(now.as_reported(reprinted));
        following.accept(now);
        // If the source does not follow any more, that is reported next.
        self.reported = ReportedState::Followed;
        Ok(FollowingStep::Reported(Some(checked)))
    }

    /// Prints the next event.
    fn print_event(
        &mut self,
        following: &mut Following,
        event: &WindowEvent,
    ) -> Result<DerivedStep, DerivedEnd> {
        let manner = &following.accepted().manner;
        let printed = self.check.printer.print_event(manner, event)?;
        following.pass();
        self.attempts.advanced();
        Ok(DerivedStep::Event(printed))
    }
}
