//! One request on its way through the phases.
use http::{HeaderMap, Request};
use hyper::body::Incoming;

use super::metrics::Labels;
use super::plan::RequestPlan;
use crate::access::Caller;

/// A request, its caller, and the plan for its answer.
pub(super) struct Exchange {
    pub(super) request: Request<Incoming>,
    pub(super) caller: Caller,
    pub(super) plan: RequestPlan,
    pub(super) labels: Labels,
}

impl Exchange {
    pub(super) fn new(request: Request<Incoming>, caller: Caller, plan: RequestPlan) -> Self {
        let labels = Labels::new(&plan, request.method());
        Self {
            request,
            caller,
            plan,
            labels,
        }
    }

    pub(super) fn headers(&self) -> &HeaderMap {
        self.request.headers()
    }
}
