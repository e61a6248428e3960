//! Derives again what upstream's own list and watch follow meanwhile, without a new list.
//!
//! Both follow the same history. So once upstream's own bytes of the objects that both have in the
//! same version were found to be those that are printed here, the source's events go on from any
//! later state of the caller's, and its watches notice nothing.
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::sleep;
use watershed_protocol::ResourceVersion;

use super::check::{CheckedPrint, UpstreamText, expect_same};
use super::deriver::{Deriver, SourceLook};
use super::failures::FallbackReason;
use super::following::{FollowedState, Following};
use super::opened::{OpenedSource, until_unusable};
use super::step::{CheckedServer, DerivedEnd};
use super::{DerivedFeed, DerivedProgress};
use crate::budget::MemoryBudget;
use crate::scope::cached::Scope;
use crate::scope::handle::ScopeHandle;
use crate::scope::phase::ScopePhase;
use crate::store::{Interest, ObjectPeek, Snapshot, SubscriptionStart};
use crate::upstream::{Release, ServedBy};
use crate::work::{REDUCED_OBJECT, WorkBudget};

/// Pause between two looks at the release that printed the source's objects.
const LOOK: Duration = Duration::from_millis(500);

const CHANGED: FallbackReason = FallbackReason::Source("its watch in protobuf began anew");

/// A state of the source whose objects are printed as the caller has them.
pub(in crate::scope) struct RejoinPoint {
    source: ScopeHandle,
    /// The server whose JSON was compared.
    checked: CheckedPrint,
    /// The version of the source's state. Its later events come from the server that was checked.
    version: ResourceVersion,
    /// The source's server, which is the checked one while nothing changed.
    servers: watch::Receiver<Option<ServedBy>>,
    /// Quarantines of the source before its state was read.
    quarantines: u64,
}

/// The result of an attempt to derive the caller's changes again.
pub(in crate::scope) enum Rejoined {
    /// The source's events are followed. This was learned of its server.
    Following(Box<CheckedServer>),
    /// To follow would not be exact now, which may pass.
    NotYet(Box<RejoinPoint>),
}

impl DerivedFeed {
    /// Returns the budget of what is printed.
    pub(in crate::scope) fn budget(&self) -> &MemoryBudget {
        &self.deriver.states.budget
    }

    /// Opens the source beside the caller's own list and watch, and compares all objects that both
    /// have in the same version. The caller must not be listed anew until [`DerivedFeed::rejoin`].
    pub(in crate::scope) async fn compare(
        &mut self,
        caller: &Scope,
    ) -> Result<Box<RejoinPoint>, DerivedEnd> {
        self.begin_anew();
        let opened = self.open()?;
        self.deriver.compare(caller, opened).await
    }

    /// Follows the source's events behind the caller's objects, which are those that were compared
    /// and what upstream's own watch brought since. Returns the point again while that would not be
    /// exact.
    pub(in crate::scope) fn rejoin(
        &mut self,
        caller: &Scope,
        point: Box<RejoinPoint>,
    ) -> Result<Rejoined, FallbackReason> {
        let (source, checked) = (&point.source, &point.checked);
        let is_stopped = matches!(source.phase(), ScopePhase::Stopped(_));
        let is_unchanged = !is_stopped
            && point.servers.has_changed().is_ok_and(|changed| !changed)
            && source.differences.quarantines() == point.quarantines;
        if !is_unchanged {
            return Err(CHANGED);
        }
        let version = caller.reader.event_version();
        // A quiet type reaches it by the next bookmark.
        let is_exact = version >= point.version
            && caller.reader.unfinished().is_none()
            && [caller, source].iter().all(|scope| {
                is_followed(scope) && is_known_to_be_printed_by(scope, checked.release.as_ref())
            })
            && is_in_form_of(caller, checked);
        if !is_exact {
            return Ok(Rejoined::NotYet(point));
        }
        let start = SubscriptionStart::After(version);
        let (subscription, _) = source.reader.subscribe(start, Interest::All);
        if subscription.is_expired() {
            return Err(CHANGED);
        }
        caller.source.record_quarantines(point.quarantines);
        caller.source.attach(Arc::clone(source));
        let server = checked.as_reported(self.deriver.states.nothing_anew());
        let state = FollowedState {
            version,
            quarantines: point.quarantines,
        };
        let following = Following::new(point.source, subscription, state, point.checked);
        self.deriver.begin_following();
        self.progress = DerivedProgress::Following(Box::new(following));
        Ok(Rejoined::Following(Box::new(server)))
    }
}

impl Deriver {
    /// Compares all objects that the caller and an opened source have in the same version.
    async fn compare(
        &mut self,
        caller: &Scope,
        mut opened: OpenedSource,
    ) -> Result<Box<RejoinPoint>, DerivedEnd> {
        self.until_checked(&mut opened).await?;
        let source = opened.into_source();
        // It is asked for after the list.
        while source.print.is_of(None) {
            tokio::select! {
                () = sleep(LOOK) => {}
                () = until_unusable(&source) => return Err(CHANGED.into()),
            }
        }
        self.compare_objects(caller, source).await
    }

    /// Waits until the source can be read, and its server's JSON was compared.
    async fn until_checked(&mut self, opened: &mut OpenedSource) -> Result<(), DerivedEnd> {
        loop {
            if self.attempts.is_delayed() {
                self.attempts.wait().await;
                self.attempts.begin();
            }
            match self.look(opened).await? {
                SourceLook::Checked(_) => return Ok(()),
                SourceLook::Changed => {}
                // Upstream is asked again in a moment.
                SourceLook::Worse(_) if self.attempts.is_delayed() => {}
                SourceLook::Worse(_) => {
                    return Err(FallbackReason::Source("it is not followed in protobuf").into());
                }
            }
        }
    }

    async fn compare_objects(
        &mut self,
        caller: &Scope,
        source: ScopeHandle,
    ) -> Result<Box<RejoinPoint>, DerivedEnd> {
        let servers = source.upstream.subscribe_server();
        let server = servers.borrow().clone();
        let is_checked = server.is_some_and(|server| self.is_checked(&server));
        let Some(checked) = self.checked.clone().filter(|_| is_checked) else {
            return Err(FallbackReason::Source("its server changed").into());
        };
        if !is_in_form_of(caller, &checked) {
            return Err(FallbackReason::Unchecked("the form of its lists differs".into()).into());
        }
        let are_of_release = || {
            [caller, &source].map(|it| is_known_to_be_printed_by(it, checked.release.as_ref()))
                == [true; 2]
        };
        let two_releases = || FallbackReason::Unchecked("two releases print it".into()).into();
        if !are_of_release() {
            return Err(two_releases());
        }
        let quarantines = source.differences.quarantines();
        let (held, objects) = (caller.reader.followed(), source.reader.followed());
        match self.find_difference(&checked, &held, &objects).await {
            // One of them may be about to be read again.
            Err(_) if !are_of_release() => Err(two_releases()),
            Err(reason) => Err(reason.into()),
            Ok(()) => Ok(Box::new(RejoinPoint {
                source,
                checked,
                version: objects.version(),
                servers,
                quarantines,
            })),
        }
    }

    /// Returns an error for the first object of `held` that is printed differently. Objects that
    /// the source has in another version are left out: their events follow.
    async fn find_difference(
        &mut self,
        checked: &CheckedPrint,
        held: &Snapshot,
        objects: &Snapshot,
    ) -> Result<(), FallbackReason> {
        let manner = &checked.manner;
        let mut work = WorkBudget::default();
        let (mut peek, mut known_peek) = (ObjectPeek::default(), ObjectPeek::default());
        for object in objects.items(None) {
            work.work(REDUCED_OBJECT).await;
            let Some(known) = held.get_version(object.key(), object.version) else {
                continue;
            };
            let printed = self.check.printer.print(manner, &peek.bytes(object))?;
            let (known_bytes, bytes) =
                (known_peek.bytes(known), manner.format.item_bytes(&printed));
            let upstream = UpstreamText {
                text: known_bytes.as_slice(),
                attributes: &known.attributes,
            };
            expect_same(object, bytes.as_slice(), upstream)?;
        }
        Ok(())
    }
}

fn is_followed(scope: &Scope) -> bool {
    matches!(scope.phase(), ScopePhase::Ready(_))
        && scope.upstream.is_following()
        && scope.is_current()
}

/// Returns `true` if a scope's objects and events are known to be printed by this release, and a
/// server of that is followed.
fn is_known_to_be_printed_by(scope: &Scope, release: Option<&Release>) -> bool {
    release.is_some() && scope.print.is_of(release) && scope.is_printed_by_its_server()
}

/// Returns `true` if upstream's lists and warnings have the form that the caller's readers get.
fn is_in_form_of(caller: &Scope, checked: &CheckedPrint) -> bool {
    match caller.phase() {
        ScopePhase::Ready(ready) => {
            ready.format == checked.manner.format && ready.warnings == checked.warnings
        }
        _ => false,
    }
}
