//! Upstream's answer to the same read, at the version of the proxy's.
use std::sync::Arc;

use bytes::Bytes;
use watershed_protocol::{
    ManagedFields, PartialFormat, Representation, ResourceVersion, Selection, WireFormat, scan,
};

use crate::catalog::ResourceType;
use crate::scope::ReadyScope;
use crate::serve::plan::{ListPlan, ReadPlan};
use crate::upstream::{AnswerError, StateList, StatePage, UpstreamClient};

/// The answer that upstream is expected to give.
pub(super) struct ExpectedAnswer {
    pub(super) resource: Arc<ResourceType>,
    list: StateList,
    representation: Representation,
    kind: ExpectedKind,
}

enum ExpectedKind {
    /// One object. It is listed by its name: the proxy need not have the right to get.
    Get(Arc<ReadyScope>),
    List {
        /// The treatment of managed fields in memory.
        managed_fields: ManagedFields,
        /// The key after which the page begins.
        after: Option<String>,
        limit: Option<usize>,
    },
}

/// An object of a list: key, version and bytes.
type ListedObject = (String, ResourceVersion, Bytes);

/// Upstream's answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum UpstreamWord {
    /// The whole answer.
    Answer(Bytes),
    /// The object has changed since.
    Changed,
}

impl ExpectedAnswer {
    /// Expects the object of this name.
    pub(super) fn get(
        client: UpstreamClient,
        read: &ReadPlan,
        name: &str,
        representation: Representation,
        ready: Arc<ReadyScope>,
    ) -> Self {
        let selection = Selection::named(read.selection.namespace.as_deref(), name);
        let kind = ExpectedKind::Get(ready);
        Self::new(client, &read.resource, &selection, representation, kind)
    }

    /// Expects a page of a list.
    pub(super) fn list(
        client: UpstreamClient,
        read: &ReadPlan,
        list: &ListPlan,
        representation: Representation,
        ready: &ReadyScope,
    ) -> Self {
        let kind = ExpectedKind::List {
            managed_fields: ready.format.managed_fields(),
            after: list.after.clone(),
            limit: list.limit,
        };
        let selection = &read.selection;
        Self::new(client, &read.resource, selection, representation, kind)
    }

    fn new(
        client: UpstreamClient,
        resource: &Arc<ResourceType>,
        selection: &Selection,
        representation: Representation,
        kind: ExpectedKind,
    ) -> Self {
        Self {
            list: StateList::new(client, &resource.gvr, selection, resource.namespaced),
            resource: Arc::clone(resource),
            representation,
            kind,
        }
    }

    /// Asks upstream for the answer that memory gave. Applies no timeout.
    pub(super) async fn ask(&self, answer: &Bytes) -> Result<UpstreamWord, AnswerError> {
        match &self.kind {
            ExpectedKind::Get(ready) => self.ask_for_object(ready, answer).await,
            ExpectedKind::List {
                managed_fields,
                after,
                limit,
            } => {
                let (version, _) = self.objects(answer)?;
                let page = StatePage::Exact {
                    version,
                    after: after.as_deref(),
                    limit: limit.unwrap_or(0),
                };
                let listed = self.list.whole(page, self.representation).await?;
                let listed = self.as_held(listed, *managed_fields)?;
                if listed != *answer && self.objects(&listed)?.0 != version {
                    return Err(AnswerError::Unusable("another version".to_owned()));
                }
                Ok(UpstreamWord::Answer(listed))
            }
        }
    }

    async fn ask_for_object(
        &self,
        ready: &ReadyScope,
        answer: &Bytes,
    ) -> Result<UpstreamWord, AnswerError> {
        let object = ready.format.object_in(answer)?;
        let fields = &self.resource.shape.fields;
        let held = scan(self.representation.encoding, &object, fields)?;
        let page = StatePage::NotOlderThan(held.version);
        let found = self
            .list
            .objects(page, self.representation, &ready.format)
            .await?;
        Ok(match &found.objects[..] {
            [(object, scanned)] if scanned.version == held.version => {
                let format = &ready.format;
                UpstreamWord::Answer(format.get_body(&format.item_bytes(object)))
            }
            _ => UpstreamWord::Changed,
        })
    }

    /// Returns a list of upstream's with its objects as memory holds them.
    fn as_held(&self, list: Bytes, managed_fields: ManagedFields) -> Result<Bytes, AnswerError> {
        if managed_fields.are_kept() {
            return Ok(list);
        }
        let (format, _) = WireFormat::learn(self.representation.encoding, self.kind(), &list)?;
        Ok(format
            .with_managed_fields(managed_fields)
            .held_list(&list)?)
    }

    /// Returns the version of a list, and its objects by key.
    pub(super) fn objects(
        &self,
        list: &Bytes,
    ) -> Result<(ResourceVersion, Vec<ListedObject>), AnswerError> {
        let encoding = self.representation.encoding;
        let (_, page) = WireFormat::learn(encoding, self.kind(), list)?;
        let mut objects = Vec::with_capacity(page.objects.len());
        for object in page.objects {
            let scanned = scan(encoding, &object, &self.resource.shape.fields)?;
            let key = scanned.attributes.key().to_owned();
            objects.push((key, scanned.version, object));
        }
        Ok((page.version, objects))
    }

    /// Returns the kind of the objects.
    fn kind(&self) -> &str {
        if self.representation.metadata_only {
            PartialFormat::KIND
        } else {
            &self.resource.shape.kind
        }
    }

    /// Returns `true` if the answer is a list.
    pub(super) fn is_list(&self) -> bool {
        matches!(self.kind, ExpectedKind::List { .. })
    }
}
