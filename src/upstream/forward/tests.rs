//! Forwarding between real connections.
mod back_pressure;
mod ends;
mod identities;
mod messages;
mod unread_bodies;
mod upgrades;

use super::*;
use crate::test_support::{Api, HTTP1, HTTP2, Pki, Proxy, Settings, soon, upstream_of};

async fn proxied<H, F>(settings: Settings, handler: H) -> (Api, Proxy)
where
    H: Fn(Request<Incoming>, bool) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response<Body>> + Send + 'static,
{
    let pki = Pki::new();
    let api = Api::start(&pki, settings, move |request, conn| {
        handler(request, conn.client_cert)
    })
    .await;
    let proxy = Proxy::start(&upstream_of(&pki, &api).await).await;
    (api, proxy)
}

/// A request as one client or the other sends it.
async fn ask(
    proxy: &Proxy,
    http2: bool,
    request: Request<Body>,
) -> hyper::Result<Response<Incoming>> {
    if http2 {
        let (mut parts, body) = request.into_parts();
        parts.headers.remove("host");
        parts.uri = format!("https://localhost{}", parts.uri).parse().unwrap();
        soon(
            proxy
                .http2()
                .await
                .send_request(Request::from_parts(parts, body)),
        )
        .await
    } else {
        soon(proxy.http1().await.send_request(request)).await
    }
}

const BOTH: [(bool, Settings); 4] = [(true, HTTP2), (true, HTTP1), (false, HTTP2), (false, HTTP1)];

fn upgrade(path: &str) -> Request<Body> {
    Request::post(path)
        .header("host", "localhost")
        .header("connection", "Upgrade")
        .header("upgrade", "SPDY/3.1")
        .header("x-stream-protocol-version", "v4.channel.k8s.io")
        .body(body::empty())
        .unwrap()
}
