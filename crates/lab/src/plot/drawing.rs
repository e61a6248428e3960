//! Panels with curves, drawn as SVG.
use std::ops::Range;

use anyhow::anyhow;
use plotters::coord::Shift;
use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};
use plotters::prelude::*;

/// Size of one panel.
const WIDTH: u32 = 640;
const HEIGHT: u32 = 300;
const COLUMNS: usize = 2;
/// Height of the line above all panels.
const LEGEND: u32 = 34;
const FONT: &str = "sans-serif";

/// Colours of the servers, which people who do not tell red from green can tell apart, too.
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

/// The quantity that grows to the right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Axis {
    /// Quantiles of latencies, which are logarithmic.
    Quantiles,
    /// Time since the measurement began.
    Seconds,
    /// Numbers of watches: few points, which are marked.
    Watches,
}

/// A curve and the server it belongs to.
pub(super) struct Curve {
    pub(super) server: usize,
    pub(super) points: Vec<(f64, f64)>,
}

/// One chart of a picture.
pub(super) struct Panel {
    pub(super) title: String,
    pub(super) unit: &'static str,
    pub(super) curves: Vec<Curve>,
}

/// Draws panels in two columns, with the servers' colours above.
pub(super) fn draw(panels: &[Panel], names: &[&str], axis: Axis) -> anyhow::Result<String> {
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
            match axis {
                Axis::Quantiles => quantile_panel(area, one)?,
                Axis::Seconds | Axis::Watches => linear_panel(area, one, axis)?,
            }
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

/// Draws latencies by quantile. Both axes are logarithmic: each decade is as wide as the next.
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

fn linear_panel(area: &Area<'_>, panel: &Panel, axis: Axis) -> anyhow::Result<()> {
    let (unit, described, label_area) = match axis {
        Axis::Quantiles | Axis::Seconds => (" s", "", 32),
        Axis::Watches => ("", "watches", 48),
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
    if axis == Axis::Watches {
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

type CurveChart<'a, 'b, Y> =
    ChartContext<'a, SVGBackend<'b>, Cartesian2d<plotters::coord::types::RangedCoordf64, Y>>;

/// Draws the curves.
fn lines<Y: Ranged<ValueType = f64>>(
    chart: &mut CurveChart<'_, '_, Y>,
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
    anyhow!("cannot draw a plot: {error}")
}

/// Writes a number of decades as a percentage: 1 is 90 %, 2 is 99 %.
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
