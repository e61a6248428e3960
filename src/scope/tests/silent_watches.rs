//! Watches that are open and do not bring what upstream has.
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};

use super::{bookmark, empty_list, json, mark, open_namespace, open_pods, open_pods_overdue_after};
use crate::scope::Scope;
use crate::scope::phase::ScopePhase;
use crate::test_support::{Api, HTTP2, Pki, eventually, streamed};

/// Something on the way takes watches and passes nothing on.
#[tokio::test]
async fn a_type_whose_watches_are_opened_and_bring_nothing_becomes_stale() {
    let pki = Pki::new();
    let opened = Arc::new(AtomicUsize::new(0));
    let (count, listed) = (Arc::clone(&opened), Arc::new(AtomicBool::new(false)));
    let api = Api::start(&pki, HTTP2, move |request, _| {
        let query = request.uri().query().unwrap_or_default();
        let is_first = query.contains("sendInitialEvents") && !listed.swap(true, Ordering::SeqCst);
        let body = if is_first {
            let frames = [mark().to_owned(), bookmark()].map(|frame| Ok(Bytes::from(frame)));
            streamed(stream::iter(frames).chain(stream::pending()))
        } else if query.contains("watch=1") {
            count.fetch_add(1, Ordering::SeqCst);
            streamed(stream::pending())
        } else {
            empty_list(8)
        };
        async move { json(200, body) }
    })
    .await;
    let (_scopes, scope) = open_pods(&pki, &api).await;
    eventually(|| matches!(scope.phase(), ScopePhase::Ready(_))).await;
    let is_stale = || matches!(scope.phase(), ScopePhase::Stale(_));
    let mut heard = None;
    for _ in 0..40 {
        // Time for what is sent meanwhile.
        tokio::time::sleep(Duration::from_millis(100)).await;
        heard.get_or_insert(scope.upstream.last_heard());
        if is_stale() {
            break;
        }
        tokio::time::pause();
        tokio::time::advance(Duration::from_secs(15)).await;
        tokio::time::resume();
    }
    assert!(is_stale(), "{:?}", scope.upstream.age());
    assert!(opened.load(Ordering::SeqCst) >= 2);
    let last = scope.upstream.last_heard();
    assert_eq!(heard, Some(last), "that a watch is open is no news");
}

/// A watch that was opened again a while ago is not opened again so soon. Its answers tell their age.
#[tokio::test]
async fn a_scope_that_lacks_events_has_an_age_before_its_watch_is_opened_again() {
    let pki = Pki::new();
    let opened = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&opened);
    let api = Api::start(&pki, HTTP2, move |request, _| {
        let query = request.uri().query().unwrap_or_default();
        let body = if query.contains("watch=1") {
            count.fetch_add(1, Ordering::SeqCst);
            let is_state = query.contains("sendInitialEvents");
            let frame = if is_state {
                mark().to_owned()
            } else {
                bookmark()
            };
            streamed(stream::iter([Ok(Bytes::from(frame))]).chain(stream::pending()))
        } else {
            empty_list(8)
        };
        async move { json(200, body) }
    })
    .await;
    let (_scopes, scope) = open_pods_overdue_after(Duration::from_secs(4), &pki, &api).await;
    eventually(|| matches!(scope.phase(), ScopePhase::Ready(_))).await;
    let opened = || opened.load(Ordering::SeqCst);
    let first = opened();
    scope.lacks_events_after(scope.reader.event_version());
    eventually(|| opened() > first).await;
    // The bookmark of the new watch.
    eventually(|| scope.age().is_none()).await;
    let reopened = opened();
    scope.lacks_events_after(scope.reader.event_version());
    eventually(|| scope.age().is_some()).await;
    assert_eq!(opened(), reopened);
    assert!(scope.upstream.is_following());
    assert!(!scope.upstream.is_delivering());
    eventually(|| opened() > reopened).await;
}

/// Something on the way passed nothing on for a while. The attempts of most types are minutes apart by then.
#[tokio::test]
async fn a_watch_that_lacks_events_is_opened_again_once_another_brings_something() {
    const PATIENCE: Duration = Duration::from_secs(1);
    let pki = Pki::new();
    let opened = [const { AtomicUsize::new(0) }; 2];
    let opened = Arc::new(opened);
    let count = Arc::clone(&opened);
    let api = Api::start(&pki, HTTP2, move |request, _| {
        let query = request.uri().query().unwrap_or_default();
        let is_of_namespace = request.uri().path().contains("/namespaces/");
        let body = if query.contains("sendInitialEvents") {
            let mark = Ok(Bytes::from(mark()));
            streamed(stream::iter([mark]).chain(stream::pending()))
        } else if query.contains("watch=1") {
            count[usize::from(is_of_namespace)].fetch_add(1, Ordering::SeqCst);
            let bookmark = is_of_namespace.then(|| Ok(Bytes::from(bookmark())));
            streamed(stream::iter(bookmark).chain(stream::pending()))
        } else {
            empty_list(8)
        };
        async move { json(200, body) }
    })
    .await;
    let (scopes, scope) = open_pods_overdue_after(PATIENCE, &pki, &api).await;
    let other = open_namespace(&scopes, &scope);
    for scope in [&scope, &other] {
        eventually(|| matches!(scope.phase(), ScopePhase::Ready(_))).await;
    }
    let opened = |number: usize| opened[number].load(Ordering::SeqCst);
    let lack = |scope: &Scope| scope.lacks_events_after(scope.reader.event_version());
    lack(&scope);
    eventually(|| opened(0) > 0).await;
    assert!(!scope.upstream.is_delivering());
    tokio::time::sleep(PATIENCE).await;
    let before = opened(0);
    lack(&other);
    eventually(|| opened(0) > before).await;
    eventually(|| other.upstream.is_delivering()).await;
    assert!(!scope.upstream.is_delivering(), "it brings nothing still");
}

/// Many scopes recover one after the other.
#[tokio::test]
async fn a_list_that_is_under_way_is_not_asked_for_again_when_another_watch_brings_something() {
    const GONE: &str = concat!(
        r#"{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","status":"Failure","#,
        r#""reason":"Expired","code":410}}"#,
        "\n"
    );
    let pki = Pki::new();
    let (lists, others) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (count, opened) = (Arc::clone(&lists), Arc::clone(&others));
    let api = Api::start(&pki, HTTP2, move |request, _| {
        let query = request.uri().query().unwrap_or_default();
        let is_of_namespace = request.uri().path().contains("/namespaces/");
        opened.fetch_add(usize::from(is_of_namespace), Ordering::SeqCst);
        let is_state = query.contains("sendInitialEvents");
        let frame = if is_state && !is_of_namespace {
            // The second one hangs.
            (count.fetch_add(1, Ordering::SeqCst) == 0).then(|| mark().to_owned())
        } else if is_state {
            Some(mark().to_owned())
        } else if is_of_namespace {
            Some(bookmark())
        } else {
            Some(GONE.to_owned())
        };
        let body = if query.contains("watch=1") {
            let frame = frame.map(|frame| Ok(Bytes::from(frame)));
            streamed(stream::iter(frame).chain(stream::pending()))
        } else {
            empty_list(8)
        };
        async move { json(200, body) }
    })
    .await;
    let (scopes, scope) = open_pods_overdue_after(Duration::from_millis(300), &pki, &api).await;
    let other = open_namespace(&scopes, &scope);
    for scope in [&scope, &other] {
        eventually(|| matches!(scope.phase(), ScopePhase::Ready(_))).await;
    }
    let lack = |scope: &Scope| scope.lacks_events_after(scope.reader.event_version());
    lack(&scope);
    eventually(|| lists.load(Ordering::SeqCst) == 2).await;
    let before = others.load(Ordering::SeqCst);
    lack(&other);
    eventually(|| others.load(Ordering::SeqCst) > before).await;
    eventually(|| other.upstream.is_delivering()).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(lists.load(Ordering::SeqCst), 2);
}
