//! Objects that look like a real cluster's: their fields, their order, their size.
//!
//! Every function returns the JSON of one object without `resourceVersion` and `uid`; the write
//! adds those.
use std::fmt::Write as _;

use fastrand::Rng;

use super::gojson;

/// Values of the label `app`.
pub const APPS: [&str; 8] = [
    "checkout",
    "catalog",
    "search",
    "billing",
    "frontend",
    "recommender",
    "sessions",
    "ingest",
];
/// Values of the label `tier`.
pub const TIERS: [&str; 3] = ["frontend", "backend", "batch"];
/// Colours of widgets, by which they can be selected.
pub const COLORS: [&str; 4] = ["red", "green", "blue", "black"];

/// The n-th namespace's name.
pub fn namespace_name(n: usize) -> String {
    format!("team-{n:02}")
}

/// The n-th node's name.
pub fn node_name(n: usize) -> String {
    format!("node-{n:03}")
}

/// A pod's name as a ReplicaSet makes it.
pub fn pod_name(n: usize, rng: &mut Rng) -> String {
    format!("{}-{}-{n:05}", APPS[n % APPS.len()], hash(rng, 10))
}

/// A running pod of 2 to 4 KB. An empty `node` leaves it unscheduled and pending.
pub fn pod(namespace: &str, name: &str, node: &str, rng: &mut Rng) -> String {
    let app = name.split('-').next().unwrap_or(name);
    let settings = (0..rng.usize(0..12)).fold(String::new(), |mut out, n| {
        let _ = write!(
            out,
            r#",{{"name":"SETTING_{n}","value":"{}"}}"#,
            hash(rng, 24)
        );
        out
    });
    let values = [
        ("name", name.to_owned()),
        ("namespace", namespace.to_owned()),
        ("app", app.to_owned()),
        ("tier", pick(&TIERS, rng)),
        ("replicaset", hash(rng, 10)),
        ("owner", uid(rng)),
        ("hash", hash(rng, 64)),
        ("image", hash(rng, 64)),
        ("ip", format!("10.244.{}.{}", rng.u8(..), rng.u8(..))),
        ("restarts", rng.u8(0..4).to_string()),
        ("settings", settings),
        (
            "placed",
            if node.is_empty() {
                String::new()
            } else {
                format!(r#""nodeName":"{node}","#)
            },
        ),
        ("managedFields", managed_fields("kubelet")),
    ];
    let status = if node.is_empty() {
        include_str!("templates/pod-pending.json")
    } else {
        include_str!("templates/pod-running.json")
    };
    fill(
        &include_str!("templates/pod.json").replace("${status}", status),
        &values,
    )
}

/// A config map: of some keys, or of one with so many bytes.
pub fn configmap(namespace: &str, name: &str, bytes: usize, rng: &mut Rng) -> String {
    let data: Vec<_> = match bytes {
        0 => (0..rng.usize(1..8))
            .map(|n| format!(r#""key-{n}":"{}""#, hash(rng, 120)))
            .collect(),
        bytes => vec![format!(r#""key":"{}""#, hash(rng, bytes))],
    };
    let values = [
        ("name", name.to_owned()),
        ("namespace", namespace.to_owned()),
        ("app", pick(&APPS, rng)),
        ("data", data.join(",")),
        ("managedFields", managed_fields("kubectl-create")),
    ];
    fill(include_str!("templates/configmap.json"), &values)
}

/// A namespace.
pub fn namespace(name: &str) -> String {
    fill(
        include_str!("templates/namespace.json"),
        &[("name", name.to_owned())],
    )
}

/// A node of about 3 KB.
pub fn node(name: &str, rng: &mut Rng) -> String {
    let mut image = || {
        let (app, digest, size) = (
            pick(&APPS, rng),
            hash(rng, 64),
            rng.u32(10_000_000..400_000_000),
        );
        format!(r#"{{"names":["registry.example.com/{app}@sha256:{digest}"],"sizeBytes":{size}}}"#)
    };
    let images: Vec<_> = (0..12).map(|_| image()).collect();
    let values = [
        ("name", name.to_owned()),
        ("zone", pick(&["a", "b", "c"], rng)),
        ("a", rng.u8(..).to_string()),
        ("b", rng.u8(..).to_string()),
        ("machine", uid(rng)),
        ("images", images.join(",")),
        ("managedFields", managed_fields("kubelet")),
    ];
    fill(include_str!("templates/node.json"), &values)
}

/// A node's heartbeat; `beat` counts seconds.
pub fn lease(node: &str, beat: u64) -> String {
    let time = format!(
        "{:02}:{:02}:{:02}",
        beat / 3600 % 24,
        beat / 60 % 60,
        beat % 60
    );
    fill(
        include_str!("templates/lease.json"),
        &[("name", node.to_owned()), ("time", time)],
    )
}

/// A service with a cluster IP made from a number.
pub fn service(namespace: &str, name: &str, number: usize) -> String {
    let values = [
        ("name", name.to_owned()),
        ("namespace", namespace.to_owned()),
        ("app", APPS[number % APPS.len()].to_owned()),
        (
            "ip",
            format!("10.96.{}.{}", number / 250 % 250, number % 250 + 1),
        ),
    ];
    fill(include_str!("templates/service.json"), &values)
}

/// An opaque secret.
pub fn secret(namespace: &str, name: &str, rng: &mut Rng) -> String {
    let values = [
        ("name", name.to_owned()),
        ("namespace", namespace.to_owned()),
        ("hash", hash(rng, 32)),
    ];
    fill(include_str!("templates/secret.json"), &values)
}

/// A deployment.
pub fn deployment(namespace: &str, name: &str, rng: &mut Rng) -> String {
    let values = [
        ("name", name.to_owned()),
        ("namespace", namespace.to_owned()),
        ("app", pick(&APPS, rng)),
        ("replicas", rng.u8(1..9).to_string()),
        ("managedFields", managed_fields("kube-controller-manager")),
    ];
    fill(include_str!("templates/deployment.json"), &values)
}

/// Returns the CustomResourceDefinition of the custom type.
pub fn widget_definition() -> String {
    fill(include_str!("templates/widget-definition.json"), &[])
}

/// A custom object.
pub fn widget(namespace: &str, name: &str, rng: &mut Rng) -> String {
    let values = [
        ("name", name.to_owned()),
        ("namespace", namespace.to_owned()),
        ("size", pick(&["large", "small"], rng)),
        ("color", pick(&COLORS, rng)),
        ("hash", hash(rng, 60)),
    ];
    fill(include_str!("templates/widget.json"), &values)
}

fn managed_fields(manager: &str) -> String {
    fill(
        include_str!("templates/managed-fields.json"),
        &[("manager", manager.to_owned())],
    )
}

/// Puts values in place of `${name}`, and takes the template's whitespace out.
fn fill(template: &str, values: &[(&str, String)]) -> String {
    let mut out = String::with_capacity(template.len() * 2);
    let mut rest = template;
    while let Some((before, after)) = rest.split_once("${") {
        let Some((name, after)) = after.split_once('}') else {
            break;
        };
        let value = values.iter().find(|(n, _)| *n == name);
        debug_assert!(value.is_some(), "no value for {name}");
        out.push_str(before);
        out.push_str(value.map_or("", |(_, v)| v));
        rest = after;
    }
    out.push_str(rest);
    gojson::compact(&out)
}

fn pick(choices: &[&str], rng: &mut Rng) -> String {
    choices[rng.usize(0..choices.len())].to_owned()
}

fn hash(rng: &mut Rng, length: usize) -> String {
    (0..length)
        .map(|_| char::from(b"0123456789abcdef"[rng.usize(0..16)]))
        .collect()
}

fn uid(rng: &mut Rng) -> String {
    format!(
        "{}-{}-4{}-8{}-{}",
        hash(rng, 8),
        hash(rng, 4),
        hash(rng, 3),
        hash(rng, 3),
        hash(rng, 12)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fixture_is_valid_json_of_the_size_it_says() {
        let mut rng = Rng::with_seed(1);
        for n in 0..50 {
            let text = pod("n", &pod_name(n, &mut rng), "node-001", &mut rng);
            serde_json::from_str::<serde_json::Value>(&text).unwrap();
            assert!((2000..5000).contains(&text.len()), "{}", text.len());
        }
    }
}
