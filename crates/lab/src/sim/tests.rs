//! The server's semantics, asked for as a client would, without the network in between.
mod network;
mod reads;
mod watches;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request};
use http_body_util::{BodyExt, Empty, Full};
use serde_json::Value;

use super::body::ResponseBody;
use super::service::SimulatorService;
use super::simulation::Simulation;
use super::{Options, pods};

/// A server without a socket.
struct Api {
    simulation: Arc<Simulation>,
    service: SimulatorService,
}

/// An answer read to its end.
#[derive(Debug)]
struct Answer {
    code: u16,
    text: String,
}

impl Api {
    fn new() -> Self {
        Self::with(Options::default())
    }

    fn with(options: Options) -> Self {
        let simulation = Arc::new(Simulation::new(options));
        Self {
            service: SimulatorService::new(Arc::clone(&simulation)),
            simulation,
        }
    }

    /// Creates pods `a`, `b`, … in namespaces by their order; returns the versions.
    fn pods(&self, keys: &[&str]) -> Vec<u64> {
        keys.iter()
            .map(|key| {
                self.simulation
                    .state
                    .create(&pods(), &pod(key, "node-1", "blue"))
                    .unwrap()
            })
            .collect()
    }

    async fn get(&self, path: &str) -> Answer {
        self.ask(Method::GET, path, "admin-token", "").await
    }

    async fn ask(&self, method: Method, path: &str, token: &str, body: &str) -> Answer {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("authorization", format!("Bearer {token}"))
            .header("content-type", "application/merge-patch+json")
            .body(Full::new(Bytes::from(body.to_owned())))
            .unwrap();
        let response = self.service.answer(request).await;
        let code = response.status().as_u16();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        Answer {
            code,
            text: String::from_utf8(body.to_vec()).unwrap(),
        }
    }

    async fn watch(&self, query: &str) -> Stream {
        let request = Request::builder()
            .uri(format!("/api/v1/pods?watch=1&{query}"))
            .header("authorization", "Bearer admin-token")
            .body(Empty::<Bytes>::new())
            .unwrap();
        let response = self.service.answer(request).await;
        assert_eq!(response.status(), 200);
        Stream {
            body: response.into_body(),
            rest: Vec::new(),
        }
    }
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap()
    }

    fn names(&self) -> Vec<String> {
        let json = self.json();
        let items = json["items"].as_array().unwrap().iter();
        items
            .map(|i| {
                format!(
                    "{}/{}",
                    text(&i["metadata"]["namespace"]),
                    text(&i["metadata"]["name"])
                )
            })
            .collect()
    }
}

/// A watch's lines.
struct Stream {
    body: ResponseBody,
    rest: Vec<u8>,
}

impl Stream {
    /// The next line, or why there is none: `end`, `reset`, `quiet` (nothing for a minute and a
    /// half).
    async fn line(&mut self) -> Result<String, &'static str> {
        loop {
            if let Some(end) = self.rest.iter().position(|b| *b == b'\n') {
                let line: Vec<_> = self.rest.drain(..=end).collect();
                return Ok(String::from_utf8_lossy(&line).into_owned());
            }
            match tokio::time::timeout(Duration::from_secs(90), self.body.frame()).await {
                Err(_) => return Err("quiet"),
                Ok(None) => return Err("end"),
                Ok(Some(Err(_))) => return Err("reset"),
                Ok(Some(Ok(frame))) => self.rest.extend_from_slice(&frame.into_data().unwrap()),
            }
        }
    }

    /// The next event as `TYPE name@version`, bookmarks with `*` for an end mark.
    async fn event(&mut self) -> String {
        match self.line().await {
            Err(why) => why.to_owned(),
            Ok(line) => {
                let Ok(event) = serde_json::from_str::<Value>(&line) else {
                    return "garbage".to_owned();
                };
                let metadata = &event["object"]["metadata"];
                let end = &metadata["annotations"]["k8s.io/initial-events-end"];
                match text(&event["type"]) {
                    "ERROR" => format!("ERROR {}", text(&event["object"]["message"])),
                    "BOOKMARK" => {
                        let mark = if end == "true" { "*" } else { "" };
                        format!("BOOKMARK{mark} @{}", text(&metadata["resourceVersion"]))
                    }
                    kind => {
                        format!(
                            "{kind} {}@{}",
                            text(&metadata["name"]),
                            text(&metadata["resourceVersion"])
                        )
                    }
                }
            }
        }
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn pod(key: &str, node: &str, color: &str) -> String {
    let (namespace, name) = key.split_once('/').unwrap();
    let labels = format!(r#"{{"color":"{color}"}}"#);
    let metadata = format!(r#"{{"name":"{name}","namespace":"{namespace}","labels":{labels}}}"#);
    format!(r#"{{"metadata":{metadata},"spec":{{"nodeName":"{node}"}}}}"#)
}
