//! A Unix socket to listen on. The mode of its file decides who may connect.

use std::fs::Permissions;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::SocketAddr;
use std::path::{Path, PathBuf};

use tokio::net::{UnixListener, UnixStream};

/// The file of a socket; removed with this value.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    /// Device and inode: a successor process may have replaced the file.
    file: (u64, u64),
}

/// Listens on a socket whose file has this mode from the first moment.
///
/// The socket of an ended process is replaced. A socket in use, or any other file, is an error.
pub async fn bind(path: &Path, mode: u32) -> io::Result<(UnixListener, SocketFile)> {
    free(path).await?;
    SocketAddr::from_pathname(path)?;
    let beside = beside(path);
    let _ = std::fs::remove_file(&beside);
    let listener = UnixListener::bind(&beside)?;
    let found = std::fs::symlink_metadata(&beside)?;
    let mut file = SocketFile {
        path: beside,
        file: (found.dev(), found.ino()),
    };
    // Bound under a temporary name: clients see the file only once its mode is set.
    std::fs::set_permissions(&file.path, Permissions::from_mode(mode))?;
    std::fs::rename(&file.path, path)?;
    path.clone_into(&mut file.path);
    Ok((listener, file))
}

/// Checks that [`bind`] would succeed. Changes nothing.
pub async fn can_bind(path: &Path) -> io::Result<()> {
    free(path).await?;
    for name in [path, &beside(path)] {
        SocketAddr::from_pathname(name)?;
    }
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    tempfile::tempfile_in(folder).map(drop)
}

/// Returns the temporary name of a socket, in the same folder. It has the same length in every process, so
/// that [`bind`] and [`can_bind`] agree with the kernel's limit.
fn beside(path: &Path) -> PathBuf {
    path.with_file_name(format!(".{:06x}", std::process::id()))
}

/// Checks that the path is free, or holds the socket of an ended process.
async fn free(path: &Path) -> io::Result<()> {
    match std::fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => Err(io::Error::new(
            io::ErrorKind::AlreadyExists,
            "the file exists and is not a socket",
        )),
        Ok(_) => match UnixStream::connect(path)
            .await
            .map_err(|it| (it.kind(), it))
        {
            // The process has ended, or its file has just been removed.
            Err((io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound, _)) => Ok(()),
            // It may be too busy to take a connection.
            Ok(_) | Err((io::ErrorKind::WouldBlock, _)) => Err(io::Error::new(
                io::ErrorKind::AddrInUse,
                "another process listens on it",
            )),
            Err((_, error)) => Err(error),
        },
        Err(_) => Ok(()),
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let found = std::fs::symlink_metadata(&self.path);
        if found.is_ok_and(|found| (found.dev(), found.ino()) == self.file) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_socket_file_has_its_mode_and_is_removed_with_the_listener() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("api.sock");
        let (listener, file) = bind(&path, 0o640).await.unwrap();
        assert_eq!(
            std::fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o640
        );
        UnixStream::connect(&path).await.unwrap();
        let error = bind(&path, 0o600).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        drop(listener);
        // The socket of an ended process is replaced.
        let (second, second_file) = bind(&path, 0o600).await.unwrap();
        // The old guard does not remove the file of its successor.
        drop(file);
        UnixStream::connect(&path).await.unwrap();
        drop((second, second_file));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[tokio::test]
    async fn the_check_knows_which_paths_are_too_long() {
        let folder = tempfile::tempdir().unwrap();
        let mut outcomes = Vec::new();
        for length in 0..110 {
            let path = folder.path().join("x".repeat(1 + length));
            let may_bind = can_bind(&path).await.is_ok();
            assert_eq!(bind(&path, 0o600).await.is_ok(), may_bind, "{length}");
            outcomes.push(may_bind);
        }
        outcomes.dedup();
        assert_eq!(outcomes, [true, false]);
    }

    #[tokio::test]
    async fn the_socket_of_a_busy_process_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("api.sock");
        let socket = tokio::net::UnixSocket::new_stream().unwrap();
        socket.bind(&path).unwrap();
        let _busy = socket.listen(1).unwrap();
        // It takes none of them, until no more fit into its backlog.
        let mut waiting = Vec::new();
        while let Ok(connection) = UnixStream::connect(&path).await {
            waiting.push(connection);
        }
        assert!(waiting.len() < 10);
        let error = bind(&path, 0o600).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
    }

    #[tokio::test]
    async fn other_files_are_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notes");
        std::fs::write(&path, "mine").unwrap();
        assert_eq!(
            bind(&path, 0o600).await.unwrap_err().kind(),
            io::ErrorKind::AlreadyExists
        );
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "mine");
    }
}
