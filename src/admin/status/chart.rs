//! Small charts of the last minutes, as SVG in the page.
use std::fmt::Write as _;

use maud::{Markup, html};

use crate::admin::history::Series;

const WIDTH: f64 = 300.0;
const HEIGHT: f64 = 84.0;

/// One chart.
pub(super) struct Chart<'a> {
    pub(super) title: &'a str,
    /// Name and values of both lines: the first is filled, the second drawn over it.
    pub(super) lines: [(&'a str, &'a Series); 2],
    /// Formats a value.
    pub(super) show: fn(f64) -> String,
    /// Set for values in bytes, whose units are multiples of 1024.
    pub(super) bytes: bool,
    /// Label of the left end.
    pub(super) since: &'a str,
}

impl Chart<'_> {
    /// Renders the chart as a figure with an SVG.
    pub(super) fn render(&self) -> Markup {
        let most = self
            .lines
            .iter()
            .flat_map(|(_, line)| line.iter().copied())
            .fold(0.0, f64::max);
        let top = if self.bytes {
            nice_bytes(most)
        } else {
            nice(most)
        };
        let described = self
            .lines
            .map(|(name, line)| format!("{name} {}", self.latest(line)))
            .join(", ");
        let [filled, drawn] = self.lines.map(|(_, line)| path(line, top));
        html! {
            figure.chart {
                figcaption { (self.title) }
                p.legend {
                    @for (n, (name, line)) in self.lines.iter().enumerate() {
                        span.{"key key" (n)} { (name) " " b { (self.latest(line)) } }
                    }
                }
                svg viewBox=(format!("0 0 {WIDTH} {HEIGHT}")) preserveAspectRatio="none" role="img"
                    aria-label=(format!("{}: {described}", self.title)) {
                    @for part in [0.0, 0.5] {
                        line.grid x1="0" x2=(WIDTH)
                            y1=(HEIGHT * part + 0.5) y2=(HEIGHT * part + 0.5) {}
                    }
                    line.base x1="0" x2=(WIDTH) y1=(HEIGHT - 0.5) y2=(HEIGHT - 0.5) {}
                    @if !filled.is_empty() {
                        path.area d=(format!("{filled} V{HEIGHT} H0 Z")) {}
                        path.line0 d=(filled) {}
                        path.line1 d=(drawn) {}
                    }
                }
                p.axis {
                    span { (self.since) }
                    span { "up to " (round(&(self.show)(top))) }
                    span { "now" }
                }
            }
        }
    }

    fn latest(&self, line: &Series) -> String {
        line.last()
            .map_or_else(|| "–".to_owned(), |value| (self.show)(*value))
    }
}

/// Removes trailing zeros of the fraction: 5.00 and 10.0 MiB become 5 and 10 MiB.
fn round(figure: &str) -> String {
    let (number, unit) = figure
        .split_once(' ')
        .map_or((figure, None), |(number, unit)| (number, Some(unit)));
    let short = if number.contains('.') {
        number.trim_end_matches('0').trim_end_matches('.')
    } else {
        number
    };
    unit.map_or_else(|| short.to_owned(), |unit| format!("{short} {unit}"))
}

/// Returns an SVG path from the left edge to the right one, or nothing for fewer than two values.
fn path(line: &Series, top: f64) -> String {
    let mut path = String::new();
    if line.len() < 2 {
        return path;
    }
    let step = WIDTH / (line.len() - 1) as f64;
    for (n, value) in line.iter().enumerate() {
        let height = if top > 0.0 { value / top } else { 0.0 };
        let (x, y) = (
            step * n as f64,
            (HEIGHT - 2.0).mul_add(-height, HEIGHT - 1.0),
        );
        // Writing to a String cannot fail.
        let _ = write!(path, "{}{x:.1} {y:.1}", if n == 0 { 'M' } else { 'L' });
    }
    path
}

/// Returns the next round number: 1, 2 or 5 times a power of ten.
fn nice(most: f64) -> f64 {
    if most <= 0.0 || !most.is_finite() {
        return 0.0;
    }
    let power = 10_f64.powf(most.log10().floor());
    [1.0, 2.0, 5.0, 10.0]
        .map(|digit| digit * power)
        .into_iter()
        .find(|nice| *nice >= most)
        .unwrap_or(most)
}

/// Returns the next round number in the unit in which `bytes` shows the value.
fn nice_bytes(most: f64) -> f64 {
    let mut unit = 1.0;
    while most / unit >= 1000.0 {
        unit *= 1024.0;
    }
    nice(most / unit) * unit
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chart_reaches_from_edge_to_edge() {
        assert_eq!(
            path(&vec![0.0, 5.0, 10.0], 10.0),
            "M0.0 83.0L150.0 42.0L300.0 1.0"
        );
        assert_eq!(path(&vec![0.0; 2], 0.0), "M0.0 83.0L300.0 83.0");
        assert_eq!(path(&vec![1.0], 1.0), "");
    }

    #[test]
    fn round_figures_have_no_trailing_zeros() {
        assert_eq!(
            ["5.00", "10.0 MiB", "0.50", "100", "0 B"].map(round),
            ["5", "10 MiB", "0.5", "100", "0 B"]
        );
    }

    #[test]
    fn the_top_is_a_round_number() {
        let tops = [0.0, 0.3, 1.0, 7.0, 1234.0].map(|most| nice(most).to_string());
        assert_eq!(tops, ["0", "0.5", "1", "10", "2000"]);
        let tops = [0.0, 300.0, 3e6].map(|most| nice_bytes(most).to_string());
        assert_eq!(tops, ["0", "500", "5242880"]);
    }
}
