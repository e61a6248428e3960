//! The results, for people and for programs.
use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::process::Machine;
use crate::servers::Kind;

/// One line of the table.
#[derive(Debug)]
pub(crate) struct Row {
    work: String,
    unit: &'static str,
    /// Whether one server's figure over another's says anything.
    compare: bool,
    rounds: BTreeMap<Kind, Vec<f64>>,
}

/// All lines, in the order in which they were measured.
#[derive(Debug, Default)]
pub(crate) struct Table {
    rows: Vec<Row>,
    /// What went wrong without ending the run.
    pub(crate) remarks: Vec<String>,
}

/// What a run was told and where it ran.
#[derive(Debug, Serialize)]
pub(crate) struct Setting {
    pub(crate) command: String,
    pub(crate) version: String,
    pub(crate) machine: Machine,
}

/// The middle of several rounds, which one disturbed round does not move.
pub(crate) fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        n if n % 2 == 1 => Some(sorted[middle]),
        _ => Some(f64::midpoint(sorted[middle - 1], sorted[middle])),
    }
}

/// Three digits that matter.
fn short(value: f64) -> String {
    let digits = match value.abs() {
        v if v >= 100.0 => 0,
        v if v >= 10.0 => 1,
        v if v >= 1.0 => 2,
        _ => 3,
    };
    format!("{value:.digits$}")
}

impl Row {
    fn median(&self, kind: Kind) -> Option<f64> {
        median(self.rounds.get(&kind)?)
    }

    /// The median of the rounds' ratios: what disturbs a round disturbs both servers.
    fn ratio(&self, kind: Kind) -> Option<f64> {
        let (proxy, other) = (self.rounds.get(&Kind::Proxy)?, self.rounds.get(&kind)?);
        let ratios: Vec<_> = proxy.iter().zip(other).map(|(proxy, other)| proxy / other).collect();
        median(&ratios).filter(|ratio| self.compare && ratio.is_finite())
    }
}

impl Table {
    /// Adds the figure of one round.
    pub(crate) fn add(&mut self, work: &str, unit: &'static str, compare: bool, kind: Kind, value: f64) {
        let row = if let Some(at) = self.rows.iter().position(|row| row.work == work) {
            &mut self.rows[at]
        } else {
            self.rows.push(Row { work: work.to_owned(), unit, compare, rounds: BTreeMap::new() });
            self.rows.last_mut().expect("just pushed")
        };
        row.rounds.entry(kind).or_default().push(value);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// A Markdown table.
    pub(crate) fn text(&self, kinds: &[Kind]) -> String {
        let others = kinds.iter().copied().filter(|kind| *kind != Kind::Proxy);
        let mut lines = vec![vec!["work".to_owned(), "unit".to_owned(), Kind::Proxy.name().to_owned()]];
        for kind in others.clone() {
            lines[0].extend([kind.name().to_owned(), "ratio".to_owned()]);
        }
        for row in &self.rows {
            let figure = |value: Option<f64>| value.map_or("–".to_owned(), short);
            let mut line = vec![row.work.clone(), row.unit.to_owned(), figure(row.median(Kind::Proxy))];
            for kind in others.clone() {
                line.extend([figure(row.median(kind)), figure(row.ratio(kind))]);
            }
            lines.push(line);
        }
        let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<_> = (0..lines[0].len()).map(width).collect();
        let mut out = String::new();
        for (number, line) in lines.iter().enumerate() {
            for (column, (cell, &width)) in line.iter().zip(&widths).enumerate() {
                let _ = if column < 2 {
                    write!(out, "| {cell:<width$} ")
                } else {
                    write!(out, "| {cell:>width$} ")
                };
            }
            out.push_str("|\n");
            if number == 0 {
                for (column, width) in widths.iter().enumerate() {
                    let _ = write!(out, "|{}{}", "-".repeat(width + 1), if column < 2 { '-' } else { ':' });
                }
                out.push_str("|\n");
            }
        }
        out
    }

    /// Every round of every figure.
    pub(crate) fn json(&self, setting: &Setting) -> Value {
        let rows = self.rows.iter().map(|row| {
            let servers = row.rounds.iter().map(|(kind, rounds)| {
                let figures = json!({
                    "median": median(rounds), "rounds": rounds,
                    "proxyRatio": if *kind == Kind::Proxy { None } else { row.ratio(*kind) },
                });
                (kind.name().to_owned(), figures)
            });
            json!({"work": row.work, "unit": row.unit, "servers": servers.collect::<Map<_, _>>()})
        });
        json!({"setting": setting, "results": rows.collect::<Vec<_>>(), "remarks": self.remarks})
    }
}
