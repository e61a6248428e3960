//! W3C trace context. It is forwarded unchanged, unless the program has the feature `otel` and a
//! configured collector.
use http::Request;
use watershed_lab::sim::SimulatedServer;

use crate::support::client::{Endpoint, Protocol};
use crate::support::program::Program;
use crate::support::small;

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "b7ad6b7169203331";

/// Sends a forwarded request and one answered from memory. Returns the `traceparent` that upstream
/// received.
async fn forwarded(proxied: &Endpoint, upstream: &SimulatedServer, traceparent: &str) -> String {
    upstream.take_recorded();
    let connection = proxied.connect(Protocol::Http2).await.unwrap();
    for path in [
        "/api/v1/pods?resourceVersion=0",
        "/api/v1/namespaces/team-00/pods/nobody",
    ] {
        let request = Request::get(path)
            .header("traceparent", traceparent)
            .header("tracestate", "vendor=value")
            .body(crate::support::client::nothing())
            .unwrap();
        connection.open(request).await.unwrap();
    }
    let all = upstream.take_recorded();
    let head = all
        .iter()
        .find(|head| head.target.ends_with("/nobody"))
        .expect("it was forwarded");
    assert_eq!(head.headers["tracestate"], "vendor=value");
    let values: Vec<_> = head.headers.get_all("traceparent").iter().collect();
    assert_eq!(values.len(), 1, "{values:?}");
    values[0].to_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn trace_context_is_forwarded_unchanged() {
    let upstream = SimulatedServer::start(small()).await.unwrap();
    let program = Program::start(&upstream).await;
    for flags in ["00", "01"] {
        let sent = format!("00-{TRACE}-{PARENT}-{flags}");
        assert_eq!(forwarded(&program.proxied, &upstream, &sent).await, sent);
    }
    program.terminate().await;
    upstream.shutdown().await;
}

#[cfg(feature = "otel")]
mod sent {
    use std::convert::Infallible;
    use std::sync::Arc;

    use http::Response;
    use http_body_util::{BodyExt as _, Empty};
    use hyper::body::{Bytes, Incoming};
    use hyper::server::conn::http1;
    use hyper::service::service_fn;
    use hyper_util::rt::TokioIo;
    use parking_lot::Mutex;
    use tokio::net::TcpListener;

    use super::*;

    /// A collector that records the path and the body of each request.
    async fn collector() -> (String, Arc<Mutex<Vec<(String, Bytes)>>>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let got = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&got);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let kept = Arc::clone(&kept);
                let answer = service_fn(move |request: Request<Incoming>| {
                    let kept = Arc::clone(&kept);
                    async move {
                        let path = request.uri().path().to_owned();
                        let body = request.into_body().collect().await.unwrap().to_bytes();
                        kept.lock().push((path, body));
                        Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new()))
                    }
                });
                tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), answer));
            }
        });
        (url, got)
    }

    fn bytes(hexadecimal: &str) -> Vec<u8> {
        let digits = hexadecimal.as_bytes().chunks(2);
        digits
            .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
            .collect()
    }

    fn has(body: &[u8], wanted: &[u8]) -> bool {
        body.windows(wanted.len()).any(|window| window == wanted)
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn traced_requests_are_exported_and_propagated() {
        let upstream = SimulatedServer::start(small()).await.unwrap();
        let (url, got) = collector().await;
        let program =
            Program::with_variables(&upstream, &[], &[("OTEL_EXPORTER_OTLP_ENDPOINT", &url)]).await;
        // The proxy does not record what the client does not record.
        let other = "1af7651916cd43dd8448eb211c80319c";
        let unsampled = format!("00-{other}-{PARENT}-00");
        assert_eq!(
            forwarded(&program.proxied, &upstream, &unsampled).await,
            unsampled
        );

        let parent = forwarded(
            &program.proxied,
            &upstream,
            &format!("00-{TRACE}-{PARENT}-01"),
        )
        .await;
        let parts: Vec<_> = parent.split('-').collect();
        assert_eq!((parts[0], parts[1], parts[3]), ("00", TRACE, "01"));
        assert_ne!(parts[2], PARENT, "the proxy's own span is between");

        // The shutdown sends the remaining spans.
        program.terminate().await;
        assert!(program.ended().await.success());
        let got = got.lock();
        assert!(
            !got.is_empty() && got.iter().all(|(path, _)| path == "/v1/traces"),
            "{got:?}"
        );
        let body: Vec<u8> = got.iter().flat_map(|(_, body)| body.to_vec()).collect();
        for wanted in [bytes(TRACE), bytes(PARENT), bytes(parts[2])] {
            assert!(has(&body, &wanted), "{wanted:x?}");
        }
        for words in [
            "watershed.source",
            "snapshot",
            "forward; reason=",
            "http.response.status_code",
            "service.name",
        ] {
            assert!(has(&body, words.as_bytes()), "{words}");
        }
        assert!(!has(&body, &bytes(other)));
        upstream.shutdown().await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn an_unreachable_collector_delays_no_request() {
        let upstream = SimulatedServer::start(small()).await.unwrap();
        let nowhere = TcpListener::bind("127.0.0.1:0")
            .await
            .unwrap()
            .local_addr()
            .unwrap();
        let url = format!("http://{nowhere}");
        let program =
            Program::with_variables(&upstream, &[], &[("OTEL_EXPORTER_OTLP_ENDPOINT", &url)]).await;
        forwarded(
            &program.proxied,
            &upstream,
            &format!("00-{TRACE}-{PARENT}-01"),
        )
        .await;
        program.terminate().await;
        assert!(program.ended().await.success());
        upstream.shutdown().await;
    }
}
