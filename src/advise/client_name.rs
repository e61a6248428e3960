//! Names of clients: user and program, without what differs between its copies.

/// Characters kept of a name.
const MAX_NAME: usize = 120;
const NODE: &str = "system:node:";

/// A program of a user.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct ClientName {
    pub(super) user: String,
    pub(super) agent: String,
}

impl ClientName {
    /// Returns the name of a client. All nodes are one user.
    pub(super) fn new(user: &str, agent: &str) -> Self {
        let user = if user.starts_with(NODE) {
            format!("{NODE}*")
        } else {
            cut(user)
        };
        Self {
            user,
            agent: program(agent),
        }
    }

    /// Returns the client that stands for all that a full table has no room for.
    pub(super) fn others() -> Self {
        Self {
            user: "(others)".to_owned(),
            agent: String::new(),
        }
    }
}

/// Returns name and version of the program, and the part of it that calls, if it names one:
/// `kube-controller-manager/v1.37.1 (linux/amd64) kubernetes/0123456/shared-informers` has both.
fn program(agent: &str) -> String {
    let mut words = agent.split_whitespace();
    let name = words.next().unwrap_or_default();
    let part = words
        .next_back()
        .and_then(|last| last.strip_prefix("kubernetes/")?.split_once('/'))
        .map(|(_, part)| part);
    match part {
        Some(part) => cut(&format!("{name} {part}")),
        None => cut(name),
    }
}

fn cut(name: &str) -> String {
    name.chars()
        .map(|char| if char.is_control() { '?' } else { char })
        .take(MAX_NAME)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_of_a_program_have_one_name() {
        for (user, agent, expected) in [
            (
                "system:node:worker-7",
                "kubelet/v1.37.1 (linux/amd64) kubernetes/0123456",
                ("system:node:*", "kubelet/v1.37.1"),
            ),
            (
                "system:kube-controller-manager",
                "kube-controller-manager/v1.37.1 (linux/amd64) kubernetes/0123456/shared-informers",
                (
                    "system:kube-controller-manager",
                    "kube-controller-manager/v1.37.1 shared-informers",
                ),
            ),
            ("a\nb", "", ("a?b", "")),
        ] {
            let name = ClientName::new(user, agent);
            assert_eq!((&*name.user, &*name.agent), expected);
        }
        let long = ClientName::new(&"ü".repeat(1000), &"x".repeat(1000));
        assert_eq!(long.user.chars().count() + long.agent.len(), 2 * MAX_NAME);
    }
}
