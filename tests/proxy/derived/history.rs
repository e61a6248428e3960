//! History in JSON, which is printed again for watches that come late, and of what it is derived from.
use http::{Request, header};
use watershed_lab::sim::SimulatedServer;

use super::{
    DERIVED, PROTOBUF, config_map, configmaps, direct, fallbacks, list, looks_like_upstream,
    with_protobuf,
};
use crate::support::client::{Answer, Endpoint, Protocol, nothing};
use crate::support::eventually;
use crate::support::program::Program;

/// Returns the bytes of history in JSON.
async fn history(program: &Program) -> usize {
    let metrics = program.admin("GET", "/metrics").await;
    let series = metrics.lines().filter(|line| {
        line.starts_with("watershed_scope_window_bytes{")
            && line.contains(r#"resource="configmaps""#)
            && line.contains(r#"encoding="json""#)
    });
    let bytes = series.map(|line| line.rsplit(' ').next().unwrap().parse::<usize>().unwrap());
    bytes.sum()
}

/// Returns so many lines of a watch.
async fn watched(of: &Endpoint, path: &str, lines: usize) -> Vec<String> {
    let mut watch = of.watch(Protocol::Http2, path).await;
    let mut read = Vec::new();
    while read.len() < lines {
        read.push(watch.line().await);
    }
    read
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_watches_get_the_events_that_were_delivered_to_others() {
    let upstream = SimulatedServer::start(with_protobuf(5)).await.unwrap();
    let program = Program::with(&upstream, &DERIVED).await;
    let direct = direct(&upstream);
    looks_like_upstream(&program.proxied, &direct).await;
    let version = list(&program.proxied).await.json()["metadata"]["resourceVersion"].clone();
    let version = version.as_str().unwrap();
    let state = upstream.state();
    let value = "some words & \\\"more\\\" ".repeat(500);
    for n in 0..10 {
        let name = format!("n-{n}");
        let text = config_map(&name, &format!(r#"{{"a":"{value}"}}"#));
        state.create(&configmaps(), &text).unwrap();
        // It leaves the selection.
        let changed = text.replace("<b>", "c");
        state.update(&configmaps(), &changed).unwrap();
        if n % 2 == 0 {
            state.delete(&configmaps(), "default", &name).unwrap();
        }
    }
    let all = format!("/api/v1/configmaps?watch=1&resourceVersion={version}");
    let selected = format!("{all}&labelSelector=a%3Dc");
    let unselected = format!("{all}&labelSelector=a!%3Dc");
    let queries = [(&all, 25), (&selected, 15), (&unselected, 20)];
    let mut wanted = Vec::new();
    for (path, lines) in queries {
        wanted.push(watched(&direct, path, lines).await);
        let got = watched(&program.proxied, path, lines).await;
        assert_eq!(Some(&got), wanted.last(), "{path}");
    }
    // With the frames it is more than twice of them: what they are printed from is held, too.
    let frames = wanted[0].iter().map(String::len).sum::<usize>();
    eventually("the release of frames", async || {
        let held = history(&program).await;
        (held < frames * 3 / 2)
            .then_some(())
            .ok_or(format!("{held} for {frames}"))
    })
    .await;
    for (query, wanted) in queries.iter().zip(&wanted) {
        let (path, lines) = query;
        assert_eq!(
            &watched(&program.proxied, path, *lines).await,
            wanted,
            "{path}"
        );
    }
    let exact = format!("/api/v1/configmaps?resourceVersionMatch=Exact&resourceVersion={version}");
    let got = program.proxied.get(Protocol::Http2, &exact).await;
    let wanted = direct.get(Protocol::Http2, &exact).await;
    assert_eq!(got.header("x-watershed-source"), "snapshot");
    assert_eq!(got.body, wanted.body);
    looks_like_upstream(&program.proxied, &direct).await;
    program.terminate().await;
    upstream.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_are_derived_anew_when_their_source_lacked_an_event() {
    let upstream = SimulatedServer::start(with_protobuf(5)).await.unwrap();
    let flags = [&DERIVED[..], &["--self-check-interval", "100ms"]].concat();
    let program = Program::with(&upstream, &flags).await;
    let direct = direct(&upstream);
    looks_like_upstream(&program.proxied, &direct).await;
    let faults = upstream.faults();
    faults.set(|active| active.lose_event = Some("configmaps".to_owned()));
    let state = upstream.state();
    state
        .create(&configmaps(), &config_map("lost", r#"{"a":"1"}"#))
        .unwrap();
    // The type stays quiet: no later event has a version by which the loss could show.
    looks_like_upstream(&program.proxied, &direct).await;
    assert_eq!(fallbacks(&program, "difference").await, 0);
    let metrics = program.admin("GET", "/metrics").await;
    let quarantined = metrics.lines().any(|line| {
        line.starts_with("watershed_scope_quarantines_total{")
            && line.contains(r#"resource="configmaps""#)
            && !line.ends_with(" 0")
    });
    assert!(quarantined, "{metrics}");
    program.terminate().await;
    upstream.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watches_in_protobuf_from_before_its_first_reader_are_forwarded() {
    async fn watched_in_protobuf(of: &Endpoint, path: &str) -> Answer {
        let request = Request::get(path)
            .header(header::ACCEPT, format!("{PROTOBUF};stream=watch"))
            .body(nothing())
            .unwrap();
        of.send(Protocol::Http2, request).await.unwrap()
    }
    let upstream = SimulatedServer::start(with_protobuf(5)).await.unwrap();
    // While nobody reads protobuf, none of its history is kept.
    let flags = [&DERIVED[..], &["--window-seconds", "0"]].concat();
    let program = Program::with(&upstream, &flags).await;
    let direct = direct(&upstream);
    looks_like_upstream(&program.proxied, &direct).await;
    let version = list(&program.proxied).await.json()["metadata"]["resourceVersion"].clone();
    for name in ["one", "two"] {
        let object = config_map(name, r#"{"a":"1"}"#);
        upstream.state().create(&configmaps(), &object).unwrap();
    }
    looks_like_upstream(&program.proxied, &direct).await;
    let version = version.as_str().unwrap();
    let path = format!("/api/v1/configmaps?watch=1&timeoutSeconds=1&resourceVersion={version}");
    let wanted = watched_in_protobuf(&direct, &path).await;
    let got = watched_in_protobuf(&program.proxied, &path).await;
    assert_eq!(got.body, wanted.body);
    let source = got.header("x-watershed-source");
    assert_eq!(source, "forward; reason=before-first-list");
    program.terminate().await;
    upstream.shutdown().await;
}
