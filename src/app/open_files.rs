//! The limit of open files, and the connections that fit into it.
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::listener::ConnectionLimits;

/// The fraction of all files that is reserved for connections to upstream, tunnels, the admin
/// listener and files, and its bounds.
const RESERVED: usize = 8;
const MIN_RESERVED: usize = 64;
const MAX_RESERVED: usize = 4_096;
/// Connections to the admin listener: probes, scrapes and operators.
const OF_ADMIN: usize = 1_000;

/// Raises the limit of open files as far as the process may.
///
/// Service managers and container runtimes start programs with a soft limit of 1,024, because of
/// `select`. Programs may raise it, as Go's runtime does.
pub fn raise_file_limit() {
    let maximum = getrlimit(Resource::Nofile).maximum;
    let raised = Rlimit {
        current: maximum,
        maximum,
    };
    // Otherwise, fewer connections fit.
    let _ = setrlimit(Resource::Nofile, raised);
}

/// Reduces the number of connections to those that files are left for.
///
/// Without a file, neither probes nor upstream could be answered any more.
pub(super) fn fit(limits: &mut ConnectionLimits) {
    let files = file_limit();
    let fitting = fitting(files);
    let wanted = limits.connections;
    if wanted <= fitting {
        return;
    }
    if limits.is_chosen {
        tracing::warn!(
            files,
            wanted,
            connections = fitting,
            "the limit of open files leaves room for fewer connections than --max-connections; \
             raise it (ulimit -n, LimitNOFILE of systemd)"
        );
    } else {
        tracing::info!(
            files,
            connections = fitting,
            "the limit of open files limits connections"
        );
    }
    limits.reduce(fitting);
}

/// Returns the limits of the admin listener, which takes a quarter of what is reserved at most.
pub(super) fn of_admin(limits: &ConnectionLimits) -> ConnectionLimits {
    let connections = OF_ADMIN.min(reserved(file_limit()) / 4);
    ConnectionLimits {
        connections,
        connections_per_address: ConnectionLimits::share_of_an_address(connections),
        ..limits.clone()
    }
}

/// Returns the limit of open files of this process.
fn file_limit() -> usize {
    let files = getrlimit(Resource::Nofile).current;
    files.map_or(usize::MAX, |files| {
        usize::try_from(files).unwrap_or(usize::MAX)
    })
}

/// Returns how many connections fit into so many files.
fn fitting(files: usize) -> usize {
    files.saturating_sub(reserved(files)).max(1)
}

fn reserved(files: usize) -> usize {
    (files / RESERVED).clamp(MIN_RESERVED, MAX_RESERVED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_left_for_others_than_clients() {
        for (files, connections) in [(10, 1), (256, 192), (1_024, 896), (1 << 20, 1_044_480)] {
            assert_eq!(fitting(files), connections, "{files}");
        }
    }
}
