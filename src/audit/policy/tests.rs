//! Rules and the requests that they match, and invalid policies.
use watershed_protocol::RequestInfo;

use super::*;

/// Returns the stages of a request that a policy of these rules logs, or `None`.
fn logged(rules: &str, who: &str, method: &str, url: &str) -> Option<Vec<&'static str>> {
    let policy = AuditPolicy::parse(&format!(
        "apiVersion: audit.k8s.io/v1\nkind: Policy\n{rules}"
    ))
    .unwrap();
    stages(&policy, who, method, url)
}

fn stages(policy: &AuditPolicy, who: &str, method: &str, url: &str) -> Option<Vec<&'static str>> {
    let user = (!who.is_empty()).then(|| {
        let mut names = who.split(' ').map(str::to_owned);
        Identity {
            user: names.next().unwrap(),
            uid: None,
            groups: names.collect(),
            extra: Vec::new(),
        }
    });
    let (path, query) = url
        .split_once('?')
        .map_or((url, None), |(path, query)| (path, Some(query)));
    let info = RequestInfo::parse(&method.parse().unwrap(), path, query);
    let verb = if info.resource.is_some() {
        info.verb.as_str()
    } else {
        "get"
    };
    let attributes = PolicyAttributes {
        user: user.as_ref(),
        verb,
        path,
        resource: info.resource.as_ref(),
    };
    let omitted = policy.evaluate(&attributes)?;
    Some(
        AuditStage::ALL
            .into_iter()
            .filter(|stage| !omitted.contains(*stage))
            .map(AuditStage::as_str)
            .collect(),
    )
}

const PODS: &str = "/api/v1/namespaces/a/pods";

#[test]
fn the_first_matching_rule_applies() {
    for (rule, who, url, fits) in [
        ("", "u", PODS, true),
        ("", "", PODS, true),
        ("users: [u, v]", "u", PODS, true),
        ("users: [v]", "u", PODS, false),
        ("users: [u]", "", PODS, false),
        ("userGroups: [g, h]", "u x h", PODS, true),
        ("userGroups: [u]", "u x h", PODS, false),
        ("userGroups: [g]", "", PODS, false),
        ("verbs: [list, watch]", "u", PODS, true),
        ("verbs: [watch]", "u", PODS, false),
        ("verbs: [watch]", "u", "/api/v1/pods?watch=1", true),
        ("verbs: [get]", "u", "/apis", true),
        ("namespaces: [a]", "u", PODS, true),
        ("namespaces: [b]", "u", PODS, false),
        ("namespaces: ['']", "u", "/api/v1/nodes", true),
        ("namespaces: ['']", "u", "/api/v1/pods", true),
        ("namespaces: ['']", "u", "/apis", false),
        ("namespaces: [a]", "u", "/api/v1/namespaces/a", true),
        ("resources: [{group: ''}]", "u", PODS, true),
        (
            "resources: [{group: ''}]",
            "u",
            "/apis/apps/v1/deployments",
            false,
        ),
        ("resources: [{group: ''}]", "u", "/version", false),
        ("resources: [{}]", "u", PODS, true),
        ("resources: [{group: apps}, {group: '*'}]", "u", PODS, true),
        ("resources: [{resources: [pods]}]", "u", PODS, true),
        ("resources: [{resources: [pod]}]", "u", PODS, false),
        (
            "resources: [{resources: ['*']}]",
            "u",
            "/api/v1/namespaces/a/pods/p/log",
            true,
        ),
        (
            "resources: [{resources: [pods]}]",
            "u",
            "/api/v1/namespaces/a/pods/p/log",
            false,
        ),
        (
            "resources: [{resources: [pods/log]}]",
            "u",
            "/api/v1/namespaces/a/pods/p/log",
            true,
        ),
        (
            "resources: [{resources: ['pods/*']}]",
            "u",
            "/api/v1/namespaces/a/pods/p/log",
            true,
        ),
        ("resources: [{resources: ['pods/*']}]", "u", PODS, true),
        (
            "resources: [{resources: ['*/log']}]",
            "u",
            "/api/v1/namespaces/a/pods/p/log",
            true,
        ),
        ("resources: [{resources: ['*/log']}]", "u", PODS, false),
        (
            "resources: [{resources: ['*/status']}]",
            "u",
            "/api/v1/namespaces/a/pods/p/log",
            false,
        ),
        (
            "resources: [{resources: [pods], resourceNames: [p]}]",
            "u",
            "/api/v1/namespaces/a/pods/p",
            true,
        ),
        (
            "resources: [{resources: [pods], resourceNames: [p]}]",
            "u",
            "/api/v1/namespaces/a/pods/q",
            false,
        ),
        (
            "resources: [{resources: [pods], resourceNames: [p]}]",
            "u",
            PODS,
            false,
        ),
        (
            "resources: [{resources: [pods], resourceNames: [p]}]",
            "u",
            "/api/v1/pods?fieldSelector=metadata.name%3Dp",
            true,
        ),
        (
            "resources: [{resources: [pods]}], namespaces: [b]",
            "u",
            PODS,
            false,
        ),
        ("nonResourceURLs: [/version]", "u", "/version", true),
        ("nonResourceURLs: [/version]", "u", "/versions", false),
        ("nonResourceURLs: ['/api*']", "u", "/apis/apps", true),
        ("nonResourceURLs: ['*']", "u", "/apis/apps", true),
        ("nonResourceURLs: ['*']", "u", PODS, false),
        ("users: [u], verbs: [get]", "u", PODS, false),
    ] {
        let separator = if rule.is_empty() { "" } else { ", " };
        let rules = format!("rules: [{{level: Metadata{separator}{rule}}}]");
        assert_eq!(
            logged(&rules, who, "GET", url).is_some(),
            fits,
            "{rules} {who:?} {url}"
        );
    }
}

#[test]
fn level_none_hides_requests_from_later_rules() {
    let rules = "rules: [{level: None, users: [quiet]}, {level: Request, verbs: [list]}]";
    assert_eq!(logged(rules, "quiet", "GET", PODS), None);
    assert!(logged(rules, "loud", "GET", PODS).is_some());
    assert_eq!(
        logged(rules, "loud", "GET", "/api/v1/namespaces/a/pods/p"),
        None,
        "no rule matches"
    );
}

#[test]
fn stages_are_omitted_at_both_levels() {
    let rules = "omitStages: [RequestReceived]\n\
                 rules: [{level: Metadata, omitStages: [ResponseStarted, Panic]}]";
    assert_eq!(
        logged(rules, "u", "GET", PODS),
        Some(vec!["ResponseComplete"])
    );
    let all = logged("rules: [{level: RequestResponse}]", "u", "GET", PODS).unwrap();
    assert_eq!(
        all,
        [
            "RequestReceived",
            "ResponseStarted",
            "ResponseComplete",
            "Panic"
        ]
    );
    let usual = stages(&AuditPolicy::default(), "", "GET", PODS).unwrap();
    assert_eq!(usual, ["ResponseStarted", "ResponseComplete", "Panic"]);
}

#[test]
fn every_field_of_kube_apiserver_is_accepted() {
    let text = concat!(
        "apiVersion: audit.k8s.io/v1\nkind: Policy\nmetadata: {name: x, labels: {a: b}}\n",
        "omitManagedFields: true\nomitStages:\nrules:\n- level: RequestResponse\n",
        "  omitManagedFields: false\n  users:\n  resources:\n  - group: apps\n    resources:\n",
    );
    assert!(AuditPolicy::parse(text).unwrap().names_bodies());
    let text = r#"{"apiVersion":"audit.k8s.io/v1","kind":"Policy","rules":[{"level":"Metadata"}]}"#;
    assert!(!AuditPolicy::parse(text).unwrap().names_bodies());
}

#[test]
fn an_invalid_policy_is_refused_with_one_line() {
    let head = "apiVersion: audit.k8s.io/v1\nkind: Policy\n";
    for (text, why) in [
        (String::new(), "end of input"),
        ("[]".to_owned(), ""),
        (
            "apiVersion: audit.k8s.io/v1\nkind: Event\nrules: [{level: None}]".to_owned(),
            "\"Event\"",
        ),
        (
            "apiVersion: audit.k8s.io/v1beta1\nkind: Policy\nrules: [{level: None}]".to_owned(),
            "v1beta1",
        ),
        (head.to_owned(), "no rules"),
        (format!("{head}rules: []"), "no rules"),
        (format!("{head}rule: []"), "rule"),
        (format!("{head}rules: [{{}}]"), "rules[0]: it has no level"),
        (
            format!("{head}rules: [{{level: None}}, {{level: metadata}}]"),
            "rules[1]: level \"metadata\"",
        ),
        (format!("{head}rules: [{{level: None, user: [a]}}]"), "user"),
        (
            format!("{head}rules: [{{level: None, resources: [{{groups: a}}]}}]"),
            "groups",
        ),
        (
            format!("{head}rules: [{{level: None, resources: [{{group: apps/v1}}]}}]"),
            "apps/v1",
        ),
        (
            format!("{head}rules: [{{level: None, resources: [{{resourceNames: [a]}}]}}]"),
            "resourceNames",
        ),
        (
            format!("{head}rules: [{{level: None, omitStages: [Started]}}]"),
            "Started",
        ),
        (
            format!("{head}omitStages: [Started]\nrules: [{{level: None}}]"),
            "Started",
        ),
        (
            format!("{head}rules: [{{level: None, nonResourceURLs: [version]}}]"),
            "slash",
        ),
        (
            format!("{head}rules: [{{level: None, nonResourceURLs: [/a*b]}}]"),
            "asterisk",
        ),
        (
            format!("{head}rules: [{{level: None, nonResourceURLs: ['/a**']}}]"),
            "asterisk",
        ),
        (
            format!("{head}rules: [{{level: None, nonResourceURLs: [/a], namespaces: [b]}}]"),
            "about resources",
        ),
    ] {
        let reason = AuditPolicy::parse(&text).unwrap_err();
        assert!(
            reason.contains(why) && !reason.contains('\n'),
            "{text:?}: {reason:?}"
        );
    }
}

#[test]
fn a_file_that_cannot_be_read_is_named() {
    let error = AuditPolicy::read(Path::new("/nowhere/policy.yaml"))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("/nowhere/policy.yaml (--audit-policy-file): No such file"),
        "{error}"
    );
}
