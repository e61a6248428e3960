//! JSON for people: memory answers it indented, in chunks.
use std::io::Read;

use flate2::read::GzDecoder;
use http::Request;
use watershed_lab::sim::{Options, Population};
use watershed_protocol::indent;

use crate::support::Fixture;
use crate::support::client::{Answer, BOTH, Connection, nothing};

async fn get(connection: &Connection, path: &str, headers: &[(&str, &str)]) -> Answer {
    let request = headers
        .iter()
        .fold(Request::get(path), |request, (name, value)| {
            request.header(*name, *value)
        });
    connection
        .read(request.body(nothing()).unwrap())
        .await
        .unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn curl_gets_the_same_objects_indented_from_memory() {
    let population = Population {
        nodes: 2,
        namespaces: 2,
        pods: 200,
        ..Population::default()
    };
    let options = Options {
        population,
        ..Options::default()
    };
    let fixture = Fixture::start(options).await;
    for protocol in BOTH {
        let connection = fixture.proxied.connect(protocol).await.unwrap();
        for path in [
            "/api/v1/pods?resourceVersion=0",
            "/api/v1/pods?resourceVersion=0&labelSelector=app",
            "/api/v1/pods?resourceVersion=0&fieldSelector=metadata.name%3Dnobody",
            "/api/v1/nodes?resourceVersion=0",
            "/api/v1/nodes/nobody?resourceVersion=0",
        ] {
            let plain = get(&connection, path, &[]).await;
            let expected = indent(&plain.body).unwrap();
            let curl = get(&connection, path, &[("user-agent", "curl/8.9.1")]).await;
            assert_eq!(curl.header("x-watershed-source"), "snapshot", "{path}");
            assert_eq!(curl.status, plain.status);
            assert!(curl.body == expected, "{path}");
            assert_eq!(
                curl.header("content-type"),
                plain.header("content-type"),
                "{path}"
            );
            let packed = [("user-agent", "curl/8.9.1"), ("accept-encoding", "gzip")];
            let packed = get(&connection, path, &packed).await;
            let is_large = expected.len() > 128 * 1024;
            assert_eq!(packed.headers.contains_key("content-encoding"), is_large);
            if is_large {
                let mut text = Vec::new();
                GzDecoder::new(&packed.body[..])
                    .read_to_end(&mut text)
                    .unwrap();
                assert!(text == expected, "{path}");
            } else {
                assert!(packed.body == expected, "{path}");
            }
        }
    }
}
