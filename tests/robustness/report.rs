//! The counts and findings of a run.
use std::collections::BTreeMap;
use std::fmt::Write as _;

use parking_lot::Mutex;

/// Wrong answers that are kept. One is enough to fail.
const KEPT: usize = 10;

/// Counts of a run, and everything that was wrong.
#[derive(Default)]
pub(crate) struct Report {
    counts: Mutex<BTreeMap<String, u64>>,
    wrong: Mutex<Vec<String>>,
}

impl Report {
    pub(crate) fn count(&self, what: &str) {
        self.add(what, 1);
    }

    pub(crate) fn add(&self, what: &str, count: u64) {
        let mut counts = self.counts.lock();
        match counts.get_mut(what) {
            Some(known) => *known += count,
            None => drop(counts.insert(what.to_owned(), count)),
        }
    }

    /// Records something that must not be.
    pub(crate) fn wrong(&self, what: String) {
        self.count("wrong");
        let mut wrong = self.wrong.lock();
        if wrong.len() < KEPT {
            eprintln!("WRONG: {what}");
            wrong.push(what);
        }
    }

    pub(crate) fn of(&self, what: &str) -> u64 {
        self.counts.lock().get(what).copied().unwrap_or_default()
    }

    pub(crate) fn wrongs(&self) -> Vec<String> {
        self.wrong.lock().clone()
    }

    /// Returns all counts, one a line.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        for (what, count) in self.counts.lock().iter() {
            let _ = writeln!(text, "{count:>10} {what}");
        }
        text
    }
}
