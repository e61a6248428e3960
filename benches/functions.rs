//! Single functions of the pure modules that run once for each object, event, read or watch.
//!
//! `cargo bench --bench functions -- FILTER`; docs/benchmarks.md describes them.
#![allow(
    missing_docs,
    clippy::expect_used,
    reason = "criterion's macros, and a bench may fail"
)]
use std::hint::black_box;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Wake, Waker};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use criterion::measurement::WallTime;
use criterion::{
    BatchSize, BenchmarkGroup, Criterion, Throughput, criterion_group, criterion_main,
};
use fastrand::Rng;
use http_body::Body as _;
use watershed::store::{
    self, Interest, Layout, Snapshot, StoreReader, StoreWriter, StoredObject, SubscriptionStart,
    SubscriptionStep, WindowLimits,
};
use watershed::watcher::{
    AccessGuard, AccessStatus, ClientView, ContentCoding, Conversion, InitialState, PartialView,
    ViewFilter, WatchBody, WatchEnding, WatchObserver, WatchOptions,
};
use watershed_lab::sim::fixtures;
use watershed_protocol::{
    Encoding, EventKind, FieldSelector, FieldTable, Frame, FrameDecoder, GroupVersionResource,
    LabelSelector, ListMetadata, PartialFormat, ResourceVersion, Scanned, Selectors, WireFormat,
    deflate, gzip_member, scan,
};
use watershed_transcode::{Heading, Transcoder};

/// Bytes of a real kube-apiserver, from the test data of the protocol crate.
const PODS_JSON: &[u8] = include_bytes!("../crates/protocol/src/encoding/testdata/pods/list.json");
const PODS_PROTOBUF: &[u8] =
    include_bytes!("../crates/protocol/src/encoding/testdata/pods/list.pb");
/// A pod of 5.5 KB in JSON, half of which are managed fields, as a real kube-apiserver lists it.
const POD_PROTOBUF: &[u8] = include_bytes!("testdata/pod-list.pb");

/// Objects of a small and a large scope.
const SIZES: [usize; 2] = [10_000, 100_000];
/// Objects of a list that is decoded.
const LISTED: usize = 1000;
const NODES: usize = 100;
/// Pods of a node, however many there are.
const PODS_OF_NODE: usize = 100;

fn pods() -> FieldTable {
    FieldTable::builtin(&GroupVersionResource::new("", "v1", "pods"), true).expect("pods are known")
}

/// A pod as upstream prints it in a watch event, 2 to 4 KB.
fn pod_json(number: usize, version: u64) -> Bytes {
    let (namespace, name) = (
        fixtures::namespace_name(number % 10),
        format!("pod-{number:06}"),
    );
    let node = fixtures::node_name(number % NODES);
    let text = fixtures::pod(&namespace, &name, &node, &mut Rng::with_seed(number as u64));
    let mut pod: serde_json::Value = serde_json::from_str(&text).expect("fixtures are JSON");
    pod["metadata"]["resourceVersion"] = version.to_string().into();
    // Go's structs put kind and apiVersion first.
    let members = pod.as_object_mut().expect("an object");
    members.remove("kind");
    members.remove("apiVersion");
    format!(
        r#"{{"kind":"Pod","apiVersion":"v1",{}"#,
        &pod.to_string()[1..]
    )
    .into()
}

/// A pod in protobuf, as large as a real one: that of the tests with a long annotation.
fn pod_protobuf() -> Bytes {
    let (_, page) = WireFormat::learn(
        Encoding::Protobuf,
        "Pod",
        &Bytes::from_static(PODS_PROTOBUF),
    )
    .expect("a list");
    let pod = page.objects.first().expect("a pod");
    // Adds 3.2 KB of `status.message`, which no filter uses. Protobuf merges the repeated `status`.
    let message = vec![b'm'; 3200];
    let mut status = vec![0x1a, 0x80, 0x19];
    status.extend(message);
    let mut whole = pod.to_vec();
    whole.extend([0x1a, 0x83, 0x19]);
    whole.extend(status);
    whole.into()
}

fn layout() -> Layout {
    let list = Bytes::from_static(PODS_JSON);
    let (format, _) = WireFormat::learn(Encoding::Json, "Pod", &list).expect("a list");
    Layout {
        format: Arc::new(format),
        indexed: pods().indexed(),
    }
}

/// Makes objects that share their bytes until a snapshot holds them.
fn objects(count: usize) -> Vec<Arc<StoredObject>> {
    let (fields, bytes) = (pods(), layout().format.item_bytes(&pod_json(0, 1)));
    let nodes = (count / PODS_OF_NODE).max(1);
    let object = |number: usize| {
        let (namespace, node) = (
            fixtures::namespace_name(number % 10),
            fixtures::node_name(number % nodes),
        );
        let app = fixtures::APPS[number % fixtures::APPS.len()];
        let version = number + 1;
        let metadata = format!(
            r#"{{"name":"pod-{number:06}","namespace":"{namespace}","resourceVersion":"{version}","#
        );
        let labels = format!(r#""labels":{{"app":"{app}","tier":"backend"}}}}"#);
        let rest = format!(r#""spec":{{"nodeName":"{node}"}},"status":{{"phase":"Running"}}"#);
        let small =
            format!(r#"{{"kind":"Pod","apiVersion":"v1","metadata":{metadata}{labels},{rest}}}"#);
        let Scanned {
            version,
            attributes,
        } = scan(Encoding::Json, small.as_bytes(), &fields).expect("a pod");
        Arc::new(StoredObject {
            bytes: bytes.clone().into(),
            version,
            attributes,
        })
    };
    (0..count).map(object).collect()
}

/// A snapshot of copies of these.
fn snapshot(objects: &[Arc<StoredObject>], layout: Layout) -> Snapshot {
    let copies = objects.iter().map(|object| StoredObject {
        bytes: object.bytes.clone(),
        version: object.version,
        attributes: object.attributes.clone(),
    });
    Snapshot::new(ResourceVersion(objects.len() as u64), layout, copies)
}

/// Makes a store that holds these.
fn scope(objects: &[Arc<StoredObject>]) -> (StoreWriter, StoreReader) {
    let (mut writer, reader) = store::new(WindowLimits {
        age: Duration::from_mins(5),
        least: 0,
        bytes: 16 << 20,
    });
    writer.replace(snapshot(objects, layout()));
    (writer, reader)
}

/// An endless source of changes of existing objects.
struct Changes<'a> {
    all: &'a [Arc<StoredObject>],
    /// The frame of every change.
    frame: Bytes,
    version: u64,
}

impl<'a> Changes<'a> {
    fn of(all: &'a [Arc<StoredObject>]) -> Self {
        let frame = layout()
            .format
            .event(EventKind::Modified, &all[0].bytes.get());
        Self {
            all,
            frame,
            version: all.len() as u64,
        }
    }

    /// Modifies the next object.
    fn modify(&mut self) -> (Frame, StoredObject) {
        let number = (self.version as usize).wrapping_mul(7919) % self.all.len();
        self.change(number, EventKind::Modified)
    }

    fn change(&mut self, number: usize, kind: EventKind) -> (Frame, StoredObject) {
        self.version += 1;
        let StoredObject {
            bytes, attributes, ..
        } = &*self.all[number];
        let (bytes, attributes) = (bytes.clone(), attributes.clone());
        let frame = self.frame.clone();
        let frame = Frame {
            kind,
            object: frame.clone(),
            frame,
        };
        (
            frame,
            StoredObject {
                bytes,
                version: ResourceVersion(self.version),
                attributes,
            },
        )
    }
}

fn encoding(criterion: &mut Criterion) {
    let fields = pods();
    let mut group = criterion.benchmark_group("scan an object");
    for (name, encoding, object) in [
        ("JSON", Encoding::Json, pod_json(1, 1)),
        ("protobuf", Encoding::Protobuf, pod_protobuf()),
    ] {
        scan(encoding, &object, &fields).expect("a pod");
        group.throughput(Throughput::Bytes(object.len() as u64));
        group.bench_function(name, |bencher| {
            bencher.iter(|| scan(encoding, black_box(&object), &fields));
        });
    }
    group.finish();
    read_lists(criterion);
    one_event(criterion);
    metadata(criterion);
}

/// A custom resource exists in JSON alone. Its metadata is written in protobuf by this program.
fn metadata(criterion: &mut Criterion) {
    let list = Bytes::from(custom_list() + "\n");
    let (format, page) = WireFormat::learn(Encoding::Json, "Foo", &list).expect("a list");
    let object = format.item_bytes(page.objects.first().expect("an object"));
    let mut group = criterion.benchmark_group("reduce a custom resource to its metadata");
    for (name, encoding) in [("JSON", Encoding::Json), ("protobuf", Encoding::Protobuf)] {
        let partial = PartialFormat::of(&format, encoding).expect("JSON can be reduced");
        partial.metadata(&object).expect("metadata");
        group.bench_function(name, |bencher| {
            bencher.iter(|| partial.metadata(black_box(&object)));
        });
    }
    group.finish();
}

/// A list of one custom resource. Its members are sorted, as upstream prints them.
fn custom_list() -> String {
    let managed: Vec<_> = ["kubectl", "controller", "status"]
        .map(|manager| {
            serde_json::json!({
                "manager": manager,
                "operation": "Update",
                "apiVersion": "example.com/v1",
                "time": "2026-01-02T03:04:05Z",
                "fieldsType": "FieldsV1",
                "fieldsV1": {"f:metadata": {"f:labels": {".": {}, "f:app": {}}}, "f:spec": {"f:size": {}}},
            })
        })
        .into();
    serde_json::json!({
        "apiVersion": "example.com/v1",
        "items": [{
            "apiVersion": "example.com/v1",
            "kind": "Foo",
            "metadata": {
                "annotations": {"example.com/owner": "team", "example.com/note": "kept"},
                "creationTimestamp": "2026-01-02T03:04:05Z",
                "finalizers": ["example.com/foo"],
                "generation": 3,
                "labels": {"app": "web", "tier": "front"},
                "managedFields": managed,
                "name": "foo-0",
                "namespace": "shop",
                "ownerReferences": [{
                    "apiVersion": "apps/v1",
                    "blockOwnerDeletion": true,
                    "controller": true,
                    "kind": "Deployment",
                    "name": "web",
                    "uid": "01234567-89ab-cdef-0123-456789abcdef",
                }],
                "resourceVersion": "300",
                "uid": "fedcba98-7654-3210-fedc-ba9876543210",
            },
            "spec": {"size": 5},
        }],
        "kind": "FooList",
        "metadata": {"continue": "", "resourceVersion": "400"},
    })
    .to_string()
}

fn read_lists(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group(format!("read a list of {LISTED}"));
    for (name, encoding, sample) in [
        ("JSON", Encoding::Json, PODS_JSON),
        ("protobuf", Encoding::Protobuf, PODS_PROTOBUF),
    ] {
        let (format, _) =
            WireFormat::learn(encoding, "Pod", &Bytes::from_static(sample)).expect("a list");
        let one = if encoding == Encoding::Json {
            pod_json(1, 1)
        } else {
            pod_protobuf()
        };
        let list = list(&format, &vec![one; LISTED]);
        assert_eq!(
            format.read_list(&list).expect("a list").objects.len(),
            LISTED
        );
        group.throughput(Throughput::Bytes(list.len() as u64));
        group.bench_function(name, |bencher| {
            bencher.iter(|| format.read_list(black_box(&list)));
        });
    }
    group.finish();
}

fn printing(criterion: &mut Criterion) {
    let list = Bytes::from_static(POD_PROTOBUF);
    let (_, page) = WireFormat::learn(Encoding::Protobuf, "Pod", &list).expect("a list");
    let pod = page.objects.first().expect("a pod");
    let transcoder = Transcoder::for_type("v1", "Pod").expect("pods are known");
    let mut json = Vec::new();
    let mut print = || {
        json.clear();
        let printed = transcoder.object_json(black_box(pod), Heading::TypeMeta, &mut json);
        printed.expect("the pod is explained");
        json.len()
    };
    let mut group = criterion.benchmark_group("print the JSON of protobuf");
    group.throughput(Throughput::Bytes(print() as u64));
    group.bench_function("a pod", |bencher| bencher.iter(&mut print));
    group.finish();
}

fn one_event(criterion: &mut Criterion) {
    let event: Bytes = [
        br#"{"type":"MODIFIED","object":"#,
        &pod_json(1, 1)[..],
        b"}\n",
    ]
    .concat()
    .into();
    let mut group = criterion.benchmark_group("one event");
    group.throughput(Throughput::Bytes(event.len() as u64));
    group.bench_function("cut from the stream, JSON", |bencher| {
        let mut decoder = FrameDecoder::new(Encoding::Json, 1 << 20);
        bencher.iter(|| {
            decoder.push(event.clone());
            decoder.next_frame()
        });
    });
    group.bench_function("gzip, a leaf of 32 KiB", |bencher| {
        let leaf = event.repeat(32 * 1024 / event.len());
        bencher.iter(|| deflate(black_box(&leaf)));
    });
    group.bench_function("gzip member", |bencher| {
        bencher.iter(|| gzip_member(black_box(&event)));
    });
    group.finish();
}

fn list(format: &WireFormat, objects: &[Bytes]) -> Bytes {
    let stored: Vec<_> = objects
        .iter()
        .map(|object| format.item_bytes(object))
        .collect();
    let mut items = format.join(stored.iter()).bytes;
    items.truncate(items.len() - format.separator());
    let metadata = ListMetadata::of(ResourceVersion(9));
    let parts = format.list_parts(&metadata, stored.len(), items.len() as u64);
    [&parts.head[..], &items, &parts.tail].concat().into()
}

fn selectors_of(labels: &str, fields: &str) -> Selectors {
    Selectors {
        labels: LabelSelector::parse(labels).expect("a selector"),
        fields: FieldSelector::parse(fields).expect("a selector"),
    }
}

fn selectors(criterion: &mut Criterion) {
    let (fields, one) = (pods(), &objects(1)[0]);
    let mut group = criterion.benchmark_group("match an object");
    for text in [
        "app=search",
        "app in (search,billing),tier notin (batch)",
        "!canary,tier!=batch",
    ] {
        let filter = ViewFilter::new(None, &selectors_of(text, ""), &fields).expect("known fields");
        group.bench_function(text, |bencher| {
            bencher.iter(|| filter.matches(black_box(&one.attributes)));
        });
    }
    let selectors = selectors_of("", "spec.nodeName=node-001");
    let filter = ViewFilter::new(None, &selectors, &fields).expect("known fields");
    group.bench_function("spec.nodeName", |bencher| {
        bencher.iter(|| filter.matches(black_box(&one.attributes)));
    });
    group.finish();
}

fn snapshots(criterion: &mut Criterion) {
    for size in SIZES {
        let all = objects(size);
        let mut group = criterion.benchmark_group(format!("{size} objects"));
        group.sample_size(20);
        group.bench_function("make a snapshot", |bencher| {
            bencher.iter_batched(
                layout,
                |layout| snapshot(&all, layout),
                BatchSize::PerIteration,
            );
        });
        let (_writer, reader) = scope(&all);
        let snapshot = reader.snapshot();
        group.bench_function("find one", |bencher| {
            let mut number = 0;
            bencher.iter(|| {
                number = (number + 7919) % size;
                snapshot.get(black_box(all[number].key())).is_some()
            });
        });
        group.bench_function("walk over all", |bencher| {
            bencher.iter(|| {
                snapshot
                    .items(None)
                    .map(|object| object.bytes.len())
                    .sum::<usize>()
            });
        });
        group.bench_function("put a leaf of it together to a list", |bencher| {
            let run = snapshot.runs_after(None, None).next().expect("a leaf");
            bencher.iter(|| black_box(&run).items());
        });
        initial_states(&reader, &mut group);
        change_snapshots(&all, &mut group);
        group.finish();
    }
}

/// Takes a watch's first state as far as the client is sent it.
fn initial_states(reader: &StoreReader, group: &mut BenchmarkGroup<'_, WallTime>) {
    let (fields, format) = (pods(), layout().format);
    let name = "metadata.name=pod-000007";
    for (what, namespace, labels, requirements) in [
        ("one node's", None, "", "spec.nodeName=node-007"),
        ("one name's, of a namespace", Some(7), "", name),
        ("one name's", None, "", name),
        ("one label's, all are looked at", None, "app=nothing", ""),
    ] {
        let namespace = namespace.map(fixtures::namespace_name);
        let selectors = selectors_of(labels, requirements);
        let filter = ViewFilter::new(namespace, &selectors, &fields).expect("known fields");
        group.bench_function(format!("begin a watch with the state: {what}"), |bencher| {
            bencher.iter(|| {
                let interest = filter.interest(&fields);
                let (_subscription, snapshot) =
                    reader.subscribe(SubscriptionStart::Now, interest.clone());
                let mut sent = BytesMut::new();
                for run in snapshot.into_runs(&interest) {
                    for object in run.objects() {
                        if filter.matches(&object.attributes) {
                            format.put_event_head(EventKind::Added, &object.bytes.get(), &mut sent);
                        }
                    }
                }
                sent
            });
        });
    }
}

fn change_snapshots(all: &[Arc<StoredObject>], group: &mut BenchmarkGroup<'_, WallTime>) {
    // A held snapshot forces the writer to copy the nodes that it changes.
    for (name, held) in [
        ("change one", false),
        ("change one of a snapshot that is held", true),
    ] {
        let (mut writer, reader) = scope(all);
        let (mut changes, mut holding) = (Changes::of(all), None);
        let now = Instant::now();
        group.bench_function(name, |bencher| {
            bencher.iter_batched(
                || changes.modify(),
                |(frame, object)| {
                    if held {
                        holding = Some(reader.snapshot());
                    }
                    writer.apply(now, frame, object).expect("a change");
                },
                BatchSize::SmallInput,
            );
        });
        drop(holding);
    }
    let (mut writer, _reader) = scope(all);
    let mut changes = Changes::of(all);
    let now = Instant::now();
    group.bench_function("delete one and add it again", |bencher| {
        bencher.iter_batched(
            || {
                let number = (changes.version as usize).wrapping_mul(7919) % all.len();
                [EventKind::Deleted, EventKind::Added].map(|kind| changes.change(number, kind))
            },
            |both| {
                for (frame, object) in both {
                    writer.apply(now, frame, object).expect("a change");
                }
            },
            BatchSize::SmallInput,
        );
    });
}

fn watches(criterion: &mut Criterion) {
    let all = objects(SIZES[0]);
    let position = pods().position("spec.nodeName").expect("known");
    let mut group = criterion.benchmark_group("a watch");
    let (_writer, reader) = scope(&all);
    group.bench_function("subscribe and leave", |bencher| {
        bencher.iter(|| reader.subscribe(SubscriptionStart::Now, Interest::All));
    });
    // Some events concern all watchers, others only the watcher of one node.
    let node = |number: usize| Interest::Field(position, fixtures::node_name(number).into());
    for (name, watchers, everybody) in [
        ("take an event in and hand it to 1", 1, true),
        ("take an event in and hand it to 500", 500, true),
        (
            "take an event in beside 10000 watchers with a node each",
            10_000,
            false,
        ),
    ] {
        let (mut writer, reader) = scope(&all);
        let interest = |number| {
            if everybody {
                Interest::All
            } else {
                node(number)
            }
        };
        let open = (0..watchers)
            .map(|number| reader.subscribe(SubscriptionStart::Now, interest(number)).0);
        let mut open: Vec<_> = open.collect();
        let (mut changes, now) = (Changes::of(&all), Instant::now());
        let context = Context::from_waker(Waker::noop());
        group.bench_function(name, |bencher| {
            bencher.iter_batched(
                || changes.modify(),
                |(frame, object)| {
                    writer.apply(now, frame, object).expect("a change");
                    // With a node each, an event wakes a single watcher, so only that one looks.
                    let concerned = if everybody { watchers } else { 1 };
                    let mut events = 0;
                    for subscription in &mut open[..concerned] {
                        while let SubscriptionStep::Events(some) =
                            subscription.step(&context, 64, 32 * 1024)
                        {
                            events += some.len();
                        }
                    }
                    events
                },
                BatchSize::SmallInput,
            );
        });
    }
    group.finish();
}

/// The longest turn of a task that looks at all objects: others of its thread wait as long. In CPU
/// time of the thread, so that other programs do not count.
fn turns(criterion: &mut Criterion) {
    let all = objects(SIZES[1]);
    let (_writer, reader) = scope(&all);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .expect("a runtime");
    let _entered = runtime.enter();
    let mut group = criterion.benchmark_group(format!("the longest turn, {} pods", SIZES[1]));
    group.sample_size(10);
    for (name, labels, only_metadata) in [
        ("begin a watch with none of them", "app=nothing", false),
        ("begin a watch with their metadata", "", true),
    ] {
        group.bench_function(name, |bencher| {
            bencher.iter_custom(|times| {
                (0..times)
                    .map(|_| longest_turn(&mut watch(&reader, labels, only_metadata)))
                    .sum()
            });
        });
    }
    group.finish();
}

type BenchedWatch = WatchBody<Granted, std::future::Pending<()>, Unobserved>;

fn watch(reader: &StoreReader, labels: &str, only_metadata: bool) -> BenchedWatch {
    let (fields, format) = (pods(), layout().format);
    let filter = ViewFilter::new(None, &selectors_of(labels, ""), &fields).expect("known fields");
    let conversion = only_metadata.then(|| {
        Box::new(Conversion::Metadata(PartialView {
            format: PartialFormat::of(&format, Encoding::Json).expect("JSON can be reduced"),
            irreducible: Arc::default(),
        }))
    });
    let interest = filter.interest(&fields);
    let (subscription, snapshot) = reader.subscribe(SubscriptionStart::Now, interest.clone());
    WatchBody::new(
        subscription,
        WatchOptions {
            format,
            view: ClientView { filter, conversion },
            coding: ContentCoding::Identity,
            start: snapshot.version(),
            initial: Some(InitialState::new(
                snapshot.into_runs(&interest),
                reader.clone(),
                None,
                None,
            )),
            bookmarks: None,
            is_from_etcd: false,
            deadline: tokio::time::Instant::now() + Duration::from_hours(1),
            guard: Granted,
            draining: std::future::pending(),
            observer: Unobserved,
        },
    )
}

/// Polls until the first state is sent, and returns the time of the longest poll.
fn longest_turn(watch: &mut BenchedWatch) -> Duration {
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(Arc::clone(&woken));
    let mut context = Context::from_waker(&waker);
    let mut longest = Duration::ZERO;
    loop {
        let before = thread_time();
        let polled = Pin::new(&mut *watch).poll_frame(&mut context);
        longest = longest.max(thread_time().saturating_sub(before));
        if polled.is_pending() && !woken.0.swap(false, Ordering::Relaxed) {
            return longest;
        }
    }
}

/// The CPU time of this thread.
fn thread_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::from_nanos((time.tv_sec * 1_000_000_000 + time.tv_nsec).cast_unsigned())
}

/// Notices that the watch wants another turn.
#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

struct Granted;

impl AccessGuard for Granted {
    fn poll(&mut self, _: &mut Context<'_>) -> AccessStatus {
        AccessStatus::Granted
    }

    fn due(&self) -> tokio::time::Instant {
        tokio::time::Instant::now() + Duration::from_hours(1)
    }
}

struct Unobserved;

impl WatchObserver for Unobserved {
    fn sent(&mut self, _: usize, _: usize) {}

    fn ended(&mut self, _: WatchEnding) {}
}

criterion_group! {
    name = functions;
    config = Criterion::default()
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2));
    targets = encoding, printing, selectors, snapshots, watches, turns
}
criterion_main!(functions);
