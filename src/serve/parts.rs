//! The parts of the service: caches, limits, and the forwarder.
use std::sync::Arc;

use http::HeaderMap;

use super::exchange::Exchange;
use super::forwarding::coalesce::Coalescer;
use super::forwarding::documents::DocumentCache;
use super::forwarding::takeover::Takeovers;
use super::from_memory::checkpoint_answers::CheckpointAnswers;
use super::from_memory::verdict_answers::VerdictAnswers;
use super::limits::exceeded::LimitExceeded;
use super::limits::forwards::ForwardLimits;
use super::limits::memory::RequestMemory;
use super::limits::reads::ReadLimits;
use super::limits::requests::{Admission, Limiter};
use super::limits::unknown_callers;
use super::limits::watches::WatchLimits;
use super::metrics::Meters;
use super::plan::optional_parameters::ParameterProbe;
use super::policy::CachingPolicy;
use super::reads::open::ScopeOpener;
use super::usage::Usage;
use super::verify::Verifier;
use crate::access::{Access, Caller, Credential};
use crate::catalog::Catalog;
use crate::drain::DrainWatch;
use crate::headers::VIA;
use crate::proof::{GetCrowds, Provers};
use crate::scope::Scopes;
use crate::upstream::{Forwarder, ProxyChain, UpstreamClient};

/// Everything that answers requests.
pub(super) struct ServiceParts {
    pub(super) catalog: Catalog,
    pub(super) policy: Arc<CachingPolicy>,
    pub(super) scopes: Scopes,
    pub(super) opener: ScopeOpener,
    pub(super) access: Access,
    pub(super) limiter: Limiter,
    pub(super) request_memory: RequestMemory,
    pub(super) forward_limits: ForwardLimits,
    pub(super) watch_limits: WatchLimits,
    pub(super) read_limits: ReadLimits,
    pub(super) verifier: Verifier,
    pub(super) provers: Provers,
    pub(super) documents: DocumentCache,
    pub(super) checkpoints: CheckpointAnswers,
    pub(super) verdicts: VerdictAnswers,
    pub(super) parameters: ParameterProbe,
    pub(super) gets: GetCrowds,
    pub(super) coalescer: Coalescer,
    pub(super) takeovers: Takeovers,
    pub(super) forwarder: Forwarder,
    pub(super) chain: Arc<ProxyChain>,
    pub(super) draining: DrainWatch,
    pub(super) meters: Meters,
    pub(super) usage: Usage,
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
        let opener = ScopeOpener {
            catalog: catalog.clone(),
            policy: Arc::clone(&policy),
            scopes: scopes.clone(),
        };
        Self {
            takeovers: Takeovers::new(access.clone(), opener.clone()),
            limiter: Limiter::new(policy.users),
            request_memory: RequestMemory::within(scopes.budget()),
            forward_limits: ForwardLimits::new(policy.users, client.upstream().capacity().tunnels),
            watch_limits: WatchLimits::within(scopes.budget(), policy.users),
            chain: Arc::clone(client.upstream().chain()),
            read_limits: ReadLimits::new(policy.users),
            verifier: Verifier::new(client.clone(), policy.verification, scopes.budget()),
            provers: Provers::new(client.clone()),
            parameters: ParameterProbe::new(client.clone()),
            documents: DocumentCache::new(client, scopes.budget()),
            checkpoints: CheckpointAnswers::default(),
            verdicts: VerdictAnswers::default(),
            gets: GetCrowds::default(),
            coalescer: Coalescer::new(forwarder.clone(), scopes.budget()),
            usage: Usage::within(scopes.budget()),
            catalog,
            policy,
            scopes,
            opener,
            access,
            forwarder,
            draining,
            meters: Meters::default(),
        }
    }

    /// Names the proxies up to the API server to another proxy, if it is a known caller. Nobody
    /// else learns of them, neither from this proxy nor from upstream's answer.
    pub(super) fn add_via_header(
        &self,
        proxy: Option<(Caller, Option<Credential>)>,
        headers: &mut HeaderMap,
    ) {
        match proxy {
            Some((caller, credential)) if self.access.is_known(&caller, credential.as_ref()) => {
                headers.insert(VIA, self.chain.answer());
            }
            _ => {
                headers.remove(VIA);
            }
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
