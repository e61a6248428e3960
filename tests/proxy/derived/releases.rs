//! Releases of upstream, which print some members differently, and what no release prints.
use watershed_lab::sim::{Options, SimulatedServer};

use super::{
    DERIVED, PROTOBUF, SORTED, config_map, configmaps, count, direct, fallbacks, has_watches, list,
    looks_like_upstream, print_as, with_protobuf,
};
use crate::support::client::Protocol;
use crate::support::program::Program;
use crate::support::{becomes, eventually};

/// Replaces the time of creation of an object.
fn with_creation(text: &str, member: &str) -> String {
    let (before, rest) = text.split_once(r#""creationTimestamp":""#).unwrap();
    let (_, after) = rest.split_once(r#"","#).unwrap();
    format!("{before}{member}{after}")
}

/// Acts as an API server of another release in place of the present one.
fn replace_server(upstream: &SimulatedServer, release: &str) {
    let faults = upstream.faults();
    faults.set(|active| active.release = Some(release.to_owned()));
    faults.cut_connections();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_are_derived_as_the_followed_release_prints_them() {
    let options = Options {
        release: "v1.33.6".to_owned(),
        ..with_protobuf(30)
    };
    let upstream = SimulatedServer::start(options).await.unwrap();
    // Before 1.34 an object without a time of creation has null. No sample shows the last object.
    let keys = upstream.state().snapshot(&configmaps()).into_keys();
    let keys: Vec<_> = keys.collect();
    let last = keys.last().unwrap();
    print_as(&upstream, last, |text| {
        with_creation(text, r#""creationTimestamp":null,"#)
    });
    let program = Program::with(&upstream, &DERIVED).await;
    let direct = direct(&upstream);
    looks_like_upstream(&program.proxied, &direct).await;
    let listed = list(&program.proxied).await;
    let version = listed.json()["metadata"]["resourceVersion"].clone();
    let namespaces = [last, &keys[0]].map(|key| key.split_once('/').unwrap().0);
    assert_ne!(namespaces[0], namespaces[1]);
    let watch = async |namespace: &str| {
        let version = version.as_str().unwrap();
        let path =
            format!("/api/v1/namespaces/{namespace}/configmaps?watch=1&resourceVersion={version}");
        program.proxied.watch(Protocol::Http2, &path).await
    };
    let (mut concerned, mut other) = (watch(namespaces[0]).await, watch(namespaces[1]).await);

    print_as(&upstream, last, |text| {
        text.replacen(r#""creationTimestamp":null,"#, "", 1)
    });
    replace_server(&upstream, "v1.34.0");
    looks_like_upstream(&program.proxied, &direct).await;
    // Its client has an object that looks otherwise now. Nobody else's watch notices.
    let line = concerned.line().await;
    assert!(line.contains(r#""code":410"#), "{line}");
    let created =
        config_map("later", SORTED).replace("\"default\"", &format!("{:?}", namespaces[1]));
    upstream.state().create(&configmaps(), &created).unwrap();
    let line = other.line().await;
    assert!(line.contains(r#""name":"later""#), "{line}");

    print_as(&upstream, last, |text| {
        let labels = text.find(r#""labels":"#).unwrap();
        format!(
            "{}\"creationTimestamp\":null,{}",
            &text[..labels],
            &text[labels..]
        )
    });
    replace_server(&upstream, "v1.33.6");
    looks_like_upstream(&program.proxied, &direct).await;
    for reason in ["difference", "unchecked", "source"] {
        assert_eq!(fallbacks(&program, reason).await, 0, "{reason}");
    }
    has_watches(&upstream, 1).await;
    program.terminate().await;
    upstream.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_no_release_prints_ends_the_derivation_before_it_is_shown() {
    let name = r#""name":"first","namespace":"default""#;
    let swapped = r#""namespace":"default","name":"first""#;
    for (planted, change, reason) in [
        ("a reordered member", [name, swapped], "difference"),
        ("another escape", ["\\u003cb\\u003e", "<b>"], "difference"),
        (
            "a zero that is not omitted",
            [name, &format!(r#"{name},"generation":0"#)],
            "difference",
        ),
        (
            "an unknown field",
            [r#""data":"#, r#""unknownMember":"x","data":"#],
            "unexplained",
        ),
        ("nothing", ["", ""], ""),
    ] {
        let upstream = SimulatedServer::start(with_protobuf(0)).await.unwrap();
        let first = config_map("first", SORTED);
        upstream.state().create(&configmaps(), &first).unwrap();
        print_as(&upstream, "default/first", |text| {
            let [from, to] = change;
            assert!(text.contains(from), "no {from} in {text}");
            text.replacen(from, to, 1)
        });
        let program = Program::with(&upstream, &DERIVED).await;
        looks_like_upstream(&program.proxied, &direct(&upstream)).await;
        for counted in ["difference", "unexplained", "unchecked", "source", "form"] {
            let wanted = u64::from(counted == reason);
            let found = fallbacks(&program, counted).await;
            assert_eq!(found, wanted, "{planted}: {counted}");
        }
        program.terminate().await;
        upstream.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_goes_on_when_another_releases_json_cannot_be_compared() {
    goes_on_while(|upstream| {
        let faults = upstream.faults();
        faults.refuse_only(500, "LIST", "configmaps", 1_000);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_goes_on_when_another_releases_json_is_late() {
    goes_on_while(|upstream| {
        let json = Some("application/json".to_owned());
        upstream.faults().set(|active| active.hold_lists_in = json);
    })
    .await;
}

/// Watches a type in JSON while upstream becomes one of another release, and fails.
async fn goes_on_while(fail: impl FnOnce(&SimulatedServer)) {
    let upstream = SimulatedServer::start(with_protobuf(30)).await.unwrap();
    let program = Program::with(&upstream, &DERIVED).await;
    let direct = direct(&upstream);
    looks_like_upstream(&program.proxied, &direct).await;
    let listed = list(&program.proxied).await.json();
    let version = listed["metadata"]["resourceVersion"].as_str().unwrap();
    let path = format!("/api/v1/configmaps?watch=1&resourceVersion={version}");
    let mut watch = program.proxied.watch(Protocol::Http2, &path).await;
    let state = upstream.state();
    let mut shows = async |name: &str| {
        state
            .create(&configmaps(), &config_map(name, SORTED))
            .unwrap();
        let key = format!("default/{name}");
        let (_, object) = state.object(&configmaps(), &key).unwrap();
        let object = String::from_utf8_lossy(&object);
        let wanted = format!(r#"{{"type":"ADDED","object":{object}}}"#);
        assert_eq!(watch.line().await.trim_end(), wanted);
    };
    shows("before").await;
    fail(&upstream);
    replace_server(&upstream, "v1.36.1");
    becomes("the fallbacks", 1, async || {
        fallbacks(&program, "unchecked").await
    })
    .await;
    shows("after").await;
    upstream.faults().set(|active| {
        active.refuse = None;
        active.hold_lists_in = None;
    });
    looks_like_upstream(&program.proxied, &direct).await;
    program.terminate().await;
    upstream.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upgrade_that_prints_objects_anew_ends_no_derivation() {
    let upstream = SimulatedServer::start(with_protobuf(0)).await.unwrap();
    let state = upstream.state();
    state
        .create(&configmaps(), &config_map("first", SORTED))
        .unwrap();
    let program = Program::with(&upstream, &DERIVED).await;
    let direct = direct(&upstream);
    looks_like_upstream(&program.proxied, &direct).await;
    let print = |text: &str| text.replacen(r#""a":"1""#, r#""a":"3""#, 1);
    print_as(&upstream, "default/first", print);
    let compared = async || {
        let series = r#"watershed_upstream_lists_total{group="",resource="configmaps"} "#;
        count(&program, series).await
    };
    let before = compared().await;
    let faults = upstream.faults();
    // The objects in protobuf are those of the older release until this list is answered.
    faults.set(|active| {
        active.release = Some("v1.36.0".to_owned());
        active.hold_lists_in = Some(PROTOBUF.to_owned());
    });
    faults.cut_connections();
    eventually("two comparisons in JSON", async || {
        let lists = compared().await - before;
        (lists >= 2).then_some(()).ok_or(format!("{lists} lists"))
    })
    .await;
    faults.set(|active| active.hold_lists_in = None);
    looks_like_upstream(&program.proxied, &direct).await;
    for reason in ["difference", "unchecked", "source"] {
        assert_eq!(fallbacks(&program, reason).await, 0, "{reason}");
    }
    has_watches(&upstream, 1).await;
    program.terminate().await;
    upstream.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_that_the_tables_do_not_have_is_watched_in_json() {
    let upstream = SimulatedServer::start(with_protobuf(30)).await.unwrap();
    let program = Program::with(&upstream, &DERIVED).await;
    let direct = direct(&upstream);
    looks_like_upstream(&program.proxied, &direct).await;
    has_watches(&upstream, 1).await;
    // It prints a zero that others omit, in an object that no sample shows.
    let last = upstream.state().snapshot(&configmaps()).into_keys().last();
    print_as(&upstream, &last.unwrap(), |text| {
        text.replacen(
            r#""creationTimestamp":"#,
            r#""generation":0,"creationTimestamp":"#,
            1,
        )
    });
    replace_server(&upstream, "v1.38.0");
    becomes("the fallbacks", 1, async || {
        fallbacks(&program, "unknown-release").await
    })
    .await;
    looks_like_upstream(&program.proxied, &direct).await;
    let reason = "this version of watershed does not know Kubernetes v1.38.0";
    program.until_logged(&[reason]).await;
    // Other types do not begin with protobuf.
    let pods = "/api/v1/pods?resourceVersion=0";
    eventually("pods from memory", async || {
        let answer = program.proxied.get(Protocol::Http2, pods).await;
        let source = answer.header("x-watershed-source").to_owned();
        (source == "snapshot").then_some(()).ok_or(source)
    })
    .await;
    let metrics = program.admin("GET", "/metrics").await;
    let held = metrics.lines().filter(|line| {
        line.starts_with("watershed_scope_ready{") && line.contains(r#"resource="pods""#)
    });
    let held: Vec<_> = held.collect();
    assert!(
        held.len() == 1 && held[0].contains(r#"encoding="json""#),
        "{held:?}"
    );
    program.terminate().await;
    upstream.shutdown().await;
}
