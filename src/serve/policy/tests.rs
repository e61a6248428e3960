use super::*;
use watershed_protocol::LabelSelector;

fn cache(policy: &CachingPolicy, group: &str, version: &str, resource: &str) -> CacheMode {
    policy.mode(&GroupVersionResource::new(group, version, resource))
}

#[test]
fn secrets_are_cached_only_if_they_are_named() {
    for others in [CacheMode::Nothing, CacheMode::Metadata, CacheMode::Objects] {
        let mut policy = CachingPolicy {
            mode: others,
            ..CachingPolicy::default()
        };
        assert_eq!(cache(&policy, "", "v1", "secrets"), CacheMode::Nothing);
        assert_eq!(cache(&policy, "", "v1", "pods"), others);
        // Another group's type of this name is another type.
        assert_eq!(cache(&policy, "example.test", "v1", "secrets"), others);
        policy.types.entry("", "configmaps").mode = Some(CacheMode::Nothing);
        assert_eq!(cache(&policy, "", "v1", "secrets"), CacheMode::Nothing);
        for chosen in [CacheMode::Metadata, CacheMode::Objects] {
            policy.types.entry("", "secrets").mode = Some(chosen);
            assert_eq!(cache(&policy, "", "v1", "secrets"), chosen);
        }
    }
}

#[test]
fn a_mode_applies_to_every_version_and_group_of_the_same_objects() {
    for group in ["", "events.k8s.io"] {
        let mut policy = CachingPolicy::default();
        policy.types.entry(group, "events").mode = Some(CacheMode::Nothing);
        assert_eq!(cache(&policy, "", "v1", "events"), CacheMode::Nothing);
        assert_eq!(
            cache(&policy, "events.k8s.io", "v1", "events"),
            CacheMode::Nothing
        );
        assert_eq!(
            cache(&policy, "events.k8s.io", "v1beta1", "events"),
            CacheMode::Nothing
        );
        assert_eq!(
            cache(&policy, "example.test", "v1", "events"),
            CacheMode::Objects
        );
    }
}

#[test]
fn consistent_reads_apply_to_every_version_and_group_of_the_same_objects() {
    for group in ["", "events.k8s.io"] {
        let mut policy = CachingPolicy::default();
        let chosen = ConsistentReads::Upstream;
        policy.types.entry(group, "events").consistent_reads = Some(chosen);
        for (other, version) in [("", "v1"), ("events.k8s.io", "v1")] {
            let events = GroupVersionResource::new(other, version, "events");
            assert_eq!(policy.consistent_reads(&events), chosen, "{group} {other}");
        }
        let others = GroupVersionResource::new("example.test", "v1", "events");
        assert_eq!(
            policy.consistent_reads(&others),
            ConsistentReads::ProvenFresh
        );
    }
}

#[test]
fn exceptions_are_listed_by_name() {
    let listed = |policy: &CachingPolicy| {
        let listed = policy.exceptions().into_iter();
        listed
            .map(|kept| (kept.name(), kept.mode.as_str(), kept.sensitive))
            .collect::<Vec<_>>()
    };
    let mut policy = CachingPolicy::default();
    assert_eq!(listed(&policy), [("secrets".to_owned(), "never", true)]);
    policy.types.entry("", "secrets").mode = Some(CacheMode::Objects);
    policy.types.entry("", "pods").mode = Some(CacheMode::Objects);
    policy.types.entry("apps", "deployments").mode = Some(CacheMode::Metadata);
    let chosen = ("deployments.apps".to_owned(), "metadata", false);
    assert_eq!(
        listed(&policy),
        [chosen.clone(), ("secrets".to_owned(), "onDemand", true)]
    );
    policy.mode = CacheMode::Nothing;
    assert_eq!(
        listed(&policy),
        [
            ("*".to_owned(), "never", false),
            chosen,
            ("pods".to_owned(), "onDemand", false),
            ("secrets".to_owned(), "onDemand", true),
        ]
    );
}

fn selection(namespace: Option<&str>, labels: &str, fields: &str) -> Selection {
    Selection {
        namespace: namespace.map(str::to_owned),
        labels: LabelSelector::parse(labels).unwrap(),
        fields: FieldSelector::parse(fields).unwrap(),
    }
}

/// Returns the scope of pods that is chosen, and whether it is complete.
fn chosen(policy: &CachingPolicy, asked: &Selection, one: bool) -> Option<(String, bool)> {
    let pods = GroupVersionResource::new("", "v1", "pods");
    let choice = policy.scope_for(&pods, one, || asked.clone())?;
    Some(match choice {
        ScopeChoice::Configured(scope) => (scope.selection.to_string(), scope.is_complete),
        ScopeChoice::OnDemand { asked, .. } => (format!("on demand: {asked}"), false),
    })
}

#[test]
fn the_node_preset_covers_reads_of_its_node() {
    let everything = Some((String::new(), true));
    assert_eq!(
        chosen(&CachingPolicy::default(), &selection(None, "", ""), false),
        everything
    );
    let node = CachingPolicy::of_node("n1");
    let bound = Some(("fieldSelector=spec.nodeName=n1".to_owned(), true));
    assert_eq!(
        chosen(&node, &selection(None, "", "spec.nodeName=n1"), false),
        bound
    );
    assert_eq!(
        chosen(
            &node,
            &selection(Some("a"), "app=x", "spec.nodeName=n1"),
            false
        ),
        bound
    );
    for fields in [
        "",
        "spec.nodeName=n2",
        "spec.nodeName!=n2",
        "metadata.name=p",
    ] {
        assert_eq!(
            chosen(&node, &selection(None, "", fields), false),
            None,
            "{fields}"
        );
    }
    // One pod may be the node's; if it is not found, that says nothing.
    let named = Selection::named(Some("a"), "p");
    assert_eq!(
        chosen(&node, &named, true),
        Some(("fieldSelector=spec.nodeName=n1".to_owned(), false))
    );
    // Other types have scopes of their own.
    let nodes = GroupVersionResource::new("", "v1", "nodes");
    for (name, has_it) in [("n1", true), ("n2", false)] {
        let held = node.scope_for(&nodes, true, || Selection::named(None, name));
        assert!(
            matches!(held, Some(ScopeChoice::Configured(held)) if held.is_complete == has_it),
            "{name}"
        );
    }
    assert!(
        node.scope_for(&nodes, false, || selection(None, "", ""))
            .is_none()
    );
}

#[test]
fn the_narrowest_covering_scope_is_chosen() {
    let named = Selection::named(Some("a"), "p");
    let mut policy = CachingPolicy::default();
    let scopes = [
        selection(Some("a"), "", ""),
        selection(None, "app", ""),
        selection(Some("b"), "app=x", ""),
    ];
    policy.types.entry("", "pods").scopes = scopes.into_iter().map(Arc::new).collect();
    let asked = selection(Some("b"), "app=x", "spec.nodeName=n1");
    assert_eq!(
        chosen(&policy, &asked, false),
        Some(("namespace=b; labelSelector=app=x".to_owned(), true))
    );
    let asked = selection(Some("b"), "app=y", "");
    assert_eq!(
        chosen(&policy, &asked, false),
        Some(("labelSelector=app".to_owned(), true))
    );
    assert_eq!(
        chosen(&policy, &named, true),
        Some(("namespace=a".to_owned(), true))
    );
    // On-demand scopes cover the rest.
    assert_eq!(chosen(&policy, &selection(None, "", ""), false), None);
    policy.scope_policy.selector_scopes = Some(true);
    let on_demand = Some(("on demand: namespace=c".to_owned(), false));
    assert_eq!(
        chosen(&policy, &selection(Some("c"), "", ""), false),
        on_demand
    );
    assert_eq!(
        chosen(&policy, &selection(Some("a"), "", ""), false),
        Some(("namespace=a".to_owned(), true))
    );
}

#[test]
fn options_follow_the_type_or_else_all_types() {
    let gvr = |resource: &str| GroupVersionResource::new("", "v1", resource);
    let window = WindowLimits {
        age: Duration::from_mins(5),
        least: 0,
        bytes: 1 << 20,
    };
    let mut policy = CachingPolicy::default();
    let kept = |policy: &CachingPolicy, resource, on_demand| {
        let origin = if on_demand {
            ScopeOrigin::OnDemand(None)
        } else {
            ScopeOrigin::Configured
        };
        let keep = policy.scope_options(&gvr(resource), origin, window);
        (
            keep.idle.map(|idle| idle.as_secs()),
            keep.window
                .map(|window| (window.age.as_secs(), window.bytes)),
        )
    };
    assert_eq!(kept(&policy, "pods", false), (None, None));
    assert_eq!(kept(&policy, "pods", true), (Some(600), None));
    policy.scope_policy.idle = Some(Duration::from_mins(1));
    let second = Some(Duration::from_secs(1));
    policy.types.entry("", "pods").scope_policy = ScopePolicy {
        window_age: second,
        ..ScopePolicy::default()
    };
    policy.types.entry("", "nodes").scope_policy = ScopePolicy {
        idle: Some(Duration::ZERO),
        window_bytes: Some(7),
        ..ScopePolicy::default()
    };
    policy.types.entry("", "services").scope_policy = ScopePolicy {
        idle: second,
        always_open: true,
        ..ScopePolicy::default()
    };
    assert_eq!(kept(&policy, "pods", false), (Some(60), Some((1, 1 << 20))));
    assert_eq!(kept(&policy, "nodes", true), (None, Some((300, 7))));
    assert_eq!(kept(&policy, "services", false), (None, None));
}

#[test]
fn only_policies_that_cache_custom_types_need_their_definitions() {
    assert!(CachingPolicy::default().may_cache_custom_types());
    let mut node = CachingPolicy::of_node("n1");
    assert!(!node.may_cache_custom_types());
    node.types.entry("example.org", "widgets").mode = Some(CacheMode::Nothing);
    node.types.entry("apps", "daemonsets").mode = Some(CacheMode::Objects);
    assert!(!node.may_cache_custom_types());
    node.types.entry("example.org", "gadgets").mode = Some(CacheMode::Metadata);
    assert!(node.may_cache_custom_types());
}

#[test]
fn a_type_that_is_named_so_as_not_to_be_cached_is_not_cached() {
    let is_pods = |group: &str, name: &str| (group, name) == ("", "pods");
    assert!(!CachingPolicy::default().caches_only(is_pods));
    let mut policy = CachingPolicy {
        mode: CacheMode::Nothing,
        ..CachingPolicy::default()
    };
    policy.types.entry("", "pods").mode = Some(CacheMode::Objects);
    policy.types.entry("apps", "daemonsets").mode = Some(CacheMode::Nothing);
    assert!(policy.caches_only(is_pods));
    policy.types.entry("apps", "daemonsets").mode = Some(CacheMode::Metadata);
    assert!(!policy.caches_only(is_pods));
}

#[test]
fn a_followed_scope_has_its_types_options_and_little_history_until_it_is_read() {
    let pods = || GroupVersionResource::new("", "v1", "pods");
    let window = WindowLimits {
        age: Duration::from_mins(5),
        least: 0,
        bytes: 256 << 20,
    };
    let mut policy = CachingPolicy::default();
    let mut scopes = ScopePolicy {
        max_staleness: Some(Duration::from_secs(7)),
        window_age: Some(Duration::from_secs(9)),
        ..ScopePolicy::default()
    };
    policy.types.entry("", "pods").scope_policy = scopes;
    let (key, options) = policy.followed_scope(pods(), window).unwrap();
    assert_eq!(
        key.representation,
        Representation::whole(Encoding::Protobuf)
    );
    assert_eq!(options.derivation, Derivation::Source);
    assert_eq!(options.max_staleness, Some(Duration::from_secs(7)));
    let history = options.window.unwrap();
    assert_eq!(history.age, Duration::from_secs(9));
    assert!(history.bytes < window.bytes);
    assert!(!options.origin.is_indispensable());
    // Nothing is derived from JSON, so clients share the scope as it is.
    scopes.derive_json = Some(false);
    policy.types.entry("", "pods").scope_policy = scopes;
    let (key, options) = policy.followed_scope(pods(), window).unwrap();
    assert_eq!(key.representation, Representation::whole(Encoding::Json));
    assert_eq!(options.derivation, Derivation::None);
    assert_eq!(options.window.unwrap().bytes, window.bytes);
    policy.types.entry("", "pods").mode = Some(CacheMode::Metadata);
    assert!(policy.followed_scope(pods(), window).is_none());
}
