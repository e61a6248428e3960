//! CPU time of gets, lists and the initial state of watches.
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use bytes::BytesMut;
use http::{Method, Response};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio::time::{Instant, sleep};

use crate::Args;
use crate::client::drain;
use crate::form::{Form, Reader};
use crate::servers::{ALL_PODS, Kind, Server, Servers, node_pods, set_answer};
use crate::table::Table;
use crate::upstream::{NAMESPACES, SHARDS};
use crate::work::{SETTLE, WARM_UP, expect_source};
use watershed_lab::process::cpu_time;

/// A watch that begins with all pods at any version and marks their end.
const ALL_PODS_STREAMED: &str = "/api/v1/pods?resourceVersion=0&watch=true\
                                 &allowWatchBookmarks=true&sendInitialEvents=true\
                                 &resourceVersionMatch=NotOlderThan&timeoutSeconds=600";

pub(crate) struct Reads {
    pub(crate) name: String,
    unit: &'static str,
    /// Number of the units in a second.
    scale: f64,
    /// The n-th request.
    path: Box<dyn Fn(usize) -> String + Send + Sync>,
    /// Pods in each answer.
    pods: usize,
    form: Form,
    end: End,
    clients: usize,
    /// Source that the proxy has to answer from.
    source: &'static str,
    with_limit: bool,
}

/// The end of an answer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    /// The end of its body.
    Body,
    /// The bookmark behind a watch's initial objects. The client leaves then.
    Mark,
}

fn list(
    name: String,
    form: Form,
    pods: usize,
    path: impl Fn(usize) -> String + Send + Sync + 'static,
) -> Reads {
    Reads {
        name,
        unit: "µs CPU / request",
        scale: 1e6,
        path: Box::new(path),
        pods,
        form,
        end: End::Body,
        clients: 1,
        source: "snapshot",
        with_limit: true,
    }
}

/// Reads all pods by one list.
fn whole_list(servers: &Servers, pods: usize, form: Form) -> Reads {
    let size = if form == Form::Json {
        format!(" ({:.1} MB)", servers.list_bytes as f64 / 1e6)
    } else {
        String::new()
    };
    let name = format!("LIST {pods} pods, rv=0, {}{size}", form.name());
    Reads {
        unit: "ms CPU / request",
        scale: 1e3,
        ..list(name, form, pods, |_| ALL_PODS.to_owned())
    }
}

/// Reads all pods by a watch that sends its initial state.
fn streamed_list(pods: usize, form: Form) -> Reads {
    let name = format!("WatchList {pods} pods, rv=0, {}", form.name());
    Reads {
        unit: "ms CPU / request",
        scale: 1e3,
        end: End::Mark,
        ..list(name, form, pods, |_| ALL_PODS_STREAMED.to_owned())
    }
}

/// Reads single pods from many clients.
fn get(
    name: String,
    clients: usize,
    path: impl Fn(usize) -> String + Send + Sync + 'static,
) -> Reads {
    Reads {
        clients,
        ..list(name, Form::Json, 1, path)
    }
}

/// Returns the size of one of `parts` even parts of the pods.
fn even_share(pods: usize, part: usize, parts: usize) -> usize {
    pods / parts + usize::from(part < pods % parts)
}

/// Returns all reads of the pods that exist from the start.
pub(crate) fn all(args: &Args, servers: &Servers) -> Vec<Reads> {
    let (pods, nodes, clients) = (args.pods, args.nodes, args.clients);
    let paths = Arc::clone(&servers.pods.paths);
    let (one, many) = (paths[0].clone(), Arc::clone(&paths));
    let of_namespace = even_share(pods, 0, NAMESPACES);
    let of_shard = even_share(pods, 7, SHARDS);
    vec![
        whole_list(servers, pods, Form::Json),
        whole_list(servers, pods, Form::JsonGzip),
        whole_list(servers, pods, Form::Protobuf),
        whole_list(servers, pods, Form::ProtobufGzip),
        streamed_list(pods, Form::Json),
        streamed_list(pods, Form::JsonGzip),
        list(
            format!("LIST one namespace's {of_namespace} pods, rv=0"),
            Form::Json,
            of_namespace,
            |_| "/api/v1/namespaces/bench-0/pods?resourceVersion=0".to_owned(),
        ),
        list(
            format!("LIST {of_shard} of {pods} pods by labelSelector, rv=0"),
            Form::Json,
            of_shard,
            |_| format!("{ALL_PODS}&labelSelector=shard%3D07"),
        ),
        Reads {
            name: format!(
                "LIST one node's {} pods by fieldSelector, rv=0",
                pods / nodes
            ),
            ..one_node(args)
        },
        get("GET one pod, rv=0".to_owned(), clients, move |_| {
            format!("{one}?resourceVersion=0")
        }),
        // The proxy asks upstream for each name whether the caller may read it.
        get(
            format!("GET {pods} pods in turn, rv=0"),
            clients,
            move |number| format!("{}?resourceVersion=0", many[number % many.len()]),
        ),
        Reads {
            source: "forward",
            with_limit: false,
            ..get(
                "GET one pod, most recent (the proxy forwards it)".to_owned(),
                clients,
                move |number| paths[number % paths.len()].clone(),
            )
        },
    ]
}

/// Returns the list of one node's pods in a larger cluster. Its cost should be the same.
pub(crate) fn one_node_of_more(args: &Args) -> Reads {
    let (each, of) = (args.pods / args.nodes, args.start_pods);
    Reads {
        name: format!("LIST one node's {each} pods by fieldSelector, rv=0, of {of} in all"),
        ..one_node(args)
    }
}

fn one_node(args: &Args) -> Reads {
    let nodes = args.nodes;
    // If the pods do not divide evenly, the first nodes have one more.
    let first = args.pods.div_ceil(nodes);
    let reads = list(String::new(), Form::Json, first, move |number| {
        node_pods(number % nodes)
    });
    Reads {
        clients: args.clients,
        ..reads
    }
}

/// Result of one round.
struct ReadRound {
    /// CPU seconds of a request.
    seconds: f64,
    answers: usize,
    /// Answers of another source than the wanted one: gets that come fast enough are answered
    /// from memory together.
    elsewhere: usize,
}

impl Reads {
    pub(crate) async fn measure(
        &self,
        args: &Args,
        servers: &Servers,
        table: &mut Table,
    ) -> anyhow::Result<()> {
        if self.end == End::Mark && args.http1 {
            // Over HTTP/1.1 a client that leaves has to connect again, which would be measured too.
            return Ok(());
        }
        if !self.is_offered(servers).await? {
            table
                .remarks
                .push(format!("{}: upstream does not offer this", self.name));
            return Ok(());
        }
        eprintln!("{} …", self.name);
        let measured = || {
            servers
                .measured
                .iter()
                .filter(|s| self.with_limit || s.kind != Kind::Limit)
        };
        for server in measured() {
            // The proxy comes first, because the limit server repeats its answer.
            match server.kind {
                Kind::Proxy => self.record(args, servers, server).await?,
                Kind::Limit => {}
                Kind::OwnJson | Kind::KubeApiserver => self.look(args, server).await.map(drop)?,
            }
            self.run(args, server, WARM_UP).await?;
        }
        for _ in 0..args.rounds {
            for server in measured() {
                let ReadRound {
                    seconds,
                    answers,
                    elsewhere,
                } = self.run(args, server, args.length()).await?;
                if elsewhere > 0 {
                    table.remarks.push(format!(
                        "{}: {elsewhere} of {answers} answers were not from {}",
                        self.name, self.source
                    ));
                }
                table.add(
                    &self.name,
                    self.unit,
                    true,
                    server.kind,
                    seconds * self.scale,
                );
            }
        }
        Ok(())
    }

    /// Returns `true` if upstream offers this read. gzip of lists is the proxy's own.
    async fn is_offered(&self, servers: &Servers) -> anyhow::Result<bool> {
        let compressed_watch = self.end == End::Mark && self.form.is_gzip();
        if !self.form.is_protobuf() && !compressed_watch {
            return Ok(true);
        }
        let connection = servers
            .upstream
            .endpoint
            .connect(false)
            .await?
            .asking(self.form);
        let answer = connection
            .try_send(Method::GET, &(self.path)(0), None)
            .await?;
        Ok(answer.status().is_success() && self.form.is_of(answer.headers()))
    }

    /// Returns the encoding of an answer. It is an error if it is not what was asked for.
    fn form_of(&self, answer: &Response<Incoming>) -> anyhow::Result<Form> {
        if self.form.is_of(answer.headers()) {
            return Ok(self.form);
        }
        // Little is sent as it is.
        ensure!(
            self.pods < 100,
            "{} came as {:?}",
            self.name,
            answer.headers()
        );
        Ok(Form::Json)
    }

    /// Reads one answer and checks it. Returns its head and its bytes as they came.
    async fn look(
        &self,
        args: &Args,
        server: &Server,
    ) -> anyhow::Result<(http::HeaderMap, BytesMut)> {
        let connection = server.endpoint.connect(args.http1).await?.asking(self.form);
        let answer = connection.get(&(self.path)(0)).await?;
        if server.kind.is_proxy() {
            expect_source(&answer, self.source)?;
        }
        let form = self.form_of(&answer)?;
        let (head, mut body) = answer.into_parts();
        let (mut reader, mut bytes) = (Reader::counting(form), BytesMut::new());
        while let Some(frame) = body.frame().await {
            let frame = frame?;
            let Some(data) = frame.data_ref() else {
                continue;
            };
            reader.push(data)?;
            bytes.extend_from_slice(data);
            if self.end == End::Mark && reader.ended() {
                break;
            }
        }
        ensure!(
            self.end == End::Body || reader.ended(),
            "{}: no end mark",
            self.name
        );
        let (pods, kind) = (reader.pods(), server.kind.name());
        ensure!(
            pods == self.pods,
            "{}: {pods} pods from {kind}, not {}",
            self.name,
            self.pods
        );
        Ok((head.headers, bytes))
    }

    /// Makes the limit server send the proxy's answer.
    async fn record(&self, args: &Args, servers: &Servers, proxy: &Server) -> anyhow::Result<()> {
        let (head, bytes) = self.look(args, proxy).await?;
        let limit = servers
            .measured
            .iter()
            .find(|server| server.kind == Kind::Limit);
        set_answer(
            &limit.context("no limit server")?.endpoint,
            &head,
            bytes.freeze(),
            None,
        )
        .await
    }

    async fn run(
        &self,
        args: &Args,
        server: &Server,
        length: Duration,
    ) -> anyhow::Result<ReadRound> {
        let mut connections = Vec::new();
        for _ in 0..self.clients {
            connections.push(server.endpoint.connect(args.http1).await?.asking(self.form));
        }
        sleep(SETTLE).await;
        let (done, elsewhere) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let before = cpu_time(server.pid)?;
        let end = Instant::now() + length;
        let (done, elsewhere) = (&done, &elsewhere);
        let clients = connections.into_iter().map(|connection| async move {
            while Instant::now() < end {
                let number = done.fetch_add(1, Ordering::Relaxed);
                let path = (self.path)(number);
                let answer = connection.get(&path).await?;
                self.form_of(&answer)?;
                if server.kind.is_proxy() && expect_source(&answer, self.source).is_err() {
                    elsewhere.fetch_add(1, Ordering::Relaxed);
                }
                match self.end {
                    End::Body => drain(&path, answer).await?,
                    End::Mark => connection.drain_initial(&path, answer).await?,
                };
            }
            anyhow::Ok(())
        });
        futures_util::future::try_join_all(clients).await?;
        let used = cpu_time(server.pid)?.saturating_sub(before);
        let answers = done.load(Ordering::Relaxed);
        Ok(ReadRound {
            seconds: used.as_secs_f64() / answers as f64,
            answers,
            elsewhere: elsewhere.load(Ordering::Relaxed),
        })
    }
}
