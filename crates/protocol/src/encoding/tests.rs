//! Byte for byte against upstream's own encoders (see `testdata/generate`), and against everything
//! hostile.
mod bookmarks;
mod golden;
mod hostile;
mod managed_fields;

use std::path::PathBuf;

use bytes::{Bytes, BytesMut};

use super::*;
use crate::GroupVersionResource;
use crate::{ResourceVersion, ShardSelector};

/// The types in `testdata`: directory, group, version, kind, whether namespaced.
const TYPES: &[(&str, &str, &str, &str, bool)] = &[
    (
        "certificatesigningrequests",
        "certificates.k8s.io",
        "v1",
        "CertificateSigningRequest",
        false,
    ),
    (
        "clustertrustbundles",
        "certificates.k8s.io",
        "v1",
        "ClusterTrustBundle",
        false,
    ),
    ("configmaps", "", "v1", "ConfigMap", true),
    ("deployments", "apps", "v1", "Deployment", true),
    ("events", "", "v1", "Event", true),
    ("events.events.k8s.io", "events.k8s.io", "v1", "Event", true),
    ("foos", "ex.io", "v1", "Foo", true),
    ("jobs", "batch", "v1", "Job", true),
    ("namespaces", "", "v1", "Namespace", false),
    ("nodes", "", "v1", "Node", false),
    (
        "partial",
        "meta.k8s.io",
        "v1",
        "PartialObjectMetadata",
        true,
    ),
    (
        "podcertificaterequests",
        "certificates.k8s.io",
        "v1",
        "PodCertificateRequest",
        true,
    ),
    ("pods", "", "v1", "Pod", true),
    (
        "replicationcontrollers",
        "",
        "v1",
        "ReplicationController",
        true,
    ),
    (
        "resourceslices",
        "resource.k8s.io",
        "v1",
        "ResourceSlice",
        false,
    ),
    ("secrets", "", "v1", "Secret", true),
    ("services", "", "v1", "Service", true),
];

/// One type in one encoding.
struct Case {
    directory: &'static str,
    gvr: GroupVersionResource,
    kind: &'static str,
    encoding: Encoding,
    fields: FieldTable,
}

impl Case {
    fn all() -> impl Iterator<Item = Self> {
        TYPES
            .iter()
            .flat_map(|&(directory, group, version, kind, namespaced)| {
                let custom = directory == "foos";
                let encodings = if custom {
                    &[Encoding::Json][..]
                } else {
                    &[Encoding::Json, Encoding::Protobuf]
                };
                encodings.iter().map(move |&encoding| {
                    let resource = directory.split('.').next().unwrap();
                    let gvr = GroupVersionResource::new(group, version, resource);
                    let fields = if custom {
                        let paths = [
                            ".spec.color",
                            ".spec.size",
                            ".spec.on",
                            ".spec.none",
                            ".spec.nested.deep",
                        ];
                        FieldTable::custom(namespaced, &paths.map(str::to_owned))
                    } else {
                        FieldTable::builtin(&gvr, namespaced).unwrap()
                    };
                    Self {
                        directory,
                        gvr,
                        kind,
                        encoding,
                        fields,
                    }
                })
            })
    }

    fn find(directory: &str, encoding: Encoding) -> Self {
        Self::all()
            .find(|case| case.directory == directory && case.encoding == encoding)
            .unwrap()
    }

    fn file(&self, name: &str) -> Bytes {
        let extension = if self.encoding == Encoding::Json {
            "json"
        } else {
            "pb"
        };
        let mut path = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
        path.extend([
            "src/encoding/testdata",
            self.directory,
            &format!("{name}.{extension}"),
        ]);
        std::fs::read(&path)
            .unwrap_or_else(|e| panic!("{}: {e}", path.display()))
            .into()
    }

    fn learn(&self) -> (WireFormat, ListPage) {
        WireFormat::learn(self.encoding, self.kind, &self.file("list")).unwrap()
    }

    fn frames(&self) -> Vec<Frame> {
        decode(self.encoding, [self.file("watch")]).unwrap()
    }

    /// Objects of the watch, without bookmarks and errors.
    fn objects(&self) -> Vec<Bytes> {
        let ends = [EventKind::Bookmark, EventKind::Error];
        self.frames()
            .into_iter()
            .filter(|frame| !ends.contains(&frame.kind))
            .map(|frame| frame.object)
            .collect()
    }
}

fn decode(
    encoding: Encoding,
    chunks: impl IntoIterator<Item = Bytes>,
) -> Result<Vec<Frame>, Malformed> {
    let mut decoder = FrameDecoder::new(encoding, 1 << 20);
    let mut frames = Vec::new();
    for chunk in chunks {
        decoder.push(chunk);
        while let Some(frame) = decoder.next_frame()? {
            frames.push(frame);
        }
    }
    if decoder.is_clean() {
        Ok(frames)
    } else {
        Err(Malformed("cut"))
    }
}

/// Writes a list from what is held of its objects, and checks that it is as long as announced, and
/// that the objects are found again in the run of items.
fn write_list(format: &WireFormat, page: &ListPage) -> Vec<u8> {
    let token = page.continue_token.as_deref();
    let stored: Vec<_> = page
        .objects
        .iter()
        .map(|object| format.item_bytes(object))
        .collect();
    let joined = format.join(stored.iter());
    assert_eq!(
        joined.bytes.len(),
        stored
            .iter()
            .map(|object| format.item_len(object.len()))
            .sum::<usize>()
    );
    let places = format.places(&joined.ends, stored.iter().map(ItemBytes::len));
    let found = places.map(|place| &joined.bytes[place.start as usize..place.end as usize]);
    assert!(found.eq(stored.iter().map(ItemBytes::as_slice)));
    let items = joined
        .bytes
        .slice(..joined.bytes.len().saturating_sub(format.separator()));
    let metadata = ListMetadata {
        continue_token: token,
        remaining: page.remaining,
        ..ListMetadata::of(page.version)
    };
    let parts = format.list_parts(&metadata, stored.len(), items.len() as u64);
    let list = [&parts.head[..], &items, &parts.tail].concat();
    assert_eq!(parts.body_len(), list.len() as u64);
    list
}
