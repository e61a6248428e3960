use proptest::prelude::*;

use super::*;

fn get(url: &str) -> RequestInfo {
    request(&Method::GET, url)
}

fn request(method: &Method, url: &str) -> RequestInfo {
    match url.split_once('?') {
        Some((path, query)) => RequestInfo::parse(method, path, Some(query)),
        None => RequestInfo::parse(method, url, None),
    }
}

/// verb, then `group/version/resource`, namespace, name, subresource with `-` for none.
fn summary(info: &RequestInfo) -> String {
    let Some(resource) = &info.resource else {
        return format!("{} -", info.verb.as_str());
    };
    let or_dash = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
    format!(
        "{} {} {} {} {}",
        info.verb.as_str(),
        resource.gvr,
        or_dash(&resource.namespace),
        or_dash(&resource.name),
        or_dash(&resource.subresource),
    )
}

#[test]
fn knows_which_requests_upstream_treats_as_long_running() {
    let is_long_running = |method, url: &str| {
        let path = url.split('?').next().unwrap_or_default();
        request(method, url).is_long_running(path)
    };
    for url in [
        "/api/v1/pods?watch=1",
        "/api/v1/watch/pods",
        "/api/v1/namespaces/a/pods/b/log",
        "/api/v1/namespaces/a/pods/b/exec",
        "/api/v1/namespaces/a/services/b/proxy/path",
        "/debug/pprof/profile",
    ] {
        assert!(is_long_running(&Method::GET, url), "{url}");
    }
    for url in [
        "/api/v1/pods",
        "/api/v1/namespaces/a/pods/log",
        "/api/v1/namespaces/a/pods/b/status",
        "/apis?watch=1",
        "/debug/flags",
    ] {
        assert!(!is_long_running(&Method::GET, url), "{url}");
    }
    let attach = "/api/v1/namespaces/a/pods/b/attach";
    assert!(is_long_running(&Method::POST, attach));
}

#[test]
fn what_pods_may_answer_is_relayed() {
    let is_relayed = |path| get(path).is_relayed(path);
    for path in [
        "/api/v1/namespaces/a/pods/p/log",
        "/api/v1/namespaces/a/pods/p/proxy",
        "/api/v1/namespaces/a/services/s/proxy/metrics",
        "/api/v1/nodes/n/proxy/",
        "/api/v1/namespaces/a/pods/p/proxy//x",
        "/api/v1/namespaces/a/pods/p/proxy/a%2Fb",
        "/api/v1/namespaces/a/pods/p/prox%79",
        "/%61pi/v1/namespaces/a/pods/p/proxy",
        "/api/v1/namespaces%2Fa%2Fpods%2Fp%2Fproxy",
        "/api/v1/namespaces/a/pods/p/./log",
    ] {
        assert!(is_relayed(path), "{path}");
    }
    for path in [
        "/api/v1/namespaces/a/pods/p",
        "/api/v1/namespaces/a/pods/p/status",
        "/api/v1/namespaces/a/pods",
        "/apis/apps/v1/deployments",
        "/apis/apps/v1",
        "/openapi/v3/apis/apps/v1",
        "/metrics",
    ] {
        assert!(!is_relayed(path), "{path}");
    }
}

#[test]
fn logs_may_stay_open_while_they_are_followed() {
    let end_of = |method, path, query| {
        RequestInfo::parse(&method, path, query).answer_end(&Query::parse(query))
    };
    let (pods, log) = ("/api/v1/pods", "/api/v1/namespaces/a/pods/b/log");
    let many = "a&".repeat(1_000);
    let [watch, follow] = ["watch=1", "follow=1"].map(|last| format!("{many}{last}"));
    let unread = format!("watch=1&follow=1{}", "&".repeat(10_000));
    for (end, path, queries) in [
        (
            AnswerEnd::ByClient,
            log,
            &[
                "follow",
                "follow=true",
                "follow=1",
                "%66ollow=true&tailLines=1",
            ][..],
        ),
        (
            AnswerEnd::ByItself,
            log,
            &[
                "",
                "follow=false",
                "follow=0",
                "container=follow",
                "follower=true",
            ],
        ),
        (AnswerEnd::ByClient, pods, &["watch=1"]),
        (
            AnswerEnd::ByItself,
            pods,
            &["", "watch=0", "%zz", "limit=1"],
        ),
        (AnswerEnd::Unknown, pods, &[&watch, "%zz&watch=0", &unread]),
        (AnswerEnd::Unknown, log, &[&follow, &unread]),
    ] {
        for query in queries {
            assert_eq!(
                end_of(Method::GET, path, Some(query)),
                end,
                "{path} {query}"
            );
        }
    }
    assert_eq!(end_of(Method::GET, log, None), AnswerEnd::ByItself);
    let of_post = end_of(
        Method::POST,
        "/api/v1/namespaces/a/pods",
        Some("%zz&watch=1"),
    );
    assert_eq!(of_post, AnswerEnd::ByItself);
}

#[test]
fn reads_urls_as_upstream_does() {
    for (url, expected) in [
        ("/api/v1/pods", "list pods.v1 - - -"),
        ("/api/v1/pods/", "list pods.v1 - - -"),
        ("/api/v1/pods?watch", "watch pods.v1 - - -"),
        ("/api/v1/pods?watch=false", "list pods.v1 - - -"),
        ("/api/v1/nodes/n1", "get nodes.v1 - n1 -"),
        ("/api/v1/nodes/n1/status", "get nodes.v1 - n1 status"),
        (
            "/apis/apps/v1/deployments",
            "list deployments.v1.apps - - -",
        ),
        ("/api/v1/namespaces/a/pods", "list pods.v1 a - -"),
        ("/api/v1/namespaces/a/pods/p", "get pods.v1 a p -"),
        ("/api/v1/namespaces/a/pods/p?watch=1", "get pods.v1 a p -"),
        ("/api/v1/namespaces/a/pods/p/log", "get pods.v1 a p log"),
        (
            "/api/v1/namespaces/a/pods/p/proxy/x/y",
            "get pods.v1 a p proxy",
        ),
        ("/api/v1/namespaces", "list namespaces.v1 - - -"),
        ("/api/v1/namespaces?watch=1", "watch namespaces.v1 - - -"),
        ("/api/v1/namespaces/a", "get namespaces.v1 a a -"),
        (
            "/api/v1/namespaces/a/status",
            "get namespaces.v1 a a status",
        ),
        (
            "/api/v1/namespaces/a/finalize",
            "get namespaces.v1 a a finalize",
        ),
        ("/api/v1/namespaces/a/other", "list other.v1 a - -"),
        (
            "/apis/rbac.authorization.k8s.io/v1/clusterroles/system:node",
            "get clusterroles.v1.rbac.authorization.k8s.io - system:node -",
        ),
    ] {
        assert_eq!(summary(&get(url)), expected, "{url}");
        assert!(!get(url).legacy_watch, "{url}");
    }
}

#[test]
fn reads_the_deprecated_watch_prefix() {
    for (url, expected) in [
        ("/api/v1/watch/pods", "watch pods.v1 - - -"),
        (
            "/api/v1/watch/pods?fieldSelector=metadata.name=x",
            "watch pods.v1 - - -",
        ),
        ("/api/v1/watch/namespaces", "watch namespaces.v1 - - -"),
        ("/api/v1/watch/namespaces/a", "watch namespaces.v1 a a -"),
        ("/api/v1/watch/namespaces/a/pods", "watch pods.v1 a - -"),
        (
            "/apis/apps/v1/watch/namespaces/a/deployments/d",
            "watch deployments.v1.apps a d -",
        ),
    ] {
        assert_eq!(summary(&get(url)), expected, "{url}");
        assert!(get(url).legacy_watch, "{url}");
        assert_eq!(request(&Method::POST, url).verb, Verb::Other);
    }
    assert_eq!(summary(&get("/api/v1/watch")), "get -");
}

#[test]
fn other_paths_have_no_resource() {
    for url in [
        "",
        "/",
        "/api",
        "/api/v1",
        "/apis",
        "/apis/apps",
        "/apis/apps/v1",
        "/healthz",
        "/openapi/v3/api/v1",
        "/api/v1/proxy/nodes/n",
        "/version/a/b",
        "*",
    ] {
        assert_eq!(summary(&get(url)), "get -", "{url}");
    }
    assert_eq!(summary(&request(&Method::POST, "/healthz")), "other -");
}

#[test]
fn odd_paths_are_not_understood() {
    for (url, verb) in [
        ("/api/v1//pods", Verb::Get),
        ("//api/v1/pods", Verb::List),
        ("/api/v1/pods//", Verb::List),
        ("api/v1/pods", Verb::List),
        ("/api/v1/namespaces//pods", Verb::List),
        ("/api/v1/namespaces/a%62/pods?watch=1", Verb::Watch),
        ("/api/v1/namespaces/../pods", Verb::List),
        ("/api/v1/namespaces/A/pods", Verb::List),
        ("/api/v1/p%6fds", Verb::List),
        ("/api/v1/nodes/n%31", Verb::Get),
        ("/api/v1/nodes/.", Verb::Get),
        ("/api/v1/nodes/ä", Verb::Get),
        ("/apis//v1/pods", Verb::List),
        ("/api/v1/namespaces/a/namespaces", Verb::List),
        ("/api/v1/namespaces/a/namespaces/a", Verb::Get),
        ("/api/v1/namespaces/a/namespaces/b", Verb::Get),
    ] {
        let info = get(url);
        assert_eq!((info.resource, info.verb), (None, verb), "{url}");
    }
}

#[test]
fn maps_methods() {
    for (method, collection, object) in [
        (Method::GET, Verb::List, Verb::Get),
        (Method::HEAD, Verb::Other, Verb::Other),
        (Method::OPTIONS, Verb::Other, Verb::Other),
        (Method::POST, Verb::Create, Verb::Create),
        (Method::PUT, Verb::Update, Verb::Update),
        (Method::PATCH, Verb::Patch, Verb::Patch),
        (Method::DELETE, Verb::DeleteCollection, Verb::Delete),
    ] {
        assert_eq!(
            request(&method, "/api/v1/namespaces/a/pods").verb,
            collection,
            "{method}"
        );
        assert_eq!(
            request(&method, "/api/v1/namespaces/a/pods/p").verb,
            object,
            "{method}"
        );
    }
    assert_eq!(Verb::DeleteCollection.as_str(), "deletecollection");
}

#[test]
fn a_selector_can_name_the_object() {
    for (query, expected) in [
        ("fieldSelector=metadata.name%3Dx", "list pods.v1 - x -"),
        (
            "fieldSelector=metadata.name=x&watch=1",
            "watch pods.v1 - x -",
        ),
        (
            "fieldSelector=metadata.name=b,metadata.name=a",
            "list pods.v1 - a -",
        ),
        ("fieldSelector=metadata.name!=x", "list pods.v1 - - -"),
        ("fieldSelector=metadata.name=", "list pods.v1 - - -"),
        ("fieldSelector=metadata.name=..", "list pods.v1 - - -"),
        ("fieldSelector=metadata.name=a/b", "list pods.v1 - - -"),
        (
            "fieldSelector=metadata.name=x&limit=abc",
            "list pods.v1 - - -",
        ),
        (
            "fieldSelector=metadata.name=x&labelSelector=!",
            "list pods.v1 - - -",
        ),
    ] {
        let info = get(&format!("/api/v1/pods?{query}"));
        assert_eq!(summary(&info), expected, "{query}");
    }
    let of_path = get("/api/v1/pods/p?fieldSelector=metadata.name=x");
    assert_eq!(summary(&of_path), "get pods.v1 - p -");
}

proptest! {
    #[test]
    fn never_panics(path in any::<String>(), query in any::<Option<String>>()) {
        let _ = RequestInfo::parse(&Method::GET, &path, query.as_deref());
    }

    #[test]
    fn never_panics_on_its_own_alphabet(
        path in "/?(api|apis|watch|namespaces|proxy|status|v1|a|%|\\.|/){0,9}",
        query in "(watch|fieldSelector|metadata\\.name|[=&%;+]){0,8}",
    ) {
        let _ = RequestInfo::parse(&Method::GET, &path, Some(&query));
    }

    #[test]
    fn reads_its_own_collection_paths(
        group in "([a-z][a-z0-9.]{0,8}[a-z])?",
        resource in "[a-z]{3,9}s",
    ) {
        prop_assume!(!matches!(resource.as_str(), "namespaces"));
        let gvr = GroupVersionResource::new(&group, "v1", &resource);
        let info = get(&gvr.collection_path());
        prop_assert_eq!(info.verb, Verb::List);
        prop_assert_eq!(info.resource.unwrap().gvr, gvr);
    }
}
