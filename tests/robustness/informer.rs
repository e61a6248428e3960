//! Clients that list and watch for ever, as informers do. Each line they receive is judged at once.
use std::sync::Arc;
use std::time::Duration;

use anyhow::bail;
use bytes::Bytes;
use fastrand::Rng;
use parking_lot::Mutex;
use tokio_util::task::AbortOnDropHandle;
use watershed_lab::client::NextLine;

use crate::client::{WatchLines, World, is_from_upstream, kind_of};
use crate::history::{Part, Resource};
use crate::judge::{Accepted, ListAnswer, WatchJudge, end_mark, error_code, is_planted};

/// The way in which a client gets the first state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FirstState {
    /// A list of any version, and a watch from there.
    AnyList,
    /// A consistent list, and a watch from there.
    ConsistentList,
    /// A watch that begins with a state of any version.
    AnyStream,
    /// A watch that begins with a consistent state.
    ConsistentStream,
}

/// A client that is running.
pub(crate) struct Informer {
    pub(crate) name: String,
    pub(crate) resource: Resource,
    pub(crate) part: Part,
    /// The version up to which it has everything; `None` while it has no state.
    pub(crate) position: Arc<Mutex<Option<u64>>>,
    _task: AbortOnDropHandle<()>,
}

struct InformerTask {
    name: String,
    first: FirstState,
    bookmarks: bool,
    /// It pauses now and then while it reads.
    slow: bool,
    /// The sites that it goes through, one after the other, when a watch ends.
    sites: Vec<usize>,
    judge: WatchJudge,
    world: Arc<World>,
    rng: Rng,
    position: Arc<Mutex<Option<u64>>>,
}

impl Informer {
    /// Starts the n-th client of a run.
    pub(crate) fn start(world: &Arc<World>, n: usize, seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed ^ (n as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let resource = match n % 6 {
            0..=3 => Resource::Pods,
            4 => Resource::ConfigMaps,
            _ => Resource::Widgets,
        };
        let part = resource.part(&mut rng);
        let sites = match n % 5 {
            // Two replicas behind one name: each watch may be on the other one.
            0 => vec![0, 1],
            3 => vec![0, 1, 2],
            4 => vec![2],
            n => vec![n - 1],
        };
        let first = match rng.u8(0..4) {
            0 => FirstState::AnyList,
            1 => FirstState::ConsistentList,
            2 => FirstState::AnyStream,
            _ => FirstState::ConsistentStream,
        };
        let position = Arc::<Mutex<Option<u64>>>::default();
        let task = InformerTask {
            name: format!("{n}: {resource:?} {part:?} {first:?} at {sites:?}"),
            first,
            bookmarks: rng.u8(0..4) > 0,
            slow: n % 10 == 9,
            sites,
            judge: WatchJudge {
                resource,
                part: part.clone(),
                at: 0,
            },
            world: Arc::clone(world),
            rng,
            position: Arc::clone(&position),
        };
        Self {
            name: task.name.clone(),
            resource,
            part,
            position,
            _task: AbortOnDropHandle::new(tokio::spawn(task.run())),
        }
    }

    /// Returns an error if the client lacks anything that has happened.
    pub(crate) fn has_everything(&self, world: &World) -> Result<(), String> {
        let Some(at) = *self.position.lock() else {
            return Err(format!("{} has no state", self.name));
        };
        match world.history.next(self.resource, &self.part, at)? {
            None => Ok(()),
            Some((due, _)) => Err(format!("{} is at {at} and lacks {due}", self.name)),
        }
    }
}

impl InformerTask {
    async fn run(mut self) {
        for turn in 0.. {
            let site = self.sites[turn % self.sites.len()];
            if self.round(site).await.is_err() {
                self.world.report.count("requests that failed");
                let pause = self.rng.u64(50..300);
                tokio::time::sleep(Duration::from_millis(pause)).await;
            }
        }
    }

    /// Opens one watch, and follows it to its end.
    async fn round(&mut self, site: usize) -> anyhow::Result<()> {
        let link = self.world.link(site, &mut self.rng).await?;
        let (resource, part) = (self.judge.resource, self.judge.part.clone());
        let known = *self.position.lock();
        let streams = matches!(
            self.first,
            FirstState::AnyStream | FirstState::ConsistentStream
        );
        let bookmarks = if self.bookmarks || (known.is_none() && streams) {
            "&allowWatchBookmarks=true"
        } else {
            ""
        };
        let query = match known {
            None if streams => {
                let version = match self.first {
                    FirstState::AnyStream => "&resourceVersion=0",
                    _ => "",
                };
                let floor = self.world.history.acknowledged();
                let query = format!(
                    "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan\
                     {version}{bookmarks}"
                );
                let mut lines = link.watch(&resource.url(&part, &query), &part).await?;
                self.first_state(&mut lines, floor).await?;
                return self.follow(lines).await;
            }
            None => {
                self.list(&link).await?;
                format!("watch=1{bookmarks}&resourceVersion={}", self.judge.at)
            }
            Some(version) => format!("watch=1{bookmarks}&resourceVersion={version}"),
        };
        let lines = link.watch(&resource.url(&part, &query), &part).await?;
        self.follow(lines).await
    }

    async fn list(&mut self, link: &crate::client::Link) -> anyhow::Result<()> {
        let (resource, part) = (self.judge.resource, self.judge.part.clone());
        let consistent = self.first == FirstState::ConsistentList;
        let query = if consistent { "" } else { "resourceVersion=0" };
        let floor = self.world.history.acknowledged();
        let answer = link
            .read(&resource.url(&part, query), part.accept(true))
            .await?;
        let judged = ListAnswer::split(resource, &part, &answer.body).and_then(|list| {
            if consistent && list.version < floor {
                return Err(format!(
                    "a consistent list at {}, after {floor}",
                    list.version
                ));
            }
            let seen = (list.version, list.items);
            ListAnswer::judge(&self.world.history, resource, &part, seen)?;
            Ok(list.version)
        });
        self.world.report.count("first lists");
        let version = self.accept(judged)?;
        self.move_to(version);
        Ok(())
    }

    /// Reads the state that a watch begins with.
    async fn first_state(&mut self, lines: &mut WatchLines, floor: u64) -> anyhow::Result<()> {
        let mut initial: Vec<Bytes> = Vec::new();
        let version = loop {
            let NextLine::Line(line) = lines.next().await else {
                bail!("the watch ended before the end of its state");
            };
            if let Some(version) = end_mark(&line) {
                break version;
            }
            if error_code(&line).is_some() {
                bail!("an error before the end of the state");
            }
            if !line.starts_with(br#"{"type":"ADDED""#) {
                // Only upstream's garbage may stand here.
                let what = String::from_utf8_lossy(&line).into_owned();
                if !(is_planted(&line) && is_from_upstream(&lines.source)) {
                    self.world.report.wrong(format!("{}: {what}", self.name));
                }
                bail!("no initial event: {what}");
            }
            initial.push(line);
        };
        let judged = if self.first == FirstState::ConsistentStream && version < floor {
            Err(format!("a consistent state at {version}, after {floor}"))
        } else {
            self.judge.begin(&self.world.history, &initial, version)
        };
        self.world.report.count("first states of watches");
        self.accept(judged)?;
        self.move_to(version);
        Ok(())
    }

    async fn follow(&mut self, mut lines: WatchLines) -> anyhow::Result<()> {
        loop {
            if self.slow && self.rng.u8(0..60) == 0 {
                let pause = self.rng.u64(100..1500);
                tokio::time::sleep(Duration::from_millis(pause)).await;
            }
            let line = match lines.next().await {
                NextLine::Line(line) => line,
                NextLine::End => {
                    self.world.report.count("watches that ended");
                    return Ok(());
                }
                NextLine::Broken(_) => {
                    self.world.report.count("watches that broke");
                    return Ok(());
                }
            };
            let judged = self.judge.take(&self.world.history, &line);
            let judged = planted_by_upstream(judged, &lines.source);
            match self.accept(judged)? {
                Accepted::Event => self.world.report.count("EVENTS"),
                Accepted::Bookmark => self.world.report.count("bookmarks"),
                Accepted::Planted => bail!("upstream's garbage was forwarded"),
                Accepted::Refused(code) => bail!("the watch ended with {code}"),
                Accepted::Expired => {
                    self.world.report.count("watches that expired");
                    *self.position.lock() = None;
                    return Ok(());
                }
            }
            self.move_to(self.judge.at);
        }
    }

    fn move_to(&mut self, version: u64) {
        self.judge.at = version;
        *self.position.lock() = Some(version);
    }

    /// Reports what is wrong, and begins anew then.
    fn accept<T>(&self, judged: Result<T, String>) -> anyhow::Result<T> {
        judged.map_err(|why| {
            self.world.report.wrong(format!("{}: {why}", self.name));
            *self.position.lock() = None;
            anyhow::anyhow!(why)
        })
    }
}

/// Opens short watches from versions of the last changes, and judges them. It returns only with
/// its task.
pub(crate) async fn replay(world: Arc<World>, mut rng: Rng) {
    loop {
        let pause = rng.u64(5..80);
        tokio::time::sleep(Duration::from_millis(pause)).await;
        let resource = Resource::ALL[rng.usize(0..3)];
        let part = resource.part(&mut rng);
        let site = rng.usize(0..world.sites.len());
        if replay_once(&world, resource, part, site, &mut rng)
            .await
            .is_err()
        {
            world.report.count("requests that failed");
        }
    }
}

async fn replay_once(
    world: &Arc<World>,
    resource: Resource,
    part: Part,
    site: usize,
    rng: &mut Rng,
) -> anyhow::Result<()> {
    let link = world.link(site, rng).await?;
    let at = world.history.recent(resource, 2000, rng);
    let bookmarks = rng.bool();
    let query =
        format!("watch=1&timeoutSeconds=1&allowWatchBookmarks={bookmarks}&resourceVersion={at}");
    let mut judge = WatchJudge { resource, part, at };
    let mut lines = link
        .watch(&resource.url(&judge.part, &query), &judge.part)
        .await?;
    // Some clients go away without a word.
    let most = if rng.u8(0..3) == 0 {
        rng.usize(0..50)
    } else {
        usize::MAX
    };
    for _ in 0..most {
        let NextLine::Line(line) = lines.next().await else {
            break;
        };
        let judged = judge.take(&world.history, &line);
        match planted_by_upstream(judged, &lines.source) {
            Ok(Accepted::Event) => world.report.count("EVENTS"),
            Ok(Accepted::Bookmark) => world.report.count("bookmarks"),
            Ok(_) => break,
            Err(why) => {
                let name = world.sites[site].name;
                world.report.wrong(format!(
                    "a watch of {resource:?} at {name} from {at}: {why}"
                ));
                break;
            }
        }
    }
    world.report.count("short watches from old versions");
    Ok(())
}

/// Returns an error in place of garbage that does not come from upstream.
fn planted_by_upstream(judged: Result<Accepted, String>, source: &str) -> Result<Accepted, String> {
    match judged {
        Ok(Accepted::Planted) if !is_from_upstream(source) => {
            Err(format!("upstream's garbage in a watch from {source}"))
        }
        judged => judged,
    }
}

/// Returns a row of the report for a read.
pub(crate) fn row(what: &str, source: &str) -> String {
    format!("reads, {what}, {}", kind_of(source))
}
