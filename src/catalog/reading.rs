//! Reads discovery regularly, and soon after a sign that it has changed.
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::time::{Instant, sleep_until};

use super::discovery::{self, DiscoveredType, ReadDocuments};
use super::discovery_error::DiscoveryError;
use super::origin::Origins;
use crate::backoff::{Backoff, PauseRange};
use crate::upstream::{ServedBy, UpstreamClient};

/// Interval between readings. Custom types are followed without waiting for it.
pub(super) const REFRESH: Duration = Duration::from_mins(1);
/// The same while the APIServices are followed. They announce groups that come and go, but not types of
/// a group that an API server has for a flag.
const REFRESH_OF_FOLLOWED: Duration = Duration::from_mins(10);
/// The same where only built-in types matter. They change with upstream's release, which is noticed
/// otherwise, and proxies of thousands of nodes read them.
const REFRESH_OF_BUILT_IN: Duration = Duration::from_hours(1);
/// Time after a sign for which discovery is read as often as without a watch: other API servers may
/// change one after the other.
const ALERT: Duration = Duration::from_mins(10);
/// The earliest first reading where well-known types alone matter, as a part of the interval. The
/// latest is a whole interval after the start, so that the proxies of all nodes, which may start
/// together, do not read together.
const FIRST_OF_WELL_KNOWN: f64 = 0.1;
/// Pauses after a reading that failed.
const RETRIES: PauseRange = PauseRange::new(Duration::from_secs(1), Duration::from_secs(5));
/// Longest pause where built-in types alone matter and some are known. If a right is missing, the
/// proxies of all nodes go on asking.
const LONGEST_OF_BUILT_IN: Duration = Duration::from_mins(5);
/// Time to wait after a sign: the other scopes notice another release at the same time.
const SETTLE: Duration = Duration::from_millis(500);
/// Interval between readings because of a sign. Behind a load balancer, each watch may lead to
/// another release.
const SIGNS: Duration = Duration::from_secs(10);

/// The types that discovery named.
#[derive(Debug)]
pub(super) struct Reading {
    pub(super) types: Vec<DiscoveredType>,
    pub(super) origins: Origins,
}

/// A reading, with the documents for the next one.
type DocumentedReading = (Reading, ReadDocuments);

/// The types that may be cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NeededTypes {
    /// All types. Custom ones are known by their definitions, which can be the largest part of what
    /// is followed.
    All,
    /// The types that are compiled into kube-apiserver. It is known which those are.
    BuiltIn,
    /// Types that each API server has. Nothing has to be read before they are cached.
    WellKnown,
}

/// Reads all types, and the servers that answer for them if those matter.
async fn read(
    client: UpstreamClient,
    mut documents: ReadDocuments,
    needed: NeededTypes,
) -> Result<DocumentedReading, DiscoveryError> {
    let types = discovery::read(&client, &mut documents).await?;
    let origins = match needed {
        // Read afterwards: what was discovered of another server has its APIService by then.
        NeededTypes::All => Origins::read(&client).await?,
        NeededTypes::BuiltIn | NeededTypes::WellKnown => Origins::NotRead,
    };
    Ok((Reading { types, origins }, documents))
}

/// Returns the longest pause between attempts, once types are known.
fn longest_pause(needed: NeededTypes) -> Duration {
    match needed {
        NeededTypes::All => RETRIES.longest,
        NeededTypes::BuiltIn | NeededTypes::WellKnown => LONGEST_OF_BUILT_IN,
    }
}

/// Reads discovery.
pub(super) struct DiscoveryReader {
    client: UpstreamClient,
    needed: NeededTypes,
    /// A watch brings the APIServices, too.
    follows_services: bool,
    /// Aggregated types are cached, too. They change without a sign.
    has_aggregated: bool,
    /// Interval between readings.
    pub(super) refresh: Duration,
    retries: Backoff,
    next: NextReading,
    sign: Option<ChangeSign>,
    /// The last moment of a reading because of a sign.
    last_sign: Option<Instant>,
    documents: ReadDocuments,
    job: Option<ReadingJob>,
}

/// The moment of the next reading, if there is no sign before.
#[derive(Clone, Copy)]
enum NextReading {
    /// At this moment.
    At(Instant),
    /// About an interval after the last one.
    Regular {
        last: Instant,
        /// The part of the interval to wait.
        part: f64,
    },
}

/// A reading that is under way.
struct ReadingJob {
    read: BoxFuture<'static, Result<DocumentedReading, DiscoveryError>>,
    /// The server that is to answer, if there was a sign.
    server: Option<ServedBy>,
}

/// A sign that discovery has changed.
struct ChangeSign {
    /// Discovery is read at this moment.
    at: Instant,
    /// The server to ask, if it is another one than before.
    server: Option<ServedBy>,
}

impl DiscoveryReader {
    /// Creates a reader whose first reading is due.
    pub(super) fn new(client: UpstreamClient) -> Self {
        Self {
            client,
            needed: NeededTypes::All,
            follows_services: false,
            has_aggregated: false,
            refresh: REFRESH,
            retries: RETRIES.backoff(),
            next: NextReading::At(Instant::now()),
            sign: None,
            last_sign: None,
            documents: ReadDocuments::default(),
            job: None,
        }
    }

    /// Reads what concerns these types from now on. Built-in types are read less often: they change
    /// with upstream's release, which is a reason to read at once.
    pub(super) fn need(&mut self, needed: NeededTypes) {
        self.needed = needed;
        self.refresh = match needed {
            NeededTypes::All => REFRESH,
            NeededTypes::BuiltIn | NeededTypes::WellKnown => REFRESH_OF_BUILT_IN,
        };
    }

    /// Goes on reading each minute while the APIServices are followed, too, as aggregated types are
    /// cached.
    pub(super) fn need_aggregated(&mut self) {
        self.has_aggregated = true;
    }

    /// Reads less often, as a watch brings the APIServices.
    pub(super) fn services_are_followed(&mut self) {
        self.follows_services = true;
    }

    /// Returns `true` if a watch brings the APIServices.
    pub(super) fn follows_services(&self) -> bool {
        self.follows_services
    }

    /// Reads often again, beginning at once, as the APIServices cannot be followed.
    pub(super) fn services_are_lost(&mut self) {
        self.follows_services = false;
        self.read_now();
    }

    /// Reads soon, as the APIServices have changed.
    pub(super) fn services_changed(&mut self) {
        if self.sign.is_none() {
            let at = self.earliest_of_sign();
            self.sign = Some(ChangeSign { at, server: None });
        }
    }

    /// Returns the types that matter.
    pub(super) fn needed(&self) -> NeededTypes {
        self.needed
    }

    /// Puts the first reading off, unless there is a sign before.
    pub(super) fn put_off(&mut self) {
        let part = FIRST_OF_WELL_KNOWN + fastrand::f64() * (1.0 - FIRST_OF_WELL_KNOWN);
        let last = Instant::now();
        self.next = NextReading::Regular { last, part };
        self.begun();
    }

    /// Returns the moment of the next reading, if there is no sign before.
    fn due(&self) -> Instant {
        let interval = if self.follows_services && !self.has_aggregated && !self.is_alert() {
            self.refresh.max(REFRESH_OF_FOLLOWED)
        } else {
            self.refresh
        };
        match self.next {
            NextReading::At(at) => at,
            NextReading::Regular { last, part } => last + interval.mul_f64(part),
        }
    }

    fn is_alert(&self) -> bool {
        self.last_sign.is_some_and(|last| last.elapsed() < ALERT)
    }

    /// Returns the earliest moment to read because of a sign that is there now.
    fn earliest_of_sign(&self) -> Instant {
        let settled = Instant::now() + SETTLE;
        self.last_sign
            .map_or(settled, |last| settled.max(last + SIGNS))
    }

    /// Forgets failures, once types are known.
    fn begun(&mut self) {
        self.retries = PauseRange::new(RETRIES.first, longest_pause(self.needed)).backoff();
    }

    /// Reads everything at once. A reading that is under way does not count.
    pub(super) fn read_anew(&mut self) {
        self.documents = ReadDocuments::default();
        self.follows_services = false;
        self.read_now();
    }

    /// Reads at once. A reading that is under way does not count.
    fn read_now(&mut self) {
        let now = Instant::now();
        let server = self.job.take().and_then(|job| job.server);
        self.repeat_sign(server, now);
        self.next = NextReading::At(now);
    }

    /// Keeps the server of a sign whose reading did not succeed, unless there is a newer sign of another
    /// one: that is followed more recently.
    fn repeat_sign(&mut self, server: Option<ServedBy>, at: Instant) {
        match &mut self.sign {
            Some(newer) => newer.server = newer.server.take().or(server),
            None if server.is_some() => self.sign = Some(ChangeSign { at, server }),
            None => {}
        }
    }

    /// Reads soon, at this server: scopes are followed there now, and it runs another release.
    pub(super) fn read_at(&mut self, server: &ServedBy) {
        // More signs do not put it off.
        let sign = self.sign.as_ref().map(|sign| sign.at);
        let at = sign.unwrap_or_else(|| self.earliest_of_sign());
        self.sign = Some(ChangeSign {
            at,
            server: Some(server.clone()),
        });
    }

    /// Returns the next reading, once it is due. Cancelling a call loses nothing.
    ///
    /// A sign counts until a reading succeeds. If its server took no more requests by then, another one
    /// may have answered, and the next reading is soon.
    pub(super) async fn next(&mut self) -> Result<Reading, DiscoveryError> {
        if self.job.is_none() {
            let at = self.sign.as_ref().map(|sign| sign.at);
            let due = self.due();
            sleep_until(at.map_or(due, |at| at.min(due))).await;
        }
        let job = self.job.get_or_insert_with(|| {
            let is_due = |sign: &mut ChangeSign| sign.at <= Instant::now();
            let sign = self.sign.take_if(is_due);
            if sign.is_some() {
                self.last_sign = Some(Instant::now());
            }
            let server = sign.and_then(|sign| sign.server);
            let client = match &server {
                Some(server) => self.client.beside(server),
                None => self.client.clone(),
            };
            let read = read(client, self.documents.clone(), self.needed);
            ReadingJob {
                read: read.boxed(),
                server,
            }
        });
        let read = (&mut job.read).await;
        let server = self.job.take().and_then(|job| job.server);
        let read = read.map(|(reading, documents)| {
            self.documents = documents;
            reading
        });
        let now = Instant::now();
        self.next = if read.is_ok() {
            self.begun();
            let part = 0.9 + fastrand::f64() / 5.0;
            if server.as_ref().is_none_or(ServedBy::takes_requests) {
                NextReading::Regular { last: now, part }
            } else {
                NextReading::At(now + REFRESH.mul_f64(part))
            }
        } else {
            let pause = self.retries.pause();
            self.repeat_sign(server, now + pause);
            NextReading::At(now + pause)
        };
        read
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use http::{Request, StatusCode};
    use parking_lot::Mutex;

    use super::*;
    use crate::body;
    use crate::test_support::{Api, HTTP2, Pki, soon, text, upstream_of};
    use crate::upstream::{ConnectionClass, SendOptions};

    #[tokio::test]
    async fn a_reading_that_failed_is_repeated_at_the_server_of_the_sign() {
        let pki = Pki::new();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&asked);
        let api = Api::start(&pki, HTTP2, move |_, connection| {
            log.lock().push(connection.number);
            let mut answer = text("not now");
            *answer.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
            async move { answer }
        })
        .await;
        let client = UpstreamClient::new(&upstream_of(&pki, &api).await);
        let send = async |class| {
            let request = Request::get("/").body(body::empty()).unwrap();
            let answer = client.send(class, request, SendOptions::default()).await;
            answer.unwrap().extensions().get::<ServedBy>().cloned()
        };
        send(ConnectionClass::Short).await;
        let followed = send(ConnectionClass::Watch).await.unwrap();
        let connections = std::mem::take(&mut *asked.lock());
        assert_ne!(connections[0], connections[1]);
        let mut reader = DiscoveryReader::new(client);
        reader.need(NeededTypes::WellKnown);
        reader.put_off();
        reader.read_at(&followed);
        for attempt in 0..2 {
            assert!(soon(reader.next()).await.is_err());
            let asked = std::mem::take(&mut *asked.lock());
            let is_followed = asked.iter().all(|it| *it == connections[1]);
            assert!(is_followed && !asked.is_empty(), "{attempt}: {asked:?}");
        }
        // A sign of its time without a server takes nothing from it.
        reader.sign = None;
        reader.services_changed();
        reader.repeat_sign(Some(followed.clone()), Instant::now());
        let server = reader.sign.unwrap().server;
        assert!(server.is_some_and(|server| server.is_same(&followed)));
    }

    #[tokio::test]
    async fn discovery_is_read_more_often_once_the_services_cannot_be_followed() {
        let pki = Pki::new();
        let api = Api::start(&pki, HTTP2, |_, _| async { text(r#"{"items":[]}"#) }).await;
        let mut reader = DiscoveryReader::new(UpstreamClient::new(&upstream_of(&pki, &api).await));
        let is_often = |reader: &DiscoveryReader| reader.due() < Instant::now() + REFRESH * 2;
        soon(reader.next()).await.unwrap();
        assert!(is_often(&reader));
        reader.services_are_followed();
        assert!(!is_often(&reader));
        reader.services_changed();
        soon(reader.next()).await.unwrap();
        // Other API servers may follow.
        assert!(is_often(&reader));
        reader.last_sign = None;
        assert!(!is_often(&reader));
        reader.services_are_lost();
        soon(reader.next()).await.unwrap();
        assert!(is_often(&reader));
        reader.services_are_followed();
        reader.read_anew();
        soon(reader.next()).await.unwrap();
        assert!(is_often(&reader));
        // Aggregated types change without a sign.
        reader.need_aggregated();
        reader.services_are_followed();
        assert!(is_often(&reader));
    }

    #[test]
    fn readings_that_fail_again_and_again_become_rare_where_built_in_types_matter() {
        for needed in [NeededTypes::BuiltIn, NeededTypes::WellKnown] {
            assert!(
                longest_pause(needed) >= Duration::from_mins(1),
                "{needed:?}"
            );
        }
        assert_eq!(longest_pause(NeededTypes::All), RETRIES.longest);
    }
}
