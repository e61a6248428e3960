//! The features that a watch may use, by the operator's rules about clients.
use http::{HeaderMap, Request, Uri, header};
use watershed_protocol::{GroupVersionResource, Query, RequestInfo, Status, Verb};

use super::read::{ReadKind, ReadPlan};
use crate::serve::policy::client_rules::ClientRule;
use crate::serve::policy::type_name::TypeName;
use crate::serve::target::with_query;

/// Parameters of a watch that begins with the state, as upstream demands them together.
const INITIAL_EVENTS: &str = "sendInitialEvents";
const VERSION_MATCH: &str = "resourceVersionMatch";

/// The features that a watch may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::serve) struct ClientFeatures {
    watch_compression: bool,
    watch_list: bool,
}

impl Default for ClientFeatures {
    fn default() -> Self {
        Self {
            watch_compression: true,
            watch_list: true,
        }
    }
}

impl ClientFeatures {
    /// Returns the features that a request may use.
    pub(super) fn of(rules: &[ClientRule], info: &RequestInfo, headers: &HeaderMap) -> Self {
        if rules.is_empty() {
            return Self::default();
        }
        if info.verb != Verb::Watch && !info.legacy_watch {
            return Self::default();
        }
        let gvr = info.resource.as_ref().map(|asked| &asked.gvr);
        Self::of_watch(rules, agent(headers), gvr)
    }

    fn of_watch(rules: &[ClientRule], agent: &str, gvr: Option<&GroupVersionResource>) -> Self {
        let resource = gvr.map(|gvr| TypeName::new(&gvr.group, &gvr.resource));
        let fitting = || {
            rules
                .iter()
                .filter(|rule| rule.fits(agent, resource.as_ref()))
        };
        Self {
            watch_compression: fitting()
                .find_map(|rule| rule.watch_compression)
                .unwrap_or(true),
            watch_list: fitting().find_map(|rule| rule.watch_list).unwrap_or(true),
        }
    }

    /// Removes from a request what asks for features that are off. Plan it before: whatever is
    /// forwarded, upstream is to refuse it.
    pub(in crate::serve) fn restrict<B>(self, request: &mut Request<B>) {
        if !self.watch_compression {
            request.headers_mut().remove(header::ACCEPT_ENCODING);
        }
        if !self.watch_list
            && let Some(uri) = without_version_match(request.uri())
        {
            *request.uri_mut() = uri;
        }
    }

    /// Returns the refusal of a read that uses a feature that is off.
    pub(in crate::serve) fn refusal(self, read: &ReadPlan) -> Option<Status> {
        let ReadKind::Watch(watch) = &read.kind else {
            return None;
        };
        let is_refused = !self.watch_list && watch.names_initial_events;
        is_refused.then(Status::no_initial_events)
    }
}

fn agent(headers: &HeaderMap) -> &str {
    let agent = headers.get(header::USER_AGENT);
    agent
        .and_then(|agent| agent.to_str().ok())
        .unwrap_or_default()
}

/// Returns a URI that names `sendInitialEvents` without the parameter that it requires, so that
/// upstream refuses it, or does not see the name either; `None` if it is not named.
fn without_version_match(uri: &Uri) -> Option<Uri> {
    let query = Query::parse(uri.query());
    if !query.has_name(INITIAL_EVENTS) {
        return None;
    }
    with_query(uri, &query.without(VERSION_MATCH))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::policy::client_rules::AgentPattern;

    #[test]
    fn the_first_rule_that_names_a_feature_decides() {
        let rule = |agent: &str, resource: Option<&str>, compression, list| ClientRule {
            user_agent: (!agent.is_empty()).then(|| match agent.strip_suffix('*') {
                Some(start) => AgentPattern::BeginsWith(start.to_owned()),
                None => AgentPattern::Exactly(agent.to_owned()),
            }),
            resource: resource.map(|resource| TypeName::new("events.k8s.io", resource)),
            watch_compression: compression,
            watch_list: list,
        };
        let rules = [
            rule("agent-b/2*", None, Some(true), None),
            rule("agent-b/*", None, Some(false), None),
            rule("agent", Some("events"), None, Some(false)),
            rule("", Some("events"), Some(false), None),
        ];
        let of = |agent: &str, group: &str, resource: &str| {
            let gvr = GroupVersionResource::new(group, "v1", resource);
            let features = ClientFeatures::of_watch(&rules, agent, Some(&gvr));
            (features.watch_compression, features.watch_list)
        };
        assert_eq!(of("agent-b/1.2", "", "pods"), (false, true));
        assert_eq!(of("agent-b/2.0", "", "events"), (true, true));
        assert_eq!(of("agent", "", "pods"), (true, true));
        // Events of both groups are the same objects.
        assert_eq!(of("agent", "", "events"), (false, false));
        assert_eq!(of("agent/1", "", "events"), (false, true));
        assert_eq!(of("", "", "pods"), (true, true));
    }

    #[test]
    fn upstream_refuses_initial_events_without_what_they_require() {
        for (query, wanted) in [
            (
                "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&a=%26",
                Some("watch=1&sendInitialEvents=true&a=%26"),
            ),
            (
                "resource%56ersionMatch=NotOlderThan&send%49nitialEvents=false",
                Some("send%49nitialEvents=false"),
            ),
            (
                "watch=1&sendInitialEvents=%ff&resourceVersionMatch=NotOlderThan",
                Some("watch=1&sendInitialEvents=%ff"),
            ),
            (
                "watch=1&sendInitialEvents=%zz&resourceVersionMatch=NotOlderThan",
                Some("watch=1&sendInitialEvents=%zz"),
            ),
            ("watch=1&resourceVersionMatch=NotOlderThan", None),
            ("watch=1", None),
        ] {
            let uri = format!("/api/v1/pods?{query}").parse().unwrap();
            let changed = without_version_match(&uri);
            let changed = changed.as_ref().map(|uri| uri.query().unwrap());
            assert_eq!(changed, wanted, "{query}");
        }
    }
}
