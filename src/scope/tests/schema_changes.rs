//! Scopes whose schema changes.
use super::*;

#[tokio::test]
async fn a_scope_that_is_opened_just_after_a_schema_change_is_not_shown_before_another_list() {
    let pki = Pki::new();
    let api = Api::start(&pki, HTTP2, |request, _| {
        let is_watch = request
            .uri()
            .query()
            .unwrap_or_default()
            .starts_with("watch=1");
        let body = if is_watch {
            let mark = stream::iter([Ok(Bytes::from_static(mark().as_bytes()))]);
            streamed(mark.chain(stream::pending()))
        } else {
            empty_list(7)
        };
        async move { json(200, body) }
    })
    .await;
    let (scopes, all) = open_pods(&pki, &api).await;
    eventually(|| matches!(all.phase(), ScopePhase::Ready(_))).await;
    scopes.schema_changed(&all.key.gvr);
    let part = open_namespace(&scopes, &all);
    eventually(|| matches!(part.phase(), ScopePhase::SchemaChanged)).await;
    eventually(|| matches!(part.phase(), ScopePhase::Ready(_))).await;
}
