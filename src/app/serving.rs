//! The certificates that clients and operators see, loaded with the flags that named their files.
use std::net::IpAddr;
use std::path::PathBuf;

use crate::listener::tls::{ServerTls, TlsError, TlsOptions};

use super::AppConfig;

/// Which flag named a file.
pub(super) type Knobs = Vec<(PathBuf, &'static str)>;

impl AppConfig {
    /// The flags of the files that TLS with clients is made of.
    pub(super) fn knobs(&self) -> Knobs {
        let pair = self
            .certificate
            .iter()
            .flat_map(|(cert, key)| [(cert, "--tls-cert"), (key, "--tls-key")]);
        let all = pair.chain(self.authorities());
        all.map(|(file, flag)| (file.clone(), flag)).collect()
    }

    /// The files of authorities of callers' certificates, and their flags.
    pub(super) fn authorities(&self) -> impl Iterator<Item = (&PathBuf, &'static str)> {
        let clients = self
            .access
            .client_ca
            .iter()
            .map(|file| (file, "--client-ca-file"));
        let front_proxy = self.access.front_proxy.iter();
        clients.chain(front_proxy.map(|proxy| (&proxy.ca, "--requestheader-client-ca-file")))
    }

    /// What clients of an address see, who may show certificates of these authorities.
    pub(super) async fn serving(
        &self,
        listen: IpAddr,
        client_cas: Vec<PathBuf>,
    ) -> anyhow::Result<ServerTls> {
        let (cert, key) = self.certificate.clone().unzip();
        let options = TlsOptions {
            cert,
            key,
            client_cas,
            cert_dir: self.cert_dir.clone(),
            names: self.names.clone(),
            listen,
        };
        ServerTls::load(options)
            .await
            .map_err(|error| named(error, &self.knobs()))
    }

    /// What operators see, if that is not plain HTTP.
    pub(super) async fn admin_serving(&self) -> anyhow::Result<Option<ServerTls>> {
        let Some((cert, key)) = self.admin.certificate.clone() else {
            return Ok(None);
        };
        let options = TlsOptions {
            cert: Some(cert.clone()),
            key: Some(key.clone()),
            client_cas: Vec::new(),
            cert_dir: self.cert_dir.clone(),
            names: Vec::new(),
            listen: self.admin_listen.ip(),
        };
        let knobs = vec![(cert, "--admin-tls-cert"), (key, "--admin-tls-key")];
        ServerTls::load(options)
            .await
            .map(Some)
            .map_err(|error| named(error, &knobs))
    }
}

/// With the flag that named the file.
pub(super) fn named(error: TlsError, knobs: &Knobs) -> anyhow::Error {
    let flag = knobs
        .iter()
        .find(|(file, _)| error.path() == Some(file))
        .map(|(_, flag)| *flag);
    match flag {
        Some(flag) => anyhow::Error::new(error).context(flag),
        None => error.into(),
    }
}
