//! A seeded run of clients, writes and faults through two replicas of the proxy and through a third
//! proxy behind them. Every answer and every event is compared with the history of all writes.
//!
//! | file | purpose |
//! |---|---|
//! | `client` | what all clients share: sites, requests, connections |
//! | `faults` | the kinds of fault |
//! | `history` | the recorded history: each state and each change |
//! | `informer` | clients that list and watch |
//! | `judge` | the comparison of answers and events with the history |
//! | `reader` | clients that read |
//! | `relay` | relays on the way to the API servers |
//! | `replica` | the proxies, as processes |
//! | `report` | counts, and everything that was wrong |
//! | `run` | the rounds of a run |
//! | `waiting` | waiting for conditions |
//!
//! `docs/robustness.md` says what is checked, and has the figures of recorded runs.
#![allow(clippy::unwrap_used, reason = "a test may panic")]
mod client;
mod faults;
mod history;
mod informer;
mod judge;
mod reader;
mod relay;
mod replica;
mod report;
mod run;
mod waiting;

use std::str::FromStr;
use std::time::Duration;

use faults::FaultKind;
use replica::Figures;
use run::{Outcome, Plan};

/// Returns the number that an environment variable says.
fn setting<T: FromStr>(name: &str) -> Option<T> {
    let value = std::env::var(name).ok()?;
    let number = value.parse().ok();
    assert!(number.is_some(), "{name} is no number: {value}");
    number
}

fn judge(seed: u64, outcome: &Outcome) {
    eprintln!("{}", outcome.report);
    assert!(
        outcome.wrong.is_empty(),
        "{} answers or events were wrong with ROBUSTNESS_SEED={seed}:\n{}",
        outcome.wrong.len(),
        outcome.wrong.join("\n")
    );
    assert!(
        outcome.events > 0 && outcome.from_memory > 0 && outcome.self_checks > 0,
        "nothing was checked"
    );
}

/// Runs for half a minute here, and for as long as `make robustness` asks for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_and_events_are_upstreams_under_all_faults() {
    watershed_connect::install_crypto();
    let seed = setting("ROBUSTNESS_SEED").unwrap_or(1);
    let long = setting::<u64>("ROBUSTNESS_SECONDS");
    let soak = setting::<u64>("ROBUSTNESS_SOAK") == Some(1);
    let plan = Plan {
        seed,
        time: Duration::from_secs(long.unwrap_or(0)),
        events: setting("ROBUSTNESS_EVENTS").unwrap_or(0),
        reads: setting("ROBUSTNESS_READS").unwrap_or(0),
        pace: setting("ROBUSTNESS_PACE").unwrap_or(120),
        informers: setting("ROBUSTNESS_INFORMERS").unwrap_or(45),
        readers: setting("ROBUSTNESS_READERS").unwrap_or(12),
        soak,
        // A request without an answer is repeated after twenty seconds only.
        without: if long.is_some() {
            &[]
        } else {
            &[FaultKind::NoAnswer]
        },
    };
    let outcome = run::run(plan).await;
    judge(seed, &outcome);
    assert!(outcome.reads > 0);
    if soak {
        for (name, samples) in &outcome.figures {
            flat(name, samples);
        }
    }
}

/// Takes one figure of all.
type FigureOf = fn(&Figures) -> f64;

/// Checks that a proxy takes no more at the end of a run than in its second quarter.
fn flat(name: &str, samples: &[(Duration, Figures)]) {
    for (at, figures) in samples {
        eprintln!("{name} after {:>5} s: {figures:?}", at.as_secs());
    }
    let quarter = samples.len() / 4;
    let mean = |from: usize, figure: FigureOf| {
        let part = &samples[from..from + quarter];
        part.iter().map(|(_, figures)| figure(figures)).sum::<f64>() / part.len() as f64
    };
    let figures: [(&str, FigureOf, f64); 3] = [
        ("resident MiB", |figures| figures.resident_mib, 16.0),
        ("descriptors", |figures| figures.descriptors, 20.0),
        ("tasks", |figures| figures.tasks, 40.0),
    ];
    for (what, figure, slack) in figures {
        let (before, after) = (mean(quarter, figure), mean(3 * quarter, figure));
        eprintln!("{name}: {what} {before:.1} in the second quarter, {after:.1} in the last");
        assert!(
            after <= before * 1.15 + slack,
            "{name}: {what} grew from {before:.1} to {after:.1}"
        );
    }
}
