//! The first step of a proof.

/// The facts about a scope before a proof.
#[derive(Clone, Copy, Debug)]
pub(super) struct RouteFacts {
    /// A comparison costs so little that it is not avoided.
    pub(super) is_small: bool,
    /// Events did not bring the last version in time, moments ago.
    pub(super) has_lagged: bool,
    pub(super) version: VersionQuestion,
}

/// The use of asking upstream for its version alone, which costs less than to compare most types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum VersionQuestion {
    /// It mostly is the cache's, so that a comparison is saved.
    Suffices,
    /// Events brought the last one.
    BroughtLast,
    /// Events may bring it, although they did not bring the last one.
    Possible,
    /// A comparison would follow.
    Useless,
}

/// The first step of a proof.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProofRoute {
    /// None: the answer costs upstream less than any proof.
    LeaveToUpstream,
    /// Upstream is asked for its version, which events may bring.
    AskVersion,
    /// Upstream's objects are compared.
    Compare,
}

impl ProofRoute {
    /// Chooses the first step. `reads_outweigh` is `true` if a comparison costs upstream no more than
    /// the answers to those who would share it.
    pub(super) fn choose(facts: RouteFacts, reads_outweigh: bool) -> Self {
        let RouteFacts {
            is_small,
            has_lagged,
            version,
        } = facts;
        if has_lagged && !is_small && !reads_outweigh {
            return Self::LeaveToUpstream;
        }
        match version {
            VersionQuestion::Suffices => Self::AskVersion,
            VersionQuestion::BroughtLast if !(has_lagged && is_small) => Self::AskVersion,
            _ if is_small || reads_outweigh => Self::Compare,
            // Events prove a read that costs less than a comparison, or nothing does.
            VersionQuestion::Possible => Self::AskVersion,
            VersionQuestion::BroughtLast | VersionQuestion::Useless => Self::LeaveToUpstream,
        }
    }

    /// Returns `true` if the choice depends on whether the reads outweigh a comparison.
    pub(super) fn depends_on_reads(facts: RouteFacts) -> bool {
        Self::choose(facts, true) != Self::choose(facts, false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LARGE: RouteFacts = RouteFacts {
        is_small: false,
        has_lagged: false,
        version: VersionQuestion::Useless,
    };
    const SMALL: RouteFacts = RouteFacts {
        is_small: true,
        ..LARGE
    };

    #[test]
    fn large_types_are_compared_only_where_that_is_worth_it() {
        use ProofRoute::{AskVersion, Compare, LeaveToUpstream};
        for (version, wanted, wanted_after_lag) in [
            (
                VersionQuestion::Useless,
                [Compare, LeaveToUpstream],
                Compare,
            ),
            (VersionQuestion::Possible, [Compare, AskVersion], Compare),
            (VersionQuestion::BroughtLast, [AskVersion; 2], AskVersion),
        ] {
            let facts = RouteFacts { version, ..LARGE };
            let routes = |facts| [true, false].map(|outweigh| ProofRoute::choose(facts, outweigh));
            assert_eq!(routes(facts), wanted, "{version:?}");
            let lagging = RouteFacts {
                has_lagged: true,
                ..facts
            };
            assert_eq!(
                routes(lagging),
                [wanted_after_lag, LeaveToUpstream],
                "{version:?}"
            );
        }
    }

    #[test]
    fn small_types_are_compared_unless_the_version_is_likely_to_suffice() {
        for (version, has_lagged, wanted) in [
            (VersionQuestion::Useless, false, ProofRoute::Compare),
            (VersionQuestion::Possible, false, ProofRoute::Compare),
            (VersionQuestion::BroughtLast, false, ProofRoute::AskVersion),
            (VersionQuestion::BroughtLast, true, ProofRoute::Compare),
            (VersionQuestion::Suffices, true, ProofRoute::AskVersion),
        ] {
            let facts = RouteFacts {
                has_lagged,
                version,
                ..SMALL
            };
            assert_eq!(ProofRoute::choose(facts, false), wanted, "{facts:?}");
            assert!(!ProofRoute::depends_on_reads(facts), "{facts:?}");
        }
    }
}
