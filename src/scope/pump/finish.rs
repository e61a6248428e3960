//! Finishes a version that several deletions share, as those of events that expire.
use std::future::pending;
use std::time::Duration;

use tokio::time::{sleep, timeout};

use crate::backoff::PauseRange;
use crate::store::{StoreReader, UnfinishedVersion};
use crate::upstream::Probe;

/// Pauses before a question. The first one is the time for the other deletions of the version, or a
/// later event, to arrive.
const PAUSES: PauseRange = PauseRange::new(Duration::from_millis(200), Duration::from_secs(30));
/// Timeout of a question.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

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
    let mut backoff = PAUSES.backoff();
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
