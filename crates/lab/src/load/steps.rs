//! What servers cost against the number of watches: several results of `load`, drawn as one picture
//! (SVG).
use std::collections::BTreeMap;

use anyhow::{Context, ensure};
use serde::Deserialize;

use super::plot::{Curve, Panel, against_watches};
use super::round::OWN;
use watershed_figures::median;

/// The part of `result.json` that is drawn.
#[derive(Debug, Deserialize)]
struct Result {
    servers: Vec<Server>,
}

#[derive(Debug, Deserialize)]
struct Server {
    name: String,
    rounds: Vec<Round>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Round {
    seconds: f64,
    watches: usize,
    watch_bytes: u64,
    delivery: Delivery,
    processes: BTreeMap<String, Consumption>,
}

#[derive(Debug, Deserialize)]
struct Delivery {
    count: u64,
    p50: f64,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Consumption {
    cpu_seconds: f64,
    memory_bytes: u64,
}

/// What a round says of a panel.
type Figure<'a> = Box<dyn Fn(&Round) -> Option<f64> + 'a>;

/// A picture of these results (the text of `result.json` files): CPU and memory of each process,
/// bytes to clients and how long events took, against the number of watches. Of several rounds the
/// median is drawn.
///
/// # Errors
/// A text is no result, or the results are of fewer than two numbers of watches.
pub fn steps(texts: &[String]) -> anyhow::Result<String> {
    let read = |text: &String| {
        serde_json::from_str(text).context("no result of watershed load (result.json)")
    };
    let results: Vec<Result> = texts.iter().map(read).collect::<anyhow::Result<_>>()?;
    let servers = || results.iter().flat_map(|result| &result.servers);
    let mut names: Vec<&str> = Vec::new();
    for server in servers() {
        if !names.contains(&&*server.name) {
            names.push(&server.name);
        }
    }
    let rounds = || servers().flat_map(|server| &server.rounds);
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
    processes.retain(|name| *name != OWN);

    let mut panels = Vec::new();
    let mut add = |title: String, unit, figure: Figure<'_>| {
        let curves = names.iter().enumerate().filter_map(|(server, name)| {
            let of = |count: usize| {
                let rounds = servers()
                    .filter(|server| server.name == *name)
                    .flat_map(|server| &server.rounds);
                median(
                    rounds
                        .filter(|round| round.watches == count)
                        .filter_map(&figure),
                )
            };
            let points: Vec<_> = counts
                .iter()
                .filter_map(|&count| Some((count as f64, of(count)?)))
                .collect();
            (points.len() > 1).then_some(Curve { server, points })
        });
        let panel = Panel {
            title,
            unit,
            curves: curves.collect(),
        };
        if !panel.curves.is_empty() {
            panels.push(panel);
        }
    };
    for name in processes {
        add(
            format!("CPU of {name}"),
            "cores",
            Box::new(|round| Some(round.processes.get(name)?.cpu_seconds / round.seconds)),
        );
        add(
            format!("memory of {name}"),
            "MiB",
            Box::new(|round| {
                Some(round.processes.get(name)?.memory_bytes as f64 / f64::from(1 << 20))
            }),
        );
    }
    add(
        "bytes to clients".to_owned(),
        "MB/s",
        Box::new(|round| Some(round.watch_bytes as f64 / 1e6 / round.seconds)),
    );
    add(
        "from a write to its event, median".to_owned(),
        "ms",
        Box::new(|round| (round.delivery.count > 0).then_some(round.delivery.p50)),
    );
    against_watches(&panels, &names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::table::tests::measured;

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
        let svg = steps(&[result(100), result(10), result(50)]).unwrap();
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
    fn what_makes_no_curve_is_said() {
        for (texts, why) in [
            (vec![result(10)], "other --watches"),
            (vec!["{}".to_owned()], "result.json"),
            (vec![], "other --watches"),
        ] {
            let error = format!("{:#}", steps(&texts).unwrap_err());
            assert!(error.contains(why), "{error}");
        }
    }
}
