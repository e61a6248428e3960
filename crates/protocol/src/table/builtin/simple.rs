//! Types of which little is printed.
use std::fmt;

use serde::Deserialize;
use serde::de::{IgnoredAny, MapAccess, Visitor};

use super::definition::{BuiltinPrinter, read};
use super::meta::PrintedMeta;
use crate::encoding::Malformed;
use crate::table::cells::Cells;
use crate::table::column::{NAME, text};
use crate::table::row_metadata::RowMetadata;

pub(super) const PRINTERS: &[BuiltinPrinter] = &[
    BuiltinPrinter {
        resource: ("", "v1", "configmaps"),
        columns: &[NAME, text("Data"), text("Age")],
        print: config_map,
        metadata: RowMetadata::AsIs,
    },
    BuiltinPrinter {
        resource: ("", "v1", "secrets"),
        columns: &[NAME, text("Type"), text("Data"), text("Age")],
        print: secret,
        metadata: RowMetadata::AsIs,
    },
    BuiltinPrinter {
        resource: ("", "v1", "serviceaccounts"),
        columns: &[NAME, text("Age")],
        print: service_account,
        metadata: RowMetadata::AsIs,
    },
    BuiltinPrinter {
        resource: ("", "v1", "namespaces"),
        columns: &[NAME, text("Status"), text("Age")],
        print: namespace,
        metadata: RowMetadata::AsIs,
    },
    BuiltinPrinter {
        resource: ("coordination.k8s.io", "v1", "leases"),
        columns: &[NAME, text("Holder"), text("Age")],
        print: lease,
        metadata: RowMetadata::AsIs,
    },
];

/// The number of members of a map.
#[derive(Default)]
struct Size(i64);

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Counter;

        impl<'de> Visitor<'de> for Counter {
            type Value = Size;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map or null")
            }

            fn visit_unit<E>(self) -> Result<Size, E> {
                Ok(Size(0))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Size, A::Error> {
                let mut size = 0;
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {
                    size += 1;
                }
                Ok(Size(size))
            }
        }

        deserializer.deserialize_any(Counter)
    }
}

fn config_map(object: &[u8], cells: &mut Cells) -> Result<(), Malformed> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct ConfigMap {
        metadata: PrintedMeta,
        #[serde(default)]
        data: Size,
        #[serde(default)]
        binary_data: Size,
    }
    let ConfigMap {
        metadata,
        data,
        binary_data,
    } = read(object)?;
    cells.text(&metadata.name);
    cells.integer(data.0 + binary_data.0);
    cells.since(metadata.creation_timestamp);
    Ok(())
}

fn secret(object: &[u8], cells: &mut Cells) -> Result<(), Malformed> {
    #[derive(Deserialize)]
    struct Secret {
        metadata: PrintedMeta,
        #[serde(rename = "type", default)]
        kind: String,
        #[serde(default)]
        data: Size,
    }
    let Secret {
        metadata,
        kind,
        data,
    } = read(object)?;
    cells.text(&metadata.name);
    cells.text(&kind);
    cells.integer(data.0);
    cells.since(metadata.creation_timestamp);
    Ok(())
}

fn service_account(object: &[u8], cells: &mut Cells) -> Result<(), Malformed> {
    #[derive(Deserialize)]
    struct ServiceAccount {
        metadata: PrintedMeta,
    }
    let ServiceAccount { metadata } = read(object)?;
    cells.text(&metadata.name);
    cells.since(metadata.creation_timestamp);
    Ok(())
}

fn namespace(object: &[u8], cells: &mut Cells) -> Result<(), Malformed> {
    #[derive(Deserialize)]
    struct Namespace {
        metadata: PrintedMeta,
        #[serde(default)]
        status: NamespaceStatus,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct NamespaceStatus {
        phase: String,
    }
    let Namespace { metadata, status } = read(object)?;
    cells.text(&metadata.name);
    cells.text(&status.phase);
    cells.since(metadata.creation_timestamp);
    Ok(())
}

fn lease(object: &[u8], cells: &mut Cells) -> Result<(), Malformed> {
    #[derive(Deserialize)]
    struct Lease {
        metadata: PrintedMeta,
        #[serde(default)]
        spec: LeaseSpec,
    }
    #[derive(Default, Deserialize)]
    #[serde(rename_all = "camelCase", default)]
    struct LeaseSpec {
        holder_identity: Option<String>,
    }
    let Lease { metadata, spec } = read(object)?;
    cells.text(&metadata.name);
    cells.text(&spec.holder_identity.unwrap_or_default());
    cells.since(metadata.creation_timestamp);
    Ok(())
}
