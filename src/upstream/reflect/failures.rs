//! Failures of a reflector: what is logged of them, and the next attempt.
use std::time::Duration;

use super::error::{Fault, ReflectorError};
use super::{Reflector, ReflectorState, SchemaUse};
use crate::log_throttle::LogThrottle;

/// Characters of a failure that are kept. Upstream's own words may be long.
const MAX_FAILURE: usize = 300;

/// Failures to connect, broken streams, and refusals that may pass, of all types. All types have these
/// at once when an API server ends or starts.
static CONNECTION_FAILURES: LogThrottle = LogThrottle::new(Duration::from_secs(10));
static STREAM_FAILURES: LogThrottle = LogThrottle::new(Duration::from_secs(10));
static REFUSALS: LogThrottle = LogThrottle::new(Duration::from_secs(10));

/// The next attempt after one that failed.
enum NextAttempt {
    /// The same, after a pause.
    Again,
    /// The same at another server, at once.
    Elsewhere,
    /// A list.
    List,
}

impl Reflector {
    /// Prepares the next attempt.
    pub(super) fn recover(&mut self, error: &ReflectorError) {
        let words = error.to_string();
        self.last_failure = Some(words.chars().take(MAX_FAILURE).collect());
        match self.note_failure(error) {
            NextAttempt::Elsewhere => return,
            NextAttempt::List if !self.is_listing() => self.restart(),
            NextAttempt::List | NextAttempt::Again => {}
        }
        if error.is_failed_connection() {
            let connections = self.client.upstream().traffic().new_connections();
            self.recovery.back_off_until_connected(connections);
        } else {
            self.recovery.back_off();
        }
    }

    /// Notes a failure, and logs it. Returns the next attempt.
    fn note_failure(&mut self, error: &ReflectorError) -> NextAttempt {
        let (resource, by) = (&self.target.gvr, self.served_by());
        let is_lost = match error.fault() {
            Fault::Expired(answer) => return self.note_expiry(answer),
            Fault::Unreadable => {
                let persists = self.recovery.unreadable(by);
                tracing::error!(%resource, %error, relist = persists, "cannot read an answer");
                if persists {
                    // The pause before the list is part of the recovery so far.
                    self.state = ReflectorState::Start;
                }
                false
            }
            Fault::Quiet => {
                self.recovery.failed();
                tracing::info!(%resource, %error, "opening a watch again");
                false
            }
            // It was counted before.
            Fault::Refused => self.note_version(error),
            Fault::Unanswered => {
                self.recovery.unanswered(by);
                self.note_version(error)
            }
            Fault::Other => {
                self.recovery.failed();
                self.note_version(error)
            }
        };
        if is_lost || self.is_rebuilding() {
            NextAttempt::List
        } else {
            NextAttempt::Again
        }
    }

    /// Notes that a server does not have the version any more.
    fn note_expiry(&mut self, answer: &str) -> NextAttempt {
        let (resource, by) = (&self.target.gvr, self.served_by());
        let servers = self.client.upstream().addresses().len();
        let is_lost = self.recovery.expired(by, servers);
        if is_lost {
            tracing::info!(%resource, answer, "upstream has lost the history");
        } else {
            tracing::debug!(%resource, answer, "a server has lost the history");
        }
        // A rebuilt type has no history at upstream. Its next list is the caller's to begin.
        let is_expected = matches!(self.schema, SchemaUse::Changed);
        if is_lost && !is_expected {
            // A list that expires again and again has pauses that grow.
            if !self.is_listing() {
                self.recovery.list_lost();
            }
            NextAttempt::List
        } else if self.is_rebuilding() {
            NextAttempt::List
        } else if is_lost {
            NextAttempt::Again
        } else {
            NextAttempt::Elsewhere
        }
    }

    /// Logs a failure, and notes if it may be one of the version. Returns `true` if the version is lost.
    fn note_version(&mut self, error: &ReflectorError) -> bool {
        let is_lost = if error.may_concern_the_version() {
            !self.is_listing() && self.recovery.version_failed()
        } else {
            self.recovery.version_not_shown();
            false
        };
        self.report(error);
        is_lost
    }

    /// Logs a failure. What fails for all types at once, as connections do, is one line in a while. Of
    /// other failures of this type in a row, those with a power of two are warnings.
    fn report(&self, error: &ReflectorError) {
        let resource = &self.target.gvr;
        let failures = self.recovery.failures();
        let throttle = match error {
            ReflectorError::Upstream(_) => Some(&CONNECTION_FAILURES),
            ReflectorError::Broken(_)
            | ReflectorError::Silent(_)
            | ReflectorError::Brief
            | ReflectorError::Behind { .. } => Some(&STREAM_FAILURES),
            // A refusal that is final has a line of its own.
            ReflectorError::Stopped(_) => Some(&REFUSALS),
            _ => None,
        };
        let of_all_types = throttle.and_then(|throttle| throttle.count(1));
        let is_own = throttle.is_none() && (failures <= 1 || failures.is_power_of_two());
        if is_own || of_all_types.is_some() {
            tracing::warn!(%resource, %error, failures, of_all_types, "upstream failed");
        } else {
            tracing::debug!(%resource, %error, failures, "upstream failed");
        }
    }
}
