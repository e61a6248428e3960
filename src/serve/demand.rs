//! Which scope a read is answered from, of a type whose scopes are opened by demand. Looks at what
//! is open, and opens nothing.
//!
//! Few clients that want little get a scope for each; many get one for all of them. Nobody who
//! watches a narrow scope is disturbed: it falls idle when its watchers have gone, as whoever comes
//! anew is led to the wide one.
use std::sync::Arc;

use super::policy::HeldIn;
use watershed_protocol::Selection;

/// So many scopes within a namespace, and the next read in it opens the namespace's.
const IN_A_NAMESPACE: usize = 3;

/// What a type's scopes that are opened by demand may cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Demand {
    /// The most scopes, each a watch at upstream, that the type has in all its versions and
    /// representations.
    pub(super) most: usize,
    /// Whether a namespace's or all objects may take the place of narrow ones.
    pub(super) merge: bool,
}

/// Upstream looks at each event of a type once for each of its watches, unless it has an index for
/// the selector: so many cost it little, and a proxy that wants more of them wants most of the
/// type.
pub(super) const MOST: usize = 8;

impl Default for Demand {
    fn default() -> Self {
        Self {
            most: MOST,
            merge: true,
        }
    }
}

/// How a scope is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Condition {
    Ready,
    /// Its first list is not in.
    Syncing,
    /// Upstream does not let it be followed, for example as the proxy has no right to.
    Failed,
    /// The type has no such representation, whatever part of it is asked for.
    Unknown,
}

impl Condition {
    /// Whether it is, or is to be, a watch at upstream.
    pub(super) fn is_alive(self) -> bool {
        matches!(self, Self::Ready | Self::Syncing)
    }
}

/// A scope that is open.
#[derive(Clone, Debug)]
pub(super) struct Present {
    pub(super) selection: Arc<Selection>,
    pub(super) condition: Condition,
}

impl Demand {
    /// The scope that a read of `asked` is to be answered from, open or to be opened; `None`: it is
    /// forwarded.
    ///
    /// For one object none is opened. It may be found where not all of its kind are. `present` are
    /// those in the version and representation that is asked for, `elsewhere` is how many there are
    /// in others.
    pub(super) fn choose(
        self,
        asked: &Arc<Selection>,
        one: bool,
        present: &[Present],
        elsewhere: usize,
    ) -> Option<HeldIn> {
        let complete = |selection: &Arc<Selection>| HeldIn {
            selection: Arc::clone(selection),
            is_complete: true,
        };
        if let Some(useless) = present
            .iter()
            .find(|scope| scope.condition == Condition::Unknown)
        {
            return Some(complete(&useless.selection));
        }
        let (failed, alive): (Vec<_>, Vec<_>) = present
            .iter()
            .partition(|scope| scope.condition == Condition::Failed);
        // What was refused is not tried again by other selectors: rights do not look at them.
        let refused = |wanted: &Selection| {
            let refused = |scope: &&&Present| {
                scope.selection.namespace == wanted.namespace && scope.selection.covers(wanted)
            };
            failed.iter().find(refused)
        };
        let covering: Vec<_> = alive
            .iter()
            .filter(|scope| scope.selection.covers(asked))
            .collect();
        let ready = covering
            .iter()
            .filter(|scope| scope.condition == Condition::Ready);
        let ready: Vec<_> = ready.map(|scope| &scope.selection).collect();
        let syncing: Vec<_> = covering.iter().map(|scope| &scope.selection).collect();
        if let Some(scope) = preferred(&ready).or_else(|| preferred(&syncing)) {
            return Some(complete(scope));
        }
        if one {
            let may_have = |scope: &&&Present| {
                let namespace = &scope.selection.namespace;
                scope.condition == Condition::Ready
                    && (namespace.is_none() || *namespace == asked.namespace)
            };
            let scope = alive.iter().find(may_have)?;
            return Some(HeldIn {
                selection: Arc::clone(&scope.selection),
                is_complete: false,
            });
        }
        let everything = Arc::<Selection>::default();
        let may_merge = |into: &Selection| self.merge && refused(into).is_none();
        let watches = alive.len() + elsewhere;
        if watches >= self.most {
            return None;
        }
        if watches + 1 == self.most && may_merge(&everything) {
            return Some(complete(&everything));
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
            if in_it >= IN_A_NAMESPACE && may_merge(&namespace) {
                return Some(complete(&Arc::new(namespace)));
            }
        }
        Some(complete(
            refused(asked).map_or(asked, |refused| &refused.selection),
        ))
    }
}

/// Everything, or all of a namespace, so that others fall idle; else the narrowest.
fn preferred<'a>(scopes: &[&'a Arc<Selection>]) -> Option<&'a Arc<Selection>> {
    let of_a_namespace =
        |scope: &&&Arc<Selection>| scope.labels.is_everything() && scope.fields.is_everything();
    let wide = scopes.iter().find(|scope| scope.is_everything());
    let wide = wide.or_else(|| scopes.iter().find(of_a_namespace)).copied();
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

    fn present(all: &[(Option<&str>, &str, Condition)]) -> Vec<Present> {
        let of = |&(namespace, labels, condition): &_| Present {
            selection: selection(namespace, labels),
            condition,
        };
        all.iter().map(of).collect()
    }

    fn chosen(
        demand: Demand,
        asked: (Option<&str>, &str),
        all: &[(Option<&str>, &str, Condition)],
    ) -> Option<String> {
        let held = demand.choose(&selection(asked.0, asked.1), false, &present(all), 0)?;
        assert!(held.is_complete);
        Some(held.selection.to_string())
    }

    use Condition::{Failed, Ready, Syncing, Unknown};

    #[test]
    fn few_get_what_they_ask_for_and_many_share() {
        let four = Demand {
            most: 4,
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
                Demand {
                    most: 3,
                    merge: false
                },
                (Some("e"), ""),
                &open[..3]
            ),
            None
        );
        assert_eq!(
            chosen(
                Demand {
                    most: 1,
                    merge: true
                },
                (Some("e"), ""),
                &[]
            ),
            is("")
        );
    }

    #[test]
    fn other_versions_and_representations_count() {
        let four = Demand {
            most: 4,
            merge: true,
        };
        let open = present(&[(Some("a"), "", Ready)]);
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
    fn many_in_a_namespace_share_the_namespace() {
        let demand = Demand::default();
        let mut open = vec![
            (Some("a"), "w", Ready),
            (Some("a"), "x", Ready),
            (Some("a"), "y", Ready),
        ];
        assert_eq!(
            chosen(demand, (Some("a"), "z"), &open),
            Some("namespace=a".to_owned())
        );
        assert_eq!(
            chosen(demand, (Some("b"), "z"), &open),
            Some("namespace=b; labelSelector=z".to_owned())
        );
        open.push((Some("a"), "", Ready));
        assert_eq!(
            chosen(demand, (Some("a"), "x"), &open),
            Some("namespace=a".to_owned()),
            "the others fall idle"
        );
    }

    #[test]
    fn what_was_refused_is_not_asked_for_in_other_words() {
        let demand = Demand::default();
        let open = [(Some("a"), "", Failed), (None, "", Failed)];
        assert_eq!(
            chosen(demand, (Some("a"), "x"), &open),
            Some("namespace=a".to_owned())
        );
        assert_eq!(chosen(demand, (None, "x"), &open), Some(String::new()));
        assert_eq!(
            chosen(demand, (Some("b"), "x"), &open),
            Some("namespace=b; labelSelector=x".to_owned())
        );
        assert_eq!(
            chosen(demand, (Some("b"), "x"), &[(Some("a"), "", Unknown)]),
            Some("namespace=a".to_owned())
        );
    }

    #[test]
    fn for_one_object_no_scope_is_opened() {
        let one = Arc::new(Selection::named(Some("a"), "n"));
        let choose = |all: &[_]| {
            Demand::default()
                .choose(&one, true, &present(all), 0)
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
        /// Whatever is asked for in whatever order, and whatever fails meanwhile: what is chosen
        /// covers what is asked for, and there are never more watches than allowed.
        #[test]
        fn never_more_than_allowed_and_always_covered(
            asked in prop::collection::vec((0..4_usize, 0..5_usize, 0..8_u8), 1..60),
            most in 1..9_usize,
            merge: bool,
            elsewhere in 0..3_usize,
        ) {
            let demand = Demand { most, merge };
            let mut open: Vec<Present> = Vec::new();
            for (namespace, labels, fate) in asked {
                let namespace = [None, Some("a"), Some("b"), Some("c")][namespace];
                let wanted = selection(namespace, ["", "x", "y", "x,y", "x=1"][labels]);
                if let Some(held) = demand.choose(&wanted, false, &open, elsewhere) {
                    prop_assert!(held.is_complete && held.selection.covers(&wanted));
                    if !open.iter().any(|scope| scope.selection == held.selection) {
                        open.push(Present { selection: held.selection, condition: Syncing });
                    }
                }
                let alive = open.iter().filter(|scope| scope.condition != Failed).count();
                prop_assert!(alive == 0 || alive + elsewhere <= most, "{alive} and {elsewhere} of {most}");
                let at = usize::from(fate) % open.len().max(1);
                match fate {
                    0 if !open.is_empty() => drop(open.remove(at)),
                    1 if !open.is_empty() => open[at].condition = Failed,
                    _ => open.iter_mut().filter(|scope| scope.condition == Syncing).for_each(|scope| scope.condition = Ready),
                }
            }
        }
    }
}
