//! Options of a server.
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

/// Options of a simulated API server. The defaults are kube-apiserver's, except that it listens on
/// a free port.
#[derive(Clone, Debug)]
pub struct Options {
    /// Address to listen on.
    pub listen: SocketAddr,
    /// Decides every random choice about objects: equal seeds give equal bytes.
    pub seed: u64,
    /// Objects at the start.
    pub population: Population,
    /// Events kept per type; a watch from before them is too old.
    pub history: usize,
    /// Time between bookmarks of a watch.
    pub bookmark_every: Duration,
    /// Interval at which the caches of idle types hear of the global version, as from etcd's
    /// progress notifications. kubeadm configures five seconds.
    pub progress_every: Duration,
    /// Time that a read waits for a version that does not exist yet.
    pub fresh_timeout: Duration,
    /// A watch without `timeoutSeconds` lives once to twice as long.
    pub min_request_timeout: Duration,
    /// HTTP/2 streams a connection.
    pub max_streams: u32,
    /// Compresses watches that mark the end of their initial events for clients that accept gzip,
    /// as Kubernetes does since 1.37.
    pub compressed_watches: bool,
    /// Release that `/version` reports.
    pub release: String,
    /// Serves ConfigMaps in protobuf, too.
    pub protobuf: bool,
}

/// Numbers of objects of each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Population {
    /// Namespaces, named `team-00`, `team-01`, … beside `default`.
    pub namespaces: usize,
    /// Nodes, each with its lease.
    pub nodes: usize,
    /// Pods, spread over namespaces and nodes.
    pub pods: usize,
    /// Config maps.
    pub configmaps: usize,
    /// Bytes of data in each of them; 0 for some hundred.
    pub configmap_bytes: usize,
    /// Secrets.
    pub secrets: usize,
    /// Services.
    pub services: usize,
    /// Deployments.
    pub deployments: usize,
    /// Custom objects.
    pub widgets: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            seed: 0,
            population: Population::default(),
            history: 4096,
            bookmark_every: Duration::from_mins(1),
            progress_every: Duration::from_secs(5),
            fresh_timeout: Duration::from_secs(3),
            min_request_timeout: Duration::from_mins(30),
            max_streams: 100,
            compressed_watches: true,
            release: "v1.37.1".to_owned(),
            protobuf: false,
        }
    }
}

impl Population {
    /// A cluster of so many pods and nodes, with the rest in proportion.
    pub fn cluster(pods: usize, nodes: usize) -> Self {
        let share = |n: usize| pods.div_ceil(n);
        Self {
            namespaces: share(100).clamp(2, 50),
            nodes,
            pods,
            configmaps: share(10),
            configmap_bytes: 0,
            secrets: share(20),
            services: share(20),
            deployments: share(20),
            widgets: share(20),
        }
    }
}
