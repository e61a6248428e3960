//! Kubeconfigs: a named file, or the files of `$KUBECONFIG`, which are merged as kubectl does.

use std::io;
use std::path::{Path, PathBuf};

use kube_client::config::{Kubeconfig, KubeconfigError};

use super::error::one_line;

/// Reason why no kubeconfig can be read.
#[derive(Debug, thiserror::Error)]
pub enum KubeconfigReadError {
    /// None of the files exists.
    #[error("there is no kubeconfig at {tried}")]
    Missing {
        /// The paths that were tried.
        tried: String,
    },
    /// A file cannot be read, is invalid, or does not fit the ones before it.
    #[error("{path}: {reason}")]
    Unusable {
        /// The path of the file.
        path: String,
        /// The reason.
        reason: String,
    },
}

/// Reads a kubeconfig.
///
/// Without a path it merges the files of `$KUBECONFIG`, or reads `~/.kube/config`. Files that do not
/// exist are left out, and the first file that has a value wins. Paths in the result are absolute.
///
/// # Errors
///
/// The named file or all files are missing, or one is invalid.
pub fn read_kubeconfig(path: Option<&Path>) -> Result<Kubeconfig, KubeconfigReadError> {
    match path {
        Some(path) => read_file(path).map_err(|error| unusable(path, &error)),
        None => merged(&kubeconfig_paths(None)),
    }
}

/// Returns the paths of the kubeconfigs, which are merged in this order.
pub(super) fn kubeconfig_paths(named: Option<&Path>) -> Vec<PathBuf> {
    if let Some(path) = named {
        return vec![path.to_owned()];
    }
    let listed = std::env::var_os("KUBECONFIG").unwrap_or_default();
    let mut paths: Vec<_> = std::env::split_paths(&listed)
        .filter(|path| !path.as_os_str().is_empty())
        .collect();
    if paths.is_empty() {
        let home = std::env::home_dir().unwrap_or_default();
        paths.push(home.join(".kube").join("config"));
    }
    paths
}

fn merged(paths: &[PathBuf]) -> Result<Kubeconfig, KubeconfigReadError> {
    let mut merged: Option<Kubeconfig> = None;
    for path in paths {
        let next = match read_file(path) {
            Err(error) if is_missing(&error) => continue,
            read => read,
        };
        let joined = next.and_then(|next| match merged.take() {
            Some(first) => first.merge(next),
            None => Ok(next),
        });
        merged = Some(joined.map_err(|error| unusable(path, &error))?);
    }
    merged.ok_or_else(|| KubeconfigReadError::Missing {
        tried: listing(paths),
    })
}

/// Returns the paths as a text.
pub(super) fn listing(paths: &[PathBuf]) -> String {
    let paths: Vec<_> = paths
        .iter()
        .map(|path| path.display().to_string())
        .collect();
    paths.join(", ")
}

fn read_file(path: &Path) -> Result<Kubeconfig, KubeconfigError> {
    // Relative paths in the file belong to its folder, wherever the result is written.
    let path = std::path::absolute(path)
        .map_err(|error| KubeconfigError::ReadConfig(error, path.to_owned()))?;
    Kubeconfig::read_from(path)
}

fn is_missing(error: &KubeconfigError) -> bool {
    matches!(
        error,
        KubeconfigError::ReadConfig(cause, _) if cause.kind() == io::ErrorKind::NotFound
    )
}

fn unusable(path: &Path, error: &KubeconfigError) -> KubeconfigReadError {
    KubeconfigReadError::Unusable {
        path: path.display().to_string(),
        reason: match error {
            // It would name the path again.
            KubeconfigError::ReadConfig(cause, _) => one_line(cause),
            error => one_line(error),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(folder: &Path, name: &str, text: &str) -> PathBuf {
        let path = folder.join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    #[test]
    fn missing_files_are_left_out_and_the_first_value_wins() {
        let folder = tempfile::tempdir().unwrap();
        let text = "current-context: CONTEXT\nusers: [{name: u, user: {token: CONTEXT}}]\n";
        let [one, two] =
            ["one", "two"].map(|name| write(folder.path(), name, &text.replace("CONTEXT", name)));
        let missing = folder.path().join("missing");
        let config = merged(&[missing.clone(), one, missing.clone(), two]).unwrap();
        assert_eq!(config.current_context.as_deref(), Some("one"));
        assert_eq!(config.auth_infos.len(), 1);

        let error = merged(std::slice::from_ref(&missing)).unwrap_err();
        let wanted = format!("there is no kubeconfig at {}", missing.display());
        assert_eq!(error.to_string(), wanted);
        let error = read_kubeconfig(Some(&missing)).unwrap_err().to_string();
        assert!(
            error.starts_with(&format!("{}: No such file", missing.display())),
            "{error}"
        );
    }

    #[test]
    fn files_that_are_invalid_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let good = write(folder.path(), "good", "kind: Config\n");
        for text in ["clusters: 5\n", "kind: Other\n"] {
            let bad = write(folder.path(), "bad", text);
            let error = merged(&[good.clone(), bad]).unwrap_err().to_string();
            assert!(error.contains("bad: ") && !error.contains('\n'), "{error}");
        }
    }

    #[test]
    fn paths_in_a_relative_file_become_absolute() {
        let folder = tempfile::tempdir().unwrap();
        let key = write(folder.path(), "a.key", "");
        let user = "users: [{name: u, user: {client-key: a.key}}]\n";
        let path = write(folder.path(), "config", user);
        let here = std::env::current_dir().unwrap();
        let root: PathBuf = here.components().skip(1).map(|_| "..").collect();
        let relative = root.join(path.strip_prefix("/").unwrap());
        let config = read_kubeconfig(Some(&relative)).unwrap();
        let user = config.auth_infos[0].auth_info.as_ref().unwrap();
        let found = PathBuf::from(user.client_key.clone().unwrap());
        assert!(found.is_absolute());
        assert_eq!(found.canonicalize().unwrap(), key.canonicalize().unwrap());
    }
}
