//! The effective configuration, for operators. It has the names of files, never their contents.
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};

use super::config::AppConfig;
use crate::access::{AccessConfig, NodeGrantMode};
use crate::listener::ConnectionLimits;
use crate::serve::{CachingPolicy, ConsistentReads, ScopePolicy, TypeName, UserLimits};

/// Returns the configuration as JSON.
pub(super) fn of(config: &AppConfig) -> Value {
    let AppConfig {
        upstream,
        listen,
        certificate,
        cert_dir,
        names,
        admin_listen,
        admin,
        access,
        audit,
        scopes,
        checkpoints,
        state_from,
        memory_limit,
        policy,
        aggregated,
        limits,
        tls_policy,
        hsts,
        filter,
        trusted_proxies,
        proxy_protocol,
        drain,
    } = config;
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "upstream": {
            "kubeconfig": upstream.kubeconfig.as_deref().map(name),
            "context": upstream.context,
            "servers": servers(&upstream.servers),
            "allowInsecure": upstream.allow_insecure,
            "compression": scopes.compression.as_str(),
        },
        "listen": listen.to_string(),
        "certificate": pair(certificate.as_ref()),
        "certDir": name(cert_dir),
        "names": names,
        "admin": {
            "listen": admin_listen.to_string(),
            "certificate": pair(admin.certificate.as_ref()),
            "tokenFile": admin.token_file.as_deref().map(name),
        },
        "access": access_values(access),
        "audit": audit.as_ref().map(|audit| json!({
            "policyFile": audit.policy_file.as_deref().map(name),
            "log": audit.log.as_ref().map(|log| name(&log.path)),
            "webhookConfigFile": audit.webhook.as_ref().map(|webhook| name(&webhook.config_file)),
        })),
        "maxStalenessSeconds": seconds(scopes.max_staleness),
        "checkpoints": checkpoints.as_ref().map(|checkpoints| json!({
            "folder": name(&checkpoints.folder),
            "intervalSeconds": seconds(checkpoints.interval),
            "maxBytes": checkpoints.max_bytes,
        })),
        "stateFrom": state_from.as_deref().map(name),
        "memoryLimitBytes": memory_limit,
        "selfCheckSeconds": seconds(scopes.self_check),
        "verify": f64::from(policy.verification.parts_per_million) / 1e6,
        "shadow": policy.verification.shadow,
        "window": { "seconds": seconds(scopes.window.age), "bytes": scopes.window.bytes },
        "consistentReads": reads(policy),
        "cache": kept(policy),
        "scopes": scoped(policy),
        "holding": held(policy),
        "clients": client_rules(policy),
        "cacheAggregated": aggregated,
        "tlsMinVersion": tls_policy.min_version.as_str(),
        "tlsCipherSuites": tls_policy
            .cipher_suites
            .iter()
            .map(|suite| suite.as_str())
            .collect::<Vec<_>>(),
        "strictTransportSecurity": hsts.as_ref().map(|value| String::from_utf8_lossy(value.as_bytes())),
        "requestFilter": filter.as_ref().map(|filter| format!("{filter:?}")),
        "trustedProxies": trusted_proxies.names(),
        "proxyProtocol": proxy_protocol,
        "limits": limit_values(limits, policy.users),
        "drainSeconds": seconds(*drain),
    })
}

fn access_values(access: &AccessConfig) -> Value {
    json!({
        "tokenSeconds": seconds(access.authentication.token_ttl),
        "audiences": access.authentication.audiences,
        "anonymous": access.authentication.anonymous,
        "validateServiceAccountTokensLocally": access.authentication.validate_locally,
        "refuseInvalidServiceAccountTokens": access.authentication.refuse_invalid,
        "clientCa": access.client_ca.as_deref().map(name),
        "frontProxyCa": access.front_proxy.as_ref().map(|proxy| name(&proxy.ca)),
        "allowSystemMasters": access.allow_masters,
        "singleIdentity": access.single_identity,
        "nodeGrants": match access.authorization.node_grants {
            NodeGrantMode::Review => "review",
            NodeGrantMode::FollowPods => "follow-pods",
        },
    })
}

fn limit_values(limits: &ConnectionLimits, users: UserLimits) -> Value {
    json!({
        "connections": limits.connections,
        "connectionsPerAddress": limits.connections_per_address,
        "http2StreamsPerConnection": limits.streams,
        "http2StreamBufferBytes": limits.stream_buffer,
        "headerBytes": limits.header_bytes,
        "urlBytes": limits.url_bytes,
        "idleSeconds": seconds(limits.idle),
        "handshakeSeconds": seconds(limits.start),
        "headerSeconds": seconds(limits.head),
        "writeStallSeconds": seconds(limits.stall),
        "goawayChance": limits.goaway_chance,
        "maxConnectionAgeSeconds": seconds(limits.max_age),
        "requestsInFlightPerUser": users.in_flight,
        "requestsPerSecondPerUser": users.per_second,
        "requestsBurstPerUser": users.burst,
        "forwardedRequestsPerUser": users.forwarded,
        "tunnelsPerUser": users.tunnels,
        "watchesPerUser": users.watches,
        "selectorBytesPerUser": users.selector_bytes,
        "scansPerUser": users.scans,
        "pageStatesPerUser": users.page_states,
        "onDemandScopesPerUser": users.scopes,
    })
}

fn servers(urls: &[String]) -> Vec<String> {
    urls.iter().map(|url| without_credentials(url)).collect()
}

fn name(path: &Path) -> String {
    path.display().to_string()
}

fn pair(files: Option<&(PathBuf, PathBuf)>) -> Value {
    files.map_or(
        Value::Null,
        |(cert, key)| json!({ "cert": name(cert), "key": name(key) }),
    )
}

fn seconds(duration: Duration) -> f64 {
    duration.as_secs_f64()
}

/// Returns a URL without user, password and query.
fn without_credentials(url: &str) -> String {
    match url.split_once("://") {
        Some((scheme, rest)) => {
            let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
            let host = authority
                .rsplit_once('@')
                .map_or(authority, |(_, host)| host);
            format!(
                "{scheme}://{host}{}",
                &rest[authority.len()..]
                    .split(['?', '#'])
                    .next()
                    .unwrap_or_default()
            )
        }
        None => url
            .rsplit_once('@')
            .map_or(url, |(_, host)| host)
            .to_owned(),
    }
}

/// Returns the value of `consistentReads` in the configuration.
fn as_configured(reads: ConsistentReads) -> &'static str {
    match reads {
        ConsistentReads::ProvenFresh => "linearizable",
        ConsistentReads::Upstream => "forward",
        ConsistentReads::PossiblyStale => "stale",
    }
}

fn reads(policy: &CachingPolicy) -> Value {
    let named = policy.types.chosen(|named| named.consistent_reads);
    let resources = of_types(named, "consistentReads", |choice| {
        as_configured(choice).into()
    });
    json!({ "default": as_configured(policy.consistent_reads), "resources": resources })
}

fn kept(policy: &CachingPolicy) -> Value {
    let named = policy.types.chosen(|named| named.mode);
    let resources = of_types(named, "cache", |mode| mode.as_str().into());
    json!({ "default": policy.mode.as_str(), "resources": resources })
}

fn scoped(policy: &CachingPolicy) -> Value {
    of_types(policy.types.scopes(), "selections", |scopes| {
        scopes.iter().map(ToString::to_string).collect()
    })
}

/// Returns an array with the choice for each of these types, under `key`.
fn of_types<'a, T>(
    named: impl Iterator<Item = (&'a TypeName, T)>,
    key: &str,
    show: impl Fn(T) -> Value,
) -> Value {
    let shown = named.map(|(name, choice)| {
        json!({ "group": name.group(), "resource": name.resource(), key: show(choice) })
    });
    shown.collect()
}

fn client_rules(policy: &CachingPolicy) -> Vec<Value> {
    let rules = policy.client_rules.iter().map(|rule| {
        json!({
            "userAgent": rule.user_agent.as_ref().map(ToString::to_string),
            "resource": rule.resource.as_ref().map(|name| [name.group(), name.resource()]),
            "watchCompression": rule.watch_compression,
            "watchList": rule.watch_list,
        })
    });
    rules.collect()
}

fn scope_policy(policy: &ScopePolicy) -> Value {
    json!({
        "always": policy.always_open,
        "selectorScopes": policy.selector_scopes,
        "merge": policy.merge,
        "maxUpstreamWatches": policy.max_scopes,
        "managedFieldsKept": policy.managed_fields.map(|fields| fields.are_kept()),
        "idleSeconds": policy.idle.map(seconds),
        "windowSeconds": policy.window_age.map(seconds),
        "windowBytes": policy.window_bytes,
        "maxStalenessSeconds": policy.max_staleness.map(seconds),
    })
}

fn held(policy: &CachingPolicy) -> Value {
    let named = policy
        .types
        .chosen(|named| Some(&named.scope_policy).filter(|own| **own != ScopePolicy::default()));
    let resources = of_types(named, "holding", scope_policy);
    json!({ "default": scope_policy(&policy.scope_policy), "resources": resources })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_lose_their_credentials() {
        for (url, shown) in [
            ("https://a:b@host:6443/x?token=c", "https://host:6443/x"),
            ("https://host:6443", "https://host:6443"),
            ("a:b@host:6443", "host:6443"),
            ("https://a:b@c@host/", "https://host/"),
        ] {
            assert_eq!(without_credentials(url), shown);
        }
    }
}
