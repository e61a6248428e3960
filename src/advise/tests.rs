//! Replays of logs as kube-apiserver writes them.
use std::fmt::Write as _;
use std::path::Path;

use serde_json::{Value, json};

use super::{LogInput, Replay, Report, picture, table};
use crate::serve::CachingPolicy;

/// A line of the log.
#[derive(Clone, Copy)]
struct Line<'a> {
    id: &'a str,
    stage: &'a str,
    verb: &'a str,
    uri: &'a str,
    user: &'a str,
    agent: &'a str,
    code: u16,
    /// Milliseconds from the beginning of the log to the request, and to the stage.
    times: (u64, u64),
}

impl Default for Line<'_> {
    fn default() -> Self {
        Self {
            id: "",
            stage: "ResponseComplete",
            verb: "list",
            uri: "/api/v1/pods?resourceVersion=0",
            user: "jane",
            agent: "agent/1.0",
            code: 200,
            times: (0, 0),
        }
    }
}

impl Line<'_> {
    fn text(&self) -> String {
        let time = |millis: u64| {
            let start = jiff::Timestamp::UNIX_EPOCH;
            let passed = jiff::SignedDuration::from_millis(millis.cast_signed());
            format!("{:.6}", start + passed)
        };
        let event = json!({
            "kind": "Event", "apiVersion": "audit.k8s.io/v1", "level": "Metadata",
            "auditID": self.id, "stage": self.stage, "requestURI": self.uri, "verb": self.verb,
            "user": {"username": self.user, "groups": ["system:authenticated"]},
            "sourceIPs": ["10.0.0.1"], "userAgent": self.agent,
            "responseStatus": {"metadata": {}, "code": self.code},
            "requestReceivedTimestamp": time(self.times.0),
            "stageTimestamp": time(self.times.1),
        });
        event.to_string()
    }
}

fn replay(logs: &[&str]) -> Report {
    let folder = tempfile::tempdir().unwrap();
    let write = |(number, text): (usize, &&str)| {
        let path = folder.path().join(number.to_string());
        std::fs::write(&path, text).unwrap();
        LogInput::of(&path)
    };
    let inputs: Vec<_> = logs.iter().enumerate().map(write).collect();
    let mut replay = Replay::new(CachingPolicy::default());
    replay.read(inputs).unwrap();
    replay.report()
}

fn log(lines: &[Line<'_>]) -> String {
    let mut text = String::new();
    for line in lines {
        writeln!(text, "{}", line.text()).unwrap();
    }
    text
}

/// Returns the answers as `verb resource source reason requests`.
fn answers(report: &Report) -> Vec<String> {
    let value = serde_json::to_value(report).unwrap();
    let rows = value["answers"].as_array().unwrap().iter().map(|row| {
        let text = |name: &str| row[name].as_str().unwrap().to_owned();
        let words = [
            text("verb"),
            text("resource"),
            text("source"),
            text("reason"),
            row["requests"].to_string(),
        ];
        words.join(" ")
    });
    rows.collect()
}

#[test]
fn requests_are_counted_by_their_answers() {
    let kubectl = "kubectl/v1.37.1 (linux/amd64) kubernetes/0123456";
    let metadata = "kube-controller-manager/v1 (linux/amd64) kubernetes/0123456/metadata-informers";
    let text = log(&[
        Line::default(),
        Line {
            agent: kubectl,
            ..Line::default()
        },
        Line {
            agent: metadata,
            ..Line::default()
        },
        Line {
            verb: "get",
            uri: "/api/v1/namespaces/a/pods/b",
            ..Line::default()
        },
        Line {
            verb: "create",
            uri: "/api/v1/namespaces/a/pods",
            code: 201,
            ..Line::default()
        },
        Line {
            verb: "get",
            uri: "/api/v1/namespaces/a/pods/b/exec",
            code: 101,
            ..Line::default()
        },
        Line {
            uri: "/api/v1/pods?resourceVersion=0",
            code: 403,
            ..Line::default()
        },
        Line {
            user: "system:anonymous",
            ..Line::default()
        },
        Line {
            user: "system:apiserver",
            ..Line::default()
        },
        Line {
            stage: "RequestReceived",
            ..Line::default()
        },
        Line {
            uri: "/apis/metrics.k8s.io/v1beta1/pods",
            ..Line::default()
        },
        Line {
            verb: "get",
            uri: "/apis/batch/v1?timeout=32s",
            ..Line::default()
        },
        Line {
            verb: "get",
            uri: "/healthz",
            ..Line::default()
        },
    ]);
    let report = replay(&[&text]);
    let mut found = answers(&report);
    found.sort();
    assert_eq!(
        found,
        [
            "create pods forward not-a-read 1",
            "get  document  1",
            "get  forward not-a-resource 1",
            "get pods forward consistent-read 1",
            "get pods forward upgrade 1",
            "list  forward unknown-type 1",
            "list pods access  1",
            "list pods forward identity 1",
            "list pods snapshot  1",
            "list pods snapshot  1",
            "list pods snapshot  1",
        ]
    );
    assert_eq!(report.log.internal_requests, 1);
    assert_eq!(
        (report.total.requests, report.total.requests_from_memory),
        (11, 5)
    );
}

#[test]
fn a_watch_counts_once_and_for_as_long_as_it_is_open() {
    let watch = Line {
        id: "w",
        verb: "watch",
        uri: "/api/v1/pods?watch=1&resourceVersion=5",
        ..Line::default()
    };
    let (began, ended) = (
        Line {
            stage: "ResponseStarted",
            times: (0, 0),
            ..watch
        },
        Line {
            times: (0, 60_000),
            ..watch
        },
    );
    let unfinished = Line {
        id: "x",
        stage: "ResponseStarted",
        times: (0, 20),
        ..watch
    };
    let list = Line {
        times: (1000, 1500),
        ..Line::default()
    };
    let text = log(&[began, unfinished, list, ended]);
    let report = replay(&[&text]);
    assert_eq!(
        answers(&report),
        ["list pods snapshot  1", "watch pods window  2"]
    );
    let total = report.total;
    assert_eq!((total.seconds, total.seconds_from_memory), (0.5, 0.5));
    assert_eq!(
        (total.open_seconds, total.open_seconds_from_memory),
        (60.0, 60.0)
    );
    assert_eq!((report.log.seconds, report.upstream_scopes), (60.0, 1));
}

#[test]
fn a_watch_from_before_the_log_is_counted_from_its_first_event() {
    let minutes = |minutes: u64| minutes * 60_000;
    let list = Line {
        times: (minutes(600), minutes(600)),
        ..Line::default()
    };
    let watch = Line {
        verb: "watch",
        uri: "/api/v1/pods?watch=1&resourceVersion=5",
        times: (0, minutes(610)),
        ..Line::default()
    };
    let report = replay(&[&log(&[list, watch])]);
    let seconds = (report.log.seconds, report.total.open_seconds);
    assert_eq!(seconds, (600.0, 600.0));
    assert!(table(&report, 5).contains("(1.0 of 1.0)"));
}

#[test]
fn rotated_files_are_read_in_their_order() {
    let watch = Line {
        id: "w",
        verb: "watch",
        uri: "/api/v1/pods?watch=1&resourceVersion=5",
        ..Line::default()
    };
    let older = log(&[Line {
        stage: "ResponseStarted",
        times: (0, 10),
        ..watch
    }]);
    let newer = log(&[
        Line {
            times: (5000, 9000),
            ..Line::default()
        },
        Line {
            times: (0, 9000),
            ..watch
        },
    ]);
    let report = replay(&[&newer, &older]);
    assert_eq!(
        answers(&report),
        ["list pods snapshot  1", "watch pods window  1"]
    );
    assert_eq!(report.log.files, 2);
}

#[test]
fn a_file_that_begins_with_the_end_of_a_watch_is_read_after_older_ones() {
    let watch = Line {
        id: "w",
        verb: "watch",
        uri: "/api/v1/pods?watch=1&resourceVersion=5",
        ..Line::default()
    };
    let list = Line {
        times: (3000, 3000),
        ..Line::default()
    };
    let began = Line {
        stage: "ResponseStarted",
        times: (2000, 4000),
        ..watch
    };
    let ended = Line {
        times: (2000, 9000),
        ..watch
    };
    let (older, newer) = (log(&[list, began]), log(&[ended]));
    let report = replay(&[&newer, &older]);
    assert_eq!(
        answers(&report),
        ["list pods snapshot  1", "watch pods window  1"]
    );
}

#[test]
fn damaged_lines_are_counted_and_the_rest_is_read() {
    let good = Line::default().text();
    let bad_uri = Line {
        uri: "no uri",
        ..Line::default()
    }
    .text();
    let text = format!(
        "{good}\n\nnot json\n{}\n{bad_uri}\n{good}\n{}",
        "{}",
        &good[..40]
    );
    let report = replay(&[&text]);
    assert_eq!((report.log.lines, report.log.damaged_lines), (6, 4));
    assert_eq!(report.total.requests, 2);
}

#[test]
fn a_log_without_events_is_told_from_an_empty_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log");
    let long = "x".repeat((16 << 20) + 1);
    let event = Line::default().text();
    for (text, has_none) in [
        (String::new(), false),
        (format!("{long}\n"), true),
        (format!("{{\n{long}\n}}\n"), true),
        (format!("{event}\n{long}\n"), false),
    ] {
        std::fs::write(&path, text).unwrap();
        let mut replay = Replay::new(CachingPolicy::default());
        replay.read(vec![LogInput::of(&path)]).unwrap();
        assert_eq!(replay.has_only_damaged_lines(), has_none);
    }
}

#[test]
fn what_a_torn_file_has_is_counted_and_other_files_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let [torn, whole] = ["torn.json.gz", "whole.json"].map(|name| folder.path().join(name));
    let lines = format!("{}\n", Line::default().text()).repeat(2000);
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut packed, lines.as_bytes()).unwrap();
    let packed = packed.finish().unwrap();
    std::fs::write(&whole, Line::default().text()).unwrap();
    // All but the end, the head and nothing else, and a part of the head.
    for (length, has_lines) in [(packed.len() - 20, true), (30, false), (5, false)] {
        std::fs::write(&torn, &packed[..length]).unwrap();
        let mut replay = Replay::new(CachingPolicy::default());
        let inputs = [&torn, &whole].map(|path| LogInput::of(path));
        replay.read(inputs.into()).unwrap();
        let report = replay.report();
        assert_eq!((report.log.files, report.log.damaged_lines), (2, 1));
        assert_eq!(report.total.requests > 1, has_lines, "{length}");
        assert!(report.total.requests > 0, "{length}");
    }
}

#[test]
fn an_empty_log_has_a_report() {
    let report = replay(&[""]);
    assert!(table(&report, 5).starts_with("0 requests"));
    assert!(picture(&report, 5).contains("- of 0 requests"));
    let value: Value = serde_json::to_value(&report).unwrap();
    assert_eq!(value["total"]["requests"], 0);
    assert!(
        Replay::new(CachingPolicy::default())
            .read(vec![LogInput::of(Path::new("/nowhere"))])
            .is_err()
    );
}

#[test]
fn text_and_picture_name_the_clients_with_most_requests() {
    let busy = Line {
        user: "a<b>&c",
        agent: "busy/1",
        ..Line::default()
    };
    let text = log(&[
        Line {
            user: "x",
            agent: "rare/1",
            ..Line::default()
        },
        Line {
            times: (0, 2000),
            ..busy
        },
        Line {
            verb: "patch",
            uri: "/api/v1/namespaces/a/pods/b",
            times: (0, 2000),
            ..busy
        },
    ]);
    let report = replay(&[&text]);
    let shown = table(&report, 1);
    assert!(
        shown.contains("from memory:  67% of requests (2 of 3)"),
        "{shown}"
    );
    assert!(
        shown.contains("from memory:  50% of seconds of upstream's time (2.0 of 4.0)"),
        "{shown}"
    );
    let row = "a<b>&c busy/1         2          50%     4.00    50%  not-a-read 1";
    assert!(shown.contains(row), "{shown}");
    assert!(
        shown.contains("(1 more; --top, or -o json for all)") && !shown.contains("rare/1"),
        "{shown}"
    );
    let svg = picture(&report, 2);
    let drawn = roxmltree::Document::parse(&svg).unwrap();
    let names: Vec<_> = drawn.descendants().filter_map(|node| node.text()).collect();
    assert!(
        names.contains(&"a<b>&c busy/1") && names.contains(&"x rare/1"),
        "{svg}"
    );
    assert!(names.contains(&"67% of 3 requests from memory"), "{svg}");
}
