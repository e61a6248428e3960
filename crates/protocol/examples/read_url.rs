//! Prints what requests to the Kubernetes API ask for.
//!
//! ```text
//! cargo run -p watershed-protocol --example read_url -- '/api/v1/pods?labelSelector=app%3Dweb'
//! ```
use http::{Method, Uri};
use watershed_protocol::RequestInfo;

fn main() -> Result<(), http::uri::InvalidUri> {
    let mut urls: Vec<String> = std::env::args().skip(1).collect();
    if urls.is_empty() {
        urls = vec![
            "/api/v1/namespaces/default/pods/web-0".to_owned(),
            "/apis/apps/v1/deployments?watch=1&resourceVersion=100".to_owned(),
            "/version".to_owned(),
        ];
    }
    for url in urls {
        let uri: Uri = url.parse()?;
        let request = RequestInfo::parse(&Method::GET, uri.path(), uri.query());
        print(&match request.resource {
            Some(resource) => format!(
                "{url}: {} {} in namespace {:?}, name {:?}",
                request.verb.as_str(),
                resource.gvr,
                resource.namespace,
                resource.name
            ),
            None => format!("{url}: not a resource"),
        });
    }
    Ok(())
}

#[expect(clippy::print_stdout, reason = "an example shows what it does")]
fn print(line: &str) {
    println!("{line}");
}
