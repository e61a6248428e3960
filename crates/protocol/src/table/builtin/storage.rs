//! Volumes and the claims to them.
use std::collections::BTreeMap;

use serde::Deserialize;

use super::definition::{BuiltinPrinter, read};
use crate::encoding::Malformed;
use crate::table::age::{ObjectTime, pointer};
use crate::table::cells::Cells;
use crate::table::column::{NAME, text, wide};
use crate::table::row_metadata::RowMetadata;

pub(super) const PRINTERS: &[BuiltinPrinter] = &[
    BuiltinPrinter {
        resource: ("", "v1", "persistentvolumes"),
        columns: &[
            NAME,
            text("Capacity"),
            text("Access Modes"),
            text("Reclaim Policy"),
            text("Status"),
            text("Claim"),
            text("StorageClass"),
            text("VolumeAttributesClass"),
            text("Reason"),
            text("Age"),
            wide("VolumeMode"),
        ],
        print: volume,
        metadata: RowMetadata::AsIs,
    },
    BuiltinPrinter {
        resource: ("", "v1", "persistentvolumeclaims"),
        columns: &[
            NAME,
            text("Status"),
            text("Volume"),
            text("Capacity"),
            text("Access Modes"),
            text("StorageClass"),
            text("VolumeAttributesClass"),
            text("Age"),
            wide("VolumeMode"),
        ],
        print: claim,
        metadata: RowMetadata::AsIs,
    },
];

const UNSET: &str = "<unset>";
/// The modes in the order in which they are printed.
/// Source: `kubernetes/pkg/apis/core/helper/helpers.go` (`GetAccessModesAsString`).
const ACCESS_MODES: &[(&str, &str)] = &[
    ("ReadWriteOnce", "RWO"),
    ("ReadOnlyMany", "ROX"),
    ("ReadWriteMany", "RWX"),
    ("ReadWriteOncePod", "RWOP"),
];

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct StoredMeta {
    name: String,
    creation_timestamp: ObjectTime,
    #[serde(deserialize_with = "pointer")]
    deletion_timestamp: Option<ObjectTime>,
    annotations: Option<ClassAnnotation>,
}

/// The annotation that named the class before there was a field. It still comes first.
#[derive(Default, Deserialize)]
struct ClassAnnotation {
    #[serde(rename = "volume.beta.kubernetes.io/storage-class")]
    class: Option<String>,
}

impl StoredMeta {
    /// Returns the class, which the field names if no annotation does.
    fn class<'a>(&'a self, field: &'a str) -> &'a str {
        let annotation = self.annotations.as_ref();
        let class = annotation.and_then(|annotation| annotation.class.as_deref());
        class.unwrap_or(field)
    }
}

/// Quantities by resource.
type Quantities = BTreeMap<String, String>;

#[derive(Deserialize)]
struct Volume {
    metadata: StoredMeta,
    #[serde(default)]
    spec: VolumeSpec,
    #[serde(default)]
    status: VolumeStatus,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct VolumeSpec {
    capacity: Option<Quantities>,
    access_modes: Option<Vec<String>>,
    claim_ref: Option<ClaimReference>,
    persistent_volume_reclaim_policy: String,
    storage_class_name: String,
    volume_mode: Option<String>,
    volume_attributes_class_name: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ClaimReference {
    namespace: String,
    name: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct VolumeStatus {
    phase: String,
    reason: String,
}

#[derive(Deserialize)]
struct Claim {
    metadata: StoredMeta,
    #[serde(default)]
    spec: ClaimSpec,
    #[serde(default)]
    status: ClaimStatus,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ClaimSpec {
    volume_name: String,
    storage_class_name: Option<String>,
    volume_mode: Option<String>,
    volume_attributes_class_name: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ClaimStatus {
    phase: String,
    access_modes: Option<Vec<String>>,
    capacity: Option<Quantities>,
}

fn volume(object: &[u8], cells: &mut Cells) -> Result<(), Malformed> {
    let Volume {
        metadata,
        spec,
        status,
    } = read(object)?;
    let claim = spec.claim_ref;
    let claim = claim.map(|claim| format!("{}/{}", claim.namespace, claim.name));
    cells.text(&metadata.name);
    cells.text(storage(spec.capacity.as_ref()));
    cells.text(&access_modes(spec.access_modes.as_ref()));
    cells.text(&spec.persistent_volume_reclaim_policy);
    cells.text(phase(&metadata, &status.phase));
    cells.text(&claim.unwrap_or_default());
    cells.text(metadata.class(&spec.storage_class_name));
    cells.text(
        spec.volume_attributes_class_name
            .as_deref()
            .unwrap_or(UNSET),
    );
    cells.text(&status.reason);
    cells.since(metadata.creation_timestamp);
    cells.text(spec.volume_mode.as_deref().unwrap_or(UNSET));
    Ok(())
}

fn claim(object: &[u8], cells: &mut Cells) -> Result<(), Malformed> {
    let Claim {
        metadata,
        spec,
        status,
    } = read(object)?;
    let (mut capacity, mut modes) = ("", String::new());
    if !spec.volume_name.is_empty() {
        capacity = storage(status.capacity.as_ref());
        modes = access_modes(status.access_modes.as_ref());
    }
    let class = spec.storage_class_name.unwrap_or_default();
    cells.text(&metadata.name);
    cells.text(phase(&metadata, &status.phase));
    cells.text(&spec.volume_name);
    cells.text(capacity);
    cells.text(&modes);
    cells.text(metadata.class(&class));
    cells.text(
        spec.volume_attributes_class_name
            .as_deref()
            .unwrap_or(UNSET),
    );
    cells.since(metadata.creation_timestamp);
    cells.text(spec.volume_mode.as_deref().unwrap_or(UNSET));
    Ok(())
}

fn phase<'a>(metadata: &StoredMeta, phase: &'a str) -> &'a str {
    match metadata.deletion_timestamp {
        Some(_) => "Terminating",
        None => phase,
    }
}

/// Returns the quantity of storage. Upstream prints an absent one as zero.
fn storage(quantities: Option<&Quantities>) -> &str {
    let quantity = quantities.and_then(|quantities| quantities.get("storage"));
    quantity.map_or("0", String::as_str)
}

fn access_modes(modes: Option<&Vec<String>>) -> String {
    let has = |mode: &str| modes.into_iter().flatten().any(|other| other == mode);
    let known = ACCESS_MODES.iter().filter(|(mode, _)| has(mode));
    known.map(|(_, short)| *short).collect::<Vec<_>>().join(",")
}
