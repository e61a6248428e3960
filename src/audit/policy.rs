//! The audit policy, which selects the requests that are logged. It is kube-apiserver's own.
//!
//! Source: `apiserver/pkg/audit/policy/checker.go` (matching of rules),
//! `apiserver/pkg/apis/audit/validation/validation.go` (validation).
use std::path::Path;

use serde::Deserialize;
use serde::de::IgnoredAny;
use watershed_protocol::ResourceRequest;

use super::error::AuditError;
use super::event::AuditStage;
use crate::access::Identity;

/// The attributes of a request that a policy considers.
pub(crate) struct PolicyAttributes<'a> {
    pub(crate) user: Option<&'a Identity>,
    /// The verb; without a resource it is the method in lower case.
    pub(crate) verb: &'a str,
    pub(crate) path: &'a str,
    pub(crate) resource: Option<&'a ResourceRequest>,
}

/// The stages that are not logged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct OmittedStages([bool; AuditStage::ALL.len()]);

impl OmittedStages {
    pub(super) fn contains(self, stage: AuditStage) -> bool {
        self.0[stage as usize]
    }

    fn of(lists: &[&[String]]) -> Self {
        Self(AuditStage::ALL.map(|stage| lists.iter().any(|list| has(list, stage.as_str()))))
    }
}

/// A list of rules. The first one that matches a request applies.
#[derive(Debug)]
pub(crate) struct AuditPolicy(Vec<AuditRule>);

impl Default for AuditPolicy {
    /// Logs every request when it is answered.
    fn default() -> Self {
        let omitted = AuditStage::RequestReceived.as_str().to_owned();
        Self(vec![AuditRule {
            omitted: Some(OmittedStages::of(&[&[omitted]])),
            names_bodies: false,
            matches: RuleFile::default(),
        }])
    }
}

impl AuditPolicy {
    pub(super) fn read(path: &Path) -> Result<Self, AuditError> {
        std::fs::read_to_string(path)
            .map_err(|error| error.to_string())
            .and_then(|text| Self::parse(&text))
            .map_err(|reason| AuditError::Policy {
                path: path.to_owned(),
                reason,
            })
    }

    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let file: PolicyFile =
            serde_saphyr::from_str(text).map_err(|error| error.without_snippet().to_string())?;
        if file.api_version != "audit.k8s.io/v1" || file.kind != "Policy" {
            let (version, kind) = (file.api_version, file.kind);
            return Err(format!(
                "it is {kind:?} of {version:?}, not Policy of audit.k8s.io/v1"
            ));
        }
        let everywhere = file.omit_stages.unwrap_or_default();
        check_stages(&everywhere)?;
        let rules: Vec<AuditRule> = file
            .rules
            .unwrap_or_default()
            .into_iter()
            .enumerate()
            .map(|(index, rule)| {
                AuditRule::new(rule, &everywhere)
                    .map_err(|reason| format!("rules[{index}]: {reason}"))
            })
            .collect::<Result<_, _>>()?;
        if rules.is_empty() {
            return Err("it has no rules".to_owned());
        }
        Ok(Self(rules))
    }

    /// Returns `true` if a rule asks for request or response bodies. They are never logged.
    pub(super) fn names_bodies(&self) -> bool {
        self.0.iter().any(|rule| rule.names_bodies)
    }

    /// Returns the omitted stages of a request, or `None` if it is not logged at all.
    pub(crate) fn evaluate(&self, attributes: &PolicyAttributes<'_>) -> Option<OmittedStages> {
        self.0
            .iter()
            .find(|rule| rule.matches.fits(attributes))?
            .omitted
    }
}

#[derive(Debug)]
struct AuditRule {
    /// `None` logs nothing.
    omitted: Option<OmittedStages>,
    names_bodies: bool,
    matches: RuleFile,
}

impl AuditRule {
    fn new(rule: RuleFile, everywhere: &[String]) -> Result<Self, String> {
        let omitted = OmittedStages::of(&[everywhere, some(&rule.omit_stages)]);
        let (omitted, names_bodies) = match rule.level.as_str() {
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
        rule.check()?;
        Ok(Self {
            omitted,
            names_bodies,
            matches: rule,
        })
    }
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
    /// Applies to bodies, which are not logged.
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

impl RuleFile {
    fn check(&self) -> Result<(), String> {
        check_stages(some(&self.omit_stages))?;
        let urls = some(&self.non_resource_urls);
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
        for resources in some(&self.resources) {
            resources.check()?;
        }
        let names_resources =
            !some(&self.resources).is_empty() || !some(&self.namespaces).is_empty();
        if !urls.is_empty() && names_resources {
            return Err("it is about resources and about nonResourceURLs".to_owned());
        }
        Ok(())
    }

    fn fits(&self, attributes: &PolicyAttributes<'_>) -> bool {
        self.fits_user(attributes.user)
            && fits_list(some(&self.verbs), attributes.verb)
            && self.fits_target(attributes)
    }

    fn fits_user(&self, user: Option<&Identity>) -> bool {
        let (users, groups) = (some(&self.users), some(&self.user_groups));
        (users.is_empty() || user.is_some_and(|user| has(users, &user.user)))
            && (groups.is_empty()
                || user.is_some_and(|user| user.groups.iter().any(|group| has(groups, group))))
    }

    fn fits_target(&self, attributes: &PolicyAttributes<'_>) -> bool {
        let PolicyAttributes { path, resource, .. } = attributes;
        let resources = some(&self.resources);
        let namespaces = some(&self.namespaces);
        let urls = some(&self.non_resource_urls);
        if resources.is_empty() && namespaces.is_empty() {
            return urls.is_empty()
                || resource.is_none() && urls.iter().any(|url| path_fits(path, url));
        }
        resource.is_some_and(|request| {
            fits_list(namespaces, request.namespace.as_deref().unwrap_or_default())
                && (resources.is_empty() || resources.iter().any(|entry| entry.fits(request)))
        })
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct GroupResources {
    group: String,
    resources: Option<Vec<String>>,
    resource_names: Option<Vec<String>>,
}

impl GroupResources {
    fn check(&self) -> Result<(), String> {
        let group = &self.group;
        if !matches!(&**group, "" | "*") && !is_subdomain(group) {
            return Err(format!("resources: {group:?} is not the name of a group"));
        }
        if !some(&self.resource_names).is_empty() && some(&self.resources).is_empty() {
            return Err("resources: resourceNames need resources".to_owned());
        }
        Ok(())
    }

    fn fits(&self, request: &ResourceRequest) -> bool {
        if self.group != *request.gvr.group && self.group != "*" {
            return false;
        }
        let resources = some(&self.resources);
        if resources.is_empty() {
            return true;
        }
        let name = request.name.as_deref().unwrap_or_default();
        fits_list(some(&self.resource_names), name)
            && resources.iter().any(|entry| resource_fits(entry, request))
    }
}

#[expect(clippy::ref_option, reason = "fields of a file, which may be null")]
fn some<T>(list: &Option<Vec<T>>) -> &[T] {
    list.as_deref().unwrap_or_default()
}

fn has(list: &[String], text: &str) -> bool {
    list.iter().any(|entry| entry == text)
}

/// Returns `true` if a text is in a list. An empty list contains every text.
fn fits_list(list: &[String], text: &str) -> bool {
    list.is_empty() || has(list, text)
}

fn resource_fits(entry: &str, request: &ResourceRequest) -> bool {
    let resource = &*request.gvr.resource;
    match (entry.split_once('/'), request.subresource.as_deref()) {
        _ if entry == "*" => true,
        // "pods/*" matches pods themselves, too.
        (Some((of, "*")), _) if of == resource => true,
        (Some((of, part)), Some(subresource)) => {
            (of == "*" || of == resource) && part == subresource
        }
        (None, None) => entry == resource,
        _ => false,
    }
}

fn path_fits(path: &str, url: &str) -> bool {
    url == "*"
        || url == path
        || url
            .strip_suffix('*')
            .is_some_and(|start| path.starts_with(start))
}

fn check_stages(stages: &[String]) -> Result<(), String> {
    let known = AuditStage::ALL.map(AuditStage::as_str);
    match stages.iter().find(|name| !known.contains(&name.as_str())) {
        Some(name) => Err(format!("omitStages: {name:?} is no stage")),
        None => Ok(()),
    }
}

/// Returns `true` if a name is a subdomain of RFC 1123.
/// Source: `apimachinery/pkg/util/validation/validation.go` (`IsDNS1123Subdomain`).
fn is_subdomain(name: &str) -> bool {
    name.len() <= 253 && name.split('.').all(is_label)
}

fn is_label(label: &str) -> bool {
    let is_plain = label
        .bytes()
        .all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-'));
    is_plain && !label.is_empty() && !label.starts_with('-') && !label.ends_with('-')
}

#[cfg(test)]
mod tests;
