//! The proxy's rights at upstream, compared with those that it needs.
use std::time::Duration;

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use http::StatusCode;
use watershed_protocol::{FieldOperator, GroupVersionResource, ResourceRequest, Selection, Verb};

use super::finding::Findings;
use crate::access::{AccessAttributes, CREDENTIAL_ID, OwnRights, ReviewError, ReviewSelectors};
use crate::app::config::AppConfig;
use crate::app::discovery;
use crate::catalog::{Catalog, CatalogFollower};
use crate::scope::Scopes;
use crate::upstream::UpstreamClient;

/// Time limit for the list of custom types.
const CUSTOM_TYPES: Duration = Duration::from_secs(10);
const SUBJECT: &str = "rights";
const TYPES: &str = "types";
/// Limit of concurrent reviews.
const CONCURRENT_REVIEWS: usize = 16;
/// Number of types that a line names. The others are counted.
const NAMED: usize = 8;

/// The types that the proxy reads for itself, and the effect of not being allowed to.
const FOR_ITSELF: &[(&str, &str, &str, &str)] = &[
    (
        "apiextensions.k8s.io",
        "v1",
        "customresourcedefinitions",
        "reads of custom types are forwarded",
    ),
    ("rbac.authorization.k8s.io", "v1", "roles", RBAC),
    ("rbac.authorization.k8s.io", "v1", "rolebindings", RBAC),
    ("rbac.authorization.k8s.io", "v1", "clusterroles", RBAC),
    (
        "rbac.authorization.k8s.io",
        "v1",
        "clusterrolebindings",
        RBAC,
    ),
    (
        "apiregistration.k8s.io",
        "v1",
        "apiservices",
        "without `list`, of the types that are not custom, those of Kubernetes' own groups alone are cached; without \
         `watch`, discovery is read each minute",
    ),
];
const RBAC: &str = "what callers may is remembered for seconds only";

pub(super) async fn examine(config: &AppConfig, client: &UpstreamClient, findings: &mut Findings) {
    let rights = OwnRights::new(client.clone());
    let examined = examine_rights(config, &rights, findings).await;
    let is_known = examined.is_ok();
    report(examined, findings);
    // Upstream may not say what the proxy may, and let it read the types or not.
    let catalog = examine_types(config, client, findings).await;
    if let Some(catalog) = catalog
        && is_known
    {
        let examined = examine_cached_types(config, &catalog, &rights, findings).await;
        report(examined, findings);
    }
}

/// Reports that upstream does not say what the proxy may.
fn report(examined: Result<(), ReviewError>, findings: &mut Findings) {
    match examined {
        Ok(()) => {}
        Err(ReviewError::Refused(StatusCode::LOOP_DETECTED)) => findings.error(
            SUBJECT,
            "upstream is a watershed whose upstream leads back to itself (--server, --kubeconfig)",
        ),
        Err(ReviewError::Refused(status)) => findings.warning(
            SUBJECT,
            format!(
                "upstream does not say what the proxy may: it answered {status} to a \
                 SelfSubjectAccessReview; bind the ClusterRole system:basic-user"
            ),
        ),
        Err(error) => findings.failed(
            SUBJECT,
            anyhow::Error::new(error).context("it cannot be asked what the proxy may"),
        ),
    }
}

/// Examines the rights that do not depend on the types that upstream has.
async fn examine_rights(
    config: &AppConfig,
    rights: &OwnRights,
    findings: &mut Findings,
) -> Result<(), ReviewError> {
    examine_callers(config, rights, findings).await?;
    examine_own_reads(config, rights, findings).await?;
    examine_cluster(config, rights, findings).await
}

/// Reads the types that upstream has. Without them the proxy does not get ready, but for a node's that
/// caches types that each API server has.
async fn examine_types(
    config: &AppConfig,
    client: &UpstreamClient,
    findings: &mut Findings,
) -> Option<Catalog> {
    let scopes = Scopes::new(client.clone(), config.scopes);
    let (follower, catalog) =
        CatalogFollower::new(client.clone(), scopes, config.aggregated.clone());
    let mut follower = follower.needing(discovery::needed_types(config));
    if let Err(error) = follower.read().await {
        findings.failed(TYPES, discovery::explain(error, client.upstream()));
        return None;
    }
    let following = tokio::spawn(follower.run());
    let settled = async {
        while !catalog.is_settled() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    if tokio::time::timeout(CUSTOM_TYPES, settled).await.is_err() {
        findings.warning(
            TYPES,
            "custom types could not be read in time, and are left out here",
        );
    }
    following.abort();
    findings.ok(
        TYPES,
        format!(
            "upstream has {} types that can be cached, each version counted",
            catalog.len()
        ),
    );
    examine_named_types(config, &catalog, findings);
    Some(catalog)
}

/// Examines the rights for authentication and authorization of callers.
async fn examine_callers(
    config: &AppConfig,
    rights: &OwnRights,
    findings: &mut Findings,
) -> Result<(), ReviewError> {
    let reviews = [
        (
            "authentication.k8s.io",
            "tokenreviews",
            "no caller with a token is known, so that all are forwarded",
        ),
        (
            "authorization.k8s.io",
            "subjectaccessreviews",
            "nobody can be let in, so that all are forwarded",
        ),
    ];
    let mut missing = false;
    for (group, resource, effect) in reviews {
        // If all callers share the proxy's identity, no token is reviewed.
        if config.access.single_identity && resource == "tokenreviews" {
            continue;
        }
        if !rights
            .may_do("create", GroupVersionResource::new(group, "v1", resource))
            .await?
        {
            missing = true;
            findings.error(
                SUBJECT,
                format!(
                    "may not create {resource}.{group}: {effect}; bind the ClusterRole \
                     system:auth-delegator"
                ),
            );
        }
    }
    if !missing {
        findings.ok(SUBJECT, "may ask who callers are and what they may");
    }
    examine_issuer(config, rights, findings).await?;
    if config.authorities().next().is_some() {
        examine_impersonation(config, rights, findings).await?;
    }
    Ok(())
}

/// Examines the rights for checking service account tokens here.
async fn examine_issuer(
    config: &AppConfig,
    rights: &OwnRights,
    findings: &mut Findings,
) -> Result<(), ReviewError> {
    let authentication = &config.access.authentication;
    for (flag, is_given, path) in [
        (
            "--validate-service-account-tokens-locally",
            authentication.validate_locally,
            "/openid/v1/jwks",
        ),
        (
            "--refuse-invalid-service-account-tokens",
            authentication.refuse_invalid,
            "/.well-known/openid-configuration",
        ),
    ] {
        if is_given && !rights.may_get(path).await? {
            findings.warning(
                SUBJECT,
                format!(
                    "may not get {path}: every token is reviewed; bind the ClusterRole \
                     system:service-account-issuer-discovery, or leave out {flag}"
                ),
            );
        }
    }
    if authentication.validate_locally {
        examine_accounts(rights, findings).await?;
    }
    Ok(())
}

/// Examines the rights to follow the accounts that tokens are bound to.
async fn examine_accounts(rights: &OwnRights, findings: &mut Findings) -> Result<(), ReviewError> {
    let accounts = GroupVersionResource::new("", "v1", "serviceaccounts");
    for verb in lacking_reads(rights, &accounts).await? {
        findings.warning(
            SUBJECT,
            format!(
                "may not {verb} serviceaccounts: every token is reviewed; grant it, or leave out \
                 --validate-service-account-tokens-locally"
            ),
        );
    }
    Ok(())
}

/// Examines the right to act as callers with certificates.
async fn examine_impersonation(
    config: &AppConfig,
    rights: &OwnRights,
    findings: &mut Findings,
) -> Result<(), ReviewError> {
    let mut may_not = Vec::new();
    let mut needed = vec![
        ("", "users", None),
        ("", "groups", None),
        ("authentication.k8s.io", "uids", None),
    ];
    // A certificate's fingerprint goes along, whatever else its caller is.
    if config.access.client_ca.is_some() {
        needed.push(("authentication.k8s.io", "userextras", Some(CREDENTIAL_ID)));
    }
    if config.access.front_proxy.is_some() {
        needed.push(("", "serviceaccounts", None));
    }
    for (group, resource, key) in needed {
        if !rights.may_impersonate(group, resource, key).await? {
            may_not.push(match key {
                Some(key) => format!("{resource}/{key}"),
                None => resource.to_owned(),
            });
        }
    }
    if may_not.is_empty() {
        findings.ok(SUBJECT, "may act as callers with certificates");
    } else {
        findings.warning(
            SUBJECT,
            format!(
                "may not impersonate all {}: callers with certificates (--client-ca-file, \
                     --requestheader-client-ca-file) are refused by upstream, unless they are \
                     granted by name",
                may_not.join(", ")
            ),
        );
    }
    Ok(())
}

async fn examine_own_reads(
    config: &AppConfig,
    rights: &OwnRights,
    findings: &mut Findings,
) -> Result<(), ReviewError> {
    let reads_definitions = config.policy.may_cache_custom_types();
    for (group, version, resource, effect) in FOR_ITSELF {
        if !reads_definitions && *effect != RBAC {
            continue;
        }
        let gvr = GroupVersionResource::new(group, version, resource);
        let lacks = lacking_reads(rights, &gvr).await?;
        if !lacks.is_empty() {
            findings.warning(
                SUBJECT,
                format!(
                    "may not {} {resource}.{group}: {effect}; add it to the proxy's ClusterRole",
                    lacks.join(" or ")
                ),
            );
        }
    }
    Ok(())
}

/// Returns the verbs that are missing to follow a type.
async fn lacking_reads(
    rights: &OwnRights,
    gvr: &GroupVersionResource,
) -> Result<Vec<&'static str>, ReviewError> {
    let mut lacks = Vec::new();
    for verb in ["list", "watch"] {
        if !rights.may_do(verb, gvr.clone()).await? {
            lacks.push(verb);
        }
    }
    Ok(lacks)
}

/// Examines the right to read the namespace by which the cluster is known.
async fn examine_cluster(
    config: &AppConfig,
    rights: &OwnRights,
    findings: &mut Findings,
) -> Result<(), ReviewError> {
    let namespaces = GroupVersionResource::new("", "v1", "namespaces");
    let kube_system = Selection::named(None, "kube-system");
    let list = attributes(Verb::List, &namespaces, &kube_system);
    if rights.may(&list).await? {
        return Ok(());
    }
    let effect = if config.checkpoints.is_some() {
        "no checkpoints are written or read, and another cluster behind the same address is \
         noticed late"
    } else {
        "another cluster behind the same address is noticed late"
    };
    findings.warning(
        SUBJECT,
        format!(
            "may not list the namespace kube-system: {effect}; add it to the proxy's ClusterRole"
        ),
    );
    Ok(())
}

/// Examines the types that the configuration names. Upstream may not have them.
fn examine_named_types(config: &AppConfig, catalog: &Catalog, findings: &mut Findings) {
    for (name, _) in config.policy.types.iter() {
        let (group, resource) = (name.group(), name.resource());
        // A type of another group may be a custom one.
        if !catalog.has(group, None) || catalog.has_resource(group, resource) {
            continue;
        }
        let group = if group.is_empty() {
            "the core group"
        } else {
            group
        };
        findings.warning(
            TYPES,
            format!("upstream has no {resource} in {group} (resources and scopes in --config)"),
        );
    }
}

/// Examines the right to list and watch the types that may be cached.
async fn examine_cached_types(
    config: &AppConfig,
    catalog: &Catalog,
    rights: &OwnRights,
    findings: &mut Findings,
) -> Result<(), ReviewError> {
    let everything = GroupVersionResource::new("*", "*", "*");
    if rights.may_do("list", everything.clone()).await?
        && rights.may_do("watch", everything).await?
    {
        findings.ok(SUBJECT, "may list and watch everything");
        return Ok(());
    }
    let wanted = cacheable(config, catalog);
    let count = wanted.len();
    let asked = stream::iter(wanted).map(async |(name, selection, gvr)| {
        for verb in [Verb::List, Verb::Watch] {
            if !rights.may(&attributes(verb, &gvr, &selection)).await? {
                return Ok::<_, ReviewError>(Some(name));
            }
        }
        Ok(None)
    });
    let answers: Vec<Option<String>> = asked.buffered(CONCURRENT_REVIEWS).try_collect().await?;
    let missing: Vec<String> = answers.into_iter().flatten().collect();
    if missing.is_empty() {
        findings.ok(
            SUBJECT,
            format!("may list and watch what may be held ({count} types and parts of them)"),
        );
    } else if missing.len() == count {
        findings.error(
            SUBJECT,
            "may list and watch nothing that may be held: all reads are forwarded; grant list and \
             watch in the proxy's ClusterRole",
        );
    } else {
        let named = missing
            .iter()
            .take(NAMED)
            .map(String::as_str)
            .collect::<Vec<_>>()
            .join(", ");
        let more = match missing.len().saturating_sub(NAMED) {
            0 => String::new(),
            unnamed => format!(" and {unnamed} more"),
        };
        findings.warning(
            SUBJECT,
            format!(
                "may not list and watch {} of {count} that may be held, so that their reads are \
                 forwarded: {named}{more}; grant it in the proxy's ClusterRole, or say cache: \
                 false in --config",
                missing.len()
            ),
        );
    }
    Ok(())
}

/// Returns the selections that may be cached, with their names and types. Rights are the same for
/// all versions of a type.
fn cacheable(
    config: &AppConfig,
    catalog: &Catalog,
) -> Vec<(String, Selection, GroupVersionResource)> {
    let policy = &config.policy;
    let mut types = catalog.all();
    types.sort_by(|one, other| {
        (&one.gvr.group, &one.gvr.resource).cmp(&(&other.gvr.group, &other.gvr.resource))
    });
    types.dedup_by(|one, other| {
        one.gvr.group == other.gvr.group && one.gvr.resource == other.gvr.resource
    });
    let mut wanted = Vec::new();
    for gvr in types.iter().map(|resource| &resource.gvr) {
        if !policy.may_cache(&gvr.group, &gvr.resource) {
            continue;
        }
        let name = gvr.qualified_resource();
        match policy.configured_scopes(&gvr.group, &gvr.resource) {
            [] => wanted.push((name, Selection::default(), gvr.clone())),
            parts => wanted.extend(parts.iter().map(|part| {
                (
                    format!("{name} ({part})"),
                    Selection::clone(part),
                    gvr.clone(),
                )
            })),
        }
    }
    wanted
}

fn attributes(verb: Verb, gvr: &GroupVersionResource, selection: &Selection) -> AccessAttributes {
    // Upstream takes a list with this selector for one of the named object.
    // Source: `apiserver/pkg/endpoints/request/requestinfo.go`.
    let name = selection.fields.requirements().iter().find(|requirement| {
        requirement.field == "metadata.name" && requirement.operator == FieldOperator::Equals
    });
    AccessAttributes {
        verb,
        resource: ResourceRequest {
            gvr: gvr.clone(),
            namespace: selection.namespace.clone(),
            name: name.map(|requirement| requirement.value.clone()),
            subresource: None,
        },
        selectors: ReviewSelectors::new(&selection.labels, &selection.fields),
    }
}
