//! Flags of `watershed serve` that protect the admin listener.
use std::path::PathBuf;

use clap::Args;

use crate::admin::Protection;

/// Heading of these flags in `--help`.
pub(super) const ADMIN: &str = "Admin listener";

/// Flags of the admin listener.
#[derive(Args, Debug)]
#[command(next_help_heading = ADMIN)]
#[expect(
    clippy::struct_field_names,
    reason = "the fields have the names of the flags"
)]
pub(super) struct AdminFlags {
    /// Certificate (PEM) of the admin listener, which then uses TLS. It is reloaded when it
    /// changes.
    #[arg(long, requires = "admin_tls_key", value_name = "FILE")]
    admin_tls_cert: Option<PathBuf>,
    /// Private key of that certificate (PEM).
    #[arg(long, requires = "admin_tls_cert", value_name = "FILE")]
    admin_tls_key: Option<PathBuf>,
    /// File with a bearer token that the admin listener requires, except for /livez, /readyz and
    /// /healthz. It is reloaded when it changes.
    #[arg(long, value_name = "FILE")]
    admin_token_file: Option<PathBuf>,
}

impl AdminFlags {
    /// Returns the protection that the flags describe.
    pub(super) fn protection(self) -> Protection {
        Protection {
            certificate: self.admin_tls_cert.zip(self.admin_tls_key),
            token_file: self.admin_token_file,
        }
    }
}
