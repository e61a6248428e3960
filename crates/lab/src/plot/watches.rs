//! Costs of servers against the number of watches: several results of `watershed load` as one
//! picture.
use anyhow::{Context, ensure};
use serde::Deserialize;
use watershed_figures::median;

use super::drawing::{Axis, Curve, Panel, draw};
use crate::load::{OWN_PROCESS, RoundResult, ServerResult};

/// The part of `result.json` that is drawn.
#[derive(Debug, Deserialize)]
struct ResultFile {
    servers: Vec<ServerResult>,
}

/// Draws several results, given as the text of `result.json` files.
///
/// The picture shows CPU and memory of each process, bytes to clients and the delay of events,
/// against the number of watches. Several rounds become their median.
///
/// # Errors
/// A text is not a result, or all results have the same number of watches.
pub fn plot_by_watches(texts: &[String]) -> anyhow::Result<String> {
    let mut servers = Vec::new();
    for text in texts {
        let file: ResultFile =
            serde_json::from_str(text).context("not a result of watershed load (result.json)")?;
        servers.extend(file.servers);
    }
    let rounds = || servers.iter().flat_map(|server| &server.rounds);
    let mut counts: Vec<usize> = rounds().map(|round| round.watches).collect();
    counts.sort_unstable();
    counts.dedup();
    ensure!(
        counts.len() > 1,
        "results of one number of watches make no curve: repeat load with other --watches"
    );
    let mut processes: Vec<&String> = rounds().flat_map(|round| round.processes.keys()).collect();
    processes.sort();
    processes.dedup();
    processes.retain(|name| *name != OWN_PROCESS);

    let curves = WatchCurves {
        names: names(&servers),
        servers: &servers,
        counts,
    };
    let mut panels = Vec::new();
    for name in processes {
        panels.push(curves.panel(&format!("CPU of {name}"), "cores", |round| {
            Some(round.processes.get(name)?.cpu_seconds / round.seconds)
        }));
        panels.push(curves.panel(&format!("memory of {name}"), "MiB", |round| {
            Some(round.processes.get(name)?.memory_bytes as f64 / f64::from(1 << 20))
        }));
    }
    panels.push(curves.panel("bytes to clients", "MB/s", |round| {
        Some(round.watch_bytes as f64 / 1e6 / round.seconds)
    }));
    panels.push(
        curves.panel("from a write to its event, median", "ms", |round| {
            (round.delivery.count > 0).then_some(round.delivery.p50)
        }),
    );
    panels.retain(|panel| !panel.curves.is_empty());
    ensure!(
        !panels.is_empty(),
        "no server has figures of several numbers of watches: measure each with several --watches"
    );
    draw(&panels, &curves.names, Axis::Watches)
}

/// Returns the servers' names, each once.
fn names(servers: &[ServerResult]) -> Vec<&str> {
    let mut names: Vec<&str> = Vec::new();
    for server in servers {
        if !names.contains(&&*server.name) {
            names.push(&server.name);
        }
    }
    names
}

/// Makes curves over numbers of watches.
struct WatchCurves<'a> {
    servers: &'a [ServerResult],
    names: Vec<&'a str>,
    /// Numbers of watches, ascending.
    counts: Vec<usize>,
}

impl WatchCurves<'_> {
    fn panel(
        &self,
        title: &str,
        unit: &'static str,
        figure: impl Fn(&RoundResult) -> Option<f64>,
    ) -> Panel {
        let mut curves = Vec::new();
        for (server, name) in self.names.iter().enumerate() {
            let points: Vec<_> = self
                .counts
                .iter()
                .filter_map(|&count| Some((count as f64, self.median(name, count, &figure)?)))
                .collect();
            if points.len() > 1 {
                curves.push(Curve { server, points });
            }
        }
        Panel {
            title: title.to_owned(),
            unit,
            curves,
        }
    }

    /// Returns the median over a server's rounds with so many watches.
    fn median(
        &self,
        name: &str,
        watches: usize,
        figure: impl Fn(&RoundResult) -> Option<f64>,
    ) -> Option<f64> {
        let servers = self.servers.iter().filter(|server| server.name == name);
        let rounds = servers.flat_map(|server| &server.rounds);
        let values = rounds
            .filter(|round| round.watches == watches)
            .filter_map(figure);
        // A round without a length has no rates, and an axis without an end cannot be drawn.
        median(values.filter(|value| value.is_finite()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::test_support::result as measured;

    fn result(watches: usize) -> String {
        let mut measured = measured();
        for round in measured
            .servers
            .iter_mut()
            .flat_map(|server| &mut server.rounds)
        {
            round.watches = watches;
        }
        serde_json::to_string(&measured).unwrap()
    }

    #[test]
    fn results_of_load_become_a_picture() {
        let svg = plot_by_watches(&[result(100), result(10), result(50)]).unwrap();
        let document = roxmltree::Document::parse(&svg).unwrap();
        let texts: Vec<_> = document
            .descendants()
            .filter_map(|node| node.text())
            .map(str::trim)
            .collect();
        for text in ["direct", "a <proxy> & more", "bytes to clients, MB/s"] {
            assert!(texts.contains(&text), "{text} in {texts:?}");
        }
        let lines: Vec<_> = document
            .descendants()
            .filter(|node| node.has_tag_name("polyline"))
            .collect();
        let three = lines
            .iter()
            .filter(|line| line.attribute("points").unwrap().split_whitespace().count() == 3);
        assert!(
            three.count() >= 2,
            "a curve of three points for each server"
        );
    }

    #[test]
    fn a_result_without_a_length_has_no_rates() {
        let texts = [result(10), result(50)].map(|text| {
            let mut value: serde_json::Value = serde_json::from_str(&text).unwrap();
            for server in value["servers"].as_array_mut().unwrap() {
                for round in server["rounds"].as_array_mut().unwrap() {
                    round["seconds"] = 0.0.into();
                }
            }
            value.to_string()
        });
        let svg = plot_by_watches(&texts).unwrap();
        assert!(svg.contains("memory of api") && !svg.contains("CPU of api"));
    }

    /// Returns a result of one server.
    fn renamed(watches: usize, name: &str) -> String {
        let mut value: serde_json::Value = serde_json::from_str(&result(watches)).unwrap();
        let servers = value["servers"].as_array_mut().unwrap();
        servers.truncate(1);
        servers[0]["name"] = name.into();
        value.to_string()
    }

    #[test]
    fn results_that_make_no_curve_are_refused() {
        for (texts, why) in [
            (vec![result(10)], "other --watches"),
            (vec!["{}".to_owned()], "result.json"),
            (vec![], "other --watches"),
            // Each server has a single number.
            (
                vec![renamed(10, "one"), renamed(50, "other")],
                "measure each with several --watches",
            ),
        ] {
            let error = format!("{:#}", plot_by_watches(&texts).unwrap_err());
            assert!(error.contains(why), "{error}");
        }
    }
}
