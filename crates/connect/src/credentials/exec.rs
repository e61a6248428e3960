//! The credential plugin of a kubeconfig's user.
use std::collections::HashMap;
use std::io::{self, IsTerminal};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use http::HeaderValue;
use jiff::Timestamp;
use kube_client::config::{ExecConfig, ExecInteractiveMode};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use serde::Deserialize;
use serde_json::json;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::Command;
use tokio::time::timeout;

use super::token;

/// Time after which a plugin is stopped. One that talks to a person has [`INTERACTIVE_TIMEOUT`].
const TIMEOUT: Duration = Duration::from_mins(1);
const INTERACTIVE_TIMEOUT: Duration = Duration::from_mins(5);
/// Bytes of a credential. More are not read.
const MAX_OUTPUT: u64 = 1 << 20;

/// Reason why a plugin made no credential.
///
/// No text holds what the plugin was given or printed: clients and logs show these errors, and
/// there are secrets in both. What it writes to stderr appears on that of this process.
#[derive(Debug, thiserror::Error)]
pub(super) enum ExecError {
    #[error("exec has no command")]
    NoCommand,
    #[error("the plugin {0} cannot be started: {1}")]
    Start(String, io::Error),
    #[error("the plugin {0} failed with {1}; its stderr may say more")]
    Failed(String, ExitStatus),
    #[error("the plugin {} has not ended within {}s", .0, .1.as_secs())]
    TimedOut(String, Duration),
    #[error("the plugin {0} printed no ExecCredential with a token or a certificate")]
    NoCredential(String),
    #[error("the plugin {0} printed no ExecCredential of {1}, which the kubeconfig asks for")]
    OtherVersion(String, String),
    #[error("the plugin {0} printed a certificate without its key, or a key alone")]
    HalfCertificate(String),
    #[error("the plugin {0} printed a certificate or a key that cannot be used")]
    BadCertificate(String),
    #[error("the plugin {0} printed a token that no header can carry")]
    BadToken(String),
    #[error("the plugin {0} printed an expirationTimestamp that is no time in RFC 3339")]
    BadExpiration(String),
}

/// A credential that a plugin made.
pub(super) struct PluginCredential {
    /// The header `Authorization`.
    pub(super) token: Option<HeaderValue>,
    pub(super) certificate: Option<Arc<CertifiedKey>>,
    /// The end of the credential, as far as the plugin tells it.
    pub(super) expires: Option<Timestamp>,
}

impl PluginCredential {
    /// Returns a digest of what connections depend on.
    pub(super) fn digest(&self) -> blake3::Hash {
        let mut digest = blake3::Hasher::new();
        for certificate in self.certificate.iter().flat_map(|made| &made.cert) {
            digest.update(certificate);
        }
        digest.finalize()
    }
}

/// The members of an ExecCredential that are used.
///
/// Source: client.authentication.k8s.io/v1, which v1beta1 equals in these.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ExecCredential {
    api_version: Option<String>,
    kind: Option<String>,
    #[serde(default)]
    status: CredentialStatus,
}

/// A token, a certificate and a key that are empty are as those that are missing.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct CredentialStatus {
    /// In RFC 3339.
    expiration_timestamp: Option<String>,
    token: Option<String>,
    client_certificate_data: Option<String>,
    client_key_data: Option<String>,
}

/// Runs a plugin, and returns the credential that it prints. It is stopped when it takes too long,
/// and when the result is dropped.
pub(super) async fn run(config: &ExecConfig) -> Result<PluginCredential, ExecError> {
    let name = config.command.clone().ok_or(ExecError::NoCommand)?;
    let interactive =
        config.interactive_mode != Some(ExecInteractiveMode::Never) && io::stdin().is_terminal();
    let mut command = command(config, &name, interactive);
    let mut child = command
        .spawn()
        .map_err(|error| ExecError::Start(name.clone(), error))?;
    let output = child.stdout.take();
    let limit = if interactive {
        INTERACTIVE_TIMEOUT
    } else {
        TIMEOUT
    };
    let running = async {
        let printed = read(output).await;
        (printed, child.wait().await)
    };
    let Ok((printed, status)) = timeout(limit, running).await else {
        return Err(ExecError::TimedOut(name, limit));
    };
    match status {
        Err(error) => return Err(ExecError::Start(name, error)),
        Ok(status) if !status.success() => return Err(ExecError::Failed(name, status)),
        Ok(_) => {}
    }
    // Plugins may print YAML, too.
    let credential = String::from_utf8(printed).ok();
    let credential = credential.and_then(|text| serde_saphyr::from_str(&text).ok());
    credential_of(credential, config, name)
}

/// Returns the command of a plugin.
fn command(config: &ExecConfig, name: &str, interactive: bool) -> Command {
    let mut command = Command::new(name);
    command.args(config.args.iter().flatten());
    for variable in config.env.iter().flatten() {
        if let (Some(name), Some(value)) = (variable.get("name"), variable.get("value")) {
            command.env(name, value);
        }
    }
    let mut spec = HashMap::from([("interactive", json!(interactive))]);
    if config.provide_cluster_info {
        spec.insert("cluster", json!(config.cluster));
    }
    let info = json!({
        "apiVersion": config.api_version,
        "kind": "ExecCredential",
        "spec": spec,
    });
    command
        .env("KUBERNETES_EXEC_INFO", info.to_string())
        .stdin(if interactive {
            Stdio::inherit()
        } else {
            Stdio::null()
        })
        .stdout(Stdio::piped())
        .kill_on_drop(true);
    command
}

/// Reads what a plugin prints, up to the limit. What is cut is no JSON.
async fn read(output: Option<impl AsyncRead + Unpin>) -> Vec<u8> {
    let mut printed = Vec::new();
    if let Some(output) = output {
        // An error cuts it, too.
        let _ = output.take(MAX_OUTPUT).read_to_end(&mut printed).await;
    }
    printed
}

/// Takes the credential out of what a plugin has printed. Refuses what client-go refuses.
///
/// Source: `client-go/plugin/pkg/client/auth/exec/exec.go` (refreshCredsLocked).
fn credential_of(
    printed: Option<ExecCredential>,
    config: &ExecConfig,
    plugin: String,
) -> Result<PluginCredential, ExecError> {
    let Some(credential) = printed.filter(|it| it.kind.as_deref() == Some("ExecCredential")) else {
        return Err(ExecError::NoCredential(plugin));
    };
    if let Some(version) = &config.api_version
        && credential.api_version.as_ref() != Some(version)
    {
        return Err(ExecError::OtherVersion(plugin, version.clone()));
    }
    let status = credential.status;
    let text = |member: Option<String>| member.filter(|text| !text.is_empty());
    let token = match text(status.token) {
        None => None,
        Some(token) => match token::header(&token) {
            None => return Err(ExecError::BadToken(plugin)),
            header => header,
        },
    };
    let pair = (
        text(status.client_certificate_data),
        text(status.client_key_data),
    );
    let certificate = match pair {
        (None, None) => None,
        (Some(chain), Some(key)) => match certified_key(&chain, &key) {
            None => return Err(ExecError::BadCertificate(plugin)),
            Some(certificate) => Some(Arc::new(certificate)),
        },
        _ => return Err(ExecError::HalfCertificate(plugin)),
    };
    if token.is_none() && certificate.is_none() {
        return Err(ExecError::NoCredential(plugin));
    }
    let expires = match status.expiration_timestamp.map(|text| text.parse()) {
        None => None,
        Some(Ok(moment)) => Some(moment),
        Some(Err(_)) => return Err(ExecError::BadExpiration(plugin)),
    };
    Ok(PluginCredential {
        token,
        certificate,
        expires,
    })
}

fn certified_key(chain: &str, key: &str) -> Option<CertifiedKey> {
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(chain.as_bytes()).collect();
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).ok()?;
    let provider = CryptoProvider::get_default()?;
    CertifiedKey::from_der(chain.ok()?, key, provider).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a plugin that runs a script, and is given a secret in two ways. No program is written:
    /// another test may start a process meanwhile, and then it could not be run.
    fn plugin(script: &str) -> ExecConfig {
        let config = json!({
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": "sh",
            "args": ["-c", script, "plugin", "--key", "hush-hush"],
            "env": [{"name": "KEY", "value": "hush-hush"}],
            "interactiveMode": "Never",
        });
        serde_json::from_value(config).unwrap()
    }

    /// Returns a script that prints a credential with these members of its status.
    fn status(members: &str) -> String {
        let version = "client.authentication.k8s.io/v1";
        format!(
            r#"echo '{{"apiVersion": "{version}", "kind": "ExecCredential", "status": {{{members}}}}}'"#
        )
    }

    #[tokio::test]
    async fn no_error_tells_what_a_plugin_was_given_or_printed() {
        for (script, wanted) in [
            (
                "echo hush-hush; echo hush-hush >&2; exit 3",
                "failed with exit status: 3",
            ),
            ("echo hush-hush", "printed no ExecCredential"),
            (
                r#"echo '{"kind": "ExecCredential", "status": {"token": "hush-hush"}}'"#,
                "no ExecCredential of client.authentication.k8s.io/v1",
            ),
            (
                r#"echo '{"apiVersion": "client.authentication.k8s.io/v1", "status": {"token": "hush-hush"}}'"#,
                "printed no ExecCredential with",
            ),
            (
                &status(r#""token": {"hush-hush": 1}"#),
                "printed no ExecCredential with",
            ),
            (&status(r#""token": """#), "printed no ExecCredential with"),
            (
                &status(r#""token": "hush-hush\u0001""#),
                "token that no header",
            ),
            (
                &status(r#""clientCertificateData": "hush-hush", "clientKeyData": "hush-hush""#),
                "cannot be used",
            ),
            (
                &status(r#""token": "hush-hush", "clientKeyData": "hush-hush""#),
                "a key alone",
            ),
            (
                &status(r#""token": "hush-hush", "expirationTimestamp": "soon""#),
                "expirationTimestamp",
            ),
        ] {
            let config = plugin(script);
            let error = run(&config).await.err().unwrap().to_string();
            assert!(error.contains(wanted), "{error}");
            assert!(!error.contains("hush-hush"), "{error}");
        }
    }

    #[tokio::test]
    async fn a_plugin_that_does_not_exist_is_named() {
        let mut config = plugin("");
        config.command = Some("no-such-plugin".to_owned());
        let error = run(&config).await.err().unwrap().to_string();
        assert!(error.contains("plugin cannot be started"), "{error}");
    }

    #[tokio::test]
    async fn plugins_learn_the_protocol_and_may_print_yaml() {
        let config = plugin(
            r#"case "$KUBERNETES_EXEC_INFO" in
               *'"kind":"ExecCredential"'*)
                 echo 'apiVersion: client.authentication.k8s.io/v1'
                 printf 'kind: ExecCredential\nstatus:\n  token: %s-%s\n' "$KEY" "$2" ;;
               esac"#,
        );
        let made = run(&config).await.ok().unwrap();
        assert_eq!(made.token.unwrap(), "Bearer hush-hush-hush-hush");
        assert_eq!(made.expires, None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_plugin_that_hangs_is_stopped() {
        let dir = tempfile::tempdir().unwrap();
        let pid = dir.path().join("pid");
        let config = plugin(&format!("echo $$ > '{}'; exec sleep 1000", pid.display()));
        let error = run(&config).await.err().unwrap().to_string();
        assert!(error.contains("has not ended within 60s"), "{error}");
        // Not at once: the clock of this test went on while the plugin started.
        for _ in 0..100 {
            // Stopped early, it has written nothing: `/proc//stat` is a file of all processes.
            let started = std::fs::read_to_string(&pid).ok();
            let started = started.and_then(|pid| pid.trim().parse::<u32>().ok());
            let running = started.is_some_and(|pid| {
                let state = std::fs::read_to_string(format!("/proc/{pid}/stat"));
                state.is_ok_and(|state| !state.contains(") Z "))
            });
            if !running {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        panic!("it is still running");
    }
}
