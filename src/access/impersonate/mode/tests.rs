use std::collections::BTreeMap;

use super::*;

fn wanted(user: &str, groups: &[&str], extra: &[(&str, &[&str])]) -> ImpersonationRequest {
    let owned = |texts: &[&str]| texts.iter().map(|&text| text.to_owned()).collect();
    let extra = extra
        .iter()
        .map(|(key, values)| ((*key).to_owned(), owned(values)));
    ImpersonationRequest {
        user: user.to_owned(),
        uid: String::new(),
        groups: owned(groups),
        extra: extra.collect::<BTreeMap<_, _>>(),
    }
}

fn caller(user: &str, node: Option<&str>) -> Arc<Identity> {
    let nodes = node.map(|node| (NODE_NAME.to_owned(), vec![node.to_owned()]));
    Arc::new(Identity {
        user: user.to_owned(),
        uid: None,
        groups: Vec::new(),
        extra: nodes.into_iter().collect(),
    })
}

fn modes(wanted: &ImpersonationRequest, caller: &Identity) -> Vec<&'static str> {
    let modes = ImpersonationMode::ALL.into_iter();
    modes
        .filter(|mode| mode.is_for(wanted, caller))
        .map(ImpersonationMode::verb)
        .collect()
}

fn shown(checks: &[ModeCheck]) -> Vec<String> {
    let name = |named: &ResourceRequest| {
        let ResourceRequest {
            gvr,
            namespace,
            name,
            subresource,
            ..
        } = named;
        let text = |part: &Option<String>| part.clone().unwrap_or_else(|| "-".to_owned());
        format!(
            "{}:{} {} {} {}",
            gvr.group,
            gvr.resource,
            text(namespace),
            text(name),
            text(subresource)
        )
    };
    let checks = checks.iter().map(|check| match check {
        ModeCheck::Named(named) => name(named),
        ModeCheck::AllOrEach(all, each) => format!("{} or {}", name(all), each.len()),
        ModeCheck::Refused(named, reason) => format!("{}: {reason}", name(named)),
    });
    checks.collect()
}

#[test]
fn each_mode_is_for_certain_users() {
    let (jane, agent) = (
        caller("jane", None),
        caller("system:serviceaccount:n:agent", Some("east")),
    );
    let (node, account) = ("system:node:east", "system:serviceaccount:n:robot");
    for (wanted, caller, modes_wanted) in [
        (
            wanted("bob", &[], &[]),
            &jane,
            &["impersonate:user-info", "impersonate"][..],
        ),
        (
            wanted(node, &[], &[]),
            &jane,
            &["impersonate:arbitrary-node", "impersonate"],
        ),
        (
            wanted(node, &[], &[]),
            &agent,
            &[
                "impersonate:associated-node",
                "impersonate:arbitrary-node",
                "impersonate",
            ],
        ),
        (
            wanted("system:node:west", &[], &[]),
            &agent,
            &["impersonate:arbitrary-node", "impersonate"],
        ),
        (wanted(node, &["a"], &[]), &agent, &["impersonate"]),
        (
            wanted(account, &[], &[]),
            &jane,
            &["impersonate:serviceaccount", "impersonate"],
        ),
        (
            wanted(account, &[], &[("a.b/c", &["d"])]),
            &jane,
            &["impersonate"],
        ),
        (
            wanted("system:node:East", &[], &[]),
            &jane,
            &["impersonate:user-info", "impersonate"],
        ),
    ] {
        assert_eq!(modes(&wanted, caller), modes_wanted, "{wanted:?}");
    }
    let elsewhere = caller("jane", Some("east"));
    let request = wanted(node, &[], &[]);
    assert!(!ImpersonationMode::AssociatedNode.is_for(&request, &elsewhere));
    let asking = ImpersonationMode::AssociatedNode.asking(&agent);
    assert_eq!(
        asking.extra,
        [(NODE_KEYS.to_owned(), vec![NODE_NAME.to_owned()])]
    );
}

#[test]
fn each_part_of_an_identity_is_checked_in_upstreams_order() {
    use ImpersonationMode::{AssociatedNode, Legacy, ServiceAccount, UserInfo};
    let account = ImpersonationRequest {
        uid: "7".to_owned(),
        ..wanted("system:serviceaccount:n:robot", &["a"], &[("K", &["v"])])
    };
    let each = [
        ":serviceaccounts n robot -",
        "authentication.k8s.io:uids - 7 -",
        ":groups - a -",
        "authentication.k8s.io:userextras - v K",
    ];
    assert_eq!(shown(&Legacy.checks(&account)), each);
    let before = shown(&ImpersonationMode::checks_before_modes(&account));
    assert_eq!(before, [each[0], each[2], each[3], each[1]]);
    assert_eq!(
        shown(&ServiceAccount.checks(&wanted("system:serviceaccount:n:robot", &[], &[]))),
        ["authentication.k8s.io:serviceaccounts n robot -"]
    );
    assert_eq!(
        shown(&AssociatedNode.checks(&wanted("system:node:east", &[], &[]))),
        ["authentication.k8s.io:nodes - * -"]
    );
    let user = "authentication.k8s.io:users - bob -";
    for (groups, extra, wanted_checks) in [
        (
            &["a", "b", "c"][..],
            &[][..],
            vec![
                "authentication.k8s.io:groups - a -",
                "authentication.k8s.io:groups - b -",
                "authentication.k8s.io:groups - c -",
            ],
        ),
        (
            &["a", "b", "c", "d"],
            &[],
            vec!["authentication.k8s.io:groups - * - or 4"],
        ),
        (
            &["a", ""],
            &[],
            vec![
                "authentication.k8s.io:groups - - -: impersonating the empty string group is not allowed",
            ],
        ),
        (
            &["a", "system:masters"],
            &[],
            vec![
                "authentication.k8s.io:groups - system:masters -: impersonating the system:masters group is not allowed",
            ],
        ),
        (
            &[],
            &[("a.b/c", &["1", "2", "3", "4"][..])],
            vec!["authentication.k8s.io:userextras - * * or 4"],
        ),
        (
            &[],
            &[("a.b/c", &["1"][..])],
            vec!["authentication.k8s.io:userextras - 1 a.b/c"],
        ),
    ] {
        let found = shown(&UserInfo.checks(&wanted("bob", groups, extra)));
        assert_eq!(found[0], user);
        assert_eq!(found[1..], wanted_checks);
    }
}

#[test]
fn nodes_and_service_accounts_have_fixed_groups() {
    use ImpersonationMode::{ArbitraryNode, Legacy, ServiceAccount};
    let groups = |mode: ImpersonationMode, user: &str| {
        mode.identity(&wanted(user, &[], &[])).groups.join(" ")
    };
    assert_eq!(
        groups(ArbitraryNode, "system:node:east"),
        "system:nodes system:authenticated"
    );
    assert_eq!(groups(Legacy, "system:node:east"), "system:authenticated");
    for mode in [ServiceAccount, Legacy] {
        assert_eq!(
            groups(mode, "system:serviceaccount:n:robot"),
            "system:serviceaccounts system:serviceaccounts:n system:authenticated"
        );
    }
    assert_eq!(groups(Legacy, "system:anonymous"), "system:unauthenticated");
}
