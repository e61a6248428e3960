//! Faults that can be switched on, from code or with `POST /sim/faults`.
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use super::status::Failure;

/// Treatment of `sendInitialEvents`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum WatchListSupport {
    /// Serves it, as kube-apiserver 1.34 and later do.
    #[default]
    Served,
    /// Answers 422, as a release without the feature gate does.
    Refused,
    /// Starts an ordinary watch, as a server does that doesn't know the parameter.
    Ignored,
}

/// Replacement of a single watch frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum BrokenFrame {
    /// Half of the frame, and then the connection breaks.
    Half,
    /// A line that isn't JSON; the stream goes on.
    Garbage,
}

/// Requests that are refused without being looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PlannedRefusal {
    /// Number of requests that are still to be refused.
    pub count: u32,
    /// The status code, for example 429 or 500.
    pub code: u16,
    /// Seconds for `Retry-After`.
    #[serde(default)]
    pub retry_after: Option<u32>,
    /// Only requests for this resource (`pods`, `deployments.apps`); all when absent.
    #[serde(default)]
    pub resource: Option<String>,
    /// Only this verb (`LIST`, `WATCH`, `GET` …); all when absent.
    #[serde(default)]
    pub verb: Option<String>,
}

/// An answer that no API server gives, in place of a whole one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum BadAnswer {
    /// 404 with a page, as from a load balancer without a backend.
    NotFound,
    /// 405 with a Status.
    MethodNotAllowed,
    /// 406 with a Status.
    NotAcceptable,
    /// 200 with a page.
    Page,
    /// 200 with the usual content type and bytes that mean nothing.
    Garbage,
    /// No answer until the client gives up.
    Silence,
}

/// Requests that are answered badly.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BadAnswers {
    /// Number of requests that are still to be answered badly.
    pub count: u32,
    /// The answer.
    pub answer: BadAnswer,
    /// Only requests for this resource (`pods`, `deployments.apps`); all when absent.
    #[serde(default)]
    pub resource: Option<String>,
    /// Only this verb (`LIST`, `WATCH`, `GET` …); all when absent.
    #[serde(default)]
    pub verb: Option<String>,
}

/// The faults that are switched on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ActiveFaults {
    /// Treatment of `sendInitialEvents`.
    pub watch_list: WatchListSupport,
    /// Watch events leave this much later than they happen.
    pub delay_milliseconds: u64,
    /// Reads that may be of any state, and watches, show the state of so long ago, as those of a
    /// server whose cache is behind.
    pub behind_milliseconds: u64,
    /// Watches stay open and send nothing, not even bookmarks.
    pub silent: bool,
    /// No bookmarks.
    pub no_bookmarks: bool,
    /// The next requests are refused.
    pub refuse: Option<PlannedRefusal>,
    /// The next requests are answered badly.
    pub bad_answers: Option<BadAnswers>,
    /// After this many more frames, over all watches, one is broken.
    pub break_frame: Option<(u64, BrokenFrame)>,
    /// Answers to requests for this path are held back. They are made at once, so they show what
    /// was there before the fault ended.
    pub hold: Option<String>,
    /// Answers to lists with this `Accept` header are held back in the same way.
    pub hold_lists_in: Option<String>,
    /// The next watch event of this resource (`pods`, `deployments.apps`) is not sent. The stream
    /// goes on as if it had been.
    pub lose_event: Option<String>,
    /// The release that `/version` reports, instead of that of the options.
    pub release: Option<String>,
    /// Every read of objects has this text as a `Warning`.
    pub warning: Option<String>,
    /// Watches are not compressed, whatever the options say.
    pub plain_watches: bool,
}

/// The switches of the faults. They may change while the server runs.
#[derive(Debug)]
pub struct Faults {
    active: Mutex<ActiveFaults>,
    /// Grows when all watches are to break, to end cleanly, or to stand still.
    cut: watch::Sender<CutCounts>,
}

/// Numbers of cuts of watches and connections so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CutCounts {
    pub(crate) broken: u64,
    pub(crate) ended: u64,
    pub(crate) stalled: u64,
    pub(crate) connections: u64,
}

/// Fate of the next watch frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NextFrame {
    Whole,
    Broken(BrokenFrame),
}

impl Default for Faults {
    fn default() -> Self {
        Self {
            active: Mutex::default(),
            cut: watch::Sender::new(CutCounts::default()),
        }
    }
}

impl ActiveFaults {
    /// Returns the time that events are late by.
    pub(crate) fn lateness(&self) -> Duration {
        Duration::from_millis(self.delay_milliseconds.max(self.behind_milliseconds))
    }
}

impl Faults {
    /// Returns the present switches.
    pub fn active(&self) -> ActiveFaults {
        self.active.lock().clone()
    }

    /// Changes the switches.
    pub fn set(&self, change: impl FnOnce(&mut ActiveFaults)) {
        change(&mut self.active.lock());
        // Wakes watches that sleep under the old switches.
        self.cut.send_modify(|_| {});
    }

    /// Resets the stream of every open watch.
    pub fn cut_watches(&self) {
        self.cut.send_modify(|c| c.broken += 1);
    }

    /// Ends every open watch as at its timeout.
    pub fn end_watches(&self) {
        self.cut.send_modify(|c| c.ended += 1);
    }

    /// Has every watch that is open now send nothing any more, not even bookmarks. It stays open,
    /// and new watches are well.
    pub fn stall_watches(&self) {
        self.cut.send_modify(|c| c.stalled += 1);
    }

    /// Closes every connection without an announcement.
    pub fn cut_connections(&self) {
        self.cut.send_modify(|c| c.connections += 1);
    }

    /// Refuses the next `count` requests with a code and an optional `Retry-After`.
    pub fn refuse(&self, count: u32, code: u16, retry_after: Option<u32>) {
        self.set(|a| {
            a.refuse = Some(PlannedRefusal {
                count,
                code,
                retry_after,
                resource: None,
                verb: None,
            });
        });
    }

    /// Refuses the next `count` requests of a verb for a resource.
    pub fn refuse_only(&self, code: u16, verb: &str, resource: &str, count: u32) {
        self.set(|active| {
            active.refuse = Some(PlannedRefusal {
                count,
                code,
                retry_after: None,
                resource: Some(resource.to_owned()),
                verb: Some(verb.to_owned()),
            });
        });
    }

    /// Breaks the n-th watch frame from now (1 is the next).
    pub fn break_frame(&self, nth: u64, how: BrokenFrame) {
        self.set(|a| a.break_frame = Some((nth.max(1), how)));
    }

    /// Delays watch events.
    pub fn delay_events(&self, delay: Duration) {
        self.set(|a| a.delay_milliseconds = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX));
    }

    /// Sets the treatment of `sendInitialEvents`.
    pub fn watch_list(&self, how: WatchListSupport) {
        self.set(|a| a.watch_list = how);
    }

    /// Answers from a cache that is so far behind.
    pub fn fall_behind(&self, by: Duration) {
        self.set(|a| a.behind_milliseconds = u64::try_from(by.as_millis()).unwrap_or(u64::MAX));
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<CutCounts> {
        self.cut.subscribe()
    }

    /// Waits while answers to requests for `path` are held back, or to lists with this `Accept`
    /// header.
    pub(crate) async fn released(&self, path: &str, list_accept: Option<&str>) {
        let mut changes = self.subscribe();
        let is_held = || {
            let active = self.active.lock();
            let media = active.hold_lists_in.as_deref();
            active.hold.as_deref() == Some(path) || (media.is_some() && media == list_accept)
        };
        while is_held() {
            if changes.changed().await.is_err() {
                return;
            }
        }
    }

    pub(crate) fn next_frame(&self) -> NextFrame {
        let mut active = self.active.lock();
        let Some((left, how)) = active.break_frame.as_mut() else {
            return NextFrame::Whole;
        };
        *left -= 1;
        if *left > 0 {
            return NextFrame::Whole;
        }
        let how = *how;
        active.break_frame = None;
        NextFrame::Broken(how)
    }

    /// Answers the next `count` requests of a verb for a resource badly.
    pub fn answer_badly(&self, answer: BadAnswer, verb: &str, resource: &str, count: u32) {
        self.set(|active| {
            active.bad_answers = Some(BadAnswers {
                count,
                answer,
                resource: Some(resource.to_owned()),
                verb: Some(verb.to_owned()),
            });
        });
    }

    /// Returns the bad answer that a request gets.
    pub(crate) fn bad_answer(&self, verb: &str, resource: &str) -> Option<BadAnswer> {
        let mut active = self.active.lock();
        let planned = active.bad_answers.as_mut()?;
        if !concerns(
            planned.verb.as_ref(),
            planned.resource.as_ref(),
            verb,
            resource,
        ) {
            return None;
        }
        let answer = planned.answer;
        planned.count = planned.count.saturating_sub(1);
        if planned.count == 0 {
            active.bad_answers = None;
        }
        Some(answer)
    }

    /// Returns `true` if an event is to be lost, of the resource that is named. Then the fault is
    /// over.
    pub(crate) fn loses_event(&self, is_of: impl FnOnce(&str) -> bool) -> bool {
        let mut active = self.active.lock();
        let lost = active.lose_event.take_if(|resource| is_of(resource));
        lost.is_some()
    }

    pub(crate) fn refusal(&self, verb: &str, resource: &str) -> Option<Failure> {
        let mut active = self.active.lock();
        let refuse = active.refuse.as_mut()?;
        if !concerns(
            refuse.verb.as_ref(),
            refuse.resource.as_ref(),
            verb,
            resource,
        ) {
            return None;
        }
        let failure = match refuse.code {
            429 => Failure::new(429, "TooManyRequests", "storage is (re)initializing"),
            503 => Failure::new(
                503,
                "ServiceUnavailable",
                "the server is currently unable to handle the request",
            ),
            code => Failure::new(
                code,
                "InternalError",
                "Internal error occurred: simulated fault",
            ),
        };
        let failure = match refuse.retry_after {
            Some(seconds) => failure
                .retry_after(seconds)
                .details(format!(r#"{{"retryAfterSeconds":{seconds}}}"#)),
            None => failure,
        };
        refuse.count = refuse.count.saturating_sub(1);
        if refuse.count == 0 {
            active.refuse = None;
        }
        Some(failure)
    }
}

/// Returns `true` if a fault of one verb and one resource, or of all, concerns a request.
fn concerns(
    planned_verb: Option<&String>,
    planned_resource: Option<&String>,
    verb: &str,
    resource: &str,
) -> bool {
    planned_verb.is_none_or(|planned| planned == verb)
        && planned_resource.is_none_or(|planned| planned == resource)
}
