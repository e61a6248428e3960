//! The objects and the recent events of one type.
use std::collections::VecDeque;
use std::sync::Arc;

use imbl::OrdMap;
use tokio::time::Instant;

use crate::sim::object::SimulatedObject;

/// Former versions of a cache that are kept, for the fault that leaves a server behind.
const HEARD: usize = 1_000;

/// All objects of a type at one version. Cloning shares the tree.
pub(crate) type Objects = OrdMap<Arc<str>, Arc<SimulatedObject>>;

/// A write as an event for the watchers of its type.
#[derive(Debug)]
pub(crate) struct WriteEvent {
    pub(crate) version: u64,
    /// The object before; `None` for a creation.
    pub(crate) before: Option<Arc<SimulatedObject>>,
    /// The object after; `None` for a deletion.
    pub(crate) after: Option<Arc<SimulatedObject>>,
    /// All objects after the write: serves `resourceVersionMatch=Exact` and continued lists.
    pub(crate) objects: Objects,
    /// When it happened, for the fault that delays events.
    pub(crate) at: Instant,
}

/// A type's objects at one version.
#[derive(Clone, Debug)]
pub(crate) struct TypeView {
    pub(crate) version: u64,
    pub(crate) objects: Objects,
}

/// The objects and the recent events of one type.
#[derive(Clone, Debug)]
pub(super) struct TypeTable {
    pub(super) objects: Objects,
    /// The newest version the "cache" of this type has heard of.
    pub(super) cache_version: u64,
    /// Former versions of the cache, each with the moment since when it had it.
    heard: VecDeque<(Instant, u64)>,
    /// The oldest version a watch may start from.
    pub(super) floor: u64,
    /// The state before the first event of `events`, and the version it is from.
    pub(super) base: (u64, Objects),
    pub(super) events: VecDeque<Arc<WriteEvent>>,
    /// False while the type's CRD is gone.
    pub(super) served: bool,
}

impl TypeTable {
    /// A type without objects, at the version a server starts with.
    pub(super) fn empty(version: u64) -> Self {
        Self {
            objects: OrdMap::new(),
            cache_version: version,
            heard: VecDeque::from([(Instant::now(), version)]),
            floor: version,
            base: (version, OrdMap::new()),
            events: VecDeque::new(),
            served: true,
        }
    }

    /// Returns the newest state.
    pub(super) fn view(&self) -> TypeView {
        TypeView {
            version: self.cache_version,
            objects: self.objects.clone(),
        }
    }

    /// Returns the state as it was at a moment, or as old as it is known without one.
    pub(super) fn view_at(&self, moment: Option<Instant>) -> TypeView {
        let is_past = |event: &Arc<WriteEvent>| moment.is_some_and(|moment| event.at <= moment);
        let before = self.events.partition_point(is_past);
        let heard = self.heard.iter();
        let heard = heard.filter(|(at, _)| moment.is_some_and(|moment| *at <= moment));
        let heard = heard.map(|(_, version)| *version).max();
        let (version, objects) = match before.checked_sub(1).and_then(|n| self.events.get(n)) {
            Some(event) => (event.version, &event.objects),
            None => (self.base.0, &self.base.1),
        };
        TypeView {
            version: heard.unwrap_or_default().max(version),
            objects: objects.clone(),
        }
    }

    /// Moves the version of the cache. Returns `true` if it is another.
    pub(super) fn hear(&mut self, version: u64) -> bool {
        if self.cache_version == version {
            return false;
        }
        self.cache_version = version;
        self.heard.push_back((Instant::now(), version));
        if self.heard.len() > HEARD {
            self.heard.pop_front();
        }
        true
    }

    /// Adds an event and drops the oldest.
    pub(super) fn push(&mut self, event: Arc<WriteEvent>, history: usize) {
        self.hear(event.version);
        self.events.push_back(event);
        while self.events.len() > history {
            if let Some(gone) = self.events.pop_front() {
                self.base = (gone.version, gone.objects.clone());
            }
            // Upstream's rule for a full ring: one below the oldest event that it has.
            self.floor = self
                .events
                .front()
                .map_or(self.cache_version, |e| e.version - 1);
        }
    }

    /// Replaces an object of the same version in all states and events.
    pub(super) fn reprint(&mut self, object: &Arc<SimulatedObject>) {
        let is_same = |known: &Arc<SimulatedObject>| {
            known.key == object.key && known.version == object.version
        };
        let replaced = |known: &Option<Arc<SimulatedObject>>| {
            let known = known.as_ref()?;
            Some(Arc::clone(if is_same(known) { object } else { known }))
        };
        let replace = |objects: &mut Objects| {
            if objects.get(&object.key).is_some_and(is_same) {
                objects.insert(Arc::clone(&object.key), Arc::clone(object));
            }
        };
        replace(&mut self.objects);
        replace(&mut self.base.1);
        for event in &mut self.events {
            let mut objects = event.objects.clone();
            replace(&mut objects);
            *event = Arc::new(WriteEvent {
                version: event.version,
                before: replaced(&event.before),
                after: replaced(&event.after),
                objects,
                at: event.at,
            });
        }
    }

    /// Drops all events.
    pub(super) fn forget(&mut self, version: u64) {
        self.events.clear();
        self.base = (version, self.objects.clone());
        self.floor = version;
    }

    /// Returns the state at a version, if the events reach back that far.
    pub(super) fn exact(&self, version: u64) -> Option<TypeView> {
        let after = self.events.partition_point(|e| e.version <= version);
        match after.checked_sub(1).and_then(|last| self.events.get(last)) {
            Some(event) => Some(TypeView {
                version,
                objects: event.objects.clone(),
            }),
            None if version >= self.base.0 => Some(TypeView {
                version,
                objects: self.base.1.clone(),
            }),
            None => None,
        }
    }
}
