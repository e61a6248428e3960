//! Figures as people read and write them: medians, rounded numbers, tables, durations.
use std::fmt::{Display, Write as _};
use std::time::Duration;

/// Returns the median, which one disturbed round does not move. `None` without values.
pub fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut sorted: Vec<f64> = values.into_iter().collect();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        n if n % 2 == 1 => Some(sorted[middle]),
        _ => Some(f64::midpoint(sorted[middle - 1], sorted[middle])),
    }
}

/// Parses a duration of any length: 500ms, 30s, 1m30s.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let parsed: jiff::SignedDuration = text.parse().map_err(|_| {
        if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
            format!("it has no unit: write {text}s or {text}m")
        } else {
            "it is no duration such as 30s, 5m or 1h30m".to_owned()
        }
    })?;
    Duration::try_from(parsed).map_err(|_| "it is negative".to_owned())
}

/// Formats a number with three significant digits, and without decimals from 100 on.
pub fn three_digits(value: f64) -> String {
    let digits = match value.abs() {
        v if v >= 100.0 => 0,
        v if v >= 10.0 => 1,
        v if v >= 1.0 => 2,
        _ => 3,
    };
    format!("{value:.digits$}")
}

/// Formats a whole number with separators between thousands: `1,234,567`.
pub fn grouped(number: impl Display) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Formats a Markdown table with aligned columns.
///
/// All lines have the same number of cells, and the first line is the head. The first two columns
/// are aligned to the left, as they are words, and the others to the right.
pub fn markdown_table(lines: &[Vec<String>]) -> String {
    let columns = lines.first().map_or(0, Vec::len);
    let widths: Vec<_> = (0..columns).map(|column| width(lines, column)).collect();
    let mut out = String::new();
    for (number, line) in lines.iter().enumerate() {
        for (column, (cell, &width)) in line.iter().zip(&widths).enumerate() {
            // Writing to a String cannot fail.
            let _ = if column < 2 {
                write!(out, "| {cell:<width$} ")
            } else {
                write!(out, "| {cell:>width$} ")
            };
        }
        out.push_str("|\n");
        if number == 0 {
            for (column, width) in widths.iter().enumerate() {
                let _ = write!(
                    out,
                    "|{}{}",
                    "-".repeat(width + 1),
                    if column < 2 { '-' } else { ':' }
                );
            }
            out.push_str("|\n");
        }
    }
    out
}

/// Returns the number of characters of a column's longest cell.
fn width(lines: &[Vec<String>], column: usize) -> usize {
    let cells = lines.iter().map(|line| line[column].chars().count());
    cells.max().unwrap_or(0)
}
