//! The running server: a TLS listener and the handle that owns it.
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use base64::Engine as _;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::debug;

use super::access::{ADMIN_TOKEN, AccessRules, VIEWER_TOKEN};
use super::faults::Faults;
use super::options::Options;
use super::populate::populate;
use super::service::{RecordedRequest, SimulatorService};
use super::simulation::Simulation;
use super::state::ClusterState;
use super::stats::TrafficCounts;
use super::tls::ServerIdentity;

/// Limit of Go's HTTP server.
const MAX_HEADER_BYTES: u32 = 1 << 20;

/// A running simulated API server. Dropping it stops it.
#[derive(Debug)]
pub struct SimulatedServer {
    simulation: Arc<Simulation>,
    service: Arc<SimulatorService>,
    address: SocketAddr,
    identity: ServerIdentity,
    stop: CancellationToken,
    tasks: TaskTracker,
}

impl SimulatedServer {
    /// Populates the state, binds the address and answers from then on.
    pub fn start(options: Options) -> BoxFuture<'static, anyhow::Result<Self>> {
        Self::populate_and_listen(options).boxed()
    }

    async fn populate_and_listen(options: Options) -> anyhow::Result<Self> {
        let identity = ServerIdentity::make(options.listen.ip())?;
        let population = options.population;
        let seed = options.seed;
        let simulation = Simulation::new(options);
        populate(&simulation.state, population, seed);
        // What was there at the start is what a fresh list would bring: no history before it.
        simulation.state.forget_history();
        Self::listen(simulation, identity).await
    }

    /// Starts another server of the same cluster on a free port. It has the same objects and the
    /// same certificate, and faults and figures of its own.
    pub fn beside(&self) -> BoxFuture<'static, anyhow::Result<Self>> {
        let options = Options {
            listen: SocketAddr::new(self.address.ip(), 0),
            ..self.simulation.options.clone()
        };
        let simulation = Simulation::of(Arc::clone(&self.simulation.state), options);
        Self::listen(simulation, self.identity.clone()).boxed()
    }

    async fn listen(simulation: Simulation, identity: ServerIdentity) -> anyhow::Result<Self> {
        let listen = simulation.options.listen;
        let listener = TcpListener::bind(listen)
            .await
            .with_context(|| format!("the simulated API server can't listen on {listen}"))?;
        let address = listener.local_addr()?;
        let simulation = Arc::new(simulation);
        let service = Arc::new(SimulatorService::new(Arc::clone(&simulation)));
        let (stop, tasks) = (CancellationToken::new(), TaskTracker::new());
        tasks.spawn(progress(
            Arc::clone(&simulation.state),
            simulation.options.progress_every,
            stop.clone(),
        ));
        let acceptor = TlsAcceptor::from(Arc::clone(&identity.config));
        tasks.spawn(accept(
            listener,
            acceptor,
            Arc::clone(&simulation),
            Arc::clone(&service),
            stop.clone(),
            tasks.clone(),
        ));
        Ok(Self {
            simulation,
            service,
            address,
            identity,
            stop,
            tasks,
        })
    }

    /// `https://127.0.0.1:PORT`.
    pub fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    /// Returns the address that the server listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The CA its certificate is verified with.
    pub fn ca_pem(&self) -> &str {
        &self.identity.ca_pem
    }

    /// The bearer token of a member of `system:masters`.
    pub fn admin_token(&self) -> &'static str {
        ADMIN_TOKEN
    }

    /// The bearer token of `viewer`, who may read pods and a few more types, but no secrets.
    pub fn viewer_token(&self) -> &'static str {
        VIEWER_TOKEN
    }

    /// A kubeconfig for the admin.
    pub fn kubeconfig_yaml(&self) -> String {
        let ca = base64::engine::general_purpose::STANDARD.encode(self.ca_pem());
        let (url, token) = (self.url(), self.admin_token());
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: simulated\n\
             clusters:\n- name: simulated\n  cluster:\n    server: {url}\n    \
             certificate-authority-data: {ca}\n\
             users:\n- name: admin\n  user:\n    token: {token}\n\
             contexts:\n- name: simulated\n  context:\n    cluster: simulated\n    user: admin\n"
        )
    }

    /// The objects: read and write them past HTTP.
    pub fn state(&self) -> &Arc<ClusterState> {
        &self.simulation.state
    }

    /// Tokens and permissions.
    pub fn access(&self) -> &AccessRules {
        &self.simulation.access
    }

    /// Publishes a JSON document at a path outside of the API groups, with the header of those about
    /// the issuer of tokens; `None` takes it away.
    pub fn publish(&self, path: &str, document: Option<&str>) {
        let mut documents = self.simulation.documents.write();
        match document {
            Some(document) => documents.insert(path.to_owned(), document.to_owned()),
            None => documents.remove(path),
        };
    }

    /// The faults that can be switched on.
    pub fn faults(&self) -> &Faults {
        &self.simulation.faults
    }

    /// Returns the counters of requests and answers so far.
    pub fn stats(&self) -> TrafficCounts {
        self.simulation.stats.counts()
    }

    /// Begins to record the heads of requests, and gives back those since the last call.
    pub fn take_recorded(&self) -> Vec<RecordedRequest> {
        self.service.take_recorded()
    }

    /// Acts as a restart does for clients: all connections break, and no watch resumes from below
    /// the present global version. The objects stay, as etcd's would.
    pub fn restart(&self) {
        self.simulation.state.forget_history();
        self.simulation.faults.cut_connections();
    }

    /// Acts as a restore of etcd from a backup does, with a restart of the API server: the state is
    /// `branch`'s from now on, and all connections break.
    pub fn restore(&self, branch: &ClusterState) {
        self.simulation.state.restore(branch);
        self.simulation.faults.cut_connections();
    }

    /// Closes all connections and waits until everything has ended.
    pub async fn shutdown(self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}

impl Drop for SimulatedServer {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

async fn progress(state: Arc<ClusterState>, every: Duration, stop: CancellationToken) {
    let ticks = async {
        loop {
            tokio::time::sleep(every).await;
            state.notify_progress();
        }
    };
    stop.run_until_cancelled(ticks).await;
}

async fn accept(
    listener: TcpListener,
    acceptor: TlsAcceptor,
    simulation: Arc<Simulation>,
    service: Arc<SimulatorService>,
    stop: CancellationToken,
    tasks: TaskTracker,
) {
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stop.cancelled() => return,
        };
        match accepted {
            Ok((stream, _)) => {
                simulation.stats.connection();
                let connection = connection(
                    stream,
                    acceptor.clone(),
                    Arc::clone(&simulation),
                    Arc::clone(&service),
                );
                let stop = stop.clone();
                tasks.spawn(async move { stop.run_until_cancelled(connection).await });
            }
            // Out of file descriptors, most likely: a pause lets connections go.
            Err(error) => {
                debug!(%error, "accept failed");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn connection(
    stream: TcpStream,
    acceptor: TlsAcceptor,
    simulation: Arc<Simulation>,
    api: Arc<SimulatorService>,
) {
    let mut cut = simulation.faults.subscribe();
    let cuts = cut.borrow_and_update().connections;
    let cut_off = async move { cut.wait_for(|c| c.connections != cuts).await.map(drop) };
    let serve = async {
        stream.set_nodelay(true)?;
        let stream = acceptor.accept(stream).await?;
        let streams = simulation.options.max_streams;
        let service = service_fn(|request| {
            let api = Arc::clone(&api);
            async move { Ok::<_, Infallible>(api.answer(request).await) }
        });
        let mut builder = auto::Builder::new(TokioExecutor::new());
        builder.http1().timer(TokioTimer::new());
        builder
            .http2()
            .timer(TokioTimer::new())
            .max_concurrent_streams(streams)
            .max_header_list_size(MAX_HEADER_BYTES);
        let served = builder
            .serve_connection(TokioIo::new(stream), service)
            .await;
        served.map_err(std::io::Error::other)
    };
    tokio::select! {
        served = serve => {
            if let Err(error) = served {
                debug!(%error, "connection ended");
            }
        }
        _ = cut_off => {}
    }
}
