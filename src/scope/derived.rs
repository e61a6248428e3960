//! Follows the JSON of a type that is held in protobuf: the objects and events of the type's scope
//! in protobuf, printed as JSON.
//!
//! Upstream is asked for no second list and watch then. That is exact only while upstream prints
//! the type as the tables of `watershed-transcode` do. So nothing is shown before some of
//! upstream's own JSON was compared with what is made here ([`check`]), and whatever does not fit
//! ends the derivation: the caller lists and watches the type in JSON instead.
mod check;
mod failures;
mod following;
mod printer;

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout_at};

use super::cached::Scope;
use super::handle::ScopeHandle;
use super::phase::ScopePhase;
use crate::budget::{DoesNotFit, MemoryBudget};
use crate::store::{Interest, Snapshot, SnapshotBuilder, StoredObject, SubscriptionStart};
use crate::upstream::{
    Backoff, Change, Collect, ReflectorTarget, Release, ServedBy, UpstreamClient,
};
use crate::work::{REDUCED_OBJECT, WorkBudget};
use check::{CheckError, CheckedPrint, PrintCheck};
pub(super) use failures::{DerivationFailures, FallbackReason};
use following::{FollowedChange, Following, FollowingReader};
pub(super) use printer::JsonPrinter;
use watershed_protocol::BookmarkFormat;

/// First and longest pause after a check that got no answer.
const RETRIES: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(5));
/// Checks without an answer after which the derivation ends.
const MAX_FAILURES: u32 = 5;
/// Time for which a source that upstream refused may be tried again before the derivation ends.
const REFUSED_WAIT: Duration = Duration::from_secs(3);

/// Opens the scope in protobuf; `None` if memory is too short for it.
pub(super) type OpenSource = Box<dyn Fn() -> Option<ScopeHandle> + Send + Sync>;

/// Follows a scope in protobuf, and yields its changes in JSON.
pub(super) struct DerivedFeed {
    open_source: OpenSource,
    check: PrintCheck,
    budget: MemoryBudget,
    /// The next state is estimated before it is printed.
    estimates: bool,
    state: DerivedState,
    /// The server whose JSON was compared last, and what was learned of it.
    checked: Option<CheckedPrint>,
    pauses: Backoff,
    failures: u32,
    retry_at: Option<Instant>,
    /// The source is refused. It is given up then.
    refused_until: Option<Instant>,
    /// The last thing that the caller was told of the source.
    told: ToldState,
}

enum DerivedState {
    /// The source is to be opened.
    Closed,
    /// The source's state is awaited.
    Opened(ScopeHandle),
    /// The source's state was shown. Its events follow.
    Following(Box<Following>),
}

/// The state of the source as the caller knows it. Each state is worse than the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ToldState {
    /// Its changes arrive.
    Followed,
    /// They do not.
    Lost,
    /// They have not arrived for longer than allowed.
    TooOld,
    /// Its objects are not upstream's.
    Doubted,
}

/// The next thing to know of a derived scope.
#[expect(
    clippy::large_enum_variant,
    reason = "it lives for a moment, and a box would be made for each event"
)]
pub(super) enum DerivedStep {
    /// A change in JSON.
    Change(Change<SnapshotBuilder>),
    /// The source follows upstream again. Nothing was lost.
    Refollowed,
    /// The source is older than allowed.
    TooOld,
    /// The source's objects differ from upstream's. The next change is a fresh list.
    Doubted,
    /// The source follows another server, which prints the type in the same way.
    Checked {
        /// The server's release, if it tells.
        release: Option<Release>,
        /// Its form of bookmarks.
        bookmark: BookmarkFormat,
    },
}

/// The end of a derivation.
pub(super) enum DerivedEnd {
    /// The scope has to be followed in JSON.
    FallBack(FallbackReason),
    /// The objects do not fit into memory.
    DoesNotFit(DoesNotFit),
}

impl From<FallbackReason> for DerivedEnd {
    fn from(reason: FallbackReason) -> Self {
        Self::FallBack(reason)
    }
}

impl From<DoesNotFit> for DerivedEnd {
    fn from(error: DoesNotFit) -> Self {
        Self::DoesNotFit(error)
    }
}

impl DerivedFeed {
    pub(super) fn new(
        client: UpstreamClient,
        target: ReflectorTarget,
        printer: JsonPrinter,
        open_source: OpenSource,
    ) -> Self {
        Self {
            open_source,
            check: PrintCheck::new(client, target, printer),
            budget: MemoryBudget::default(),
            estimates: true,
            state: DerivedState::Closed,
            checked: None,
            pauses: Backoff::new(RETRIES.0, RETRIES.1),
            failures: 0,
            retry_at: None,
            refused_until: None,
            told: ToldState::Followed,
        }
    }

    /// Stops states that do not fit into this budget, as [`crate::upstream::Reflector::within`].
    pub(super) fn within(self, budget: &MemoryBudget, estimates: bool) -> Self {
        Self {
            budget: budget.clone(),
            estimates,
            ..self
        }
    }

    /// Returns the scope in protobuf, while it is open.
    pub(super) fn source(&self) -> Option<&Arc<Scope>> {
        match &self.state {
            DerivedState::Closed => None,
            DerivedState::Opened(source) => Some(source),
            DerivedState::Following(following) => Some(following.source()),
        }
    }

    /// Returns the server whose JSON was compared last.
    pub(super) fn server(&self) -> Option<&ServedBy> {
        self.checked.as_ref().map(|checked| &checked.server)
    }

    /// Returns the release of that server, if it tells.
    pub(super) fn release(&self) -> Option<&Release> {
        self.checked.as_ref()?.release.as_ref()
    }

    /// Forgets the state: the next change is a fresh list.
    pub(super) fn restart(&mut self) {
        self.state = match std::mem::replace(&mut self.state, DerivedState::Closed) {
            DerivedState::Following(following) => DerivedState::Opened(following.into_source()),
            state => state,
        };
    }

    /// Lets go of the source.
    pub(super) fn close(&mut self) {
        self.state = DerivedState::Closed;
    }

    /// Forgets all that was learned, and why the derivation ended.
    pub(super) fn begin_anew(&mut self) {
        self.close();
        self.checked = None;
        self.failures = 0;
        self.pauses.reset();
        self.retry_at = None;
        self.refused_until = None;
        self.told = ToldState::Followed;
    }

    /// Delays the next step.
    pub(super) fn pause(&mut self, pause: Duration) {
        self.retry_at = Some(Instant::now() + pause);
    }

    /// Returns the next step. Cancelling a call loses nothing.
    pub(super) async fn next(&mut self) -> Result<DerivedStep, DerivedEnd> {
        loop {
            if let Some(at) = self.retry_at {
                tokio::select! {
                    () = sleep_until(at) => {}
                    // What is held is not to be served meanwhile.
                    () = self.until_doubted() => {}
                }
                self.retry_at = None;
            }
            let step = match &mut self.state {
                DerivedState::Closed => {
                    let source = (self.open_source)();
                    let source = source.ok_or(FallbackReason::Source("memory is short"))?;
                    self.state = DerivedState::Opened(source);
                    None
                }
                DerivedState::Opened(_) => self.begin().await?,
                DerivedState::Following(_) => self.follow().await?,
            };
            if let Some(step) = step {
                return Ok(step);
            }
        }
    }

    /// Waits for the source's state, checks how upstream prints it, and prints it.
    async fn begin(&mut self) -> Result<Option<DerivedStep>, DerivedEnd> {
        let DerivedState::Opened(source) = &self.state else {
            return Ok(None);
        };
        let scope = Arc::clone(source);
        if let ControlFlow::Break(step) = self.wait_until_ready(&scope).await? {
            return Ok(step);
        }
        let mut servers = scope.server.subscribe();
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
            return Ok(None);
        };
        if !self.is_checked(&server) {
            let has_answer = self.check_print(&scope, &server).await?;
            return Ok(if has_answer {
                None
            } else {
                self.tell(ToldState::Lost)
            });
        }
        let (subscription, snapshot) = scope
            .reader
            .subscribe(SubscriptionStart::Now, Interest::All);
        let now = scope.server.borrow().clone();
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
            self.retry_at = Some(Instant::now() + self.pauses.pause());
            return Ok(None);
        }
        let change = self.print_all(&checked, &snapshot).await?;
        if let DerivedState::Opened(source) =
            std::mem::replace(&mut self.state, DerivedState::Closed)
        {
            let version = snapshot.version();
            let following = Following::new(source, subscription, version, checked.server);
            self.state = DerivedState::Following(Box::new(following));
        }
        self.estimates = true;
        self.told = ToldState::Followed;
        Ok(Some(DerivedStep::Change(change)))
    }

    /// Waits for a change of the source if its state cannot be read, unless the caller has to know
    /// first why: breaks with what is to be told.
    ///
    /// A source that does not follow may show an old state, and its age would be lost with a list.
    async fn wait_until_ready(
        &mut self,
        source: &Scope,
    ) -> Result<ControlFlow<Option<DerivedStep>>, DerivedEnd> {
        const STOPPED: FallbackReason = FallbackReason::Source("it is not cached in protobuf");
        let mut phases = source.phase.clone();
        let mut following = source.following();
        let phase = phases.borrow_and_update().clone();
        let is_followed = *following.borrow_and_update();
        let step = match &phase {
            ScopePhase::Ready(_) if is_followed && source.is_current() => {
                self.refused_until = None;
                return Ok(ControlFlow::Continue(()));
            }
            ScopePhase::Stopped(reason) if !reason.may_pass() => return Err(STOPPED.into()),
            ScopePhase::Syncing => None,
            ScopePhase::Ready(_) | ScopePhase::Failing | ScopePhase::Stopped(_) => {
                self.tell(ToldState::Lost)
            }
            ScopePhase::Stale(_) => self.tell(ToldState::TooOld),
            ScopePhase::Quarantined => self.tell(ToldState::Doubted),
        };
        let changed = async {
            tokio::select! {
                // Its sender is dropped once the source tries no longer.
                changed = phases.changed() => changed.is_ok(),
                _ = following.changed() => true,
            }
        };
        let is_open = match phase {
            _ if step.is_some() => true,
            ScopePhase::Stopped(_) => {
                let until = Instant::now() + REFUSED_WAIT;
                let until = *self.refused_until.get_or_insert(until);
                timeout_at(until, changed).await.unwrap_or(false)
            }
            _ => changed.await,
        };
        if !is_open {
            return Err(STOPPED.into());
        }
        Ok(ControlFlow::Break(step))
    }

    /// Waits until the objects that were shown are known not to be upstream's.
    async fn until_doubted(&self) {
        match &self.state {
            DerivedState::Following(following) => following.until_doubted().await,
            DerivedState::Closed | DerivedState::Opened(_) => std::future::pending().await,
        }
    }

    /// Returns the step that tells the caller what became of the source, if it does not know of
    /// that, or of worse.
    fn tell(&mut self, now: ToldState) -> Option<DerivedStep> {
        if self.told >= now {
            return None;
        }
        self.told = now;
        match now {
            ToldState::Followed => None,
            ToldState::Lost => Some(DerivedStep::Change(Change::Interrupted)),
            ToldState::TooOld => Some(DerivedStep::TooOld),
            ToldState::Doubted => Some(DerivedStep::Doubted),
        }
    }

    fn is_checked(&self, server: &ServedBy) -> bool {
        self.checked
            .as_ref()
            .is_some_and(|checked| checked.server.is_same(server))
    }

    /// Compares a server's JSON with what is printed here. Returns false if there was no answer:
    /// the next attempt comes after a pause, or once the source can be used again.
    async fn check_print(&mut self, source: &Scope, server: &ServedBy) -> Result<bool, DerivedEnd> {
        let known = self.checked.as_ref();
        let checked = tokio::select! {
            checked = self.check.check(source, server, known) => checked,
            // Upstream may take minutes. The caller has to know of this before.
            () = until_unusable(source) => return Ok(false),
        };
        match checked {
            Ok(checked) => {
                self.checked = Some(checked);
                self.failures = 0;
                Ok(true)
            }
            Err(CheckError::FallBack(reason)) => Err(reason.into()),
            // The source learns it by itself, however long that takes.
            Err(CheckError::Outdated) => {
                self.retry_at = Some(Instant::now() + self.pauses.pause());
                Ok(false)
            }
            Err(CheckError::NoAnswer(error)) => {
                let resource = &self.check.target.gvr;
                tracing::debug!(%resource, %error, "upstream's JSON could not be compared");
                // Where upstream cannot be reached at all, the source waits for it.
                self.failures += u32::from(source.is_following());
                if self.failures >= MAX_FAILURES {
                    return Err(FallbackReason::Unchecked(error.to_string()).into());
                }
                self.retry_at = Some(Instant::now() + self.pauses.pause());
                Ok(false)
            }
        }
    }

    /// Prints a whole state.
    async fn print_all(
        &mut self,
        checked: &CheckedPrint,
        snapshot: &Snapshot,
    ) -> Result<Change<SnapshotBuilder>, DerivedEnd> {
        let format = &checked.format;
        let mut objects = SnapshotBuilder::begin(format, &self.check.target.fields);
        let mut load = self.budget.begin_load();
        if self.estimates {
            let bytes = snapshot.size().saturating_mul(2);
            load.expect(MemoryBudget::estimate(snapshot.len(), bytes))?;
        }
        let mut work = WorkBudget::default();
        for object in snapshot.items(None) {
            let printed = self.check.printer.print(format, object)?;
            load.add(printed.len())?;
            objects.put(StoredObject {
                bytes: format.item_bytes(&printed),
                version: object.version,
                attributes: object.attributes.clone(),
            });
            work.work(REDUCED_OBJECT).await;
        }
        Ok(Change::Listed {
            format: Arc::clone(format),
            version: snapshot.version(),
            objects,
            streams_initial_events: true,
            warnings: checked.warnings.clone(),
            bookmark: Some(checked.bookmark.clone()),
            load,
        })
    }

    /// Takes in what the source shows next.
    async fn follow(&mut self) -> Result<Option<DerivedStep>, DerivedEnd> {
        let DerivedState::Following(following) = &mut self.state else {
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
                if self.is_checked(&server) && (has_seen_objects || !has_events) {
                    self.accept(server);
                    return Ok(None);
                }
                self.recheck(&scope, &server, has_events).await
            }
            FollowedChange::Progress(version) => {
                self.pauses.reset();
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
                self.retry_at = Some(Instant::now() + self.pauses.pause());
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

    fn accept(&mut self, server: ServedBy) {
        if let DerivedState::Following(following) = &mut self.state {
            following.accept(server);
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
        let before = self.checked.clone();
        if !self.check_print(source, server).await? {
            return Ok(None);
        }
        let (Some(before), Some(now)) = (before, &self.checked) else {
            return Ok(None);
        };
        if has_events && !now.has_seen_objects {
            let reason = "its objects came and went".to_owned();
            return Err(FallbackReason::Unchecked(reason).into());
        }
        if before.format != now.format || before.warnings != now.warnings {
            self.restart();
            return Ok(None);
        }
        let step = DerivedStep::Checked {
            release: now.release.clone(),
            bookmark: now.bookmark.clone(),
        };
        self.accept(server.clone());
        // The source followed a moment ago. If it does not now, that is told next.
        self.told = ToldState::Followed;
        Ok(Some(step))
    }

    /// Prints the next event, if there is one.
    fn print_event(&mut self) -> Result<Option<DerivedStep>, DerivedEnd> {
        let (DerivedState::Following(following), Some(checked)) = (&mut self.state, &self.checked)
        else {
            return Ok(None);
        };
        let Some(event) = following.event() else {
            return Ok(None);
        };
        let (frame, scanned) = self.check.printer.print_event(&checked.format, event)?;
        following.pass();
        self.pauses.reset();
        Ok(Some(DerivedStep::Change(Change::Event(frame, scanned))))
    }
}

/// Waits until the source cannot be read, or does not follow.
async fn until_unusable(source: &Scope) {
    let mut phases = source.phase.clone();
    let mut following = source.following();
    tokio::select! {
        _ = phases.wait_for(|phase| !matches!(phase, ScopePhase::Ready(_))) => {}
        _ = following.wait_for(|is_followed| !is_followed) => {}
    }
}
