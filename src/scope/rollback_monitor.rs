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
use tokio::time::{Instant, sleep};
use watershed_protocol::{GroupVersionResource, ResourceVersion, Selection};

use super::cached::Scope;
use super::registry::Scopes;
use super::timeline::{NewestVersion, RollbackEvidence, Timeline};
use crate::backoff::PauseRange;
use crate::upstream::{AnswerError, Probe, in_time};
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
    let timeline = scopes.timeline().clone();
    let mut monitor = RollbackMonitor::new(scopes);
    let mut retries = PauseRange::new(RETRY, interval).backoff();
    // Proxies that started together must not ask together.
    let mut wait = interval.mul_f64(fastrand::f64());
    let (mut occasion, mut has_failed, mut is_first) = (Occasion::Due, false, true);
    loop {
        let may_put_off = !has_failed && monitor.may_put_off();
        tokio::select! {
            () = sleep(wait), if !may_put_off => {}
            () = monitor.due(wait), if may_put_off => {}
            // After a failure, the pause comes first.
            () = timeline.suspected(), if !has_failed => occasion = Occasion::Suspicion,
        }
        if std::mem::take(&mut is_first)
            && occasion == Occasion::Due
            && monitor.interval() > interval
        {
            wait = monitor.interval().mul_f64(fastrand::f64());
            continue;
        }
        monitor.progress.asked();
        wait = match in_time(ANSWER_TIMEOUT, monitor.check(occasion)).await {
            Ok(()) => {
                (occasion, has_failed) = (Occasion::Due, false);
                retries.reset();
                monitor.interval().mul_f64(0.8 + fastrand::f64() / 5.0)
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

/// An answer that is of at least the versions that its etcd showed before the question.
struct ConsistentAnswer {
    /// The number of the timeline.
    number: u64,
    version: ResourceVersion,
    /// The versions that types had shown before.
    known: NewestVersions,
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

    /// Returns the interval of the questions.
    fn interval(&self) -> Duration {
        let interval = self.scopes.config().rollback_check;
        if self.is_behind_proxy() {
            interval * BEHIND_PROXY
        } else {
            interval
        }
    }

    fn is_behind_proxy(&self) -> bool {
        let upstream = self.scopes.client().upstream();
        upstream.chain().is_behind_proxy()
    }

    /// Returns `true` if newer versions may put a question off. Before, it has to be known which cluster this is. A
    /// proxy is asked rarely enough.
    fn may_put_off(&self) -> bool {
        let number = self.timeline.number();
        let is_known = |(known_in, _): &(u64, String)| *known_in == number;
        self.cluster.as_ref().is_some_and(is_known)
            && self.refused.is_none()
            && !self.is_behind_proxy()
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
            return self.check_newest().await;
        }
        match self.check_cluster().await {
            Err(error) if error.status() == Some(StatusCode::FORBIDDEN) => {
                self.refused = Some(Instant::now());
                self.check_newest().await
            }
            Err(error) => Err(error),
            Ok(answer) => {
                self.refused = None;
                if let Some(answer) = answer {
                    self.check_later_types(answer).await?;
                }
                // The version of that scope may be much newer than the last answer about the namespace.
                match occasion {
                    Occasion::Suspicion => self.check_newest().await,
                    Occasion::Due => Ok(()),
                }
            }
        }
    }

    /// Asks about the namespace. Returns `None` if versions went back, or the cluster is another one.
    async fn check_cluster(&mut self) -> Result<Option<ConsistentAnswer>, AnswerError> {
        self.newest = self.timeline.newest(&self.namespaces);
        let question = self
            .timeline
            .ask(&self.namespaces, Arc::clone(&self.newest));
        let known = newest_versions(&self.scopes, &self.timeline);
        let (version, uid) = self.probe.first_uid().await?;
        if question.answered(version).is_err() {
            return Ok(None);
        }
        let number = question.number();
        let answer = ConsistentAnswer {
            number,
            version,
            known,
        };
        let Some(now) = uid.filter(|uid| !uid.is_empty()) else {
            return Ok(Some(answer));
        };
        if let Some((known_in, before)) = &self.cluster
            && *known_in == number
            && *before != now
        {
            let before = before.clone();
            let evidence = RollbackEvidence::Cluster { before, now };
            self.timeline.end(number, &evidence);
            return Ok(None);
        }
        self.cluster = Some((number, now));
        Ok(Some(answer))
    }

    /// Asks about each type that showed a later version than the answer before that was asked for. Its versions went
    /// back, which the last version of namespaces may be too old to show, or it is in another etcd.
    async fn check_later_types(&mut self, answer: ConsistentAnswer) -> Result<(), AnswerError> {
        let ConsistentAnswer {
            number,
            version,
            known,
        } = answer;
        for (name, _) in known.into_iter().filter(|(_, at)| *at > version) {
            let mut scopes = scopes_of(&self.scopes, &self.timeline);
            let scope = scopes.find(|scope| name_of(scope) == name);
            let Some(scope) = scope.filter(|_| self.progress.tells(number, &name)) else {
                continue;
            };
            match self.check_scope(&scope).await {
                Ok(true) => {}
                Ok(false) => return Ok(()),
                // It would be refused again.
                Err(error) if error.is_lasting_refusal() => {}
                Err(error) => return Err(error),
            }
            self.progress.ignore(number, name);
        }
        self.progress.reached(number, version);
        Ok(())
    }

    /// Asks about the type that upstream changed last.
    async fn check_newest(&self) -> Result<(), AnswerError> {
        // Events often have an etcd of their own.
        let newest = scopes_of(&self.scopes, &self.timeline)
            .max_by_key(|scope| (!scope.key.gvr.is_event(), scope.history.newest().get()));
        if let Some(scope) = newest {
            self.check_scope(&scope).await?;
        }
        Ok(())
    }

    /// Returns `false` if the versions of a scope's type went back. Of that everybody else is told.
    async fn check_scope(&self, scope: &Scope) -> Result<bool, AnswerError> {
        let probe = scope.probe(self.scopes.client().clone());
        let question = scope.ask();
        Ok(question.answered(probe.version().await?).is_ok())
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
