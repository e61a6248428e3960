//! Recognizes an open watch that does not bring what upstream has.
//!
//! A stream can stand still without breaking, and so can the cache of the server that sends it. By
//! itself that shows after a minute and a half of silence. A comparison of upstream's objects with
//! those held shows it sooner: where upstream has more than the events have led to, the next event
//! is due.
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use watershed_protocol::ResourceVersion;

use crate::store::StoreReader;

/// Longest time that a due event is waited for. It doubles each time that the watch is opened again:
/// what holds the events back may be upstream's, and a new watch does not help then.
const MAX_EVENT_WAIT: Duration = Duration::from_mins(5);
/// Time without a watch opened again after which a due event is waited for as long as the first.
const CALM: Duration = Duration::from_mins(10);

/// Knows which event of a scope's watch is due, and when it is late or overdue.
#[derive(Debug)]
pub(super) struct OverdueEvents {
    /// The version of the events when upstream was last found to have more.
    found: watch::Receiver<ResourceVersion>,
    reader: StoreReader,
    due: Option<DueEvent>,
    /// Time after which a due event is late.
    first: Duration,
    /// Time after which the next due event is overdue.
    patience: Duration,
    /// The moment at which the watch was opened again last.
    last: Option<Instant>,
}

/// The event after a version, which upstream has.
#[derive(Clone, Copy, Debug)]
struct DueEvent {
    after: ResourceVersion,
    found: Instant,
    is_late: bool,
}

/// The state of an event that does not come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MissingEvent {
    /// It is late. The watch was opened again a while ago, and that did not help.
    Late,
    /// It is overdue: the event after this version.
    Overdue(ResourceVersion),
}

impl OverdueEvents {
    /// Creates the record of a scope that `reader` reads. The first due event is waited for as long
    /// as `patience`.
    pub(super) fn new(
        found: watch::Receiver<ResourceVersion>,
        reader: StoreReader,
        patience: Duration,
    ) -> Self {
        Self {
            found,
            reader,
            due: None,
            first: patience,
            patience,
            last: None,
        }
    }

    /// Waits until an event is late or overdue. Cancelling a call loses nothing.
    pub(super) async fn missing(&mut self) -> MissingEvent {
        loop {
            let until = self.due.map(|due| due.found + self.patience_with(due));
            let is_over = async {
                match until {
                    Some(until) => sleep_until(until).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                Ok(()) = self.found.changed() => self.note(),
                () = is_over => {
                    let due = self.due.take().filter(|due| self.is_awaited(due.after));
                    if let Some(due) = due {
                        return self.missed(due);
                    }
                }
            }
        }
    }

    /// Forgets what is due, as the watch is not open.
    pub(super) fn forget(&mut self) {
        self.due = None;
        self.found.mark_unchanged();
    }

    /// Notes that the watch was opened again as an event was overdue.
    pub(super) fn record_reopening(&mut self) {
        self.last = Some(Instant::now());
        self.patience = (self.patience * 2).min(MAX_EVENT_WAIT);
    }

    /// Notes that upstream was found to have more.
    fn note(&mut self) {
        let after = *self.found.borrow_and_update();
        let is_known = self.due.is_some_and(|due| due.after == after);
        if is_known || !self.is_awaited(after) {
            return;
        }
        if self.last.is_some_and(|last| last.elapsed() > CALM) {
            self.patience = self.first;
        }
        self.due = Some(DueEvent {
            after,
            found: Instant::now(),
            is_late: false,
        });
    }

    /// Returns the time after its finding at which something is to be said of a due event.
    fn patience_with(&self, due: DueEvent) -> Duration {
        if due.is_late {
            self.patience
        } else {
            self.first
        }
    }

    /// Says of a due event that it has not come.
    fn missed(&mut self, due: DueEvent) -> MissingEvent {
        if due.is_late || self.patience <= self.first {
            return MissingEvent::Overdue(due.after);
        }
        self.due = Some(DueEvent {
            is_late: true,
            ..due
        });
        MissingEvent::Late
    }

    /// Returns `true` if no event came after this version.
    fn is_awaited(&self, after: ResourceVersion) -> bool {
        self.reader.event_version() == after
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Instant as StdInstant;

    use tokio::time::timeout;

    use watershed_protocol::{Encoding, FieldTable, GroupVersionResource, WireFormat};

    use super::*;
    use crate::store::{self, SnapshotBuilder, StoreWriter, WindowLimits};
    use crate::upstream::Collect as _;

    const FIRST_WAIT: Duration = Duration::from_secs(10);

    struct Watched {
        writer: StoreWriter,
        found: watch::Sender<ResourceVersion>,
        events: OverdueEvents,
    }

    impl Watched {
        fn new() -> Self {
            let (mut writer, reader) = store::new(WindowLimits {
                age: Duration::from_mins(5),
                least: 0,
                bytes: 1 << 20,
            });
            let pods = GroupVersionResource::new("", "v1", "pods");
            let format = WireFormat::built_in(&pods, "Pod", Encoding::Json).unwrap();
            let fields = FieldTable::builtin(&pods, true).unwrap();
            let listed = SnapshotBuilder::begin(&Arc::new(format), &fields);
            drop(writer.replace(listed.finish(ResourceVersion(1))));
            let found = watch::Sender::default();
            let events = OverdueEvents::new(found.subscribe(), reader, FIRST_WAIT);
            Self {
                writer,
                found,
                events,
            }
        }

        fn reach(&mut self, version: u64) {
            self.writer
                .progress(StdInstant::now(), ResourceVersion(version));
        }

        fn find(&self, after: u64) {
            self.found.send_replace(ResourceVersion(after));
        }

        /// Returns what is said of an event within this time.
        async fn missing(&mut self, within: Duration) -> Option<MissingEvent> {
            timeout(within, self.events.missing()).await.ok()
        }

        /// Returns the version after which an event is overdue within this time, and the time that
        /// took.
        async fn overdue(&mut self, within: Duration) -> Option<(u64, Duration)> {
            let began = Instant::now();
            let overdue = async {
                loop {
                    if let MissingEvent::Overdue(version) = self.events.missing().await {
                        return version;
                    }
                }
            };
            let overdue = timeout(within, overdue).await;
            overdue.ok().map(|version| (version.0, began.elapsed()))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_event_is_overdue_if_upstream_has_more_and_nothing_comes() {
        let mut watched = Watched::new();
        watched.reach(7);
        assert_eq!(
            watched.overdue(MAX_EVENT_WAIT).await,
            None,
            "nothing is due"
        );
        watched.find(7);
        assert_eq!(watched.overdue(FIRST_WAIT / 2).await, None);
        watched.find(7);
        let rest = FIRST_WAIT / 2;
        assert_eq!(watched.overdue(MAX_EVENT_WAIT).await, Some((7, rest)));
        assert_eq!(
            watched.overdue(MAX_EVENT_WAIT).await,
            None,
            "it is told once"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn an_event_that_comes_in_time_is_not_overdue() {
        let mut watched = Watched::new();
        watched.reach(7);
        watched.find(7);
        assert_eq!(watched.overdue(FIRST_WAIT / 2).await, None);
        watched.reach(8);
        assert_eq!(watched.overdue(MAX_EVENT_WAIT).await, None);
        watched.find(7);
        assert_eq!(
            watched.overdue(MAX_EVENT_WAIT).await,
            None,
            "that was before"
        );
        watched.find(8);
        assert_eq!(watched.overdue(MAX_EVENT_WAIT).await, Some((8, FIRST_WAIT)));
    }

    /// The watch is not opened again so soon. What it lacks is known.
    #[tokio::test(start_paused = true)]
    async fn an_event_that_does_not_come_by_a_reopened_watch_either_is_late_before_it_is_overdue() {
        let mut watched = Watched::new();
        watched.reach(7);
        watched.events.record_reopening();
        watched.find(7);
        let overdue = MissingEvent::Overdue(ResourceVersion(7));
        assert_eq!(watched.missing(FIRST_WAIT / 2).await, None);
        assert_eq!(watched.missing(FIRST_WAIT).await, Some(MissingEvent::Late));
        assert_eq!(watched.missing(FIRST_WAIT / 2).await, None);
        assert_eq!(watched.missing(FIRST_WAIT).await, Some(overdue));
        watched.find(7);
        assert_eq!(
            watched.missing(FIRST_WAIT * 2).await,
            Some(MissingEvent::Late)
        );
        watched.reach(8);
        assert_eq!(watched.missing(MAX_EVENT_WAIT).await, None, "it came");
    }

    #[tokio::test(start_paused = true)]
    async fn patience_grows_each_time_the_watch_is_opened_again_until_all_is_calm() {
        let mut watched = Watched::new();
        let mut waits = Vec::new();
        for version in 1..=8 {
            watched.reach(version);
            watched.find(version);
            let (_, waited) = watched.overdue(MAX_EVENT_WAIT * 2).await.unwrap();
            waits.push(waited.as_secs());
            watched.events.record_reopening();
        }
        assert_eq!(waits, [10, 20, 40, 80, 160, 300, 300, 300]);
        tokio::time::advance(CALM + FIRST_WAIT).await;
        watched.find(8);
        assert_eq!(watched.overdue(MAX_EVENT_WAIT).await, Some((8, FIRST_WAIT)));
        watched.find(8);
        let again = watched.overdue(MAX_EVENT_WAIT).await;
        assert_eq!(
            again,
            Some((8, FIRST_WAIT)),
            "the watch had broken by itself"
        );
    }
}
