//! The history of all writes to pods, each with the object before and after it. The test is the
//! only writer, so the history is independent of the simulated server and of the proxy. It knows
//! the expected events of every watch.
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use fastrand::Rng;
use parking_lot::Mutex;
use serde_json::Value;
use watershed_lab::sim::{ClusterState, fixtures, pods};

/// The pods that a client watches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Interest {
    All,
    Namespace(String),
    Node(String),
    Tier(&'static str),
}

/// A line of a watch.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) kind: String,
    pub(crate) key: String,
    pub(crate) version: u64,
    /// The whole line with its newline.
    pub(crate) line: Bytes,
}

/// A pod with the fields that interests select by.
#[derive(Clone, Debug)]
pub(crate) struct Pod {
    pub(crate) version: u64,
    pub(crate) bytes: Bytes,
    namespace: String,
    node: String,
    tier: String,
}

struct Change {
    version: u64,
    key: String,
    before: Option<Pod>,
    after: Option<Pod>,
}

pub(crate) struct WriteHistory {
    state: Arc<ClusterState>,
    inner: Mutex<Inner>,
}

struct Inner {
    rng: Rng,
    start: BTreeMap<String, Pod>,
    now: BTreeMap<String, Pod>,
    changes: Vec<Change>,
    created: usize,
}

impl Interest {
    pub(crate) fn path(&self) -> String {
        match self {
            Self::Namespace(namespace) => format!("/api/v1/namespaces/{namespace}/pods"),
            _ => "/api/v1/pods".to_owned(),
        }
    }

    /// Returns the query parameters of the selector, to be appended.
    pub(crate) fn selector(&self) -> String {
        match self {
            Self::All | Self::Namespace(_) => String::new(),
            Self::Node(node) => format!("&fieldSelector=spec.nodeName%3D{node}"),
            Self::Tier(tier) => format!("&labelSelector=tier%3D{tier}"),
        }
    }

    /// Returns the interest of the n-th client. All kinds are mixed.
    pub(crate) fn nth(n: usize) -> Self {
        match n % 5 {
            0 => Self::All,
            1 => Self::Namespace(fixtures::namespace_name(n / 5 % 3)),
            2 => Self::Tier(fixtures::TIERS[n / 5 % 3]),
            _ => Self::Node(fixtures::node_name(n % 4)),
        }
    }

    fn wants(&self, pod: &Pod) -> bool {
        match self {
            Self::All => true,
            Self::Namespace(namespace) => pod.namespace == *namespace,
            Self::Node(node) => pod.node == *node,
            Self::Tier(tier) => pod.tier == *tier,
        }
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} at {}", self.kind, self.key, self.version)
    }
}

impl Event {
    pub(crate) fn new(kind: &str, key: &str, version: u64, object: &[u8]) -> Self {
        let line = [
            br#"{"type":""#,
            kind.as_bytes(),
            br#"","object":"#,
            object,
            b"}\n",
        ]
        .concat()
        .into();
        Self {
            kind: kind.to_owned(),
            key: key.to_owned(),
            version,
            line,
        }
    }
}

impl Pod {
    fn read(version: u64, bytes: Bytes) -> Self {
        let object: Value = serde_json::from_slice(&bytes).unwrap();
        let text = |at: &str| {
            object
                .pointer(at)
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_owned()
        };
        Self {
            version,
            namespace: text("/metadata/namespace"),
            node: text("/spec/nodeName"),
            tier: text("/metadata/labels/tier"),
            bytes,
        }
    }

    /// Returns the bytes with another version, as a deletion reports them.
    fn at(&self, version: u64) -> Vec<u8> {
        let text = std::str::from_utf8(&self.bytes).unwrap();
        let (old, new) = (self.version, version);
        text.replacen(
            &format!(r#""resourceVersion":"{old}""#),
            &format!(r#""resourceVersion":"{new}""#),
            1,
        )
        .into_bytes()
    }
}

impl WriteHistory {
    /// Starts from the present objects. From now on, nobody else may write pods.
    pub(crate) fn new(state: &Arc<ClusterState>, seed: u64) -> Arc<Self> {
        let now: BTreeMap<_, _> = state
            .snapshot(&pods())
            .into_iter()
            .map(|(key, (v, bytes))| (key, Pod::read(v, bytes)))
            .collect();
        let inner = Inner {
            rng: Rng::with_seed(seed),
            start: now.clone(),
            now,
            changes: Vec::new(),
            created: 0,
        };
        Arc::new(Self {
            state: Arc::clone(state),
            inner: Mutex::new(inner),
        })
    }

    /// Makes one random write.
    pub(crate) fn write(&self) {
        let mut inner = self.inner.lock();
        let Inner {
            rng, now, created, ..
        } = &mut *inner;
        let dice = rng.u8(0..10);
        // There is one node more than interests, so that pods also move to a node nobody watches.
        let node = if rng.u8(0..8) == 0 {
            String::new()
        } else {
            fixtures::node_name(rng.usize(0..5))
        };
        let present = (!now.is_empty())
            .then(|| now.keys().nth(rng.usize(0..now.len())).cloned())
            .flatten();
        let (key, version) = match present {
            Some(key) if dice < 6 => {
                let (namespace, name) = key.split_once('/').unwrap();
                let json = fixtures::pod(namespace, name, &node, rng);
                let version = self.state.update(&pods(), &json).unwrap();
                (key, version)
            }
            Some(key) if dice < 8 => {
                let (namespace, name) = key.split_once('/').unwrap();
                let version = self.state.delete(&pods(), namespace, name).unwrap();
                (key, version)
            }
            _ => {
                *created += 1;
                let namespace = fixtures::namespace_name(rng.usize(0..3));
                let name = format!("{}-x{created}", fixtures::pod_name(*created, rng));
                let json = fixtures::pod(&namespace, &name, &node, rng);
                (
                    format!("{namespace}/{name}"),
                    self.state.create(&pods(), &json).unwrap(),
                )
            }
        };
        let after = self
            .state
            .object(&pods(), &key)
            .map(|(v, bytes)| Pod::read(v, bytes));
        let before = match &after {
            Some(pod) => now.insert(key.clone(), pod.clone()),
            None => now.remove(&key),
        };
        inner.changes.push(Change {
            version,
            key,
            before,
            after,
        });
    }

    /// Makes `count` random writes, with pauses in which other tasks run.
    pub(crate) async fn writes(&self, count: usize) {
        for n in 0..count {
            self.write();
            if n % 4 == 0 {
                tokio::time::sleep(std::time::Duration::from_millis(2)).await;
            }
        }
    }

    /// Returns the objects of an interest at a version, by their keys.
    pub(crate) fn at(&self, interest: &Interest, version: u64) -> BTreeMap<String, Bytes> {
        let inner = self.inner.lock();
        let mut pods = inner.start.clone();
        for change in inner
            .changes
            .iter()
            .take_while(|change| change.version <= version)
        {
            match &change.after {
                Some(pod) => pods.insert(change.key.clone(), pod.clone()),
                None => pods.remove(&change.key),
            };
        }
        pods.retain(|_, pod| interest.wants(pod));
        pods.into_iter()
            .map(|(key, pod)| (key, pod.bytes))
            .collect()
    }

    /// Returns the expected events of a watch of an interest, after one version and up to another.
    pub(crate) fn between(&self, interest: &Interest, after: u64, up_to: u64) -> Vec<Event> {
        let inner = self.inner.lock();
        let changes = inner
            .changes
            .iter()
            .filter(|c| after < c.version && c.version <= up_to);
        let events = changes.filter_map(|change| {
            let before = change.before.as_ref().filter(|pod| interest.wants(pod));
            let after = change.after.as_ref().filter(|pod| interest.wants(pod));
            let event =
                |kind, object: &[u8]| Some(Event::new(kind, &change.key, change.version, object));
            match (before, after) {
                (None, Some(pod)) => event("ADDED", &pod.bytes),
                (Some(_), Some(pod)) => event("MODIFIED", &pod.bytes),
                (Some(pod), None) => event("DELETED", &pod.at(change.version)),
                (None, None) => None,
            }
        });
        events.collect()
    }
}

/// Compares the events of a watch with the expected ones: their order and all their bytes.
pub(crate) fn compare(expected: &[Event], seen: &[Event]) -> Result<(), String> {
    let Some(at) = (0..expected.len().max(seen.len())).find(|&n| expected.get(n) != seen.get(n))
    else {
        return Ok(());
    };
    let place = format!("event {at} of {}", expected.len());
    match (expected.get(at), seen.get(at)) {
        (Some(missing), None) => Err(format!("{place}: lost {missing:?}")),
        (_, Some(odd)) if expected[..at].contains(odd) => Err(format!("{place}: repeated {odd:?}")),
        (Some(missing), Some(odd)) if expected[at..].contains(odd) => {
            if seen[at..].contains(missing) {
                Err(format!("{place}: {odd:?} came before {missing:?}"))
            } else {
                Err(format!("{place}: lost {missing:?} before {odd:?}"))
            }
        }
        (Some(wanted), Some(odd)) if wanted.kind == odd.kind && wanted.version == odd.version => {
            Err(format!("{place}: {odd:?} has other bytes"))
        }
        (wanted, Some(odd)) => Err(format!("{place}: {odd:?} never happened, {wanted:?} did")),
        (None, None) => Ok(()),
    }
}

#[test]
fn the_judge_finds_every_planted_fault_in_a_sequence() {
    let event = |version: u64| Event::new("ADDED", "n/a", version, version.to_string().as_bytes());
    let expected: Vec<_> = (1..6).map(event).collect();
    let fault = |plant: &dyn Fn(&mut Vec<Event>)| {
        let mut seen = expected.clone();
        plant(&mut seen);
        compare(&expected, &seen).expect_err("a planted fault")
    };
    assert_eq!(compare(&expected, &expected.clone()), Ok(()));
    assert!(fault(&|seen| drop(seen.remove(2))).contains("lost ADDED n/a at 3 before"));
    assert!(fault(&|seen| drop(seen.pop())).contains("lost ADDED n/a at 5"));
    assert!(fault(&|seen| seen.insert(3, event(2))).contains("repeated ADDED n/a at 2"));
    assert!(fault(&|seen| seen.push(event(5))).contains("repeated ADDED n/a at 5"));
    assert!(fault(&|seen| seen.swap(1, 2)).contains("came before"));
    assert!(fault(&|seen| seen.push(event(9))).contains("never happened"));
    assert!(fault(&|seen| seen[0].kind = "MODIFIED".to_owned()).contains("never happened"));
    assert!(fault(&|seen| seen[4].line = Bytes::from_static(b"{}\n")).contains("other bytes"));
}
