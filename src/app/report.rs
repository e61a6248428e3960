//! The configuration as it is in effect, for operators. Names of files stand in it, and nothing of
//! what is in them.
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};

use super::AppConfig;
use crate::serve::{CachingPolicy, ConsistentReads, ScopePolicy};

/// As JSON.
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
        policy,
        aggregated,
        limits,
        drain,
    } = config;
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "upstream": {
            "kubeconfig": upstream.kubeconfig.as_deref().map(name),
            "context": upstream.context,
            "servers": upstream.servers.iter().map(|url| without_credentials(url)).collect::<Vec<_>>(),
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
        "access": {
            "tokenSeconds": seconds(access.authentication.token_ttl),
            "audiences": access.authentication.audiences,
            "anonymous": access.authentication.anonymous,
            "validateServiceAccountTokensLocally": access.authentication.validate_locally,
            "clientCa": access.client_ca.as_deref().map(name),
            "frontProxyCa": access.front_proxy.as_ref().map(|proxy| name(&proxy.ca)),
            "singleIdentity": access.single_identity,
        },
        "audit": audit.as_ref().map(|audit| json!({
            "policyFile": audit.policy_file.as_deref().map(name),
            "log": audit.log.as_ref().map(|log| name(&log.path)),
            "webhookConfigFile": audit.webhook.as_ref().map(|webhook| name(&webhook.config_file)),
        })),
        "window": { "seconds": seconds(scopes.window.age), "bytes": scopes.window.bytes },
        "consistentReads": reads(policy),
        "cache": kept(policy),
        "scopes": scoped(policy),
        "holding": held(policy),
        "cacheAggregated": aggregated,
        "limits": {
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
            "requestsInFlightPerUser": policy.users.in_flight,
            "requestsPerSecondPerUser": policy.users.per_second,
            "requestsBurstPerUser": policy.users.burst,
        },
        "drainSeconds": seconds(*drain),
    })
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

/// A URL may hold a password.
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

fn reads(policy: &CachingPolicy) -> Value {
    let word = |choice: ConsistentReads| match choice {
        ConsistentReads::ProvenFresh => "linearizable",
        ConsistentReads::Upstream => "forward",
        ConsistentReads::PossiblyStale => "stale",
    };
    let mut resources: Vec<_> = policy.consistent_reads_by_type.iter().collect();
    resources.sort_by_key(|(key, _)| *key);
    let resources = resources.into_iter().map(|((group, resource), choice)| {
        json!({ "group": group, "resource": resource, "consistentReads": word(*choice) })
    });
    json!({ "default": word(policy.consistent_reads), "resources": resources.collect::<Vec<_>>() })
}

fn kept(policy: &CachingPolicy) -> Value {
    let mut named: Vec<_> = policy.mode_by_type.iter().collect();
    named.sort_by_key(|(key, _)| *key);
    let named = named.into_iter().map(
        |((group, resource), kept)| json!({ "group": group, "resource": resource, "cache": kept.as_str() }),
    );
    json!({ "default": policy.mode.as_str(), "resources": named.collect::<Vec<_>>() })
}

fn scoped(policy: &CachingPolicy) -> Value {
    let mut named: Vec<_> = policy.scopes.iter().collect();
    named.sort_by_key(|(key, _)| *key);
    let named = named.into_iter().map(|((group, resource), selections)| {
        let selections: Vec<_> = selections.iter().map(ToString::to_string).collect();
        json!({ "group": group, "resource": resource, "selections": selections })
    });
    named.collect()
}

fn held(policy: &CachingPolicy) -> Value {
    let shown = |holding: &ScopePolicy| {
        json!({
            "always": holding.always_open,
            "selectorScopes": holding.selector_scopes,
            "merge": holding.merge,
            "maxUpstreamWatches": holding.max_scopes,
            "idleSeconds": holding.idle.map(seconds),
            "windowSeconds": holding.window_age.map(seconds),
            "windowBytes": holding.window_bytes,
        })
    };
    let mut named: Vec<_> = policy.scope_policy_by_type.iter().collect();
    named.sort_by_key(|(key, _)| *key);
    let named = named.into_iter().map(|((group, resource), holding)| {
        json!({ "group": group, "resource": resource, "holding": shown(holding) })
    });
    json!({ "default": shown(&policy.scope_policy), "resources": named.collect::<Vec<_>>() })
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
