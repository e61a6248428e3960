//! The faults of a run. Each is planted, holds for a while, and is healed.
use std::time::Duration;

use fastrand::Rng;
use serde_json::Value;
use tokio::time::sleep;
use watershed_lab::sim::{
    ActiveFaults, BadAnswer, BrokenFrame, Faults, PlannedRefusal, SimulatedServer,
    WatchListSupport, fixtures,
};
use watershed_protocol::GroupVersionResource;

use crate::history::Resource;
use crate::relay::{Passage, Relay};
use crate::replica::Replica;

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FaultKind {
    WatchesReset,
    WatchesEnded,
    ConnectionsCut,
    HalfFrame,
    GarbageFrame,
    NotFound,
    MethodNotAllowed,
    NotAcceptable,
    WrongContentType,
    GarbageAnswer,
    NoAnswer,
    TooManyRequests,
    ServerErrors,
    SilentWatches,
    LateEvents,
    NoBookmarks,
    HistoryLost,
    UpstreamRestarted,
    ServerBehind,
    NoStreamedLists,
    NetworkCut,
    NetworkStalled,
    NetworkSlow,
    ServerUnreachable,
    SchemaChanged,
    ProxyKilled,
    ProxyTerminated,
}

/// Everything that faults are planted in.
pub(crate) struct FaultTargets {
    /// The API servers of one cluster.
    pub(crate) servers: [SimulatedServer; 2],
    /// The ways to them.
    pub(crate) relays: [Relay; 2],
    pub(crate) replicas: Vec<Replica>,
    /// Proxies that are restarted, by their place.
    pub(crate) restarted: Vec<usize>,
    /// Changes of the definition of the custom type so far.
    pub(crate) revision: u64,
}

impl FaultKind {
    pub(crate) const ALL: [Self; 27] = [
        Self::WatchesReset,
        Self::WatchesEnded,
        Self::ConnectionsCut,
        Self::HalfFrame,
        Self::GarbageFrame,
        Self::NotFound,
        Self::MethodNotAllowed,
        Self::NotAcceptable,
        Self::WrongContentType,
        Self::GarbageAnswer,
        Self::NoAnswer,
        Self::TooManyRequests,
        Self::ServerErrors,
        Self::SilentWatches,
        Self::LateEvents,
        Self::NoBookmarks,
        Self::HistoryLost,
        Self::UpstreamRestarted,
        Self::ServerBehind,
        Self::NoStreamedLists,
        Self::NetworkCut,
        Self::NetworkStalled,
        Self::NetworkSlow,
        Self::ServerUnreachable,
        Self::SchemaChanged,
        Self::ProxyKilled,
        Self::ProxyTerminated,
    ];

    /// Returns the answer that the servers give instead of their own.
    fn bad_answer(self) -> Option<BadAnswer> {
        Some(match self {
            Self::NotFound => BadAnswer::NotFound,
            Self::MethodNotAllowed => BadAnswer::MethodNotAllowed,
            Self::NotAcceptable => BadAnswer::NotAcceptable,
            Self::WrongContentType => BadAnswer::Page,
            Self::GarbageAnswer => BadAnswer::Garbage,
            Self::NoAnswer => BadAnswer::Silence,
            _ => return None,
        })
    }
}

fn refuse(faults: &Faults, code: u16, resource: Resource, rng: &mut Rng) {
    let refusal = PlannedRefusal {
        count: rng.u32(1..6),
        code,
        retry_after: (code == 429).then_some(1),
        resource: (rng.u8(0..4) > 0).then(|| resource.name().to_owned()),
        verb: Some(["WATCH", "LIST"][rng.usize(0..2)].to_owned()),
    };
    faults.set(|active| active.refuse = Some(refusal));
}

impl FaultTargets {
    /// Plants a fault, waits for a while, and heals it.
    pub(crate) async fn suffer(&mut self, fault: FaultKind, rng: &mut Rng) {
        let resource = Resource::ALL[rng.usize(0..3)];
        let hold = Duration::from_millis(rng.u64(100..900));
        let n = rng.usize(0..2);
        let (server, relay) = (&self.servers[n], &self.relays[n]);
        let faults = server.faults();
        if let Some(answer) = fault.bad_answer() {
            let verb = if rng.u8(0..3) == 0 { "LIST" } else { "WATCH" };
            faults.answer_badly(answer, verb, resource.name(), rng.u32(1..4));
            if verb == "LIST" {
                server.state().compact(&resource.gvr());
            }
            faults.cut_watches();
            sleep(hold).await;
            self.heal();
            return;
        }
        match fault {
            FaultKind::WatchesReset => faults.cut_watches(),
            FaultKind::WatchesEnded => faults.end_watches(),
            FaultKind::ConnectionsCut => faults.cut_connections(),
            FaultKind::HalfFrame => faults.break_frame(rng.u64(1..5), BrokenFrame::Half),
            FaultKind::GarbageFrame => faults.break_frame(rng.u64(1..5), BrokenFrame::Garbage),
            FaultKind::TooManyRequests | FaultKind::ServerErrors => {
                let code = match fault {
                    FaultKind::TooManyRequests => 429,
                    _ => [500, 503, 504][rng.usize(0..3)],
                };
                refuse(faults, code, resource, rng);
                faults.cut_watches();
            }
            FaultKind::SilentWatches => faults.set(|active| active.silent = true),
            FaultKind::LateEvents => faults.delay_events(hold / 2),
            FaultKind::NoBookmarks => faults.set(|active| active.no_bookmarks = true),
            FaultKind::HistoryLost => {
                self.servers
                    .iter()
                    .for_each(|server| server.faults().set(|active| active.silent = true));
                sleep(hold).await;
                server.state().compact(&resource.gvr());
                self.servers
                    .iter()
                    .for_each(|server| server.faults().cut_watches());
            }
            FaultKind::UpstreamRestarted => server.restart(),
            FaultKind::ServerBehind => {
                // Clients of the other server come to one that is behind it.
                faults.fall_behind(hold);
                self.servers[1 - n].faults().cut_connections();
            }
            FaultKind::NoStreamedLists => {
                faults.watch_list(WatchListSupport::Refused);
                faults.cut_connections();
            }
            FaultKind::NetworkCut => relay.cut(),
            FaultKind::NetworkStalled => relay.set(Passage::Stalled),
            FaultKind::NetworkSlow => relay.set(Passage::Slow),
            FaultKind::ServerUnreachable => {
                relay.set(Passage::Closed);
                relay.cut();
            }
            FaultKind::SchemaChanged => self.change_schema(),
            FaultKind::ProxyKilled | FaultKind::ProxyTerminated => {
                let which = self.restarted[rng.usize(0..self.restarted.len())];
                let gently = fault == FaultKind::ProxyTerminated;
                self.replicas[which].restart(gently).await;
            }
            _ => unreachable!("{fault:?} is a bad answer"),
        }
        sleep(hold).await;
        self.heal();
    }

    /// Ends all faults.
    fn heal(&self) {
        for server in &self.servers {
            server
                .faults()
                .set(|active| *active = ActiveFaults::default());
        }
        for relay in &self.relays {
            relay.set(Passage::Open);
        }
    }

    /// Changes the definition of the custom type. Nothing changes for its objects.
    fn change_schema(&mut self) {
        self.revision += 1;
        let mut definition: Value = serde_json::from_str(&fixtures::widget_definition()).unwrap();
        definition["metadata"]["generation"] = (self.revision + 1).into();
        let schema = &mut definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        schema["description"] = format!("Revision {}.", self.revision).into();
        let definitions =
            GroupVersionResource::new("apiextensions.k8s.io", "v1", "customresourcedefinitions");
        let state = self.servers[0].state();
        state.update(&definitions, &definition.to_string()).unwrap();
    }

    pub(crate) async fn stop(self) {
        drop(self.replicas);
        drop(self.relays);
        for server in self.servers {
            server.shutdown().await;
        }
    }
}
