//! Strongly connected components of a directed graph.
use std::collections::{BTreeMap, BTreeSet};

/// Returns the sets of nodes that reach each other, largest first.
pub(crate) fn cycles<N: Ord + Clone>(graph: &BTreeMap<N, BTreeSet<N>>) -> Vec<Vec<N>> {
    let reached: BTreeMap<&N, BTreeSet<&N>> = graph
        .keys()
        .map(|node| (node, reachable(graph, node)))
        .collect();
    let mut found = BTreeSet::new();
    for node in graph.keys() {
        let circle: Vec<N> = reached[node]
            .iter()
            .filter(|other| reached.get(*other).is_some_and(|back| back.contains(node)))
            .map(|&other| other.clone())
            .collect();
        if !circle.is_empty() {
            found.insert(circle);
        }
    }
    let mut found: Vec<_> = found.into_iter().collect();
    found.sort_by_key(|circle| std::cmp::Reverse(circle.len()));
    found
}

/// Returns the nodes that are reachable in at least one step.
fn reachable<'a, N: Ord>(graph: &'a BTreeMap<N, BTreeSet<N>>, from: &N) -> BTreeSet<&'a N> {
    let mut found = BTreeSet::new();
    let mut open: Vec<&N> = graph.get(from).into_iter().flatten().collect();
    while let Some(node) = open.pop() {
        if found.insert(node) {
            open.extend(graph.get(node).into_iter().flatten());
        }
    }
    found
}
