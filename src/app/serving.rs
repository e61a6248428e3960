//! The serving certificates. Errors about a file name the flag that named it.
use std::net::IpAddr;
use std::path::PathBuf;

use super::config::AppConfig;
use crate::listener::tls::{ServerTls, TlsError, TlsOptions};

/// Files and the flags that name them.
pub(super) type FileFlags = Vec<(PathBuf, &'static str)>;

impl AppConfig {
    /// Returns the files of the proxy's TLS, and their flags.
    pub(super) fn file_flags(&self) -> FileFlags {
        let pair = self
            .certificate
            .iter()
            .flat_map(|(cert, key)| [(cert, "--tls-cert"), (key, "--tls-key")]);
        let all = pair.chain(self.authorities());
        all.map(|(file, flag)| (file.clone(), flag)).collect()
    }

    /// Returns the files of authorities of client certificates, and their flags.
    pub(super) fn authorities(&self) -> impl Iterator<Item = (&PathBuf, &'static str)> {
        let clients = self
            .access
            .client_ca
            .iter()
            .map(|file| (file, "--client-ca-file"));
        let front_proxy = self.access.front_proxy.iter();
        clients.chain(front_proxy.map(|proxy| (&proxy.ca, "--requestheader-client-ca-file")))
    }

    /// Loads the certificate for clients of an address. `client_cas` are the authorities of their
    /// own certificates.
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
            policy: self.tls_policy.clone(),
        };
        ServerTls::load(options)
            .await
            .map_err(|error| with_flag(error, &self.file_flags()))
    }

    /// Loads the certificate of the admin listener; `None` if that serves plain HTTP.
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
            policy: self.tls_policy.clone(),
        };
        let flags = vec![(cert, "--admin-tls-cert"), (key, "--admin-tls-key")];
        ServerTls::load(options)
            .await
            .map(Some)
            .map_err(|error| with_flag(error, &flags))
    }
}

/// Adds the flag that named the file to an error.
pub(super) fn with_flag(error: TlsError, flags: &FileFlags) -> anyhow::Error {
    let flag = flags
        .iter()
        .find(|(file, _)| error.path() == Some(file))
        .map(|(_, flag)| *flag);
    match flag {
        Some(flag) => anyhow::Error::new(error).context(flag),
        None => error.into(),
    }
}
