use std::time::Duration;

use watershed_protocol::{GroupVersionResource, ManagedFields};

use crate::serve::{AgentPattern, CacheMode, ConsistentReads};

use super::*;

fn parsed(text: &str) -> anyhow::Result<CachingPolicy> {
    parse(text, CachingPolicy::default())
}

#[test]
fn consistent_reads_are_set_for_all_types_and_for_single_ones() {
    let policy = parsed(
        "consistentReads: forward\nresources:\n\
         - resource: pods\n  consistentReads: linearizable\n\
         - group: apps\n  resource: deployments\n  consistentReads: stale\n",
    )
    .unwrap();
    assert_eq!(policy.consistent_reads, ConsistentReads::Upstream);
    let named = |group, resource| policy.types.get(group, resource).unwrap().consistent_reads;
    assert_eq!(named("", "pods"), Some(ConsistentReads::ProvenFresh));
    assert_eq!(
        named("apps", "deployments"),
        Some(ConsistentReads::PossiblyStale)
    );
    for nothing in ["", "# nothing yet\n", "{}"] {
        assert_eq!(
            parsed(nothing).unwrap(),
            CachingPolicy::default(),
            "{nothing:?}"
        );
    }
}

#[test]
fn names_of_consistent_reads_from_earlier_releases_are_taken_and_not_offered() {
    for (name, meant) in [
        ("fence", ConsistentReads::ProvenFresh),
        ("cache", ConsistentReads::PossiblyStale),
    ] {
        let policy = parsed(&format!("consistentReads: {name}\n")).unwrap();
        assert_eq!(policy.consistent_reads, meant, "{name}");
    }
    let error = parsed("consistentReads: fast\n").unwrap_err().to_string();
    assert!(error.contains("linearizable"), "{error}");
    assert!(!error.contains("fence"), "{error}");
}

#[test]
fn an_invalid_file_is_refused() {
    for text in [
        "consistentRead: fence\n",
        "consistentReads: always\n",
        "resources:\n- consistentReads: linearizable\n",
        "resources:\n- resource: pods\n  consistentReads: linearizable\n\
         - resource: pods\n  consistentReads: stale\n",
        "resources:\n- resource: \"\"\n  consistentReads: linearizable\n",
        "resources:\n- resource: pods\n",
        "resources:\n- resource: pods\n  cache: false\n\
         - resource: pods\n  consistentReads: linearizable\n",
        "resources:\n- resource: events\n  cache: false\n\
         - resource: events\n  group: events.k8s.io\n  cache: true\n",
        "resources:\n- resource: events\n  consistentReads: stale\n\
         - resource: events\n  group: events.k8s.io\n  consistentReads: forward\n",
        "resources:\n- resource: events\n  idleSeconds: 60\n\
         - resource: events\n  group: events.k8s.io\n  idleSeconds: 70\n",
        "resources:\n- resource: events\n  idleSeconds: 60\n\
         - resource: events\n  group: events.k8s.io\n  cache: never\n",
        "resources:\n- resource: events\n  cache: always\n\
         - resource: events\n  group: events.k8s.io\n  cache: onDemand\n",
        "[]",
        "text",
    ] {
        assert!(parsed(text).is_err(), "{text}");
    }
}

#[test]
fn old_spellings_are_refused_with_the_new_one_or_still_accepted() {
    for (old, new) in [
        ("narrow: true\n", "selectorScopes"),
        (
            "resources:\n- resource: pods\n  narrow: true\n",
            "selectorScopes",
        ),
        ("cache: demand\n", "onDemand"),
    ] {
        let error = parsed(old).unwrap_err().to_string();
        assert!(
            error.contains(new) && error.contains("line"),
            "{old}: {error}"
        );
    }
    for (old, new) in [("fence", "linearizable"), ("cache", "stale")] {
        let of = |value: &str| parsed(&format!("consistentReads: {value}\n")).unwrap();
        assert_eq!(of(old), of(new));
    }
}

#[test]
fn features_are_turned_off_for_clients_and_types() {
    let policy = parsed(
        "clients:\n- userAgent: old-agent/*\n  watchCompression: false\n\
         - userAgent: agent\n  group: apps\n  resource: deployments\n  watchList: false\n\
         - userAgent: \"\"\n  watchCompression: false\n",
    );
    let rules = [
        ClientRule {
            user_agent: Some(AgentPattern::BeginsWith("old-agent/".to_owned())),
            watch_compression: Some(false),
            ..ClientRule::default()
        },
        ClientRule {
            user_agent: Some(AgentPattern::Exactly("agent".to_owned())),
            resource: Some(TypeName::new("apps", "deployments")),
            watch_list: Some(false),
            ..ClientRule::default()
        },
        ClientRule {
            user_agent: Some(AgentPattern::Exactly(String::new())),
            watch_compression: Some(false),
            ..ClientRule::default()
        },
    ];
    assert_eq!(policy.unwrap().client_rules, rules);
    for text in [
        "clients:\n- userAgent: old-agent/*\n",
        "clients:\n- userAgent: \"*rs\"\n  watchList: false\n",
        "clients:\n- group: apps\n  watchList: false\n",
        "clients:\n- resource: \"\"\n  watchList: false\n",
    ] {
        let error = parsed(text).unwrap_err().to_string();
        assert!(error.contains("line"), "{text}: {error}");
    }
}

#[test]
fn managed_fields_are_dropped_for_all_types_or_for_single_ones() {
    let of = |policy: &CachingPolicy, group, resource| {
        policy.managed_fields(&GroupVersionResource::new(group, "v1", resource))
    };
    // Both groups have the same events.
    let policy = parsed("resources:\n- resource: events\n  managedFields: drop\n").unwrap();
    assert_eq!(of(&policy, "events.k8s.io", "events"), ManagedFields::Drop);
    assert_eq!(of(&policy, "", "pods"), ManagedFields::Keep);
    assert_eq!(policy.without_managed_fields(), ["events"]);
    let text = "managedFields: drop\nresources:\n- resource: pods\n  managedFields: keep\n";
    let policy = parsed(text).unwrap();
    assert_eq!(of(&policy, "", "pods"), ManagedFields::Keep);
    assert_eq!(of(&policy, "", "events"), ManagedFields::Drop);
    assert_eq!(policy.without_managed_fields(), ["*"]);
    for text in ["managedFields: false\n", "managedFields:\n"] {
        assert!(parsed(text).is_err(), "{text}");
    }
}

fn exceptions(text: &str) -> Vec<(String, CacheMode)> {
    let exceptions = parsed(text).unwrap().exceptions().into_iter();
    exceptions
        .map(|exception| (exception.name(), exception.mode))
        .collect()
}

#[test]
fn a_cache_mode_is_set_for_all_types_and_for_single_ones() {
    let of = |name: &str, mode| (name.to_owned(), mode);
    // A cache mode for all types does not apply to secrets.
    for text in [
        "",
        "cache: true\n",
        "resources:\n- resource: secrets\n  consistentReads: linearizable\n",
    ] {
        assert_eq!(
            exceptions(text),
            [of("secrets", CacheMode::Nothing)],
            "{text}"
        );
    }
    for (choice, cache) in [
        ("true", CacheMode::Objects),
        ("onDemand", CacheMode::Objects),
        ("metadata", CacheMode::Metadata),
        ("false", CacheMode::Nothing),
        ("never", CacheMode::Nothing),
    ] {
        let text = format!("resources:\n- resource: secrets\n  cache: {choice}\n");
        assert_eq!(exceptions(&text), [of("secrets", cache)]);
        let text = format!("cache: {choice}\n");
        assert_eq!(parsed(&text).unwrap().mode, cache);
    }
    let text = "cache: metadata\nresources:\n\
                - resource: deployments\n  group: apps\n  cache: true\n\
                \x20 consistentReads: forward\n\
                - resource: events\n  cache: false\n\
                - group: events.k8s.io\n  resource: events\n  cache: false\n";
    assert_eq!(
        exceptions(text),
        [
            of("*", CacheMode::Metadata),
            of("deployments.apps", CacheMode::Objects),
            of("events", CacheMode::Nothing),
            of("secrets", CacheMode::Nothing),
        ]
    );
    let policy = parsed(text).unwrap();
    assert_eq!(
        policy
            .types
            .get("apps", "deployments")
            .unwrap()
            .consistent_reads,
        Some(ConsistentReads::Upstream)
    );
}

#[test]
fn a_wrong_value_is_refused_with_its_line() {
    for wrong in [
        "cache: none",
        "cache: \"true\"",
        "cache: 1",
        "cache:",
        "cache: Metadata",
        "caches: true",
    ] {
        let error = parsed(&format!("consistentReads: linearizable\n{wrong}\n"))
            .unwrap_err()
            .to_string();
        assert!(error.contains("line 2"), "{wrong}: {error}");
        let text = format!("resources:\n- resource: pods\n  {wrong}\n");
        let error = parsed(&text).unwrap_err().to_string();
        assert!(error.contains("line 3"), "{wrong}: {error}");
    }
    for wrong in [
        "resource: Secrets",
        "resource: pods/log",
        "resource: \"*\"",
        "group: Apps",
    ] {
        let text = format!("resources:\n- cache: false\n  {wrong}\n");
        let error = parsed(&text).unwrap_err().to_string();
        assert!(error.contains("line 3"), "{wrong}: {error}");
    }
}

#[test]
fn scope_settings_are_set_for_all_types_and_for_single_ones() {
    let policy = parsed(
        "selectorScopes: true\nidleSeconds: 30\nmaxStalenessSeconds: 60\nderiveJson: false\n\
         resources:\n\
         - resource: pods\n  cache: always\n  selectorScopes: false\n  windowSeconds: 7\n\
         \x20 windowMib: 2\n  maxStalenessSeconds: 0\n  deriveJson: true\n\
         - resource: configmaps\n  maxUpstreamWatches: 3\n  merge: false\n  idleSeconds: 0\n",
    )
    .unwrap();
    assert_eq!(
        (
            policy.scope_policy.selector_scopes,
            policy.scope_policy.idle
        ),
        (Some(true), Some(Duration::from_secs(30)))
    );
    let pods = policy.scope_policy("", "pods");
    assert!(
        pods.always_open
            && pods.selector_scopes == Some(false)
            && pods.window_bytes == Some(2 << 20)
    );
    assert_eq!(pods.window_age, Some(Duration::from_secs(7)));
    assert_eq!(pods.max_staleness, Some(Duration::ZERO));
    assert_eq!(pods.derive_json, Some(true));
    let maps = policy.scope_policy("", "configmaps");
    assert_eq!(maps.derive_json, Some(false));
    assert_eq!(
        (maps.selector_scopes, maps.max_scopes, maps.merge, maps.idle),
        (Some(true), Some(3), Some(false), Some(Duration::ZERO))
    );
    assert_eq!(maps.max_staleness, Some(Duration::from_mins(1)));
    assert_eq!(policy.scope_policy("", "services"), policy.scope_policy);
}

#[test]
fn contradictory_scope_settings_are_refused_with_their_line() {
    let before = "resources:\n- resource: nodes\n  cache: always\n";
    for (rest, says) in [
        ("- resource: pods\n  selectorScopes: yes please\n", "line 5"),
        ("- resource: pods\n  maxUpstreamWatches: 3\n", "line 4"),
        ("- resource: pods\n  merge: true\n", "selectorScopes: true"),
        (
            "- resource: pods\n  selectorScopes: true\n  maxUpstreamWatches: 0\n",
            "line 4",
        ),
        (
            "- resource: pods\n  cache: never\n  idleSeconds: 5\n",
            "line 4",
        ),
        (
            "- resource: pods\n  cache: always\n  idleSeconds: 5\n",
            "line 4",
        ),
        (
            "- resource: pods\n  cache: always\n  selectorScopes: true\n",
            "line 4: pods has cache: always",
        ),
        ("- resource: pods\n  idleSeconds: -1\n", "line 5"),
        ("- resource: nodes\n  selectorScopes: true\n", "line 4"),
        (
            "cache: always\n",
            "line 4: cache: always is only for single types",
        ),
    ] {
        let error = format!("{:#}", parsed(&format!("{before}{rest}")).unwrap_err());
        assert!(error.contains(says), "{rest}: {error}");
    }
    parsed(&format!(
        "{before}- resource: pods\n  cache: always\n  selectorScopes: true\n\
         scopes:\n- resource: pods\n  namespaces: [a]\n"
    ))
    .unwrap();
}

fn scopes(policy: &CachingPolicy, group: &str, resource: &str) -> Vec<String> {
    let scopes = policy.configured_scopes(group, resource);
    scopes.iter().map(ToString::to_string).collect()
}

#[test]
fn scopes_are_read() {
    let text = "scopes:\n- resource: pods\n  fieldSelector: spec.nodeName=n1\n\
                - resource: pods\n  namespaces: [a, b]\n\
                \x20 labelSelector: app in (x,y)\n\
                - group: apps\n  resource: deployments\n  namespaces: [a]\n";
    let policy = parsed(text).unwrap();
    assert_eq!(
        scopes(&policy, "", "pods"),
        [
            "fieldSelector=spec.nodeName=n1",
            "namespace=a; labelSelector=app in (x,y)",
            "namespace=b; labelSelector=app in (x,y)",
        ]
    );
    assert_eq!(scopes(&policy, "apps", "deployments"), ["namespace=a"]);
}

#[test]
fn a_useless_scope_is_refused_with_its_line() {
    let before = "scopes:\n- resource: pods\n  namespaces: [a]\n- resource: pods\n";
    for (rest, line) in [
        ("  namespaces: [b, b]\n", "line 4"),
        ("  namespaces: [a]\n", "line 4"),
        ("  namespaces: [a]\n  labelSelector: app=x\n", "line 4"),
        ("  namespaces: []\n", "line 4"),
        ("  namespaces: [\"\"]\n", "line 4"),
        ("  namespaces: [..]\n", "line 4"),
        ("  namespaces: [B]\n", "line 4"),
        ("  namespaces: [b-]\n", "line 4"),
        ("  labelSelector: \"app in (\"\n", "line 5"),
        ("  fieldSelector: spec.nodeName\n", "line 5"),
        ("  namespace: a\n", "line 5"),
        ("  namespaces: [b]\n- resource: secrets\n", "line 6"),
        (
            "  namespaces: [b]\n- resource: nodes\n\
             resources:\n- resource: nodes\n  cache: false\n",
            "line 6",
        ),
    ] {
        let error = format!("{:#}", parsed(&format!("{before}{rest}")).unwrap_err());
        assert!(error.contains(line), "{rest}: {error}");
    }
    parsed(&format!(
        "{before}  namespaces: [b]\n  labelSelector: app=x\n"
    ))
    .unwrap();
}

#[test]
fn the_example_files_are_valid() {
    for text in [
        include_str!("../../../../examples/config/types.yaml"),
        include_str!("../../../../examples/config/node.yaml"),
    ] {
        parsed(text).unwrap();
    }
}

#[test]
fn a_file_adds_to_the_preset_of_a_node() {
    let preset = || CachingPolicy::of_node("n1");
    assert_eq!(parse("", preset()).unwrap(), preset());
    let text = "resources:\n- resource: services\n  cache: always\n\
                - resource: nodes\n  cache: metadata\nscopes:\n\
                - resource: pods\n  namespaces: [a]\n";
    let policy = parse(text, preset()).unwrap();
    assert_eq!(policy.mode, CacheMode::Nothing);
    let exceptions = policy
        .exceptions()
        .into_iter()
        .map(|exception| (exception.name(), exception.cache()))
        .collect::<Vec<_>>();
    let expected = [
        ("*", "never"),
        ("leases.coordination.k8s.io", "onDemand"),
        ("nodes", "metadata"),
        ("pods", "onDemand"),
        ("secrets", "never"),
        ("services", "always"),
    ];
    assert_eq!(
        exceptions,
        expected.map(|(name, mode)| (name.to_owned(), mode))
    );
    assert_eq!(scopes(&policy, "", "pods"), ["namespace=a"]);
    assert_eq!(
        scopes(&policy, "coordination.k8s.io", "leases"),
        ["namespace=kube-node-lease; fieldSelector=metadata.name=n1"]
    );
}
