//! One request on its way through the phases.
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use http::{HeaderMap, Request};
use hyper::body::Incoming;

use super::metrics::Labels;
use super::plan::RequestPlan;
use super::plan::request_key::RequestKey;
use crate::access::{Access, Authenticated, Caller, Credential, Identity, ReviewError};
use crate::audit;
use crate::listener::{Peer, client_network};

/// A request, its caller, and the plan for its answer.
pub(super) struct Exchange<'a> {
    pub(super) access: &'a Access,
    pub(super) request: Request<Incoming>,
    pub(super) caller: Caller,
    pub(super) plan: RequestPlan,
    pub(super) labels: Labels,
    pub(super) peer: Peer,
    /// The caller's token, if it is known by one.
    pub(super) credential: Option<Credential>,
    /// The arrival of the request.
    pub(super) arrived: Instant,
    /// Upstream has accepted the caller lately.
    pub(super) is_known: bool,
}

impl<'a> Exchange<'a> {
    pub(super) fn new(
        access: &'a Access,
        request: Request<Incoming>,
        caller: Caller,
        plan: RequestPlan,
        peer: Peer,
        arrived: Instant,
    ) -> Self {
        let labels = Labels::new(&plan, request.method());
        let credential = access.credential(&caller, request.headers());
        let is_known = access.is_known(&caller, credential.as_ref());
        Self {
            access,
            request,
            caller,
            plan,
            labels,
            peer,
            credential,
            arrived,
            is_known,
        }
    }

    /// Returns the address that the caller counts by, if it is not known.
    pub(super) fn address(&self) -> IpAddr {
        client_network(self.peer.address.ip())
    }

    pub(super) fn into_request(self) -> Request<Incoming> {
        self.request
    }

    /// Returns the parts of the request that upstream's response depends on.
    pub(super) fn request_key(&self) -> RequestKey {
        RequestKey::new(&self.request, self.plan.refusals.indented)
    }

    pub(super) fn headers(&self) -> &HeaderMap {
        self.request.headers()
    }

    /// Identifies the caller.
    pub(super) async fn identify(&self) -> Result<Authenticated, Arc<ReviewError>> {
        let (headers, address) = (self.headers(), self.address());
        self.access.identify(&self.caller, headers, address).await
    }

    /// Identifies the caller by its bearer token, whatever else the headers contain.
    pub(super) async fn identify_bearer(&self) -> Result<Authenticated, Arc<ReviewError>> {
        let (headers, address) = (self.headers(), self.address());
        let identified = self.access.identify_bearer(&self.caller, headers, address);
        identified.await
    }

    /// Returns the caller if it was reviewed for this answer or lately. Upstream is not asked for
    /// the statistics.
    pub(super) async fn remembered(&self) -> Option<Arc<Identity>> {
        let credential = self.credential.as_ref();
        let remembered = self
            .access
            .remembered(&self.caller, credential, self.headers());
        remembered.await
    }

    /// Notes if upstream has accepted the caller by now.
    pub(super) fn note_known(&mut self) {
        if self.is_known || self.access.is_known(&self.caller, self.credential.as_ref()) {
            self.is_known = true;
            self.peer.connection.set_known();
        }
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
        if matches!(self.caller, Caller::WithCredentials) {
            audit::record_caller(&self.request, identity);
        }
    }

    /// Records a caller in the audit log whose request is refused by what is remembered of them, if
    /// anything is.
    pub(super) fn record_refused(&self, remembered: Option<&Arc<Identity>>) {
        if let Some(identity) = remembered {
            self.record_identified(identity);
        }
    }
}
