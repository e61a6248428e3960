//! One look at a part of a scope, beside the same part upstream.
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use tokio::time::timeout;
use watershed_protocol::{ResourceVersion, Scanned, WireFormat};

use super::difference::ObjectDifference;
use crate::store::{ObjectPeek, Snapshot, StoredObject};
use crate::upstream::AnswerError;

/// Timeout of a request.
const TIMEOUT: Duration = Duration::from_secs(20);
/// Bytes of objects up to which all of them are listed, by one request, and compared.
const SMALL: usize = 64 << 10;

/// The reason why a check tells nothing.
#[derive(Debug, thiserror::Error)]
pub(super) enum Inconclusive {
    /// The scope is not in its normal state.
    #[error("the scope does not follow upstream")]
    NotFollowed,
    /// Upstream does not have the version any more.
    #[error("upstream no longer has the version")]
    Expired,
    /// Upstream has events that may still come.
    #[error("upstream is ahead")]
    Behind,
    /// Upstream's list is written in another format.
    #[error("upstream's lists have another format")]
    OtherFormat,
    /// The two sides could not be brought to one version.
    #[error("{0}")]
    Failed(String),
}

/// The result of a look.
#[derive(Debug, Default)]
pub(super) struct Look {
    pub(super) differences: Vec<ObjectDifference>,
    /// The key behind which the next look begins; `None` for the start.
    pub(super) next: Option<String>,
    /// Upstream has more or fewer objects behind that key than memory.
    pub(super) counts_differ: bool,
}

impl Look {
    /// Returns the result of a look at a list in another format than memory's.
    pub(super) fn at_other_format() -> Self {
        Self {
            differences: vec![ObjectDifference::of_list()],
            ..Self::default()
        }
    }
}

/// Waits for an answer of upstream.
pub(super) async fn answered<T>(
    answer: impl Future<Output = Result<T, AnswerError>>,
) -> Result<T, Inconclusive> {
    match timeout(TIMEOUT, answer).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) if error.status() == Some(StatusCode::GONE) => Err(Inconclusive::Expired),
        Ok(Err(AnswerError::OtherFormat)) => Err(Inconclusive::OtherFormat),
        Ok(Err(error)) => Err(Inconclusive::Failed(error.to_string())),
        Err(_) => {
            let message = format!("no answer within {TIMEOUT:?}");
            Err(Inconclusive::Failed(message))
        }
    }
}

/// Returns `true` if these objects are so small that all are compared byte by byte.
pub(super) fn is_small<'a>(mut objects: impl Iterator<Item = &'a Arc<StoredObject>>) -> bool {
    let mut left = Some(SMALL);
    objects.all(|object| {
        left = left.and_then(|left| left.checked_sub(object.bytes.len()));
        left.is_some()
    })
}

/// Compares keys and versions. Both sides are in the order of keys.
pub(super) fn compare_versions<'a>(
    memory: impl Iterator<Item = &'a Arc<StoredObject>>,
    upstream: &'a [(String, ResourceVersion)],
) -> Vec<ObjectDifference> {
    let memory = memory.map(|object| (object.key(), object.version));
    let upstream = upstream.iter();
    ObjectDifference::between(memory, upstream.map(|(key, version)| (&**key, *version)))
}

/// Compares the bytes of upstream's objects with those in memory. Objects that memory does not have
/// in that version are passed over.
pub(super) fn compare_bytes(
    snapshot: &Snapshot,
    format: &WireFormat,
    upstream: &[(Bytes, Scanned)],
) -> Vec<ObjectDifference> {
    let mut peek = ObjectPeek::default();
    let compare = |(bytes, scanned): &(Bytes, Scanned)| {
        let held = snapshot.get(scanned.attributes.key())?;
        if held.version != scanned.version {
            return None;
        }
        let theirs = format.item_bytes(bytes);
        ObjectDifference::of_bytes(held.key(), &peek.bytes(held).share(), &theirs.share())
    };
    upstream.iter().filter_map(compare).collect()
}
