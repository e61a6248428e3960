//! The effective configuration, for operators. It has the names of files, never their contents.
//!
//! Most settings are taken apart by name, so that a new one cannot be forgotten. What no operator sets is
//! left out.
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::ValueEnum;
use serde_json::{Value, json};

use super::config::AppConfig;
use crate::access::{AccessConfig, AuthenticationConfig, AuthorizationConfig, FrontProxyConfig};
use crate::admin;
use crate::audit::{AuditConfig, AuditLogConfig, AuditWebhookConfig};
use crate::listener::ConnectionLimits;
use crate::scope::{CheckpointConfig, ScopeConfig};
use crate::serve::{CachingPolicy, ClientRule, ScopePolicy, TypeName, UserLimits};
use crate::store::WindowLimits;

/// Returns the configuration as JSON.
pub(super) fn to_json(config: &AppConfig) -> Value {
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
    let ScopeConfig {
        window:
            WindowLimits {
                age: window_age,
                bytes: window_bytes,
                least: _,
            },
        max_staleness,
        self_check,
        compression,
        sync_wait: _,
        rollback_check: _,
        overdue: _,
        watch_lifetime: _,
        derive_again: _,
    } = scopes;
    let admin::Protection {
        certificate: admin_certificate,
        token_file,
    } = admin;
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "upstream": {
            "kubeconfig": upstream.kubeconfig.as_deref().map(name),
            "context": upstream.context,
            "servers": servers(&upstream.servers),
            "allowInsecure": upstream.allow_insecure,
            "compression": compression.as_str(),
        },
        "listen": listen.to_string(),
        "certificate": pair(certificate.as_ref()),
        "certDir": name(cert_dir),
        "names": names,
        "admin": {
            "listen": admin_listen.to_string(),
            "certificate": pair(admin_certificate.as_ref()),
            "tokenFile": token_file.as_deref().map(name),
        },
        "access": access_settings(access),
        "audit": audit.as_ref().map(audit_settings),
        "maxStalenessSeconds": seconds(*max_staleness),
        "checkpoints": checkpoints.as_ref().map(checkpoint_settings),
        "stateFrom": state_from.as_deref().map(name),
        "memoryLimitBytes": memory_limit,
        "selfCheckSeconds": seconds(*self_check),
        "verify": f64::from(policy.verification.parts_per_million) / 1e6,
        "shadow": policy.verification.shadow,
        "window": { "seconds": seconds(*window_age), "bytes": window_bytes },
        "consistentReads": consistent_reads(policy),
        "cache": cache_modes(policy),
        "scopes": configured_selections(policy),
        "holding": scope_policies(policy),
        "clients": client_rules(&policy.client_rules),
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
        "limits": limit_settings(limits, policy.users),
        "drainSeconds": seconds(*drain),
    })
}

fn access_settings(access: &AccessConfig) -> Value {
    let AccessConfig {
        authentication:
            AuthenticationConfig {
                token_ttl,
                audiences,
                validate_locally,
                refuse_invalid,
                anonymous,
            },
        client_ca,
        front_proxy,
        allow_masters,
        single_identity,
        authorization:
            AuthorizationConfig {
                allowed_ttl,
                denied_ttl,
                unwatched_allowed_ttl,
                unwatched_denied_ttl,
                review_failure_policy,
                node_grants,
                followed_rbac: _,
            },
    } = access;
    json!({
        "tokenSeconds": seconds(*token_ttl),
        "audiences": audiences,
        "anonymous": anonymous,
        "validateServiceAccountTokensLocally": validate_locally,
        "refuseInvalidServiceAccountTokens": refuse_invalid,
        "clientCa": client_ca.as_deref().map(name),
        "frontProxy": front_proxy.as_ref().map(front_proxy_settings),
        "allowSystemMasters": allow_masters,
        "singleIdentity": single_identity,
        "allowedSeconds": seconds(*allowed_ttl),
        "deniedSeconds": seconds(*denied_ttl),
        "unwatchedAllowedSeconds": seconds(*unwatched_allowed_ttl),
        "unwatchedDeniedSeconds": seconds(*unwatched_denied_ttl),
        "reviewFailurePolicy": flag_value(review_failure_policy),
        "nodeGrants": flag_value(node_grants),
    })
}

fn front_proxy_settings(front_proxy: &FrontProxyConfig) -> Value {
    let FrontProxyConfig {
        ca,
        allowed_names,
        username_headers,
        uid_headers,
        group_headers,
        extra_prefixes,
    } = front_proxy;
    json!({
        "ca": name(ca),
        "allowedNames": allowed_names,
        "usernameHeaders": username_headers,
        "uidHeaders": uid_headers,
        "groupHeaders": group_headers,
        "extraHeaderPrefixes": extra_prefixes,
    })
}

fn audit_settings(audit: &AuditConfig) -> Value {
    let AuditConfig {
        policy_file,
        log,
        webhook,
    } = audit;
    json!({
        "policyFile": policy_file.as_deref().map(name),
        "log": log.as_ref().map(audit_log_settings),
        "webhook": webhook.as_ref().map(audit_webhook_settings),
    })
}

fn audit_log_settings(log: &AuditLogConfig) -> Value {
    let AuditLogConfig {
        path,
        max_age,
        max_backups,
        max_size,
    } = log;
    json!({
        "path": name(path),
        "maxAgeDays": max_age,
        "maxBackups": max_backups,
        "maxBytes": max_size,
    })
}

fn audit_webhook_settings(webhook: &AuditWebhookConfig) -> Value {
    let AuditWebhookConfig {
        config_file,
        batch_max_size,
        batch_max_wait,
        buffer_size,
        initial_backoff,
    } = webhook;
    json!({
        "configFile": name(config_file),
        "batchMaxSize": batch_max_size,
        "batchMaxWaitSeconds": seconds(*batch_max_wait),
        "bufferSize": buffer_size,
        "initialBackoffSeconds": seconds(*initial_backoff),
    })
}

fn checkpoint_settings(checkpoints: &CheckpointConfig) -> Value {
    let CheckpointConfig {
        folder,
        interval,
        max_bytes,
    } = checkpoints;
    json!({
        "folder": name(folder),
        "intervalSeconds": seconds(*interval),
        "maxBytes": max_bytes,
    })
}

fn limit_settings(limits: &ConnectionLimits, users: UserLimits) -> Value {
    let ConnectionLimits {
        connections,
        connections_per_address: _,
        streams,
        stream_buffer,
        header_bytes,
        url_bytes,
        idle,
        start,
        head,
        stall,
        goaway_chance,
        max_age,
        is_chosen: _,
        slow_stranger: _,
        memory: _,
    } = limits;
    let UserLimits {
        in_flight,
        per_second,
        burst,
        forwarded,
        tunnels,
        watches,
        selector_bytes,
        scans,
        page_states,
        scopes,
    } = users;
    json!({
        "connections": connections,
        "connectionsPerAddress": limits.of_address(),
        "http2StreamsPerConnection": streams,
        "http2StreamBufferBytes": stream_buffer,
        "headerBytes": header_bytes,
        "urlBytes": url_bytes,
        "idleSeconds": seconds(*idle),
        "handshakeSeconds": seconds(*start),
        "headerSeconds": seconds(*head),
        "writeStallSeconds": seconds(*stall),
        "goawayChance": goaway_chance,
        "maxConnectionAgeSeconds": seconds(*max_age),
        "requestsInFlightPerUser": in_flight,
        "requestsPerSecondPerUser": per_second,
        "requestsBurstPerUser": burst,
        "forwardedRequestsPerUser": forwarded,
        "tunnelsPerUser": tunnels,
        "watchesPerUser": watches,
        "selectorBytesPerUser": selector_bytes,
        "scansPerUser": scans,
        "pageStatesPerUser": page_states,
        "onDemandScopesPerUser": scopes,
    })
}

fn consistent_reads(policy: &CachingPolicy) -> Value {
    let named = policy.types.chosen(|named| named.consistent_reads);
    let resources = by_type(named, "consistentReads", |reads| reads.as_str().into());
    json!({ "default": policy.consistent_reads.as_str(), "resources": resources })
}

fn cache_modes(policy: &CachingPolicy) -> Value {
    let named = policy.types.chosen(|named| named.mode);
    let resources = by_type(named, "cache", |mode| mode.as_str().into());
    json!({ "default": policy.mode.as_str(), "resources": resources })
}

fn configured_selections(policy: &CachingPolicy) -> Value {
    by_type(policy.types.scopes(), "selections", |scopes| {
        scopes.iter().map(ToString::to_string).collect()
    })
}

fn scope_policies(policy: &CachingPolicy) -> Value {
    let named = policy
        .types
        .chosen(|named| Some(&named.scope_policy).filter(|own| **own != ScopePolicy::default()));
    let resources = by_type(named, "holding", scope_policy_settings);
    json!({ "default": scope_policy_settings(&policy.scope_policy), "resources": resources })
}

fn scope_policy_settings(policy: &ScopePolicy) -> Value {
    let ScopePolicy {
        always_open,
        selector_scopes,
        merge,
        max_scopes,
        idle,
        window_age,
        window_bytes,
        max_staleness,
        derive_json,
        managed_fields,
    } = policy;
    json!({
        "always": always_open,
        "selectorScopes": selector_scopes,
        "merge": merge,
        "maxUpstreamWatches": max_scopes,
        "deriveJson": derive_json,
        "managedFieldsKept": managed_fields.map(|fields| fields.are_kept()),
        "idleSeconds": idle.map(seconds),
        "windowSeconds": window_age.map(seconds),
        "windowBytes": window_bytes,
        "maxStalenessSeconds": max_staleness.map(seconds),
    })
}

fn client_rules(rules: &[ClientRule]) -> Vec<Value> {
    let rules = rules.iter().map(|rule| {
        let ClientRule {
            user_agent,
            resource,
            watch_compression,
            watch_list,
        } = rule;
        json!({
            "userAgent": user_agent.as_ref().map(ToString::to_string),
            "resource": resource.as_ref().map(|name| [name.group(), name.resource()]),
            "watchCompression": watch_compression,
            "watchList": watch_list,
        })
    });
    rules.collect()
}

/// Returns an array with the choice for each of these types, under `key`.
fn by_type<'a, T>(
    named: impl Iterator<Item = (&'a TypeName, T)>,
    key: &str,
    show: impl Fn(T) -> Value,
) -> Value {
    let shown = named.map(|(name, choice)| {
        json!({ "group": name.group(), "resource": name.resource(), key: show(choice) })
    });
    shown.collect()
}

/// Returns a value as its flag takes it.
fn flag_value(value: &impl ValueEnum) -> Option<String> {
    Some(value.to_possible_value()?.get_name().to_owned())
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
