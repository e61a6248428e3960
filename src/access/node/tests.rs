//! Grants of nodes, and the pods that they rest on.
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Wake};

use bytes::Bytes;
use serde_json::{Value, json};
use watershed_protocol::{
    EventKind, FieldOperator, FieldRequirement, FieldSelector, FieldTable, Frame,
    GroupVersionResource, LabelSelector, ResourceRequest, Verb, WireFormat, scan,
};

use super::*;
use crate::access::changes::listeners::ChangeSubscription;
use crate::access::identity::Identity;
use crate::access::request::{AccessTarget, ReviewSelectors, VerbTarget};
use crate::access::scope_events;
use crate::store::{self, Layout, Snapshot, StoreWriter, SubscriptionStep, WindowLimits};

/// Pods in a store, and the rights of nodes that rest on them.
struct Cluster {
    writer: StoreWriter,
    format: Arc<WireFormat>,
    fields: FieldTable,
    rights: NodeRights,
    store: PodStore,
    version: u64,
}

impl Cluster {
    fn new() -> Self {
        let list =
            r#"{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"9"},"items":[]}"#;
        let list = Bytes::from(format!("{list}\n"));
        let (format, _) = WireFormat::learn(Encoding::Json, "Pod", &list).unwrap();
        let pods = GroupVersionResource::new("", "v1", "pods");
        let fields = FieldTable::builtin(&pods, true).unwrap();
        let (writer, reader) = store::new(WindowLimits {
            age: Duration::from_hours(1),
            least: 0,
            bytes: 1 << 20,
        });
        let store = PodStore {
            reader,
            encoding: Encoding::Json,
            node: fields.position("spec.nodeName").unwrap(),
            phase: fields.position("status.phase").unwrap(),
        };
        let mut cluster = Self {
            writer,
            format: Arc::new(format),
            fields,
            rights: NodeRights::new(NodeGrantMode::FollowPods, Arc::default()),
            store,
            version: 10,
        };
        cluster.list_anew();
        cluster
    }

    /// Begins with a list without pods.
    fn list_anew(&mut self) {
        self.version += 1;
        let layout = Layout {
            format: Arc::clone(&self.format),
            indexed: self.fields.indexed(),
        };
        let snapshot = Snapshot::new(ResourceVersion(self.version), layout, []);
        self.writer.replace(snapshot);
        self.rights.set_store(self.store.clone());
        self.rights.set_followed();
    }

    /// Changes a pod that names the secret `key`, and a config map of another pod's.
    fn change(&mut self, kind: EventKind, name: &str, node: &str, phase: &str) {
        self.version += 1;
        let text = json!({
            "kind": "Pod", "apiVersion": "v1",
            "metadata": {"name": name, "namespace": "here",
                "resourceVersion": self.version.to_string()},
            "spec": {"nodeName": node, "volumes": [
                {"name": "v", "secret": {"secretName": "key"}},
                {"name": "own", "configMap": {"name": name}}]},
            "status": {"phase": phase},
        });
        self.apply(kind, &text);
    }

    fn apply(&mut self, kind: EventKind, object: &Value) {
        let text = object.to_string();
        let scanned = scan(Encoding::Json, text.as_bytes(), &self.fields).unwrap();
        let object = StoredObject {
            bytes: self.format.item_bytes(&text.into()).into(),
            version: scanned.version,
            attributes: scanned.attributes,
        };
        let frame = self.format.event(kind, &object.bytes.get());
        let frame = Frame {
            kind,
            object: frame.clone(),
            frame,
        };
        let now = Instant::now().into_std();
        self.writer.apply(now, frame, object).unwrap();
    }

    fn grant_reason(&self, request: &AccessRequest) -> Option<GrantReason> {
        self.rights.grant_reason(request)
    }
}

fn request_of(
    (user, group): (&str, &str),
    verb: Verb,
    (group_of_type, resource): (&str, &str),
    (namespace, name): (Option<&str>, Option<&str>),
) -> AccessRequest {
    AccessRequest {
        identity: Arc::new(Identity {
            user: user.to_owned(),
            uid: None,
            groups: vec![group.to_owned()],
            extra: Vec::new(),
        }),
        target: AccessTarget::new(
            verb.as_str(),
            ResourceRequest {
                gvr: GroupVersionResource::new(group_of_type, "v1", resource),
                namespace: namespace.map(str::to_owned),
                name: name.map(str::to_owned),
                subresource: None,
            },
        ),
    }
}

/// Returns the watch of an object in the namespace `here`.
pub(super) fn watch(node: &str, resource: &str, name: &str) -> AccessRequest {
    let user = format!("system:node:{node}");
    let here = (Some("here"), Some(name));
    request_of((&user, NODES), Verb::Watch, ("", resource), here)
}

#[tokio::test(start_paused = true)]
async fn a_grant_stands_while_a_pod_on_the_node_names_the_object() {
    let mut cluster = Cluster::new();
    let secret = watch("east", "secrets", "key");
    assert!(cluster.grant_reason(&secret).is_none(), "there is no pod");
    cluster.change(EventKind::Added, "a", "east", "Pending");
    cluster.change(EventKind::Added, "w", "west", "Running");
    let reason = cluster.grant_reason(&secret).unwrap();
    let still_holds = |cluster: &Cluster| cluster.rights.still_holds(&reason, &secret);
    assert!(still_holds(&cluster));
    cluster.change(EventKind::Modified, "a", "east", "Running");
    assert!(still_holds(&cluster));
    // Another pod takes the place of the first.
    cluster.change(EventKind::Added, "b", "east", "Running");
    cluster.change(EventKind::Deleted, "a", "east", "Running");
    assert!(still_holds(&cluster));
    cluster.change(EventKind::Deleted, "b", "east", "Running");
    assert!(!still_holds(&cluster), "only the other node has such a pod");
    cluster.change(EventKind::Added, "b", "east", "Running");
    assert!(still_holds(&cluster));
    cluster.change(EventKind::Modified, "b", "east", "Succeeded");
    assert!(!still_holds(&cluster), "the pod has ended");
    cluster.change(EventKind::Added, "c", "east", "Running");
    assert!(still_holds(&cluster));
    cluster.change(EventKind::Deleted, "c", "east", "Running");
    cluster.change(EventKind::Added, "c", "west", "Running");
    assert!(
        !still_holds(&cluster),
        "another node has a pod of that name"
    );
    cluster.change(EventKind::Added, "d", "east", "Running");
    assert!(still_holds(&cluster));
    cluster.list_anew();
    assert!(!still_holds(&cluster), "all pods are gone unseen");
}

#[tokio::test(start_paused = true)]
async fn a_pod_entitles_its_node_to_what_it_names_and_to_nothing_else() {
    let mut cluster = Cluster::new();
    cluster.change(EventKind::Added, "a", "east", "Running");
    cluster.change(EventKind::Added, "over", "south", "Failed");
    let has_reason = |request: &AccessRequest| cluster.grant_reason(request).is_some();
    assert!(has_reason(&watch("east", "secrets", "key")));
    assert!(has_reason(&watch("east", "configmaps", "a")));
    for other in [
        watch("west", "secrets", "key"),
        watch("south", "secrets", "key"),
        watch("east", "secrets", "a"),
        watch("east", "configmaps", "key"),
        watch("east", "secrets", "ke"),
        watch("east", "secrets", ""),
        watch("", "secrets", "key"),
    ] {
        assert!(!has_reason(&other), "{other:?}");
    }
    let east = ("system:node:east", NODES);
    let secrets = ("", "secrets");
    let key = (Some("here"), Some("key"));
    assert!(has_reason(&request_of(east, Verb::Get, secrets, key)));
    for (user, verb, of_type, named) in [
        (("system:node:east", "others"), Verb::Get, secrets, key),
        (("east", NODES), Verb::Get, secrets, key),
        (east, Verb::Get, secrets, (Some("there"), Some("key"))),
        (east, Verb::List, secrets, (Some("here"), None)),
        (east, Verb::List, secrets, (None, None)),
        (east, Verb::Get, ("other.example", "secrets"), key),
        (east, Verb::Get, ("", "persistentvolumeclaims"), key),
    ] {
        let request = request_of(user, verb, of_type, named);
        assert!(!has_reason(&request), "{request:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_mirror_pod_entitles_its_node_to_nothing() {
    let mut cluster = Cluster::new();
    let pod = |version: &str, annotation: &str| {
        json!({
            "kind": "Pod", "apiVersion": "v1",
            "metadata": {"name": "m", "namespace": "here", "resourceVersion": version,
                "annotations": {annotation: "h"}},
            "spec": {"nodeName": "east", "imagePullSecrets": [{"name": "key"}]},
        })
    };
    let secret = watch("east", "secrets", "key");
    cluster.apply(EventKind::Added, &pod("20", "kubernetes.io/config.mirror"));
    assert!(cluster.grant_reason(&secret).is_none());
    cluster.apply(EventKind::Modified, &pod("21", "other"));
    let reason = cluster.grant_reason(&secret).unwrap();
    cluster.apply(
        EventKind::Modified,
        &pod("22", "kubernetes.io/config.mirror"),
    );
    assert!(!cluster.rights.still_holds(&reason, &secret));
}

#[test]
fn rights_that_no_object_can_end_are_few() {
    let cluster = Cluster::new();
    let node = ("system:node:east", NODES);
    let is_always = |request: &AccessRequest| {
        let reason = cluster.grant_reason(request);
        matches!(reason, Some(GrantReason::Always))
    };
    let anywhere = (None, None);
    for (of_type, named) in [
        (("", "services"), anywhere),
        (("node.k8s.io", "runtimeclasses"), anywhere),
        (("storage.k8s.io", "csidrivers"), anywhere),
        (("", "nodes"), (None, Some("east"))),
    ] {
        assert!(is_always(&request_of(node, Verb::Watch, of_type, named)));
    }
    for (of_type, named) in [
        (("", "nodes"), anywhere),
        (("", "nodes"), (None, Some("west"))),
        (("", "pods"), anywhere),
        (("", "endpoints"), anywhere),
        (("storage.k8s.io", "volumeattachments"), (None, Some("a"))),
    ] {
        assert!(!is_always(&request_of(node, Verb::Watch, of_type, named)));
    }
    let pods_of = |name: &str, operator| {
        let mut request = request_of(node, Verb::Watch, ("", "pods"), anywhere);
        let VerbTarget::Resource { selectors, .. } = &mut request.target.on else {
            unreachable!("it is for a resource");
        };
        let bound = FieldSelector::default().and(FieldRequirement {
            field: "spec.nodeName".to_owned(),
            operator,
            value: name.to_owned(),
        });
        *selectors = ReviewSelectors::new(&LabelSelector::default(), &bound);
        request
    };
    assert!(is_always(&pods_of("east", FieldOperator::Equals)));
    assert!(!is_always(&pods_of("west", FieldOperator::Equals)));
    assert!(!is_always(&pods_of("east", FieldOperator::NotEquals)));
}

#[tokio::test(start_paused = true)]
async fn without_the_flag_no_grant_rests_on_anything() {
    let rights = NodeRights::new(NodeGrantMode::Review, Arc::default());
    let mut cluster = Cluster::new();
    cluster.change(EventKind::Added, "a", "east", "Running");
    rights.set_store(cluster.store.clone());
    rights.set_followed();
    assert!(
        rights
            .grant_reason(&watch("east", "secrets", "key"))
            .is_none()
    );
    let services = request_of(
        ("system:node:east", NODES),
        Verb::Watch,
        ("", "services"),
        (None, None),
    );
    assert!(rights.grant_reason(&services).is_none());
}

#[tokio::test(start_paused = true)]
async fn while_pods_are_not_followed_no_grant_is_kept_and_their_loss_ends_none_at_once() {
    let mut cluster = Cluster::new();
    cluster.change(EventKind::Added, "a", "east", "Running");
    let secret = watch("east", "secrets", "key");
    let reason = cluster.grant_reason(&secret).unwrap();
    assert_eq!(cluster.rights.unknown_since(&reason), None);
    tokio::time::advance(Duration::from_hours(1)).await;
    cluster.rights.set_lost(Instant::now());
    let lost = Instant::now();
    tokio::time::advance(Duration::from_secs(5)).await;
    cluster.rights.set_lost(Instant::now());
    assert_eq!(cluster.rights.unknown_since(&reason), Some(lost));
    assert!(
        cluster.rights.still_holds(&reason, &secret),
        "as far as is known"
    );
    assert!(cluster.grant_reason(&secret).is_none());
    cluster.writer.reset();
    assert!(
        cluster.rights.still_holds(&reason, &secret),
        "nothing is known"
    );
    assert_eq!(cluster.rights.unknown_since(&GrantReason::Always), None);
}

#[tokio::test(start_paused = true)]
async fn a_time_of_following_that_is_short_or_silent_does_not_put_reviews_off() {
    let mut cluster = Cluster::new();
    cluster.change(EventKind::Added, "a", "east", "Running");
    let reason = cluster
        .grant_reason(&watch("east", "secrets", "key"))
        .unwrap();
    let pass = |seconds| tokio::time::advance(Duration::from_secs(seconds));
    pass(3600).await;
    cluster.rights.set_lost(Instant::now());
    let lost = Some(Instant::now());
    for (seconds, heard_after) in [(9, 8), (30, 0)] {
        pass(1).await;
        cluster.rights.set_followed();
        assert_eq!(cluster.rights.unknown_since(&reason), None);
        let heard = Instant::now() + Duration::from_secs(heard_after);
        pass(seconds).await;
        cluster.rights.set_lost(heard);
        assert_eq!(cluster.rights.unknown_since(&reason), lost);
    }
    cluster.rights.set_followed();
    pass(10).await;
    cluster.rights.set_lost(Instant::now());
    assert_eq!(cluster.rights.unknown_since(&reason), Some(Instant::now()));
}

#[derive(Default)]
struct Awakened(AtomicU64);

impl Wake for Awakened {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_leaves_wakes_its_node_and_the_loss_of_pods_wakes_all_nodes() {
    let cluster = Cluster::new();
    let listen = |request: AccessRequest| {
        let subscription = ChangeSubscription::new(&cluster.rights.listeners, &Arc::new(request));
        (subscription, Arc::new(Awakened::default()))
    };
    let ann = AccessRequest::example("ann", &[], Some("here"));
    let listening = [
        listen(watch("east", "secrets", "key")),
        listen(watch("west", "secrets", "key")),
        listen(ann),
    ];
    let woken = || {
        listening.each_ref().map(|(subscription, woken)| {
            let waker = Arc::clone(woken).into();
            subscription.register(Context::from_waker(&waker).waker());
            woken.0.swap(0, Ordering::Relaxed)
        })
    };
    woken();
    cluster.rights.pod_left("east");
    assert_eq!(woken(), [1, 0, 0]);
    cluster.rights.set_lost(Instant::now());
    assert_eq!(woken(), [1, 1, 0]);
    cluster.rights.set_followed();
    assert_eq!(woken(), [1, 1, 0]);
}

#[tokio::test(start_paused = true)]
async fn a_grant_just_after_a_pod_left_is_reviewed_until_upstream_has_settled() {
    let cluster = Cluster::new();
    let secret = watch("east", "secrets", "key");
    let after = |request: &AccessRequest| {
        let now = Instant::now();
        cluster.rights.settles_after(request, now, now)
    };
    assert_eq!(after(&secret), None);
    cluster.rights.pod_left("east");
    assert_eq!(after(&secret), Some(Duration::from_millis(200)));
    assert_eq!(after(&watch("west", "secrets", "key")), None);
    tokio::time::advance(Duration::from_millis(500)).await;
    assert_eq!(after(&secret), Some(Duration::from_millis(1500)));
    tokio::time::advance(Duration::from_millis(1500)).await;
    assert_eq!(after(&secret), None);
    for number in 0..2 * MAX_DEPARTURES {
        cluster.rights.pod_left(&number.to_string());
    }
    assert!(cluster.rights.pods.read().departures.len() <= MAX_DEPARTURES);
}

/// 5,000 kubelets with 20 watches each, all granted at the same moment.
#[test]
fn the_clock_asks_for_few_reviews_of_kept_grants() {
    let minutes = 12 * 60;
    let mut reviews = vec![0_u32; minutes];
    for _ in 0..5_000 * 20 {
        let mut at = GrantReason::lifetime();
        while let Some(count) = reviews.get_mut(at.as_secs() as usize / 60) {
            *count += 1;
            at += GrantReason::lifetime();
        }
    }
    let most = reviews.iter().max().unwrap() / 60;
    assert!(most <= 20, "{most} reviews a second");
}

/// A read has proven a state that is newer than the events. Two of them lie before it and leave no trace.
#[test]
fn events_up_to_a_proven_version_are_followed() {
    let mut cluster = Cluster::new();
    let reader = cluster.store.reader.clone();
    reader.confirm(reader.snapshot(), ResourceVersion(cluster.version + 5));
    let mut subscription = scope_events::subscribe(&reader);
    for kind in [EventKind::Added, EventKind::Deleted] {
        cluster.change(kind, "web", "east", "Running");
        let context = Context::from_waker(std::task::Waker::noop());
        let step = subscription.step(&context, 8, usize::MAX);
        let SubscriptionStep::Events(events) = step else {
            panic!("{kind:?} is not followed: {step:?}");
        };
        let kinds: Vec<_> = events.iter().map(|event| event.kind).collect();
        assert_eq!(kinds, [kind]);
    }
}
