//! Settings that let more through than they seem to.
use super::config::AppConfig;
use crate::access;

/// Returns a warning if ordinary client certificates pass for those of front proxies.
pub(super) async fn overlap(config: &AppConfig) -> Option<String> {
    let (client_ca, front_proxy) = (
        config.access.client_ca.clone()?,
        config.access.front_proxy.as_ref()?,
    );
    if !front_proxy.allowed_names.is_empty() {
        return None;
    }
    // Files that cannot be read are reported elsewhere.
    let clients = access::authorities(client_ca).await.ok()?;
    let front = access::authorities(front_proxy.ca.clone()).await.ok()?;
    access::overlap(&clients, &front).then(|| {
        "authorities in --requestheader-client-ca-file are in --client-ca-file, too, or signed by \
         them: whoever has a client certificate of theirs can pass for anybody; give \
         --requestheader-allowed-names, or use an authority of its own for front proxies"
            .to_owned()
    })
}
