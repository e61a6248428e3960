//! Reads upstream's discovery documents.
use std::collections::HashMap;
use std::sync::Arc;

use http::HeaderValue;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use super::discovery_error::DiscoveryError;
use super::fetch::{DocumentAnswer, ask, get};
use crate::upstream::UpstreamClient;
use watershed_protocol::{GroupVersionResource, is_built_in_group};

/// Both forms are asked for; old releases and proxies answer with the second.
const DISCOVERY: &str =
    "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json";
/// Path of the document of the core group.
const CORE: &str = "/api";
/// The freshness of a group whose server does not answer.
const STALE: &str = "Stale";

/// A document that was read before.
#[derive(Clone, Debug)]
struct ReadDocument {
    types: Arc<[DiscoveredType]>,
    /// The ETag that upstream gave it, if it has all types in itself. Equal documents of different
    /// servers have one ETag.
    etag: Option<HeaderValue>,
}

/// Discovery documents that were read before, so that unchanged ones cost upstream 304, and types
/// whose server does not answer are not taken for gone.
#[derive(Clone, Debug, Default)]
pub(super) struct ReadDocuments {
    by_path: HashMap<&'static str, ReadDocument>,
}

/// A type that can be listed and watched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DiscoveredType {
    pub(super) gvr: GroupVersionResource,
    pub(super) kind: String,
    pub(super) namespaced: bool,
}

/// Reads all types that can be listed and watched, with the documents as they are now.
pub(super) async fn read(
    client: &UpstreamClient,
    documents: &mut ReadDocuments,
) -> Result<Vec<DiscoveredType>, DiscoveryError> {
    let mut entries = Vec::new();
    for path in [CORE, "/apis"] {
        let known = documents.by_path.get(path);
        let etag = known.and_then(|known| known.etag.clone());
        let known = known.map_or_else(Arc::default, |known| Arc::clone(&known.types));
        match ask(client, path, DISCOVERY, etag).await? {
            DocumentAnswer::Unchanged => entries.extend_from_slice(&known),
            DocumentAnswer::Document(document, etag) => {
                let (types, is_whole) = types_of(client, path, document, &known).await?;
                entries.extend_from_slice(&types);
                let read = ReadDocument {
                    types: types.into(),
                    // Documents that name others would have to be read with those.
                    etag: etag.filter(|_| is_whole),
                };
                documents.by_path.insert(path, read);
            }
        }
    }
    Ok(entries)
}

/// Returns the types of a document, and `true` if it has all of them in itself. Those of a server
/// that does not answer are as they were when it was `known`.
async fn types_of(
    client: &UpstreamClient,
    path: &str,
    document: DiscoveryDocument,
    known: &[DiscoveredType],
) -> Result<(Vec<DiscoveredType>, bool), DiscoveryError> {
    let mut entries = Vec::new();
    let is_whole = document.items.is_some();
    match document {
        DiscoveryDocument {
            items: Some(groups),
            ..
        } => {
            for group in groups {
                aggregated(path, &group, known, &mut entries)?;
            }
        }
        DiscoveryDocument {
            versions: Some(versions),
            ..
        } => {
            for version in versions {
                let path = format!("/api/{version}");
                legacy(client, &path, "", &version, &mut entries).await?;
            }
        }
        DiscoveryDocument {
            groups: Some(groups),
            ..
        } => {
            for group in groups {
                legacy_group(client, group, known, &mut entries).await?;
            }
        }
        _ => {
            return Err(DiscoveryError::NotUnderstood {
                path: path.into(),
                why: "no groups".into(),
            });
        }
    }
    Ok((entries, is_whole))
}

/// Returns the types that a group has among these, in one version or in all.
fn types_of_group<'a>(
    types: &'a [DiscoveredType],
    group: &'a str,
    version: Option<&'a str>,
) -> impl Iterator<Item = DiscoveredType> + 'a {
    let is_meant = move |known: &&DiscoveredType| {
        let gvr = &known.gvr;
        *gvr.group == *group && version.is_none_or(|version| *gvr.version == *version)
    };
    types.iter().filter(is_meant).cloned()
}

/// Adds the types of a group. One that is not understood hides no other, unless it is upstream's own.
fn aggregated(
    path: &str,
    group: &RawValue,
    known: &[DiscoveredType],
    entries: &mut Vec<DiscoveredType>,
) -> Result<(), DiscoveryError> {
    let why = match serde_json::from_str::<GroupDiscovery>(group.get()) {
        Ok(group) if path == CORE || !group.metadata.is_empty() => {
            aggregated_group(group, known, entries);
            return Ok(());
        }
        Ok(_) => "a group without a name".to_owned(),
        Err(error) => error.to_string(),
    };
    let error = DiscoveryError::NotUnderstood {
        path: path.into(),
        why,
    };
    let name = serde_json::from_str::<NamedGroup>(group.get())
        .ok()
        .and_then(|group| group.metadata.name)
        .filter(|name| !name.is_empty());
    match name {
        // The document of the core group has no other.
        Some(name) if path != CORE && !is_built_in_group(&name) => {
            tracing::warn!(%error, group = name, "a group's discovery failed");
            entries.extend(types_of_group(known, &name, None));
            Ok(())
        }
        // It may be one of the API server's own, which writes the names.
        _ => Err(error),
    }
}

fn aggregated_group(
    group: GroupDiscovery,
    known: &[DiscoveredType],
    entries: &mut Vec<DiscoveredType>,
) {
    let name = group.metadata.name.unwrap_or_default();
    for version in group.versions {
        if version.resources.is_empty() && version.freshness == STALE {
            entries.extend(types_of_group(known, &name, Some(&version.version)));
        }
        for resource in version.resources {
            // A subresource is listed inside its resource here, so none has a slash in its name.
            if can_be_followed(&resource.verbs)
                && let Some(kind) = resource.response_kind.and_then(|kind| kind.kind)
            {
                entries.push(DiscoveredType {
                    gvr: GroupVersionResource::new(&name, &version.version, &resource.resource),
                    kind,
                    namespaced: resource.scope == "Namespaced",
                });
            }
        }
    }
}

/// Adds the types of a group whose versions have documents of their own.
async fn legacy_group(
    client: &UpstreamClient,
    group: ApiGroup,
    known: &[DiscoveredType],
    entries: &mut Vec<DiscoveredType>,
) -> Result<(), DiscoveryError> {
    let name = group.name;
    for GroupVersionName { version } in group.versions {
        let path = format!("/apis/{name}/{version}");
        match legacy(client, &path, &name, &version, entries).await {
            // Its types still exist. Without them, they would be treated as deleted.
            Err(error) if is_built_in_group(&name) && !error.is_final() => return Err(error),
            // One aggregated API that is down must not hide all other types.
            Err(error) => {
                tracing::warn!(%error, group = name, "a group's discovery failed");
                if !error.is_final() {
                    entries.extend(types_of_group(known, &name, Some(&version)));
                }
            }
            Ok(()) => {}
        }
    }
    Ok(())
}

async fn legacy(
    client: &UpstreamClient,
    path: &str,
    group: &str,
    version: &str,
    entries: &mut Vec<DiscoveredType>,
) -> Result<(), DiscoveryError> {
    let list: ResourceList = get(client, path, DISCOVERY).await?;
    entries.extend(
        list.resources
            .into_iter()
            .filter(|resource| can_be_followed(&resource.verbs))
            .map(|resource| DiscoveredType {
                gvr: GroupVersionResource::new(group, version, &resource.name),
                kind: resource.kind,
                namespaced: resource.namespaced,
            }),
    );
    Ok(())
}

fn can_be_followed(verbs: &[String]) -> bool {
    ["list", "watch"]
        .iter()
        .all(|wanted| verbs.iter().any(|verb| verb == wanted))
}

/// Reads a member that may be `null`. Go writes an empty list so, and servers of aggregated groups do.
fn null_as_default<'de, T, D>(deserializer: D) -> Result<T, D::Error>
where
    T: Default + Deserialize<'de>,
    D: Deserializer<'de>,
{
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}

/// Any of APIGroupDiscoveryList, APIVersions and APIGroupList.
#[derive(Deserialize)]
struct DiscoveryDocument {
    /// Each a [`GroupDiscovery`]. What other servers say of their groups is passed on by upstream.
    items: Option<Vec<Box<RawValue>>>,
    versions: Option<Vec<String>>,
    groups: Option<Vec<ApiGroup>>,
}

#[derive(Deserialize)]
struct GroupDiscovery {
    #[serde(default, deserialize_with = "null_as_default")]
    metadata: GroupName,
    #[serde(default, deserialize_with = "null_as_default")]
    versions: Vec<GroupVersion>,
}

/// A [`GroupDiscovery`] of which the rest is not understood.
#[derive(Deserialize)]
struct NamedGroup {
    metadata: GroupName,
}

#[derive(Default, Deserialize)]
struct GroupName {
    name: Option<String>,
}

impl GroupName {
    fn is_empty(&self) -> bool {
        self.name.as_deref().is_none_or(str::is_empty)
    }
}

#[derive(Deserialize)]
struct GroupVersion {
    #[serde(default, deserialize_with = "null_as_default")]
    version: String,
    /// `Current`, or [`STALE`].
    #[serde(default, deserialize_with = "null_as_default")]
    freshness: String,
    #[serde(default, deserialize_with = "null_as_default")]
    resources: Vec<ResourceDiscovery>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ResourceDiscovery {
    resource: String,
    response_kind: Option<ResponseKind>,
    #[serde(default, deserialize_with = "null_as_default")]
    scope: String,
    #[serde(default, deserialize_with = "null_as_default")]
    verbs: Vec<String>,
}

#[derive(Deserialize)]
struct ResponseKind {
    kind: Option<String>,
}

#[derive(Deserialize)]
struct ApiGroup {
    name: String,
    #[serde(default, deserialize_with = "null_as_default")]
    versions: Vec<GroupVersionName>,
}

#[derive(Deserialize)]
struct GroupVersionName {
    version: String,
}

#[derive(Deserialize)]
struct ResourceList {
    #[serde(default, deserialize_with = "null_as_default")]
    resources: Vec<ApiResource>,
}

#[derive(Deserialize)]
struct ApiResource {
    name: String,
    kind: String,
    #[serde(default, deserialize_with = "null_as_default")]
    namespaced: bool,
    #[serde(default, deserialize_with = "null_as_default")]
    verbs: Vec<String>,
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::*;
    use crate::test_support::{Api, HTTP2, Pki, text, typed, upstream_of};

    const APPS: &str = "/apis/apps/v1";
    const GROUPS: &str = r#"{"groups":[{"name":"apps","versions":[{"version":"v1"}]},
        {"name":"things.test","versions":[{"version":"v1"}]}]}"#;

    /// Reads the documents of an upstream that has one for each group, and that does not answer at
    /// this path.
    async fn read_without(failing: &'static str) -> Result<Vec<String>, DiscoveryError> {
        let pki = Pki::new();
        let api = Api::start(&pki, HTTP2, move |request, _| async move {
            let types = |name: &str, kind: &str| {
                let list = format!(
                    r#"{{"resources":[{{"name":"{name}","kind":"{kind}","verbs":["list","watch"]}}]}}"#
                );
                text(list)
            };
            match request.uri().path() {
                path if path == failing => typed(503, "text/plain", ""),
                "/api" => text(r#"{"versions":["v1"]}"#),
                "/apis" => text(GROUPS),
                "/api/v1" => types("pods", "Pod"),
                APPS => types("deployments", "Deployment"),
                _ => types("things", "Thing"),
            }
        })
        .await;
        let client = UpstreamClient::new(&upstream_of(&pki, &api).await);
        let types = read(&client, &mut ReadDocuments::default()).await?;
        Ok(types.iter().map(|it| it.gvr.to_string()).collect())
    }

    #[tokio::test]
    async fn an_aggregated_api_that_is_down_hides_no_other() {
        let all = ["pods.v1", "deployments.v1.apps", "things.v1.things.test"];
        assert_eq!(read_without("").await.unwrap(), all);
        assert_eq!(
            read_without("/apis/things.test/v1").await.unwrap(),
            all[..2]
        );
    }

    #[tokio::test]
    async fn types_whose_server_does_not_answer_are_as_they_were() {
        let whole = r#"{"items":[{"metadata":{"name":"things.test"},"versions":[{"version":"v1",
            "freshness":"Current","resources":[{"resource":"things","scope":"Cluster",
            "responseKind":{"kind":"Thing"},"verbs":["list","watch"]}]}]}]}"#;
        let stale = r#"{"items":[{"metadata":{"name":"things.test"},"versions":[{"version":"v1",
            "freshness":"Stale"}]}]}"#;
        let gone = r#"{"items":[]}"#;
        let named = r#"{"groups":[{"name":"things.test","versions":[{"version":"v1"}]}]}"#;
        let answer = Arc::new(Mutex::new(whole));
        let pki = Pki::new();
        let answers = Arc::clone(&answer);
        let api = Api::start(&pki, HTTP2, move |request, _| {
            let answer = *answers.lock();
            async move {
                match request.uri().path() {
                    "/api" => text(gone),
                    "/apis" => text(answer),
                    _ => typed(503, "text/plain", ""),
                }
            }
        })
        .await;
        let client = UpstreamClient::new(&upstream_of(&pki, &api).await);
        let mut documents = ReadDocuments::default();
        for (document, count) in [
            (whole, 1),
            (stale, 1),
            (named, 1),
            (stale, 1),
            (gone, 0),
            (stale, 0),
        ] {
            *answer.lock() = document;
            let types = read(&client, &mut documents).await.unwrap();
            assert_eq!(types.len(), count, "{document}");
        }
    }

    /// Returns the types of a document of all groups, read when `known` were known.
    fn types_in(document: &str, known: &[DiscoveredType]) -> Result<Vec<String>, DiscoveryError> {
        let document: DiscoveryDocument = serde_json::from_str(document).unwrap();
        let mut types = Vec::new();
        for group in document.items.unwrap() {
            aggregated("/apis", &group, known, &mut types)?;
        }
        Ok(types.iter().map(|it| it.gvr.to_string()).collect())
    }

    /// The API server writes this for an aggregated group that has subresources alone, as KubeVirt's.
    #[test]
    fn members_without_a_value_hide_no_type() {
        let document = r#"{"items":[{"metadata":{"name":"subresources.test"},"versions":[
            {"version":"v1","freshness":"Current","resources":[
                {"resource":"expansions","responseKind":{"group":"","version":"","kind":""},
                 "scope":"Cluster","singularResource":"","verbs":null},
                {"resource":"odd","responseKind":null,"scope":null,"verbs":null}]},
            {"version":"v2","freshness":null,"resources":null}]},
            {"metadata":{"name":"none.test"},"versions":null},
            {"metadata":{"name":"things.test"},"versions":[{"version":"v1","resources":[
                {"resource":"things","responseKind":{"kind":"Thing"},"scope":"Cluster",
                 "verbs":["list","watch"]}]}]}]}"#;
        assert_eq!(types_in(document, &[]).unwrap(), ["things.v1.things.test"]);
        let list = r#"{"resources":[{"name":"a","kind":"","namespaced":null,"verbs":null}]}"#;
        let list: ResourceList = serde_json::from_str(list).unwrap();
        assert!(list.resources[0].verbs.is_empty());
        let list: ResourceList = serde_json::from_str(r#"{"resources":null}"#).unwrap();
        assert!(list.resources.is_empty());
    }

    #[test]
    fn a_group_that_is_not_understood_hides_no_other() {
        let known = [DiscoveredType {
            gvr: GroupVersionResource::new("broken.test", "v1", "known"),
            kind: "Known".to_owned(),
            namespaced: true,
        }];
        let with = |broken: &str| {
            format!(
                r#"{{"items":[{broken},{{"metadata":{{"name":"apps"}},"versions":[{{"version":"v1",
                "resources":[{{"resource":"deployments","responseKind":{{"kind":"Deployment"}},
                "scope":"Namespaced","verbs":["list","watch"]}}]}}]}}]}}"#
            )
        };
        let broken = r#"{"metadata":{"name":"broken.test"},"versions":"v1"}"#;
        assert_eq!(
            types_in(&with(broken), &known).unwrap(),
            ["known.v1.broken.test", "deployments.v1.apps"]
        );
        // Others may be the API server's own.
        for own in [
            r#"{"metadata":{"name":"batch"},"versions":"v1"}"#,
            r#"{"metadata":7}"#,
            r#"{"metadata":null,"versions":[]}"#,
            "7",
        ] {
            let error = types_in(&with(own), &known).unwrap_err();
            assert!(error.to_string().contains("/apis"), "{error}");
        }
    }

    #[tokio::test]
    async fn built_in_types_that_cannot_be_read_are_not_taken_for_gone() {
        let error = read_without(APPS).await.unwrap_err();
        assert!(error.to_string().contains(APPS), "{error}");
    }
}
