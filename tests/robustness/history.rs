//! The history of all writes: of each version the whole state, and the change that led to it.
//!
//! The run is the only writer. It records each write in one step with making it, so the history
//! knows every answer and every event that a client may get.
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use fastrand::Rng;
use imbl::OrdMap;
use parking_lot::Mutex;
use serde_json::Value;
use serde_json::value::RawValue;
use watershed_lab::sim::{ClusterState, fixtures, pods, widgets};
use watershed_protocol::GroupVersionResource;

/// Changes that are remembered of each type. No client is so far behind.
const REMEMBERED: usize = 30_000;
/// Objects of a type. Below the first number they become more, above the second fewer.
const OBJECTS: Range<usize> = 40..110;
pub(crate) const NAMESPACES: usize = 3;
pub(crate) const NODES: usize = 5;

/// A type that is written and read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resource {
    Pods,
    ConfigMaps,
    /// A custom type. Its objects and lists are printed by other rules.
    Widgets,
}

/// The part of a type that a client asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) namespace: Option<String>,
    pub(crate) label: Option<&'static str>,
    pub(crate) field: Option<String>,
    /// Metadata alone instead of whole objects.
    pub(crate) metadata_only: bool,
}

/// An object at one version.
#[derive(Debug)]
pub(crate) struct Recorded {
    pub(crate) version: u64,
    pub(crate) whole: Printed,
    /// Reduced to its metadata.
    pub(crate) reduced: Printed,
    /// As an item of a list.
    pub(crate) item: Bytes,
    namespace: String,
    label: String,
    field: String,
}

/// The bytes of an object, and the place of its version in them.
#[derive(Clone, Debug)]
pub(crate) struct Printed {
    pub(crate) bytes: Bytes,
    version: Range<usize>,
}

type States = OrdMap<Arc<str>, Arc<Recorded>>;

struct RecordedChange {
    version: u64,
    before: Option<Arc<Recorded>>,
    after: Option<Arc<Recorded>>,
    /// All objects after it.
    state: States,
}

struct TypeHistory {
    rng: Rng,
    now: States,
    created: usize,
    /// The state before the first change that is remembered, and its version.
    base: (u64, States),
    changes: VecDeque<RecordedChange>,
}

pub(crate) struct History {
    state: Arc<ClusterState>,
    types: [Mutex<TypeHistory>; 3],
}

impl Resource {
    pub(crate) const ALL: [Self; 3] = [Self::Pods, Self::ConfigMaps, Self::Widgets];

    pub(crate) fn gvr(self) -> GroupVersionResource {
        match self {
            Self::Pods => pods(),
            Self::ConfigMaps => GroupVersionResource::new("", "v1", "configmaps"),
            Self::Widgets => widgets(),
        }
    }

    /// Returns the name as figures and faults of the simulated server have it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Pods => "pods",
            Self::ConfigMaps => "configmaps",
            Self::Widgets => "widgets.example.com",
        }
    }

    pub(crate) fn is_custom(self) -> bool {
        self == Self::Widgets
    }

    /// Returns the label by which parts are selected, and its values.
    fn label(self) -> (&'static str, &'static [&'static str]) {
        match self {
            Self::Pods => ("tier", &fixtures::TIERS),
            Self::ConfigMaps => ("app", &fixtures::APPS),
            Self::Widgets => ("size", &["large", "small"]),
        }
    }

    /// Returns the field by which parts are selected, and its place in an object.
    fn field(self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::Pods => Some(("spec.nodeName", "/spec/nodeName")),
            Self::ConfigMaps => None,
            Self::Widgets => Some(("spec.color", "/spec/color")),
        }
    }

    fn field_value(self, rng: &mut Rng) -> String {
        match self {
            Self::Pods => fixtures::node_name(rng.usize(0..NODES)),
            _ => fixtures::COLORS[rng.usize(0..fixtures::COLORS.len())].to_owned(),
        }
    }

    fn object(self, namespace: &str, name: &str, rng: &mut Rng) -> String {
        match self {
            // Some pods are on a node that nobody asks for, and some on none.
            Self::Pods => {
                let node = match rng.usize(0..8) {
                    0 => String::new(),
                    n => fixtures::node_name(n),
                };
                fixtures::pod(namespace, name, &node, rng)
            }
            Self::ConfigMaps => fixtures::configmap(namespace, name, 0, rng),
            Self::Widgets => fixtures::widget(namespace, name, rng),
        }
    }

    /// Returns a part of this type at random.
    pub(crate) fn part(self, rng: &mut Rng) -> Part {
        let mut part = Part {
            // The history cannot print a custom type's metadata as upstream does.
            metadata_only: !self.is_custom() && rng.u8(0..6) == 0,
            ..Part::default()
        };
        match rng.u8(0..10) {
            0..=2 => {}
            3..=5 => {
                part.namespace = Some(fixtures::namespace_name(rng.usize(0..NAMESPACES)));
            }
            6..=7 => part.label = Some(self.label().1[rng.usize(0..self.label().1.len())]),
            _ if self.field().is_some() => part.field = Some(self.field_value(rng)),
            _ => {}
        }
        part
    }

    /// Returns the path and query of a part. `query` is appended.
    pub(crate) fn url(self, part: &Part, query: &str) -> String {
        let path = self.gvr().collection_path_in(part.namespace.as_deref());
        let label = part
            .label
            .map(|value| format!("&labelSelector={}%3D{value}", self.label().0));
        let field = part.field.as_ref().zip(self.field());
        let field = field.map(|(value, (name, _))| format!("&fieldSelector={name}%3D{value}"));
        format!(
            "{path}?{query}{}{}",
            label.unwrap_or_default(),
            field.unwrap_or_default()
        )
    }
}

impl Part {
    /// Returns the Accept header of a list or watch.
    pub(crate) fn accept(&self, list: bool) -> &'static str {
        match (self.metadata_only, list) {
            (false, _) => "application/json",
            (true, true) => "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
            (true, false) => "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1",
        }
    }

    fn wants(&self, object: &Recorded) -> bool {
        self.namespace
            .as_ref()
            .is_none_or(|wanted| object.namespace == *wanted)
            && self.label.is_none_or(|wanted| object.label == wanted)
            && self
                .field
                .as_ref()
                .is_none_or(|wanted| object.field == *wanted)
    }

    fn item<'a>(&self, object: &'a Recorded) -> &'a [u8] {
        if self.metadata_only {
            &object.reduced.bytes
        } else {
            &object.item
        }
    }

    fn printed<'a>(&self, object: &'a Recorded) -> &'a Printed {
        if self.metadata_only {
            &object.reduced
        } else {
            &object.whole
        }
    }

    /// Returns the line of a watch for a change, if it has one.
    fn line(&self, change: &RecordedChange) -> Option<Vec<u8>> {
        let before = change.before.as_deref().filter(|object| self.wants(object));
        let after = change.after.as_deref().filter(|object| self.wants(object));
        let (kind, object) = match (before, after) {
            (None, Some(object)) => ("ADDED", object),
            (Some(_), Some(object)) => ("MODIFIED", object),
            (Some(object), None) => ("DELETED", object),
            (None, None) => return None,
        };
        Some(self.printed(object).line(kind, change.version))
    }
}

impl Printed {
    fn new(bytes: Bytes, version: u64) -> Self {
        let needle = format!(r#""resourceVersion":"{version}""#);
        let found = memchr::memmem::find(&bytes, needle.as_bytes()).expect("an object's version");
        let start = found + r#""resourceVersion":""#.len();
        Self {
            bytes,
            version: start..start + version.to_string().len(),
        }
    }

    fn line(&self, kind: &str, version: u64) -> Vec<u8> {
        [
            br#"{"type":""#,
            kind.as_bytes(),
            br#"","object":"#,
            &self.bytes[..self.version.start],
            version.to_string().as_bytes(),
            &self.bytes[self.version.end..],
            b"}\n",
        ]
        .concat()
    }
}

impl Recorded {
    fn read(resource: Resource, version: u64, bytes: Bytes) -> Self {
        #[derive(serde::Deserialize)]
        struct Whole<'a> {
            #[serde(borrow)]
            metadata: &'a RawValue,
        }
        let object: Value = serde_json::from_slice(&bytes).unwrap();
        let text = |at: &str| {
            let value = object.pointer(at).and_then(Value::as_str);
            value.unwrap_or_default().to_owned()
        };
        let whole: Whole<'_> = serde_json::from_slice(&bytes).unwrap();
        let kind = r#""kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1""#;
        let reduced = format!(r#"{{{kind},"metadata":{}}}"#, whole.metadata.get());
        // Items of a built-in type lack the kind and apiVersion that the list names once.
        let item = if resource.is_custom() {
            bytes.clone()
        } else {
            let at = memchr::memmem::find(&bytes, br#""metadata":"#).unwrap();
            [b"{", &bytes[at..]].concat().into()
        };
        let field = resource.field().map(|(_, place)| text(place));
        Self {
            version,
            namespace: text("/metadata/namespace"),
            label: text(&format!("/metadata/labels/{}", resource.label().0)),
            field: field.unwrap_or_default(),
            whole: Printed::new(bytes, version),
            reduced: Printed::new(reduced.into(), version),
            item,
        }
    }
}

impl TypeHistory {
    fn new(resource: Resource, state: &ClusterState, seed: u64) -> Self {
        let version = state.version();
        let objects = state.snapshot(&resource.gvr()).into_iter();
        let now: States = objects
            .map(|(key, (version, bytes))| {
                let object = Recorded::read(resource, version, bytes);
                (Arc::from(key), Arc::new(object))
            })
            .collect();
        Self {
            rng: Rng::with_seed(seed),
            created: 0,
            base: (version, now.clone()),
            now,
            changes: VecDeque::new(),
        }
    }

    fn write(&mut self, resource: Resource, state: &ClusterState) {
        let (gvr, rng) = (resource.gvr(), &mut self.rng);
        let dice = rng.u8(0..10);
        let fewer = self.now.len() >= OBJECTS.end;
        let present = match self.now.len() {
            0 => None,
            count => self.now.keys().nth(rng.usize(0..count)).cloned(),
        };
        let (key, version) = match present {
            Some(key) if dice < 6 && !fewer => {
                let (namespace, name) = key.split_once('/').unwrap();
                let json = resource.object(namespace, name, rng);
                let version = state.update(&gvr, &json).unwrap();
                (key, version)
            }
            Some(key) if fewer || (dice < 8 && self.now.len() > OBJECTS.start) => {
                let (namespace, name) = key.split_once('/').unwrap();
                let version = state.delete(&gvr, namespace, name).unwrap();
                (key, version)
            }
            _ => {
                self.created += 1;
                let namespace = fixtures::namespace_name(rng.usize(0..NAMESPACES));
                let name = format!(
                    "{}-x{}",
                    fixtures::pod_name(self.created, rng),
                    self.created
                );
                let json = resource.object(&namespace, &name, rng);
                let version = state.create(&gvr, &json).unwrap();
                (Arc::from(format!("{namespace}/{name}")), version)
            }
        };
        let after = state.object(&gvr, &key);
        let after = after.map(|(at, bytes)| Arc::new(Recorded::read(resource, at, bytes)));
        let before = match &after {
            Some(object) => self.now.insert(key, Arc::clone(object)),
            None => self.now.remove(&key),
        };
        self.changes.push_back(RecordedChange {
            version,
            before,
            after,
            state: self.now.clone(),
        });
        if self.changes.len() > REMEMBERED
            && let Some(oldest) = self.changes.pop_front()
        {
            self.base = (oldest.version, oldest.state);
        }
    }

    /// Returns the state at a version; `None` if it is forgotten.
    fn state_at(&self, version: u64) -> Option<&States> {
        if version < self.base.0 {
            return None;
        }
        let after = self
            .changes
            .partition_point(|change| change.version <= version);
        Some(match after.checked_sub(1) {
            Some(last) => &self.changes[last].state,
            None => &self.base.1,
        })
    }
}

impl History {
    /// Starts from the present objects. From now on, nobody else may write these types.
    pub(crate) fn new(state: &Arc<ClusterState>, seed: u64) -> Self {
        let history = |resource, n| Mutex::new(TypeHistory::new(resource, state, seed ^ n));
        let [first, second, third] = Resource::ALL;
        Self {
            state: Arc::clone(state),
            types: [history(first, 1), history(second, 2), history(third, 3)],
        }
    }

    /// Makes one random write.
    pub(crate) fn write(&self, resource: Resource) {
        self.of(resource).lock().write(resource, &self.state);
    }

    /// Returns the newest version that any write has had. Consistent reads that begin now show it.
    pub(crate) fn acknowledged(&self) -> u64 {
        self.state.version()
    }

    /// Returns a version of a type's last `reach` changes.
    pub(crate) fn recent(&self, resource: Resource, reach: usize, rng: &mut Rng) -> u64 {
        let history = self.of(resource).lock();
        let behind = rng.usize(0..reach) + 1;
        let at = history.changes.len().checked_sub(behind);
        at.map_or(history.base.0, |at| history.changes[at].version)
    }

    /// Returns the items of a list at a version, separated by commas; `None` if it is forgotten.
    pub(crate) fn items(&self, resource: Resource, part: &Part, version: u64) -> Option<Vec<u8>> {
        let state = self.of(resource).lock().state_at(version)?.clone();
        let mut items = Vec::new();
        for object in state.values().filter(|object| part.wants(object)) {
            if !items.is_empty() {
                items.push(b',');
            }
            items.extend_from_slice(part.item(object));
        }
        Some(items)
    }

    /// Returns the initial events of a watch that begins with the state at a version.
    pub(crate) fn initial(
        &self,
        resource: Resource,
        part: &Part,
        version: u64,
    ) -> Option<Vec<Vec<u8>>> {
        let state = self.of(resource).lock().state_at(version)?.clone();
        let objects = state.values().filter(|object| part.wants(object));
        Some(
            objects
                .map(|object| part.printed(object).line("ADDED", object.version))
                .collect(),
        )
    }

    /// Returns an object as it was at a version. Objects may be older than the history.
    pub(crate) fn object(&self, resource: Resource, key: &str, version: u64) -> Option<Bytes> {
        let history = self.of(resource).lock();
        let object = history.state_at(version.max(history.base.0))?.get(key)?;
        Some(object.whole.bytes.clone())
    }

    /// Returns true if an object did not exist at a version or at a later one, as far as versions
    /// are remembered.
    pub(crate) fn was_absent(&self, resource: Resource, key: &str, version: u64) -> bool {
        let history = self.of(resource).lock();
        let version = version.max(history.base.0);
        let lacks = |state: &States| !state.contains_key(key);
        let mut later = history.changes.iter().rev();
        history.state_at(version).is_some_and(lacks)
            || later.any(|change| change.version > version && lacks(&change.state))
    }

    /// Returns a key that exists, and often changes.
    pub(crate) fn some_key(&self, resource: Resource, rng: &mut Rng) -> Option<Arc<str>> {
        let history = self.of(resource).lock();
        let count = history.now.len();
        history.now.keys().nth(rng.usize(0..count.max(1))).cloned()
    }

    /// Returns the version and the line of the first event of a watch after a version.
    ///
    /// # Errors
    /// The version is forgotten.
    pub(crate) fn next(
        &self,
        resource: Resource,
        part: &Part,
        after: u64,
    ) -> Result<Option<(u64, Vec<u8>)>, String> {
        let history = self.of(resource).lock();
        if after < history.base.0 {
            return Err(format!("{after} is too long ago for this history"));
        }
        let from = history
            .changes
            .partition_point(|change| change.version <= after);
        let mut changes = history.changes.range(from..);
        Ok(changes.find_map(|change| Some((change.version, part.line(change)?))))
    }

    fn of(&self, resource: Resource) -> &Mutex<TypeHistory> {
        &self.types[resource as usize]
    }
}
