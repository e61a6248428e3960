//! Flags of `watershed serve` on who may see what operators see.
use std::path::PathBuf;

use clap::Args;

use crate::admin::Protection;

/// Above its flags in `--help`.
pub(super) const ADMIN: &str = "Admin listener";

/// The admin listener.
#[derive(Args, Debug)]
#[command(next_help_heading = ADMIN)]
#[expect(
    clippy::struct_field_names,
    reason = "the flags are called so, beside those of the other listener"
)]
pub(super) struct AdminFlags {
    /// Serve the admin listener by TLS, with this certificate (PEM); read again when it changes.
    #[arg(long, requires = "admin_tls_key", value_name = "FILE")]
    admin_tls_cert: Option<PathBuf>,
    /// Its private key (PEM).
    #[arg(long, requires = "admin_tls_cert", value_name = "FILE")]
    admin_tls_key: Option<PathBuf>,
    /// A file with a bearer token that everything on the admin listener needs but /livez, /readyz
    /// and /healthz; read again when it changes.
    #[arg(long, value_name = "FILE")]
    admin_token_file: Option<PathBuf>,
}

impl AdminFlags {
    pub(super) fn protection(self) -> Protection {
        Protection {
            certificate: self.admin_tls_cert.zip(self.admin_tls_key),
            token_file: self.admin_token_file,
        }
    }
}
