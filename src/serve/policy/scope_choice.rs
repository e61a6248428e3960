//! Chooses the scope that answers a read. Looks at the open scopes, and opens none.
//!
//! With on-demand scopes, few clients that read little get a scope each, and many get one scope for
//! all of them. Watchers of a narrow scope are never disturbed. It falls idle once they have left,
//! because new clients are led to the wide one.
use std::sync::Arc;

use watershed_protocol::Selection;

/// With this many scopes in a namespace, the next read in it opens a scope of the namespace.
const MAX_SCOPES_IN_A_NAMESPACE: usize = 3;

/// Default of [`OnDemandLimits::max_scopes`].
///
/// Upstream looks at each event of a type once for each watch, unless it has an index for the
/// selector. This many cost it little, and a proxy that wants more wants most of the type.
const DEFAULT_MAX_SCOPES: usize = 8;

/// The kind of scope that answers a read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::serve) enum ScopeChoice {
    /// A scope that the configuration names, or everything.
    Configured(ChosenScope),
    /// A scope that is opened for what clients ask for.
    OnDemand {
        asked: Arc<Selection>,
        /// The read asks for one object.
        one: bool,
        limits: OnDemandLimits,
    },
}

impl ScopeChoice {
    /// Returns the selection of the scope, or what it is opened for.
    pub(in crate::serve) fn selection(&self) -> &Arc<Selection> {
        match self {
            Self::Configured(chosen) => &chosen.selection,
            Self::OnDemand { asked, .. } => asked,
        }
    }
}

/// The scope that a read is answered from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::serve) struct ChosenScope {
    pub(in crate::serve) selection: Arc<Selection>,
    /// All objects that the read asks for are in the scope, if they exist. Otherwise a found object
    /// is right, and a missing one says nothing.
    pub(in crate::serve) is_complete: bool,
}

impl ChosenScope {
    pub(in crate::serve) fn complete(selection: &Arc<Selection>) -> Self {
        Self {
            selection: Arc::clone(selection),
            is_complete: true,
        }
    }

    pub(in crate::serve) fn partial(selection: &Arc<Selection>) -> Self {
        Self {
            selection: Arc::clone(selection),
            is_complete: false,
        }
    }
}

/// Bounds of a type's on-demand scopes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::serve) struct OnDemandLimits {
    /// Upper bound of scopes, each a watch at upstream, over all versions and representations.
    pub(in crate::serve) max_scopes: usize,
    /// A scope of a namespace, or of everything, may replace selector scopes.
    pub(in crate::serve) merge: bool,
}

impl Default for OnDemandLimits {
    fn default() -> Self {
        Self {
            max_scopes: DEFAULT_MAX_SCOPES,
            merge: true,
        }
    }
}

/// State of an open scope, as far as the choice depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::serve) enum Condition {
    Ready,
    /// Its first list is not in.
    Syncing,
    /// Upstream does not let it be followed, for example because the proxy lacks the right.
    Failed,
    /// The type has no such representation, whatever the selection.
    Unknown,
}

impl Condition {
    /// Returns `true` if the scope has, or is about to have, a watch at upstream.
    pub(in crate::serve) fn is_alive(self) -> bool {
        matches!(self, Self::Ready | Self::Syncing)
    }
}

/// An open scope.
#[derive(Clone, Debug)]
pub(in crate::serve) struct OpenScope {
    pub(in crate::serve) selection: Arc<Selection>,
    pub(in crate::serve) condition: Condition,
    /// The scope has no watch at upstream, as it is derived from one in another representation.
    pub(in crate::serve) is_derived: bool,
}

impl OnDemandLimits {
    /// Chooses the scope that answers a read of `asked`, whether it is open or not. `None` means
    /// that the read is forwarded.
    ///
    /// `open` are the scopes in the wanted version and representation, `elsewhere` is the number of
    /// watches of scopes in others. A read of one object opens no scope, and may use one that is incomplete.
    pub(in crate::serve) fn choose(
        self,
        asked: &Arc<Selection>,
        one: bool,
        open: &[OpenScope],
        elsewhere: usize,
    ) -> Option<ChosenScope> {
        let is = |condition| move |scope: &&OpenScope| scope.condition == condition;
        if let Some(useless) = open.iter().find(is(Condition::Unknown)) {
            return Some(ChosenScope::complete(&useless.selection));
        }
        let (failed, alive): (Vec<_>, Vec<_>) = open.iter().partition(is(Condition::Failed));
        if let Some(scope) = covering(asked, &alive) {
            return Some(ChosenScope::complete(scope));
        }
        if one {
            let may_have_it = |scope: &&&OpenScope| {
                let namespace = &scope.selection.namespace;
                scope.condition == Condition::Ready
                    && (namespace.is_none() || *namespace == asked.namespace)
            };
            let scope = alive.iter().find(may_have_it)?;
            return Some(ChosenScope::partial(&scope.selection));
        }
        self.to_open(asked, &alive, &failed, elsewhere)
    }

    /// Chooses the scope to open for a read that no open scope covers.
    fn to_open(
        self,
        asked: &Arc<Selection>,
        alive: &[&OpenScope],
        failed: &[&OpenScope],
        elsewhere: usize,
    ) -> Option<ChosenScope> {
        let everything = Arc::<Selection>::default();
        let may_merge = |into: &Selection| self.merge && refused(into, failed).is_none();
        let own = alive.iter().filter(|scope| !scope.is_derived).count();
        let watches = own + elsewhere;
        if watches >= self.max_scopes {
            return None;
        }
        if watches + 1 == self.max_scopes && may_merge(&everything) {
            return Some(ChosenScope::complete(&everything));
        }
        if asked.namespace.is_some() {
            let namespace = Selection {
                namespace: asked.namespace.clone(),
                ..Selection::default()
            };
            let in_it = alive
                .iter()
                .filter(|scope| namespace.covers(&scope.selection))
                .count();
            if in_it >= MAX_SCOPES_IN_A_NAMESPACE && may_merge(&namespace) {
                return Some(ChosenScope::complete(&Arc::new(namespace)));
            }
        }
        let chosen = refused(asked, failed).map_or(asked, |refused| &refused.selection);
        Some(ChosenScope::complete(chosen))
    }
}

/// Returns the best open scope that covers `asked`; ready ones come first.
fn covering<'a>(asked: &Selection, alive: &[&'a OpenScope]) -> Option<&'a Arc<Selection>> {
    let covering = alive.iter().filter(|scope| scope.selection.covers(asked));
    let ready: Vec<_> = covering
        .clone()
        .filter(|scope| scope.condition == Condition::Ready)
        .map(|scope| &scope.selection)
        .collect();
    preferred(&ready).or_else(|| {
        let all: Vec<_> = covering.map(|scope| &scope.selection).collect();
        preferred(&all)
    })
}

/// Returns the scope whose refusal covers `wanted`. It is not tried again with other selectors:
/// rights do not look at them.
fn refused<'a>(wanted: &Selection, failed: &[&'a OpenScope]) -> Option<&'a OpenScope> {
    failed.iter().copied().find(|scope| {
        scope.selection.namespace == wanted.namespace && scope.selection.covers(wanted)
    })
}

/// Returns the scope of everything, or else of a namespace, so that others fall idle; or else the
/// narrowest.
fn preferred<'a>(scopes: &[&'a Arc<Selection>]) -> Option<&'a Arc<Selection>> {
    let all_of_a_namespace =
        |scope: &&&Arc<Selection>| scope.labels.is_everything() && scope.fields.is_everything();
    let wide = scopes.iter().find(|scope| scope.is_everything());
    let wide = wide
        .or_else(|| scopes.iter().find(all_of_a_namespace))
        .copied();
    wide.or_else(|| {
        scopes
            .iter()
            .copied()
            .reduce(|known, scope| if known.covers(scope) { scope } else { known })
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use watershed_protocol::{FieldSelector, LabelSelector};

    fn selection(namespace: Option<&str>, labels: &str) -> Arc<Selection> {
        let labels = LabelSelector::parse(labels).unwrap();
        Arc::new(Selection {
            namespace: namespace.map(str::to_owned),
            labels,
            fields: FieldSelector::default(),
        })
    }

    fn open_scopes(all: &[(Option<&str>, &str, Condition)]) -> Vec<OpenScope> {
        let of = |&(namespace, labels, condition): &_| OpenScope {
            selection: selection(namespace, labels),
            condition,
            is_derived: false,
        };
        all.iter().map(of).collect()
    }

    fn chosen(
        limits: OnDemandLimits,
        asked: (Option<&str>, &str),
        all: &[(Option<&str>, &str, Condition)],
    ) -> Option<String> {
        let held = limits.choose(&selection(asked.0, asked.1), false, &open_scopes(all), 0)?;
        assert!(held.is_complete);
        Some(held.selection.to_string())
    }

    use Condition::{Failed, Ready, Syncing, Unknown};

    #[test]
    fn few_clients_get_their_own_scope_and_many_share_one() {
        let four = OnDemandLimits {
            max_scopes: 4,
            merge: true,
        };
        let is = |text: &str| Some(text.to_owned());
        assert_eq!(
            chosen(four, (Some("a"), "x"), &[]),
            is("namespace=a; labelSelector=x")
        );
        let mut open = vec![(Some("a"), "x", Ready), (Some("b"), "", Syncing)];
        assert_eq!(
            chosen(four, (Some("a"), "x,y"), &open),
            is("namespace=a; labelSelector=x")
        );
        assert_eq!(chosen(four, (Some("b"), "x"), &open), is("namespace=b"));
        assert_eq!(chosen(four, (None, "x"), &open), is("labelSelector=x"));
        open.push((Some("c"), "", Ready));
        // The fourth is everything. Until it is ready, what is ready is used.
        assert_eq!(chosen(four, (Some("d"), ""), &open), is(""));
        open.push((None, "", Syncing));
        assert_eq!(chosen(four, (Some("d"), ""), &open), is(""));
        assert_eq!(
            chosen(four, (Some("a"), "x"), &open),
            is("namespace=a; labelSelector=x")
        );
        open[3].2 = Ready;
        assert_eq!(chosen(four, (Some("a"), "x"), &open), is(""));
        // Where it may not be, there are as many narrow ones, and no more.
        open[3].2 = Failed;
        assert_eq!(chosen(four, (Some("d"), ""), &open), is("namespace=d"));
        open.push((Some("d"), "", Ready));
        assert_eq!(chosen(four, (Some("e"), ""), &open), None);
        assert_eq!(chosen(four, (Some("d"), "x"), &open), is("namespace=d"));
        assert_eq!(
            chosen(
                OnDemandLimits {
                    max_scopes: 3,
                    merge: false
                },
                (Some("e"), ""),
                &open[..3]
            ),
            None
        );
        assert_eq!(
            chosen(
                OnDemandLimits {
                    max_scopes: 1,
                    merge: true
                },
                (Some("e"), ""),
                &[]
            ),
            is("")
        );
    }

    #[test]
    fn scopes_of_other_versions_and_representations_count() {
        let four = OnDemandLimits {
            max_scopes: 4,
            merge: true,
        };
        let open = open_scopes(&[(Some("a"), "", Ready)]);
        let chosen = |namespace, elsewhere| {
            let held = four.choose(&selection(Some(namespace), ""), false, &open, elsewhere);
            held.map(|held| held.selection.to_string())
        };
        assert_eq!(chosen("b", 1).as_deref(), Some("namespace=b"));
        assert_eq!(
            chosen("b", 2).as_deref(),
            Some(""),
            "the last is everything"
        );
        assert_eq!(chosen("b", 3), None);
        assert_eq!(
            chosen("a", 3).as_deref(),
            Some("namespace=a"),
            "what is open is used"
        );
    }

    #[test]
    fn many_clients_in_a_namespace_share_its_scope() {
        let limits = OnDemandLimits::default();
        let mut open = vec![
            (Some("a"), "w", Ready),
            (Some("a"), "x", Ready),
            (Some("a"), "y", Ready),
        ];
        assert_eq!(
            chosen(limits, (Some("a"), "z"), &open),
            Some("namespace=a".to_owned())
        );
        assert_eq!(
            chosen(limits, (Some("b"), "z"), &open),
            Some("namespace=b; labelSelector=z".to_owned())
        );
        open.push((Some("a"), "", Ready));
        assert_eq!(
            chosen(limits, (Some("a"), "x"), &open),
            Some("namespace=a".to_owned()),
            "the others fall idle"
        );
    }

    #[test]
    fn a_refused_selection_is_not_tried_with_other_selectors() {
        let limits = OnDemandLimits::default();
        let open = [(Some("a"), "", Failed), (None, "", Failed)];
        assert_eq!(
            chosen(limits, (Some("a"), "x"), &open),
            Some("namespace=a".to_owned())
        );
        assert_eq!(chosen(limits, (None, "x"), &open), Some(String::new()));
        assert_eq!(
            chosen(limits, (Some("b"), "x"), &open),
            Some("namespace=b; labelSelector=x".to_owned())
        );
        assert_eq!(
            chosen(limits, (Some("b"), "x"), &[(Some("a"), "", Unknown)]),
            Some("namespace=a".to_owned())
        );
    }

    #[test]
    fn a_read_of_one_object_opens_no_scope() {
        let one = Arc::new(Selection::named(Some("a"), "n"));
        let choose = |all: &[_]| {
            OnDemandLimits::default()
                .choose(&one, true, &open_scopes(all), 0)
                .map(|held| (held.selection.to_string(), held.is_complete))
        };
        assert_eq!(choose(&[]), None);
        assert_eq!(choose(&[(Some("b"), "", Ready)]), None);
        assert_eq!(
            choose(&[(Some("a"), "x", Ready)]),
            Some(("namespace=a; labelSelector=x".to_owned(), false))
        );
        assert_eq!(
            choose(&[(Some("a"), "", Ready)]),
            Some(("namespace=a".to_owned(), true))
        );
    }

    proptest! {
        /// Reads come in any order, and scopes fail at any time.
        #[test]
        fn the_chosen_scope_covers_the_read_and_scopes_stay_bounded(
            asked in prop::collection::vec((0..4_usize, 0..5_usize, 0..8_u8), 1..60),
            max_scopes in 1..9_usize,
            merge: bool,
            elsewhere in 0..3_usize,
        ) {
            let limits = OnDemandLimits { max_scopes, merge };
            let mut open: Vec<OpenScope> = Vec::new();
            for (namespace, labels, fate) in asked {
                let namespace = [None, Some("a"), Some("b"), Some("c")][namespace];
                let wanted = selection(namespace, ["", "x", "y", "x,y", "x=1"][labels]);
                if let Some(held) = limits.choose(&wanted, false, &open, elsewhere) {
                    prop_assert!(held.is_complete && held.selection.covers(&wanted));
                    if !open.iter().any(|scope| scope.selection == held.selection) {
                        open.push(OpenScope {
                            selection: held.selection,
                            condition: Syncing,
                            is_derived: false,
                        });
                    }
                }
                let alive = open.iter().filter(|scope| scope.condition != Failed).count();
                prop_assert!(
                    alive == 0 || alive + elsewhere <= max_scopes,
                    "{alive} and {elsewhere} of {max_scopes}"
                );
                let at = usize::from(fate) % open.len().max(1);
                match fate {
                    0 if !open.is_empty() => drop(open.remove(at)),
                    1 if !open.is_empty() => open[at].condition = Failed,
                    _ => open
                        .iter_mut()
                        .filter(|scope| scope.condition == Syncing)
                        .for_each(|scope| scope.condition = Ready),
                }
            }
        }
    }
}
