//! Requests to the admin listener, without TLS.
use std::net::SocketAddr;
use std::str::FromStr;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// Sends a request without TLS, as probes and scrapers do. Returns the answer with its head.
pub(crate) async fn plain_get(address: SocketAddr, method: &str, path: &str) -> String {
    plain_request(address, method, path, &[]).await
}

/// Sends a request like [`plain_get`], with headers.
pub(crate) async fn plain_request(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let mut lines = vec![
        format!("{method} {path} HTTP/1.1"),
        "Connection: close".to_owned(),
    ];
    if !headers.iter().any(|(name, _)| *name == "Host") {
        lines.push("Host: admin".to_owned());
    }
    lines.extend(
        headers
            .iter()
            .map(|(name, value)| format!("{name}: {value}")),
    );
    let request = lines.join("\r\n") + "\r\n\r\n";
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    text
}

/// Returns `true` if a counter has come to a number, or passed it.
///
/// The proxies of all tests in this process count in the same series. Nothing more can be said of one
/// of them: see `Program::metric`.
pub(crate) async fn has_counted(admin: SocketAddr, series: &str, number: u32) -> bool {
    metric::<f64>(admin, series).await >= f64::from(number)
}

/// Returns the value of a metric series, or zero if the series does not exist.
pub(super) async fn metric<N: FromStr + Default>(admin: SocketAddr, series: &str) -> N {
    let text = plain_get(admin, "GET", "/metrics").await;
    text.lines()
        .find_map(|line| line.strip_prefix(series)?.trim().parse().ok())
        .unwrap_or_default()
}
