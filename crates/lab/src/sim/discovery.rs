//! Discovery: `/api`, `/apis` and below, in the legacy and the aggregated form.
use serde_json::{Value, json};

use super::kinds::{KINDS, ResourceKind, TypeOrigin};

const VERBS: [&str; 7] = [
    "create", "delete", "get", "list", "patch", "update", "watch",
];

/// Types that are only ever created: `(group, resource, kind)`.
const REVIEWS: [(&str, &str, &str); 5] = [
    (
        "authentication.k8s.io",
        "selfsubjectreviews",
        "SelfSubjectReview",
    ),
    ("authentication.k8s.io", "tokenreviews", "TokenReview"),
    (
        "authorization.k8s.io",
        "selfsubjectaccessreviews",
        "SelfSubjectAccessReview",
    ),
    (
        "authorization.k8s.io",
        "selfsubjectrulesreviews",
        "SelfSubjectRulesReview",
    ),
    (
        "authorization.k8s.io",
        "subjectaccessreviews",
        "SubjectAccessReview",
    ),
];

/// The document at a path, in its legacy form.
pub(crate) fn legacy(path: &str, served: impl Fn(usize) -> bool) -> Option<Value> {
    let parts: Vec<_> = path.trim_matches('/').split('/').collect();
    match parts.as_slice() {
        ["api"] => Some(json!({
            "kind": "APIVersions",
            "versions": ["v1"],
            "serverAddressByClientCIDRs": [
                {"clientCIDR": "0.0.0.0/0", "serverAddress": "127.0.0.1:6443"}
            ],
        })),
        ["apis"] => Some(json!({
            "kind": "APIGroupList", "apiVersion": "v1",
            "groups": groups(&served).iter().map(|g| api_group(g)).collect::<Vec<_>>(),
        })),
        ["api", "v1"] => resources("", &served),
        ["apis", group] if groups(&served).contains(group) => {
            let mut document = api_group(group);
            document["kind"] = "APIGroup".into();
            document["apiVersion"] = "v1".into();
            Some(document)
        }
        ["apis", group, "v1"] => resources(group, &served),
        _ => None,
    }
}

/// The aggregated document of `/api` (`core`) or `/apis`.
pub(crate) fn aggregated(core: bool, served: impl Fn(usize) -> bool) -> Value {
    let names = if core { vec![""] } else { groups(&served) };
    let items: Vec<_> = names
        .iter()
        .map(|group| {
            let metadata = if core {
                json!({})
            } else {
                json!({"name": group})
            };
            let mut resources: Vec<_> = kinds(group, &served)
                .map(|k| {
                    let mut entry = json!({
                        "resource": k.resource,
                        "responseKind": response_kind(k),
                        "scope": if k.namespaced { "Namespaced" } else { "Cluster" },
                        "singularResource": k.singular,
                        "verbs": VERBS,
                    });
                    if !k.short_names.is_empty() {
                        entry["shortNames"] = json!(k.short_names);
                    }
                    entry
                })
                .collect();
            resources.extend(reviews(group).map(|(_, resource, kind)| {
                json!({
                    "resource": resource,
                    "responseKind": {"group": "", "version": "", "kind": kind},
                    "scope": "Cluster",
                    "singularResource": kind.to_ascii_lowercase(),
                    "verbs": ["create"],
                })
            }));
            json!({
                "metadata": metadata,
                "versions": [{"version": "v1", "resources": resources, "freshness": "Current"}],
            })
        })
        .collect();
    json!({
        "kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2",
        "metadata": {}, "items": items,
    })
}

/// Returns `true` if a group-version is compiled in. Its unknown resources are refused differently.
pub(crate) fn is_builtin(group: &str, version: &str) -> bool {
    version == "v1"
        && (KINDS
            .iter()
            .any(|k| k.group == group && k.form == TypeOrigin::Builtin)
            || reviews(group).next().is_some())
}

fn response_kind(kind: &ResourceKind) -> Value {
    match kind.form {
        // Builtin types leave out what the entry's place says already.
        TypeOrigin::Builtin => json!({"group": "", "version": "", "kind": kind.kind}),
        TypeOrigin::Custom => {
            json!({"group": kind.group, "version": kind.version, "kind": kind.kind})
        }
    }
}

fn groups(served: &impl Fn(usize) -> bool) -> Vec<&'static str> {
    let mut groups = Vec::new();
    let kinds = KINDS
        .iter()
        .enumerate()
        .filter(|(i, _)| served(*i))
        .map(|(_, k)| k.group);
    for group in kinds.chain(REVIEWS.iter().map(|(group, _, _)| *group)) {
        if !group.is_empty() && !groups.contains(&group) {
            groups.push(group);
        }
    }
    groups
}

fn kinds<'a>(
    group: &'a str,
    served: &'a impl Fn(usize) -> bool,
) -> impl Iterator<Item = &'static ResourceKind> + 'a {
    KINDS
        .iter()
        .enumerate()
        .filter(move |(i, k)| k.group == group && served(*i))
        .map(|(_, k)| k)
}

fn reviews(
    group: &str,
) -> impl Iterator<Item = &'static (&'static str, &'static str, &'static str)> {
    REVIEWS.iter().filter(move |(g, _, _)| *g == group)
}

fn api_group(group: &str) -> Value {
    let version = json!({"groupVersion": format!("{group}/v1"), "version": "v1"});
    json!({"name": group, "versions": [version], "preferredVersion": version})
}

fn resources(group: &str, served: &impl Fn(usize) -> bool) -> Option<Value> {
    let mut entries: Vec<_> = kinds(group, served)
        .map(|k| {
            let mut entry = json!({
                "name": k.resource, "singularName": k.singular, "namespaced": k.namespaced,
                "kind": k.kind, "verbs": VERBS,
            });
            if !k.short_names.is_empty() {
                entry["shortNames"] = json!(k.short_names);
            }
            entry
        })
        .collect();
    entries.extend(reviews(group).map(|(_, resource, kind)| {
        json!({
            "name": resource, "singularName": kind.to_ascii_lowercase(), "namespaced": false,
            "kind": kind, "verbs": ["create"],
        })
    }));
    if entries.is_empty() {
        return None;
    }
    let group_version = if group.is_empty() {
        "v1".to_owned()
    } else {
        format!("{group}/v1")
    };
    Some(json!({
        "kind": "APIResourceList", "apiVersion": "v1",
        "groupVersion": group_version, "resources": entries,
    }))
}
