//! A plan and a result for the tests of several modules.
use std::time::Duration;

use super::group::ClientGroup;
use super::plan::{KubeconfigContext, LoadPlan, LoadTarget, LoadWrites};
use super::result::{
    Distribution, LoadResult, LoadSetting, OWN_PROCESS, ProcessConsumption, RoundResult, Sample,
    ServerResult,
};
use crate::process::Machine;

pub(super) fn plan() -> LoadPlan {
    LoadPlan {
        targets: vec![LoadTarget {
            name: "a".to_owned(),
            access: KubeconfigContext::default(),
        }],
        writer: None,
        groups: vec![ClientGroup {
            watches: 120,
            ..ClientGroup::default()
        }],
        connections: None,
        http1: false,
        writes: LoadWrites {
            rate: "5/s".parse().unwrap(),
            objects: 5,
            object_bytes: 100,
            namespace: None,
        },
        duration: Duration::from_secs(1),
        rounds: 1,
        start_timeout: Duration::from_secs(10),
        settle: Duration::from_secs(10),
        processes: Vec::new(),
    }
}

fn round(p99: f64, lost: u64) -> RoundResult {
    let consumption = ProcessConsumption {
        opening_cpu_seconds: 0.25,
        cpu_seconds: 1.5,
        memory_bytes: 64 << 20,
    };
    let sample = |n: u32| Sample {
        seconds: f64::from(n),
        events_per_second: 1000.0,
        watch_bytes_per_second: 2e6,
        cores: [("api".to_owned(), 0.5), (OWN_PROCESS.to_owned(), 0.1)].into(),
        memory_bytes: [("api".to_owned(), 1 << 20)].into(),
    };
    RoundResult {
        seconds: 2.0,
        watches: 10,
        watches_begun: 10,
        events: 2_000_000,
        events_expected: 2_000_000,
        events_delivered: 2_000_000 - lost,
        events_lost: lost,
        delivery: Distribution {
            count: 5,
            p50: 1.25,
            p90: 10.0,
            p99,
            max: 99.5,
            quantiles: vec![
                (0.0, 0.5),
                (0.5, 1.25),
                (0.9, 10.0),
                (0.99, p99),
                (1.0, 99.5),
            ],
            histogram: None,
        },
        processes: [
            ("api".to_owned(), consumption),
            (OWN_PROCESS.to_owned(), consumption),
        ]
        .into(),
        samples: (1..=4).map(sample).collect(),
        ..RoundResult::default()
    }
}

pub(crate) fn result() -> LoadResult {
    let server = |name: &str, rounds: Vec<RoundResult>| ServerResult {
        name: name.to_owned(),
        addresses: Vec::new(),
        rounds,
    };
    LoadResult {
        setting: LoadSetting {
            version: "0",
            machine: Machine::this(),
            clients: Vec::new(),
            writes: plan().writes,
            duration_seconds: 2.0,
            rounds: 3,
        },
        servers: vec![
            server(
                "direct",
                vec![round(20.0, 0), round(10.0, 0), round(40.0, 0)],
            ),
            server(
                "a <proxy> & more",
                vec![round(10.0, 0), round(10.0, 3), round(10.0, 0)],
            ),
        ],
        interrupted: false,
        errors: Vec::new(),
    }
}
