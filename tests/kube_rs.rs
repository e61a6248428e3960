//! The kube-rs watcher through the proxy, in front of a real kube-apiserver.
//!
//! A storm of writes goes straight to upstream while reflectors fill their stores through the
//! proxy. In the end every store has to be upstream's list, object by object.
#![allow(clippy::unwrap_used, reason = "a test may panic")]
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::hash::Hash;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use futures_util::{Stream, StreamExt as _};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod};
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams,
};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::runtime::reflector::{self, Store};
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, Config, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use tokio::task::JoinHandle;

/// The longest wait. It is generous because it only decides how long a failing test takes.
const PATIENCE: Duration = Duration::from_mins(1);
const WRITES: usize = 200;

/// A control plane with the proxy in front of it, as `make cluster` starts it. It lives as long as
/// its standard input.
struct Cluster {
    harness: Child,
    report: Report,
}

/// The fields of the harness's readiness report that this test uses.
#[derive(serde::Deserialize)]
struct Report {
    dir: PathBuf,
    kubeconfig: PathBuf,
    kubeconfig_via_proxy: Option<PathBuf>,
    proxy_admin: Option<String>,
    pids: BTreeMap<String, u32>,
}

impl Cluster {
    fn start(arguments: &[&str]) -> Self {
        let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/real/.bin/cluster");
        assert!(
            program.exists(),
            "there is no {}: run \"make real\" first",
            program.display()
        );
        let mut harness = Command::new(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the harness starts");
        let mut line = String::new();
        BufReader::new(harness.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let report = serde_json::from_str(&line).expect("the harness says where everything is");
        Self { harness, report }
    }

    async fn client(kubeconfig: &Path) -> Client {
        let kubeconfig = Kubeconfig::read_from(kubeconfig).unwrap();
        let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
            .await
            .unwrap();
        Client::try_from(config).unwrap()
    }

    async fn upstream(&self) -> Client {
        Self::client(&self.report.kubeconfig).await
    }

    async fn proxied(&self) -> Client {
        Self::client(self.report.kubeconfig_via_proxy.as_ref().unwrap()).await
    }

    /// Returns the value of one of the proxy's gauges.
    fn metric(&self, series: &str) -> Option<f64> {
        let address = self
            .report
            .proxy_admin
            .as_ref()
            .unwrap()
            .trim_start_matches("http://");
        let mut stream = TcpStream::connect(address).unwrap();
        stream
            .write_all(b"GET /metrics HTTP/1.1\r\nHost: admin\r\nConnection: close\r\n\r\n")
            .unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text.lines()
            .find_map(|line| line.strip_prefix(series)?.trim().parse().ok())
    }
}

impl Drop for Cluster {
    /// Stops the harness, also when a test panics: the harness stops its children when its standard
    /// input ends.
    fn drop(&mut self) {
        drop(self.harness.stdin.take());
        let _ = self.harness.wait();
    }
}

fn is_running(pid: u32) -> bool {
    // A zombie counts as gone: it has ended, and only its parent has not waited for it.
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| {
        !stat
            .rsplit_once(") ")
            .is_some_and(|(_, rest)| rest.starts_with('Z'))
    })
}

async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> Result<(), String>) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match holds().await {
            Ok(()) => return,
            Err(why) if Instant::now() >= deadline => {
                panic!("{what}: not after {PATIENCE:?}: {why}")
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

/// The version of each object by its name.
type Versions = BTreeMap<String, String>;

fn versions<'a, K: Resource + 'a>(objects: impl IntoIterator<Item = &'a K>) -> Versions {
    objects
        .into_iter()
        .map(|o| (o.name_any(), o.resource_version().unwrap_or_default()))
        .collect()
}

/// Returns `Err` with the differences between two views, or `Ok` if they are equal.
fn differences(upstream: &Versions, seen: &Versions) -> Result<(), String> {
    let mut lines = Vec::new();
    for (name, version) in upstream {
        match seen.get(name) {
            None => lines.push(format!("{name} is missing")),
            Some(other) if other != version => {
                lines.push(format!("{name} is at {other}, upstream at {version}"));
            }
            Some(_) => {}
        }
    }
    lines.extend(
        seen.keys()
            .filter(|name| !upstream.contains_key(*name))
            .map(|name| format!("{name} should be gone")),
    );
    if lines.is_empty() {
        Ok(())
    } else {
        Err(lines.join(", "))
    }
}

/// A running reflector.
struct Reflector<K: Resource + Clone + 'static>
where
    K::DynamicType: Eq + Hash + Clone,
{
    name: String,
    store: Store<K>,
    /// The watcher's errors.
    complaints: std::sync::Arc<std::sync::Mutex<Vec<String>>>,
    task: JoinHandle<()>,
}

impl<K> Reflector<K>
where
    K: Resource + Clone + Debug + Send + Sync + 'static,
    K::DynamicType: Eq + Hash + Clone + Default + Send + Sync,
{
    fn start(
        name: &str,
        events: impl Stream<Item = watcher::Result<Event<K>>> + Send + 'static,
    ) -> Self {
        let (store, writer) = reflector::store();
        let complaints = std::sync::Arc::<std::sync::Mutex<Vec<String>>>::default();
        let said = std::sync::Arc::clone(&complaints);
        let task = tokio::spawn(async move {
            let mut events = std::pin::pin!(reflector::reflector(writer, events));
            while let Some(event) = events.next().await {
                if let Err(error) = event {
                    said.lock().unwrap().push(error.to_string());
                }
            }
        });
        Self {
            name: name.to_owned(),
            store,
            complaints,
            task,
        }
    }

    async fn ready(&self) {
        let ready = tokio::time::timeout(PATIENCE, self.store.wait_until_ready()).await;
        ready
            .unwrap_or_else(|_| {
                panic!(
                    "{} never got its first state: {:?}",
                    self.name, self.complaints
                )
            })
            .unwrap();
    }

    /// Waits until the store equals upstream's list. Panics if the watcher ever failed.
    async fn finish(self, upstream: &Versions) {
        eventually(&self.name, async || {
            let state = self.store.state();
            differences(upstream, &versions(state.iter().map(|object| &**object)))
        })
        .await;
        self.task.abort();
        assert_eq!(
            *self.complaints.lock().unwrap(),
            [""; 0],
            "{} saw errors",
            self.name
        );
    }
}

/// Creates, updates and deletes objects at random.
async fn storm(api: Api<DynamicObject>, resource: ApiResource, spec: serde_json::Value, seed: u64) {
    let mut dice = fastrand::Rng::with_seed(seed);
    let mut names: Vec<String> = Vec::new();
    for n in 0..WRITES {
        match dice.u8(0..5) {
            0 | 1 if !names.is_empty() => {
                let name = &names[dice.usize(0..names.len())];
                let patch = serde_json::json!({"metadata": {"labels": {"round": n.to_string()}}});
                api.patch(name, &PatchParams::default(), &Patch::Merge(patch))
                    .await
                    .unwrap();
            }
            2 if !names.is_empty() => {
                let name = names.swap_remove(dice.usize(0..names.len()));
                api.delete(&name, &DeleteParams::default().grace_period(0))
                    .await
                    .unwrap();
            }
            _ => {
                let name = format!("object-{n}");
                let object = DynamicObject::new(&name, &resource).data(spec.clone());
                api.create(&PostParams::default(), &object).await.unwrap();
                names.push(name);
            }
        }
    }
}

/// Runs three kinds of watcher on one type while it changes. `warm` makes the proxy cache the type
/// before.
async fn every_watcher_agrees<K>(
    cluster: &Cluster,
    namespace: &str,
    spec: serde_json::Value,
    warm: bool,
) where
    K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
        + Clone
        + Debug
        + PartialEq
        + DeserializeOwned
        + Send
        + Sync
        + 'static,
{
    let resource = ApiResource::erase::<K>(&());
    let (upstream, proxied) = (cluster.upstream().await, cluster.proxied().await);
    let write = |n| {
        let api = Api::namespaced_with(upstream.clone(), namespace, &resource);
        storm(api, resource.clone(), spec.clone(), n)
    };
    let through = || Api::<K>::namespaced(proxied.clone(), namespace);
    if warm {
        through()
            .list(&ListParams::default().match_any())
            .await
            .unwrap();
    }
    write(0).await;

    let plural = &resource.plural;
    let listing = Reflector::start(
        &format!("{plural}, list and watch"),
        watcher(through(), watcher::Config::default()),
    );
    let streaming = Reflector::start(
        &format!("{plural}, streaming lists"),
        watcher(through(), watcher::Config::default().streaming_lists()),
    );
    let metadata = Reflector::start(&format!("{plural}, metadata"), metadata_watcher(through()));
    listing.ready().await;
    streaming.ready().await;
    metadata.ready().await;
    let series = format!("watershed_watches{{group=\"\",resource=\"{plural}\"}}");
    // The list may come from before the proxy cached the type. Then only upstream can answer the
    // watch.
    let wanted = if warm { 2.0 } else { 1.0 };
    eventually("watches from memory", async || {
        match cluster.metric(&series) {
            Some(watches) if watches >= wanted => Ok(()),
            other => Err(format!("{series} is {other:?}")),
        }
    })
    .await;

    // The second storm can create the names of the first one again, with other uids.
    delete_all(&Api::<K>::namespaced(upstream.clone(), namespace)).await;
    write(1).await;

    let list = Api::<K>::namespaced(upstream.clone(), namespace)
        .list(&ListParams::default())
        .await
        .unwrap();
    let truth = versions(&list.items);
    assert!(truth.len() > 10, "the storm left something to compare");
    let whole: Vec<_> = [&listing, &streaming]
        .map(|reflector| reflector.store.clone())
        .into();
    listing.finish(&truth).await;
    streaming.finish(&truth).await;
    metadata.finish(&truth).await;
    for store in whole {
        for object in &list.items {
            let seen = store.get(&reflector::ObjectRef::from_obj(object)).unwrap();
            assert_eq!(*seen, *object, "not the object that upstream has");
        }
    }
}

#[expect(deprecated, reason = "programs in the field call it")]
fn metadata_watcher<K>(
    api: Api<K>,
) -> impl Stream<Item = watcher::Result<Event<kube::core::PartialObjectMeta<K>>>> + Send
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    kube::runtime::metadata_watcher(api, watcher::Config::default())
}

async fn delete_all<K>(api: &Api<K>)
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    let list = api.list(&ListParams::default()).await.unwrap();
    for object in list.items {
        api.delete(&object.name_any(), &DeleteParams::default().grace_period(0))
            .await
            .unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stores_of_kube_rs_equal_upstreams_list_after_random_writes() {
    let cluster = Cluster::start(&["--proxy", env!("CARGO_BIN_EXE_watershed")]);
    let namespaces: Api<Namespace> = Api::all(cluster.upstream().await);
    let namespace = Namespace {
        metadata: kube::api::ObjectMeta {
            name: Some("kube-rs".to_owned()),
            ..Default::default()
        },
        ..Namespace::default()
    };
    namespaces
        .create(&PostParams::default(), &namespace)
        .await
        .unwrap();
    let pod = serde_json::json!({
        "spec": {"containers": [{"name": "main", "image": "example.test/main:1"}]},
    });
    let data = serde_json::json!({"data": {"key": "value"}});
    tokio::join!(
        every_watcher_agrees::<ConfigMap>(&cluster, "kube-rs", data, true),
        every_watcher_agrees::<Pod>(&cluster, "kube-rs", pod, false),
    );
}

/// The other test relies on this for its cleanup.
#[test]
fn a_cluster_stops_when_its_test_panics() {
    let known = std::sync::Arc::<std::sync::Mutex<Option<(PathBuf, Vec<u32>)>>>::default();
    let told = std::sync::Arc::clone(&known);
    let test = std::thread::spawn(move || {
        let cluster = Cluster::start(&["--proxy", env!("CARGO_BIN_EXE_watershed")]);
        let mut pids: Vec<_> = cluster.report.pids.values().copied().collect();
        pids.push(cluster.harness.id());
        assert!(
            pids.len() >= 4 && pids.iter().all(|&pid| is_running(pid)),
            "all run: {pids:?}"
        );
        *told.lock().unwrap() = Some((cluster.report.dir.clone(), pids));
        panic!("on purpose");
    });
    test.join().expect_err("it panics");
    let (dir, pids) = known.lock().unwrap().take().expect("the cluster was there");
    assert!(!pids.into_iter().any(is_running), "a process is left");
    assert!(!dir.exists(), "{} is left", dir.display());
}

#[test]
fn the_comparison_finds_every_difference_between_views() {
    let view = |pairs: &[(&str, &str)]| -> Versions {
        pairs
            .iter()
            .map(|(name, version)| ((*name).to_owned(), (*version).to_owned()))
            .collect()
    };
    let upstream = view(&[("a", "1"), ("b", "2")]);
    assert_eq!(differences(&upstream, &upstream.clone()), Ok(()));
    assert!(
        differences(&upstream, &view(&[("a", "1")])).is_err(),
        "lost"
    );
    assert!(
        differences(&upstream, &view(&[("a", "1"), ("b", "1")])).is_err(),
        "stale"
    );
    assert!(
        differences(&upstream, &view(&[("a", "1"), ("b", "2"), ("c", "3")])).is_err(),
        "a ghost"
    );
}
