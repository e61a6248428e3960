//! Snapshots and their pieces, beside a plain map of the same objects.
use std::collections::BTreeMap;
use std::io::Read;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use flate2::read::GzDecoder;
use proptest::prelude::*;

use super::super::leaf::{FULL_BYTES, FULL_OBJECTS};
use super::super::leaf_builder::UnmadeObject;
use super::super::object::{ObjectPeek, StoredObject};
use super::super::object_run::ObjectRun;
use super::super::packed::ItemsOrigin;
use super::super::subscribers::Interest;
use super::super::tests::{fields, layout, sized};
use super::*;
use watershed_protocol::{Deflated, FieldTable, GzipMember, ResourceVersion};

/// Namespaces whose order as keys differs from that of their names.
const NAMESPACES: [&str; 4] = ["a", "a-b", "a.c", "b"];

#[derive(Clone, Debug)]
enum Op {
    /// Namespace, name, node, and size.
    Put(usize, u16, u8, usize),
    Delete(usize, u16),
    /// Somebody reads everything, compressed or not.
    Read(bool),
    Settle,
    /// Objects that nobody has read are compressed.
    Fold,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let size = prop_oneof![3 => 0..200usize, 3 => 2_000..9_000usize, 1 => 20_000..90_000usize];
    let op = prop_oneof![
        8 => (0..4usize, 0..60u16, 0..3u8, size)
            .prop_map(|(namespace, name, node, size)| Op::Put(namespace, name, node, size)),
        3 => (0..4usize, 0..60u16).prop_map(|(namespace, name)| Op::Delete(namespace, name)),
        1 => any::<bool>().prop_map(Op::Read),
        1 => Just(Op::Settle),
        1 => Just(Op::Fold),
    ];
    proptest::collection::vec(op, 1..200)
}

/// Items that are held elsewhere.
#[derive(Debug)]
struct PlantedItems(Bytes);

impl ItemsOrigin for PlantedItems {
    fn put_items(&self, items: &mut Vec<u8>) {
        items.extend_from_slice(&self.0);
    }

    fn is_orphaned(&self) -> bool {
        false
    }
}

/// All items of the runs, read in one of two ways.
fn items(runs: impl Iterator<Item = ObjectRun>, compressed: bool) -> Bytes {
    let runs: Vec<ObjectRun> = runs.collect();
    if !compressed {
        return runs
            .iter()
            .map(ObjectRun::items)
            .collect::<Vec<_>>()
            .concat()
            .into();
    }
    let mut out = BytesMut::new();
    let mut member = GzipMember::begin(&mut out);
    for run in &runs {
        member.put(&run.deflated(), &mut out);
        member.put(&Deflated::stored(b","), &mut out);
    }
    member.end(&mut out);
    let mut all = Vec::new();
    GzDecoder::new(&out[..]).read_to_end(&mut all).unwrap();
    all.into()
}

/// The same from the objects themselves.
fn expected<'a>(objects: impl Iterator<Item = &'a Arc<StoredObject>>) -> Bytes {
    let mut out = BytesMut::new();
    objects.for_each(|object| layout().format.put_item(&object.bytes.get(), &mut out));
    out.freeze()
}

/// The same from a look at the objects.
fn looked_at(snapshot: &Snapshot) -> Bytes {
    let (mut out, mut peek) = (BytesMut::new(), ObjectPeek::default());
    let objects = snapshot.items(None);
    objects.for_each(|object| layout().format.put_item(&peek.bytes(object), &mut out));
    out.freeze()
}

/// The objects that a walk for an interest comes to.
fn walked(snapshot: &Snapshot, interest: &Interest) -> Vec<Arc<StoredObject>> {
    let runs = snapshot.clone().into_runs(interest);
    runs.flat_map(|run| run.objects().to_vec()).collect()
}

/// Drops what is held twice.
fn settle(snapshot: &mut Snapshot) {
    let mut place = String::new();
    loop {
        let settled = snapshot.settle_held_twice(&mut place, usize::MAX);
        drop(snapshot.replace_by_settled(settled));
        if place.is_empty() {
            break;
        }
    }
}

/// Folds all that can be. Returns the bytes that are not held any more.
fn fold(snapshot: &Snapshot) -> usize {
    snapshot.age_compressed();
    snapshot.fold(1, &mut usize::MAX.clone())
}

/// No object keeps more than itself and its neighbours in memory.
fn is_frugal(snapshot: &Snapshot) -> bool {
    snapshot
        .leaves
        .iter()
        .all(|leaf| leaf.wasted_objects() <= leaf.objects().len())
}

proptest! {
    #[test]
    fn a_snapshot_is_a_sorted_map(ops in ops(), from in (0..4usize, 0..60u16)) {
        let node = fields().position("spec.nodeName").unwrap();
        let mut model: BTreeMap<String, Arc<StoredObject>> = BTreeMap::new();
        let mut snapshot = Snapshot::new(ResourceVersion(1), layout(), []);
        let mut kept = Vec::new();
        for (step, op) in ops.into_iter().enumerate() {
            let version = step as u64 + 2;
            match op {
                Op::Put(namespace, name, node, size) => {
                    let key = format!("{}/p{name}", NAMESPACES[namespace]);
                    let object = Arc::new(sized(&key, version, &format!("n{node}"), size));
                    let old = model.insert(key, Arc::clone(&object));
                    let replaced = snapshot.insert(object);
                    prop_assert_eq!(replaced.map(|it| it.version), old.map(|it| it.version));
                }
                Op::Delete(namespace, name) => {
                    let key = format!("{}/p{name}", NAMESPACES[namespace]);
                    let old = model.remove(&key);
                    let replaced = snapshot.remove(&key);
                    prop_assert_eq!(replaced.map(|it| it.version), old.map(|it| it.version));
                }
                Op::Read(compressed) => {
                    kept.push((snapshot.clone(), expected(model.values())));
                    prop_assert!(items(snapshot.runs_after(None, None), compressed) == expected(model.values()));
                }
                Op::Settle => settle(&mut snapshot),
                Op::Fold => {
                    let sums = || (snapshot.held(), snapshot.folded(), snapshot.compressed_size());
                    let (objects, folded, compressed) = sums();
                    let freed = fold(&snapshot);
                    let (objects_after, folded_after, compressed_after) = sums();
                    prop_assert_eq!(objects - objects_after, folded_after - folded);
                    let before = objects + compressed;
                    prop_assert_eq!(objects_after + compressed_after, before - freed);
                    // A look unfolds nothing.
                    prop_assert!(looked_at(&snapshot) == expected(model.values()));
                    prop_assert_eq!(sums(), (objects_after, folded_after, compressed_after));
                }
            }
            prop_assert!(is_frugal(&snapshot));
        }
        // As a whole, and after a settling that nobody notices.
        for _ in 0..2 {
            prop_assert_eq!(snapshot.len(), model.len());
            prop_assert_eq!(snapshot.size(), model.values().map(|object| object.size()).sum::<usize>());
            let versions = |object: &Arc<StoredObject>| (object.key().to_owned(), object.version);
            prop_assert!(snapshot.items(None).map(versions).eq(model.values().map(versions)));
            for (key, object) in &model {
                let held = snapshot.get(key).unwrap();
                prop_assert_eq!(&held.bytes, &object.bytes);
            }
            prop_assert!(snapshot.get("a/none").is_none());
            // By namespace, from a key on.
            let (namespace, name) = (NAMESPACES[from.0], format!("p{}", from.1));
            let of = |namespace: Option<&str>, after: Option<&str>| {
                let prefix = namespace.map(|namespace| format!("{namespace}/")).unwrap_or_default();
                let after = after.map(|after| format!("{prefix}{after}"));
                let within = |key: &&String| {
                    key.starts_with(&prefix) && after.as_ref().is_none_or(|after| *key > after)
                };
                model.keys().filter(within).map(|key| Arc::clone(&model[key])).collect::<Vec<_>>()
            };
            let everywhere = format!("{namespace}/{name}");
            for (namespace, after) in [
                (None, None),
                (None, Some(everywhere.as_str())),
                (Some(namespace), None),
                (Some(namespace), Some(name.as_str())),
                (Some(namespace), Some("zz/z")),
                (Some("none"), None),
            ] {
                let wanted = of(namespace, after);
                let found = snapshot.items_after(namespace, after).map(versions);
                prop_assert!(found.eq(wanted.iter().map(versions)), "{namespace:?} {after:?}");
                for compressed in [false, true] {
                    let runs = snapshot.runs_after(namespace, after);
                    prop_assert!(items(runs, compressed) == expected(wanted.iter()), "{namespace:?} {after:?}");
                }
                let runs: Vec<_> = snapshot.runs_after(namespace, after).collect();
                prop_assert!(runs.iter().all(|run| !run.is_empty() && run.items_len() == run.items().len()));
                if after.is_none() {
                    let interest = namespace
                        .map_or(Interest::All, |namespace| Interest::Namespace(namespace.into()));
                    let owned = snapshot.clone().into_runs(&interest);
                    prop_assert!(owned.map(|run| run.items()).eq(runs.iter().map(ObjectRun::items)));
                }
            }
            // By field.
            for value in ["n0", "n1", "n", "n11"] {
                let wanted = model.values().filter(|object| object.attributes.field(node) == value);
                let found = walked(&snapshot, &Interest::Field(node, value.into()));
                prop_assert!(found.iter().map(versions).eq(wanted.map(versions)), "{value}");
            }
            let found = walked(&snapshot, &Interest::Field(node + 1, "n1".into()));
            prop_assert_eq!(found.len(), model.len());
            // By name, beside others, and by key.
            let is_named = |object: &&Arc<StoredObject>| object.attributes.field(FieldTable::NAME) == name;
            let found = walked(&snapshot, &Interest::Field(FieldTable::NAME, name.as_str().into()));
            prop_assert!(found.is_sorted_by(|one, next| one.key() < next.key()));
            let named = found.iter().filter(is_named).map(versions);
            prop_assert!(named.eq(model.values().filter(is_named).map(versions)), "{name}");
            let found = walked(&snapshot, &Interest::Key(everywhere.as_str().into()));
            prop_assert!(found.iter().map(versions).eq(model.get(&everywhere).map(versions)));
            settle(&mut snapshot);
        }
        // Whoever holds an older one sees nothing of what came later.
        for (older, wanted) in &kept {
            prop_assert!(items(older.runs_after(None, None), false) == wanted);
        }
        // The same objects, listed at once, in any order and partly twice.
        let copy = |object: &Arc<StoredObject>| StoredObject {
            bytes: object.bytes.clone(), version: object.version, attributes: object.attributes.clone(),
        };
        let stale = model.keys().map(|key| sized(key, 1, "n9", 10));
        let listed = stale.chain(model.values().rev().map(copy)).collect::<Vec<_>>();
        let listed = Snapshot::new(ResourceVersion(1), layout(), listed);
        prop_assert_eq!((listed.len(), listed.size()), (snapshot.len(), snapshot.size()));
        prop_assert!(items(listed.runs_after(None, None), true) == expected(model.values()));
        prop_assert_eq!(walked(&listed, &Interest::Field(node, "n9".into())).len(), 0);
    }
}

/// Keys as they may be listed: some of them in order, the rest as it comes, and some twice.
fn listings() -> impl Strategy<Value = Vec<(String, u8, usize)>> {
    let size = prop_oneof![6 => 0..200usize, 3 => 2_000..9_000usize, 1 => 20_000..70_000usize];
    let object = (0..4usize, 0..300u16, 0..3u8, size).prop_map(|(namespace, name, node, size)| {
        (format!("{}/p{name:03}", NAMESPACES[namespace]), node, size)
    });
    (proptest::collection::vec(object, 0..150), 0..150usize).prop_map(|(mut listing, sorted)| {
        let sorted = sorted.min(listing.len());
        listing[..sorted].sort();
        listing
    })
}

proptest! {
    #[test]
    fn a_list_in_any_order_makes_the_same_snapshot(listing in listings(), in_order in any::<bool>()) {
        let mut listing = listing;
        if in_order {
            listing.sort();
            listing.dedup_by(|next, one| next.0 == one.0);
        }
        let mut model = BTreeMap::new();
        let mut builder = SnapshotBuilder::new(layout());
        for (version, (key, node, size)) in listing.iter().enumerate() {
            let object = || sized(key, version as u64 + 1, &format!("n{node}"), *size);
            builder.put(object());
            model.insert(key.clone(), Arc::new(object()));
        }
        let snapshot = builder.finish(ResourceVersion(999));
        prop_assert_eq!(snapshot.version(), ResourceVersion(999));
        prop_assert_eq!(snapshot.len(), model.len());
        prop_assert_eq!(snapshot.size(), model.values().map(|object| object.size()).sum::<usize>());
        let known = |object: &Arc<StoredObject>| (object.version, object.attributes.clone(), object.bytes.clone());
        prop_assert!(snapshot.items(None).map(known).eq(model.values().map(known)));
        prop_assert!(model.iter().all(|(key, object)| known(snapshot.get(key).unwrap()) == known(object)));
        prop_assert!(items(snapshot.runs_after(None, None), false) == expected(model.values()));
        let node = fields().position("spec.nodeName").unwrap();
        for value in ["n0", "n1", "n2"] {
            let wanted = model.values().filter(|object| object.attributes.field(node) == value);
            let found = walked(&snapshot, &Interest::Field(node, value.into()));
            prop_assert!(found.iter().map(known).eq(wanted.map(known)), "{value}");
        }
        // However they came, the objects lie side by side, and nothing else of them is held.
        prop_assert!(snapshot.leaves.iter().all(|leaf| leaf.is_settled() && leaf.wasted_objects() == 0));
        if in_order {
            let runs: Vec<ObjectRun> = snapshot.runs_after(None, None).collect();
            prop_assert!(runs.iter().all(|run| run.items_len() <= FULL_BYTES || run.len() == 1));
            prop_assert!(runs.iter().all(|run| run.len() <= FULL_OBJECTS));
            let room = |two: &[ObjectRun]| {
                let (one, next) = (&two[0], &two[1].objects()[0]);
                one.len() < FULL_OBJECTS && one.items_len() + layout().format.item_len(next.bytes.len()) <= FULL_BYTES
            };
            prop_assert!(!runs.windows(2).any(room), "a leaf that has room for the next object");
        }
    }
}

proptest! {
    #[test]
    fn objects_in_another_form_are_found_as_before(
        listing in listings(), at_a_time in 1..100usize, is_read: bool, compressed: bool
    ) {
        let objects = listing.iter().map(|(key, node, size)| sized(key, 1, &format!("n{node}"), *size));
        let snapshot = Snapshot::new(ResourceVersion(9), layout(), objects);
        let longer = |object: &Arc<StoredObject>| {
            let node = object.attributes.field(fields().indexed().unwrap());
            sized(object.key(), 1, node, object.bytes.len() + 100)
        };
        let mut builder = SnapshotBuilder::of_same_objects(&layout().format, &snapshot);
        let all: Vec<_> = snapshot.items(None).cloned().collect();
        for part in all.chunks(at_a_time) {
            let objects = part.iter().map(|object| {
                Ok::<_, ()>(UnmadeObject { source: Arc::clone(object), length: longer(object).bytes.len() })
            });
            let origin = |sources: Box<[Arc<StoredObject>]>| {
                let objects: Vec<_> = sources.iter().map(|source| longer(source).bytes.get()).collect();
                let items = layout().format.join(objects.iter()).bytes;
                Box::new(PlantedItems(items)) as Box<dyn ItemsOrigin>
            };
            let run = builder.run_packer().pack_unmade(objects, origin).unwrap();
            prop_assert_eq!(run.count(), part.len());
            prop_assert_eq!(run.bytes(), part.iter().map(|object| longer(object).bytes.len()).sum::<usize>());
            builder.put_run(run);
        }
        let mut other = builder.finish(ResourceVersion(9));
        let mut model: BTreeMap<_, _> = all.iter().map(|object| (object.key(), Arc::new(longer(object)))).collect();
        prop_assert_eq!(other.len(), model.len());
        prop_assert_eq!(other.size(), model.values().map(|object| object.size()).sum::<usize>());
        let (size, unmade) = (other.held(), other.folded());
        let mut peek = ObjectPeek::default();
        prop_assert!(other.items(None).all(|object| peek.bytes(object) == model[object.key()].bytes.get()));
        prop_assert_eq!(other.folded(), unmade, "a peek holds nothing");
        if is_read {
            prop_assert!(items(other.runs_after(None, None), compressed) == expected(model.values()));
            prop_assert_eq!(other.held() + other.folded(), size + unmade);
            prop_assert!(compressed || other.folded() == 0);
        }
        prop_assert!(other.leaves.iter().all(|leaf| leaf.is_settled() && leaf.wasted_objects() == 0));
        let runs: Vec<ObjectRun> = other.runs_after(None, None).collect();
        prop_assert!(runs.iter().all(|run| run.items_len() <= FULL_BYTES || run.len() == 1));
        let position = fields().indexed().unwrap();
        let on_node = |snapshot: &Snapshot, node: &str| {
            let found = walked(snapshot, &Interest::Field(position, node.into()));
            found.iter().map(|object| object.key().to_owned()).collect::<Vec<_>>()
        };
        let before = ["n0", "n1", "n2"].map(|node| on_node(&snapshot, node));
        prop_assert_eq!(&["n0", "n1", "n2"].map(|node| on_node(&other, node)), &before);
        // What changes in one form is not changed in the other.
        for object in all.iter().step_by(2) {
            let changed = Arc::new(sized(object.key(), 2, "n9", 10));
            other.insert(Arc::clone(&changed));
            model.insert(object.key(), changed);
        }
        prop_assert_eq!(on_node(&other, "n9").len(), all.len().div_ceil(2));
        prop_assert!(items(other.runs_after(None, None), compressed) == expected(model.values()));
        prop_assert!(compressed || other.folded() == 0);
        prop_assert_eq!(&["n0", "n1", "n2"].map(|node| on_node(&snapshot, node)), &before);
    }
}

#[test]
fn a_run_ends_with_the_first_failure() {
    let object = UnmadeObject {
        source: Arc::new(sized("a/p1", 1, "n1", 10)),
        length: 10,
    };
    let objects = [Ok(object), Err("no"), Err("never")];
    let packer = SnapshotBuilder::new(layout()).run_packer();
    let origin = |_: Box<[Arc<StoredObject>]>| -> Box<dyn ItemsOrigin> { unreachable!() };
    assert_eq!(packer.pack_unmade(objects, origin).unwrap_err(), "no");
}

/// A watch that begins with one node's or one name's objects does not look at all others.
#[test]
fn a_walk_for_few_objects_comes_to_few_others() {
    let node = fields().position("spec.nodeName").unwrap();
    for count in [2_000, 8_000] {
        let object = |number: usize| {
            let namespace = ["a", "b", "c", "d"][number * 4 / count];
            let node = if number % (count / 4) < 10 {
                "n1"
            } else {
                "n2"
            };
            sized(&format!("{namespace}/p{number:05}"), 1, node, 10)
        };
        let snapshot = Snapshot::new(ResourceVersion(1), layout(), (0..count).map(object));
        for (interest, most) in [
            (Interest::Field(node, "n1".into()), 40),
            (Interest::Field(node, "n".into()), 0),
            (Interest::Key("a/p00005".into()), 1),
            (Interest::Key("a/p".into()), 0),
            // A leaf or two in each namespace.
            (
                Interest::Field(FieldTable::NAME, "p00777".into()),
                2 * 4 * FULL_OBJECTS,
            ),
        ] {
            let visited = walked(&snapshot, &interest).len();
            assert!(visited <= most, "{visited} of {count}: {interest:?}");
        }
    }
}

#[test]
fn a_snapshot_holds_nothing_of_what_it_was_read_from() {
    let format = layout().format;
    let keys: Vec<String> = (0..40).map(|n| format!("ns/p{n:02}")).collect();
    for in_order in [true, false] {
        let mut builder = SnapshotBuilder::new(layout());
        for (index, key) in keys.iter().enumerate() {
            // One small object of a large chunk.
            let key = if in_order {
                key
            } else {
                &keys[index * 7 % keys.len()]
            };
            let object = sized(key, 1, "n1", 100);
            let whole = format.get_body(&object.bytes.get());
            let chunk =
                Bytes::from([&whole[..whole.len() - 1], " ".repeat(100_000).as_bytes()].concat());
            builder.put(StoredObject {
                bytes: format.item_bytes(&chunk.slice(..whole.len() - 1)).into(),
                ..object
            });
            assert!(chunk.is_unique(), "{in_order} {index}");
        }
        assert_eq!(builder.finish(ResourceVersion(1)).len(), keys.len());
    }
}

#[test]
fn compressed_forms_stay_until_their_objects_change() {
    let objects = (0..100).map(|n| sized(&format!("ns/p{n:03}"), 1, "n1", 4_000));
    let mut snapshot = Snapshot::new(ResourceVersion(1), layout(), objects);
    let runs = |snapshot: &Snapshot| snapshot.runs_after(None, None).collect::<Vec<_>>();
    assert!(runs(&snapshot).len() > 10);
    assert!(runs(&snapshot).iter().all(|run| !run.is_deflated()));
    for run in runs(&snapshot) {
        run.deflated();
    }
    assert!(runs(&snapshot).iter().all(ObjectRun::is_deflated));
    let before = snapshot.compressed_size();
    assert!(before > 0);
    snapshot.insert(Arc::new(sized("ns/p050", 2, "n1", 4_000)));
    assert_eq!(
        runs(&snapshot)
            .iter()
            .filter(|run| !run.is_deflated())
            .count(),
        1
    );
    assert!(snapshot.compressed_size() < before);
    settle(&mut snapshot);
    assert_eq!(
        runs(&snapshot)
            .iter()
            .filter(|run| !run.is_deflated())
            .count(),
        1
    );
}

#[test]
fn replaced_leaves_leave_the_memory() {
    let key = |n: u64| format!("ns/p{n:05}");
    let listed = (0..5_000).map(|n| sized(&key(n), 1, "n1", 10));
    let mut snapshot = Snapshot::new(ResourceVersion(1), layout(), listed);
    let before: Vec<_> = snapshot.leaves.iter().map(Arc::downgrade).collect();
    assert!(before.len() > 50);
    for n in 0..5_000 {
        snapshot.insert(Arc::new(sized(&key(n), 2, "n1", 10)));
    }
    let left = before.iter().filter(|leaf| leaf.upgrade().is_some());
    assert_eq!(left.count(), 0);
}

#[test]
fn a_sample_of_many_objects_is_small_and_stands_for_all() {
    let key = |n: u32| format!("{}/pod-{n:05}", NAMESPACES[n as usize % 4]);
    let node = |n: u32| if n.is_multiple_of(50) { "n1" } else { "n2" };
    let objects = (0..40_000).map(|n| sized(&key(n), u64::from(n), node(n), 100));
    let mut objects: Vec<_> = objects.collect();
    objects.sort_by(|a, b| a.key().cmp(b.key()));
    let snapshot = Snapshot::new(ResourceVersion(40_000), layout(), objects);
    let position = fields().indexed().unwrap();
    let count = |interest: &Interest, is_counted: &dyn Fn(&StoredObject) -> bool| {
        let sample = snapshot.sample(interest);
        let looked_at: usize = sample.runs.iter().map(ObjectRun::len).sum();
        assert!(looked_at <= 4096, "{looked_at}");
        let all = sample.runs.iter().flat_map(ObjectRun::objects);
        sample.scaled(all.filter(|object| is_counted(object)).count())
    };
    assert_eq!(count(&Interest::All, &|_| true), 40_000);
    let namespace = Interest::Namespace("b".into());
    let estimate = count(&namespace, &|object| object.attributes.namespace() == "b");
    assert!((9_000..11_000).contains(&estimate), "{estimate}");
    // The index leads to few objects, which are counted.
    let indexed = Interest::Field(position, "n1".into());
    let is_there = |object: &StoredObject| object.attributes.field(position) == "n1";
    assert_eq!(count(&indexed, &is_there), 800);
    let name = Interest::Key(key(7).into());
    assert_eq!(count(&name, &|_| true), 1);
    assert_eq!(count(&Interest::Key("a/none".into()), &|_| true), 0);
}
