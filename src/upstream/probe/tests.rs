use watershed_protocol::LabelSelector;

use super::*;
use crate::test_support::{Api, HTTP2, Pki, typed, upstream_of};

const FIRST: &str =
    r#"{"type":"ADDED","object":{"metadata":{"namespace":"b","name":"x","resourceVersion":"5"}}}"#;
const SECOND: &str =
    r#"{"type":"ADDED","object":{"metadata":{"namespace":"a","name":"y","resourceVersion":"7"}}}"#;
const MARK: &str = concat!(
    r#"{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"8","#,
    r#""annotations":{"k8s.io/initial-events-end":"true"}}}}"#,
);
const BOOKMARK: &str = r#"{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"8"}}}"#;

/// Asks an API server whose watches of pods send these lines and end. Reads two objects at most.
async fn streamed(lines: &[&'static str]) -> Result<VersionList, AnswerError> {
    let body = (lines.join("\n") + "\n").leak();
    let (_api, probe) = probe_of("pods", &Selection::default(), (STATE, body)).await;
    Ok(probe.streamed_versions(2).await?.list)
}

/// Returns a probe of a type at an API server that answers this query with this JSON.
async fn probe_of(
    resource: &str,
    selection: &Selection,
    (query, body): (&'static str, &'static str),
) -> (Api, Probe) {
    let pki = Pki::new();
    let api = Api::start(&pki, HTTP2, move |request, _| {
        assert_eq!(request.uri().query(), Some(query));
        async move { typed(200, "application/json", body) }
    })
    .await;
    let client = UpstreamClient::new(&upstream_of(&pki, &api).await);
    let gvr = GroupVersionResource::new("", "v1", resource);
    let probe = Probe::new(client, &gvr, selection, true);
    (api, probe)
}

#[tokio::test]
async fn a_streamed_state_has_the_order_of_a_list_and_the_version_of_its_mark() {
    let list = streamed(&[FIRST, SECOND, MARK]).await.unwrap();
    let objects = [("a/y", 7), ("b/x", 5)];
    let wanted = VersionList {
        version: ResourceVersion(8),
        objects: objects
            .map(|(key, version)| (key.to_owned(), ResourceVersion(version)))
            .into(),
        is_complete: true,
    };
    assert_eq!(list, wanted);
}

/// Counts objects at version 9, where `expected` are expected, at an API server that answers a query
/// with this list.
async fn counted(
    selection: &Selection,
    expected: usize,
    list: (&'static str, &'static str),
) -> Option<usize> {
    let (_api, probe) = probe_of("events", selection, list).await;
    probe.count(ResourceVersion(9), expected).await.unwrap()
}

#[tokio::test]
async fn objects_of_a_selection_are_counted_as_long_as_they_are_no_more_than_expected() {
    const TWO: &str = concat!(
        r#"{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1","metadata":"#,
        r#"{"resourceVersion":"9"},"items":[{"metadata":{"name":"a"}},{"metadata":{"name":"b"}}]}"#,
        "\n"
    );
    let more = TWO.replace(r#""9"}"#, r#""9","continue":"c"}"#).leak();
    let of_many = TWO.replace(r#""9"}"#, r#""9","continue":"c","remainingItemCount":5}"#);
    let exact = "limit=1&resourceVersionMatch=Exact&resourceVersion=9";
    let all = Selection::default();
    assert_eq!(counted(&all, 2, (exact, of_many.leak())).await, Some(7));
    let selected = Selection {
        labels: LabelSelector::parse("app=a").unwrap(),
        ..Selection::default()
    };
    let exact = "limit=3&resourceVersionMatch=Exact&resourceVersion=9&labelSelector=app%3Da";
    assert_eq!(counted(&selected, 2, (exact, TWO)).await, Some(2));
    assert_eq!(counted(&selected, 2, (exact, more)).await, None);
}

#[tokio::test]
async fn a_state_without_a_marked_end_is_none() {
    let changed = FIRST.replace("ADDED", "MODIFIED").leak();
    for lines in [
        &[FIRST, SECOND] as &[&str],
        &[FIRST, BOOKMARK],
        &[FIRST, changed, MARK],
        &[FIRST, SECOND, SECOND, MARK],
    ] {
        assert!(streamed(lines).await.is_err(), "{lines:?}");
    }
}
