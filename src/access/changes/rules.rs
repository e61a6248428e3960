//! Evaluation of the rules of roles.
//!
//! Source: `kubernetes/plugin/pkg/auth/authorizer/rbac/rbac.go` (RuleAllows) and
//! `kubernetes/pkg/apis/rbac/v1/evaluation_helpers.go`.
use k8s_openapi::api::authorization::v1::{
    NonResourceAttributes, ResourceAttributes, SubjectAccessReviewSpec,
};
use k8s_openapi::api::rbac::v1::PolicyRule;

/// Stands for all verbs, groups, resources or paths.
const ALL: &str = "*";

/// Returns `true` if a rule grants what a review asks about.
pub(super) fn allows(rule: &PolicyRule, review: &SubjectAccessReviewSpec) -> bool {
    match (&review.resource_attributes, &review.non_resource_attributes) {
        (Some(asked), None) => allows_resource(rule, asked),
        (None, Some(asked)) => allows_path(rule, asked),
        _ => false,
    }
}

fn allows_resource(rule: &PolicyRule, asked: &ResourceAttributes) -> bool {
    let (resource, subresource) = (
        text(asked.resource.as_ref()),
        text(asked.subresource.as_ref()),
    );
    has(Some(&rule.verbs), text(asked.verb.as_ref()))
        && has(rule.api_groups.as_ref(), text(asked.group.as_ref()))
        && items(rule.resources.as_ref()).any(|item| is_resource(item, resource, subresource))
        && is_name(rule, text(asked.name.as_ref()))
}

fn allows_path(rule: &PolicyRule, asked: &NonResourceAttributes) -> bool {
    let path = text(asked.path.as_ref());
    has(Some(&rule.verbs), text(asked.verb.as_ref()))
        && items(rule.non_resource_urls.as_ref()).any(|item| is_path(item, path))
}

/// Returns `true` for an item of a rule that stands for a resource, or for its subresource if there is one.
fn is_resource(item: &str, resource: &str, subresource: &str) -> bool {
    if item == ALL {
        return true;
    }
    if subresource.is_empty() {
        return item == resource;
    }
    item.split_once('/')
        .is_some_and(|(owner, part)| part == subresource && (owner == ALL || owner == resource))
}

/// Returns `true` if a rule is for objects of this name. One without names is for all.
fn is_name(rule: &PolicyRule, name: &str) -> bool {
    let mut names = items(rule.resource_names.as_ref()).peekable();
    names.peek().is_none() || names.any(|item| item == name)
}

/// Returns `true` for an item of a rule that stands for a path. A final asterisk stands for any end.
fn is_path(item: &str, path: &str) -> bool {
    item == path || item.ends_with(ALL) && path.starts_with(item.trim_end_matches(ALL))
}

fn has(list: Option<&Vec<String>>, wanted: &str) -> bool {
    items(list).any(|item| item == ALL || item == wanted)
}

fn items(list: Option<&Vec<String>>) -> impl Iterator<Item = &str> {
    list.into_iter().flatten().map(String::as_str)
}

fn text(text: Option<&String>) -> &str {
    text.map(String::as_str).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn allows_attributes(rule: &Value, attributes: &Value) -> bool {
        let rule = serde_json::from_value(rule.clone()).unwrap();
        let member = if attributes.get("path").is_some() {
            "nonResourceAttributes"
        } else {
            "resourceAttributes"
        };
        let review = serde_json::from_value(json!({"user": "ann", member: attributes}));
        allows(&rule, &review.unwrap())
    }

    #[test]
    fn a_rule_grants_its_verbs_on_its_resources() {
        let pods = json!({"verbs": ["get", "list"], "apiGroups": [""], "resources": ["pods"]});
        let logs = json!({"verbs": ["get"], "apiGroups": [""], "resources": ["pods/log"]});
        let scales = json!({"verbs": ["get"], "apiGroups": ["apps"], "resources": ["*/scale"]});
        let all = json!({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]});
        let paths = json!({"verbs": ["*"], "nonResourceURLs": ["*"]});
        let asked = |verb: &str, group: &str, resource: &str, subresource: &str| {
            json!({
                "verb": verb, "group": group, "resource": resource, "subresource": subresource,
            })
        };
        for (rule, asked, granted) in [
            (&pods, asked("list", "", "pods", ""), true),
            (&pods, asked("watch", "", "pods", ""), false),
            (&pods, asked("list", "apps", "pods", ""), false),
            (&pods, asked("list", "", "nodes", ""), false),
            (&pods, asked("get", "", "pods", "log"), false),
            (&logs, asked("get", "", "pods", "log"), true),
            (&logs, asked("get", "", "pods", ""), false),
            (&logs, asked("get", "", "pods", "status"), false),
            (&scales, asked("get", "apps", "deployments", "scale"), true),
            (
                &scales,
                asked("get", "apps", "deployments", "status"),
                false,
            ),
            (&scales, asked("get", "apps", "deployments", ""), false),
            (&all, asked("delete", "apps", "deployments", "scale"), true),
            (&all, asked("list", "", "pods", ""), true),
            (&paths, asked("list", "", "pods", ""), false),
        ] {
            assert_eq!(allows_attributes(rule, &asked), granted, "{rule} {asked}");
        }
    }

    #[test]
    fn a_rule_with_names_grants_no_others() {
        let named = json!({
            "verbs": ["get"], "apiGroups": [""], "resources": ["secrets"],
            "resourceNames": ["key", "*"],
        });
        let nameless = json!({
            "verbs": ["get"], "apiGroups": [""], "resources": ["secrets"], "resourceNames": [],
        });
        let asked = |name: &str| json!({"verb": "get", "resource": "secrets", "name": name});
        for (name, granted) in [("key", true), ("other", false), ("", false), ("*", true)] {
            assert_eq!(allows_attributes(&named, &asked(name)), granted, "{name}");
            assert!(allows_attributes(&nameless, &asked(name)), "{name}");
        }
    }

    #[test]
    fn a_rule_grants_paths_by_their_starts() {
        let rule = |path: &str| json!({"verbs": ["get"], "nonResourceURLs": [path]});
        for (item, path, granted) in [
            ("/healthz", "/healthz", true),
            ("/healthz", "/healthz/etcd", false),
            ("/healthz/*", "/healthz/etcd", true),
            ("/healthz/*", "/healthz", false),
            ("/healthz*", "/healthz", true),
            ("/healthz**", "/healthz/etcd", true),
            ("*", "/anything", true),
            ("/a*/b", "/ax/b", false),
        ] {
            let asked = json!({"verb": "get", "path": path});
            assert_eq!(
                allows_attributes(&rule(item), &asked),
                granted,
                "{item} {path}"
            );
            let other_verb = json!({"verb": "post", "path": path});
            assert!(
                !allows_attributes(&rule(item), &other_verb),
                "{item} {path}"
            );
        }
    }

    #[test]
    fn a_review_of_nothing_or_of_two_is_not_granted() {
        let all = json!({
            "verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "nonResourceURLs": ["*"],
        });
        let rule = serde_json::from_value(all).unwrap();
        let mut review = SubjectAccessReviewSpec::default();
        assert!(!allows(&rule, &review));
        review.resource_attributes = Some(ResourceAttributes::default());
        assert!(allows(&rule, &review));
        review.non_resource_attributes = Some(NonResourceAttributes::default());
        assert!(!allows(&rule, &review));
    }
}
