//! Builds the caching policy from the configuration file.
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use anyhow::{anyhow, bail, ensure};
use serde_saphyr::Spanned;
use watershed_protocol::Selection;

use super::file::{
    CacheChoice, ClientSettings, ConfigFile, ManagedFieldsChoice, ScopeSettings, TypeSettings,
};
use crate::cli::duration::seconds;
use crate::serve::{CacheMode, CachingPolicy, ClientRule, ScopePolicy, TypeName};

/// Old names of keys, each with its new one.
const RENAMED: [(&str, &str); 1] = [("narrow", "selectorScopes")];

/// A type that is always cached by selector scopes, so that `scopes` has to list them.
struct RequiredScopes {
    line: u64,
    name: String,
    key: TypeName,
}

/// Parses the file. Keys that it does not set stay as in `preset`.
pub(crate) fn parse(text: &str, preset: CachingPolicy) -> anyhow::Result<CachingPolicy> {
    // A file with nothing but comments is valid.
    let file: Option<ConfigFile> =
        serde_saphyr::from_str(text).map_err(|error| anyhow!("{}", explained(&error)))?;
    let file = file.unwrap_or_default();
    if let Some(cache) = &file.cache
        && cache.value == CacheChoice::Always
    {
        bail!(
            "line {}: cache: always is only for single types, under resources",
            cache.referenced.line()
        );
    }
    let mut policy = CachingPolicy {
        consistent_reads: file.consistent_reads,
        mode: file.cache.map_or(preset.mode, |cache| cache.value.mode()),
        scope_policy: ScopePolicy {
            selector_scopes: file.selector_scopes,
            idle: file.idle_seconds.map(seconds),
            max_staleness: file.max_staleness_seconds.map(seconds),
            derive_json: file.derive_json,
            managed_fields: file.managed_fields.map(ManagedFieldsChoice::treatment),
            ..ScopePolicy::default()
        },
        memory_limit: file.memory_limit,
        ..preset
    };
    // The file may set a mode that the preset sets, so the preset's choices are added later.
    let preset_types = std::mem::take(&mut policy.types);
    let required = apply_resources(&mut policy, file.resources)?;
    for (name, preset) in preset_types.iter() {
        let named = policy.types.entry(name.group(), name.resource());
        named.mode = named.mode.or(preset.mode);
        named.consistent_reads = named.consistent_reads.or(preset.consistent_reads);
        named.scope_policy = named.scope_policy.or(preset.scope_policy);
        named.scopes.clone_from(&preset.scopes);
    }
    add_scopes(&mut policy, file.scopes)?;
    policy.client_rules = client_rules(file.clients)?;
    for RequiredScopes { line, name, key } in required {
        ensure!(
            !policy
                .configured_scopes(key.group(), key.resource())
                .is_empty(),
            "line {line}: {name} has cache: always and selectorScopes: \
             list its parts under scopes"
        );
    }
    Ok(policy)
}

/// Returns the parser's message, with the new name of a key that was renamed.
fn explained(error: &serde_saphyr::Error) -> String {
    let message = error.without_snippet().to_string();
    let renamed = RENAMED
        .iter()
        .find(|(old, _)| message.contains(&format!("unknown field `{old}`")));
    match renamed {
        Some((old, new)) => format!("`{old}` is now `{new}`: {message}"),
        None => message,
    }
}

/// Adds the settings of single types to the policy. Returns the types whose scopes must be listed.
fn apply_resources(
    policy: &mut CachingPolicy,
    resources: Vec<Spanned<TypeSettings>>,
) -> anyhow::Result<Vec<RequiredScopes>> {
    let mut names = HashSet::new();
    let mut required = Vec::new();
    for entry in resources {
        let line = entry.referenced.line();
        let name = entry.value.name();
        ensure!(
            names.insert(name.clone()),
            "line {line}: {name} has two entries"
        );
        required.extend(apply_settings(policy, line, entry.value)?);
    }
    Ok(required)
}

fn apply_settings(
    policy: &mut CachingPolicy,
    line: u64,
    settings: TypeSettings,
) -> anyhow::Result<Option<RequiredScopes>> {
    let name = settings.name();
    let scope_policy = settings.scope_policy();
    let TypeSettings {
        group,
        resource,
        consistent_reads,
        cache,
        ..
    } = settings;
    ensure!(
        consistent_reads.is_some() || cache.is_some() || scope_policy != ScopePolicy::default(),
        "line {line}: {name} has no settings"
    );
    let named = policy.types.entry(&group, &resource);
    let is_kept_alike = cache.is_none()
        || named.mode.is_none()
        || named.scope_policy.always_open == scope_policy.always_open;
    for (key, agrees) in [
        (
            "cache",
            choose(&mut named.mode, cache.map(CacheChoice::mode)) && is_kept_alike,
        ),
        (
            "consistentReads",
            choose(&mut named.consistent_reads, consistent_reads),
        ),
    ] {
        ensure!(
            agrees,
            "line {line}: {name} has another {key} in an earlier entry, in a group with the same \
             objects"
        );
    }
    let mut required = None;
    if scope_policy != ScopePolicy::default() {
        let selector_scopes = scope_policy
            .selector_scopes
            .or(policy.scope_policy.selector_scopes)
            .unwrap_or(false);
        check_scope_policy(&scope_policy, selector_scopes, line, &name)?;
        if scope_policy.always_open && selector_scopes {
            required = Some(RequiredScopes {
                line,
                name: name.clone(),
                key: TypeName::new(&group, &resource),
            });
        }
        ensure!(
            named.scope_policy == ScopePolicy::default() || named.scope_policy == scope_policy,
            "line {line}: {name} has other settings of scopes in an earlier entry, in a group with \
             the same objects"
        );
        named.scope_policy = scope_policy;
    }
    // The other group's entry may set either.
    ensure!(
        named.mode != Some(CacheMode::Nothing) || named.scope_policy == ScopePolicy::default(),
        "line {line}: {name} has cache: never, so that settings of scopes do not apply"
    );
    Ok(required)
}

/// Sets a choice. Returns `false` if an earlier entry made another one: the same objects may have an
/// entry in each of their groups.
fn choose<T: Copy + PartialEq>(chosen: &mut Option<T>, choice: Option<T>) -> bool {
    let agrees = choice.is_none() || chosen.is_none() || *chosen == choice;
    *chosen = chosen.or(choice);
    agrees
}

/// Refuses settings of scopes that contradict each other.
fn check_scope_policy(
    scope_policy: &ScopePolicy,
    selector_scopes: bool,
    line: u64,
    name: &str,
) -> anyhow::Result<()> {
    ensure!(
        selector_scopes || (scope_policy.merge.is_none() && scope_policy.max_scopes.is_none()),
        "line {line}: merge and maxUpstreamWatches need selector scopes: \
         add selectorScopes: true to {name}"
    );
    ensure!(
        scope_policy.max_scopes != Some(0),
        "line {line}: {name} has maxUpstreamWatches: 0; use cache: never instead"
    );
    ensure!(
        !(scope_policy.always_open && scope_policy.idle.is_some()),
        "line {line}: {name} has cache: always, so that idleSeconds does not apply"
    );
    Ok(())
}

/// Adds the listed scopes to the policy. No scope may contain another.
fn add_scopes(
    policy: &mut CachingPolicy,
    scopes: Vec<Spanned<ScopeSettings>>,
) -> anyhow::Result<()> {
    let mut by_type: HashMap<_, Vec<(u64, Arc<Selection>)>> = HashMap::new();
    for entry in scopes {
        let line = entry.referenced.line();
        let name = entry.value.name();
        let ScopeSettings {
            group,
            resource,
            namespaces,
            label_selector,
            field_selector,
        } = entry.value;
        ensure!(
            policy.may_cache(&group, &resource),
            "line {line}: a scope of {name}, which is not cached: \
             add it with cache: onDemand to resources"
        );
        for namespace in &namespaces {
            ensure!(
                is_dns_label(namespace),
                "line {line}: {namespace:?} cannot be the name of a namespace"
            );
        }
        let namespaces = if namespaces.is_empty() {
            vec![None]
        } else {
            namespaces.into_iter().map(Some).collect()
        };
        let known = by_type.entry(TypeName::new(&group, &resource)).or_default();
        for namespace in namespaces {
            let selection = Selection {
                namespace,
                labels: label_selector.clone(),
                fields: field_selector.clone(),
            };
            for (other, scope) in &*known {
                ensure!(
                    !scope.covers(&selection) && !selection.covers(scope),
                    "line {line}: this scope of {name} contains the one in line {other}, \
                     or is a part of it"
                );
            }
            known.push((line, Arc::new(selection)));
        }
    }
    for (name, selections) in by_type {
        let selections = selections
            .into_iter()
            .map(|(_, selection)| selection)
            .collect();
        policy.types.entry(name.group(), name.resource()).scopes = selections;
    }
    Ok(())
}

/// Returns the rules about single clients.
fn client_rules(entries: Vec<Spanned<ClientSettings>>) -> anyhow::Result<Vec<ClientRule>> {
    let mut rules = Vec::with_capacity(entries.len());
    for entry in entries {
        let line = entry.referenced.line();
        let ClientSettings {
            user_agent,
            group,
            resource,
            watch_compression,
            watch_list,
        } = entry.value;
        ensure!(
            resource.is_some() || group.is_empty(),
            "line {line}: an entry of clients has a group and no resource"
        );
        ensure!(
            watch_compression.is_some() || watch_list.is_some(),
            "line {line}: an entry of clients sets neither watchCompression nor watchList"
        );
        rules.push(ClientRule {
            user_agent,
            resource: resource.map(|resource| TypeName::new(&group, &resource)),
            watch_compression,
            watch_list,
        });
    }
    Ok(rules)
}

/// Returns `true` if an API server takes this as a namespace's name.
///
/// Source: `apimachinery/pkg/util/validation/validation.go` (IsDNS1123Label).
fn is_dns_label(name: &str) -> bool {
    let is_alphanumeric = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let has_ends = name.bytes().next().is_some_and(is_alphanumeric)
        && name.bytes().next_back().is_some_and(is_alphanumeric);
    has_ends
        && name.len() <= 63
        && name
            .bytes()
            .all(|byte| is_alphanumeric(byte) || byte == b'-')
}

#[cfg(test)]
mod tests;
