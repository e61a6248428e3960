//! The parts of the service: what requests are planned by, and what answers them.
use std::sync::Arc;

use super::completion::Completer;
use super::exchange::Exchange;
use super::forwarding::Forwarding;
use super::from_memory::FromMemory;
use super::limits::exceeded::LimitExceeded;
use super::limits::memory::RequestMemory;
use super::limits::requests::{Admission, Limiter};
use super::limits::unknown_callers;
use super::plan::optional_parameters::ParameterProbe;
use super::policy::CachingPolicy;
use super::reads::open::ScopeOpener;
use super::usage::Usage;
use crate::access::Access;
use crate::catalog::Catalog;
use crate::drain::DrainWatch;
use crate::scope::Scopes;
use crate::upstream::{Forwarder, ProxyChain, UpstreamClient};

/// Everything that answers requests.
pub(super) struct ServiceParts {
    pub(super) catalog: Catalog,
    pub(super) policy: Arc<CachingPolicy>,
    pub(super) access: Access,
    pub(super) parameters: ParameterProbe,
    pub(super) opener: ScopeOpener,
    limiter: Limiter,
    request_memory: Arc<RequestMemory>,
    pub(super) from_memory: FromMemory,
    pub(super) forwarding: Forwarding,
    pub(super) completer: Completer,
    pub(super) usage: Usage,
    pub(super) chain: Arc<ProxyChain>,
}

impl ServiceParts {
    pub(super) fn new(
        catalog: Catalog,
        policy: CachingPolicy,
        scopes: Scopes,
        access: Access,
        client: UpstreamClient,
        forwarder: Forwarder,
        draining: DrainWatch,
    ) -> Self {
        let policy = Arc::new(policy);
        let request_memory = Arc::new(RequestMemory::within(scopes.budget()));
        let usage = Usage::within(scopes.budget());
        let chain = Arc::clone(client.upstream().chain());
        let completer = Completer::new(
            usage.clone(),
            Arc::clone(&request_memory),
            access.clone(),
            Arc::clone(&chain),
        );
        let opener = ScopeOpener {
            catalog: catalog.clone(),
            policy: Arc::clone(&policy),
            scopes,
        };
        Self {
            parameters: ParameterProbe::new(client.clone()),
            limiter: Limiter::new(policy.users),
            forwarding: Forwarding::new(
                forwarder,
                opener.clone(),
                access.clone(),
                Arc::clone(&request_memory),
                draining.clone(),
            ),
            from_memory: FromMemory::new(
                opener.clone(),
                access.clone(),
                client,
                Arc::clone(&request_memory),
                draining,
            ),
            completer,
            usage,
            chain,
            catalog,
            policy,
            access,
            opener,
            request_memory,
        }
    }

    /// Admits a request, or returns the limit that it exceeds.
    pub(super) async fn admit(&self, exchange: &Exchange<'_>) -> Result<Admission, LimitExceeded> {
        let user = exchange.remembered().await;
        let memory = self.request_memory.begin(user.as_deref(), exchange);
        let memory = memory.inspect_err(|_| exchange.record_refused(user.as_ref()))?;
        unknown_callers::check_head(exchange).await?;
        let mut admission = self.limiter.admit(exchange, user).await?;
        admission.memory = Some(memory);
        Ok(admission)
    }
}
