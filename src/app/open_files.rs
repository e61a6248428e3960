//! The limit of open files, and the connections that fit into it.
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::listener::ConnectionLimits;
use crate::upstream::UpstreamCapacity;

/// The fraction of all files that is reserved for connections to upstream, tunnels, the admin
/// listener and files, and its bounds.
const RESERVED: usize = 4;
const MIN_RESERVED: usize = 128;
const MAX_RESERVED: usize = 8_192;
/// Connections to the admin listener: probes, scrapes and operators.
const OF_ADMIN: usize = 1_000;
/// Files of everything else: the runtime, listeners, logs, checkpoints, credentials, other replicas, and the
/// attempts to reach further addresses beside one that hangs.
const OTHERS: usize = 32;
/// Fewer connections of clients than most clusters need.
const FEW: usize = 1_000;

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
    } else if fitting < FEW {
        tracing::warn!(
            files,
            connections = fitting,
            "the limit of open files leaves room for few connections; \
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
    ConnectionLimits {
        connections: admin_connections(file_limit()),
        connections_per_address: None,
        ..limits.clone()
    }
}

/// Returns the connections to upstream that fit beside those of clients, whose limits have been fitted.
pub(super) fn of_upstream(limits: &ConnectionLimits) -> UpstreamCapacity {
    upstream_capacity(file_limit(), limits.connections)
}

/// Returns the connections to upstream that fit into so many files, beside so many clients.
fn upstream_capacity(files: usize, clients: usize) -> UpstreamCapacity {
    let left = files
        .saturating_sub(clients)
        .saturating_sub(admin_connections(files))
        .saturating_sub(OTHERS);
    let tunnels = left / 2;
    let forwarded = (left - tunnels) / 2;
    UpstreamCapacity {
        // None would refuse every request.
        own: (left - tunnels - forwarded).max(1),
        forwarded: forwarded.max(1),
        tunnels: tunnels.max(1),
    }
}

/// Returns the limit of open files of this process.
fn file_limit() -> usize {
    let files = getrlimit(Resource::Nofile).current;
    files.map_or(usize::MAX, |files| {
        usize::try_from(files).unwrap_or(usize::MAX)
    })
}

/// Returns how many connections of clients fit into so many files.
fn fitting(files: usize) -> usize {
    files.saturating_sub(reserved(files)).max(1)
}

fn admin_connections(files: usize) -> usize {
    OF_ADMIN.min(reserved(files) / 4)
}

fn reserved(files: usize) -> usize {
    (files / RESERVED).clamp(MIN_RESERVED, MAX_RESERVED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_left_for_others_than_clients() {
        for (files, connections) in [(10, 1), (256, 128), (1_024, 768), (1 << 20, 1_040_384)] {
            assert_eq!(fitting(files), connections, "{files}");
        }
    }

    #[test]
    fn all_connections_together_fit_into_the_files() {
        for files in [160, 256, 1_024, 20_000, 1 << 20] {
            for clients in [1, fitting(files)] {
                let capacity = upstream_capacity(files, clients);
                let UpstreamCapacity {
                    own,
                    forwarded,
                    tunnels,
                } = capacity;
                let taken = clients + admin_connections(files) + own + forwarded + tunnels;
                assert!(taken + OTHERS <= files, "{files}: {capacity:?}");
                assert!(own >= 8 && forwarded >= 8, "{files}: {capacity:?}");
            }
        }
    }
}
