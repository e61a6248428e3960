//! Asks upstream regularly if its versions went back, so that this is noticed even if nobody reads.
//!
//! One small question suffices: a list of the namespace kube-system. It is consistent, so its
//! version is a proof, and the namespace's unique id tells one cluster from another even if the
//! versions of the second one are higher. Where the proxy may not list namespaces, the question is
//! about an open scope.
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use tokio::time::{Instant, sleep, timeout};
use watershed_protocol::{GroupVersionResource, Selection};

use super::cached::Scope;
use super::registry::Scopes;
use super::timeline::{NewestVersion, RollbackEvidence, Timeline};
use crate::upstream::{AnswerError, Backoff, Probe};

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
    let client = scopes.client().clone();
    let mut monitor = RollbackMonitor::new(scopes);
    let mut retries = Backoff::new(RETRY, interval);
    // Proxies that started together must not ask together.
    let mut wait = interval.mul_f64(fastrand::f64());
    let (mut occasion, mut has_failed) = (Occasion::Due, false);
    loop {
        tokio::select! {
            () = sleep(wait) => {}
            // After a failure, the pause comes first.
            () = monitor.timeline.suspected(), if !has_failed => occasion = Occasion::Suspicion,
        }
        let every = if client.upstream().chain().is_behind_proxy() {
            interval * BEHIND_PROXY
        } else {
            interval
        };
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
            timeline,
            namespaces,
            scopes,
            cluster: None,
            refused: None,
        }
    }

    async fn check(&mut self, occasion: Occasion) -> Result<(), AnswerError> {
        if self.refused.is_some_and(|at| at.elapsed() < REFUSAL) {
            return self.check_scope().await;
        }
        match self.check_cluster().await {
            Err(AnswerError::Status(StatusCode::FORBIDDEN)) => {
                self.refused = Some(Instant::now());
                self.check_scope().await
            }
            // The version of that scope may be much newer than the last answer about the namespace.
            Ok(()) if occasion == Occasion::Suspicion => self.check_scope().await,
            checked => checked,
        }
    }

    async fn check_cluster(&mut self) -> Result<(), AnswerError> {
        self.newest = self.timeline.newest(&self.namespaces);
        let question = self
            .timeline
            .ask(&self.namespaces, Arc::clone(&self.newest));
        let (version, uid) = self.probe.first_uid().await?;
        if question.answered(version).is_err() {
            return Ok(());
        }
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

    /// Asks about the type that upstream changed last.
    async fn check_scope(&self) -> Result<(), AnswerError> {
        let of_upstream = |scope: &Arc<Scope>| scope.history.timeline().is(&self.timeline);
        let newest = self
            .scopes
            .all()
            .into_iter()
            .filter(of_upstream)
            .max_by_key(|scope| scope.history.newest().get());
        let Some(scope) = newest else { return Ok(()) };
        let probe = scope.probe(self.scopes.client().clone());
        let question = scope.ask();
        // Of a rollback everybody else is told.
        let _ = question.answered(probe.version().await?);
        Ok(())
    }
}
