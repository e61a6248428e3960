use super::*;

fn pods() -> GroupVersionResource {
    GroupVersionResource::new("", "v1", "pods")
}

fn pod(name: &str) -> String {
    format!(r#"{{"metadata":{{"name":"{name}","namespace":"n"}},"spec":{{"nodeName":"node-1"}}}}"#)
}

fn index() -> usize {
    ResourceKind::of(&pods()).unwrap().0
}

#[test]
fn one_counter_numbers_the_writes_of_all_types() {
    let state = ClusterState::new(10, 0);
    let configmaps = GroupVersionResource::new("", "v1", "configmaps");
    let first = state.create(&pods(), &pod("a")).unwrap();
    let second = state
        .create(&configmaps, r#"{"metadata":{"name":"c","namespace":"n"}}"#)
        .unwrap();
    assert_eq!(second, first + 1);
    assert_eq!(
        state.view(index()).version,
        first,
        "the cache of an idle type stays behind"
    );
    assert_eq!(
        state.fresh_view(index()).version,
        second,
        "a consistent read moves it"
    );
    assert_eq!(state.delete(&pods(), "n", "a"), Ok(second + 1));
    assert_eq!(state.delete(&pods(), "n", "a"), Err(WriteError::NotFound));
    assert!(state.snapshot(&pods()).is_empty());
}

#[test]
fn an_update_with_an_old_version_conflicts() {
    let state = ClusterState::new(10, 0);
    state.create(&pods(), &pod("a")).unwrap();
    let stale = pod("a").replace(r#""name""#, r#""resourceVersion":"1","name""#);
    assert_eq!(state.update(&pods(), &stale), Err(WriteError::Conflict));
    assert!(state.update(&pods(), &pod("a")).is_ok());
    assert_eq!(
        state.create(&pods(), &pod("a")),
        Err(WriteError::AlreadyExists)
    );
}

#[test]
fn history_is_bounded() {
    let state = ClusterState::new(2, 0);
    let versions: Vec<_> = (0..4)
        .map(|i| state.create(&pods(), &pod(&format!("p{i}"))).unwrap())
        .collect();
    let before = state.recent(index(), versions[0]);
    assert!(matches!(before, EventsSince::TooOld(oldest) if oldest == versions[1]));
    assert!(
        matches!(state.recent(index(), versions[1]), EventsSince::Events(e, _) if e.len() == 2)
    );
    assert!(state.exact_view(index(), versions[0]).is_none());
    assert_eq!(
        state
            .exact_view(index(), versions[1])
            .unwrap()
            .objects
            .len(),
        2
    );
    assert_eq!(
        state
            .exact_view(index(), versions[3])
            .unwrap()
            .objects
            .len(),
        4
    );
}

#[test]
fn a_restart_forgets_versions_below_the_global_one() {
    let state = ClusterState::new(10, 0);
    let pod_version = state.create(&pods(), &pod("a")).unwrap();
    let configmaps = GroupVersionResource::new("", "v1", "configmaps");
    let global = state
        .create(&configmaps, r#"{"metadata":{"name":"c","namespace":"n"}}"#)
        .unwrap();
    state.forget_history();
    assert!(
        matches!(state.recent(index(), pod_version), EventsSince::TooOld(floor) if floor == global)
    );
    assert!(matches!(state.recent(index(), global), EventsSince::Events(e, _) if e.is_empty()));
}

#[test]
fn a_restore_brings_back_the_state_of_a_branch() {
    let state = ClusterState::new(10, 0);
    state.create(&pods(), &pod("a")).unwrap();
    let backup = state.branch();
    let lost = state.create(&pods(), &pod("lost")).unwrap();
    let other = backup.create(&pods(), &pod("other")).unwrap();
    assert_eq!(lost, other, "both go on from the same version");
    assert_eq!(state.restores(), 0);
    state.restore(&backup);
    assert_eq!(state.restores(), 1);
    assert_eq!(state.version(), other);
    let names: Vec<_> = state.snapshot(&pods()).into_keys().collect();
    assert_eq!(names, ["n/a", "n/other"]);
    // The history is the branch's, which begins at the backup.
    assert!(matches!(
        state.recent(index(), other - 2),
        EventsSince::TooOld(_)
    ));
    assert!(matches!(state.recent(index(), other - 1), EventsSince::Events(e, _) if e.len() == 1));
}

#[test]
fn equal_seeds_give_equal_bytes() {
    let run = |seed| {
        let state = ClusterState::new(10, seed);
        state.create(&pods(), &pod("a")).unwrap();
        state.snapshot(&pods())
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}
