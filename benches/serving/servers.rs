//! The servers that are measured, and what stands behind them.
use std::fs;
use std::path::Path;

use anyhow::{Context, ensure};
use base64::Engine as _;
use serde_json::Value;
use tempfile::TempDir;

use crate::children::Child;
use crate::client::Reach;
use crate::upstream::{self, Seeded, Writer};
use crate::{Args, limit};

/// Which server it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Proxy,
    Limit,
    KubeApiserver,
}

/// A server that is measured.
pub(crate) struct Server {
    pub(crate) kind: Kind,
    pub(crate) pid: u32,
    pub(crate) reach: Reach,
    pub(crate) writer: Writer,
}

/// Everything that runs. The order of the fields is the order in which it ends.
pub(crate) struct Servers {
    pub(crate) measured: Vec<Server>,
    /// What stands behind the proxy.
    pub(crate) upstream: Reach,
    /// The URL of each pod.
    pub(crate) pods: Seeded,
    /// Resident memory of the proxy when it had no object yet.
    pub(crate) proxy_empty: u64,
    /// Length of the body that lists all pods.
    pub(crate) list_bytes: usize,
    _children: Vec<Child>,
    _folder: TempDir,
}

struct Upstream {
    child: Child,
    /// Of kube-apiserver; the simulation is not measured.
    pid: Option<u32>,
    reach: Reach,
    /// The proxy's own.
    kubeconfig: String,
    /// What the proxy's clients show.
    token: String,
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Proxy => "proxy",
            Self::Limit => "limit server",
            Self::KubeApiserver => "kube-apiserver",
        }
    }
}

pub(crate) const ALL_PODS: &str = "/api/v1/pods?resourceVersion=0";

pub(crate) fn node_pods(number: usize) -> String {
    format!("{ALL_PODS}&fieldSelector=spec.nodeName%3D{}", upstream::node_name(number))
}

/// Starts all of them on free ports, with everything they write in a temporary folder.
pub(crate) async fn start(args: &Args) -> anyhow::Result<Servers> {
    let folder = tempfile::tempdir()?;
    let path = folder.path();
    let upstream = if args.kube_apiserver { cluster(args, path)? } else { simulation(args, path)? };
    let Upstream { child, pid, reach: upstream, kubeconfig, token } = upstream;
    let pods = upstream::seed(&upstream, args.pods, args.nodes, args.object_bytes).await?;

    let (proxy, proxy_reach) = proxy(args, path, &kubeconfig, &token)?;
    let proxy_empty = crate::process::resident(proxy.pid())?;
    // The limit server sends what the proxy sends. This also opens the proxy's cache.
    let mut connection = proxy_reach.connect(false).await?;
    let object = format!("{}?resourceVersion=0", pods.paths[0]);
    let mut list_bytes = 0;
    for (file, url) in
        [(limit::LIST, ALL_PODS), (limit::NODE_LIST, &node_pods(0)), (limit::OBJECT, object.as_str())]
    {
        let body = connection.fetch(url).await?;
        if file == limit::LIST {
            list_bytes = body.len();
            let items = memchr::memmem::find_iter(&body, upstream::STAMP).count();
            // Each of these names has the stamp's key in its managed fields, too, but not as a key with a value.
            ensure!(items == args.pods, "{items} of {} pods in the proxy's list", args.pods);
        }
        fs::write(path.join(file), body)?;
    }
    let object = fs::read(path.join(limit::OBJECT))?;
    let folder_name = path.to_str().context("the temporary folder's path is not text")?;
    let this = std::env::current_exe()?;
    let limit = Child::program("limit", path, &this, &["limit", folder_name])?;
    let line = limit.await_line("limit server at ")?;
    let address = line.rsplit(' ').next().unwrap_or_default();
    let limit_reach = Reach::new(address, &fs::read(path.join(limit::CERTIFICATE))?, &token)?;

    let mut measured = vec![
        Server {
            kind: Kind::Proxy,
            pid: proxy.pid(),
            writer: Writer::patches(&upstream, &pods),
            reach: proxy_reach,
        },
        Server {
            kind: Kind::Limit,
            pid: limit.pid(),
            writer: Writer::pushes(&limit_reach, &object)?,
            reach: limit_reach,
        },
    ];
    if let Some(pid) = pid {
        let writer = Writer::patches(&upstream, &pods);
        measured.push(Server { kind: Kind::KubeApiserver, pid, reach: upstream.clone(), writer });
    }
    let children = vec![limit, proxy, child];
    Ok(Servers { measured, upstream, pods, proxy_empty, list_bytes, _children: children, _folder: folder })
}

fn simulation(args: &Args, folder: &Path) -> anyhow::Result<Upstream> {
    let kubeconfig = folder.join("simulated-kubeconfig").to_str().context("not text")?.to_owned();
    let flags = ["simulate", "--listen", "127.0.0.1:0", "--pods", "0", "--nodes", "0", "--rate", "0"];
    let flags = [&flags[..], &["--kubeconfig-out", &kubeconfig]].concat();
    let child = Child::program("simulate", folder, &args.watershed, &flags)?;
    child.await_line("kubectl --kubeconfig")?;
    let text = fs::read_to_string(&kubeconfig)?;
    let value = |key: &str| {
        let line = text.lines().find_map(|line| line.trim().strip_prefix(key));
        line.map(|value| value.trim().to_owned()).with_context(|| format!("the kubeconfig has no {key}"))
    };
    let (server, token) = (value("server:")?, value("token:")?);
    let ca = base64::engine::general_purpose::STANDARD.decode(value("certificate-authority-data:")?)?;
    let reach = Reach::new(&server, &ca, &token)?;
    Ok(Upstream { child, pid: None, reach, kubeconfig, token })
}

fn cluster(args: &Args, folder: &Path) -> anyhow::Result<Upstream> {
    ensure!(args.cluster.exists(), "{} is not there: make real builds it", args.cluster.display());
    let child = Child::polite("cluster", folder, &args.cluster, &[])?;
    let report: Value = serde_json::from_str(&child.await_line(r#"{"dir":"#)?)?;
    let text = |pointer: &str| {
        let value = report.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
        value.with_context(|| format!("the cluster's report has no {pointer}"))
    };
    let token = text("/admin_token")?;
    let reach = Reach::new(&text("/servers/0")?, &fs::read(text("/ca")?)?, &token)?;
    let pid = report.pointer("/pids/apiserver-0").and_then(Value::as_u64).context("no pid")?;
    Ok(Upstream { child, pid: Some(pid.try_into()?), reach, kubeconfig: text("/proxy_kubeconfig")?, token })
}

fn proxy(args: &Args, folder: &Path, kubeconfig: &str, token: &str) -> anyhow::Result<(Child, Reach)> {
    let certificates = folder.join("proxy-certs");
    let certificates = certificates.to_str().context("not text")?;
    let flags = ["serve", "--kubeconfig", kubeconfig, "--cert-dir", certificates, "--log-format", "json"];
    let flags = [&flags[..], &["--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"]].concat();
    let child = Child::program("proxy", folder, &args.watershed, &flags)?;
    let line: Value = serde_json::from_str(&child.await_line(r#""listener":"proxy""#)?)?;
    let address = line.pointer("/fields/address").and_then(Value::as_str).context("no address")?;
    let ca = fs::read(Path::new(certificates).join("ca.crt"))?;
    Ok((child, Reach::new(address, &ca, token)?))
}
