//! Which requests are logged: kube-apiserver's own Policy.
//!
//! Source: `apiserver/pkg/audit/policy/checker.go` (which rule holds),
//! `apiserver/pkg/apis/audit/validation/validation.go` (what is refused).
use std::path::Path;

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::error::AuditError;
use super::event::Stage;
use crate::access::Identity;
use watershed_protocol::ResourceRequest;

/// What a policy looks at.
pub(super) struct Attributes<'a> {
    pub(super) user: Option<&'a Identity>,
    /// For paths that are no resource's: the method in lower case.
    pub(super) verb: &'a str,
    pub(super) path: &'a str,
    pub(super) resource: Option<&'a ResourceRequest>,
}

/// The stages that are not logged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Omitted([bool; Stage::ALL.len()]);

impl Omitted {
    pub(super) fn contains(self, stage: Stage) -> bool {
        self.0[stage as usize]
    }

    fn of(stages: &[&Vec<String>]) -> Self {
        Self(Stage::ALL.map(|stage| {
            stages
                .iter()
                .any(|list| list.iter().any(|name| name == stage.as_str()))
        }))
    }
}

/// Rules, of which the first that fits holds.
#[derive(Debug)]
pub(super) struct Policy(Vec<Rule>);

#[derive(Debug)]
struct Rule {
    /// `None` logs nothing.
    omitted: Option<Omitted>,
    /// It asks for the bodies, too.
    bodies: bool,
    matches: RuleFile,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct PolicyFile {
    api_version: String,
    kind: String,
    #[serde(default, rename = "metadata")]
    _metadata: Option<IgnoredAny>,
    #[serde(default)]
    rules: Option<Vec<RuleFile>>,
    #[serde(default)]
    omit_stages: Option<Vec<String>>,
    /// About bodies, which are not logged.
    #[serde(default, rename = "omitManagedFields")]
    _omit_managed_fields: Option<bool>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct RuleFile {
    level: String,
    users: Option<Vec<String>>,
    user_groups: Option<Vec<String>>,
    verbs: Option<Vec<String>>,
    resources: Option<Vec<GroupResources>>,
    namespaces: Option<Vec<String>>,
    #[serde(rename = "nonResourceURLs")]
    non_resource_urls: Option<Vec<String>>,
    omit_stages: Option<Vec<String>>,
    #[serde(rename = "omitManagedFields")]
    _omit_managed_fields: Option<bool>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct GroupResources {
    group: String,
    resources: Option<Vec<String>>,
    resource_names: Option<Vec<String>>,
}

impl Default for Policy {
    /// Everything, when it is answered.
    fn default() -> Self {
        let omitted = Omitted::of(&[&vec![Stage::RequestReceived.as_str().to_owned()]]);
        Self(vec![Rule {
            omitted: Some(omitted),
            bodies: false,
            matches: RuleFile::default(),
        }])
    }
}

impl Policy {
    pub(super) fn read(path: &Path) -> Result<Self, AuditError> {
        let wrong = |reason| AuditError::Policy {
            path: path.to_owned(),
            reason,
        };
        let text = std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
        Self::parse(&text).map_err(wrong)
    }

    fn parse(text: &str) -> Result<Self, String> {
        let file: PolicyFile =
            serde_saphyr::from_str(text).map_err(|error| error.without_snippet().to_string())?;
        if file.api_version != "audit.k8s.io/v1" || file.kind != "Policy" {
            let (version, kind) = (file.api_version, file.kind);
            return Err(format!(
                "it is {kind:?} of {version:?}, not Policy of audit.k8s.io/v1"
            ));
        }
        let everywhere = file.omit_stages.unwrap_or_default();
        check_stages(&everywhere).map_err(|reason| format!("omitStages: {reason}"))?;
        let rules = file.rules.unwrap_or_default().into_iter().enumerate();
        let rules: Vec<Rule> = rules
            .map(|(index, rule)| {
                Rule::new(rule, &everywhere).map_err(|reason| format!("rules[{index}]: {reason}"))
            })
            .collect::<Result<_, _>>()?;
        if rules.is_empty() {
            return Err("it has no rules".to_owned());
        }
        Ok(Self(rules))
    }

    /// Whether a rule asks for what reads do not have, or what is not kept of them.
    pub(super) fn names_bodies(&self) -> bool {
        self.0.iter().any(|rule| rule.bodies)
    }

    /// What is not logged of a request; `None` if nothing is logged.
    pub(super) fn evaluate(&self, attributes: &Attributes<'_>) -> Option<Omitted> {
        self.0
            .iter()
            .find(|rule| rule.matches.fit(attributes))?
            .omitted
    }
}

impl Rule {
    fn new(rule: RuleFile, everywhere: &Vec<String>) -> Result<Self, String> {
        let omitted = Omitted::of(&[everywhere, &rule.omit_stages.clone().unwrap_or_default()]);
        let (omitted, bodies) = match rule.level.as_str() {
            "None" => (None, false),
            "Metadata" => (Some(omitted), false),
            "Request" | "RequestResponse" => (Some(omitted), true),
            "" => return Err("it has no level".to_owned()),
            other => {
                return Err(format!(
                    "level {other:?} is none of None, Metadata, Request, RequestResponse"
                ));
            }
        };
        check_stages(some(&rule.omit_stages)).map_err(|reason| format!("omitStages: {reason}"))?;
        let urls = some(&rule.non_resource_urls);
        for url in urls.iter().filter(|url| *url != "*") {
            if !url.starts_with('/') {
                return Err(format!(
                    "nonResourceURLs: {url:?} does not begin with a slash"
                ));
            }
            if url.trim_end_matches('*').contains('*') || url.ends_with("**") {
                return Err(format!(
                    "nonResourceURLs: {url:?} has an asterisk before its end"
                ));
            }
        }
        for resources in some(&rule.resources) {
            let GroupResources { group, .. } = resources;
            if !matches!(&**group, "" | "*") && !is_subdomain(group) {
                return Err(format!("resources: {group:?} is no name of a group"));
            }
            if !some(&resources.resource_names).is_empty() && some(&resources.resources).is_empty()
            {
                return Err("resources: resourceNames need resources".to_owned());
            }
        }
        let of_resources = !some(&rule.resources).is_empty() || !some(&rule.namespaces).is_empty();
        if !urls.is_empty() && of_resources {
            return Err("it is about resources and about nonResourceURLs".to_owned());
        }
        Ok(Self {
            omitted,
            bodies,
            matches: rule,
        })
    }
}

impl RuleFile {
    fn fit(&self, attributes: &Attributes<'_>) -> bool {
        let Attributes {
            user,
            verb,
            path,
            resource,
        } = attributes;
        let by = |list: &Option<Vec<String>>, fits: &dyn Fn(&[String]) -> bool| {
            some(list).is_empty() || fits(some(list))
        };
        if !by(&self.users, &|users| {
            user.is_some_and(|user| users.contains(&user.user))
        }) || !by(&self.user_groups, &|groups| {
            user.is_some_and(|user| user.groups.iter().any(|group| groups.contains(group)))
        }) || !by(&self.verbs, &|verbs| has(verbs, verb))
        {
            return false;
        }
        let (resources, namespaces, urls) = (
            some(&self.resources),
            some(&self.namespaces),
            some(&self.non_resource_urls),
        );
        if !resources.is_empty() || !namespaces.is_empty() {
            let Some(asked) = resource else { return false };
            let namespace = asked.namespace.as_deref().unwrap_or_default();
            return (namespaces.is_empty() || has(namespaces, namespace))
                && (resources.is_empty()
                    || resources.iter().any(|resources| resources.fit(asked)));
        }
        urls.is_empty() || resource.is_none() && urls.iter().any(|url| path_fits(path, url))
    }
}

impl GroupResources {
    fn fit(&self, asked: &ResourceRequest) -> bool {
        if self.group != *asked.gvr.group && self.group != "*" {
            return false;
        }
        let (resources, names) = (some(&self.resources), some(&self.resource_names));
        if resources.is_empty() {
            return true;
        }
        if !names.is_empty() && !has(names, asked.name.as_deref().unwrap_or_default()) {
            return false;
        }
        let resource = &*asked.gvr.resource;
        resources.iter().any(|wanted| {
            match (wanted.split_once('/'), asked.subresource.as_deref()) {
                _ if wanted == "*" => true,
                // "pods/*" is about pods themselves, too.
                (Some((of, "*")), _) if of == resource => true,
                (Some((of, part)), Some(subresource)) => {
                    (of == "*" || of == resource) && part == subresource
                }
                (None, None) => wanted == resource,
                _ => false,
            }
        })
    }
}

#[expect(clippy::ref_option, reason = "fields of a file, which may be null")]
fn some<T>(list: &Option<Vec<T>>) -> &[T] {
    list.as_deref().unwrap_or_default()
}

fn has(list: &[String], text: &str) -> bool {
    list.iter().any(|entry| entry == text)
}

fn path_fits(path: &str, url: &str) -> bool {
    url == "*"
        || url == path
        || url
            .strip_suffix('*')
            .is_some_and(|start| path.starts_with(start))
}

fn check_stages(stages: &[String]) -> Result<(), String> {
    match stages
        .iter()
        .find(|name| !Stage::ALL.iter().any(|stage| stage.as_str() == *name))
    {
        Some(name) => Err(format!("{name:?} is no stage")),
        None => Ok(()),
    }
}

/// RFC 1123. Source: `apimachinery/pkg/util/validation/validation.go` (`IsDNS1123Subdomain`).
fn is_subdomain(name: &str) -> bool {
    let word = |word: &str| {
        let inside = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        !word.is_empty()
            && word.bytes().all(inside)
            && !word.starts_with('-')
            && !word.ends_with('-')
    };
    name.len() <= 253 && name.split('.').all(word)
}

#[cfg(test)]
mod tests;
