//! Something made of files that are read again and again.

use std::path::PathBuf;

use super::error::TlsError;

/// Something made of files, as of when they were last usable.
pub(crate) struct Reloaded<T> {
    files: Vec<PathBuf>,
    /// The contents at the last look, or why there were none: each change is tried and logged once.
    seen: Result<Vec<Vec<u8>>, String>,
    pub(crate) current: T,
}

/// The outcome of a look at files.
pub(crate) enum Refresh {
    /// They are as before.
    Unchanged,
    /// Their new content is taken over.
    TakenOver,
    /// They cannot be used, so what they held before is kept.
    Kept(TlsError),
}

impl<T> Reloaded<T> {
    /// Reads the files, and makes something of their contents, which are in the files' order.
    pub(crate) fn new(
        files: Vec<PathBuf>,
        make: impl FnOnce(&[Vec<u8>]) -> Result<T, TlsError>,
    ) -> Result<Self, TlsError> {
        let contents = read(&files)?;
        Ok(Self {
            current: make(&contents)?,
            files,
            seen: Ok(contents),
        })
    }

    /// Reads the files again, and makes something of them if they have changed.
    pub(crate) fn refresh(
        &mut self,
        make: impl FnOnce(&[Vec<u8>]) -> Result<T, TlsError>,
    ) -> Refresh {
        let contents = match read(&self.files) {
            Ok(contents) if self.seen.as_ref() == Ok(&contents) => return Refresh::Unchanged,
            Ok(contents) => contents,
            Err(error) => {
                let reason = Err(error.to_string());
                if self.seen == reason {
                    return Refresh::Unchanged;
                }
                self.seen = reason;
                return Refresh::Kept(error);
            }
        };
        let made = make(&contents);
        self.seen = Ok(contents);
        match made {
            Ok(made) => {
                self.current = made;
                Refresh::TakenOver
            }
            Err(error) => Refresh::Kept(error),
        }
    }
}

impl Refresh {
    pub(crate) fn is_taken_over(&self) -> bool {
        matches!(self, Self::TakenOver)
    }

    /// Logs the outcome for what the files hold.
    pub(crate) fn log(&self, what: &str) {
        match self {
            Self::Unchanged => {}
            Self::TakenOver => tracing::info!("{what} reloaded"),
            Self::Kept(error) => {
                tracing::warn!(%error, "cannot reload the {what}; keeping what was there before");
            }
        }
    }
}

fn read(files: &[PathBuf]) -> Result<Vec<Vec<u8>>, TlsError> {
    let read_one = |path: &PathBuf| {
        std::fs::read(path).map_err(|source| TlsError::Read {
            path: path.clone(),
            source,
        })
    };
    files.iter().map(read_one).collect()
}
