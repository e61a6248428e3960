//! The uses of verdicts, and how old a verdict for each may be.
use std::time::Duration;

use crate::access::changes::Changes;
use crate::access::changes::settling::SETTLED;
use crate::access::request::AccessRequest;
use crate::access::reviews::verdict_form::VerdictAge;
use crate::access::verdict::ChangePosition;

/// Old verdicts are wanted only if each type that decides has shown a newer version within this time. Bookmarks come
/// every minute, and more rarely where the watch just began.
const KNOWN_LATELY: Duration = Duration::from_mins(2);

/// The use of a verdict, which decides how old it may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum VerdictUse {
    /// For a request to this proxy.
    Here,
    /// For another proxy, which asks as it would ask the API server, and remembers the verdict.
    PassedOn(VerdictAge),
}

impl VerdictUse {
    /// Returns the age that a verdict may have if upstream is a proxy that passes it on.
    ///
    /// The server that decided may have lagged behind a change by [`SETTLED`]. So the last change that concerns
    /// the request has to be that much older than the oldest verdict. Of changes before RBAC was followed, none
    /// is known: a verdict that is to be used for long has to be from after the beginning.
    pub(super) fn wanted_age(
        self,
        changes: &Changes,
        position: &ChangePosition,
        request: &AccessRequest,
        ttl: Duration,
    ) -> VerdictAge {
        if self == Self::PassedOn(VerdictAge::New)
            || ttl < VerdictAge::Young.limit()
            || changes.are_fresh_before(position, request)
        {
            return VerdictAge::New;
        }
        let quiet = SETTLED + VerdictAge::Old.limit();
        let known = changes.known_until(request);
        let is_known = known.is_some_and(|at| at + KNOWN_LATELY >= position.requested);
        if self == Self::PassedOn(VerdictAge::Young)
            || ttl < VerdictAge::Old.limit()
            || !(changes.are_followed(request) && is_known)
            || changes.quiet_before(position, request, quiet) < quiet
        {
            return VerdictAge::Young;
        }
        VerdictAge::Old
    }
}
