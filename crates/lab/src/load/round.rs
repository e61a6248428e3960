//! One server's turn: it opens all watches, puts load on the server for a while, waits for the last
//! event and counts.
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context, ensure};
use tokio::sync::{OnceCell, Semaphore};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};
use tokio_util::sync::CancellationToken;

use super::connect::Connections;
use super::grace::{GRACE, end_of_grace};
use super::plan::LoadPlan;
use super::progress::{RoundProgress, RoundStage};
use super::request::{self, ReadVerb};
use super::result::{
    Distribution, OWN_PROCESS, ProcessConsumption, RequestStats, RoundResult, Sample,
};
use super::stamp::StampFinder;
use super::tally::RoundTally;
use super::watch::{RoundContext, WatchClient, WatchGroup};
use super::write::{Ledger, LoadWriter};
use crate::process::{Process, ProcessUsage};
use watershed_connect::ApiServer;

/// Watches that may receive their first state at the same time.
const OPENING: usize = 500;
/// Interval between looks at the live figures.
const LOOK: Duration = Duration::from_millis(100);
/// Samples of a round, at most; and the time between two, at least.
const MAX_SAMPLES: u32 = 600;
const SAMPLE: Duration = Duration::from_millis(500);
/// Watches may last this much longer than the round is meant to.
const SPARE: Duration = Duration::from_mins(10);

/// The inputs of one round on one server.
pub(super) struct ServerTurn<'a> {
    pub(super) plan: &'a LoadPlan,
    pub(super) upstream: &'a ApiServer,
    pub(super) writer: Option<&'a Arc<LoadWriter>>,
    /// Paths that gets ask for, by group.
    pub(super) names: &'a [Arc<Vec<String>>],
    pub(super) run: u64,
    pub(super) progress: &'a RoundProgress,
    pub(super) interrupt: &'a CancellationToken,
}

impl ServerTurn<'_> {
    /// Runs the round. Returns `None` when it is interrupted before anything is measured.
    pub(super) async fn run(&self) -> anyhow::Result<Option<RoundResult>> {
        let plan = self.plan;
        let tally = Arc::new(RoundTally::new());
        let stop = CancellationToken::new();
        // Ends the watches also when this future is dropped.
        let _stop = stop.clone().drop_guard();
        let common = Arc::new(self.context(&tally, &stop));
        let before = common.ledger.all_confirmed();
        let mut meter = ProcessMeter::new(&plan.processes);
        let opening = Instant::now();
        let begin = self.interrupt.run_until_cancelled(self.open(&common));
        let Some(result) = begin.await else {
            return Ok(None);
        };
        let (watches, audience) = result?;
        if !self.have_begun(&tally).await? {
            return Ok(None);
        }
        let opening_seconds = opening.elapsed().as_secs_f64();
        let opened = meter.all();

        tally.measure(true);
        let begun = Instant::now();
        let load_stop = CancellationToken::new();
        let mut load = self.load(&tally, &load_stop);
        let samples = self.sample(&tally, &mut meter, begun).await;
        load_stop.cancel();
        let load_end = LoadEnd::now(begun, &tally, &mut meter);
        tokio::select! {
            () = all_ended(&mut load) => {}
            () = end_of_grace(self.interrupt) => {}
        }
        load.shutdown().await;
        let expected = expected(&before, &common.ledger.all_confirmed(), &audience);
        self.wait(plan.settle, RoundStage::Settling, &tally, || {
            let come =
                tally.delivered.load(Ordering::Relaxed) + tally.missed.load(Ordering::Relaxed);
            come >= expected
        })
        .await;
        // The peak of memory, and processes that have ended.
        meter.all();
        tally.measure(false);
        stop.cancel();
        let missing: u64 = watches.join_all().await.into_iter().sum();

        let mut round = RoundResult {
            seconds: load_end.seconds,
            opening_seconds,
            events: load_end.events,
            watch_bytes: load_end.watch_bytes,
            events_expected: expected,
            events_lost: tally.missed.load(Ordering::Relaxed) + missing,
            processes: meter.consumption(&opened, &load_end.usage),
            samples,
            ..self.tallied(&tally, &load_end)
        };
        for name in meter.gone() {
            *round
                .errors
                .entry(format!("process {name} has ended"))
                .or_default() += 1;
        }
        Ok(Some(round))
    }

    /// Waits for the first state of all watches. Returns `false` if the user interrupts.
    ///
    /// # Errors
    ///
    /// All watches are refused for a reason that stays, or the user interrupts and there were errors.
    async fn have_begun(&self, tally: &RoundTally) -> anyhow::Result<bool> {
        let watches = self.plan.watches();
        let all_refused = || {
            let [synced, refused] =
                [&tally.synced, &tally.refused].map(|count| count.load(Ordering::Relaxed));
            watches > 0 && synced == 0 && refused >= watches
        };
        self.wait(self.plan.start_timeout, RoundStage::Opening, tally, || {
            tally.synced.load(Ordering::Relaxed) >= watches || all_refused()
        })
        .await;
        let error = tally.most_frequent_error().unwrap_or_default();
        ensure!(!all_refused(), "no watch has begun; {error}");
        if !self.interrupt.is_cancelled() {
            return Ok(true);
        }
        ensure!(
            error.is_empty(),
            "interrupted before all watches had their first state; {error}"
        );
        Ok(false)
    }

    /// Returns the state that all watches of the round share.
    fn context(&self, tally: &Arc<RoundTally>, stop: &CancellationToken) -> RoundContext {
        let plan = self.plan;
        RoundContext {
            connections: Connections::new(self.upstream.clone(), plan.http1, plan.connections()),
            tally: Arc::clone(tally),
            ledger: self.writer.map_or_else(
                || Arc::new(Ledger::empty()),
                |writer| Arc::clone(writer.ledger()),
            ),
            finder: StampFinder::new(self.run),
            opening: Semaphore::new(OPENING),
            timeout: plan.start_timeout + plan.duration + plan.settle + SPARE,
            stop: stop.clone(),
        }
    }

    /// Returns the figures of the tally that include the settling, except the numbers of answers.
    fn tallied(&self, tally: &RoundTally, load_end: &LoadEnd) -> RoundResult {
        let [lists, gets, writes] = load_end.answered;
        let watches = self.plan.watches();
        RoundResult {
            watches,
            watches_begun: tally.synced.load(Ordering::Relaxed),
            connections: if watches > 0 {
                self.plan.connections()
            } else {
                0
            },
            first_state: Distribution::of(&tally.first_state),
            events_delivered: tally.delivered.load(Ordering::Relaxed),
            events_repeated: tally.repeated.load(Ordering::Relaxed),
            watches_resumed: tally.resumed.load(Ordering::Relaxed),
            delivery: Distribution::of(&tally.latency),
            lists: RequestStats::of(&tally.lists, lists),
            gets: RequestStats::of(&tally.gets, gets),
            writes: RequestStats::of(&tally.writes, writes),
            errors: tally.errors(),
            ..RoundResult::default()
        }
    }

    /// Starts all watches. Also returns the number of watches that each written object has.
    async fn open(&self, common: &Arc<RoundContext>) -> anyhow::Result<(JoinSet<u64>, Vec<u64>)> {
        let mut watches = JoinSet::new();
        let mut audience = vec![0; common.ledger.all_confirmed().len()];
        let wanted = self.plan.watches();
        if wanted == 0 {
            return Ok((watches, audience));
        }
        let limit = common.connections.limit().await.context("cannot connect")?;
        if let Some(limit) = limit {
            ensure!(
                wanted.div_ceil(self.plan.connections()) <= limit,
                "the server allows {limit} requests at a time on a connection: {wanted} watches \
                 need at least {} connections (--connections)",
                wanted.div_ceil(limit)
            );
        }
        let mut number = 0;
        for group in &self.plan.groups {
            let kind = Arc::new(WatchGroup {
                group: group.clone(),
                version: OnceCell::new(),
            });
            for nth in 0..group.watches {
                let watcher = WatchClient::new(common, &kind, number, nth);
                for object in watcher.objects() {
                    audience[usize::from(object)] += 1;
                }
                watches.spawn(watcher.run());
                number += 1;
            }
        }
        Ok((watches, audience))
    }

    /// Starts writes, lists and gets.
    fn load(&self, tally: &Arc<RoundTally>, stop: &CancellationToken) -> JoinSet<()> {
        let mut load = JoinSet::new();
        if let Some(writer) = self.writer {
            let (writer, tally, stop) = (Arc::clone(writer), Arc::clone(tally), stop.clone());
            let interrupt = self.interrupt.clone();
            load.spawn(async move { writer.run(&tally, &stop, &interrupt).await });
        }
        let connect = |lanes| Connections::new(self.upstream.clone(), self.plan.http1, lanes);
        let short = request::RequestSender::new(self.plan.connections(), connect, tally);
        for (group, names) in self.plan.groups.iter().zip(self.names) {
            let group = Arc::new(group.clone());
            for (read, rate) in [(ReadVerb::List, group.lists), (ReadVerb::Get, group.gets)] {
                if !rate.is_never() {
                    let (group, names) = (Arc::clone(&group), Arc::clone(names));
                    load.spawn(Arc::clone(&short).run(
                        group,
                        read,
                        names,
                        stop.clone(),
                        self.plan.settle,
                    ));
                }
            }
        }
        load
    }

    /// Waits until a condition holds, the time is over or the user interrupts. The settling then goes
    /// on for a moment.
    async fn wait(
        &self,
        at_most: Duration,
        stage: RoundStage,
        tally: &RoundTally,
        done: impl Fn() -> bool,
    ) {
        let grace = match stage {
            RoundStage::Settling => GRACE,
            RoundStage::Opening | RoundStage::Measuring => Duration::ZERO,
        };
        let mut deadline = Instant::now() + at_most;
        let mut is_interrupted = false;
        while !done() && Instant::now() < deadline {
            if self.interrupt.is_cancelled() && !is_interrupted {
                is_interrupted = true;
                deadline = deadline.min(Instant::now() + grace);
            }
            self.progress.show(stage, tally, Duration::ZERO);
            sleep(LOOK.min(deadline.saturating_duration_since(Instant::now()))).await;
        }
    }

    /// Samples the figures until the round is over.
    async fn sample(
        &self,
        tally: &RoundTally,
        meter: &mut ProcessMeter,
        begun: Instant,
    ) -> Vec<Sample> {
        let duration = self.plan.duration;
        let every = SAMPLE.max(duration / MAX_SAMPLES);
        let mut ticks = interval(LOOK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut samples = Vec::new();
        let mut last = (begun, 0, 0, meter.all());
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                () = self.interrupt.cancelled() => return samples,
            }
            let now = Instant::now();
            self.progress
                .show(RoundStage::Measuring, tally, now - begun);
            let since = (now - last.0).as_secs_f64();
            let over = now - begun >= duration;
            if now - last.0 >= every || (over && samples.is_empty()) {
                let events = tally.events.load(Ordering::Relaxed);
                let bytes = tally.watch_bytes.load(Ordering::Relaxed);
                let usage = meter.all();
                let cores = |(name, usage): (&String, &ProcessUsage)| {
                    let before = last.3.get(name)?;
                    Some((
                        name.clone(),
                        usage.cpu.saturating_sub(before.cpu).as_secs_f64() / since,
                    ))
                };
                samples.push(Sample {
                    seconds: (now - begun).as_secs_f64(),
                    events_per_second: events.saturating_sub(last.1) as f64 / since,
                    watch_bytes_per_second: bytes.saturating_sub(last.2) as f64 / since,
                    cores: usage.iter().filter_map(cores).collect(),
                    memory_bytes: usage
                        .iter()
                        .map(|(name, usage)| (name.clone(), usage.memory))
                        .collect(),
                });
                last = (now, events, bytes, usage);
            }
            if over {
                return samples;
            }
        }
    }
}

/// The figures at the end of the load. Rates leave the settling out, as its length depends on what
/// was lost.
struct LoadEnd {
    seconds: f64,
    events: u64,
    watch_bytes: u64,
    /// Answered lists, gets and writes.
    answered: [u64; 3],
    usage: BTreeMap<String, ProcessUsage>,
}

impl LoadEnd {
    fn now(begun: Instant, tally: &RoundTally, meter: &mut ProcessMeter) -> Self {
        let requests = [&tally.lists, &tally.gets, &tally.writes];
        Self {
            seconds: begun.elapsed().as_secs_f64(),
            answered: requests.map(|requests| requests.done.load(Ordering::Relaxed)),
            events: tally.events.load(Ordering::Relaxed),
            watch_bytes: tally.watch_bytes.load(Ordering::Relaxed),
            usage: meter.all(),
        }
    }
}

async fn all_ended(tasks: &mut JoinSet<()>) {
    while tasks.join_next().await.is_some() {}
}

/// Returns the number of events that all watches together have to receive.
fn expected(before: &[u32], after: &[u32], audience: &[u64]) -> u64 {
    let writes = before
        .iter()
        .zip(after)
        .map(|(before, after)| u64::from(after - before));
    writes
        .zip(audience)
        .map(|(writes, audience)| writes * audience)
        .sum()
}

/// Reads the processes' usage.
struct ProcessMeter {
    processes: Vec<Process>,
    first: BTreeMap<String, ProcessUsage>,
    most_memory: BTreeMap<String, u64>,
    last: BTreeMap<String, ProcessUsage>,
}

impl ProcessMeter {
    fn new(processes: &[Process]) -> Self {
        let mut processes = processes.to_vec();
        processes.push(Process {
            name: OWN_PROCESS.to_owned(),
            pid: std::process::id(),
        });
        let mut meter = Self {
            processes,
            first: BTreeMap::new(),
            most_memory: BTreeMap::new(),
            last: BTreeMap::new(),
        };
        meter.first = meter.all();
        meter
    }

    fn all(&mut self) -> BTreeMap<String, ProcessUsage> {
        let seen = |process: &Process| Some((process.name.clone(), process.usage()?));
        let usage: BTreeMap<_, _> = self.processes.iter().filter_map(seen).collect();
        for (name, usage) in &usage {
            let most = self.most_memory.entry(name.clone()).or_default();
            *most = (*most).max(usage.memory);
        }
        self.last.clone_from(&usage);
        usage
    }

    fn consumption(
        &self,
        opened: &BTreeMap<String, ProcessUsage>,
        ended: &BTreeMap<String, ProcessUsage>,
    ) -> BTreeMap<String, ProcessConsumption> {
        let one = |(name, first): (&String, &ProcessUsage)| {
            let (opened, ended) = (opened.get(name)?, ended.get(name)?);
            let consumption = ProcessConsumption {
                opening_cpu_seconds: opened.cpu.saturating_sub(first.cpu).as_secs_f64(),
                cpu_seconds: ended.cpu.saturating_sub(opened.cpu).as_secs_f64(),
                memory_bytes: self.most_memory.get(name).copied().unwrap_or_default(),
            };
            Some((name.clone(), consumption))
        };
        self.first.iter().filter_map(one).collect()
    }

    /// Returns the names of the processes that have ended.
    fn gone(&self) -> Vec<String> {
        self.first
            .keys()
            .filter(|name| !self.last.contains_key(*name))
            .cloned()
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_write_is_expected_once_per_watch_of_its_object() {
        assert_eq!(expected(&[1, 5], &[3, 5], &[10, 7]), 20);
        assert_eq!(expected(&[], &[], &[]), 0);
    }
}
