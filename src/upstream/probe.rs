//! Small requests that tell how fresh a cached state is. They ask for metadata only.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt as _;

use super::read::{ReadAnswer, ReadForm, read, read_compressed, whole};
use super::stream::{StreamError, WatchStream};
use super::{AnswerCompression, AnswerError, ConnectionClass, UpstreamBody, UpstreamClient};
use watershed_protocol::{
    Encoding, EventKind, FieldTable, GroupVersionResource, GzipReader, ListPage, Malformed,
    PartialFormat, ResourceVersion, Selection, VersionList, VersionListReader, WireFormat,
    read_bookmark, read_identity, scan,
};

/// Protobuf is preferred: it is smaller and cheaper to encode.
pub(super) const METADATA_LIST: ReadForm = ReadForm::List(
    "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,\
     application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
);
const METADATA_WATCH: ReadForm = ReadForm::Watch(
    "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,\
     application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1",
);
/// Query of a watch that begins with the state, no older than the request.
const STATE: &str = "watch=1&allowWatchBookmarks=true&sendInitialEvents=true\
                     &resourceVersionMatch=NotOlderThan&timeoutSeconds=10";
/// Metadata may be large: annotations of 256 KiB, and managed fields.
const MAX_BYTES: usize = 256 << 20;

/// Asks about the objects of one type. Metadata of custom types is available in protobuf too.
#[derive(Clone, Debug)]
pub struct Probe {
    client: UpstreamClient,
    path: String,
    /// The selectors, each with an ampersand before it.
    selectors: String,
    /// The URL of a list of nothing.
    empty_list: String,
    fields: FieldTable,
}

/// Keys and versions of objects.
pub type ObjectVersions = Vec<(String, ResourceVersion)>;

/// The answer to a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeList {
    /// The version of the list, which is no older than the request.
    pub version: ResourceVersion,
    /// The first objects, at most as many as the limit.
    pub objects: ObjectVersions,
    /// `true` if these are all objects.
    pub is_complete: bool,
}

/// The keys and versions of all objects, with what upstream wrote for them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MeasuredVersions {
    /// The keys and versions.
    pub list: VersionList,
    /// Length of what upstream wrote for them in bytes, uncompressed.
    pub bytes: usize,
}

/// An event of a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeEvent {
    /// An object changed at this version.
    Event(ResourceVersion),
    /// All events up to this version were sent.
    Bookmark(ResourceVersion),
}

impl From<Malformed> for AnswerError {
    fn from(error: Malformed) -> Self {
        Self::Unusable(error.to_string())
    }
}

impl From<StreamError> for AnswerError {
    fn from(error: StreamError) -> Self {
        Self::Unusable(error.to_string())
    }
}

impl Probe {
    /// Creates a probe of the selected objects of a type.
    pub fn new(
        client: UpstreamClient,
        gvr: &GroupVersionResource,
        selection: &Selection,
        namespaced: bool,
    ) -> Self {
        let (path, selectors) = (selection.path(gvr), selection.parameters());
        Self {
            client,
            path,
            selectors,
            // The limit is for servers that ignore selectors.
            empty_list: selection.url_of_nothing(gvr, namespaced, "limit=1"),
            fields: FieldTable::metadata_only(namespaced),
        }
    }

    /// Returns upstream's version of the type, no older than this call. Applies no timeout.
    ///
    /// A list that selects nothing shows it. For a list of one object, upstream would look at all
    /// of them.
    /// Source: `apiserver/pkg/storage/cacher/store/store_btree.go` (OrderedListPrefix).
    pub async fn version(&self) -> Result<ResourceVersion, AnswerError> {
        let (_, _, page) = self.page_of(&self.empty_list).await?;
        Ok(page.version)
    }

    /// Lists at most `limit` objects, no older than this call. Applies no timeout.
    pub async fn list(&self, limit: usize) -> Result<ProbeList, AnswerError> {
        self.list_with(&format!("limit={limit}")).await
    }

    /// Lists at most `limit` objects as they were at a version. Applies no timeout.
    pub async fn list_at(
        &self,
        version: ResourceVersion,
        limit: usize,
    ) -> Result<ProbeList, AnswerError> {
        let query = format!("limit={limit}&resourceVersion={version}&resourceVersionMatch=Exact");
        self.list_with(&query).await
    }

    async fn list_with(&self, query: &str) -> Result<ProbeList, AnswerError> {
        let (encoding, _, page) = self.page(query).await?;
        Ok(ProbeList {
            version: page.version,
            objects: self.versions_of(encoding, &page)?,
            is_complete: page.continue_token.is_none(),
        })
    }

    /// Lists the keys and versions of all objects, no older than this call. Reads no more than
    /// `limit` objects of a longer list, which is [`AnswerError::TooManyObjects`]. Applies no timeout.
    ///
    /// No limit is sent: with one, older releases read from etcd, not from their watch cache.
    pub async fn versions(&self, limit: usize) -> Result<MeasuredVersions, AnswerError> {
        let uri = match self.selectors.strip_prefix('&') {
            Some(selectors) => format!("{}?{selectors}", self.path),
            None => self.path.clone(),
        };
        let answer = read_compressed(&self.client, &uri, METADATA_LIST).await?;
        match answer.encoding {
            Encoding::Protobuf => self.read_versions(answer, limit).await,
            Encoding::Json => self.read_json_versions(answer, limit).await,
        }
    }

    /// Does the same as [`Self::versions`] with a watch that begins with the state. Upstream
    /// compresses such a watch however short it is, and lists from 128 KiB on. Fails if upstream
    /// does not mark the end of the state.
    /// Source: `apiserver/pkg/endpoints/handlers/watch.go`, and
    /// `apiserver/pkg/endpoints/handlers/responsewriters/writers.go` (defaultGzipThresholdBytes).
    pub async fn streamed_versions(&self, limit: usize) -> Result<MeasuredVersions, AnswerError> {
        let uri = self.uri(STATE);
        let answer = read_compressed(&self.client, &uri, METADATA_WATCH).await?;
        let encoding = answer.encoding;
        let mut stream = WatchStream::new(answer.body, encoding)
            .with_compression(AnswerCompression::of(true, answer.is_gzip));
        let (mut objects, mut bytes) = (Vec::new(), 0);
        while let Some(frame) = stream.next_transient_frame().await? {
            match frame.kind {
                EventKind::Added if objects.len() < limit => {
                    bytes += frame.object.len();
                    let scanned = scan(encoding, &frame.object, &self.fields)?;
                    objects.push((scanned.attributes.key().to_owned(), scanned.version));
                }
                EventKind::Bookmark => {
                    let mark = read_bookmark(encoding, &frame.object)?;
                    if !mark.initial_events_end {
                        break;
                    }
                    // Lists have the order of the keys. That of events is not promised.
                    objects.sort_unstable();
                    let list = VersionList {
                        version: mark.version,
                        objects,
                        is_complete: true,
                    };
                    return Ok(MeasuredVersions { list, bytes });
                }
                _ => break,
            }
        }
        Err(AnswerError::Unusable(
            "a state that is too long, or has no marked end".to_owned(),
        ))
    }

    async fn read_versions(
        &self,
        answer: ReadAnswer,
        limit: usize,
    ) -> Result<MeasuredVersions, AnswerError> {
        let mut pieces = Pieces::new(answer);
        let mut reader = VersionListReader::new(self.fields.clone());
        while let Some(piece) = pieces.next().await? {
            reader.push(&piece)?;
            if reader.count() > limit {
                return Err(AnswerError::TooManyObjects);
            }
        }
        Ok(MeasuredVersions {
            list: reader.end()?,
            bytes: pieces.length,
        })
    }

    async fn read_json_versions(
        &self,
        answer: ReadAnswer,
        limit: usize,
    ) -> Result<MeasuredVersions, AnswerError> {
        let encoding = answer.encoding;
        let mut pieces = Pieces::new(answer);
        let mut body = Vec::new();
        while let Some(piece) = pieces.next().await? {
            body.extend_from_slice(&piece);
            if body.len() > MAX_BYTES {
                return Err(AnswerError::Unusable("a list that is too long".to_owned()));
            }
        }
        let (_, page) = WireFormat::learn(encoding, PartialFormat::KIND, &body.into())?;
        if page.objects.len() > limit {
            return Err(AnswerError::TooManyObjects);
        }
        let list = VersionList {
            version: page.version,
            objects: self.versions_of(encoding, &page)?,
            is_complete: page.continue_token.is_none(),
        };
        Ok(MeasuredVersions {
            list,
            bytes: pieces.length,
        })
    }

    fn versions_of(
        &self,
        encoding: Encoding,
        page: &ListPage,
    ) -> Result<ObjectVersions, Malformed> {
        let key = |object: &Bytes| {
            let scanned = scan(encoding, object, &self.fields)?;
            Ok((scanned.attributes.key().to_owned(), scanned.version))
        };
        page.objects.iter().map(key).collect()
    }

    /// Returns how many objects there were at `version`; `None` if there were more than `expected`
    /// of a selection, which upstream does not count. Applies no timeout.
    pub async fn count(
        &self,
        version: ResourceVersion,
        expected: usize,
    ) -> Result<Option<usize>, AnswerError> {
        // Upstream does not count what is behind a page of a list with selectors.
        let limit = if self.selectors.is_empty() {
            1
        } else {
            expected.saturating_add(1)
        };
        let exact = format!("resourceVersionMatch=Exact&resourceVersion={version}");
        let (_, _, page) = self.page(&format!("limit={limit}&{exact}")).await?;
        let listed = page.objects.len();
        Ok(match (page.continue_token, page.remaining) {
            (None, _) => Some(listed),
            (Some(_), remaining) => remaining
                .and_then(|remaining| usize::try_from(remaining).ok())
                .map(|remaining| listed + remaining),
        })
    }

    /// Returns the version of a list, no older than this call, and the unique id of its first
    /// object, if there is one. Applies no timeout.
    pub async fn first_uid(&self) -> Result<(ResourceVersion, Option<String>), AnswerError> {
        let (encoding, format, page) = self.page("limit=1").await?;
        let uid = page
            .objects
            .first()
            .map(|object| read_identity(encoding, &format.item_bytes(object)))
            .transpose()?
            .map(|identity| identity.uid);
        Ok((page.version, uid))
    }

    /// Returns the first page of a list of the objects, with how it is written.
    async fn page(&self, query: &str) -> Result<(Encoding, WireFormat, ListPage), AnswerError> {
        self.page_of(&self.uri(query)).await
    }

    async fn page_of(&self, uri: &str) -> Result<(Encoding, WireFormat, ListPage), AnswerError> {
        let class = ConnectionClass::Short;
        let (encoding, body) = read(&self.client, class, uri, METADATA_LIST).await?;
        let body = whole(body, MAX_BYTES).await?;
        let (format, page) = WireFormat::learn(encoding, PartialFormat::KIND, &body)?;
        Ok((encoding, format, page))
    }

    /// Opens a watch that starts at `from` and lasts for `lasting`.
    ///
    /// Upstream sends a bookmark some time before a watch's deadline, if there is enough time for
    /// it.
    /// Source: `apiserver/pkg/storage/cacher/cache_watcher.go` (nextBookmarkTime).
    pub async fn watch(
        &self,
        from: ResourceVersion,
        lasting: Duration,
    ) -> Result<CatchUp, AnswerError> {
        let seconds = lasting.as_secs();
        let query = format!(
            "watch=1&allowWatchBookmarks=true&resourceVersion={from}&timeoutSeconds={seconds}"
        );
        let (class, uri) = (ConnectionClass::Watch, self.uri(&query));
        let (encoding, body) = read(&self.client, class, &uri, METADATA_WATCH).await?;
        Ok(CatchUp {
            stream: WatchStream::new(body, encoding),
            encoding,
            fields: self.fields.clone(),
        })
    }

    fn uri(&self, query: &str) -> String {
        format!("{}?{query}{}", self.path, self.selectors)
    }
}

/// An open watch of metadata.
pub struct CatchUp {
    stream: WatchStream,
    encoding: Encoding,
    fields: FieldTable,
}

impl CatchUp {
    /// Returns the next event; `None` at the end of the watch. An ERROR event is an error.
    pub async fn next(&mut self) -> Result<Option<ProbeEvent>, AnswerError> {
        let Some(frame) = self.stream.next_frame().await? else {
            return Ok(None);
        };
        Ok(Some(match frame.kind {
            EventKind::Added | EventKind::Modified | EventKind::Deleted => {
                ProbeEvent::Event(scan(self.encoding, &frame.object, &self.fields)?.version)
            }
            EventKind::Bookmark => {
                ProbeEvent::Bookmark(read_bookmark(self.encoding, &frame.object)?.version)
            }
            EventKind::Error => return Err(AnswerError::Unusable("an ERROR event".to_owned())),
        }))
    }
}

/// The uncompressed bytes of an answer, piece by piece.
struct Pieces {
    body: UpstreamBody,
    gzip: Option<GzipReader>,
    /// Bytes so far.
    length: usize,
}

impl Pieces {
    fn new(answer: ReadAnswer) -> Self {
        Self {
            body: answer.body,
            gzip: answer.is_gzip.then(GzipReader::default),
            length: 0,
        }
    }

    /// Returns the next piece, which may be empty; `None` at the end.
    async fn next(&mut self) -> Result<Option<Vec<u8>>, AnswerError> {
        let Some(frame) = self.body.frame().await else {
            let is_cut = self.gzip.as_ref().is_some_and(|gzip| !gzip.is_between());
            return if is_cut {
                Err(AnswerError::Unusable("gzip that was cut".to_owned()))
            } else {
                Ok(None)
            };
        };
        let Ok(data) = frame?.into_data() else {
            return Ok(Some(Vec::new()));
        };
        let mut piece = Vec::new();
        match &mut self.gzip {
            Some(gzip) => gzip.read(&data, |unpacked| piece.extend_from_slice(&unpacked))?,
            None => piece.extend_from_slice(&data),
        }
        self.length += piece.len();
        Ok(Some(piece))
    }
}

#[cfg(test)]
mod tests;
