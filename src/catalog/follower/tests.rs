use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize};

use bytes::Bytes;
use futures_util::future::ready;
use futures_util::{StreamExt as _, stream};
use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use parking_lot::Mutex;
use tokio::sync::broadcast;

use super::*;
use crate::body::{self, Body};
use crate::catalog::reading::REFRESH;
use crate::scope::ScopeConfig;
use crate::test_support::{Api, HTTP2, Pki, eventually, soon, streamed, text, upstream_of};

const TYPES: &str = r#"{"items":[{"metadata":{"name":"apiextensions.k8s.io"},"versions":[
    {"version":"v1","resources":[{"resource":"customresourcedefinitions","scope":"Cluster",
    "responseKind":{"kind":"CustomResourceDefinition"},"verbs":["list","watch"]}]}]}]}"#;
const MORE_TYPES: &str = r#"{"items":[{"metadata":{"name":"apiextensions.k8s.io"},"versions":[
    {"version":"v1","resources":[{"resource":"customresourcedefinitions","scope":"Cluster",
    "responseKind":{"kind":"CustomResourceDefinition"},"verbs":["list","watch"]}]}]},
    {"metadata":{"name":"apps"},"versions":[
    {"version":"v1","resources":[{"resource":"deployments","scope":"Namespaced",
    "responseKind":{"kind":"Deployment"},"verbs":["list","watch"]}]}]}]}"#;
/// The metadata of the first definition.
const METADATA: &str = concat!(
    r#"{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1","#,
    r#""metadata":{"resourceVersion":"10"},"items":[{"kind":"PartialObjectMetadata","#,
    r#""apiVersion":"meta.k8s.io/v1","#,
    r#""metadata":{"name":"widgets.first.test","resourceVersion":"10"}}]}"#,
    "\n"
);
const DEFINITION: &str =
    r#""kind":"CustomResourceDefinition","apiVersion":"apiextensions.k8s.io/v1","#;
const SERVICE: &str = r#""kind":"APIService","apiVersion":"apiregistration.k8s.io/v1","#;
/// Types that discovery names where the proxy may read the APIServices.
const REGISTERED_TYPES: &str = r#"{"items":[{"metadata":{"name":"apiextensions.k8s.io"},"versions":[
    {"version":"v1","resources":[{"resource":"customresourcedefinitions","scope":"Cluster",
    "responseKind":{"kind":"CustomResourceDefinition"},"verbs":["list","watch"]}]}]},
    {"metadata":{"name":"apiregistration.k8s.io"},"versions":[
    {"version":"v1","resources":[{"resource":"apiservices","scope":"Cluster",
    "responseKind":{"kind":"APIService"},"verbs":["list","watch"]}]}]}]}"#;

/// Objects of a type that can be listed and watched.
struct WatchedObjects {
    /// The beginning of an object, after its bracket.
    head: &'static str,
    state: Mutex<ObjectsState>,
    events: broadcast::Sender<Bytes>,
    /// Reads of the whole state, each the beginning of a scope.
    states: AtomicUsize,
    /// Plain lists.
    lists: AtomicUsize,
}

#[derive(Default)]
struct ObjectsState {
    version: u64,
    by_name: BTreeMap<String, String>,
}

impl WatchedObjects {
    fn new(head: &'static str) -> Self {
        Self {
            head,
            state: Mutex::default(),
            events: broadcast::channel(16).0,
            states: AtomicUsize::new(0),
            lists: AtomicUsize::new(0),
        }
    }

    /// Stores an object, whose text `rest` follows its metadata. Watches see it only if it
    /// `sends_event`.
    fn put(&self, name: &str, labels: &str, rest: &str, sends_event: bool) {
        let mut state = self.state.lock();
        state.version += 10;
        let version = state.version;
        let object = [
            "{",
            self.head,
            &format!(r#""metadata":{{"name":"{name}","uid":"1","generation":{version},"#),
            &format!(r#""labels":{{{labels}}},"resourceVersion":"{version}"}},{rest}}}"#),
        ]
        .concat();
        let before = state.by_name.insert(name.to_owned(), object.clone());
        let kind = before.map_or("ADDED", |_| "MODIFIED");
        if sends_event {
            let _ = self.events.send(frame(kind, &object));
        }
    }

    fn read(&self, query: &str) -> Body {
        let is_state = query.contains("sendInitialEvents");
        self.states
            .fetch_add(usize::from(is_state), Ordering::SeqCst);
        let state = self.state.lock();
        let version = state.version;
        if !query.contains("watch=1") {
            self.lists.fetch_add(1, Ordering::SeqCst);
            let items: Vec<_> = state.by_name.values().map(String::as_str).collect();
            let kind = self.head.replacen("\",", "List\",", 1);
            let metadata = format!(r#""metadata":{{"resourceVersion":"{version}"}},"#);
            let items = items.join(",");
            return body::full(
                [
                    &*format!("{{{kind}{metadata}"),
                    r#""items":["#,
                    &items,
                    "]}\n",
                ]
                .concat(),
            );
        }
        let later = stream::unfold(self.events.subscribe(), |mut events| async {
            let event = events.recv().await.ok()?;
            Some((event, events))
        });
        let mut first = Vec::new();
        if is_state {
            let all = state.by_name.values();
            first.extend(all.map(|object| frame("ADDED", object)));
            let mark = [
                "{",
                self.head,
                &format!(r#""metadata":{{"resourceVersion":"{version}","annotations":"#),
                r#"{"k8s.io/initial-events-end":"true"}}}"#,
            ]
            .concat();
            first.push(frame("BOOKMARK", &mark));
        }
        streamed(stream::iter(first).chain(later).map(Ok))
    }
}

/// An API server with CustomResourceDefinitions.
struct DefiningServer {
    definitions: WatchedObjects,
    services: WatchedObjects,
    /// The proxy may read the APIServices.
    shows_services: AtomicBool,
    hangs: AtomicBool,
    /// It runs the next release, which has more types.
    is_upgraded: AtomicBool,
    /// Requests for discovery that hang.
    hanging: AtomicUsize,
    /// Discovery documents that were sent, and requests that got 304 instead.
    documents: AtomicUsize,
    unchanged: AtomicUsize,
    /// Requests for the APIServices that were refused.
    refused: AtomicUsize,
}

impl DefiningServer {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            definitions: WatchedObjects::new(DEFINITION),
            services: WatchedObjects::new(SERVICE),
            shows_services: AtomicBool::new(false),
            hangs: AtomicBool::new(false),
            is_upgraded: AtomicBool::new(false),
            hanging: AtomicUsize::new(0),
            documents: AtomicUsize::new(0),
            unchanged: AtomicUsize::new(0),
            refused: AtomicUsize::new(0),
        })
    }

    /// Defines widgets of a group, with a selectable field. Watches see it only if it
    /// `sends_event`.
    fn define(&self, group: &'static str, field: &str, sends_event: bool) {
        let rest = [
            &format!(r#""spec":{{"group":"{group}","#),
            r#""names":{"plural":"widgets","kind":"Widget"},"scope":"Namespaced","#,
            r#""versions":[{"name":"v1","served":true,"#,
            &format!(r#""selectableFields":[{{"jsonPath":".spec.{field}"}}]}}]}},"#),
            r#""status":{"conditions":[{"type":"Established","status":"True"}]}"#,
        ]
        .concat();
        let name = format!("widgets.{group}");
        self.definitions.put(&name, "", &rest, sends_event);
    }

    /// Says what answers for version 1 of a group.
    fn register(&self, group: &str, origin: Origin, sends_event: bool) {
        let (labels, service) = match origin {
            Origin::BuiltIn => (
                r#""kube-aggregator.kubernetes.io/automanaged":"onstart""#,
                "",
            ),
            Origin::Custom => (r#""kube-aggregator.kubernetes.io/automanaged":"true""#, ""),
            Origin::Aggregated => ("", r#","service":{"namespace":"a","name":"b"}"#),
        };
        let rest = format!(r#""spec":{{"group":"{group}","version":"v1"{service}}}"#);
        self.services
            .put(&format!("v1.{group}"), labels, &rest, sends_event);
    }

    async fn answer(&self, request: Request<Incoming>) -> Response<Body> {
        let query = request.uri().query().unwrap_or_default();
        let accept = request.headers()["accept"].to_str().unwrap();
        let is_upgraded = self.is_upgraded.load(Ordering::SeqCst);
        match request.uri().path() {
            "/api" | "/apis" if self.hangs.load(Ordering::SeqCst) => {
                self.hanging.fetch_add(1, Ordering::SeqCst);
                std::future::pending().await
            }
            "/api" => self.document(&request, r#"{"items":[]}"#),
            "/apis" if is_upgraded => self.document(&request, MORE_TYPES),
            "/apis" if self.shows_services.load(Ordering::SeqCst) => {
                self.document(&request, REGISTERED_TYPES)
            }
            "/apis" => self.document(&request, TYPES),
            "/version" => {
                let minor = if is_upgraded { 38 } else { 37 };
                text(format!(r#"{{"gitVersion":"v1.{minor}.0"}}"#))
            }
            "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
                if accept.contains("PartialObjectMetadataList") =>
            {
                json(body::full(METADATA))
            }
            "/apis/apiextensions.k8s.io/v1/customresourcedefinitions" => {
                json(self.definitions.read(query))
            }
            "/apis/apiregistration.k8s.io/v1/apiservices"
                if self.shows_services.load(Ordering::SeqCst) =>
            {
                json(self.services.read(query))
            }
            _ => {
                self.refused.fetch_add(1, Ordering::SeqCst);
                let mut refused = text("");
                *refused.status_mut() = StatusCode::FORBIDDEN;
                refused
            }
        }
    }

    /// Returns a discovery document, unless the request names it by its ETag.
    fn document(&self, request: &Request<Incoming>, document: &'static str) -> Response<Body> {
        let etag = format!("\"{}\"", document.len());
        let known = request.headers().get("if-none-match");
        let mut answer = if known.is_some_and(|known| *known == etag) {
            self.unchanged.fetch_add(1, Ordering::SeqCst);
            let mut answer = text("");
            *answer.status_mut() = StatusCode::NOT_MODIFIED;
            answer
        } else {
            self.documents.fetch_add(1, Ordering::SeqCst);
            text(document)
        };
        answer
            .headers_mut()
            .insert("etag", etag.try_into().unwrap());
        answer
    }
}

fn frame(kind: &str, object: &str) -> Bytes {
    format!("{{\"type\":\"{kind}\",\"object\":{object}}}\n").into()
}

fn json(body: Body) -> Response<Body> {
    let response = Response::builder().header("content-type", "application/json");
    response.body(body).unwrap()
}

/// Returns a follower of the types of this API server.
async fn follower_at(server: &Arc<DefiningServer>) -> (CatalogFollower, Api) {
    let pki = Pki::new();
    let handler = {
        let server = Arc::clone(server);
        move |request, _| {
            let server = Arc::clone(&server);
            async move { server.answer(request).await }
        }
    };
    let api = Api::start(&pki, HTTP2, handler).await;
    let client = UpstreamClient::new(&upstream_of(&pki, &api).await);
    let scopes = Scopes::new(client.clone(), ScopeConfig::default());
    let (follower, _) = CatalogFollower::new(client, scopes, Vec::new());
    (follower, api)
}

/// A catalog that is followed, and the API server that it is followed at.
struct Followed {
    server: Arc<DefiningServer>,
    scopes: Scopes,
    catalog: Catalog,
    api: Api,
    task: tokio::task::JoinHandle<()>,
}

impl Followed {
    async fn start(refresh: Duration) -> Self {
        let followed = Self::needing(refresh, NeededTypes::All).await;
        eventually(|| followed.knows("first.test")).await;
        followed
    }

    async fn needing(refresh: Duration, needed: NeededTypes) -> Self {
        Self::at(DefiningServer::new(), refresh, needed).await
    }

    async fn at(server: Arc<DefiningServer>, refresh: Duration, needed: NeededTypes) -> Self {
        server.define("first.test", "color", false);
        let (follower, api) = follower_at(&server).await;
        let (scopes, catalog) = (follower.scopes.clone(), follower.catalog.clone());
        let mut follower = follower.needing(needed);
        follower.discovery.refresh = refresh;
        if needed == NeededTypes::WellKnown {
            follower = follower.trusting(ready(true));
        }
        follower.begin().await.unwrap();
        Self {
            server,
            scopes,
            catalog,
            api,
            task: tokio::spawn(follower.run()),
        }
    }

    fn knows(&self, group: &str) -> bool {
        self.catalog.has(group, Some("v1"))
    }

    /// Returns the selectable fields of a group's widgets.
    fn fields(&self, group: &str) -> Option<Arc<FieldTable>> {
        let gvr = GroupVersionResource::new(group, "v1", "widgets");
        Some(Arc::clone(&self.catalog.get(&gvr)?.shape.fields))
    }
}

impl Drop for Followed {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[tokio::test]
async fn custom_types_stay_known_while_their_definitions_are_followed_anew() {
    let followed = Followed::start(REFRESH).await;
    let server = &followed.server;
    let lists = || server.definitions.states.load(Ordering::SeqCst);
    assert_eq!(lists(), 1);
    let before = followed.fields("first.test");
    // Nobody hears of this change.
    server.define("first.test", "size", false);
    followed
        .scopes
        .close(&followed_definitions().gvr, Duration::ZERO);
    eventually(|| {
        assert!(followed.knows("first.test"));
        lists() == 2
    })
    .await;
    eventually(|| {
        assert!(followed.knows("first.test"));
        followed.fields("first.test") != before
    })
    .await;
    server.define("second.test", "color", true);
    eventually(|| followed.knows("second.test")).await;
}

#[tokio::test]
async fn definitions_are_noticed_while_discovery_hangs() {
    let followed = Followed::start(Duration::from_millis(200)).await;
    let server = &followed.server;
    server.hangs.store(true, Ordering::SeqCst);
    eventually(|| server.hanging.load(Ordering::SeqCst) > 0).await;
    let before = followed.fields("first.test");
    server.define("second.test", "color", true);
    server.define("first.test", "size", true);
    eventually(|| followed.knows("second.test") && followed.fields("first.test") != before).await;
}

#[tokio::test]
async fn types_of_another_release_are_known_without_waiting_for_the_next_reading() {
    let followed = Followed::start(Duration::from_hours(1)).await;
    assert!(!followed.knows("apps"));
    let scopes = &followed.scopes;
    eventually(|| scopes.all().iter().any(|scope| scope.knows_release())).await;
    followed.server.is_upgraded.store(true, Ordering::SeqCst);
    followed.api.cut();
    eventually(|| followed.knows("apps")).await;
}

#[tokio::test]
async fn unchanged_discovery_is_not_sent_again() {
    let followed = Followed::start(Duration::from_millis(10)).await;
    let server = &followed.server;
    let of = |count: &AtomicUsize| count.load(Ordering::SeqCst);
    // Twenty readings of two documents.
    eventually(|| of(&server.unchanged) >= 40).await;
    assert_eq!(of(&server.documents), 2);
    // An APIService may change without a document.
    assert!(of(&server.refused) >= 20);
    assert!(followed.catalog.has("apiextensions.k8s.io", Some("v1")));
    server.is_upgraded.store(true, Ordering::SeqCst);
    eventually(|| followed.knows("apps")).await;
    assert_eq!(of(&server.documents), 3);
}

#[tokio::test]
async fn definitions_are_not_followed_where_custom_types_are_not_needed() {
    let followed = Followed::needing(Duration::from_millis(10), NeededTypes::BuiltIn).await;
    assert!(followed.catalog.is_settled());
    let server = &followed.server;
    eventually(|| server.unchanged.load(Ordering::SeqCst) >= 40).await;
    assert!(followed.catalog.has("apiextensions.k8s.io", Some("v1")));
    assert!(!followed.knows("first.test"));
    assert_eq!(server.definitions.states.load(Ordering::SeqCst), 0);
    // Whether a type is built in is known without its APIService.
    assert_eq!(server.refused.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn well_known_types_are_cached_before_discovery_is_read() {
    let followed = Followed::needing(Duration::from_hours(1), NeededTypes::WellKnown).await;
    let known = |group, name| followed.catalog.has_resource(group, name);
    let well_known = [
        ("", "pods"),
        ("", "nodes"),
        ("coordination.k8s.io", "leases"),
    ];
    assert!(well_known.iter().all(|(group, name)| known(group, name)));
    assert!(followed.catalog.is_settled() && !followed.catalog.is_read());
    assert_eq!(followed.server.documents.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn discovery_that_was_put_off_replaces_the_well_known_types() {
    let followed = Followed::needing(Duration::from_millis(10), NeededTypes::WellKnown).await;
    eventually(|| followed.knows("apiextensions.k8s.io")).await;
    eventually(|| followed.catalog.is_read()).await;
    // This upstream does not have them.
    assert!(!followed.catalog.has_resource("", "pods"));
}

/// Returns an API server whose APIServices may be read.
fn registering_server() -> Arc<DefiningServer> {
    let server = DefiningServer::new();
    server.shows_services.store(true, Ordering::SeqCst);
    for group in ["apiextensions.k8s.io", "apiregistration.k8s.io"] {
        server.register(group, Origin::BuiltIn, true);
    }
    server
}

/// Follows such a server.
async fn followed_with_services(refresh: Duration) -> Followed {
    let followed = Followed::at(registering_server(), refresh, NeededTypes::All).await;
    let services = &followed.server.services;
    eventually(|| services.states.load(Ordering::SeqCst) == 1).await;
    eventually(|| followed.knows("first.test")).await;
    followed
}

#[tokio::test]
async fn groups_of_other_servers_are_known_by_a_watch() {
    let followed = followed_with_services(Duration::from_hours(1)).await;
    let server = &followed.server;
    for origin in [Origin::Custom, Origin::Aggregated, Origin::Custom] {
        server.register("first.test", origin, true);
        eventually(|| followed.knows("first.test") == (origin == Origin::Custom)).await;
    }
    assert_eq!(server.services.lists.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn services_that_were_read_count_until_the_watch_has_brought_them() {
    let server = registering_server();
    let (mut follower, _api) = follower_at(&server).await;
    follower.begin().await.unwrap();
    let (catalog, scopes) = (follower.catalog.clone(), follower.scopes.clone());
    let mut services = ObjectFeed::new(followed_services());
    let mut next = async |follower: &mut CatalogFollower| {
        let news = soon(services.news(&catalog, &scopes)).await;
        assert_eq!(news, ObjectNews::Changed);
        follower.update_services(&services);
        (
            follower.discovery.follows_services(),
            follower.origins.clone(),
        )
    };
    let begun = follower.origins.clone();
    assert_eq!(next(&mut follower).await, (true, begun));
    // The watch is lost, and lags once it is open again.
    follower.lose_services();
    server.register("first.test", Origin::Aggregated, false);
    follower.read().await.unwrap();
    let read = follower.origins.clone();
    server.register("second.test", Origin::Custom, true);
    assert_eq!(next(&mut follower).await, (false, read));
    server.register("first.test", Origin::Aggregated, true);
    follower.read().await.unwrap();
    let read = follower.origins.clone();
    assert_eq!(next(&mut follower).await, (true, read.clone()));
    server.register("first.test", Origin::Custom, true);
    let (is_followed, now) = next(&mut follower).await;
    assert!(is_followed && now != read);
    // A reading has what the watch did not bring.
    server.register("third.test", Origin::Aggregated, false);
    follower.read().await.unwrap();
    let origin_of =
        |origins: &Origins, group| origins.of(&GroupVersionResource::new(group, "v1", "widgets"));
    let third = origin_of(&follower.origins, "third.test");
    assert_eq!(third, Some(Origin::Aggregated));
    assert!(!follower.discovery.follows_services());
    // Until readings succeed again, the watch only takes types out.
    server.register("fourth.test", Origin::Aggregated, true);
    let (is_followed, now) = next(&mut follower).await;
    let fourth = origin_of(&now, "fourth.test");
    assert_eq!((is_followed, fourth), (false, Some(Origin::Aggregated)));
}

#[tokio::test]
async fn types_of_a_new_built_in_group_are_known_soon() {
    let followed = followed_with_services(Duration::from_hours(1)).await;
    followed.server.is_upgraded.store(true, Ordering::SeqCst);
    followed.server.register("apps", Origin::BuiltIn, true);
    eventually(|| followed.knows("apps")).await;
}

#[tokio::test]
async fn discovery_is_read_rarely_while_the_services_are_followed() {
    let followed = followed_with_services(Duration::from_millis(10)).await;
    let server = &followed.server;
    let of = |count: &AtomicUsize| count.load(Ordering::SeqCst);
    let readings = || of(&server.unchanged) + of(&server.services.lists);
    // The watch begins while readings go on.
    soon(async {
        loop {
            let before = readings();
            sleep(Duration::from_millis(200)).await;
            if readings() == before {
                break;
            }
        }
    })
    .await;
}
