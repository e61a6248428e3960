//! The output of the demo: a few lines that are redrawn in place on a terminal, one line a second
//! elsewhere, and a table at the end.
use std::io::{IsTerminal as _, Write as _};
use std::time::Duration;

use super::check::Difference;
use super::fleet::FleetTotals;
use super::options::{DemoArgs, DemoProxy};
use crate::output::print_line;
use crate::sim::TrafficCounts;
use watershed_figures::grouped;

/// Clients with differences that are shown; the rest is counted.
const SHOWN: usize = 10;

/// Everything measured, at one moment.
pub(crate) struct Moment {
    pub(crate) elapsed: Duration,
    pub(crate) clients: FleetTotals,
    pub(crate) upstream: TrafficCounts,
    /// Upstream's global version.
    pub(crate) version: u64,
}

/// The picture, and what it needs to compute rates.
pub(crate) struct Picture {
    terminal: bool,
    /// Lines to go up before the next frame.
    drawn: usize,
    before: Option<Moment>,
}

/// Prints what is started, before anything changes.
pub(crate) fn opening(args: &DemoArgs, upstream: &str, front: &DemoProxy) -> anyhow::Result<()> {
    let DemoArgs {
        pods,
        nodes,
        clients,
        rate,
        seed,
        ..
    } = args;
    print_line(format_args!(
        "upstream  {upstream}  simulated API server, {pods} pods on {nodes} nodes, \
         {} changes/s, seed {seed}",
        rate.per_second()
    ))?;
    if args.direct {
        print_line(format_args!(
            "proxy     none: the clients ask upstream themselves"
        ))?;
    } else {
        print_line(format_args!("proxy     https://{}", front.address))?;
    }
    if let Some(admin) = front.admin_address {
        print_line(format_args!("status    http://{admin}/"))?;
    }
    print_line(format_args!(
        "clients   {clients} watching pods: all, by namespace, by node, by label"
    ))?;
    match args.run_for {
        Some(time) => print_line(format_args!("          for {time:?}\n")),
        None => print_line(format_args!("          until Ctrl-C\n")),
    }
}

/// Between the last change and the check.
pub(crate) fn waiting(version: u64) -> anyhow::Result<()> {
    print_line(format_args!(
        "\nno more changes; upstream is at resourceVersion {version}, \
         waiting for the clients to see it"
    ))
}

/// The table at the end, and the verdict.
pub(crate) fn summary(
    end: &Moment,
    changes: u64,
    differences: &[Difference],
) -> anyhow::Result<()> {
    let (clients, upstream) = (&end.clients, &end.upstream);
    print_line(format_args!(
        "\n{:<16}{:>18}{:>16}{:>12}",
        "", "clients received", "upstream sent", "saved"
    ))?;
    let row = |name: &str, received: String, sent: String, saved: String| {
        print_line(format_args!(
            "{name:<16}{received:>18}{sent:>16}{saved:>12}"
        ))
    };
    for (name, received, sent) in [
        ("lists", clients.lists, upstream.requests_of("LIST")),
        (
            "watches started",
            clients.watches,
            upstream.requests_of("WATCH"),
        ),
        ("watch events", clients.events, upstream.total_events()),
    ] {
        row(
            name,
            grouped(received),
            grouped(sent),
            saved(received, sent),
        )?;
    }
    let sent = upstream.total_bytes();
    row(
        "bytes",
        bytes(clients.bytes),
        bytes(sent),
        saved(clients.bytes, sent),
    )?;
    print_line(format_args!(
        "\n{changes} changes in {:.0} s; clients tried again {} times, started over {} times",
        end.elapsed.as_secs_f64(),
        clients.retries,
        clients.expired
    ))?;
    if differences.is_empty() {
        print_line(format_args!(
            "every one of {} clients has exactly upstream's state at resourceVersion {}",
            clients.clients, end.version
        ))
    } else {
        report_differences(end, differences)
    }
}

fn report_differences(end: &Moment, differences: &[Difference]) -> anyhow::Result<()> {
    print_line(format_args!(
        "{} of {} clients differ from upstream's state at resourceVersion {}:",
        differences.len(),
        end.clients.clients,
        end.version
    ))?;
    for difference in differences.iter().take(SHOWN) {
        let Difference {
            client,
            interest,
            version,
            lines,
            more,
        } = difference;
        print_line(format_args!(
            "  client {client} ({interest}), at resourceVersion {version}"
        ))?;
        for line in lines {
            print_line(format_args!("    {line}"))?;
        }
        if *more > 0 {
            print_line(format_args!("    and {more} more"))?;
        }
    }
    if differences.len() > SHOWN {
        print_line(format_args!(
            "  and {} more clients",
            differences.len() - SHOWN
        ))?;
    }
    Ok(())
}

impl Picture {
    pub(crate) fn new() -> Self {
        Self {
            terminal: std::io::stdout().is_terminal(),
            drawn: 0,
            before: None,
        }
    }

    /// The state of things, once a second.
    pub(crate) fn live(&mut self, now: &Moment) -> anyhow::Result<()> {
        let seconds = now.elapsed.as_secs();
        let rates = LiveRates::between(self.before.as_ref(), now);
        let FleetTotals {
            clients, synced, ..
        } = now.clients;
        let (upstream_events, upstream_bytes) =
            (now.upstream.total_events(), now.upstream.total_bytes());
        let lists = now.upstream.requests_of("LIST");
        let watches = now.upstream.total_open_watches();
        let saved = saved(now.clients.bytes, upstream_bytes);
        if self.terminal {
            let lines = [
                format!(
                    "{seconds:>5} s   {:>14} {:>14} {:>12} {:>12}",
                    "events/s", "events", "bytes/s", "bytes"
                ),
                format!(
                    "clients   {:>14} {:>14} {:>12} {:>12}   {synced} of {clients} in sync",
                    grouped(rates.client_events),
                    grouped(now.clients.events),
                    bytes(rates.client_bytes),
                    bytes(now.clients.bytes),
                ),
                format!(
                    "upstream  {:>14} {:>14} {:>12} {:>12}   {lists} lists, {watches} open watches",
                    grouped(rates.upstream_events),
                    grouped(upstream_events),
                    bytes(rates.upstream_bytes),
                    bytes(upstream_bytes),
                ),
                format!(
                    "saved     {:>14} {:>14} {:>12} {saved:>12}",
                    self::saved(rates.client_events, rates.upstream_events),
                    self::saved(now.clients.events, upstream_events),
                    self::saved(rates.client_bytes, rates.upstream_bytes),
                ),
            ];
            self.redraw(&lines);
        } else {
            print_line(format_args!(
                "{seconds:>4} s  clients {synced}/{clients} in sync, {} events/s, {}/s | \
                 upstream {lists} lists, {watches} open watches, {} events/s, {}/s | \
                 saved {saved} of bytes",
                grouped(rates.client_events),
                bytes(rates.client_bytes),
                grouped(rates.upstream_events),
                bytes(rates.upstream_bytes),
            ))?;
        }
        self.before = Some(Moment {
            upstream: now.upstream.clone(),
            ..*now
        });
        Ok(())
    }

    fn redraw(&mut self, lines: &[String]) {
        let mut out = std::io::stdout().lock();
        let mut frame = if self.drawn > 0 {
            format!("\x1b[{}A", self.drawn)
        } else {
            String::new()
        };
        for line in lines {
            // Clear to the end: the line before may have been longer.
            frame += line;
            frame += "\x1b[K\n";
        }
        // A terminal that is gone is no reason to stop measuring.
        let _ = out.write_all(frame.as_bytes()).and_then(|()| out.flush());
        self.drawn = lines.len();
    }
}

/// Per second, since the last frame.
struct LiveRates {
    client_events: u64,
    client_bytes: u64,
    upstream_events: u64,
    upstream_bytes: u64,
}

impl LiveRates {
    fn between(before: Option<&Moment>, now: &Moment) -> Self {
        let seconds = before
            .map_or(now.elapsed, |b| now.elapsed.saturating_sub(b.elapsed))
            .as_secs_f64();
        let rate = |value: &dyn Fn(&Moment) -> u64| {
            let grown = value(now).saturating_sub(before.map_or(0, value));
            per_second(grown, seconds)
        };
        Self {
            client_events: rate(&|m| m.clients.events),
            client_bytes: rate(&|m| m.clients.bytes),
            upstream_events: rate(&|m| m.upstream.total_events()),
            upstream_bytes: rate(&|m| m.upstream.total_bytes()),
        }
    }
}

#[expect(clippy::cast_sign_loss, reason = "counts and times are positive")]
fn per_second(count: u64, seconds: f64) -> u64 {
    if seconds > 0.0 {
        (count as f64 / seconds).round() as u64
    } else {
        0
    }
}

/// Writes how much less upstream did than the clients received.
fn saved(received: u64, sent: u64) -> String {
    if received == 0 {
        return "-".to_owned();
    }
    // While the proxy fills its memory, upstream sends more than the clients have received.
    if sent > received {
        return "none yet".to_owned();
    }
    let saved = 100.0 * (1.0 - sent as f64 / received as f64);
    // Rounding must not turn a little into nothing.
    if saved > 99.9 && sent > 0 {
        format!("{:.2} %", saved.min(99.99))
    } else {
        format!("{saved:.1} %")
    }
}

/// A size in units of a thousand.
fn bytes(number: u64) -> String {
    let mut value = number as f64;
    for unit in ["B", "kB", "MB", "GB"] {
        if value < 1000.0 {
            return if unit == "B" {
                format!("{number} B")
            } else {
                format!("{value:.1} {unit}")
            };
        }
        value /= 1000.0;
    }
    format!("{value:.1} TB")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_readable_units() {
        assert_eq!(grouped(1_234_567), "1,234,567");
        assert_eq!(grouped(12), "12");
        assert_eq!(bytes(999), "999 B");
        assert_eq!(bytes(1_500_000), "1.5 MB");
        assert_eq!(saved(1_000_000, 1), "99.99 %");
        assert_eq!(saved(200, 100), "50.0 %");
        assert_eq!(saved(0, 5), "-");
        assert_eq!(saved(5, 6), "none yet");
    }
}
