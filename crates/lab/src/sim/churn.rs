//! Churn: a seeded sequence of creates, updates and deletes, at a rate.
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::fixtures;
use super::state::ClusterState;
use watershed_protocol::GroupVersionResource;

/// Weights of the changes, relative to each other.
#[derive(Clone, Copy, Debug)]
pub struct ChurnMix {
    /// Writes to pods.
    pub pods: u32,
    /// Writes to config maps.
    pub configmaps: u32,
    /// Heartbeats of nodes.
    pub leases: u32,
    /// Writes to deployments.
    pub deployments: u32,
    /// Writes to the custom type.
    pub widgets: u32,
    /// Bytes of data in each config map written; 0 for some hundred.
    pub configmap_bytes: usize,
}

impl Default for ChurnMix {
    fn default() -> Self {
        Self {
            pods: 70,
            configmaps: 5,
            leases: 15,
            deployments: 5,
            widgets: 5,
            configmap_bytes: 0,
        }
    }
}

impl ChurnMix {
    fn sum(&self) -> u32 {
        self.pods + self.configmaps + self.leases + self.deployments + self.widgets
    }
}

impl FromStr for ChurnMix {
    type Err = String;

    /// Parses `pods=70,leases=30`. Types that are not named do not change.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut mix = Self {
            pods: 0,
            configmaps: 0,
            leases: 0,
            deployments: 0,
            widgets: 0,
            configmap_bytes: 0,
        };
        for pair in text.split(',') {
            let (kind, weight) = pair
                .split_once('=')
                .ok_or("not a kind and a weight, as in pods=70,leases=30")?;
            let place = match kind {
                "pods" => &mut mix.pods,
                "configmaps" => &mut mix.configmaps,
                "leases" => &mut mix.leases,
                "deployments" => &mut mix.deployments,
                "widgets" => &mut mix.widgets,
                other => {
                    return Err(format!(
                        "{other} does not change: \
                         pods, configmaps, leases, deployments and widgets do"
                    ));
                }
            };
            *place = weight
                .parse::<u16>()
                .map_err(|error| format!("{weight}: {error}"))?
                .into();
        }
        if mix.sum() == 0 {
            return Err("all weights are 0: nothing changes at a rate of 0".to_owned());
        }
        Ok(mix)
    }
}

/// The sequence without a clock. Equal seeds on equal states make equal changes.
#[derive(Debug)]
pub struct ChurnPlan {
    rng: Rng,
    mix: ChurnMix,
    /// Namespaces and nodes to choose from.
    namespaces: usize,
    nodes: usize,
    /// Number of the next new name, so that no name is used twice.
    created: usize,
    /// Objects that may be changed, by type. The plan expects no other writer, so nothing refreshes
    /// them.
    pods: Vec<(String, String)>,
    configmaps: Vec<(String, String)>,
    deployments: Vec<(String, String)>,
    widgets: Vec<(String, String)>,
}

/// Churn that runs until it is dropped or stopped.
#[derive(Debug)]
pub struct Churn {
    stop: CancellationToken,
    task: AbortOnDropHandle<u64>,
}

fn gvr(group: &str, resource: &str) -> GroupVersionResource {
    GroupVersionResource::new(group, "v1", resource)
}

impl ChurnPlan {
    /// Makes a plan for the objects that the state has now.
    pub fn new(state: &ClusterState, seed: u64, mix: ChurnMix) -> Self {
        let names = |group: &str, resource: &str| -> Vec<(String, String)> {
            let keys = state.snapshot(&gvr(group, resource)).into_keys();
            keys.filter_map(|k| k.split_once('/').map(|(a, b)| (a.to_owned(), b.to_owned())))
                .collect()
        };
        let teams = state
            .snapshot(&gvr("", "namespaces"))
            .keys()
            .filter(|k| k.starts_with("team-"))
            .count();
        Self {
            rng: Rng::with_seed(seed),
            mix,
            namespaces: teams,
            nodes: state.snapshot(&gvr("", "nodes")).len(),
            created: 0,
            pods: names("", "pods"),
            configmaps: names("", "configmaps"),
            deployments: names("apps", "deployments"),
            widgets: names("example.com", "widgets"),
        }
    }

    /// Does the next write. Returns `false` if it was skipped: there is no such object, or another
    /// writer has deleted or created it.
    pub fn step(&mut self, state: &ClusterState) -> bool {
        let ChurnMix {
            pods,
            configmaps,
            leases,
            deployments,
            configmap_bytes,
            widgets: _,
        } = self.mix;
        let mut dice = self.rng.u32(0..self.mix.sum().max(1));
        let mut falls_on = |weight: u32| {
            let hit = dice < weight;
            dice = dice.wrapping_sub(weight);
            hit
        };
        if falls_on(pods) {
            self.pod(state)
        } else if falls_on(configmaps) {
            let rng = &mut self.rng;
            let make = |namespace: &str, name: &str, rng: &mut Rng| {
                fixtures::configmap(namespace, name, configmap_bytes, rng)
            };
            rewrite(state, &gvr("", "configmaps"), &self.configmaps, rng, make)
        } else if falls_on(leases) {
            if self.nodes == 0 {
                return false;
            }
            let node = fixtures::node_name(self.rng.usize(0..self.nodes));
            let beat = self.rng.u64(0..86_400);
            let leases = gvr("coordination.k8s.io", "leases");
            state.update(&leases, &fixtures::lease(&node, beat)).is_ok()
        } else if falls_on(deployments) {
            let rng = &mut self.rng;
            rewrite(
                state,
                &gvr("apps", "deployments"),
                &self.deployments,
                rng,
                fixtures::deployment,
            )
        } else {
            rewrite(
                state,
                &gvr("example.com", "widgets"),
                &self.widgets,
                &mut self.rng,
                fixtures::widget,
            )
        }
    }

    /// Two updates in three, else a creation or a deletion. An update draws labels, image and
    /// status anew, and sometimes an unscheduled pod gets its node, so that selectors see objects
    /// come and go.
    fn pod(&mut self, state: &ClusterState) -> bool {
        let pods = gvr("", "pods");
        let rng = &mut self.rng;
        let node = |rng: &mut Rng| {
            if self.nodes == 0 || rng.u8(0..10) == 0 {
                String::new()
            } else {
                fixtures::node_name(rng.usize(0..self.nodes))
            }
        };
        match rng.u8(0..6) {
            0 => {
                let namespace = if self.namespaces == 0 {
                    "default".to_owned()
                } else {
                    fixtures::namespace_name(rng.usize(0..self.namespaces))
                };
                self.created += 1;
                let name = format!(
                    "{}-n{}",
                    fixtures::pod_name(self.created, rng),
                    self.created
                );
                let node = node(rng);
                let created = state.create(&pods, &fixtures::pod(&namespace, &name, &node, rng));
                self.pods.push((namespace, name));
                created.is_ok()
            }
            1 if !self.pods.is_empty() => {
                let (namespace, name) = self.pods.swap_remove(rng.usize(0..self.pods.len()));
                state.delete(&pods, &namespace, &name).is_ok()
            }
            _ if !self.pods.is_empty() => {
                let (namespace, name) = &self.pods[rng.usize(0..self.pods.len())];
                let node = node(rng);
                let pod = fixtures::pod(namespace, name, &node, rng);
                state.update(&pods, &pod).is_ok()
            }
            _ => false,
        }
    }
}

fn rewrite(
    state: &ClusterState,
    gvr: &GroupVersionResource,
    names: &[(String, String)],
    rng: &mut Rng,
    make: impl Fn(&str, &str, &mut Rng) -> String,
) -> bool {
    if names.is_empty() {
        return false;
    }
    let (namespace, name) = &names[rng.usize(0..names.len())];
    state.update(gvr, &make(namespace, name, rng)).is_ok()
}

impl Churn {
    /// Starts writing at `rate` events a second.
    pub fn start(state: Arc<ClusterState>, rate: f64, seed: u64, mix: ChurnMix) -> Self {
        let stop = CancellationToken::new();
        let mut plan = ChurnPlan::new(&state, seed, mix);
        let stopped = stop.clone();
        let task = tokio::spawn(async move {
            let started = Instant::now();
            let (mut done, mut written) = (0_u64, 0);
            let mut tick = tokio::time::interval(Duration::from_millis(10));
            tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
            while stopped.run_until_cancelled(tick.tick()).await.is_some() {
                // Follows the clock instead of counting ticks: a busy machine delays writes but
                // does not lose them. A machine that never catches up must still stop.
                while (done as f64) < started.elapsed().as_secs_f64() * rate
                    && !stopped.is_cancelled()
                {
                    written += u64::from(plan.step(&state));
                    done += 1;
                    tokio::task::yield_now().await;
                }
            }
            written
        });
        Self {
            stop,
            task: AbortOnDropHandle::new(task),
        }
    }

    /// Stops after the current write. Returns the number of writes.
    pub async fn stop(self) -> u64 {
        self.stop.cancel();
        self.task.await.unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::super::options::Population;
    use super::super::populate::populate;
    use super::*;

    fn run(seed: u64) -> Vec<std::collections::BTreeMap<String, (u64, bytes::Bytes)>> {
        let state = ClusterState::new(100, 1);
        populate(&state, Population::cluster(50, 4), 1);
        let mut plan = ChurnPlan::new(&state, seed, ChurnMix::default());
        for _ in 0..500 {
            plan.step(&state);
        }
        super::super::kinds::resources()
            .iter()
            .map(|gvr| state.snapshot(gvr))
            .collect()
    }

    #[test]
    fn a_mix_is_read() {
        let mix: ChurnMix = "pods=3,leases=1".parse().unwrap();
        assert_eq!(
            (mix.pods, mix.leases, mix.configmaps, mix.deployments),
            (3, 1, 0, 0)
        );
        for (text, why) in [
            ("pods", "pods=70"),
            ("secrets=1", "secrets"),
            ("pods=-1", "-1"),
            ("", "pods=70"),
            ("pods=0", "0"),
        ] {
            assert!(
                text.parse::<ChurnMix>().unwrap_err().contains(why),
                "{text}"
            );
        }
    }

    #[test]
    fn equal_seeds_make_equal_histories() {
        assert_eq!(run(7), run(7));
        assert_ne!(run(7), run(8));
    }

    #[test]
    fn only_writes_are_counted() {
        let state = ClusterState::new(100, 1);
        let mix: ChurnMix = "deployments=1".parse().unwrap();
        let mut plan = ChurnPlan::new(&state, 1, mix);
        assert!(!plan.step(&state), "there are no deployments");
        populate(&state, Population::cluster(50, 4), 1);
        let mut plan = ChurnPlan::new(&state, 1, ChurnMix::default());
        let before = state.version();
        let written = (0..200).filter(|_| plan.step(&state)).count() as u64;
        assert_eq!(state.version() - before, written);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn churn_that_cannot_keep_up_with_the_clock_can_be_stopped() {
        let state = Arc::new(ClusterState::new(100, 1));
        populate(&state, Population::cluster(5, 1), 1);
        let churn = Churn::start(Arc::clone(&state), 1e12, 1, ChurnMix::default());
        let before = state.version();
        tokio::time::timeout(Duration::from_mins(1), async {
            while state.version() == before {
                tokio::task::yield_now().await;
            }
            assert!(churn.stop().await > 0);
        })
        .await
        .unwrap();
    }
}
