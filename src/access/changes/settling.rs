//! Reviews of verdicts that upstream may have given from before a change.
use std::time::Duration;

use tokio::time::Instant;

/// Times after a change at which a verdict from before them is reviewed again.
///
/// API servers watch RBAC and pods, too, each at its own pace. So a verdict soon after a change may
/// still be from before it. It is valid only until the next of these moments.
const SETTLING: [Duration; 2] = [Duration::from_millis(200), SETTLED];
/// Time after which a change has surely reached every API server.
pub(in crate::access) const SETTLED: Duration = Duration::from_secs(2);
/// Age up to which a verdict is passed on to another proxy. It adds to [`SETTLED`]: for as long as both after
/// a change, the other proxy wants new verdicts.
pub(in crate::access) const PASSED_ON_AGE: Duration = Duration::from_secs(5);
/// The same to a proxy that has followed RBAC for as long, and has seen no change that concerns the verdict.
pub(in crate::access) const PASSED_ON_AGE_WHILE_QUIET: Duration = Duration::from_mins(1);

/// Returns the time from a request to its next review, if it was sent soon after a change at `at`.
pub(in crate::access) fn settles_after(at: Instant, requested: Instant) -> Option<Duration> {
    let mut moments = SETTLING.iter().map(|after| at + *after);
    let settled = moments.find(|moment| *moment > requested)?;
    Some(settled.duration_since(requested))
}
