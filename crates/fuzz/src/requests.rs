//! URLs, parameters, selectors, tokens and headers: what clients send.
use http::header::{ACCEPT, ACCEPT_ENCODING, USER_AGENT};
use http::{HeaderMap, HeaderValue, Method};
use watershed_protocol::{
    ContinueToken, FieldSelector, LabelSelector, ListOptions, Query, RequestInfo, Selection,
    acceptable, accepts_gzip, get_freshness, wants_pretty,
};

use crate::FuzzTarget;

fn texts(texts: &[&str]) -> Vec<Vec<u8>> {
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}

pub(crate) fn urls() -> FuzzTarget {
    let corpus = texts(&[
        "/api/v1/pods",
        "/api/v1/namespaces/a/pods/b/log?follow=true",
        "/apis/apps/v1/namespaces/a/deployments?watch=1&fieldSelector=metadata.name%3Db",
        "/api/v1/watch/namespaces/a/pods/b",
        "/apis/example.org/v1/things/x/scale",
        "/api/v1/namespaces/a/finalize",
        "/api/v1/nodes/n/proxy/metrics?x=%zz",
    ]);
    let words = &[
        "/",
        "//",
        "namespaces",
        "watch",
        "proxy",
        "%2e",
        "..",
        "?",
        "&",
        "watch=true",
        "limit=",
    ];
    FuzzTarget::new(corpus, words, |input| {
        let text = String::from_utf8_lossy(input);
        let (path, query) = text
            .split_once('?')
            .map_or((&*text, None), |(a, b)| (a, Some(b)));
        let methods = [Method::GET, Method::POST, Method::DELETE, Method::HEAD];
        methods.map(|method| {
            let info = RequestInfo::parse(&method, path, query);
            let resource = info.resource.as_ref();
            if let Some(resource) = resource {
                // What is asked about is in the URL, or in its selector.
                assert!(path.contains(&*resource.gvr.resource));
                assert!(!resource.gvr.resource.contains('/') && !resource.gvr.version.is_empty());
            }
            let parts = resource.map(|it| {
                (
                    it.namespace.is_some(),
                    it.name.is_some(),
                    it.subresource.is_some(),
                )
            });
            (info.verb, info.legacy_watch, parts)
        })
    })
}

pub(crate) fn list_options() -> FuzzTarget {
    let corpus = texts(&[
        "watch=1&resourceVersion=0&allowWatchBookmarks=true&timeoutSeconds=300",
        "limit=500&resourceVersionMatch=NotOlderThan&resourceVersion=7",
        "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&watch=true",
        "continue=abc&labelSelector=a%3Db&fieldSelector=spec.nodeName%3Dn&pretty=1&timeout=5s",
    ]);
    let words = &[
        "&",
        "=",
        "%",
        ";",
        "+",
        "0",
        "-1",
        "18446744073709551616",
        "Exact",
        "continue=",
        "true",
    ];
    FuzzTarget::new(corpus, words, |input| {
        let text = String::from_utf8_lossy(input);
        let query = Query::parse(Some(&text));
        let options = ListOptions::of(&query);
        let found = options.as_ref().map(|options| {
            let list = options.list_start().map(|start| start.after.is_some());
            let watch = options
                .watch_start()
                .map(|start| format!("{:.9}", format!("{start:?}")));
            let flags = (
                options.watch,
                options.page_limit().is_some(),
                options.end_mark(),
            );
            (format!("{list:?}"), format!("{watch:?}"), flags)
        });
        let freshness = get_freshness(&query).is_ok();
        (
            format!("{found:?}"),
            freshness,
            wants_pretty(&query, &HeaderMap::new()),
        )
    })
}

pub(crate) fn selectors() -> FuzzTarget {
    let corpus = texts(&[
        "app=web,tier!=db,x in (a,b),y notin (c),!z,w",
        "n>5,m<7",
        "a.b/c-d in (x,,y)",
        "metadata.name=a,spec.nodeName!=b\\,c",
        "status.phase==Running",
    ]);
    let words = &[
        ",",
        "=",
        "==",
        "!=",
        "!",
        " in ",
        " notin ",
        "(",
        ")",
        "\\",
        "metadata.name",
        ">",
        "<",
    ];
    FuzzTarget::new(corpus, words, |input| {
        let text = String::from_utf8_lossy(input);
        let (labels, fields) = (LabelSelector::parse(&text), FieldSelector::parse(&text));
        // What is sent to upstream means the same.
        if let Ok(selector) = &labels {
            assert_eq!(
                LabelSelector::parse(&selector.to_string()).as_ref(),
                Ok(selector)
            );
        }
        if let Ok(selector) = &fields {
            let again = FieldSelector::parse(&selector.to_string()).unwrap();
            // Requirements on a field without a name may change places.
            let (one, other) = (selector.requirements(), again.requirements());
            assert_eq!(one.len(), other.len());
            assert!(one.iter().all(|requirement| other.contains(requirement)));
        }
        let counts = (
            labels.as_ref().map_or(99, |it| it.requirements().len()),
            fields.as_ref().map_or(99, |it| it.requirements().len()),
        );
        let selection = Selection {
            namespace: None,
            labels: labels.unwrap_or_default(),
            fields: fields.unwrap_or_default(),
        };
        assert!(selection.covers(&selection));
        assert!(Selection::default().covers(&selection));
        counts
    })
}

pub(crate) fn continue_tokens() -> FuzzTarget {
    let encode = |after: &str| {
        let token = ContinueToken {
            version: watershed_protocol::ResourceVersion(7),
            after: after.to_owned(),
        };
        token.encode().into_bytes()
    };
    let corpus = [encode("a"), encode("shop/web"), encode("\u{e9}\\\"")];
    let words = &["eyJ2Ijoi", "=", "-", "_", "Ijow", "fQ"];
    FuzzTarget::new(corpus, words, |input| {
        let text = String::from_utf8_lossy(input);
        let token = ContinueToken::decode(&text);
        if let Some(token) = &token {
            assert_eq!(ContinueToken::decode(&token.encode()).as_ref(), Some(token));
        }
        (
            token.is_some(),
            token.map(|token| (token.version.0 % 8, token.after.len())),
        )
    })
}

pub(crate) fn headers() -> FuzzTarget {
    let corpus = texts(&[
        "application/json;as=Table;v=v1;g=meta.k8s.io,application/json",
        "application/vnd.kubernetes.protobuf;q=0.5, */*;q=0.1",
        "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1;stream=watch",
        "gzip;q=0, identity",
        "Mozilla/5.0",
    ]);
    let words = &[
        ",", ";", "=", "q=", "as=", "\"", "*/*", "1.0000", "gzip", "curl/",
    ];
    FuzzTarget::new(corpus, words, |input| {
        let Ok(value) = HeaderValue::from_bytes(input) else {
            return None;
        };
        let of = |name| HeaderMap::from_iter([(name, value.clone())]);
        let accepted = [
            watershed_protocol::Verb::List,
            watershed_protocol::Verb::Watch,
        ]
        .map(|verb| acceptable(&of(ACCEPT), verb));
        let gzip = accepts_gzip(&of(ACCEPT_ENCODING));
        Some((
            accepted,
            gzip,
            wants_pretty(&Query::parse(None), &of(USER_AGENT)),
        ))
    })
}
