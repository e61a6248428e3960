//! Notices that a scope is followed at a server of another release, and learns its form again.
//!
//! Two releases print some objects differently, although nothing changed: a new field has a
//! default, or an old server does not know a field. What a watch brings is printed by the server at
//! its end. What was there before is read again here, beside the watch, and compared.
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, pending, ready};
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use watershed_protocol::{ResourceVersion, WireFormat};

use super::collect::stored_object;
use crate::backoff::{Backoff, PauseRange};
use crate::budget::{MemoryBudget, MemoryLoad};
use crate::scope::cached::ObjectsPrint;
use crate::store::{ObjectPeek, StoreReader, StoredObject};
use crate::upstream::{
    AnswerError, PrintedForm, PrintedObjects, ReflectorTarget, Release, ServedBy, UpstreamClient,
    release_of,
};

/// Scopes that learn at a time. A server that has just started serves them all.
pub(super) const LEARNERS: usize = 4;
/// Pauses after a question for the release that was not answered.
const QUESTIONS: PauseRange = PauseRange::new(Duration::from_secs(1), Duration::from_secs(15));
/// Pauses after a reading of all objects that failed. It costs more than a question.
const REREADINGS: PauseRange = PauseRange::new(Duration::from_secs(1), Duration::from_mins(5));
/// Pauses before a watch is opened again because its server cannot be asked. Behind a gateway that
/// ends each connection after its first request, none can. An API server's watches end about as
/// often as the longest.
const REOPENINGS: PauseRange = PauseRange::new(Duration::from_secs(1), Duration::from_hours(1));
/// Servers in a row that cannot be asked after which a restored state waits no longer.
const MAX_REOPENINGS: u32 = 4;
/// Pauses between two readings of a scope. A load balancer before two releases may lead each watch
/// to the other one.
const READINGS: PauseRange = PauseRange::new(Duration::from_secs(2), Duration::from_mins(5));
/// Readings with this many pauses between them are not the same upgrade.
const APART: u32 = 4;

/// A scope's store, and upstream, which can be read again to compare. Cheap to clone.
#[derive(Clone)]
pub(super) struct ReleaseContext {
    pub(super) client: UpstreamClient,
    pub(super) target: ReflectorTarget,
    pub(super) reader: StoreReader,
    pub(super) learners: Arc<Semaphore>,
    pub(super) budget: MemoryBudget,
    /// Shows others whether the objects are outdated.
    pub(super) print: Arc<ObjectsPrint>,
}

/// Knows which release printed the objects in memory, and compares it with the followed server's.
pub(super) struct ReleaseLearner {
    context: ReleaseContext,
    printed: PrintedBy,
    pace: ReadingPace,
    /// Counts the servers in a row that could not be asked.
    reopenings: Backoff,
    /// The newest event when the followed server was to be asked, until its release is known.
    unlearned: Option<ResourceVersion>,
    job: Option<BoxFuture<'static, LearnedRelease>>,
}

/// The origin of the objects in memory.
#[derive(Clone)]
enum PrintedBy {
    Unknown,
    /// A server whose release is not known yet.
    Server(ServedBy),
    /// A server of this release; `None` if it does not tell.
    Release(Option<Release>),
}

/// The result of a comparison.
pub(super) enum LearnedRelease {
    /// The objects in memory are printed by the followed server's release.
    Current(Option<Release>),
    /// They were printed by another release.
    Other {
        release: Option<Release>,
        form: PrintedForm,
        /// The objects that the followed server prints differently.
        objects: Vec<StoredObject>,
        /// Their memory, until they take the place of those in the scope.
        load: MemoryLoad,
    },
    /// They were printed by another release, and have to be listed again.
    Relist(Option<Release>),
    /// This server's connection takes no more requests, so that its release will not be known.
    Unaskable(ServedBy),
    /// The server has not answered in time, or several could not be asked.
    Unanswered,
}

/// The objects that a server prints differently than memory has them.
struct Reprints {
    form: PrintedForm,
    objects: Vec<StoredObject>,
    load: MemoryLoad,
}

/// The pauses between readings of all objects.
#[derive(Debug, Default)]
struct ReadingPace {
    last: Option<Instant>,
    /// Readings in a row before the last one, each soon after the one before it.
    before: u32,
}

/// A comparison of the objects in memory with those of the followed server.
struct ReleaseComparison {
    context: ReleaseContext,
    printed: PrintedBy,
    server: ServedBy,
    format: Arc<WireFormat>,
    not_before: Option<Instant>,
    /// The pause before a server that cannot be asked is given up.
    patience: Duration,
    /// The time for which a restored state waits for the release, if there is one.
    limit: Option<Duration>,
}

/// A server that cannot be asked for its release.
struct Unaskable(ServedBy);

impl ReleaseLearner {
    pub(super) fn new(context: ReleaseContext) -> Self {
        Self {
            context,
            printed: PrintedBy::Unknown,
            pace: ReadingPace::default(),
            reopenings: REOPENINGS.backoff(),
            unlearned: None,
            job: None,
        }
    }

    /// Notes that this server listed the objects in memory.
    pub(super) fn record_list(&mut self, by: Option<&ServedBy>) {
        self.context.print.set_outdated(false);
        self.unlearned = None;
        self.printed = by.map_or(PrintedBy::Unknown, |by| PrintedBy::Server(by.clone()));
        let (client, server) = (self.context.client.clone(), by.cloned());
        let patience = self.patience();
        self.job = server.map(|server| {
            let learn = async move {
                let release = release_when_answered(&client, &server, patience).await;
                release.map_or_else(LearnedRelease::from, LearnedRelease::Current)
            };
            learn.boxed()
        });
    }

    /// Notes that a server of this release printed the objects in memory.
    pub(super) fn record_restored(&mut self, by: Release) {
        self.printed = PrintedBy::Release(Some(by));
    }

    /// Notes that the scope is followed at this server. If it shows a restored state once the server's
    /// release is known, it waits for that for as long as `limit`.
    ///
    /// If the release of the one before was not learned, the events that it brought may be printed by
    /// another.
    pub(super) fn follow(
        &mut self,
        server: &ServedBy,
        format: &Arc<WireFormat>,
        limit: Option<Duration>,
    ) {
        let newest = self.context.reader.event_version();
        if self.unlearned.is_some_and(|before| before != newest) {
            self.printed = PrintedBy::Unknown;
        }
        self.unlearned = Some(newest);
        let comparison = ReleaseComparison {
            context: self.context.clone(),
            printed: self.printed.clone(),
            server: server.clone(),
            format: Arc::clone(format),
            not_before: self.pace.next(),
            patience: self.patience(),
            limit,
        };
        if limit.is_some() && self.reopenings.failures() >= MAX_REOPENINGS {
            self.job = Some(ready(LearnedRelease::Unanswered).boxed());
            return;
        }
        let learn = async move {
            comparison
                .learn()
                .await
                .unwrap_or_else(LearnedRelease::from)
        };
        self.job = Some(learn.boxed());
    }

    /// Returns the pause before a server that cannot be asked is given up. It grows with the servers in a
    /// row that could not.
    fn patience(&self) -> Duration {
        self.reopenings.clone().pause()
    }

    /// Asks no longer.
    pub(super) fn cancel(&mut self) {
        self.job = None;
    }

    /// Returns `true` if the followed server is being asked.
    pub(super) fn is_learning(&self) -> bool {
        self.job.is_some()
    }

    /// Returns what was learned. Cancelling a call loses nothing.
    pub(super) async fn learned(&mut self) -> LearnedRelease {
        let Some(job) = &mut self.job else {
            return pending().await;
        };
        let learned = job.await;
        self.job = None;
        let release = match &learned {
            LearnedRelease::Unaskable(_) => {
                self.reopenings.pause();
                return learned;
            }
            LearnedRelease::Unanswered => return learned,
            LearnedRelease::Current(release) => release,
            LearnedRelease::Other { release, .. } | LearnedRelease::Relist(release) => {
                self.pace.read();
                release
            }
        };
        self.reopenings.reset();
        self.unlearned = None;
        self.printed = PrintedBy::Release(release.clone());
        learned
    }

    /// Notes that what was learned is in memory.
    pub(super) fn mark_applied(&mut self) {
        self.context.print.set_outdated(false);
    }

    /// Notes that what was learned could not be put into memory.
    pub(super) fn mark_unapplied(&mut self) {
        self.printed = PrintedBy::Unknown;
    }
}

impl ReleaseComparison {
    async fn learn(self) -> Result<LearnedRelease, Unaskable> {
        let (client, server) = (&self.context.client, &self.server);
        let answer = release_when_answered(client, server, self.patience);
        let release = match self.limit {
            None => answer.await?,
            Some(limit) => match timeout(limit, answer).await {
                Ok(release) => release?,
                Err(_) => return Ok(LearnedRelease::Unanswered),
            },
        };
        let printed = match &self.printed {
            PrintedBy::Unknown => None,
            PrintedBy::Release(printed) => Some(printed.clone()),
            PrintedBy::Server(by) if by.is_same(&self.server) => Some(release.clone()),
            // Its connection may be closed. Nobody knows the release then.
            PrintedBy::Server(by) => release_of(client, by).await.ok(),
        };
        if printed.as_ref() == Some(&release) {
            self.context.print.set_outdated(false);
            return Ok(LearnedRelease::Current(release));
        }
        self.context.print.set_outdated(true);
        if let Some(moment) = self.not_before {
            sleep_until(moment).await;
        }
        let mut pauses = REREADINGS.backoff();
        let read = loop {
            let permit = self.context.learners.acquire().await;
            let read = self.read().await;
            drop(permit);
            match read {
                Ok(read) => break read,
                Err(error) => pause_after(&error, &mut pauses).await,
            }
        };
        let resource = &self.context.target.gvr;
        Ok(match read {
            Some(Reprints { form, .. }) if !form.fits => {
                tracing::info!(%resource, "upstream's release has another wire format");
                LearnedRelease::Relist(release)
            }
            Some(Reprints {
                form,
                objects,
                load,
            }) => LearnedRelease::Other {
                release,
                form,
                objects,
                load,
            },
            // A list is given room, or the scope is closed.
            None => {
                tracing::info!(%resource, "memory is short for what upstream's release prints anew");
                LearnedRelease::Relist(release)
            }
        })
    }

    /// Reads all objects. Returns those that memory has in the same version and in other bytes;
    /// `None` if they do not fit into memory. They may be as many as there are.
    async fn read(&self) -> Result<Option<Reprints>, AnswerError> {
        let known = self.context.reader.followed();
        let (mut objects, mut peek) = (Vec::new(), ObjectPeek::default());
        let (mut load, mut fits) = (self.context.budget.begin_load(), true);
        let upstream = PrintedObjects::new(
            &self.context.client,
            &self.server,
            self.context.target.clone(),
        );
        let take = |bytes: &_, scanned: watershed_protocol::Scanned| {
            let Some(held) = known.get(scanned.attributes.key()) else {
                return true;
            };
            let object = stored_object(&self.format, bytes, scanned);
            let bytes = object.bytes.get();
            if held.version == object.version && peek.bytes(held) != bytes {
                fits = load.add(bytes.len()).is_ok();
                // Alone, so that it does not keep the whole page.
                objects.push(StoredObject {
                    bytes: bytes.detached().into(),
                    ..object
                });
            }
            fits
        };
        let average = self.context.reader.stats().average_bytes();
        let form = upstream.read(&self.format, average, take).await?;
        Ok(fits.then_some(Reprints {
            form,
            objects,
            load,
        }))
    }
}

impl From<Unaskable> for LearnedRelease {
    fn from(Unaskable(server): Unaskable) -> Self {
        Self::Unaskable(server)
    }
}

impl ReadingPace {
    /// Returns the earliest moment of the next reading; `None` if it may begin at once.
    fn next(&self) -> Option<Instant> {
        self.last.map(|last| last + READINGS.after(self.before))
    }

    /// Notes a reading.
    fn read(&mut self) {
        let now = Instant::now();
        let pause = READINGS.after(self.before);
        let is_again = self.last.is_some_and(|last| now - last < pause * APART);
        self.before = if is_again {
            self.before.saturating_add(1)
        } else {
            0
        };
        self.last = Some(now);
    }
}

/// Returns the release of a server, which is asked until it answers. Gives up after `patience`, once its
/// connection takes no more requests.
async fn release_when_answered(
    client: &UpstreamClient,
    server: &ServedBy,
    patience: Duration,
) -> Result<Option<Release>, Unaskable> {
    let mut pauses = QUESTIONS.backoff();
    loop {
        match release_of(client, server).await {
            Ok(release) => return Ok(release),
            Err(_) if !server.takes_requests() => {
                sleep(patience).await;
                return Err(Unaskable(server.clone()));
            }
            Err(error) => pause_after(&error, &mut pauses).await,
        }
    }
}

async fn pause_after(error: &AnswerError, pauses: &mut Backoff) {
    tracing::debug!(%error, "cannot learn how upstream prints a type");
    sleep(pauses.pause()).await;
}

#[cfg(test)]
mod tests {
    use std::time::Instant as StdInstant;

    use bytes::Bytes;
    use http::Request;
    use watershed_protocol::{
        Encoding, EventKind, FieldTable, Frame, GroupVersionResource, ManagedFields,
        Representation, scan,
    };

    use super::*;
    use crate::body;
    use crate::store::{Layout, Snapshot, WindowLimits};
    use crate::test_support::{Api, HTTP2, Pki, text, upstream_of};
    use crate::upstream::{ConnectionClass, SendOptions};

    const LIST: &str = concat!(
        r#"{"kind":"PodList","apiVersion":"v1","#,
        r#""metadata":{"resourceVersion":"9"},"items":[]}"#,
        "\n"
    );
    const POD: &str = concat!(
        r#"{"kind":"Pod","apiVersion":"v1","#,
        r#""metadata":{"name":"a","namespace":"n","resourceVersion":"10"}}"#
    );

    #[tokio::test]
    async fn events_of_a_server_whose_release_was_not_learned_may_be_of_another() {
        let pki = Pki::new();
        let api = Api::start(&pki, HTTP2, |_, _| async { text("no version") }).await;
        let client = UpstreamClient::new(&upstream_of(&pki, &api).await);
        let request = Request::get("/").body(body::empty()).unwrap();
        let answer = client.send(ConnectionClass::Watch, request, SendOptions::default());
        let server: ServedBy = answer.await.unwrap().extensions().get().cloned().unwrap();
        let list = Bytes::from_static(LIST.as_bytes());
        let (format, _) = WireFormat::learn(Encoding::Json, "Pod", &list).unwrap();
        let format = Arc::new(format);
        let (mut writer, reader) = crate::store::new(WindowLimits {
            age: Duration::from_mins(1),
            least: 0,
            bytes: 1 << 20,
        });
        let layout = Layout {
            format: Arc::clone(&format),
            indexed: None,
        };
        writer.replace(Snapshot::new(ResourceVersion(9), layout, []));
        let gvr = GroupVersionResource::new("", "v1", "pods");
        let fields = Arc::new(FieldTable::builtin(&gvr, true).unwrap());
        let mut learner = ReleaseLearner::new(ReleaseContext {
            client,
            target: ReflectorTarget {
                gvr,
                selection: Arc::default(),
                kind: "Pod".into(),
                representation: Representation::whole(Encoding::Json),
                fields: Arc::clone(&fields),
                managed_fields: ManagedFields::Keep,
            },
            reader,
            learners: Arc::new(Semaphore::new(LEARNERS)),
            budget: MemoryBudget::default(),
            print: Arc::default(),
        });
        let release = serde_json::from_str(r#"{"gitVersion":"v1.37.1"}"#).unwrap();
        learner.record_restored(release);
        for _ in 0..2 {
            learner.follow(&server, &format, None);
            assert!(matches!(learner.printed, PrintedBy::Release(_)));
        }
        let scanned = scan(Encoding::Json, POD.as_bytes(), &fields).unwrap();
        let bytes = format.item_bytes(&POD.into());
        let event = format.event(EventKind::Added, &bytes);
        let frame = Frame {
            kind: EventKind::Added,
            object: event.clone(),
            frame: event,
        };
        let object = StoredObject {
            bytes: bytes.into(),
            version: scanned.version,
            attributes: scanned.attributes,
        };
        writer.apply(StdInstant::now(), frame, object).unwrap();
        learner.follow(&server, &format, None);
        assert!(matches!(learner.printed, PrintedBy::Unknown));
    }

    #[tokio::test(start_paused = true)]
    async fn readings_become_rarer_while_two_releases_take_turns() {
        let mut pace = ReadingPace::default();
        assert_eq!(pace.next(), None, "the first upgrade is noticed at once");
        let begin = Instant::now();
        let mut readings = 0;
        while begin.elapsed() < Duration::from_hours(24) {
            // Each watch lasts for a second.
            tokio::time::advance(Duration::from_secs(1)).await;
            if pace.next().is_none_or(|next| next <= Instant::now()) {
                pace.read();
                readings += 1;
            }
        }
        let rarest = 24 * 60 / 5;
        assert!((rarest..rarest + 20).contains(&readings), "{readings}");
        // Another upgrade, the next day.
        tokio::time::advance(Duration::from_hours(24)).await;
        pace.read();
        assert_eq!(pace.next(), Some(Instant::now() + READINGS.first));
    }
}
