//! The results as figures: medians of rounds, and ratios to the first server.
use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::result::{
    LoadResult, OWN_PROCESS, ProcessConsumption, RequestStats, RoundResult, ServerResult,
};
use watershed_figures::{grouped, markdown_table, median, three_digits};

/// Beginning of the names of CPU figures, and the smallest such figure (cores, seconds) that others
/// are set in relation to.
const CPU: &str = "CPU of ";
const LEAST_CPU: f64 = 0.02;

/// Name of all measured processes together, without this one.
const SERVERS: &str = "all of these";

/// Number of errors that are shown; the rest is counted.
const SHOWN: usize = 10;

/// One figure of all servers.
struct FigureRow {
    name: String,
    unit: &'static str,
    /// True if the ratio of two servers' figures has a meaning.
    compare: bool,
    /// By server, then by round.
    rounds: Vec<Vec<Option<f64>>>,
}

/// Figures as a Markdown table, which is also readable as it is.
pub fn table(measured: &LoadResult) -> String {
    let servers = &measured.servers;
    let mut lines = vec![vec![String::new(), String::new()]];
    for (n, server) in servers.iter().enumerate() {
        lines[0].push(server.name.clone());
        if n > 0 {
            lines[0].push(format!("{} / {}", server.name, servers[0].name));
        }
    }
    for row in rows(servers) {
        let mut line = vec![row.name.clone(), row.unit.to_owned()];
        for n in 0..servers.len() {
            line.push(
                row.median(n)
                    .map_or_else(|| "–".to_owned(), |value| figure(value, row.unit)),
            );
            if n > 0 {
                line.push(
                    row.ratio(n)
                        .map_or_else(|| "–".to_owned(), |ratio| format!("{ratio:.2}")),
                );
            }
        }
        lines.push(line);
    }
    markdown_table(&lines)
}

/// The same figures for programs: medians, rounds and ratios to the first server.
pub fn comparison(measured: &LoadResult) -> Value {
    let servers = &measured.servers;
    let rows = rows(servers).into_iter().map(|row| {
        let each = servers.iter().enumerate().map(|(n, server)| {
            let figures = json!({
                "median": row.median(n),
                "rounds": row.rounds[n],
                "ratio": if n > 0 { row.ratio(n) } else { None },
            });
            (server.name.clone(), figures)
        });
        json!({"figure": row.name, "unit": row.unit, "servers": each.collect::<Map<_, _>>()})
    });
    Value::Array(rows.collect())
}

/// Describes in sentences whether all went well.
pub fn verdict(measured: &LoadResult) -> String {
    let mut lines = Vec::new();
    for server in &measured.servers {
        let name = &server.name;
        let sentences = [
            delivery_verdict(server),
            error_verdict(server),
            rate_verdict(server),
        ];
        lines.extend(
            sentences
                .concat()
                .into_iter()
                .map(|sentence| format!("{name}: {sentence}")),
        );
    }
    let machine = &measured.setting.machine;
    if machine.is_busy() {
        lines.push(format!(
            "this machine was busy before (load average {:.1} on {} cores): do not quote times, \
             and ratios with care",
            machine.load_average, machine.cores
        ));
    }
    lines.extend(measured.errors.iter().cloned());
    if measured.interrupted {
        let text = "interrupted: the last round may be shorter, and others are missing";
        lines.push(text.to_owned());
    }
    lines.into_iter().map(|line| line + "\n").collect()
}

/// Describes first states and events that are missing.
fn delivery_verdict(server: &ServerResult) -> Vec<String> {
    let sum = |count: fn(&RoundResult) -> u64| server.rounds.iter().map(count).sum::<u64>();
    let missing = sum(|round| (round.watches - round.watches_begun) as u64);
    let expected = sum(|round| round.events_expected);
    let lost = sum(|round| round.events_lost);
    let repeated = sum(|round| round.events_repeated);
    let mut sentences = Vec::new();
    if missing > 0 {
        sentences.push(format!(
            "{missing} watches did not have their first state in time"
        ));
    }
    if lost > 0 || repeated > 0 {
        sentences.push(format!(
            "{lost} of {expected} events were lost, {repeated} came again or late"
        ));
    } else if expected > 0 {
        sentences.push(format!(
            "every one of {expected} events arrived, once and in order"
        ));
    }
    sentences
}

/// Describes the errors of all rounds, each kind once.
fn error_verdict(server: &ServerResult) -> Vec<String> {
    let mut errors = BTreeMap::<&str, u64>::new();
    for (text, count) in server.rounds.iter().flat_map(|round| &round.errors) {
        *errors.entry(text).or_default() += count;
    }
    let mut sentences: Vec<_> = errors
        .iter()
        .take(SHOWN)
        .map(|(text, count)| format!("{count} times: {text}"))
        .collect();
    if errors.len() > SHOWN {
        sentences.push(format!(
            "and {} further kinds of errors",
            errors.len() - SHOWN
        ));
    }
    sentences
}

/// Picks the figures of one kind of request.
type StatsOf = fn(&RoundResult) -> &RequestStats;

/// Describes the requests that were not sent.
fn rate_verdict(server: &ServerResult) -> Vec<String> {
    let kinds: [(&str, StatsOf); 3] = [
        ("lists", |round| &round.lists),
        ("gets", |round| &round.gets),
        ("writes", |round| &round.writes),
    ];
    let mut sentences = Vec::new();
    for (name, of) in kinds {
        let skipped: u64 = server.rounds.iter().map(|round| of(round).skipped).sum();
        if skipped > 0 {
            sentences.push(format!(
                "{skipped} {name} were not sent, as too many were waiting for their answers: \
                 the rate was not reached"
            ));
        }
    }
    sentences
}

/// One figure of one round.
struct RoundFigure {
    name: String,
    unit: &'static str,
    /// True if the ratio of two servers' figures has a meaning.
    compare: bool,
    /// `None` if there was nothing to measure.
    value: Option<f64>,
}

impl RoundFigure {
    /// Returns a figure that is compared between servers.
    fn compared<N: Into<String>, V: Into<Option<f64>>>(
        name: N,
        unit: &'static str,
        value: V,
    ) -> Self {
        Self {
            name: name.into(),
            unit,
            compare: true,
            value: value.into(),
        }
    }

    /// Returns a count, which is not compared.
    fn count(name: &str, value: u64) -> Self {
        Self {
            compare: false,
            ..Self::compared(name, "", value as f64)
        }
    }
}

/// Returns the figures of a round. Work that the round did not do has none.
fn figures(round: &RoundResult) -> Vec<RoundFigure> {
    let mut all = watch_figures(round);
    for (name, requests) in [
        ("lists", &round.lists),
        ("gets", &round.gets),
        ("writes", &round.writes),
    ] {
        if requests.latency.count > 0 || requests.skipped > 0 {
            all.extend(request_figures(name, requests, round));
        }
    }
    all.extend(process_figures(round));
    all.push(RoundFigure::count("errors", round.errors.values().sum()));
    all
}

fn watch_figures(round: &RoundResult) -> Vec<RoundFigure> {
    let compared = RoundFigure::compared::<&str, f64>;
    let measured = RoundFigure::compared::<&str, Option<f64>>;
    let count = RoundFigure::count;
    let mut all = Vec::new();
    if round.watches > 0 {
        let first = &round.first_state;
        let all_have_begun = round.watches_begun == round.watches;
        let until_all = all_have_begun.then_some(round.opening_seconds);
        let bytes = per_second(round.watch_bytes, round) / 1e6;
        all.extend([
            count("watches", round.watches_begun as u64),
            measured("first state, p50", "ms", first.measured(first.p50)),
            measured("first state, p99", "ms", first.measured(first.p99)),
            measured("first state, all watches", "s", until_all),
            compared("events", "1/s", per_second(round.events, round)),
            compared("watch bytes", "MB/s", bytes),
        ]);
    }
    if round.events_expected > 0 {
        all.extend([
            count("events owed", round.events_expected),
            count("events lost", round.events_lost),
            count("events repeated", round.events_repeated),
        ]);
    }
    if round.watches_resumed > 0 {
        all.push(count("watches resumed", round.watches_resumed));
    }
    if round.delivery.count > 0 {
        all.extend([
            compared("write to event, p50", "ms", round.delivery.p50),
            compared("write to event, p90", "ms", round.delivery.p90),
            compared("write to event, p99", "ms", round.delivery.p99),
            compared("write to event, max", "ms", round.delivery.max),
        ]);
    }
    all
}

fn request_figures(name: &str, requests: &RequestStats, round: &RoundResult) -> Vec<RoundFigure> {
    let mut all = vec![RoundFigure::compared(
        name,
        "1/s",
        per_second(requests.answered, round),
    )];
    let all_answers = requests.latency.count;
    if name != "writes" && all_answers > 0 {
        let bytes = requests.bytes as f64 / all_answers as f64 / 1e3;
        all.push(RoundFigure::compared(
            format!("{name}, bytes of one"),
            "kB",
            bytes,
        ));
    }
    let latency = &requests.latency;
    for (quantile, value) in [("p50", latency.p50), ("p99", latency.p99)] {
        all.push(RoundFigure::compared(
            format!("{name}, {quantile}"),
            "ms",
            latency.measured(value),
        ));
    }
    all
}

/// Returns the figures of each process, of all servers' together, and of this program.
fn process_figures(round: &RoundResult) -> Vec<RoundFigure> {
    let servers: Vec<_> = round
        .processes
        .iter()
        .filter(|(name, _)| *name != OWN_PROCESS)
        .collect();
    let mut together = ProcessConsumption::default();
    for (_, used) in &servers {
        together.opening_cpu_seconds += used.opening_cpu_seconds;
        together.cpu_seconds += used.cpu_seconds;
        together.memory_bytes += used.memory_bytes;
    }
    let mut rows: Vec<(&str, ProcessConsumption, bool)> = servers
        .iter()
        .map(|(name, used)| (name.as_str(), **used, true))
        .collect();
    if servers.len() > 1 {
        rows.push((SERVERS, together, true));
    }
    if let Some(used) = round.processes.get(OWN_PROCESS) {
        rows.push(("this load", *used, false));
    }
    let mut all = Vec::new();
    for (title, used, compare) in rows {
        let cores = used.cpu_seconds / round.seconds.max(f64::MIN_POSITIVE);
        let mebibytes = used.memory_bytes as f64 / f64::from(1 << 20);
        for (name, unit, value) in [
            (
                format!("{CPU}{title}, opening"),
                "s",
                used.opening_cpu_seconds,
            ),
            (format!("{CPU}{title}"), "cores", cores),
            (format!("memory of {title}"), "MiB", mebibytes),
        ] {
            all.push(RoundFigure {
                compare,
                ..RoundFigure::compared(name, unit, value)
            });
        }
    }
    all
}

fn per_second(count: u64, round: &RoundResult) -> f64 {
    count as f64 / round.seconds.max(f64::MIN_POSITIVE)
}

/// Returns all figures that any server has, in the order of their first appearance.
fn rows(servers: &[ServerResult]) -> Vec<FigureRow> {
    let all: Vec<Vec<Vec<_>>> = servers
        .iter()
        .map(|server| server.rounds.iter().map(figures).collect())
        .collect();
    let mut rows: Vec<FigureRow> = Vec::new();
    for round in all.iter().flatten() {
        // A new figure follows the one before it in its round, so that neighbours stay together.
        let mut after = 0;
        for figure in round {
            if let Some(at) = rows.iter().position(|row| row.name == figure.name) {
                after = at + 1;
            } else {
                rows.insert(
                    after,
                    FigureRow {
                        name: figure.name.clone(),
                        unit: figure.unit,
                        compare: figure.compare,
                        rounds: Vec::new(),
                    },
                );
                after += 1;
            }
        }
    }
    for row in &mut rows {
        let value = |round: &Vec<RoundFigure>| {
            let figure = round.iter().find(|figure| figure.name == row.name)?;
            figure.value
        };
        row.rounds = all
            .iter()
            .map(|rounds| rounds.iter().map(value).collect())
            .collect();
    }
    rows
}

impl FigureRow {
    fn median(&self, server: usize) -> Option<f64> {
        median(self.rounds[server].iter().copied().flatten())
    }

    /// Returns the median of the rounds' ratios. A disturbance of a round disturbs both servers.
    fn ratio(&self, server: usize) -> Option<f64> {
        let pairs = self.rounds[server].iter().zip(&self.rounds[0]);
        // Over next to nothing, a ratio is the size of a clock tick.
        let least = if self.name.starts_with(CPU) {
            LEAST_CPU
        } else {
            0.0
        };
        let pairs = pairs.filter_map(|(value, first)| Some(((*value)?, (*first)?)));
        let ratios = pairs
            .filter(|(_, first)| *first >= least)
            .map(|(value, first)| value / first);
        median(ratios.filter(|ratio| ratio.is_finite())).filter(|_| self.compare)
    }
}

/// Writes counts as they are, with separators, and everything else in three significant digits.
fn figure(value: f64, unit: &str) -> String {
    if unit.is_empty() || value >= 1000.0 {
        return grouped(format_args!("{value:.0}"));
    }
    three_digits(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::test_support::result as measured;

    #[test]
    fn rounds_become_medians_and_ratios_of_rounds() {
        let text = table(&measured());
        let line = |start: &str| {
            let line = text
                .lines()
                .find(|line| line.starts_with(&format!("| {start} ")));
            line.unwrap_or_else(|| panic!("no {start} in\n{text}"))
                .split('|')
                .map(str::trim)
                .collect::<Vec<_>>()
        };
        // 10/20, 10/10, 10/40: the middle is a half.
        assert_eq!(line("write to event, p99")[3..6], ["20.0", "10.0", "0.50"]);
        assert_eq!(line("events owed")[3..6], ["2,000,000", "2,000,000", "–"]);
        assert_eq!(line("events")[2..5], ["1/s", "1,000,000", "1,000,000"]);
        assert_eq!(line("CPU of api")[2..4], ["cores", "0.750"]);
        let widths: Vec<_> = text.lines().map(|line| line.chars().count()).collect();
        assert!(widths.windows(2).all(|pair| pair[0] == pair[1]), "{text}");
    }

    #[test]
    fn what_was_not_measured_has_no_figure() {
        let mut measured = measured();
        for round in &mut measured.servers[1].rounds {
            round.watches_begun = 0;
        }
        let text = table(&measured);
        for name in ["first state, p50", "first state, all watches"] {
            let line = text.lines().find(|line| line.contains(name)).unwrap();
            let cells: Vec<_> = line.split('|').map(str::trim).collect();
            assert_eq!(cells[4..6], ["–", "–"], "{line}");
        }
    }

    #[test]
    fn the_verdict_names_what_went_wrong() {
        let mut measured = measured();
        let text = verdict(&measured);
        assert!(
            text.contains("direct: every one of 6000000 events arrived, once and in order"),
            "{text}"
        );
        assert!(
            text.contains("3 of 6000000 events were lost, 0 came again or late"),
            "{text}"
        );
        assert!(!measured.is_clean());
        measured.servers[1].rounds.remove(1);
        assert!(measured.is_clean());
        measured.errors.push("left over".to_owned());
        assert!(!measured.is_clean() && verdict(&measured).contains("left over"));
    }

    #[test]
    fn programs_get_the_same_figures() {
        let rows = comparison(&measured());
        let row = rows
            .as_array()
            .unwrap()
            .iter()
            .find(|row| row["figure"] == "write to event, p99")
            .unwrap();
        assert_eq!(row["servers"]["direct"]["median"], 20.0);
        assert_eq!(row["servers"]["a <proxy> & more"]["ratio"], 0.5);
        assert_eq!(
            row["servers"]["direct"]["rounds"],
            json!([20.0, 10.0, 40.0])
        );
    }
}
