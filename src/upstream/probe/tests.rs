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
    let pki = Pki::new();
    let body: &'static str = (lines.join("\n") + "\n").leak();
    let api = Api::start(&pki, HTTP2, move |request, _| {
        assert_eq!(request.uri().query(), Some(STATE));
        async move { typed(200, "application/json", body) }
    })
    .await;
    let client = UpstreamClient::new(&upstream_of(&pki, &api).await);
    let pods = GroupVersionResource::new("", "v1", "pods");
    let probe = Probe::new(client, &pods, &Selection::default(), true);
    probe.streamed_versions(2).await
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
