//! One result of `watershed load` as pictures.
use super::drawing::{Axis, Curve, Panel, draw};
use crate::load::{Distribution, LoadResult, OWN_PROCESS, RoundResult, Sample};

/// Draws the latencies and what happened over time. Returns file names and their contents.
///
/// Work that was not measured is left out.
pub fn plot_result(result: &LoadResult) -> anyhow::Result<Vec<(&'static str, String)>> {
    let names: Vec<&str> = result.servers.iter().map(|server| &*server.name).collect();
    let mut files = Vec::new();
    for (name, panels, axis) in [
        ("latency.svg", latency_panels(result), Axis::Quantiles),
        ("time.svg", time_panels(result), Axis::Seconds),
    ] {
        let drawn: Vec<_> = panels
            .into_iter()
            .filter(|panel| !panel.curves.is_empty())
            .collect();
        if !drawn.is_empty() {
            files.push((name, draw(&drawn, &names, axis)?));
        }
    }
    Ok(files)
}

fn latency_panels(result: &LoadResult) -> Vec<Panel> {
    vec![
        latency(result, "from a write to its event", |round| &round.delivery),
        latency(result, "first state of a watch", |round| &round.first_state),
        latency(result, "list", |round| &round.lists.latency),
        latency(result, "get", |round| &round.gets.latency),
    ]
}

fn time_panels(result: &LoadResult) -> Vec<Panel> {
    let mut panels = Vec::new();
    let mut rounds = result.servers.iter().flat_map(|server| &server.rounds);
    if rounds.any(|round| round.watches > 0) {
        panels.push(over_time(
            result,
            "events of all watches",
            "1/s",
            |sample| Some(sample.events_per_second),
        ));
        panels.push(over_time(
            result,
            "bytes of all watches",
            "MB/s",
            |sample| Some(sample.watch_bytes_per_second / 1e6),
        ));
    }
    for name in processes(result) {
        let title = if name == OWN_PROCESS {
            "this load"
        } else {
            &name
        };
        panels.push(over_time(
            result,
            &format!("CPU of {title}"),
            "cores",
            |sample| sample.cores.get(&name).copied(),
        ));
        panels.push(over_time(
            result,
            &format!("resident memory of {title}"),
            "MiB",
            |sample| Some(*sample.memory_bytes.get(&name)? as f64 / f64::from(1 << 20)),
        ));
    }
    panels
}

/// Returns the names of the measured processes, this program last.
fn processes(result: &LoadResult) -> Vec<String> {
    let rounds = result.servers.iter().flat_map(|server| &server.rounds);
    let mut names: Vec<String> = rounds
        .flat_map(|round| round.processes.keys().cloned())
        .collect();
    names.sort_by_key(|name| (name == OWN_PROCESS, name.clone()));
    names.dedup();
    names
}

/// Draws all rounds of a server as one curve.
fn latency(result: &LoadResult, title: &str, of: fn(&RoundResult) -> &Distribution) -> Panel {
    let curves = result
        .servers
        .iter()
        .enumerate()
        .filter_map(|(server, results)| {
            let mut rounds = results.rounds.iter().map(of);
            let joined = Distribution::joined(results.rounds.iter().map(of));
            // What was read back from a file has its quantiles only.
            let quantiles = if joined.count > 0 {
                joined.quantiles
            } else {
                rounds.next()?.quantiles.clone()
            };
            let whole = quantiles
                .iter()
                .map(|(quantile, milliseconds)| (1.0 - quantile, *milliseconds));
            let points: Vec<_> = whole
                .filter(|(above, _)| *above > 0.0)
                .map(|(above, ms)| (-above.log10(), ms))
                .collect();
            (points.len() > 1).then_some(Curve { server, points })
        });
    Panel {
        title: title.to_owned(),
        unit: "ms",
        curves: curves.collect(),
    }
}

/// Draws each round of a server as a curve of its own.
fn over_time(
    result: &LoadResult,
    title: &str,
    unit: &'static str,
    of: impl Fn(&Sample) -> Option<f64>,
) -> Panel {
    let mut curves = Vec::new();
    for (server, results) in result.servers.iter().enumerate() {
        for round in &results.rounds {
            let samples = round.samples.iter();
            let values = samples.filter_map(|sample| Some((sample.seconds, of(sample)?)));
            let mut points: Vec<_> = values.filter(|(_, value)| value.is_finite()).collect();
            // A sample tells of the time before it.
            if let Some((_, first)) = points.first().copied() {
                points.insert(0, (0.0, first));
                curves.push(Curve { server, points });
            }
        }
    }
    Panel {
        title: title.to_owned(),
        unit,
        curves,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::test_support::result as measured;

    #[test]
    fn pictures_are_well_formed_and_name_every_server() {
        let files = plot_result(&measured()).unwrap();
        assert_eq!(
            files.iter().map(|(name, _)| *name).collect::<Vec<_>>(),
            ["latency.svg", "time.svg"]
        );
        for (name, svg) in files {
            let document =
                roxmltree::Document::parse(&svg).unwrap_or_else(|error| panic!("{name}: {error}"));
            let texts: Vec<_> = document
                .descendants()
                .filter_map(|node| node.text())
                .map(str::trim)
                .collect();
            for server in ["direct", "a <proxy> & more"] {
                assert!(texts.contains(&server), "{name}: {texts:?}");
            }
            assert!(
                document
                    .descendants()
                    .filter(|node| node.has_tag_name("polyline"))
                    .count()
                    >= 2
            );
        }
    }

    #[test]
    fn a_result_without_rounds_makes_no_picture() {
        let mut nothing = measured();
        nothing
            .servers
            .iter_mut()
            .for_each(|server| server.rounds.clear());
        assert!(plot_result(&nothing).unwrap().is_empty());
    }
}
