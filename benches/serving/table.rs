//! The results, for people and for programs.
use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Map, Value, json};
use watershed_figures::{markdown_table, median, three_digits};

use crate::servers::Kind;
use watershed_lab::process::Machine;

/// One line of the table.
#[derive(Debug)]
pub(crate) struct Row {
    work: String,
    unit: &'static str,
    /// True if the ratio of two servers' figures has a meaning.
    compare: bool,
    rounds: BTreeMap<Kind, Vec<f64>>,
}

/// All lines, in the order in which they were measured.
#[derive(Debug, Default)]
pub(crate) struct Table {
    rows: Vec<Row>,
    /// Problems that did not end the run.
    pub(crate) remarks: Vec<String>,
}

/// The command and the machine of a run.
#[derive(Debug, Serialize)]
pub(crate) struct Setting {
    pub(crate) command: String,
    pub(crate) version: String,
    pub(crate) machine: Machine,
}

impl Row {
    fn median(&self, kind: Kind) -> Option<f64> {
        median(self.rounds.get(&kind)?.iter().copied())
    }

    /// The median of the rounds' ratios: what disturbs a round disturbs both servers.
    fn ratio(&self, kind: Kind) -> Option<f64> {
        let (proxy, other) = (self.rounds.get(&Kind::Proxy)?, self.rounds.get(&kind)?);
        let ratios = proxy.iter().zip(other).map(|(proxy, other)| proxy / other);
        median(ratios).filter(|ratio| self.compare && ratio.is_finite())
    }
}

impl Table {
    /// Adds the figure of one round.
    pub(crate) fn add(
        &mut self,
        work: &str,
        unit: &'static str,
        compare: bool,
        kind: Kind,
        value: f64,
    ) {
        let row = if let Some(at) = self.rows.iter().position(|row| row.work == work) {
            &mut self.rows[at]
        } else {
            self.rows.push(Row {
                work: work.to_owned(),
                unit,
                compare,
                rounds: BTreeMap::new(),
            });
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
        let mut lines = vec![vec![
            "work".to_owned(),
            "unit".to_owned(),
            Kind::Proxy.name().to_owned(),
        ]];
        for kind in others.clone() {
            lines[0].extend([kind.name().to_owned(), "ratio".to_owned()]);
        }
        for row in &self.rows {
            let figure = |value: Option<f64>| value.map_or("–".to_owned(), three_digits);
            let mut line = vec![
                row.work.clone(),
                row.unit.to_owned(),
                figure(row.median(Kind::Proxy)),
            ];
            for kind in others.clone() {
                line.extend([figure(row.median(kind)), figure(row.ratio(kind))]);
            }
            lines.push(line);
        }
        markdown_table(&lines)
    }

    /// Every round of every figure.
    pub(crate) fn json(&self, setting: &Setting) -> Value {
        let rows = self.rows.iter().map(|row| {
            let servers = row.rounds.iter().map(|(kind, rounds)| {
                let figures = json!({
                    "median": median(rounds.iter().copied()), "rounds": rounds,
                    "proxyRatio": if *kind == Kind::Proxy { None } else { row.ratio(*kind) },
                });
                (kind.name().to_owned(), figures)
            });
            json!({"work": row.work, "unit": row.unit, "servers": servers.collect::<Map<_, _>>()})
        });
        json!({"setting": setting, "results": rows.collect::<Vec<_>>(), "remarks": self.remarks})
    }
}
