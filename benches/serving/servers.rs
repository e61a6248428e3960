//! The measured servers and the API server behind them.
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, ensure};
use base64::Engine as _;
use bytes::Bytes;
use http::{HeaderMap, Request, header};
use http_body_util::BodyExt as _;
use serde_json::Value;
use tempfile::TempDir;
use tokio::time::{Instant, sleep};
use watershed_lab::body::full_body;
use watershed_lab::process::cpu_time;
use watershed_lab::sim::VIEWER_TOKEN;

use crate::children::Child;
use crate::client::Endpoint;
use crate::limit::Planted;
use crate::stamp::stamps;
use crate::upstream::{self, Seeded, Writer};
use crate::work::{SETTLE, expect_source};
use crate::{Args, limit, relay};

/// The kind of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Proxy,
    /// A proxy that lists and watches JSON at upstream, beside protobuf.
    OwnJson,
    Limit,
    KubeApiserver,
}

/// A server that is measured.
pub(crate) struct Server {
    pub(crate) kind: Kind,
    pub(crate) pid: u32,
    pub(crate) endpoint: Endpoint,
    pub(crate) writer: Writer,
}

/// All running servers. They end in the order of the fields.
pub(crate) struct Servers {
    pub(crate) measured: Vec<Server>,
    /// The API server behind the proxy.
    pub(crate) upstream: Upstream,
    pub(crate) pods: Seeded,
    /// Resident memory of the proxy when it had no object yet.
    pub(crate) proxy_empty: u64,
    /// Length of the body that lists all pods.
    pub(crate) list_bytes: usize,
    /// One pod's body.
    pub(crate) object: Bytes,
    _children: Vec<Child>,
    folder: TempDir,
}

/// The API server behind the proxy.
pub(crate) struct Upstream {
    pub(crate) endpoint: Endpoint,
    /// The proxy's own kubeconfig.
    kubeconfig: String,
    /// Token of the proxy's clients.
    token: String,
    ca_pem: String,
    /// Process id of kube-apiserver; the simulation is not measured.
    pid: Option<u32>,
    _child: Child,
}

/// Servers that are handed their events. They end in the order of the fields.
pub(crate) struct Following {
    pub(crate) measured: Vec<Server>,
    _children: Vec<Child>,
}

/// A server for one kind of work. Dropping it stops the server.
pub(crate) struct Running {
    pub(crate) endpoint: Endpoint,
    child: Child,
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Proxy => "proxy",
            Self::OwnJson => "proxy, JSON of its own",
            Self::Limit => "limit server",
            Self::KubeApiserver => "kube-apiserver",
        }
    }

    pub(crate) fn is_proxy(self) -> bool {
        matches!(self, Self::Proxy | Self::OwnJson)
    }

    /// Returns the flags of a proxy.
    fn flags(self) -> &'static [&'static str] {
        match self {
            Self::OwnJson => &["--derive-json", "false"],
            Self::Proxy | Self::Limit | Self::KubeApiserver => &[],
        }
    }

    /// Returns the kinds of proxies that are measured.
    pub(crate) fn proxies(args: &Args) -> &'static [Self] {
        if args.own_json {
            &[Self::Proxy, Self::OwnJson]
        } else {
            &[Self::Proxy]
        }
    }
}

pub(crate) const ALL_PODS: &str = "/api/v1/pods?resourceVersion=0";

pub(crate) fn node_pods(number: usize) -> String {
    format!(
        "{ALL_PODS}&fieldSelector=spec.nodeName%3D{}",
        upstream::node_name(number)
    )
}

/// Starts all servers on free ports. Their files go to a temporary folder.
pub(crate) async fn start(args: &Args) -> anyhow::Result<Servers> {
    let folder = tempfile::tempdir()?;
    let path = folder.path();
    let upstream = if args.kube_apiserver {
        cluster(args, path)?
    } else {
        simulation(path)?
    };
    let pods = upstream::seed(&upstream.endpoint, args.pods, args.nodes, args.object_bytes).await?;

    let proxy = upstream.proxy("proxy", args, path, Kind::Proxy.flags())?;
    let proxy_empty = watershed_lab::process::resident_memory(proxy.pid())?;
    // This also opens the proxy's cache.
    let connection = proxy.endpoint.connect(false).await?;
    let list = connection.fetch(ALL_PODS).await?;
    let items = stamps(&list);
    ensure!(
        items == args.pods,
        "{items} of {} pods in the proxy's list",
        args.pods
    );
    let object = connection
        .fetch(&format!("{}?resourceVersion=0", pods.paths[0]))
        .await?;
    let limit = limit("limit", path, &upstream.token, None)?;

    let mut measured =
        vec![proxy.measured(Kind::Proxy, Writer::patches(&upstream.endpoint, &pods))];
    let mut children = Vec::new();
    if args.own_json {
        let own_json = upstream.proxy("own-json-proxy", args, path, Kind::OwnJson.flags())?;
        own_json
            .endpoint
            .connect(false)
            .await?
            .swallow(ALL_PODS)
            .await?;
        let writer = Writer::patches(&upstream.endpoint, &pods);
        measured.push(own_json.measured(Kind::OwnJson, writer));
        children.push(own_json.child);
    }
    measured.push(limit.measured(Kind::Limit, Writer::pushes(&limit.endpoint, &object, 0)?));
    if let Some(pid) = upstream.pid {
        let writer = Writer::patches(&upstream.endpoint, &pods);
        measured.push(Server {
            kind: Kind::KubeApiserver,
            pid,
            endpoint: upstream.endpoint.clone(),
            writer,
        });
    }
    children.extend([limit.child, proxy.child]);
    let list_bytes = list.len();
    Ok(Servers {
        measured,
        upstream,
        pods,
        proxy_empty,
        list_bytes,
        object,
        _children: children,
        folder,
    })
}

impl Servers {
    /// Returns the proxy with the token of another user than that of the measured clients, if
    /// upstream knows one.
    pub(crate) fn hostile_endpoint(&self) -> Endpoint {
        let token = match self.upstream.pid {
            // The simulation.
            None => VIEWER_TOKEN,
            Some(_) => &self.upstream.token,
        };
        self.measured[0].endpoint.as_user(token)
    }

    /// Starts another proxy, with an empty cache and further flags.
    pub(crate) fn fresh_proxy(
        &self,
        args: &Args,
        kind: Kind,
        further: &[&str],
    ) -> anyhow::Result<Running> {
        let flags = [kind.flags(), further].concat();
        self.upstream
            .proxy("fresh-proxy", args, self.folder.path(), &flags)
    }

    /// Writes a kubeconfig for the measured proxy, and returns its path.
    pub(crate) fn replicas(&self) -> anyhow::Result<String> {
        let ca = fs::read(self.folder.path().join("proxy-certs/ca.crt"))?;
        let address = self.measured[0].endpoint.address();
        let file = self.folder.path().join("replicas");
        write_kubeconfig(&file, &address.to_string(), &ca, &self.upstream.token)
    }

    /// Returns a folder for the files of proxies, which this creates.
    pub(crate) fn subfolder(&self, name: &str) -> anyhow::Result<PathBuf> {
        let folder = self.folder.path().join(name);
        fs::create_dir_all(&folder)?;
        Ok(folder)
    }

    /// Starts a limit server that can pass for an API server, and a proxy in front of it that
    /// forwards all consistent reads.
    pub(crate) fn forwarding(&self, args: &Args) -> anyhow::Result<(Running, Running)> {
        let (origin, folder, kubeconfig) = self.origin("forwarding")?;
        let proxy = forwarding_proxy(args, &folder, &kubeconfig, &self.upstream.token)?;
        Ok((origin, proxy))
    }

    /// Starts a proxy that follows the pods of a limit server, and another limit server. Both are
    /// handed their events.
    pub(crate) async fn following(&self, args: &Args) -> anyhow::Result<Following> {
        let (origin, folder, kubeconfig) = self.origin("following")?;
        let token = &self.upstream.token;
        let connection = self.measured[0].endpoint.connect(false).await?;
        let pods = connection.fetch(ALL_PODS).await?;
        let version = upstream::version(&pods).context("a list without a version")?;
        let json = HeaderMap::from_iter([(header::CONTENT_TYPE, "application/json".parse()?)]);
        set_answer(&origin.endpoint, &json, pods, None).await?;
        let proxy = proxy("following-proxy", args, &folder, &kubeconfig, token, &[])?;
        let connection = proxy.endpoint.connect(false).await?;
        while expect_source(&connection.get(ALL_PODS).await?, "snapshot").is_err() {
            sleep(SETTLE).await;
        }
        let bare = limit("bare", &folder, token, None)?;
        let writer = |limit: &Running| Writer::pushes(&limit.endpoint, &self.object, version);
        let measured = vec![
            proxy.measured(Kind::Proxy, writer(&origin)?),
            bare.measured(Kind::Limit, writer(&bare)?),
        ];
        Ok(Following {
            measured,
            _children: vec![bare.child, proxy.child, origin.child],
        })
    }

    /// Starts a limit server that passes on to upstream what is not about pods. Returns its folder
    /// and a kubeconfig for it, too. A name can be used once.
    fn origin(&self, name: &str) -> anyhow::Result<(Running, PathBuf, String)> {
        let Upstream {
            token,
            ca_pem,
            endpoint,
            ..
        } = &self.upstream;
        let folder = self.folder.path().join(name);
        fs::create_dir(&folder)?;
        relay::write(&folder, ca_pem, token)?;
        let origin = limit("origin", &folder, token, Some(endpoint))?;
        let ca = fs::read(folder.join(limit::CERTIFICATE))?;
        let address = origin.endpoint.address().to_string();
        let kubeconfig = write_kubeconfig(&folder.join("kubeconfig"), &address, &ca, token)?;
        Ok((origin, folder, kubeconfig))
    }

    /// Starts another proxy that forwards all consistent reads.
    pub(crate) fn forwarding_to_upstream(&self, args: &Args) -> anyhow::Result<Running> {
        let Upstream {
            kubeconfig, token, ..
        } = &self.upstream;
        let folder = self.folder.path().join("forwarding-to-upstream");
        fs::create_dir(&folder)?;
        forwarding_proxy(args, &folder, kubeconfig, token)
    }
}

impl Upstream {
    /// Starts a proxy with these flags.
    fn proxy(
        &self,
        name: &'static str,
        args: &Args,
        folder: &Path,
        flags: &[&str],
    ) -> anyhow::Result<Running> {
        proxy(name, args, folder, &self.kubeconfig, &self.token, flags)
    }

    /// Returns the CPU time of kube-apiserver; `None` for the simulation.
    pub(crate) fn cpu_time(&self) -> anyhow::Result<Option<Duration>> {
        self.pid.map(cpu_time).transpose()
    }

    /// Returns the seconds of CPU time that kube-apiserver spends in a second, measured over this
    /// time; zero for the simulation.
    pub(crate) async fn share_of_cpu(&self, over: Duration) -> anyhow::Result<f64> {
        let Some(before) = self.cpu_time()? else {
            return Ok(0.0);
        };
        let began = Instant::now();
        sleep(over).await;
        let spent = self.cpu_time()?.unwrap_or(before).saturating_sub(before);
        Ok(spent.as_secs_f64() / began.elapsed().as_secs_f64())
    }
}

impl Running {
    /// Returns this server as one that is measured.
    fn measured(&self, kind: Kind, writer: Writer) -> Server {
        Server {
            kind,
            pid: self.pid(),
            endpoint: self.endpoint.clone(),
            writer,
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.pid()
    }

    /// Waits until the server logs this.
    pub(crate) fn await_line(&self, mark: &str) -> anyhow::Result<String> {
        self.child.await_line(mark)
    }
}

/// Writes a kubeconfig for a server, and returns its path as text.
fn write_kubeconfig(
    file: &Path,
    address: &str,
    ca_pem: &[u8],
    token: &str,
) -> anyhow::Result<String> {
    let ca = base64::engine::general_purpose::STANDARD.encode(ca_pem);
    fs::write(
        file,
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: bench\n\
             clusters:\n- name: bench\n  cluster:\n    server: https://{address}\n    \
             certificate-authority-data: {ca}\n\
             users:\n- name: bench\n  user:\n    token: {token}\n\
             contexts:\n- name: bench\n  context:\n    cluster: bench\n    user: bench\n"
        ),
    )?;
    Ok(file.to_str().context("not text")?.to_owned())
}

/// Makes a limit server give this answer to every read from now on.
pub(crate) async fn set_answer(
    limit: &Endpoint,
    head: &HeaderMap,
    body: Bytes,
    planted: Option<Planted>,
) -> anyhow::Result<()> {
    let connection = limit.connect(false).await?;
    let mut request = Request::post(limit::ANSWER);
    for name in [header::CONTENT_TYPE, header::CONTENT_ENCODING] {
        if let Some(value) = head.get(&name) {
            request = request.header(name, value);
        }
    }
    if let Some(planted) = planted {
        request = request.header(limit::PLANTED, planted.name());
    }
    let answer = connection.pass_on(request.body(full_body(body))?).await?;
    ensure!(
        answer.status().is_success(),
        "the limit server refuses an answer: {}",
        answer.status()
    );
    answer.into_body().collect().await?;
    Ok(())
}

/// Starts a limit server, with an API server to ask what it does not know itself, if there is to be
/// one.
pub(crate) fn limit(
    name: &'static str,
    folder: &Path,
    token: &str,
    relay: Option<&Endpoint>,
) -> anyhow::Result<Running> {
    let folder_name = folder
        .to_str()
        .context("the temporary folder's path is not text")?;
    let relay = relay.map(|endpoint| endpoint.address().to_string());
    let relay = relay
        .iter()
        .flat_map(|address| ["--relay", address.as_str()]);
    let flags: Vec<_> = ["limit", folder_name].into_iter().chain(relay).collect();
    let child = Child::program(name, folder, &std::env::current_exe()?, &flags)?;
    let line = child.await_line("limit server at ")?;
    let address = line.rsplit(' ').next().unwrap_or_default();
    let endpoint = Endpoint::new(address, &fs::read(folder.join(limit::CERTIFICATE))?, token)?;
    Ok(Running { endpoint, child })
}

/// The program that has the simulated API server. What is shipped, and measured, has none.
const WITH_LAB: &str = env!("CARGO_BIN_EXE_watershed");

fn simulation(folder: &Path) -> anyhow::Result<Upstream> {
    let kubeconfig = folder
        .join("simulated-kubeconfig")
        .to_str()
        .context("not text")?
        .to_owned();
    let flags = [
        "simulate",
        "--listen",
        "127.0.0.1:0",
        "--pods",
        "0",
        "--nodes",
        "0",
        "--rate",
        "0",
    ];
    let flags = [&flags[..], &["--kubeconfig-out", &kubeconfig]].concat();
    let child = Child::program("simulate", folder, Path::new(WITH_LAB), &flags)?;
    child.await_line("kubectl --kubeconfig")?;
    let text = fs::read_to_string(&kubeconfig)?;
    let value = |key: &str| {
        let line = text.lines().find_map(|line| line.trim().strip_prefix(key));
        line.map(|value| value.trim().to_owned())
            .with_context(|| format!("the kubeconfig has no {key}"))
    };
    let (server, token) = (value("server:")?, value("token:")?);
    let ca =
        base64::engine::general_purpose::STANDARD.decode(value("certificate-authority-data:")?)?;
    let endpoint = Endpoint::new(&server, &ca, &token)?;
    Ok(Upstream {
        endpoint,
        kubeconfig,
        token,
        ca_pem: String::from_utf8(ca)?,
        pid: None,
        _child: child,
    })
}

fn cluster(args: &Args, folder: &Path) -> anyhow::Result<Upstream> {
    ensure!(
        args.cluster.exists(),
        "{} is not there: make real builds it",
        args.cluster.display()
    );
    let child = Child::polite("cluster", folder, &args.cluster, &[])?;
    let report: Value = serde_json::from_str(&child.await_line(r#"{"dir":"#)?)?;
    let text = |pointer: &str| {
        let value = report
            .pointer(pointer)
            .and_then(Value::as_str)
            .map(str::to_owned);
        value.with_context(|| format!("the cluster's report has no {pointer}"))
    };
    let token = text("/admin_token")?;
    let ca_pem = fs::read_to_string(text("/ca")?)?;
    let endpoint = Endpoint::new(&text("/servers/0")?, ca_pem.as_bytes(), &token)?;
    let pid = report
        .pointer("/pids/apiserver-0")
        .and_then(Value::as_u64)
        .context("no pid")?;
    let (kubeconfig, pid) = (text("/proxy_kubeconfig")?, Some(pid.try_into()?));
    Ok(Upstream {
        endpoint,
        kubeconfig,
        token,
        ca_pem,
        pid,
        _child: child,
    })
}

fn forwarding_proxy(
    args: &Args,
    folder: &Path,
    kubeconfig: &str,
    token: &str,
) -> anyhow::Result<Running> {
    let config = folder.join("config.yaml");
    fs::write(&config, "consistentReads: forward\n")?;
    let config = config.to_str().context("not text")?;
    proxy(
        "forwarding-proxy",
        args,
        folder,
        kubeconfig,
        token,
        &["--config", config],
    )
}

fn proxy(
    name: &'static str,
    args: &Args,
    folder: &Path,
    kubeconfig: &str,
    token: &str,
    further: &[&str],
) -> anyhow::Result<Running> {
    let certificates = folder.join(format!("{name}-certs"));
    let certificates = certificates.to_str().context("not text")?;
    let flags = [
        "serve",
        "--kubeconfig",
        kubeconfig,
        "--cert-dir",
        certificates,
        "--log-format",
        "json",
    ];
    let flags = [
        &flags[..],
        &["--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"],
        further,
    ]
    .concat();
    let child = Child::program(name, folder, &args.watershed, &flags)?;
    let line: Value = serde_json::from_str(&child.await_line(r#""listener":"proxy""#)?)?;
    let address = line
        .pointer("/fields/address")
        .and_then(Value::as_str)
        .context("no address")?;
    let ca = fs::read(Path::new(certificates).join("ca.crt"))?;
    Ok(Running {
        endpoint: Endpoint::new(address, &ca, token)?,
        child,
    })
}
