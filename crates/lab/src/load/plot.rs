//! The results as pictures (SVG).
use std::ops::Range;

use anyhow::anyhow;
use plotters::coord::Shift;
use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};
use plotters::prelude::*;

use super::measured::{Distribution, LoadResult, RoundResult};
use super::round::OWN;

/// Of one panel.
const WIDTH: u32 = 640;
const HEIGHT: u32 = 300;
const COLUMNS: usize = 2;
/// Of the line above all panels.
const LEGEND: u32 = 34;
const FONT: &str = "sans-serif";

/// One for each server; readable also by those who do not see red from green.
const COLOURS: [RGBColor; 10] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(230, 159, 0),
    RGBColor(90, 90, 90),
    RGBColor(128, 0, 128),
    RGBColor(150, 120, 60),
    RGBColor(0, 0, 0),
];

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// A curve and the server it belongs to.
pub(super) struct Curve {
    pub(super) server: usize,
    pub(super) points: Vec<(f64, f64)>,
}

/// What is drawn in one place.
pub(super) struct Panel {
    pub(super) title: String,
    pub(super) unit: &'static str,
    pub(super) curves: Vec<Curve>,
}

/// File names and pictures: how long events and requests took, and what happened over time. What
/// was not measured has none.
pub fn plots(measured: &LoadResult) -> anyhow::Result<Vec<(&'static str, String)>> {
    let mut files = Vec::new();
    let names: Vec<&str> = measured
        .servers
        .iter()
        .map(|server| &*server.name)
        .collect();
    let latencies = [
        latency(measured, "from a write to its event", |round| {
            &round.delivery
        }),
        latency(measured, "first state of a watch", |round| {
            &round.first_state
        }),
        latency(measured, "list", |round| &round.lists.latency),
        latency(measured, "get", |round| &round.gets.latency),
    ];
    let latencies: Vec<_> = latencies
        .into_iter()
        .filter(|panel| !panel.curves.is_empty())
        .collect();
    if !latencies.is_empty() {
        files.push(("latency.svg", draw(&latencies, &names, quantile_panel)?));
    }
    let mut panels = Vec::new();
    if measured
        .servers
        .iter()
        .flat_map(|server| &server.rounds)
        .any(|round| round.watches > 0)
    {
        panels.push(over_time(
            measured,
            "events of all watches",
            "1/s",
            |round| {
                round
                    .samples
                    .iter()
                    .map(|sample| (sample.seconds, sample.events_per_second))
                    .collect()
            },
        ));
        panels.push(over_time(
            measured,
            "bytes of all watches",
            "MB/s",
            |round| {
                round
                    .samples
                    .iter()
                    .map(|sample| (sample.seconds, sample.watch_bytes_per_second / 1e6))
                    .collect()
            },
        ));
    }
    for name in processes(measured) {
        let title = if name == OWN {
            "this load".to_owned()
        } else {
            name.clone()
        };
        panels.push(over_time(
            measured,
            &format!("CPU of {title}"),
            "cores",
            |round| {
                let point =
                    |sample: &super::Sample| Some((sample.seconds, *sample.cores.get(&name)?));
                round.samples.iter().filter_map(point).collect()
            },
        ));
        panels.push(over_time(
            measured,
            &format!("resident memory of {title}"),
            "MiB",
            |round| {
                let point = |sample: &super::Sample| {
                    Some((
                        sample.seconds,
                        *sample.memory_bytes.get(&name)? as f64 / f64::from(1 << 20),
                    ))
                };
                round.samples.iter().filter_map(point).collect()
            },
        ));
    }
    panels.retain(|panel| !panel.curves.is_empty());
    if !panels.is_empty() {
        files.push(("time.svg", draw(&panels, &names, time_panel)?));
    }
    Ok(files)
}

/// Panels whose points lie at numbers of watches.
pub(super) fn against_watches(panels: &[Panel], names: &[&str]) -> anyhow::Result<String> {
    draw(panels, names, |area, panel| {
        linear_panel(area, panel, Bottom::Watches)
    })
}

/// The processes that were measured, this program last.
fn processes(measured: &LoadResult) -> Vec<String> {
    let rounds = measured.servers.iter().flat_map(|server| &server.rounds);
    let mut names: Vec<String> = rounds
        .flat_map(|round| round.processes.keys().cloned())
        .collect();
    names.sort_by_key(|name| (name == OWN, name.clone()));
    names.dedup();
    names
}

/// All rounds of a server together.
fn latency(measured: &LoadResult, title: &str, of: fn(&RoundResult) -> &Distribution) -> Panel {
    let curves = measured
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

/// Each round of a server as a curve of its own.
fn over_time(
    measured: &LoadResult,
    title: &str,
    unit: &'static str,
    of: impl Fn(&RoundResult) -> Vec<(f64, f64)>,
) -> Panel {
    let mut curves = Vec::new();
    for (server, results) in measured.servers.iter().enumerate() {
        for mut points in results.rounds.iter().map(&of) {
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

/// Panels in two columns, with the servers' colours above.
fn draw(
    panels: &[Panel],
    names: &[&str],
    panel: fn(&Area<'_>, &Panel) -> anyhow::Result<()>,
) -> anyhow::Result<String> {
    let mut svg = String::new();
    {
        let columns = panels.len().min(COLUMNS);
        let rows = panels.len().div_ceil(COLUMNS);
        let size = (
            WIDTH * u32::try_from(columns)?,
            LEGEND + HEIGHT * u32::try_from(rows)?,
        );
        let root = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        root.fill(&WHITE).map_err(unable)?;
        let (above, below) = root.split_vertically(LEGEND);
        legend(&above, names)?;
        for (area, one) in below.split_evenly((rows, columns)).iter().zip(panels) {
            panel(area, one)?;
        }
        root.present().map_err(unable)?;
    }
    Ok(svg)
}

/// A dash of its colour before each server's name.
fn legend(area: &Area<'_>, names: &[&str]) -> anyhow::Result<()> {
    let mut x = 76;
    for (server, name) in names.iter().enumerate() {
        let colour = COLOURS[server % COLOURS.len()];
        area.draw(&PathElement::new(
            [(x, 18), (x + 24, 18)],
            colour.stroke_width(4),
        ))
        .map_err(unable)?;
        area.draw(&Text::new(
            (*name).to_owned(),
            (x + 32, 9),
            (FONT, 17).into_font(),
        ))
        .map_err(unable)?;
        // About the width of the name.
        x += 32 + 10 * i32::try_from(name.chars().count())? + 30;
    }
    Ok(())
}

/// Quantiles to the right, each decade of what is left as wide as the one before; milliseconds
/// upwards, in decades, too.
fn quantile_panel(area: &Area<'_>, panel: &Panel) -> anyhow::Result<()> {
    let values = || panel.curves.iter().flat_map(|curve| &curve.points);
    let right = values().map(|point| point.0).fold(1.0, f64::max);
    let low = values()
        .map(|point| point.1)
        .fold(f64::MAX, f64::min)
        .max(0.001);
    let high = values().map(|point| point.1).fold(low, f64::max);
    let (low, high) = (low.log10().floor(), high.log10().ceil());
    let high = if high > low { high } else { low + 1.0 };
    let mut chart = ChartBuilder::on(area)
        .caption(format!("{}, {}", panel.title, panel.unit), (FONT, 17))
        .margin(12)
        .margin_right(28)
        .x_label_area_size(32)
        .y_label_area_size(64)
        .build_cartesian_2d(0.0..right, Decades(low..high))
        .map_err(unable)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(WHITE)
        .bold_line_style(BLACK.mix(0.15))
        .x_labels(usize::try_from(right as i64).unwrap_or(0) + 2)
        .x_label_formatter(&|x| percentile(*x))
        .x_label_style((FONT, 13))
        .y_label_style((FONT, 13))
        .draw()
        .map_err(unable)?;
    let points = |curve: &Curve| {
        curve
            .points
            .iter()
            .map(|(x, ms)| (*x, ms.max(0.001).log10()))
            .collect()
    };
    lines(&mut chart, panel, points)
}

fn time_panel(area: &Area<'_>, panel: &Panel) -> anyhow::Result<()> {
    linear_panel(area, panel, Bottom::Seconds)
}

/// What goes to the right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bottom {
    Seconds,
    /// Few points, which are marked.
    Watches,
}

fn linear_panel(area: &Area<'_>, panel: &Panel, bottom: Bottom) -> anyhow::Result<()> {
    let (unit, described, label_area) = match bottom {
        Bottom::Seconds => (" s", "", 32),
        Bottom::Watches => ("", "watches", 48),
    };
    let values = || panel.curves.iter().flat_map(|curve| &curve.points);
    let right = values().map(|point| point.0).fold(1.0, f64::max);
    let high = values().map(|point| point.1).fold(0.0, f64::max).max(0.001) * 1.15;
    let mut chart = ChartBuilder::on(area)
        .caption(format!("{}, {}", panel.title, panel.unit), (FONT, 17))
        .margin(12)
        .margin_right(28)
        .x_label_area_size(label_area)
        .y_label_area_size(64)
        .build_cartesian_2d(0.0..right, 0.0..high)
        .map_err(unable)?;
    let digits = if high < 2.0 { 2 } else { 0 };
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(WHITE)
        .bold_line_style(BLACK.mix(0.15))
        .y_labels(6)
        .x_label_formatter(&|x| format!("{x:.0}{unit}"))
        .x_desc(described)
        .y_label_formatter(&|y| format!("{y:.digits$}"))
        .x_label_style((FONT, 13))
        .y_label_style((FONT, 13))
        .draw()
        .map_err(unable)?;
    lines(&mut chart, panel, |curve| curve.points.clone())?;
    if bottom == Bottom::Watches {
        for curve in &panel.curves {
            let colour = COLOURS[curve.server % COLOURS.len()];
            let marks = curve
                .points
                .iter()
                .map(|point| Circle::new(*point, 4, colour.filled()));
            chart.draw_series(marks).map_err(unable)?;
        }
    }
    Ok(())
}

type Chart<'a, 'b, Y> =
    ChartContext<'a, SVGBackend<'b>, Cartesian2d<plotters::coord::types::RangedCoordf64, Y>>;

/// The curves.
fn lines<Y: Ranged<ValueType = f64>>(
    chart: &mut Chart<'_, '_, Y>,
    panel: &Panel,
    points: impl Fn(&Curve) -> Vec<(f64, f64)>,
) -> anyhow::Result<()> {
    for curve in &panel.curves {
        let colour = COLOURS[curve.server % COLOURS.len()];
        chart
            .draw_series(LineSeries::new(points(curve), colour.stroke_width(2)))
            .map_err(unable)?;
    }
    Ok(())
}

fn unable(error: impl std::fmt::Display) -> anyhow::Error {
    anyhow!("a plot cannot be drawn: {error}")
}

/// 0 → all, 1 → 90 %, 2 → 99 %.
fn percentile(decades: f64) -> String {
    let percent = 100.0 * (1.0 - 10_f64.powf(-decades));
    let text = format!("{percent:.4}");
    format!("{} %", text.trim_end_matches('0').trim_end_matches('.'))
}

/// An axis of logarithms with a line at each power of ten.
struct Decades(Range<f64>);

impl Ranged for Decades {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        let share = (value - self.0.start) / (self.0.end - self.0.start);
        limit.0 + (share * f64::from(limit.1 - limit.0)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        let (first, last) = (self.0.start as i32, self.0.end as i32);
        (first..=last).map(f64::from).collect()
    }

    fn range(&self) -> Range<f64> {
        self.0.clone()
    }
}

impl ValueFormatter<f64> for Decades {
    fn format(value: &f64) -> String {
        let milliseconds = 10_f64.powf(*value);
        if milliseconds >= 1.0 {
            format!("{milliseconds:.0}")
        } else {
            format!("{milliseconds:.3}")
                .trim_end_matches('0')
                .to_owned()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::table::tests::measured;

    #[test]
    fn pictures_are_well_formed_and_name_every_server() {
        let files = plots(&measured()).unwrap();
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
    fn nothing_measured_is_no_picture() {
        let mut nothing = measured();
        nothing
            .servers
            .iter_mut()
            .for_each(|server| server.rounds.clear());
        assert!(plots(&nothing).unwrap().is_empty());
    }

    #[test]
    fn axes_are_labelled_for_people() {
        assert_eq!(
            [0.0, 1.0, 2.0, 3.0].map(percentile),
            ["0 %", "90 %", "99 %", "99.9 %"]
        );
        assert_eq!(
            [-2.0, 0.0, 3.0].map(|v| Decades::format(&v)),
            ["0.01", "1", "1000"]
        );
    }
}
