//! Finishes a version that several deletions share, as those of events that expire.
use std::future::pending;
use std::time::Duration;

use tokio::time::{sleep, timeout};

use crate::store::{StoreReader, UnfinishedVersion};
use crate::upstream::{Backoff, Probe};

/// Time for the other deletions of the version, or a later event, to arrive. Then upstream is
/// asked.
const IN_TRANSIT: Duration = Duration::from_millis(200);
/// Timeout of a question.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest pause between two questions. They begin at [`IN_TRANSIT`].
const MAX_PAUSE: Duration = Duration::from_secs(30);

/// Asks upstream, while a version is unfinished, how many objects it has at that version. Returns
/// its answer once these are all that are left here. Waits forever while no version is unfinished.
///
/// Without this, a deletion on a quiet type would show only with the next event: upstream sends no
/// bookmarks for types that it does not cache.
pub(super) async fn ask_upstream(reader: &StoreReader, probe: Option<&Probe>) -> UnfinishedVersion {
    // Most types' objects do not expire. Their events need not lock the store for this.
    let Some(probe) = probe else {
        return pending().await;
    };
    let mut backoff = Backoff::new(IN_TRANSIT, MAX_PAUSE);
    loop {
        let Some(UnfinishedVersion { version, objects }) = reader.unfinished() else {
            return pending().await;
        };
        sleep(backoff.pause()).await;
        let count = timeout(ANSWER_TIMEOUT, probe.count(version, objects)).await;
        if let Ok(Ok(Some(objects))) = count {
            let upstream = UnfinishedVersion { version, objects };
            if reader.unfinished() == Some(upstream) {
                return upstream;
            }
        }
    }
}
