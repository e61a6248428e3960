//! One request on its way through the phases.
use std::sync::Arc;

use http::{HeaderMap, Request};
use hyper::body::Incoming;

use super::metrics::Labels;
use super::plan::RequestPlan;
use crate::access::{Caller, Identity};
use crate::audit;

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

    /// Records the caller in the audit log, if it is known without asking upstream.
    pub(super) fn record_vouched(&self) {
        if let Some(user) = self.caller.user() {
            audit::record_caller(&self.request, user);
        }
        if let Some((other, impersonation)) = self.caller.impersonated() {
            audit::record_impersonated(&self.request, other, impersonation.constraint);
        }
    }

    /// Records a caller in the audit log that upstream has identified.
    pub(super) fn record_identified(&self, identity: &Arc<Identity>) {
        // A vouched caller is recorded already, and may act as this identity.
        if matches!(self.caller, Caller::OwnCredentials) {
            audit::record_caller(&self.request, identity);
        }
    }
}
