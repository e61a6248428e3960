//! A scope's state as a checkpoint has it.

use std::io::{self, Read};
use std::sync::Arc;

use http::HeaderValue;
use watershed_protocol::{
    BookmarkFormat, Encoding, FieldTable, ItemBytes, Malformed, ManagedFields, ResourceVersion,
    WireFormat, scan,
};

use super::file::{CheckpointFileError, CheckpointHeader, CheckpointReader};
use crate::budget::{DoesNotFit, MemoryLoad};
use crate::scope::phase::ReadyScope;
use crate::store::{Layout, SnapshotBuilder, StoredObject};
use crate::upstream::Release;

/// A scope's state, with the memory that it takes.
pub(in crate::scope) struct StoredScope {
    /// The digest of the identity of the cluster that it is of.
    pub(super) cluster: String,
    pub(in crate::scope) version: ResourceVersion,
    /// The version of the last event before it, if it was known.
    pub(in crate::scope) last_event: Option<ResourceVersion>,
    pub(in crate::scope) objects: SnapshotBuilder,
    pub(in crate::scope) ready: ReadyScope,
    pub(in crate::scope) bookmark: Option<BookmarkFormat>,
    /// The release that printed the objects.
    pub(in crate::scope) release: Release,
    pub(in crate::scope) load: MemoryLoad,
}

/// Why a checkpoint is not used.
#[derive(Debug, thiserror::Error)]
pub(super) enum CheckpointError {
    #[error(transparent)]
    File(#[from] CheckpointFileError),
    #[error("it is too old")]
    Outdated,
    #[error("it was written with another setting of managedFields")]
    OtherSettings,
    #[error("{0}")]
    Foreign(&'static str),
    #[error("it has an object that is not understood: {0}")]
    Malformed(#[from] Malformed),
    #[error(transparent)]
    DoesNotFit(#[from] DoesNotFit),
    #[error("upstream does not tell which cluster it is")]
    Unverified,
}

impl From<io::Error> for CheckpointError {
    fn from(error: io::Error) -> Self {
        CheckpointFileError::from(error).into()
    }
}

impl CheckpointError {
    /// Returns the metric label.
    pub(super) fn label(&self) -> &'static str {
        match self {
            Self::File(CheckpointFileError::Layout) | Self::Outdated | Self::OtherSettings => {
                "outdated"
            }
            Self::File(_) | Self::Malformed(_) => "damaged",
            Self::Foreign(_) => "foreign",
            Self::DoesNotFit(_) => "no-memory",
            Self::Unverified => "unverified",
        }
    }

    /// Returns true if the checkpoint will never be of use.
    pub(super) fn is_final(&self) -> bool {
        match self {
            Self::DoesNotFit(_) | Self::Unverified => false,
            // A disk that fails now may work later; what it says then has a checksum.
            Self::File(CheckpointFileError::Io(error)) => {
                error.kind() == io::ErrorKind::UnexpectedEof
            }
            _ => true,
        }
    }
}

/// Reads what follows the header, and checks all of it.
pub(super) fn load_stored<R: Read>(
    mut file: CheckpointReader<R>,
    header: CheckpointHeader,
    (encoding, managed_fields): (Encoding, ManagedFields),
    fields: &FieldTable,
    mut load: MemoryLoad,
) -> Result<StoredScope, CheckpointError> {
    let format = Arc::new(WireFormat::of_record(&header.format)?);
    if format.encoding() != encoding {
        return Err(CheckpointFileError::Damaged("its objects have another encoding").into());
    }
    if format.managed_fields() != managed_fields {
        return Err(CheckpointError::OtherSettings);
    }
    let example = file.block()?;
    let mut objects = SnapshotBuilder::new(Layout {
        format: Arc::clone(&format),
        indexed: fields.indexed(),
    });
    for _ in 0..header.objects {
        let bytes = file.block()?;
        load.add(bytes.len())?;
        let bytes = ItemBytes::new(bytes);
        let scanned = scan(encoding, &bytes.text(), fields)?;
        if scanned.version.0 > header.version {
            return Err(CheckpointFileError::Damaged("an object is newer than the state").into());
        }
        objects.put(StoredObject {
            bytes: bytes.into(),
            version: scanned.version,
            attributes: scanned.attributes,
        });
    }
    file.end()?;
    let bookmark = (!example.is_empty()).then(|| BookmarkFormat::learn(&format, &example));
    let warnings = header.warnings.into_iter().map(HeaderValue::try_from);
    let warnings: Result<_, _> = warnings.collect();
    Ok(StoredScope {
        cluster: header.cluster,
        version: ResourceVersion(header.version),
        last_event: header.last_event.map(ResourceVersion),
        objects,
        ready: ReadyScope {
            format,
            streams_initial_events: header.streams_initial_events,
            warnings: warnings
                .map_err(|_| CheckpointFileError::Damaged("a warning is no header"))?,
        },
        bookmark: bookmark.transpose()?,
        release: header.release,
        load,
    })
}
