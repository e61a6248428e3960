//! Asks upstream regularly if its versions went back, so that this is noticed even if nobody reads.
//!
//! One small question suffices: a list of the namespace kube-system. It is consistent, so its
//! version is a proof, and the namespace's unique id tells one cluster from another even if the
//! versions of the second one are higher. Where the proxy may not list namespaces, the question is
//! about an open scope.
//!
//! While new versions come by the watches, versions have not gone back, and the question can wait.
mod progress;

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use tokio::time::{Instant, sleep, timeout};
use watershed_protocol::{GroupVersionResource, Selection};

use super::cached::Scope;
use super::registry::Scopes;
use super::timeline::{NewestVersion, RollbackEvidence, Timeline};
use crate::upstream::{AnswerError, Backoff, Probe};
use progress::{NameOfType, NewestVersions, UpstreamProgress};

/// Timeout of a question.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(4);
/// First pause after a question that failed. An upstream that comes back may come back with a
/// backup.
const RETRY: Duration = Duration::from_secs(1);
/// Factor of the interval where upstream is a proxy. That one asks by itself, and ends all watches
/// with 410 once it knows; each question here would cost the API server one more.
const BEHIND_PROXY: u32 = 8;
/// Time for which nothing is asked about namespaces after a refusal.
const REFUSAL: Duration = Duration::from_mins(5);

/// Asks upstream regularly if its versions went back. Never returns.
pub async fn watch_for_rollbacks(scopes: Scopes) {
    let interval = scopes.config().rollback_check;
    let (client, timeline) = (scopes.client().clone(), scopes.timeline().clone());
    let mut monitor = RollbackMonitor::new(scopes);
    let mut retries = Backoff::new(RETRY, interval);
    // Proxies that started together must not ask together.
    let mut wait = interval.mul_f64(fastrand::f64());
    let (mut occasion, mut has_failed, mut is_first) = (Occasion::Due, false, true);
    loop {
        let is_behind_proxy = client.upstream().chain().is_behind_proxy();
        // A proxy is asked so rarely that nothing is put off.
        let is_put_off = !has_failed && !is_behind_proxy;
        tokio::select! {
            () = sleep(wait), if !is_put_off => {}
            () = monitor.due(wait), if is_put_off => {}
            // After a failure, the pause comes first.
            () = timeline.suspected(), if !has_failed => occasion = Occasion::Suspicion,
        }
        let is_behind_proxy = client.upstream().chain().is_behind_proxy();
        let every = if is_behind_proxy {
            interval * BEHIND_PROXY
        } else {
            interval
        };
        if std::mem::take(&mut is_first) && is_behind_proxy && occasion == Occasion::Due {
            wait = every.mul_f64(fastrand::f64());
            continue;
        }
        monitor.progress.asked();
        let checked = timeout(ANSWER_TIMEOUT, monitor.check(occasion)).await;
        wait = match checked.unwrap_or(Err(AnswerError::Late(ANSWER_TIMEOUT))) {
            Ok(()) => {
                (occasion, has_failed) = (Occasion::Due, false);
                retries.reset();
                every.mul_f64(0.8 + fastrand::f64() / 5.0)
            }
            Err(error) => {
                has_failed = true;
                tracing::debug!(%error, "upstream was not asked if its versions went back");
                retries.pause().max(error.retry_after())
            }
        };
    }
}

/// The occasion of a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Occasion {
    /// The interval has passed.
    Due,
    /// Versions of custom types went back.
    Suspicion,
}

struct RollbackMonitor {
    scopes: Scopes,
    progress: UpstreamProgress,
    timeline: Timeline,
    namespaces: GroupVersionResource,
    probe: Probe,
    /// Kept, so that the versions of the answers count even if nobody else asks about namespaces.
    newest: Arc<NewestVersion>,
    /// The unique id of the namespace kube-system, in the timeline of this number.
    cluster: Option<(u64, String)>,
    refused: Option<Instant>,
}

impl RollbackMonitor {
    fn new(scopes: Scopes) -> Self {
        let namespaces = GroupVersionResource::new("", "v1", "namespaces");
        let selection = Selection::named(None, "kube-system");
        let timeline = scopes.timeline().clone();
        Self {
            probe: Probe::new(scopes.client().clone(), &namespaces, &selection, false),
            newest: timeline.newest(&namespaces),
            progress: UpstreamProgress::default(),
            timeline,
            namespaces,
            scopes,
            cluster: None,
            refused: None,
        }
    }

    /// Waits until there has been no question for this time, and no new version either.
    async fn due(&mut self, wait: Duration) {
        let Self {
            scopes,
            progress,
            timeline,
            ..
        } = self;
        let newest = || (timeline.number(), newest_versions(scopes, timeline));
        progress.stalled(wait, newest).await;
    }

    async fn check(&mut self, occasion: Occasion) -> Result<(), AnswerError> {
        if self.refused.is_some_and(|at| at.elapsed() < REFUSAL) {
            return self.check_scope().await.map(drop);
        }
        match self.check_cluster().await {
            Err(AnswerError::Status(StatusCode::FORBIDDEN)) => {
                self.refused = Some(Instant::now());
                self.check_scope().await.map(drop)
            }
            // The version of that scope may be much newer than the last answer about the namespace.
            Ok(()) if occasion == Occasion::Suspicion => self.check_scope().await.map(drop),
            checked => checked,
        }
    }

    async fn check_cluster(&mut self) -> Result<(), AnswerError> {
        self.newest = self.timeline.newest(&self.namespaces);
        let question = self
            .timeline
            .ask(&self.namespaces, Arc::clone(&self.newest));
        let before = newest_versions(&self.scopes, &self.timeline);
        let (version, uid) = self.probe.first_uid().await?;
        if question.answered(version).is_err() {
            return Ok(());
        }
        let is_later = |(name, at): &(_, _)| *at > version && self.progress.tells(name);
        if before.iter().any(is_later) {
            // The versions of namespaces that were known may be much older than those of that type.
            let Some(of_another_etcd) = self.check_scope().await? else {
                return Ok(());
            };
            self.progress.ignore(of_another_etcd);
        }
        self.progress.reached(question.number(), version);
        let Some(now) = uid.filter(|uid| !uid.is_empty()) else {
            return Ok(());
        };
        let number = question.number();
        if let Some((known_in, before)) = &self.cluster
            && *known_in == number
            && *before != now
        {
            let before = before.clone();
            let evidence = RollbackEvidence::Cluster { before, now };
            self.timeline.end(number, &evidence);
            return Ok(());
        }
        self.cluster = Some((number, now));
        Ok(())
    }

    /// Asks about the type that upstream changed last. Returns its name, unless upstream's versions went back.
    async fn check_scope(&self) -> Result<Option<NameOfType>, AnswerError> {
        let newest = scopes_of(&self.scopes, &self.timeline)
            .filter(|scope| self.progress.tells(&name_of(scope)))
            // Events often have an etcd of their own.
            .max_by_key(|scope| (!scope.key.gvr.is_event(), scope.history.newest().get()));
        let Some(scope) = newest else {
            return Ok(None);
        };
        let probe = scope.probe(self.scopes.client().clone());
        let question = scope.ask();
        // Of a rollback everybody else is told.
        let answered = question.answered(probe.version().await?);
        Ok(answered.is_ok().then(|| name_of(&scope)))
    }
}

/// Returns the scopes whose versions belong to a timeline.
fn scopes_of(scopes: &Scopes, timeline: &Timeline) -> impl Iterator<Item = Arc<Scope>> {
    let is_of = |scope: &Arc<Scope>| scope.history.timeline().is(timeline);
    scopes.all().into_iter().filter(is_of)
}

/// Returns the newest versions that upstream showed of the types that are followed.
fn newest_versions(scopes: &Scopes, timeline: &Timeline) -> NewestVersions {
    scopes_of(scopes, timeline)
        .filter(|scope| !scope.key.gvr.is_event())
        .map(|scope| (name_of(&scope), scope.history.newest().get()))
        .collect()
}

fn name_of(scope: &Scope) -> NameOfType {
    let gvr = &scope.key.gvr;
    (Arc::clone(&gvr.group), Arc::clone(&gvr.resource))
}
