//! Who costs most: a table of bounded size, by user and user agent.
//!
//! Everybody has a row while there is room. When there is none, those are let go of who cost least,
//! an eighth at a time, so that whoever costs much stays, however many come and go.
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

/// Rows kept.
const MOST: usize = 512;
/// Rows let go of at once.
const LET_GO: usize = MOST / 8;
/// Characters kept of a name. What is longer is cut, and counts together.
const NAME: usize = 160;
/// What was done so long ago weighs about a third.
const MEMORY: Duration = Duration::from_mins(1);
/// A request costs about as much CPU as so many bytes of a large list: docs/benchmarks.md, gets
/// beside lists.
const REQUEST: f64 = 64.0 * 1024.0;

/// The table.
pub(super) struct Clients {
    table: Mutex<Table>,
    hasher: RandomState,
}

#[derive(Default)]
struct Table {
    /// By a keyed hash of user and agent, which nobody outside can make collide.
    rows: HashMap<u64, Arc<Client>>,
    let_go: u64,
}

/// What one user does with one program.
#[derive(Debug)]
pub(super) struct Client {
    user: Box<str>,
    agent: Box<str>,
    requests: AtomicU64,
    forwarded: AtomicU64,
    bytes: AtomicU64,
    watches: AtomicU64,
    recent: Mutex<Recent>,
}

/// What was done of late, by second.
#[derive(Clone, Copy, Debug, Default)]
struct Recent {
    /// The sums at the last look.
    seen: (u64, u64),
    requests: f64,
    bytes: f64,
}

/// One row, for a page.
#[derive(Clone, Debug, PartialEq)]
pub struct ClientUsage {
    /// The user's name, as upstream knows it; `None` where that was not asked.
    pub user: Option<String>,
    /// What the program calls itself; cut, if that is long.
    pub agent: String,
    /// Requests since the row was begun.
    pub requests: u64,
    /// Those of them that upstream answered.
    pub forwarded: u64,
    /// Bytes of their answers' bodies.
    pub bytes: u64,
    /// Watches open now.
    pub watches: u64,
    /// Requests a second, of about the last minute.
    pub requests_per_second: f64,
    /// Bytes a second, of about the last minute.
    pub bytes_per_second: f64,
    /// The part of all clients' cost, of about the last minute: 0 to 1.
    pub share: f64,
}

impl Default for Clients {
    fn default() -> Self {
        Self {
            table: Mutex::default(),
            hasher: RandomState::new(),
        }
    }
}

impl Clients {
    /// A request came; what it costs is counted by what this gives.
    pub(super) fn came(&self, user: Option<&str>, agent: &str, forwarded: bool) -> Arc<Client> {
        let (user, agent) = (cut(user.unwrap_or_default()), cut(agent));
        let key = self.hasher.hash_one((user, agent));
        let client = {
            let mut table = self.table.lock();
            if table.rows.len() >= MOST && !table.rows.contains_key(&key) {
                table.let_some_go();
            }
            let row = table
                .rows
                .entry(key)
                .or_insert_with(|| Arc::new(Client::new(user, agent)));
            Arc::clone(row)
        };
        client.requests.fetch_add(1, Ordering::Relaxed);
        if forwarded {
            client.forwarded.fetch_add(1, Ordering::Relaxed);
        }
        client
    }

    /// Looks at what was done since the last look.
    pub(super) fn tick(&self, passed: Duration) {
        for client in self.table.lock().rows.values() {
            client.tick(passed);
        }
    }

    /// Those who cost most of late, the first first, at most `most`; and how many rows there are,
    /// and how many were let go of.
    pub(super) fn top(&self, most: usize) -> (Vec<ClientUsage>, usize, u64) {
        let (mut rows, let_go) = {
            let table = self.table.lock();
            (
                table
                    .rows
                    .values()
                    .map(|client| client.usage())
                    .collect::<Vec<_>>(),
                table.let_go,
            )
        };
        let cost = |row: &ClientUsage| row.bytes_per_second + row.requests_per_second * REQUEST;
        let all: f64 = rows.iter().map(cost).sum();
        for row in &mut rows {
            row.share = if all > 0.0 { cost(row) / all } else { 0.0 };
        }
        let ever = |row: &ClientUsage| row.bytes as f64 + row.requests as f64 * REQUEST;
        rows.sort_by(|a, b| {
            b.share
                .total_cmp(&a.share)
                .then(ever(b).total_cmp(&ever(a)))
                .then_with(|| a.agent.cmp(&b.agent))
        });
        let known = rows.len();
        rows.truncate(most);
        (rows, known, let_go)
    }
}

impl Table {
    /// Whoever has no watch open and cost least goes first.
    fn let_some_go(&mut self) {
        let mut costs: Vec<_> = self
            .rows
            .iter()
            .map(|(key, client)| (client.worth(), *key))
            .collect();
        costs.sort_by(|(a, _), (b, _)| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
        for (_, key) in costs.into_iter().take(LET_GO) {
            self.rows.remove(&key);
            self.let_go += 1;
        }
    }
}

impl Client {
    fn new(user: &str, agent: &str) -> Self {
        Self {
            user: user.into(),
            agent: agent.into(),
            requests: AtomicU64::new(0),
            forwarded: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            watches: AtomicU64::new(0),
            recent: Mutex::default(),
        }
    }

    pub(super) fn sent(&self, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(super) fn watch_began(&self) {
        self.watches.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn watch_ended(&self) {
        self.watches.fetch_sub(1, Ordering::Relaxed);
    }

    fn sums(&self) -> (u64, u64) {
        (
            self.requests.load(Ordering::Relaxed),
            self.bytes.load(Ordering::Relaxed),
        )
    }

    /// Whether watches are open, then the cost since the row was begun.
    fn worth(&self) -> (bool, f64) {
        let (requests, bytes) = self.sums();
        (
            self.watches.load(Ordering::Relaxed) > 0,
            bytes as f64 + requests as f64 * REQUEST,
        )
    }

    fn tick(&self, passed: Duration) {
        let now = self.sums();
        let seconds = passed.as_secs_f64().max(0.001);
        let weight = 1.0 - (-seconds / MEMORY.as_secs_f64()).exp();
        let mut recent = self.recent.lock();
        let (requests, bytes) = (now.0 - recent.seen.0, now.1 - recent.seen.1);
        recent.seen = now;
        recent.requests += weight * (requests as f64 / seconds - recent.requests);
        recent.bytes += weight * (bytes as f64 / seconds - recent.bytes);
    }

    fn usage(&self) -> ClientUsage {
        let (requests, bytes) = self.sums();
        let recent = *self.recent.lock();
        ClientUsage {
            user: Some(&self.user)
                .filter(|user| !user.is_empty())
                .map(ToString::to_string),
            agent: self.agent.to_string(),
            requests,
            forwarded: self.forwarded.load(Ordering::Relaxed),
            bytes,
            watches: self.watches.load(Ordering::Relaxed),
            requests_per_second: recent.requests,
            bytes_per_second: recent.bytes,
            share: 0.0,
        }
    }
}

/// The first characters.
fn cut(name: &str) -> &str {
    name.char_indices()
        .nth(NAME)
        .map_or(name, |(end, _)| &name[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICK: Duration = Duration::from_secs(5);

    #[test]
    fn whoever_costs_most_comes_first() {
        let clients = Clients::default();
        for _ in 0..3 {
            clients.came(Some("a"), "small", false);
        }
        let large = clients.came(Some("b"), "large", true);
        large.sent(10 << 20);
        large.watch_began();
        clients.came(None, "unknown", false);
        clients.tick(TICK);
        let (top, known, let_go) = clients.top(2);
        assert_eq!((known, let_go), (3, 0));
        let names: Vec<_> = top
            .iter()
            .map(|row| (row.user.as_deref(), row.agent.as_str()))
            .collect();
        assert_eq!(names, [(Some("b"), "large"), (Some("a"), "small")]);
        assert_eq!(
            (
                top[0].requests,
                top[0].forwarded,
                top[0].bytes,
                top[0].watches
            ),
            (1, 1, 10 << 20, 1)
        );
        assert!(top[0].share > 0.9 && top[0].share < 1.0, "{top:?}");
        large.watch_ended();
        let (everybody, ..) = clients.top(9);
        assert_eq!(
            (everybody[0].watches, everybody[2].user.as_deref()),
            (0, None)
        );
    }

    #[test]
    fn what_was_done_long_ago_weighs_little() {
        let clients = Clients::default();
        clients.came(Some("a"), "once", false).sent(100 << 20);
        clients.tick(TICK);
        for _ in 0..200 {
            clients.came(Some("b"), "now", false).sent(1 << 20);
            clients.tick(TICK);
        }
        let (top, ..) = clients.top(2);
        assert_eq!(top[0].agent, "now");
        assert!(top[1].share < 0.01 && top[1].bytes == 100 << 20, "{top:?}");
    }

    #[test]
    fn the_table_is_bounded_and_keeps_who_costs_much() {
        let clients = Clients::default();
        let large = clients.came(Some("large"), "a", false);
        large.sent(1 << 30);
        let watching = clients.came(Some("watching"), "a", false);
        watching.watch_began();
        let long = "x".repeat(100_000);
        for n in 0..10_000 {
            clients.came(Some("flood"), &format!("{n} {long}"), false);
        }
        let table = clients.table.lock();
        assert!(table.rows.len() <= MOST, "{}", table.rows.len());
        assert!(
            table
                .rows
                .values()
                .all(|row| row.agent.len() <= NAME && row.user.len() <= NAME)
        );
        let let_go = table.let_go;
        drop(table);
        let (top, known, told) = clients.top(usize::MAX);
        assert_eq!((known as u64 + let_go, told), (10_002, let_go));
        for user in ["large", "watching"] {
            assert!(
                top.iter().any(|row| row.user.as_deref() == Some(user)),
                "{user}"
            );
        }
    }

    #[test]
    fn names_are_cut_between_characters() {
        assert_eq!(cut("short"), "short");
        assert_eq!(cut(&"ü".repeat(NAME + 1)), "ü".repeat(NAME));
    }
}
