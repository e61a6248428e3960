//! A client's view of a scope's events.
use std::sync::Arc;

use bytes::Bytes;
use jiff::Timestamp;
use parking_lot::Mutex;

use crate::store::{Interest, Snapshot, StoredObject, WindowEvent};
use crate::work::{PRINTED_OBJECT, REDUCED_OBJECT, work_on};
use watershed_protocol::{
    BookmarkFormat, EventKind, FieldTable, ItemBytes, LabelSelector, Malformed, ObjectAttributes,
    PartialFormat, ResourceVersion, RowTable, Selectors, ShardSelector, TableForm, TableRequest,
    WireFormat, object_key,
};

/// Requirements of a selector that take as long as a look at the object.
const REQUIREMENTS_OF_UNIT: usize = 8;

/// Namespace and selectors of a read. An object must match all of them.
#[derive(Clone, Debug, Default)]
pub struct ViewFilter {
    namespace: Option<Box<str>>,
    /// Most reads have none.
    selectors: Option<Box<ViewSelectors>>,
}

#[derive(Clone, Debug, Default)]
struct ViewSelectors {
    labels: Option<LabelSelector>,
    /// Requirements by the field's position in the type's table.
    fields: Box<[FieldCondition]>,
    shard: Option<ShardSelector>,
}

#[derive(Clone, Debug)]
struct FieldCondition {
    position: usize,
    value: Box<str>,
    equal: bool,
}

/// A field selector names a field that is not known for the type.
#[derive(Debug, thiserror::Error)]
#[error("field {0:?} is not known for this type")]
pub struct UnknownField(pub String);

impl ViewFilter {
    /// Resolves the selectors against the type's fields.
    pub fn new(
        namespace: Option<String>,
        given: &Selectors,
        table: &FieldTable,
    ) -> Result<Self, UnknownField> {
        let fields = given.fields.requirements().iter().map(|requirement| {
            Ok(FieldCondition {
                position: table
                    .position(&requirement.field)
                    .ok_or_else(|| UnknownField(requirement.field.clone()))?,
                value: requirement.value.as_str().into(),
                equal: requirement.operator == watershed_protocol::FieldOperator::Equals,
            })
        });
        let fields = fields.collect::<Result<Box<[_]>, _>>()?;
        let has_labels = !given.labels.is_everything();
        let selectors = ViewSelectors {
            labels: has_labels.then(|| given.labels.clone()),
            fields,
            shard: None,
        };
        let selectors = selectors.is_more_than_shard().then(|| Box::new(selectors));
        Ok(Self {
            namespace: namespace.map(Into::into),
            selectors,
        })
    }

    /// Narrows the view to a shard.
    #[must_use]
    pub fn within(mut self, shard: ShardSelector) -> Self {
        self.selectors.get_or_insert_default().shard = Some(shard);
        self
    }

    /// Returns the view of all shards.
    #[must_use]
    pub fn of_all_shards(&self) -> Self {
        let mut all = self.clone();
        all.selectors = all
            .selectors
            .filter(|selectors| selectors.is_more_than_shard());
        if let Some(selectors) = &mut all.selectors {
            selectors.shard = None;
        }
        all
    }

    /// Returns the shard asked for.
    pub fn shard(&self) -> Option<&ShardSelector> {
        self.selectors.as_ref()?.shard.as_ref()
    }

    /// Returns the namespace asked for, `None` for all.
    pub fn namespace(&self) -> Option<&str> {
        self.namespace.as_deref()
    }

    /// Returns `true` if nothing but the namespace narrows the view.
    pub fn is_plain(&self) -> bool {
        self.selectors.is_none()
    }

    /// Returns `true` if an object is in the view.
    pub fn matches(&self, object: &ObjectAttributes) -> bool {
        self.namespace
            .as_deref()
            .is_none_or(|namespace| namespace == object.namespace())
            && self
                .selectors
                .as_ref()
                .is_none_or(|selectors| selectors.match_to(object))
    }

    /// Returns the work of finding out if an object is in the view. Each of a selector's requirements
    /// is looked up.
    pub fn work(&self) -> usize {
        let selectors = self.selectors.as_deref();
        1 + selectors.map_or(0, ViewSelectors::len) / REQUIREMENTS_OF_UNIT
    }

    /// Returns the value that the field at this position must have, if it must have one.
    pub fn equal_to(&self, position: usize) -> Option<&str> {
        let fields = &self.selectors.as_ref()?.fields;
        let field = fields
            .iter()
            .find(|field| field.equal && field.position == position)?;
        Some(&field.value)
    }

    /// Returns the narrowest interest that covers every event of the view.
    pub fn interest(&self, table: &FieldTable) -> Interest {
        let equal = |position: Option<usize>| Some((position?, self.equal_to(position?)?));
        let name = equal(table.position("metadata.name"));
        if let (Some(namespace), Some((_, name))) = (&self.namespace, name) {
            return Interest::Key(object_key(Some(namespace), name).into());
        }
        if let Some((position, value)) = equal(table.indexed()).or(name) {
            return Interest::Field(position, value.into());
        }
        match &self.namespace {
            Some(namespace) => Interest::Namespace(namespace.clone()),
            None => Interest::All,
        }
    }
}

impl ViewSelectors {
    /// Returns the number of requirements of labels and fields.
    fn len(&self) -> usize {
        let labels = self.labels.as_ref();
        labels.map_or(0, |labels| labels.requirements().len()) + self.fields.len()
    }

    fn is_more_than_shard(&self) -> bool {
        self.labels.is_some() || !self.fields.is_empty()
    }

    fn match_to(&self, object: &ObjectAttributes) -> bool {
        self.fields
            .iter()
            .all(|field| (object.field(field.position) == &*field.value) == field.equal)
            && self
                .labels
                .as_ref()
                .is_none_or(|labels| labels.matches(|key| object.label(key)))
            && self
                .shard
                .as_ref()
                .is_none_or(|shard| shard.matches(object))
    }
}

/// Converts the scope's events to the client's.
#[derive(Debug)]
pub struct ClientView {
    /// The objects the client asked for.
    pub filter: ViewFilter,
    /// The conversion of the objects, if the client does not want them as they are.
    pub conversion: Option<Box<Conversion>>,
}

/// A conversion of objects to what the client wants of them.
#[derive(Debug)]
pub enum Conversion {
    /// To their metadata.
    Metadata(PartialView),
    /// To Tables of one row.
    Table(TableView),
}

/// A view of objects as Tables.
#[derive(Debug)]
pub struct TableView {
    /// The form of the Tables.
    pub form: Arc<TableForm>,
    /// The Tables that the client asked for.
    pub request: TableRequest,
    /// Records an object that cannot be printed.
    pub unprintable: Arc<IrreducibleObject>,
    /// Nothing was sent. The first frame has the column definitions.
    pub is_first: bool,
}

/// A view of objects that are reduced to their metadata.
#[derive(Debug)]
pub struct PartialView {
    /// The form of the reduced objects.
    pub format: PartialFormat,
    /// Records an object that cannot be reduced.
    pub irreducible: Arc<IrreducibleObject>,
}

/// The key of the last object of a scope that could not be reduced to its metadata, or printed as a row.
///
/// A watch that comes to it ends, and would end there again if it began anew, or at the object's next
/// change. So such watches are forwarded while the scope has the object, and it cannot be shown.
#[derive(Debug, Default)]
pub struct IrreducibleObject(Mutex<Option<Box<str>>>);

impl IrreducibleObject {
    /// Records an object.
    pub fn record(&self, object: &StoredObject) {
        *self.0.lock() = Some(object.key().into());
    }

    /// Forgets the object: the scope was listed again, or it can be shown.
    pub fn clear(&self) {
        *self.0.lock() = None;
    }

    /// Returns the object as it is in `snapshot`.
    fn find<'a>(&self, snapshot: &'a Snapshot) -> Option<&'a Arc<StoredObject>> {
        snapshot.get(self.0.lock().as_deref()?)
    }
}

/// An event as the client sees it.
#[derive(Debug)]
pub enum ClientFrame {
    /// Upstream's frame, which all such watches share.
    Shared,
    /// A frame made for this client.
    Own(Bytes),
}

impl ClientView {
    /// Returns `true` if it shows all objects of a namespace, or of all, as they are.
    pub fn is_plain(&self) -> bool {
        self.conversion.is_none() && self.filter.is_plain()
    }

    /// Returns the form in which the client gets a Status.
    pub fn format<'a>(&'a self, whole: &'a WireFormat) -> &'a WireFormat {
        match self.conversion.as_deref() {
            Some(Conversion::Metadata(partial)) => partial.format.format(),
            Some(Conversion::Table(_)) | None => whole,
        }
    }

    /// Returns the record of objects that are not shown in this view.
    pub(super) fn irreducible(&self) -> Option<&IrreducibleObject> {
        Some(match self.conversion.as_deref()? {
            Conversion::Metadata(partial) => &partial.irreducible,
            Conversion::Table(table) => &table.unprintable,
        })
    }

    /// Returns `true` if an object of `snapshot` is known that belongs to this view, and that it cannot show.
    /// Forgets the object if it can.
    pub fn cannot_show_all(&self, snapshot: &Snapshot) -> bool {
        let Some(irreducible) = self.irreducible() else {
            return false;
        };
        let object = irreducible.find(snapshot);
        let Some(object) = object.filter(|object| self.filter.matches(&object.attributes)) else {
            return false;
        };
        let is_shown = self.initial(object).is_none_or(|frame| frame.is_ok());
        if is_shown {
            irreducible.clear();
        }
        !is_shown
    }

    /// Returns the work of framing an object of the view.
    pub fn object_work(&self, object: &StoredObject) -> usize {
        let least = match self.conversion.as_deref() {
            None => return 0,
            Some(Conversion::Metadata(_)) => REDUCED_OBJECT,
            Some(Conversion::Table(_)) => PRINTED_OBJECT,
        };
        work_on(object.bytes.len(), least)
    }

    /// Returns the work of looking at an event, of which most are another view's.
    pub fn event_work(&self, event: &WindowEvent) -> usize {
        match self.conversion.as_deref() {
            Some(Conversion::Table(_)) => work_on(event.object.bytes.len(), PRINTED_OBJECT),
            Some(Conversion::Metadata(_)) | None => self.filter.work(),
        }
    }

    /// Notes that a frame was sent.
    pub fn note_sent(&mut self) {
        if let Some(Conversion::Table(table)) = self.conversion.as_deref_mut() {
            table.is_first = false;
        }
    }

    /// Returns the frame of a bookmark, if upstream's form of it is known.
    pub fn bookmark(&self, format: &BookmarkFormat, version: ResourceVersion) -> Option<Bytes> {
        match self.conversion.as_deref() {
            None => Some(format.plain(version)),
            Some(Conversion::Metadata(partial)) => {
                Some(format.partial(&partial.format)?.plain(version))
            }
            Some(Conversion::Table(table)) => table.bookmark(format, version, false),
        }
    }

    /// Returns the frame of the bookmark that ends the initial events, if upstream's form of it is
    /// known.
    pub fn end_mark(&self, format: &BookmarkFormat, version: ResourceVersion) -> Option<Bytes> {
        match self.conversion.as_deref() {
            None => format.initial_events_end(version),
            Some(Conversion::Metadata(partial)) => {
                format.partial(&partial.format)?.initial_events_end(version)
            }
            Some(Conversion::Table(table)) => table.bookmark(format, version, true),
        }
    }

    /// Returns the frame of an object of the initial state. `None` if it is the object's own.
    pub fn initial(&self, object: &StoredObject) -> Option<Result<Bytes, Malformed>> {
        let conversion = self.conversion.as_deref()?;
        Some(conversion.framed(EventKind::Added, &object.bytes.get(), object.version))
    }

    fn framed(
        &self,
        kind: EventKind,
        object: &ItemBytes,
        version: ResourceVersion,
        format: &WireFormat,
    ) -> Result<Bytes, Malformed> {
        match self.conversion.as_deref() {
            None => Ok(format.event(kind, object)),
            Some(conversion) => conversion.framed(kind, object, version),
        }
    }

    /// Returns the client's frame for `event`, or `None` if the event does not concern its view.
    ///
    /// Source of the transitions: `apiserver/pkg/storage/cacher/cache_watcher.go`
    /// (convertToWatchEvent).
    pub fn frame(
        &self,
        event: &WindowEvent,
        format: &WireFormat,
    ) -> Result<Option<ClientFrame>, Malformed> {
        let before = event.previous_attributes();
        let matched = before.is_some_and(|before| self.filter.matches(before));
        let matches =
            event.kind != EventKind::Deleted && self.filter.matches(&event.object.attributes);
        let kind = match (matched, matches) {
            (false, false) => return Ok(None),
            (false, true) => EventKind::Added,
            (true, true) => EventKind::Modified,
            (true, false) => EventKind::Deleted,
        };
        if kind == event.kind && self.conversion.is_none() {
            return Ok(Some(ClientFrame::Shared));
        }
        let has_left = kind == EventKind::Deleted && event.kind != EventKind::Deleted;
        let previous = if has_left { event.previous() } else { None };
        Ok(Some(ClientFrame::Own(match previous {
            // Left the view by an update: the last state that was in it, at the version of the
            // update.
            Some(before) => {
                let last_seen = format.with_version(&before.bytes.get(), event.version)?;
                self.framed(kind, &last_seen, event.version, format)?
            }
            None => self.framed(kind, &event.object.bytes.get(), event.version, format)?,
        })))
    }
}

impl Conversion {
    fn framed(
        &self,
        kind: EventKind,
        object: &ItemBytes,
        version: ResourceVersion,
    ) -> Result<Bytes, Malformed> {
        match self {
            Self::Metadata(partial) => partial.format.event(kind, object),
            Self::Table(table) => table.form.event(kind, object, &table.at(version)),
        }
    }
}

impl TableView {
    /// Returns the frame of a bookmark at a version, or of the one that ends the initial events.
    fn bookmark(
        &self,
        format: &BookmarkFormat,
        version: ResourceVersion,
        ends_initial_events: bool,
    ) -> Option<Bytes> {
        let table = self.at(version);
        self.form.bookmark(format, ends_initial_events, &table)
    }

    /// Returns the Table of an event at a version.
    fn at(&self, version: ResourceVersion) -> RowTable {
        RowTable {
            request: self.request,
            version,
            has_columns: self.is_first,
            now: Timestamp::now(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_selector_is_more_work_for_each_object() {
        let view = |requirements: usize| {
            let labels: Vec<_> = (0..requirements).map(|n| format!("!label-{n}")).collect();
            let selectors = Selectors {
                labels: LabelSelector::parse(&labels.join(",")).unwrap(),
                ..Selectors::default()
            };
            ViewFilter::new(None, &selectors, &FieldTable::metadata_only(true)).unwrap()
        };
        assert_eq!([0, 1, 7].map(|count| view(count).work()), [1, 1, 1]);
        assert_eq!(view(256).work(), 33);
    }
}
