//! Replays logs: forecasts the answer to each request, and sums them up.
use std::time::{Duration, Instant};

use jiff::Timestamp;

use super::caller;
use super::client_name::ClientName;
use super::event::{LoggedEvent, LoggedStage};
use super::known_types::KnownTypes;
use super::line_counts::LineCounts;
use super::log::{self, LogError, LogInput, LogLine};
use super::open_requests::OpenRequests;
use super::report::Report;
use super::tally::{Load, Tally};
use crate::serve::{CachingPolicy, Forecaster};

/// The replay of some logs.
pub struct Replay {
    types: KnownTypes,
    forecaster: Forecaster,
    open: OpenRequests,
    tally: Tally,
    counts: LineCounts,
    /// The moment that stands for the time of the first event.
    began: Instant,
}

impl Replay {
    /// Creates a replay for a proxy with this policy.
    pub fn new(policy: CachingPolicy) -> Self {
        let types = KnownTypes::default();
        Self {
            forecaster: Forecaster::new(types.catalog.clone(), policy),
            types,
            open: OpenRequests::default(),
            tally: Tally::default(),
            counts: LineCounts::default(),
            began: Instant::now(),
        }
    }

    /// Reads the logs, oldest first.
    pub fn read(&mut self, mut inputs: Vec<LogInput>) -> Result<(), LogError> {
        log::sort(&mut inputs)?;
        for input in &inputs {
            self.counts.files += 1;
            match self.read_file(input) {
                // A file that was copied while it was rotated.
                Err(error) if error.is_cut() => {
                    tracing::warn!(%error, "the rest of the file is left out");
                    self.counts.lines += 1;
                    self.counts.damaged += 1;
                }
                read => read?,
            }
        }
        Ok(())
    }

    fn read_file(&mut self, input: &LogInput) -> Result<(), LogError> {
        let mut lines = input.open()?;
        while let Some(line) = lines.next()? {
            match line {
                LogLine::Text(line) => self.line(line),
                LogLine::TooLong => {
                    self.counts.lines += 1;
                    self.counts.too_long += 1;
                }
            }
        }
        Ok(())
    }

    /// Returns `true` if there were lines, and none of them was an event.
    pub fn has_only_damaged_lines(&self) -> bool {
        let LineCounts {
            lines,
            damaged,
            too_long,
            ..
        } = self.counts;
        lines > 0 && damaged + too_long == lines
    }

    /// Returns the report of what was read.
    pub fn report(&self) -> Report {
        Report::new(&self.tally, &self.counts)
    }

    fn line(&mut self, line: &[u8]) {
        if line.trim_ascii().is_empty() {
            return;
        }
        self.counts.lines += 1;
        let counted = LoggedEvent::parse(line).and_then(|event| self.event(&event));
        if counted.is_none() {
            self.counts.damaged += 1;
        }
    }

    /// Counts the request of an event. Returns `None` if the event has no possible request.
    fn event(&mut self, event: &LoggedEvent<'_>) -> Option<()> {
        let Some(stage) = event.stage() else {
            return Some(());
        };
        let request = caller::request(event)?;
        self.note_time(event);
        let counts = match stage {
            LoggedStage::Started => self.open.begin(&event.audit_id),
            LoggedStage::Ended => self.open.end(&event.audit_id),
        };
        if caller::is_internal(event) {
            self.counts.internal += u64::from(counts);
            return Some(());
        }
        // A refusal shows no type: anyone can ask for any path.
        if event.code() < 400 {
            self.types.learn(&request);
        }
        let arrived = self.moment(event.request_received_timestamp);
        let caller = caller::standing(event);
        let forecast = self.forecaster.forecast(&request, caller, arrived);
        let is_long = forecast.is_long_running;
        let (seconds, open_seconds) = match stage {
            // The time of a long-running request is known when it ends.
            LoggedStage::Started => (0.0, 0.0),
            LoggedStage::Ended if is_long => (0.0, self.open_seconds(event)),
            LoggedStage::Ended => (event.seconds(), 0.0),
        };
        let load = Load {
            requests: u64::from(counts),
            seconds,
            open_seconds,
        };
        let client = ClientName::new(&event.user.username, &event.user_agent);
        self.tally.add(client, &forecast, load);
        Some(())
    }

    /// Notes the time at which an event was written. A request may have arrived long before the log
    /// begins.
    fn note_time(&mut self, event: &LoggedEvent<'_>) {
        let written = event.stage_timestamp;
        let counts = &mut self.counts;
        counts.first = Some(counts.first.map_or(written, |first| first.min(written)));
        counts.last = Some(counts.last.map_or(written, |last| last.max(written)));
    }

    /// Returns the seconds within the log for which a request was open that ends with this event.
    fn open_seconds(&self, event: &LoggedEvent<'_>) -> f64 {
        let (began, ended) = (event.request_received_timestamp, event.stage_timestamp);
        let from = self.counts.first.map_or(began, |first| first.max(began));
        ended.duration_since(from).as_secs_f64().max(0.0)
    }

    /// Returns the moment that stands for a time of the log, or its beginning for earlier times.
    fn moment(&self, time: Timestamp) -> Instant {
        let first = self.counts.first.unwrap_or(time);
        let passed = Duration::try_from(time.duration_since(first)).unwrap_or_default();
        self.began.checked_add(passed).unwrap_or(self.began)
    }
}
