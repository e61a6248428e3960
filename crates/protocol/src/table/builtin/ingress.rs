//! Ingresses.
use serde::Deserialize;

use super::definition::{BuiltinPrinter, read};
use super::meta::PrintedMeta;
use super::network::LoadBalancer;
use crate::encoding::Malformed;
use crate::table::cells::Cells;
use crate::table::column::{NAME, text};
use crate::table::row_metadata::RowMetadata;

pub(super) const PRINTERS: &[BuiltinPrinter] = &[BuiltinPrinter {
    resource: ("networking.k8s.io", "v1", "ingresses"),
    columns: &[
        NAME,
        text("Class"),
        text("Hosts"),
        text("Address"),
        text("Ports"),
        text("Age"),
    ],
    print: ingress,
    metadata: RowMetadata::AsIs,
}];

/// Most hosts that are printed.
const MAX_HOSTS: usize = 3;

#[derive(Deserialize)]
struct Ingress {
    metadata: PrintedMeta,
    #[serde(default)]
    spec: IngressSpec,
    #[serde(default)]
    status: IngressStatus,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct IngressSpec {
    ingress_class_name: Option<String>,
    rules: Option<Vec<IngressRule>>,
    tls: Option<Vec<serde::de::IgnoredAny>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct IngressRule {
    host: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct IngressStatus {
    load_balancer: LoadBalancer,
}

fn ingress(object: &[u8], cells: &mut Cells) -> Result<(), Malformed> {
    let ingress: Ingress = read(object)?;
    let spec = ingress.spec;
    let is_encrypted = spec.tls.is_some_and(|tls| !tls.is_empty());
    cells.text(&ingress.metadata.name);
    cells.text(spec.ingress_class_name.as_deref().unwrap_or("<none>"));
    cells.text(&hosts(&spec.rules.unwrap_or_default()));
    cells.text(&ingress.status.load_balancer.addresses().join(","));
    cells.text(if is_encrypted { "80, 443" } else { "80" });
    cells.since(ingress.metadata.creation_timestamp);
    Ok(())
}

/// Returns the first hosts, and the number of rules beyond as many.
fn hosts(rules: &[IngressRule]) -> String {
    let mut hosts = Vec::new();
    let mut has_more = false;
    for rule in rules {
        // A rule after the last printed host counts, whether it has a host or not.
        has_more |= hosts.len() == MAX_HOSTS;
        if !has_more && !rule.host.is_empty() {
            hosts.push(rule.host.as_str());
        }
    }
    match hosts.join(",") {
        none if none.is_empty() => "*".to_owned(),
        some if has_more => format!("{some} + {} more...", rules.len() - MAX_HOSTS),
        some => some,
    }
}
