//! Forecasts of answers: the plan of a request, for a proxy that is warm and a caller that is known.
//!
//! Conditions that only time shows are left out: upstream that is away, memory that is short, first
//! lists.
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::time::Instant;

use http::Request;
use watershed_protocol::{Freshness, GroupVersionResource, WatchStart};

use super::metrics::Labels;
use super::plan::optional_parameters::{OptionalParameters, ParameterUse};
use super::plan::{PlannedAction, ReadKind, ReadPlan, RequestPlan};
use super::policy::CachingPolicy;
use super::source::{AnswerSource, ForwardReason};
use crate::catalog::Catalog;
use crate::proof::{GetCrowds, MANY_GETS};

/// Forecasts how a proxy with this policy would answer requests.
pub struct Forecaster {
    catalog: Catalog,
    policy: CachingPolicy,
    gets: GetCrowds,
}

/// The standing of a caller with upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallerStanding {
    /// Upstream knows the caller, and allows the request.
    Allowed,
    /// Upstream does not know the caller, or denies the request.
    Refused,
    /// The proxy cannot find out who calls.
    Unidentified,
}

/// The answer that a request would get.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forecast {
    /// The verb, as metrics name it.
    pub verb: &'static str,
    /// The type, if it is known.
    pub resource: Option<GroupVersionResource>,
    /// The source of the answer.
    pub source: AnswerSource,
    /// A number of the scope that answers. Requests that are answered from one scope have it in
    /// common.
    pub scope: Option<u64>,
    /// Upstream treats the request as long-running, as it does watches, sessions and logs.
    pub is_long_running: bool,
}

impl Forecaster {
    /// Creates a forecaster for the types of this catalog.
    pub fn new(catalog: Catalog, policy: CachingPolicy) -> Self {
        Self {
            catalog,
            policy,
            gets: GetCrowds::default(),
        }
    }

    /// Forecasts the answer to a request that arrives at this time. Gets depend on how many came
    /// shortly before.
    pub fn forecast<B>(
        &self,
        request: &Request<B>,
        caller: CallerStanding,
        arrived: Instant,
    ) -> Forecast {
        // Upstream's defaults.
        let parameters = OptionalParameters {
            shard_selector: ParameterUse::Ignored,
            drop: ParameterUse::Ignored,
        };
        let plan = RequestPlan::new(&self.catalog, &self.policy, request, parameters);
        let source = match (&plan.action, caller) {
            (PlannedAction::Forward(reason), _) => AnswerSource::Forward(*reason),
            (PlannedAction::Read(read), _) => self.read(read, caller, arrived),
            // Other proxies are not among upstream's clients.
            (PlannedAction::Checkpoint(_), _) => AnswerSource::NoState,
            (PlannedAction::Verdict(..), _) => AnswerSource::Verdict,
            (PlannedAction::Document(_), CallerStanding::Allowed) => AnswerSource::Document,
            (PlannedAction::Document(_), CallerStanding::Refused) => {
                AnswerSource::Forward(ForwardReason::NotAResource)
            }
            (PlannedAction::Document(_), CallerStanding::Unidentified) => {
                AnswerSource::Forward(ForwardReason::Identity)
            }
        };
        let scope = match (&plan.action, source) {
            (_, AnswerSource::Forward(_) | AnswerSource::Access) => None,
            (PlannedAction::Read(read), _) => Some(scope_number(read)),
            _ => None,
        };
        Forecast {
            verb: Labels::new(&plan, request.method()).verb(),
            resource: plan.resource.as_ref().map(|resource| resource.gvr.clone()),
            source,
            scope,
            is_long_running: plan.is_long_running,
        }
    }

    fn read(&self, read: &ReadPlan, caller: CallerStanding, arrived: Instant) -> AnswerSource {
        if matches!(read.kind, ReadKind::Get { .. })
            && read.needs_proof()
            && self.gets.arrived(&read.resource.gvr, arrived).rate < MANY_GETS
        {
            return AnswerSource::Forward(ForwardReason::Consistent);
        }
        match caller {
            CallerStanding::Allowed => allowed_read(read),
            CallerStanding::Refused => match read.refused_by_upstream() {
                Some(reason) => AnswerSource::Forward(reason),
                None => AnswerSource::Access,
            },
            CallerStanding::Unidentified => AnswerSource::Forward(ForwardReason::Identity),
        }
    }
}

fn allowed_read(read: &ReadPlan) -> AnswerSource {
    let follows_events = match &read.kind {
        ReadKind::Watch(watch) => !matches!(watch.start, WatchStart::State { .. }),
        ReadKind::Get { .. } | ReadKind::List(_) => false,
    };
    match read.freshness {
        Freshness::MostRecent if read.may_be_stale => AnswerSource::Stale,
        Freshness::MostRecent => AnswerSource::Linearizable,
        _ if follows_events => AnswerSource::Window,
        _ => AnswerSource::Snapshot,
    }
}

/// Returns a number of the scope, in the representation that the client likes best.
fn scope_number(read: &ReadPlan) -> u64 {
    let mut hasher = DefaultHasher::new();
    read.resource.gvr.hash(&mut hasher);
    read.made_from(read.representations[0]).hash(&mut hasher);
    read.scope.selection().hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use watershed_protocol::FieldTable;

    use super::*;
    use crate::catalog::ResourceType;
    use crate::scope::ObjectShape;

    fn forecaster() -> Forecaster {
        let types = ["pods", "secrets"].map(|name| {
            let gvr = GroupVersionResource::new("", "v1", name);
            let fields = FieldTable::builtin(&gvr, true).unwrap();
            ResourceType {
                gvr,
                shape: ObjectShape::new("", fields),
                namespaced: true,
                printer: None,
            }
        });
        Forecaster::new(Catalog::of(types), CachingPolicy::default())
    }

    fn source(forecaster: &Forecaster, uri: &str, caller: CallerStanding) -> String {
        let request = Request::get(uri).body(()).unwrap();
        let source = forecaster.forecast(&request, caller, Instant::now()).source;
        format!("{} {}", source.as_str(), source.reason())
    }

    #[test]
    fn forecasts_name_the_sources_that_answers_would_have() {
        use CallerStanding::{Allowed, Refused, Unidentified};
        for (uri, caller, expected) in [
            ("/api/v1/pods?resourceVersion=0", Allowed, "snapshot "),
            ("/api/v1/pods?resourceVersion=0", Refused, "access "),
            (
                "/api/v1/pods?resourceVersion=0",
                Unidentified,
                "forward identity",
            ),
            ("/api/v1/pods", Allowed, "linearizable "),
            ("/api/v1/pods?watch=1&resourceVersion=7", Allowed, "window "),
            ("/api/v1/pods?watch=1", Allowed, "linearizable "),
            (
                "/api/v1/pods?watch=1&resourceVersion=0",
                Allowed,
                "snapshot ",
            ),
            (
                "/api/v1/namespaces/a/pods/b",
                Allowed,
                "forward consistent-read",
            ),
            (
                "/api/v1/namespaces/a/pods/b?resourceVersion=0",
                Allowed,
                "snapshot ",
            ),
            (
                "/api/v1/secrets?resourceVersion=0",
                Allowed,
                "forward policy",
            ),
            ("/api/v1/nodes", Allowed, "forward unknown-type"),
            ("/apis", Allowed, "document "),
            ("/apis", Refused, "forward not-a-resource"),
            ("/apis", Unidentified, "forward identity"),
        ] {
            assert_eq!(source(&forecaster(), uri, caller), expected, "{uri}");
        }
    }

    #[test]
    fn many_gets_share_a_proof() {
        let forecaster = forecaster();
        let start = Instant::now();
        let get = |millis| {
            let request = Request::get("/api/v1/namespaces/a/pods/b")
                .body(())
                .unwrap();
            let arrived = start + Duration::from_millis(millis);
            let forecast = forecaster.forecast(&request, CallerStanding::Allowed, arrived);
            forecast.source
        };
        let consistent = AnswerSource::Forward(ForwardReason::Consistent);
        assert_eq!(get(0), consistent);
        let sources: Vec<_> = (1..200).map(get).collect();
        assert_eq!(sources[150], AnswerSource::Linearizable);
        assert_eq!(get(5000), consistent);
    }

    #[test]
    fn requests_of_one_scope_share_its_number() {
        let forecaster = forecaster();
        let scope = |uri: &str, accept: &str| {
            let request = Request::get(uri).header("accept", accept).body(()).unwrap();
            let allowed = CallerStanding::Allowed;
            forecaster.forecast(&request, allowed, Instant::now()).scope
        };
        let (json, protobuf) = ("application/json", "application/vnd.kubernetes.protobuf");
        let list = scope("/api/v1/pods?resourceVersion=0", json);
        assert!(list.is_some());
        assert_eq!(scope("/api/v1/namespaces/a/pods?watch=1", json), list);
        assert_ne!(scope("/api/v1/pods?resourceVersion=0", protobuf), list);
        assert_eq!(scope("/api/v1/secrets", json), None);
    }
}
