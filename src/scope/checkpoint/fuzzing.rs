//! The reader of checkpoint files, for fuzzers.
use bytes::Bytes;
use watershed_protocol::{Encoding, FieldTable, GroupVersionResource, ManagedFields, WireFormat};

use super::file::{CheckpointHeader, CheckpointReader, CheckpointWriter};
use super::stored::{CheckpointError, ScopeForm, load_stored};
use crate::budget::MemoryBudget;

/// The memory that a file may take.
const MAX_BYTES: usize = 16 << 20;
/// A list that names what the file's objects are.
const LIST: &[u8] = b"{\"kind\":\"PodList\",\"apiVersion\":\"v1\",\
    \"metadata\":{\"resourceVersion\":\"7\"},\"items\":[]}\n";
const OBJECT: &[u8] = b"{\"metadata\":{\"name\":\"a\",\"namespace\":\"b\",\
    \"uid\":\"c\",\"resourceVersion\":\"5\"},\"spec\":{\"nodeName\":\"n\"}}";
/// A bookmark that names no more than it must.
const BOOKMARK: &[u8] = b"{\"kind\":\"Pod\",\"apiVersion\":\"v1\",\"metadata\":\
    {\"resourceVersion\":\"7\",\"creationTimestamp\":null},\"spec\":{\"containers\":null},\
    \"status\":{}}";

/// Returns a file with one object, without its checksum.
pub(crate) fn example(with_bookmark: bool) -> Option<Vec<u8>> {
    let list = Bytes::from_static(LIST);
    let (format, _) = WireFormat::learn(Encoding::Json, "Pod", &list).ok()?;
    let header = CheckpointHeader {
        scope: "pods".to_owned(),
        resource: (String::new(), "pods".to_owned()),
        cluster: "uid".to_owned(),
        upstream: vec!["https://a:6443".to_owned()],
        saved: 1,
        version: 7,
        last_event: Some(6),
        format: format.record(),
        streams_initial_events: true,
        warnings: vec!["299 - \"old\"".to_owned()],
        release: serde_json::from_str(r#"{"gitVersion":"v1.37.1"}"#).ok()?,
        objects: 1,
        metadata_only: false,
    };
    let mut writer = CheckpointWriter::begin(Vec::new(), &header).ok()?;
    writer
        .block(if with_bookmark { BOOKMARK } else { b"" })
        .ok()?;
    writer.block(OBJECT).ok()?;
    let (mut file, _) = writer.end().ok()?;
    file.truncate(file.len() - blake3::OUT_LEN);
    Some(file)
}

/// Reads a file, whose checksum is added: a fuzzer would not find it. Returns the version and the
/// number of the objects.
pub(crate) fn read(file: &[u8]) -> Result<(u64, u64), String> {
    let whole = [file, blake3::hash(file).as_bytes()].concat();
    load(&whole).map_err(|error| error.to_string())
}

fn load(file: &[u8]) -> Result<(u64, u64), CheckpointError> {
    let (reader, header) = CheckpointReader::begin(file)?;
    let objects = header.objects;
    let pods = GroupVersionResource::new("", "v1", "pods");
    let fields =
        FieldTable::builtin(&pods, true).unwrap_or_else(|| FieldTable::metadata_only(true));
    let memory = MemoryBudget::new(Some(MAX_BYTES)).begin_load();
    let form = ScopeForm {
        encoding: Encoding::Json,
        managed_fields: ManagedFields::Keep,
    };
    let stored = load_stored(reader, header, form, &fields, memory)?;
    Ok((stored.version.0, objects))
}
