//! Clients that read: lists of all sorts, in pages or whole, and single objects.
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;

use crate::client::{GoodAnswer, Link, ObjectAnswer, World};
use crate::history::{Part, Resource};
use crate::informer::row;
use crate::judge::ListAnswer;

/// The findings of a read: where its answer came from, and what is wrong with it.
type Verdict = (String, Result<(), String>);

/// One reader. It stays on one connection while that works.
struct Reader {
    world: Arc<World>,
    link: Link,
    resource: Resource,
    part: Part,
}

/// Reads for ever from one site after the other, and judges each answer.
pub(crate) async fn read(world: Arc<World>, mut rng: Rng) {
    loop {
        let site = rng.usize(0..world.sites.len());
        if let Ok(link) = world.link(site, &mut rng).await {
            let mut reader = Reader {
                world: Arc::clone(&world),
                link,
                resource: Resource::Pods,
                part: Part::default(),
            };
            for _ in 0..rng.usize(20..200) {
                if reader.one(site, &mut rng).await.is_err() {
                    world.report.count("requests that failed");
                    if reader.link.is_closed() {
                        break;
                    }
                }
                let pause = rng.u64(1..20);
                tokio::time::sleep(Duration::from_millis(pause)).await;
            }
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

impl Reader {
    /// Makes one read at random.
    async fn one(&mut self, site: usize, rng: &mut Rng) -> anyhow::Result<()> {
        self.resource = Resource::ALL[rng.usize(0..3)];
        self.part = self.resource.part(rng);
        let (what, (source, judged)) = match rng.u8(0..12) {
            0..=1 => ("list of any version", self.any().await?),
            2..=4 => ("consistent list", self.consistent().await?),
            5..=6 => ("consistent list in pages", self.pages(rng).await?),
            7 => ("list at an exact version", self.exact(rng).await?),
            8..=9 => ("list not older than a version", self.not_older(rng).await?),
            10 => ("object, consistent", self.get(false, rng).await?),
            _ => ("object of any version", self.get(true, rng).await?),
        };
        let report = &self.world.report;
        report.count(&row(what, &source));
        report.count("READS");
        if let Err(why) = judged {
            let name = self.world.sites[site].name;
            let (resource, part) = (self.resource, &self.part);
            report.wrong(format!(
                "{what} of {resource:?} {part:?} at {name} ({source}): {why}"
            ));
        }
        Ok(())
    }

    async fn list(&self, query: &str) -> anyhow::Result<GoodAnswer> {
        let path = self.resource.url(&self.part, query);
        self.link.read(&path, self.part.accept(true)).await
    }

    /// Judges a whole list, whose version must be one that `fits`.
    fn judge(&self, answer: GoodAnswer, fits: impl Fn(u64) -> bool, wanted: &str) -> Verdict {
        let judged = ListAnswer::split(self.resource, &self.part, &answer.body).and_then(|list| {
            if !fits(list.version) {
                return Err(format!("a list at {}, and not {wanted}", list.version));
            }
            let seen = (list.version, list.items);
            ListAnswer::judge(&self.world.history, self.resource, &self.part, seen)
        });
        (answer.source, judged)
    }

    async fn any(&self) -> anyhow::Result<Verdict> {
        let answer = self.list("resourceVersion=0").await?;
        Ok(self.judge(answer, |_| true, ""))
    }

    async fn consistent(&self) -> anyhow::Result<Verdict> {
        let floor = self.world.history.acknowledged();
        let answer = self.list("").await?;
        let wanted = format!("{floor} or later");
        Ok(self.judge(answer, |version| version >= floor, &wanted))
    }

    async fn exact(&self, rng: &mut Rng) -> anyhow::Result<Verdict> {
        let version = self.world.history.recent(self.resource, 500, rng);
        let query = format!("resourceVersion={version}&resourceVersionMatch=Exact");
        let answer = self.list(&query).await?;
        Ok(self.judge(answer, |seen| seen == version, &version.to_string()))
    }

    async fn not_older(&self, rng: &mut Rng) -> anyhow::Result<Verdict> {
        let version = self.world.history.recent(self.resource, 3, rng);
        let query = format!("resourceVersion={version}&resourceVersionMatch=NotOlderThan");
        let answer = self.list(&query).await?;
        let wanted = format!("{version} or later");
        Ok(self.judge(answer, |seen| seen >= version, &wanted))
    }

    /// Reads all pages of a consistent list. They have one version, and together they are its
    /// state.
    async fn pages(&self, rng: &mut Rng) -> anyhow::Result<Verdict> {
        let floor = self.world.history.acknowledged();
        let limit = rng.usize(5..40);
        let (mut version, mut items, mut token) = (None, Vec::new(), String::new());
        loop {
            let query = if token.is_empty() {
                format!("limit={limit}")
            } else {
                format!("limit={limit}&continue={token}")
            };
            let answer = self.list(&query).await?;
            let page = match ListAnswer::split(self.resource, &self.part, &answer.body) {
                Ok(page) => page,
                Err(why) => return Ok((answer.source, Err(why))),
            };
            let first = *version.get_or_insert(page.version);
            if page.version != first || first < floor {
                let why = format!("a page at {}, after {first}, {floor}", page.version);
                return Ok((answer.source, Err(why)));
            }
            if !items.is_empty() && !page.items.is_empty() {
                items.push(b',');
            }
            items.extend_from_slice(page.items);
            token = page.token;
            if token.is_empty() {
                let seen = (first, &items[..]);
                let history = &self.world.history;
                let judged = ListAnswer::judge(history, self.resource, &self.part, seen);
                return Ok((answer.source, judged));
            }
        }
    }

    /// Reads one object, of any version or consistently.
    async fn get(&self, any: bool, rng: &mut Rng) -> anyhow::Result<Verdict> {
        let history = &self.world.history;
        let Some(key) = history.some_key(self.resource, rng) else {
            anyhow::bail!("no object");
        };
        let (namespace, name) = key.split_once('/').unwrap();
        let path = self.resource.gvr().collection_path_in(Some(namespace));
        let query = if any { "?resourceVersion=0" } else { "" };
        let floor = history.acknowledged();
        let path = format!("{path}/{name}{query}");
        let floor = (!any).then_some(floor);
        let answer = match self.link.read_object(&path, "application/json").await? {
            ObjectAnswer::Found(answer) => answer,
            ObjectAnswer::Absent(source) => {
                let was_absent = history.was_absent(self.resource, &key, floor.unwrap_or(0));
                let wrong = || format!("{key} is not found, but exists at {floor:?} and later");
                return Ok((source, was_absent.then_some(()).ok_or_else(wrong)));
            }
        };
        let body = answer.body.strip_suffix(b"\n").unwrap_or(&answer.body);
        let judged = self.judge_object(&key, body, floor);
        Ok((answer.source, judged))
    }

    fn judge_object(&self, key: &str, body: &[u8], floor: Option<u64>) -> Result<(), String> {
        let object: serde_json::Value =
            serde_json::from_slice(body).map_err(|error| error.to_string())?;
        let version = object["metadata"]["resourceVersion"].as_str();
        let version = version.and_then(|version| version.parse().ok());
        let version: u64 = version.ok_or("an object without a version")?;
        let history = &self.world.history;
        if history.object(self.resource, key, version).as_deref() != Some(body) {
            return Err(format!("{key} at {version} is another"));
        }
        // The state before the read began has this version or a later one of the object.
        let Some(floor) = floor else { return Ok(()) };
        let then = history.object(self.resource, key, floor);
        let then: Option<serde_json::Value> =
            then.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        let then = then.and_then(|object| {
            let version = object["metadata"]["resourceVersion"].as_str()?;
            version.parse::<u64>().ok()
        });
        match then {
            Some(then) if version < then => Err(format!(
                "{key} at {version}, which was at {then} before the read"
            )),
            _ => Ok(()),
        }
    }
}
