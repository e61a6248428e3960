//! The report as a picture (SVG): bars of the clients and types with most requests.
use std::fmt::Write as _;

use watershed_figures::grouped;

use super::report::{LoadSplit, Report};
use super::table::percent;

const WIDTH: usize = 860;
const ROW: usize = 22;
const NAME_WIDTH: usize = 330;
const BAR_WIDTH: usize = 400;
/// Characters of a name that fit.
const NAME_CHARS: usize = 50;
/// Colours that keep their contrast for people who confuse red and green.
const FROM_MEMORY: &str = "#1f77b4";
const FORWARDED: &str = "#d9d9d9";

/// Returns a picture with up to `limit` clients and types.
pub fn picture(report: &Report, limit: usize) -> String {
    let clients = report.clients.iter().map(|client| {
        let name = format!("{} {}", client.user, client.agent);
        (name, client.load)
    });
    let types = report.types.iter().map(|row| {
        let name = match (&*row.group, &*row.resource) {
            (_, "") => "(no known type)".to_owned(),
            ("", resource) => resource.to_owned(),
            (group, resource) => format!("{resource}.{group}"),
        };
        (name, row.load)
    });
    let clients: Vec<_> = clients.take(limit).collect();
    let types: Vec<_> = types.take(limit).collect();
    let height = (clients.len() + types.len() + 7) * ROW;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
         viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"white\"/>\n"
    );
    let total = &report.total;
    let head = format!(
        "{} of {} requests from memory",
        percent(total.requests_from_memory as f64, total.requests as f64),
        grouped(total.requests),
    );
    let mut line = 1;
    put_text(
        &mut svg,
        10,
        line,
        "font-size=\"15\" font-weight=\"bold\"",
        &head,
    );
    for (heading, rows) in [("Clients", &clients), ("Types", &types)] {
        line += 2;
        put_text(&mut svg, 10, line, "font-weight=\"bold\"", heading);
        let most = rows
            .iter()
            .map(|(_, load)| load.requests)
            .max()
            .unwrap_or(0);
        for (name, load) in rows {
            line += 1;
            put_row(&mut svg, line, name, load, most);
        }
    }
    line += 1;
    put_legend(&mut svg, line);
    svg.push_str("</svg>\n");
    svg
}

fn put_row(svg: &mut String, line: usize, name: &str, load: &LoadSplit, most: u64) {
    let name: String = name.chars().take(NAME_CHARS).collect();
    put_text(svg, 10, line, "", &name);
    let scale = BAR_WIDTH as f64 / most.max(1) as f64;
    let (whole, part) = (
        load.requests as f64 * scale,
        load.requests_from_memory as f64 * scale,
    );
    put_bar(svg, NAME_WIDTH as f64, line, part, FROM_MEMORY);
    put_bar(svg, NAME_WIDTH as f64 + part, line, whole - part, FORWARDED);
    let share = percent(load.requests_from_memory as f64, load.requests as f64);
    let figures = format!("{} ({share})", grouped(load.requests));
    put_text(svg, NAME_WIDTH + BAR_WIDTH + 8, line, "", &figures);
}

fn put_legend(svg: &mut String, line: usize) {
    put_bar(svg, 10.0, line, 12.0, FROM_MEMORY);
    put_text(svg, 28, line, "", "from memory");
    put_bar(svg, 130.0, line, 12.0, FORWARDED);
    put_text(svg, 148, line, "", "forwarded");
}

fn put_bar(svg: &mut String, x: f64, line: usize, width: f64, colour: &str) {
    let y = line * ROW - 12;
    // Writing to a String cannot fail.
    let _ = writeln!(
        svg,
        "<rect x=\"{x:.1}\" y=\"{y}\" width=\"{width:.1}\" height=\"14\" fill=\"{colour}\"/>"
    );
}

fn put_text(svg: &mut String, x: usize, line: usize, style: &str, text: &str) {
    let y = line * ROW;
    let _ = writeln!(
        svg,
        "<text x=\"{x}\" y=\"{y}\" {style}>{}</text>",
        escaped(text)
    );
}

fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            // Control characters are not allowed in XML.
            char if char.is_control() => out.push('?'),
            char => out.push(char),
        }
    }
    out
}
