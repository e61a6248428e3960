//! The results as figures: medians of rounds, and ratios to the first server.
use std::fmt::Write as _;

use serde_json::{Map, Value, json};

use super::result::{
    LoadResult, OWN_PROCESS, ProcessConsumption, RequestStats, RoundResult, ServerResult,
};
use watershed_figures::{grouped, markdown_table, median, three_digits};

/// How figures of CPU begin, and what they are at least (cores, seconds) for others to be set in
/// relation to them.
const CPU: &str = "CPU of ";
const LEAST_CPU: f64 = 0.02;

/// All processes that were measured, but for this one.
const SERVERS: &str = "all of these";

/// Errors that are shown; the rest is counted.
const SHOWN: usize = 10;

/// One figure of all servers.
struct FigureRow {
    name: String,
    unit: &'static str,
    /// Whether one server's figure over another's says anything.
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

/// Whether all went well, in words.
pub fn verdict(measured: &LoadResult) -> String {
    let mut out = String::new();
    for server in &measured.servers {
        let sum = |count: fn(&RoundResult) -> u64| server.rounds.iter().map(count).sum::<u64>();
        let expected = sum(|round| round.events_expected);
        let (lost, repeated) = (
            sum(|round| round.events_lost),
            sum(|round| round.events_repeated),
        );
        let name = &server.name;
        let missing: usize = server
            .rounds
            .iter()
            .map(|round| round.watches - round.watches_begun)
            .sum();
        if missing > 0 {
            let _ = writeln!(
                out,
                "{name}: {missing} watches did not have their first state in time"
            );
        }
        if expected > 0 && lost == 0 && repeated == 0 {
            let _ = writeln!(
                out,
                "{name}: every one of {expected} events arrived, once and in order"
            );
        } else if lost > 0 || repeated > 0 {
            let _ = writeln!(
                out,
                "{name}: {lost} of {expected} events were lost, {repeated} came again or late"
            );
        }
        let mut errors = std::collections::BTreeMap::<&str, u64>::new();
        for (text, count) in server.rounds.iter().flat_map(|round| &round.errors) {
            *errors.entry(text).or_default() += count;
        }
        for (text, count) in errors.iter().take(SHOWN) {
            let _ = writeln!(out, "{name}: {count} times: {text}");
        }
        if errors.len() > SHOWN {
            let _ = writeln!(
                out,
                "{name}: and {} further kinds of errors",
                errors.len() - SHOWN
            );
        }
        let skipped = |of: fn(&RoundResult) -> &RequestStats| {
            server
                .rounds
                .iter()
                .map(|round| of(round).skipped)
                .sum::<u64>()
        };
        for (what, skipped) in [
            ("lists", skipped(|r| &r.lists)),
            ("gets", skipped(|r| &r.gets)),
            ("writes", skipped(|r| &r.writes)),
        ] {
            if skipped > 0 {
                let _ = writeln!(
                    out,
                    "{name}: {skipped} {what} were not sent, as too many were waiting for their answers: the rate was not \
                     reached"
                );
            }
        }
    }
    let machine = &measured.setting.machine;
    if machine.is_busy() {
        let _ = writeln!(
            out,
            "this machine was busy before (load average {:.1} on {} cores): do not quote times, and ratios with care",
            machine.load_average, machine.cores
        );
    }
    for error in &measured.errors {
        let _ = writeln!(out, "{error}");
    }
    if measured.interrupted {
        let _ = writeln!(
            out,
            "interrupted: the last round may be shorter, and others are missing"
        );
    }
    out
}

/// What a round measured, figure by figure. What it did not do is left out.
fn figures(round: &RoundResult) -> Vec<(String, &'static str, bool, f64)> {
    let mut all = Vec::new();
    let mut add = |name: &str, unit: &'static str, compare: bool, value: f64| {
        all.push((name.to_owned(), unit, compare, value));
    };
    let per_second = |count: u64| count as f64 / round.seconds.max(f64::MIN_POSITIVE);
    if round.watches > 0 {
        add("watches", "", false, round.watches_begun as f64);
        add("first state, p50", "ms", true, round.first_state.p50);
        add("first state, p99", "ms", true, round.first_state.p99);
        add("first state, all watches", "s", true, round.opening_seconds);
        add("events", "1/s", true, per_second(round.events));
        add(
            "watch bytes",
            "MB/s",
            true,
            per_second(round.watch_bytes) / 1e6,
        );
    }
    if round.events_expected > 0 {
        add("events owed", "", false, round.events_expected as f64);
        add("events lost", "", false, round.events_lost as f64);
        add("events repeated", "", false, round.events_repeated as f64);
    }
    if round.watches_resumed > 0 {
        add("watches resumed", "", false, round.watches_resumed as f64);
    }
    if round.delivery.count > 0 {
        add("write to event, p50", "ms", true, round.delivery.p50);
        add("write to event, p90", "ms", true, round.delivery.p90);
        add("write to event, p99", "ms", true, round.delivery.p99);
        add("write to event, max", "ms", true, round.delivery.max);
    }
    for (name, short) in [
        ("lists", &round.lists),
        ("gets", &round.gets),
        ("writes", &round.writes),
    ] {
        if short.answered == 0 && short.skipped == 0 {
            continue;
        }
        add(name, "1/s", true, per_second(short.answered));
        if name != "writes" && short.answered > 0 {
            add(
                &format!("{name}, bytes of one"),
                "kB",
                true,
                short.bytes as f64 / short.answered as f64 / 1e3,
            );
        }
        add(&format!("{name}, p50"), "ms", true, short.latency.p50);
        add(&format!("{name}, p99"), "ms", true, short.latency.p99);
    }
    // This program comes last, after the sum of all servers'.
    let others = || {
        round
            .processes
            .iter()
            .filter(|(name, _)| *name != OWN_PROCESS)
    };
    let sum = |of: fn(&ProcessConsumption) -> f64| others().map(|(_, used)| of(used)).sum::<f64>();
    let together = ProcessConsumption {
        opening_cpu_seconds: sum(|used| used.opening_cpu_seconds),
        cpu_seconds: sum(|used| used.cpu_seconds),
        memory_bytes: others().map(|(_, used)| used.memory_bytes).sum(),
    };
    let together = (others().count() > 1).then_some((SERVERS, &together, true));
    let each = others().map(|(name, used)| (&**name, used, true));
    let own = round
        .processes
        .get(OWN_PROCESS)
        .map(|used| ("this load", used, false));
    for (title, used, compare) in each.chain(together).chain(own) {
        add(
            &format!("{CPU}{title}, opening"),
            "s",
            compare,
            used.opening_cpu_seconds,
        );
        add(
            &format!("{CPU}{title}"),
            "cores",
            compare,
            used.cpu_seconds / round.seconds.max(f64::MIN_POSITIVE),
        );
        add(
            &format!("memory of {title}"),
            "MiB",
            compare,
            used.memory_bytes as f64 / f64::from(1 << 20),
        );
    }
    add(
        "errors",
        "",
        false,
        round.errors.values().sum::<u64>() as f64,
    );
    all
}

/// All figures that any server has, in the order in which they come up.
fn rows(servers: &[ServerResult]) -> Vec<FigureRow> {
    let all: Vec<Vec<Vec<_>>> = servers
        .iter()
        .map(|server| server.rounds.iter().map(figures).collect())
        .collect();
    let mut rows: Vec<FigureRow> = Vec::new();
    for round in all.iter().flatten() {
        // Where a figure that is new comes after: so none is torn from its neighbours.
        let mut after = 0;
        for (name, unit, compare, _) in round {
            if let Some(at) = rows.iter().position(|row| row.name == *name) {
                after = at + 1;
            } else {
                rows.insert(
                    after,
                    FigureRow {
                        name: name.clone(),
                        unit,
                        compare: *compare,
                        rounds: Vec::new(),
                    },
                );
                after += 1;
            }
        }
    }
    for row in &mut rows {
        let value = |round: &Vec<(String, _, _, f64)>| {
            round
                .iter()
                .find(|figure| figure.0 == row.name)
                .map(|f| f.3)
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

    /// The median of the rounds' ratios: what disturbs a round disturbs both servers.
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

/// Counts as they are, with separators; everything else in three digits that matter.
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
