//! The operator's choices for single types.
use std::sync::Arc;

use watershed_protocol::Selection;

use super::choices::{CacheMode, ConsistentReads, ScopePolicy};
use super::type_name::{TypeName, stored_in};

/// The choices for one type. What is `None` is as for unnamed types.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TypePolicy {
    /// The type's mode.
    pub mode: Option<CacheMode>,
    /// The type's consistent reads.
    pub consistent_reads: Option<ConsistentReads>,
    /// Selections that have a scope each. Without any, the type has one scope of everything.
    pub scopes: Vec<Arc<Selection>>,
    /// The type's scope policy.
    pub scope_policy: ScopePolicy,
}

/// The choices for all named types.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TypePolicies {
    /// Sorted by name, so that no name is made to find one.
    types: Vec<(TypeName, TypePolicy)>,
}

impl TypePolicies {
    /// Returns the choices for a type, under any of its groups.
    pub fn get(&self, group: &str, resource: &str) -> Option<&TypePolicy> {
        let at = self.position(group, resource).ok()?;
        Some(&self.types[at].1)
    }

    /// Returns the choices for a type, under any of its groups. There are none at first.
    pub fn entry(&mut self, group: &str, resource: &str) -> &mut TypePolicy {
        let at = self.position(group, resource).unwrap_or_else(|at| {
            let named = (TypeName::new(group, resource), TypePolicy::default());
            self.types.insert(at, named);
            at
        });
        &mut self.types[at].1
    }

    /// Returns the named types, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = (&TypeName, &TypePolicy)> {
        self.types.iter().map(|(name, policy)| (name, policy))
    }

    /// Returns the types for which something was chosen, and that, sorted by name.
    pub fn chosen<'a, T>(
        &'a self,
        choice: impl Fn(&'a TypePolicy) -> Option<T>,
    ) -> impl Iterator<Item = (&'a TypeName, T)> {
        self.iter()
            .filter_map(move |(name, policy)| Some((name, choice(policy)?)))
    }

    /// Returns the types whose selections have a scope each, and these, sorted by name.
    pub fn scopes(&self) -> impl Iterator<Item = (&TypeName, &[Arc<Selection>])> {
        self.chosen(|named| (!named.scopes.is_empty()).then_some(&*named.scopes))
    }

    fn position(&self, group: &str, resource: &str) -> Result<usize, usize> {
        let wanted = (stored_in(group, resource), resource);
        self.types
            .binary_search_by(|(name, _)| name.parts().cmp(&wanted))
    }
}
