//! The report as HTML. The page loads nothing from other servers, and its tables need no script.
use std::sync::LazyLock;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::chart::Chart;
use super::figure::{bytes, count, duration, percent, rate, whole};
use super::report::{
    CertificateStatus, ClientStatus, ClientsStatus, Health, PhaseName, ReasonTotals, ScopeStatus,
    SourceTotals, StatusReport, UpstreamStatus,
};
use crate::admin::history::RecentFigures;

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// Icon in the page itself. Without it, browsers request /favicon.ico.
const ICON: &str = concat!(
    "data:image/svg+xml,",
    "%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E",
    "%3Cpath d='M0 14 5.5 3 9 9.5 11 6l5 8z' fill='%232563a8'/%3E%3C/svg%3E",
);

/// Time before the end of a certificate from which the page warns.
const SOON: Duration = Duration::from_hours(7 * 24);

/// Content security policy that allows only this style, this script and requests for this page.
pub(super) static SECURITY_POLICY: LazyLock<String> = LazyLock::new(|| {
    format!(
        "default-src 'none'; style-src {}; script-src {}; img-src data:; connect-src 'self'; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        source_hash(STYLE),
        source_hash(SCRIPT)
    )
});

pub(super) fn render(report: &StatusReport, recent: &RecentFigures) -> String {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                noscript { meta http-equiv="refresh" content="30"; }
                title { "watershed" }
                link rel="icon" href=(ICON);
                style { (PreEscaped(STYLE)) }
            }
            body {
                div #live {
                    (head(report))
                    main {
                        (tiles(report))
                        (charts(recent))
                        (scopes(&report.scopes))
                        (clients(&report.clients))
                        div.pair {
                            (sources(&report.sources))
                            (forwarded(&report.forwarded))
                            (upstream(&report.upstream))
                        }
                    }
                }
                footer {
                    span { "The same as " a href="/status.json" { "JSON" } }
                    a href="/metrics" { "Metrics" }
                    a href="/debug/config" { "Configuration" }
                    a href="/readyz?verbose" { "Readiness" }
                    span #fresh {}
                }
                script { (PreEscaped(SCRIPT)) }
            }
        }
    };
    page.into_string()
}

/// Returns the hash by which the security policy allows an inline style or script.
fn source_hash(text: &str) -> String {
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, text.as_bytes());
    format!("'sha256-{}'", BASE64_STANDARD.encode(digest.as_ref()))
}

fn head(report: &StatusReport) -> Markup {
    let (class, word) = match report.health {
        Health::Ready => ("good", "ready"),
        Health::Starting => ("fair", "starting"),
        Health::Stale => ("bad", "upstream not followed"),
        Health::ShuttingDown => ("bad", "shutting down"),
    };
    let ill = report.scopes.iter().filter(|row| !row.is_well()).count();
    html! {
        header {
            h1 { "watershed" }
            span.{"pill " (class)} { (word) }
            @if ill > 0 {
                span.pill.fair { (ill) " of " (report.scopes.len()) " scopes not followed" }
            }
            @if report.upstream.is_loop {
                span.pill.bad { "upstream leads back to this proxy" }
            }
            @for certificate in &report.certificates { (ending(certificate)) }
            p.about {
                "version " (report.version)
                ", up " (duration(Duration::from_secs_f64(report.uptime_seconds)))
                ", in front of "
                @for (n, address) in report.upstream.addresses.iter().enumerate() {
                    @if n > 0 { ", " }
                    code { (address) }
                }
                @match report.upstream.proxies.len() {
                    0 => {}
                    1 => { ", a watershed" }
                    more => { ", the first of " (more) " watersheds before the API server" }
                }
            }
        }
    }
}

fn ending(certificate: &CertificateStatus) -> Markup {
    let left = u64::try_from(certificate.ends_in_seconds)
        .map(Duration::from_secs)
        .unwrap_or_default();
    html! {
        @if left.is_zero() {
            span.pill.bad { "the certificate of the listener " (certificate.listener) " has ended" }
        } @else if left < SOON {
            span.pill.fair {
                "the certificate of the listener " (certificate.listener)
                " ends in " (duration(left))
            }
        }
    }
}

/// Returns the share of `whole` beyond `rest`, or `None` if `whole` is zero.
fn saved(rest: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| 1.0 - rest as f64 / whole as f64)
}

fn tiles(report: &StatusReport) -> Markup {
    let totals = &report.totals;
    let requests = totals.requests_here + totals.requests_forwarded;
    let watched = |row: &&ScopeStatus| row.following && !row.derived;
    let upstream_watches = report.scopes.iter().filter(watched).count();
    // More bytes can come in than go out until clients have read what was fetched.
    let bytes_saved = if totals.received_bytes <= totals.sent_bytes {
        percent_or_dash(saved(totals.received_bytes, totals.sent_bytes))
    } else {
        "none yet".to_owned()
    };
    html! {
        section.tiles aria-label="Summary" {
            (tile(
                "Requests answered here",
                &percent_or_dash(saved(totals.requests_forwarded, requests)),
                &html! { (count(totals.requests_here)) " of " (count(requests)) },
            ))
            (tile(
                "Bytes saved upstream",
                &bytes_saved,
                &html! {
                    (bytes(totals.received_bytes as f64)) " in, "
                    (bytes(totals.sent_bytes as f64)) " out"
                },
            ))
            (tile(
                "Watches open",
                &count(totals.watches_here + totals.watches_forwarded),
                &html! {
                    (count(upstream_watches as u64)) " upstream"
                    @if totals.watches_forwarded > 0 {
                        ", and " (count(totals.watches_forwarded)) " forwarded"
                    }
                },
            ))
            (tile(
                "Memory",
                &bytes(totals.resident_bytes as f64),
                &html! {
                    @if let Some(limit) = report.memory.limit_bytes {
                        "of " (bytes(limit as f64)) ", "
                    }
                    (bytes(totals.held_bytes as f64)) " of it objects and events"
                    @if report.memory.is_short {
                        "; short: " (report.memory.step)
                    }
                },
            ))
        }
    }
}

fn tile(title: &str, figure: &str, note: &Markup) -> Markup {
    html! {
        div.tile { p.title { (title) } p.figure { (figure) } p.note { (note) } }
    }
}

fn percent_or_dash(share: Option<f64>) -> String {
    share.map_or_else(|| "–".to_owned(), percent)
}

fn charts(recent: &RecentFigures) -> Markup {
    let since = &format!("{} ago", duration(recent.covers));
    let [requests_here, requests_forwarded] = &recent.requests;
    let [sent, received] = &recent.bytes;
    let [watches_here, watches_forwarded] = &recent.watches;
    let [resident, held] = &recent.memory;
    let charts: [Chart; 4] = [
        Chart {
            title: "Requests a second",
            lines: [("here", requests_here), ("forwarded", requests_forwarded)],
            show: rate,
            bytes: false,
            since,
        },
        Chart {
            title: "Bytes a second",
            lines: [("to clients", sent), ("from upstream", received)],
            show: bytes,
            bytes: true,
            since,
        },
        Chart {
            title: "Watches open",
            lines: [("here", watches_here), ("forwarded", watches_forwarded)],
            show: whole,
            bytes: false,
            since,
        },
        Chart {
            title: "Memory",
            lines: [("process", resident), ("objects and events", held)],
            show: bytes,
            bytes: true,
            since,
        },
    ];
    html! {
        section.charts aria-label="The last minutes" {
            @for chart in &charts { (chart.render()) }
        }
    }
}

fn scopes(rows: &[ScopeStatus]) -> Markup {
    html! {
        section {
            h2 {
                "Scopes"
                span.sub { "what is held in memory, each followed by one watch upstream, unless it is derived" }
            }
            @if rows.is_empty() {
                p.empty { "None yet. The first client that reads a type opens it." }
            } @else {
                div.scroll { table #scopes {
                    thead { tr {
                        th scope="col" { "Type" }
                        th scope="col" { "Held as" }
                        th scope="col" { "Phase" }
                        th.n scope="col" { "Objects" }
                        th.n scope="col" { "Bytes" }
                        th.n scope="col" { "Recent events" }
                        th.n scope="col" { "Watchers" }
                        th.n scope="col" { "Version" }
                        th.n scope="col" { "Last heard" }
                    } }
                    tbody { @for row in rows { (scope(row)) } }
                } }
            }
        }
    }
}

fn scope(row: &ScopeStatus) -> Markup {
    let (class, word) = match (row.phase, row.following) {
        (PhaseName::Ready, true) => ("good", "ready"),
        (PhaseName::Ready, false) => ("bad", "not followed"),
        (PhaseName::Syncing, _) => ("fair", "syncing"),
        (PhaseName::Failing, _) => ("bad", "failing"),
        (PhaseName::Stale, _) => ("bad", "too old, forwarded"),
        (PhaseName::Quarantined, _) => ("bad", "quarantined"),
        (PhaseName::SchemaChanged, _) => ("fair", "schema changed"),
        (PhaseName::Stopped, _) => ("fair", "not held"),
    };
    html! {
        tr {
            th scope="row" {
                (row.resource) " "
                span.quiet { @if !row.group.is_empty() { (row.group) "/" } (row.version) }
                @if !row.selection.is_empty() { div.detail { code { (row.selection) } } }
            }
            td {
                (row.encoding)
                @if row.derived { span.quiet { ", derived from protobuf" } }
                @if row.content != "objects" { span.quiet { ", " (row.content.replace('-', " ")) } }
            }
            td {
                span.{"dot " (class)} {} (word)
                @if let Some(why) = &row.why { div.detail { (why) } }
            }
            td.n { (count(row.objects as u64)) }
            td.n { (bytes(row.object_bytes as f64)) }
            td.n { (count(row.window_events as u64))
                @if row.window_events > 0 { " " span.quiet { (bytes(row.window_bytes as f64)) } } }
            td.n { (count(row.watchers as u64)) }
            td.n { (row.resource_version) }
            td.n { (duration(row.last_heard())) }
        }
    }
}

fn clients(clients: &ClientsStatus) -> Markup {
    html! {
        section {
            h2 {
                "Clients"
                span.sub {
                    "who costs most; rates and share are of about the last minute, "
                    "the rest since they were first seen"
                }
            }
            @if clients.top.is_empty() {
                p.empty { "None yet." }
            } @else {
                    div.scroll { table #clients {
                        thead { tr {
                            th scope="col" { "User" }
                            th scope="col" { "User agent" }
                            th scope="col" { "Share of cost" }
                            th.n scope="col" { "Requests/s" }
                            th.n scope="col" { "Bytes/s" }
                            th.n scope="col" { "Watches" }
                            th.n scope="col" { "Requests" }
                            th.n scope="col" { "Forwarded" }
                            th.n scope="col" { "Bytes" }
                        } }
                        tbody { @for row in &clients.top { (client(row)) } }
                    } }
                    p.foot {
                        "Cost is the bytes of answers, and 64 KiB for each request. "
                        @if clients.known > clients.top.len() {
                            (count((clients.known - clients.top.len()) as u64)) " more are known. "
                        }
                        @if clients.let_go > 0 {
                            (count(clients.let_go)) " cheap ones were dropped from this table to make room."
                        }
                    }
            }
        }
    }
}

fn client(row: &ClientStatus) -> Markup {
    html! {
        tr {
            th scope="row" {
                @match &row.user {
                    Some(user) => (user),
                    None => span.quiet
                        title="The API server has not said whose credentials these are"
                        { "not known here" }
                }
            }
            td.agent { @if row.agent.is_empty() { span.quiet { "none" } } @else { (row.agent) } }
            td.share {
                svg.bar viewBox="0 0 100 6" preserveAspectRatio="none" aria-hidden="true" {
                    rect.track width="100" height="6" rx="3" {}
                    rect.fill width=(format!("{:.1}", row.share * 100.0)) height="6" rx="3" {}
                }
                span { (percent(row.share)) }
            }
            td.n { (rate(row.requests_per_second)) }
            td.n { (bytes(row.bytes_per_second)) }
            td.n { (count(row.watches)) }
            td.n { (count(row.requests)) }
            td.n { (count(row.forwarded)) }
            td.n { (bytes(row.sent_bytes as f64)) }
        }
    }
}

fn sources(rows: &[SourceTotals]) -> Markup {
    html! {
        section {
            h2 { "Answers" span.sub { "by where they came from" } }
            table #sources {
                thead { tr {
                    th scope="col" { "Source" }
                    th.n scope="col" { "Requests" }
                    th.n scope="col" { "Bytes" }
                } }
                tbody { @for row in rows { tr {
                    th scope="row" { (row.name) }
                    td.n { (count(row.requests)) }
                    td.n { (bytes(row.sent_bytes as f64)) }
                } } }
            }
        }
    }
}

fn forwarded(rows: &[ReasonTotals]) -> Markup {
    html! {
        section {
            h2 { "Forwarded" span.sub { "and why" } }
            table #forwarded {
                thead { tr { th scope="col" { "Reason" } th.n scope="col" { "Requests" } } }
                tbody { @for row in rows { tr {
                    th scope="row" { (row.reason) }
                    td.n { (count(row.requests)) }
                } } }
            }
        }
    }
}

fn upstream(upstream: &UpstreamStatus) -> Markup {
    html! {
        section {
            h2 {
                "Upstream"
                span.sub {
                    "what it was asked for, over " (count(upstream.connections)) " connections"
                }
            }
            table #upstream {
                thead { tr {
                    th scope="col" { "Purpose" }
                    th.n scope="col" { "Requests" }
                    th.n scope="col" { "Bytes" }
                } }
                tbody { @for row in &upstream.traffic { tr {
                    th scope="row" { (row.purpose) }
                    td.n { (count(row.requests)) }
                    td.n { (bytes(row.received_bytes as f64)) }
                } } }
            }
        }
    }
}
