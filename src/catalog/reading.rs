//! Reads discovery regularly, and soon after a sign that it has changed.
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::time::{Instant, sleep_until};

use super::discovery::{self, DiscoveredType, ReadDocuments};
use super::discovery_error::DiscoveryError;
use super::origin::Origins;
use super::well_known::well_known_types;
use crate::upstream::{Backoff, ServedBy, UpstreamClient};

/// Interval between readings. Custom types are followed without waiting for it.
pub(super) const REFRESH: Duration = Duration::from_mins(1);
/// The same where only built-in types matter. They change with upstream's release, which is noticed
/// otherwise, and proxies of thousands of nodes read them.
const REFRESH_OF_BUILT_IN: Duration = Duration::from_hours(1);
/// The earliest first reading where well-known types alone matter, as a part of the interval. The
/// latest is a whole interval after the start, so that the proxies of all nodes, which may start
/// together, do not read together.
const FIRST_OF_WELL_KNOWN: f64 = 0.1;
/// First and longest pause after a reading that failed.
const RETRIES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(5));
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

impl Reading {
    /// Returns the reading of an upstream that has no types.
    pub(super) fn empty() -> Self {
        Self {
            types: Vec::new(),
            origins: Origins::NotRead,
        }
    }

    /// Returns what a reading of each upstream has in it.
    pub(super) fn well_known() -> Self {
        Self {
            types: well_known_types(),
            origins: Origins::NotRead,
        }
    }
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
        NeededTypes::All => RETRIES.1,
        NeededTypes::BuiltIn | NeededTypes::WellKnown => LONGEST_OF_BUILT_IN,
    }
}

/// Reads discovery.
pub(super) struct DiscoveryReader {
    client: UpstreamClient,
    needed: NeededTypes,
    /// Interval between readings.
    pub(super) refresh: Duration,
    retries: Backoff,
    /// The moment of the next reading, if there is no sign before.
    due: Instant,
    sign: Option<ChangeSign>,
    /// The last moment of a reading because of a sign.
    last_sign: Option<Instant>,
    documents: ReadDocuments,
    job: Option<ReadingJob>,
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
    /// The server to ask, as it is another one than before.
    server: ServedBy,
}

impl DiscoveryReader {
    /// Creates a reader whose first reading is due.
    pub(super) fn new(client: UpstreamClient) -> Self {
        Self {
            client,
            needed: NeededTypes::All,
            refresh: REFRESH,
            retries: Backoff::new(RETRIES.0, RETRIES.1),
            due: Instant::now(),
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

    /// Returns the types that matter.
    pub(super) fn needed(&self) -> NeededTypes {
        self.needed
    }

    /// Puts the first reading off, unless there is a sign before.
    pub(super) fn put_off(&mut self) {
        let part = FIRST_OF_WELL_KNOWN + fastrand::f64() * (1.0 - FIRST_OF_WELL_KNOWN);
        self.due = Instant::now() + self.refresh.mul_f64(part);
        self.begun();
    }

    /// Forgets failures, once types are known.
    fn begun(&mut self) {
        self.retries = Backoff::new(RETRIES.0, longest_pause(self.needed));
    }

    /// Reads everything at once. A reading that is under way does not count.
    pub(super) fn read_anew(&mut self) {
        let now = Instant::now();
        if let Some(server) = self.job.take().and_then(|job| job.server) {
            self.sign.get_or_insert(ChangeSign { at: now, server });
        }
        self.documents = ReadDocuments::default();
        self.due = now;
    }

    /// Reads soon, at this server: scopes are followed there now, and it runs another release.
    pub(super) fn read_at(&mut self, server: &ServedBy) {
        let now = Instant::now();
        let earliest = self.last_sign.map_or(now, |last| last + SIGNS);
        let at = self.sign.as_ref().map_or_else(
            || (now + SETTLE).max(earliest),
            // More signs do not put it off.
            |sign| sign.at,
        );
        self.sign = Some(ChangeSign {
            at,
            server: server.clone(),
        });
    }

    /// Returns the next reading, once it is due. Cancelling a call loses nothing.
    ///
    /// A sign counts until a reading succeeds. If its server took no more requests by then, another one
    /// may have answered, and the next reading is soon.
    pub(super) async fn next(&mut self) -> Result<Reading, DiscoveryError> {
        if self.job.is_none() {
            let at = self.sign.as_ref().map(|sign| sign.at);
            sleep_until(at.map_or(self.due, |at| at.min(self.due))).await;
        }
        let job = self.job.get_or_insert_with(|| {
            let is_due = |sign: &mut ChangeSign| sign.at <= Instant::now();
            let server = self.sign.take_if(is_due).map(|sign| sign.server);
            let client = match &server {
                Some(server) => {
                    self.last_sign = Some(Instant::now());
                    self.client.beside(server)
                }
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
        let pause = if read.is_ok() {
            self.begun();
            let is_certain = server.as_ref().is_none_or(ServedBy::takes_requests);
            let interval = if is_certain { self.refresh } else { REFRESH };
            interval.mul_f64(0.9 + fastrand::f64() / 5.0)
        } else {
            let pause = self.retries.pause();
            // A newer sign is of a server that is followed more recently.
            self.sign = self.sign.take().or_else(|| {
                let at = Instant::now() + pause;
                server.map(|server| ChangeSign { at, server })
            });
            pause
        };
        self.due = Instant::now() + pause;
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
    use crate::test_support::{Api, HTTP2, Pki, text, upstream_of};
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
            assert!(reader.next().await.is_err());
            let asked = std::mem::take(&mut *asked.lock());
            let is_followed = asked.iter().all(|it| *it == connections[1]);
            assert!(is_followed && !asked.is_empty(), "{attempt}: {asked:?}");
        }
    }

    #[test]
    fn readings_that_fail_again_and_again_become_rare_where_built_in_types_matter() {
        for needed in [NeededTypes::BuiltIn, NeededTypes::WellKnown] {
            assert!(
                longest_pause(needed) >= Duration::from_mins(1),
                "{needed:?}"
            );
        }
        assert_eq!(longest_pause(NeededTypes::All), RETRIES.1);
    }
}
