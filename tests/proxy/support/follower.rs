//! A client that lists and watches for ever, as an informer does, and records all that it receives.
//! The [`WriteHistory`] judges it.
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::bail;
use bytes::Bytes;
use http::{Request, StatusCode};
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio_util::task::AbortOnDropHandle;

use super::client::{Connection, Endpoint, Next, Protocol, nothing, within};
use super::fixture::{Fixture, small};
use super::history::{Event, Interest, WriteHistory, compare};
use super::waiting::eventually;

/// The way in which a follower gets the initial state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Opening {
    List,
    WatchList,
}

/// An initial state and the events of the watches after it. A broken watch is resumed. A new track
/// begins only after 410.
#[derive(Clone, Debug, Default)]
pub(crate) struct Track {
    /// The version of the initial state.
    pub(crate) start: u64,
    pub(crate) initial: BTreeMap<String, Bytes>,
    pub(crate) events: Vec<Event>,
    /// The newest version received.
    pub(crate) version: u64,
    /// It ended with 410 Expired.
    pub(crate) expired: bool,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Log {
    pub(crate) tracks: Vec<Track>,
    /// The ends of streams without 410.
    pub(crate) ends: Vec<Next>,
    /// Requests that failed.
    pub(crate) failures: Vec<String>,
}

pub(crate) struct Follower {
    name: String,
    interest: Interest,
    log: Arc<Mutex<Log>>,
    _task: AbortOnDropHandle<()>,
}

struct Client {
    interest: Interest,
    opening: Opening,
    connection: Connection,
    log: Arc<Mutex<Log>>,
}

#[derive(Deserialize)]
struct List {
    metadata: Metadata,
    items: Vec<Box<RawValue>>,
}

#[derive(Deserialize)]
struct Line {
    r#type: String,
    object: Object,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Object {
    metadata: Metadata,
    /// The fields of a Status.
    code: u16,
    message: String,
    reason: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Metadata {
    name: String,
    namespace: String,
    resource_version: String,
    annotations: BTreeMap<String, String>,
}

impl Follower {
    pub(crate) fn start(connection: &Connection, interest: Interest, opening: Opening) -> Self {
        let log = Arc::<Mutex<Log>>::default();
        let client = Client {
            interest: interest.clone(),
            opening,
            connection: connection.clone(),
            log: Arc::clone(&log),
        };
        let name = format!("{interest:?} by {opening:?}");
        Self {
            name,
            interest,
            log,
            _task: AbortOnDropHandle::new(tokio::spawn(client.run())),
        }
    }

    /// Starts `count` followers with mixed interests: a third on shared HTTP/2 connections, a third
    /// on their own, a third by HTTP/1.1.
    pub(crate) async fn crowd(endpoint: &Endpoint, count: usize) -> Vec<Self> {
        let shared = endpoint.connect(Protocol::Http2).await.unwrap();
        let mut crowd = Vec::new();
        for n in 0..count {
            let connection = match n % 3 {
                0 => shared.clone(),
                1 => endpoint.connect(Protocol::Http2).await.unwrap(),
                _ => endpoint.connect(Protocol::Http1).await.unwrap(),
            };
            let opening = if n % 2 == 0 {
                Opening::List
            } else {
                Opening::WatchList
            };
            crowd.push(Self::start(&connection, Interest::nth(n), opening));
        }
        for follower in &crowd {
            follower.synced().await;
        }
        crowd
    }

    pub(crate) fn log(&self) -> Log {
        self.log.lock().clone()
    }

    pub(crate) async fn synced(&self) {
        eventually(&self.name, async || {
            let log = self.log.lock();
            if log.tracks.is_empty() {
                Err(format!("no first state: {:?}", log.failures))
            } else {
                Ok(())
            }
        })
        .await;
    }

    /// Waits until the follower has received everything up to now. Panics if anything was wrong.
    pub(crate) async fn judge(&self, history: &WriteHistory) {
        eventually(&self.name, async || {
            verdict(&self.log.lock(), &self.interest, history)
        })
        .await;
    }

    /// Like [`Follower::judge`]. Panics also if anything interrupted the follower.
    pub(crate) async fn judge_undisturbed(&self, history: &WriteHistory) {
        self.judge(history).await;
        let log = self.log.lock();
        assert_eq!(log.tracks.len(), 1, "{} had to start over", self.name);
        assert_eq!(log.ends, [], "{} was ended", self.name);
        assert_eq!(log.failures, [""; 0], "{} failed", self.name);
    }
}

/// Checks that a client received exactly the events of the history, up to now.
fn verdict(log: &Log, interest: &Interest, history: &WriteHistory) -> Result<(), String> {
    let Some(last) = log.tracks.len().checked_sub(1) else {
        return Err(format!("no first state: {:?}", log.failures));
    };
    for (n, track) in log.tracks.iter().enumerate() {
        if track.initial != history.at(interest, track.start) {
            return Err(format!("the state at {} is wrong", track.start));
        }
        let up_to = match track.events.last() {
            _ if n == last => u64::MAX,
            Some(event) => event.version,
            None => track.start,
        };
        compare(
            &history.between(interest, track.start, up_to),
            &track.events,
        )
        .map_err(|why| format!("{why}; ends {:?}, failures {:?}", log.ends, log.failures))?;
        if track.expired != (n < last) {
            return Err(format!(
                "track {n} of {} ended with 410: {}",
                last + 1,
                track.expired
            ));
        }
    }
    Ok(())
}

impl Client {
    async fn run(self) {
        loop {
            if let Err(error) = self.round().await {
                self.log.lock().failures.push(format!("{error:#}"));
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }

    async fn round(&self) -> anyhow::Result<()> {
        let resume = self
            .log
            .lock()
            .tracks
            .last()
            .filter(|t| !t.expired)
            .map(|t| t.version);
        match resume {
            Some(version) => self.watch(version, None).await,
            None if self.opening == Opening::List => self.list().await,
            None => self.watch(0, Some(Track::default())).await,
        }
    }

    async fn list(&self) -> anyhow::Result<()> {
        let path = format!(
            "{}?resourceVersion=0{}",
            self.interest.path(),
            self.interest.selector()
        );
        let answer = self
            .connection
            .read(Request::get(path).body(nothing())?)
            .await?;
        if answer.status != StatusCode::OK {
            bail!("{answer:?}");
        }
        let list: List = serde_json::from_slice(&answer.body)?;
        let start = list.metadata.resource_version.parse()?;
        let mut initial = BTreeMap::new();
        for item in list.items {
            let object: Object = serde_json::from_str(item.get())?;
            // Items of a list lack the kind and version that the list names once.
            let whole = item
                .get()
                .replacen('{', r#"{"kind":"Pod","apiVersion":"v1","#, 1);
            initial.insert(object.key(), Bytes::from(whole));
        }
        let track = Track {
            start,
            initial,
            version: start,
            ..Track::default()
        };
        self.log.lock().tracks.push(track);
        Ok(())
    }

    /// Watches from a version. With a `building` track the watch begins with the initial state.
    async fn watch(&self, version: u64, mut building: Option<Track>) -> anyhow::Result<()> {
        let first = if building.is_some() {
            "&sendInitialEvents=true&resourceVersionMatch=NotOlderThan"
        } else {
            ""
        };
        let path = format!(
            "{}?watch=1&allowWatchBookmarks=true&resourceVersion={version}{first}{}",
            self.interest.path(),
            self.interest.selector()
        );
        let mut lines = self.connection.watch(&path).await?;
        loop {
            let line = match lines.next().await {
                Next::Line(line) => line,
                end => {
                    self.log.lock().ends.push(end);
                    return Ok(());
                }
            };
            let parsed: Line = serde_json::from_slice(&line)?;
            let object = parsed.object;
            if parsed.r#type == "ERROR" {
                if object.code != 410 || object.reason != "Expired" {
                    bail!("{} {}", object.code, object.message);
                }
                let end = within("the end after 410", lines.next()).await;
                let mut log = self.log.lock();
                if let Some(track) = log.tracks.last_mut() {
                    track.expired = true;
                }
                if end != Next::End {
                    log.ends.push(end);
                }
                return Ok(());
            }
            let version: u64 = object.metadata.resource_version.parse()?;
            let mark = object
                .metadata
                .annotations
                .contains_key("k8s.io/initial-events-end");
            if let Some(track) = &mut building {
                match parsed.r#type.as_str() {
                    "ADDED" => {
                        let bytes =
                            line.slice(br#"{"type":"ADDED","object":"#.len()..line.len() - 2);
                        track.initial.insert(object.key(), bytes);
                    }
                    "BOOKMARK" if mark => {
                        (track.start, track.version) = (version, version);
                        self.log.lock().tracks.extend(building.take());
                    }
                    other => bail!("{other} before the end of the first state"),
                }
                continue;
            }
            let mut log = self.log.lock();
            let Some(track) = log.tracks.last_mut() else {
                bail!("an event without a state")
            };
            track.version = track.version.max(version);
            if parsed.r#type != "BOOKMARK" {
                track.events.push(Event {
                    kind: parsed.r#type,
                    key: object.key(),
                    version,
                    line,
                });
            }
        }
    }
}

impl Object {
    fn key(&self) -> String {
        format!("{}/{}", self.metadata.namespace, self.metadata.name)
    }
}

/// This test uses no proxy, because it tests the judge.
#[tokio::test]
async fn the_judge_finds_every_planted_fault_in_a_view() {
    let fixture = Fixture::start(small()).await;
    let history = WriteHistory::new(fixture.upstream.state(), 1);
    let connection = fixture.direct.connect(Protocol::Http2).await.unwrap();
    for opening in [Opening::List, Opening::WatchList] {
        let interest = Interest::Tier(watershed_lab::sim::fixtures::TIERS[0]);
        let follower = Follower::start(&connection, interest.clone(), opening);
        follower.synced().await;
        history.writes(100).await;
        follower.judge_undisturbed(&history).await;
        let truth = follower.log();
        let fault = |plant: &dyn Fn(&mut Track)| {
            let mut log = truth.clone();
            plant(&mut log.tracks[0]);
            verdict(&log, &interest, &history).expect_err("a planted fault")
        };
        let some = truth.tracks[0].initial.keys().next().unwrap();
        assert!(fault(&|track| drop(track.initial.remove(some))).contains("the state"));
        assert!(
            fault(&|track| drop(track.initial.insert("n/ghost".into(), Bytes::new())))
                .contains("the state")
        );
        assert!(
            fault(&|track| track.initial.get_mut(some).unwrap().truncate(9)).contains("the state")
        );
        assert!(fault(&|track| drop(track.events.remove(3))).contains("lost"));
        assert!(fault(&|track| drop(track.events.pop())).contains("lost"));
        assert!(fault(&|track| track.events.swap(3, 4)).contains("came before"));
        assert!(fault(&|track| track.expired = true).contains("410"));
        let mut nothing = truth.clone();
        nothing.tracks.clear();
        assert!(verdict(&nothing, &interest, &history).is_err());
    }
    fixture.stop().await;
}
