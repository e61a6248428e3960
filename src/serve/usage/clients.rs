//! Ranks clients by cost: a table of bounded size, by user and user agent.
//!
//! Every client has a row while the table has room. When it is full, the eighth that cost least is
//! evicted, so expensive clients stay, however many come and go.
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

/// Upper bound of rows.
const MAX_ROWS: usize = 512;
/// Rows evicted at once.
const EVICTED_AT_ONCE: usize = MAX_ROWS / 8;
/// Characters kept of a name. Longer names are cut, and names with the same beginning share a row.
const MAX_NAME: usize = 160;
/// Time after which a past rate weighs about a third.
const DECAY: Duration = Duration::from_mins(1);
/// Bytes of a large list that cost about as much CPU as a request: docs/benchmarks.md, gets beside
/// lists.
const REQUEST_COST: f64 = 64.0 * 1024.0;

/// The table.
pub(super) struct ClientTable {
    table: Mutex<ClientRows>,
    hasher: RandomState,
}

#[derive(Default)]
struct ClientRows {
    /// By a keyed hash of user and agent, which nobody outside can make collide.
    rows: HashMap<u64, Arc<ClientCounters>>,
    evicted: u64,
}

/// Counters of one user with one program.
#[derive(Debug)]
pub(super) struct ClientCounters {
    user: Box<str>,
    agent: Box<str>,
    requests: AtomicU64,
    forwarded: AtomicU64,
    bytes: AtomicU64,
    watches: AtomicU64,
    recent: Mutex<RecentRates>,
}

/// Recent rates, per second.
#[derive(Clone, Copy, Debug, Default)]
struct RecentRates {
    /// Sums at the last tick.
    seen: (u64, u64),
    requests: f64,
    bytes: f64,
}

/// One row, for a page.
#[derive(Clone, Debug, PartialEq)]
pub struct ClientUsage {
    /// The user's name as upstream knows it; `None` if upstream was not asked.
    pub user: Option<String>,
    /// The User-Agent, cut if it is long.
    pub agent: String,
    /// Requests since the row exists.
    pub requests: u64,
    /// Those of them that upstream answered.
    pub forwarded: u64,
    /// Bytes of their answers' bodies.
    pub bytes: u64,
    /// Watches open now.
    pub watches: u64,
    /// Requests per second over about the last minute.
    pub requests_per_second: f64,
    /// Bytes per second over about the last minute.
    pub bytes_per_second: f64,
    /// Share of all clients' cost over about the last minute: 0 to 1.
    pub share: f64,
}

impl Default for ClientTable {
    fn default() -> Self {
        Self {
            table: Mutex::default(),
            hasher: RandomState::new(),
        }
    }
}

impl ClientTable {
    /// Counts a request, and returns the counters for its cost.
    pub(super) fn request(
        &self,
        user: Option<&str>,
        agent: &str,
        forwarded: bool,
    ) -> Arc<ClientCounters> {
        let (user, agent) = (cut(user.unwrap_or_default()), cut(agent));
        let key = self.hasher.hash_one((user, agent));
        let client = {
            let mut table = self.table.lock();
            if table.rows.len() >= MAX_ROWS && !table.rows.contains_key(&key) {
                table.evict_some();
            }
            let row = table
                .rows
                .entry(key)
                .or_insert_with(|| Arc::new(ClientCounters::new(user, agent)));
            Arc::clone(row)
        };
        client.requests.fetch_add(1, Ordering::Relaxed);
        if forwarded {
            client.forwarded.fetch_add(1, Ordering::Relaxed);
        }
        client
    }

    /// Updates the rates with what happened since the last tick.
    pub(super) fn tick(&self, passed: Duration) {
        for client in self.table.lock().rows.values() {
            client.tick(passed);
        }
    }

    /// Returns up to `limit` rows, most expensive first, the number of rows, and the number of
    /// evicted rows.
    pub(super) fn top(&self, limit: usize) -> (Vec<ClientUsage>, usize, u64) {
        let (mut rows, evicted) = {
            let table = self.table.lock();
            (
                table
                    .rows
                    .values()
                    .map(|client| client.usage())
                    .collect::<Vec<_>>(),
                table.evicted,
            )
        };
        let cost =
            |row: &ClientUsage| row.bytes_per_second + row.requests_per_second * REQUEST_COST;
        let all: f64 = rows.iter().map(cost).sum();
        for row in &mut rows {
            row.share = if all > 0.0 { cost(row) / all } else { 0.0 };
        }
        let ever = |row: &ClientUsage| row.bytes as f64 + row.requests as f64 * REQUEST_COST;
        rows.sort_by(|a, b| {
            b.share
                .total_cmp(&a.share)
                .then(ever(b).total_cmp(&ever(a)))
                .then_with(|| a.agent.cmp(&b.agent))
        });
        let known = rows.len();
        rows.truncate(limit);
        (rows, known, evicted)
    }
}

impl ClientRows {
    /// Evicts clients without open watches first, and the cheapest of them.
    fn evict_some(&mut self) {
        let mut costs: Vec<_> = self
            .rows
            .iter()
            .map(|(key, client)| (client.worth(), *key))
            .collect();
        costs.sort_by(|(a, _), (b, _)| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
        for (_, key) in costs.into_iter().take(EVICTED_AT_ONCE) {
            self.rows.remove(&key);
            self.evicted += 1;
        }
    }
}

impl ClientCounters {
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

    /// Returns whether watches are open, and the cost since the row exists.
    fn worth(&self) -> (bool, f64) {
        let (requests, bytes) = self.sums();
        (
            self.watches.load(Ordering::Relaxed) > 0,
            bytes as f64 + requests as f64 * REQUEST_COST,
        )
    }

    fn tick(&self, passed: Duration) {
        let now = self.sums();
        let seconds = passed.as_secs_f64().max(0.001);
        let weight = 1.0 - (-seconds / DECAY.as_secs_f64()).exp();
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

/// Returns the first characters of a name.
fn cut(name: &str) -> &str {
    name.char_indices()
        .nth(MAX_NAME)
        .map_or(name, |(end, _)| &name[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICK: Duration = Duration::from_secs(5);

    #[test]
    fn the_most_expensive_client_comes_first() {
        let clients = ClientTable::default();
        for _ in 0..3 {
            clients.request(Some("a"), "small", false);
        }
        let large = clients.request(Some("b"), "large", true);
        large.sent(10 << 20);
        large.watch_began();
        clients.request(None, "unknown", false);
        clients.tick(TICK);
        let (top, known, evicted) = clients.top(2);
        assert_eq!((known, evicted), (3, 0));
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
    fn old_requests_weigh_little() {
        let clients = ClientTable::default();
        clients.request(Some("a"), "once", false).sent(100 << 20);
        clients.tick(TICK);
        for _ in 0..200 {
            clients.request(Some("b"), "now", false).sent(1 << 20);
            clients.tick(TICK);
        }
        let (top, ..) = clients.top(2);
        assert_eq!(top[0].agent, "now");
        assert!(top[1].share < 0.01 && top[1].bytes == 100 << 20, "{top:?}");
    }

    #[test]
    fn the_table_is_bounded_and_keeps_expensive_clients() {
        let clients = ClientTable::default();
        let large = clients.request(Some("large"), "a", false);
        large.sent(1 << 30);
        let watching = clients.request(Some("watching"), "a", false);
        watching.watch_began();
        let long = "x".repeat(100_000);
        for n in 0..10_000 {
            clients.request(Some("flood"), &format!("{n} {long}"), false);
        }
        let table = clients.table.lock();
        assert!(table.rows.len() <= MAX_ROWS, "{}", table.rows.len());
        assert!(
            table
                .rows
                .values()
                .all(|row| row.agent.len() <= MAX_NAME && row.user.len() <= MAX_NAME)
        );
        let evicted = table.evicted;
        drop(table);
        let (top, known, reported) = clients.top(usize::MAX);
        assert_eq!((known as u64 + evicted, reported), (10_002, evicted));
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
        assert_eq!(cut(&"ü".repeat(MAX_NAME + 1)), "ü".repeat(MAX_NAME));
    }
}
