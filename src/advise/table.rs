//! The report as text.
use std::fmt::Write as _;

use watershed_figures::{grouped, three_digits};

use super::report::{LoadSplit, ReasonShare, Report};

/// Returns the report as text, with up to `limit` clients and types.
pub fn table(report: &Report, limit: usize) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = summary(&mut text, report);
    reasons(&mut text, report);
    let clients = report.clients.iter().map(|client| {
        let name = if client.agent.is_empty() {
            client.user.clone()
        } else {
            format!("{} {}", client.user, client.agent)
        };
        (name, client.load, &*client.reasons)
    });
    shares(&mut text, "CLIENT", clients, limit);
    let types = report.types.iter().map(|of| {
        let name = match (&*of.group, &*of.resource) {
            (_, "") => "(no known type)".to_owned(),
            ("", resource) => resource.to_owned(),
            (group, resource) => format!("{resource}.{group}"),
        };
        (name, of.load, &*of.reasons)
    });
    shares(&mut text, "TYPE", types, limit);
    text.push_str("\nThe report assumes:\n");
    for assumption in report.assumptions {
        let _ = writeln!(text, "- {assumption}");
    }
    text
}

fn summary(text: &mut String, report: &Report) -> std::fmt::Result {
    let (log, total) = (&report.log, &report.total);
    writeln!(
        text,
        "{} requests in {} of audit log ({} files, {} lines)",
        grouped(total.requests),
        duration(log.seconds),
        grouped(log.files),
        grouped(log.lines),
    )?;
    if log.damaged_lines > 0 || log.too_long_lines > 0 {
        writeln!(
            text,
            "not read: {} damaged lines, {} lines that are too long",
            grouped(log.damaged_lines),
            grouped(log.too_long_lines),
        )?;
    }
    writeln!(
        text,
        "left out: {} requests of the API server to itself",
        grouped(log.internal_requests)
    )?;
    writeln!(text)?;
    for (name, part, whole, digits) in [
        (
            "requests",
            total.requests_from_memory as f64,
            total.requests as f64,
            0,
        ),
        (
            "seconds of upstream's time",
            total.seconds_from_memory,
            total.seconds,
            1,
        ),
        (
            "watches and sessions open at a time",
            at_a_time(total.open_seconds_from_memory, log.seconds),
            at_a_time(total.open_seconds, log.seconds),
            1,
        ),
    ] {
        writeln!(
            text,
            "from memory: {:>4} of {name} ({part:.digits$} of {whole:.digits$})",
            percent(part, whole),
        )?;
    }
    writeln!(
        text,
        "upstream keeps {} lists and watches of the proxy, and {} requests wait for a proof of \
         freshness",
        grouped(report.upstream_scopes),
        grouped(report.proofs),
    )
}

/// Returns how many requests were open on average.
fn at_a_time(open_seconds: f64, seconds: f64) -> f64 {
    if seconds > 0.0 {
        open_seconds / seconds
    } else {
        0.0
    }
}

fn reasons(text: &mut String, report: &Report) {
    if report.reasons.is_empty() {
        return;
    }
    let head = ["FORWARDED", "REQUESTS", "SHARE"]
        .map(str::to_owned)
        .to_vec();
    let total = report.total.requests as f64;
    let rows = report.reasons.iter().map(|it| {
        vec![
            it.reason.to_owned(),
            grouped(it.requests),
            percent(it.requests as f64, total),
        ]
    });
    put_columns(text, &std::iter::once(head).chain(rows).collect::<Vec<_>>());
}

/// Writes a table of clients or types.
fn shares<'a>(
    text: &mut String,
    head: &str,
    rows: impl ExactSizeIterator<Item = (String, LoadSplit, &'a [ReasonShare])>,
    limit: usize,
) {
    let left = rows.len().saturating_sub(limit);
    let head = [
        head,
        "REQUESTS",
        "FROM MEMORY",
        "SECONDS",
        "SAVED",
        "FORWARDED",
    ];
    let mut lines = vec![head.map(str::to_owned).to_vec()];
    lines.extend(rows.take(limit).map(|(name, load, reasons)| {
        vec![
            name,
            grouped(load.requests),
            percent(load.requests_from_memory as f64, load.requests as f64),
            three_digits(load.seconds),
            percent(load.seconds_from_memory, load.seconds),
            main_reasons(reasons),
        ]
    }));
    put_columns(text, &lines);
    if left > 0 {
        let _ = writeln!(text, "({} more; --top, or -o json for all)", grouped(left));
    }
}

/// Returns the two most frequent reasons.
fn main_reasons(reasons: &[ReasonShare]) -> String {
    let named = reasons.iter().filter(|it| it.requests > 0).take(2);
    let named: Vec<_> = named
        .map(|it| format!("{} {}", it.reason, grouped(it.requests)))
        .collect();
    named.join(", ")
}

/// Writes aligned columns: the first and the sixth to the left, others to the right.
fn put_columns(text: &mut String, lines: &[Vec<String>]) {
    let columns = lines.first().map_or(0, Vec::len);
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max();
    let widths: Vec<_> = (0..columns)
        .map(|column| width(column).unwrap_or(0))
        .collect();
    text.push('\n');
    for line in lines {
        let mut row = String::new();
        for (column, (cell, width)) in line.iter().zip(&widths).enumerate() {
            let separator = if column > 0 { "  " } else { "" };
            let _ = if column == 0 || column == 5 {
                write!(row, "{separator}{cell:<width$}")
            } else {
                write!(row, "{separator}{cell:>width$}")
            };
        }
        text.push_str(row.trim_end());
        text.push('\n');
    }
}

pub(super) fn percent(part: f64, whole: f64) -> String {
    if whole > 0.0 {
        format!("{:.0}%", part / whole * 100.0)
    } else {
        "-".to_owned()
    }
}

fn duration(seconds: f64) -> String {
    match seconds {
        s if s >= 2.0 * 3600.0 => format!("{:.1} hours", s / 3600.0),
        s if s >= 120.0 => format!("{:.1} minutes", s / 60.0),
        s => format!("{s:.1} seconds"),
    }
}
