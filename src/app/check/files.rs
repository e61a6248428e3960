//! Certificates, tokens, and the audit log.
use std::io;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use rustls::pki_types::CertificateDer;
use watershed_connect::Validity;

use super::finding::Findings;
use crate::admin::TokenFile;
use crate::app::config::{AppConfig, Listen};
use crate::app::serving::with_flag;
use crate::app::trust;
use crate::listener::tls::{self, TlsError};
use crate::{access, audit};

const SERVING: &str = "certificate";
const CALLERS: &str = "callers";
const ADMIN: &str = "admin";
const CHECKPOINTS: &str = "checkpoints";
const AUDIT: &str = "audit";

pub(super) async fn examine(config: &AppConfig, findings: &mut Findings) {
    serving(config, findings).await;
    for (file, flag) in config.authorities() {
        match access::authorities(file.clone()).await {
            Ok(certificates) => {
                for certificate in certificates {
                    examine_validity(
                        &certificate,
                        &format!("an authority in {} ({flag})", file.display()),
                        CALLERS,
                        findings,
                    );
                }
            }
            Err(error) => findings.failed(CALLERS, with_flag(error, &config.file_flags())),
        }
    }
    if let Some(warning) = trust::overlap(config).await {
        findings.warning(CALLERS, warning);
    }
    match config.admin_serving().await {
        Ok(None) => {}
        Ok(Some(_)) => {
            if let Some((cert, _)) = &config.admin.certificate {
                examine_file(cert, "--admin-tls-cert", ADMIN, findings);
            }
        }
        Err(error) => findings.failed(ADMIN, error),
    }
    if let Some(file) = &config.admin.token_file {
        match TokenFile::load(file.clone()).await {
            Ok(_) => {
                findings.ok(
                    ADMIN,
                    format!(
                        "there is a token in {} (--admin-token-file)",
                        file.display()
                    ),
                );
            }
            Err(error) => findings.failed(ADMIN, error),
        }
    }
    if let Some(checkpoints) = &config.checkpoints {
        let folder = checkpoints.folder.display();
        match can_keep(&checkpoints.folder) {
            Ok(()) => findings.ok(
                CHECKPOINTS,
                format!("checkpoints can be written to {folder} (--checkpoint-dir)"),
            ),
            Err(error) => findings.error(
                CHECKPOINTS,
                format!("cannot write checkpoints to {folder}: {error} (--checkpoint-dir)"),
            ),
        }
    }
    if let Some(config) = &config.audit {
        match audit::check(config).await {
            Ok(()) => findings.ok(AUDIT, "the audit log can be written"),
            Err(error) => findings.failed(AUDIT, error),
        }
    }
}

async fn serving(config: &AppConfig, findings: &mut Findings) {
    let Listen::Tls(address) = &config.listen else {
        return;
    };
    if let Some((cert, _)) = &config.certificate {
        // Authorities have findings of their own.
        match config.serving(address.ip(), Vec::new()).await {
            Ok(_) => examine_file(cert, "--tls-cert", SERVING, findings),
            Err(error) => findings.failed(SERVING, error),
        }
        return;
    }
    let dir = &config.cert_dir;
    let made = dir.join("tls.crt");
    match can_keep(dir) {
        Ok(()) if made.exists() => {
            findings.ok(
                SERVING,
                format!(
                    "self-signed, renewed here, kept in {} (--cert-dir)",
                    dir.display()
                ),
            );
        }
        Ok(()) => findings.ok(
            SERVING,
            format!(
                "a self-signed one will be made in {} (--cert-dir; or give --tls-cert)",
                dir.display()
            ),
        ),
        Err(error) => findings.error(
            SERVING,
            format!(
                "cannot keep a self-signed certificate in {}: {error} \
                 (--cert-dir, or give --tls-cert)",
                dir.display()
            ),
        ),
    }
}

/// Checks that a folder accepts files or can be created. The test file has no name and disappears
/// at once.
fn can_keep(dir: &Path) -> io::Result<()> {
    let there = dir
        .ancestors()
        .find(|folder| folder.exists() || folder.as_os_str().is_empty());
    let there = there
        .filter(|folder| !folder.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    tempfile::tempfile_in(there).map(drop)
}

/// Adds the certificate of a file that has been loaded.
fn examine_file(file: &PathBuf, flag: &str, subject: &'static str, findings: &mut Findings) {
    let read = std::fs::read(file).map_err(|source| TlsError::Read {
        path: file.clone(),
        source,
    });
    match read.and_then(|pem| tls::certificates(file, &pem)) {
        Ok(chain) => {
            if let Some(certificate) = chain.first() {
                let names = Validity::names(certificate);
                let names = if names.is_empty() {
                    "no name".to_owned()
                } else {
                    names.join(", ")
                };
                examine_validity(
                    certificate,
                    &format!("{} ({flag}), for {names}", file.display()),
                    subject,
                    findings,
                );
            }
        }
        Err(error) => findings.failed(subject, anyhow::Error::new(error).context(flag.to_owned())),
    }
}

fn examine_validity(
    certificate: &CertificateDer<'_>,
    what: &str,
    subject: &'static str,
    findings: &mut Findings,
) {
    let now = Timestamp::now();
    match Validity::of(certificate) {
        None => findings.error(subject, format!("{what}: it cannot be read when it ends")),
        Some(valid) => {
            let message = format!("{what}: {}", valid.describe(now));
            if !valid.is_valid(now) {
                findings.error(subject, message);
            } else if valid.ends_soon(now) {
                findings.warning(
                    subject,
                    format!("{message}; renew it, the file is read again when it changes"),
                );
            } else {
                findings.ok(subject, message);
            }
        }
    }
}
