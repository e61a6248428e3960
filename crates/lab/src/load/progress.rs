//! Progress of the rounds: one bar for each server on a terminal, nothing elsewhere.
use std::sync::atomic::Ordering;
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::tally::RoundTally;

/// Phase of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RoundStage {
    Opening,
    Measuring,
    Settling,
}

/// All servers' bars.
pub(super) struct Bars {
    bars: Vec<ProgressBar>,
    _all: MultiProgress,
}

/// One server's bar, in one of its rounds.
pub(super) struct RoundProgress {
    bar: ProgressBar,
    round: String,
    before: Duration,
    watches: usize,
}

impl Bars {
    pub(super) fn new(names: &[&str], length: Duration, shown: bool) -> Self {
        let target = if shown {
            ProgressDrawTarget::stderr()
        } else {
            ProgressDrawTarget::hidden()
        };
        let all = MultiProgress::with_draw_target(target);
        let style = ProgressStyle::with_template("{prefix} [{bar:24}] {wide_msg}")
            .unwrap_or_else(|_| ProgressStyle::default_bar())
            .progress_chars("=> ");
        let width = names
            .iter()
            .map(|name| name.chars().count())
            .max()
            .unwrap_or_default();
        let bar = |name: &&str| {
            let bar = all.add(ProgressBar::new(
                u64::try_from(length.as_millis()).unwrap_or(u64::MAX),
            ));
            bar.set_style(style.clone());
            bar.set_prefix(format!("{name:>width$}"));
            bar.set_message("waits for its turn");
            bar
        };
        Self {
            bars: names.iter().map(bar).collect(),
            _all: all,
        }
    }

    /// The bar of a server, for the n-th of its rounds, counted from 0.
    pub(super) fn round(
        &self,
        server: usize,
        n: usize,
        rounds: usize,
        length: Duration,
        watches: usize,
    ) -> RoundProgress {
        let before = length * u32::try_from(n).unwrap_or(u32::MAX);
        RoundProgress {
            bar: self.bars[server].clone(),
            round: format!("round {} of {rounds}", n + 1),
            before,
            watches,
        }
    }
}

impl Drop for Bars {
    /// Leaves the screen to the table, or to an error.
    fn drop(&mut self) {
        self.bars.iter().for_each(ProgressBar::finish_and_clear);
    }
}

impl RoundProgress {
    pub(super) fn show(&self, stage: RoundStage, tally: &RoundTally, elapsed: Duration) {
        if self.bar.is_hidden() {
            return;
        }
        let errors = tally.error_count();
        let errors = if errors > 0 {
            format!(", {errors} errors")
        } else {
            String::new()
        };
        let Self { round, watches, .. } = self;
        match stage {
            RoundStage::Opening => {
                let synced = tally.synced.load(Ordering::Relaxed);
                self.bar.set_message(format!(
                    "{round}: {synced} of {watches} watches have their first state{errors}"
                ));
            }
            RoundStage::Measuring => {
                let at = (self.before + elapsed).as_millis();
                self.bar.set_position(u64::try_from(at).unwrap_or(u64::MAX));
                let latency = tally.latency.total();
                let p99 = if latency.is_empty() {
                    String::new()
                } else {
                    format!(
                        ", p99 {:.1} ms",
                        latency.value_at_quantile(0.99) as f64 / 1000.0
                    )
                };
                let events = tally.events.load(Ordering::Relaxed);
                let mut requests = String::new();
                for (name, kind) in [("lists", &tally.lists), ("gets", &tally.gets)] {
                    let done = kind.done.load(Ordering::Relaxed);
                    if done > 0 {
                        requests = format!("{requests}, {done} {name}");
                    }
                }
                self.bar
                    .set_message(format!("{round}: {events} events{p99}{requests}{errors}"));
            }
            RoundStage::Settling => self
                .bar
                .set_message(format!("{round}: waiting for the last events{errors}")),
        }
    }

    pub(super) fn done(&self) {
        self.bar.set_message(format!("{} is done", self.round));
    }
}
