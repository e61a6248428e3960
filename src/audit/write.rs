//! The file: a thread of its own, as writing may wait for a disk.
use std::io::{self, Write as _};
use std::path::Path;

use jiff::Timestamp;

use super::error::AuditError;
use super::queue::{Next, Outlet, Queue, queue};
use super::rotate::Rotated;
use super::{AuditLogConfig, LOG_BUFFER};

/// Lines are written together up to about this many bytes.
const BLOCK: usize = 64 * 1024;

enum Output {
    Stdout,
    File(Rotated),
}

/// Opens the file and starts the thread. It ends with the queue.
pub(super) fn start(config: AuditLogConfig) -> Result<Queue, AuditError> {
    let path = config.path.clone();
    let failed = |source| AuditError::Log { path, source };
    let output = if config.path == Path::new("-") {
        Ok(Output::Stdout)
    } else {
        Rotated::open(config, Timestamp::now()).map(Output::File)
    };
    let started = output.and_then(|output| {
        let (queue, outlet) = queue("log", LOG_BUFFER);
        std::thread::Builder::new()
            .name("audit-log".to_owned())
            .spawn(move || run(outlet, output))?;
        Ok(queue)
    });
    started.map_err(failed)
}

/// Whether the file can be written, or made. It is not.
pub(super) fn check(path: &Path) -> Result<(), AuditError> {
    if path == Path::new("-") {
        return Ok(());
    }
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    let opened = if path.exists() {
        std::fs::OpenOptions::new()
            .append(true)
            .open(path)
            .map(drop)
    } else if folder.exists() {
        tempfile::tempfile_in(folder).map(drop)
    } else {
        // It is made with the file.
        Ok(())
    };
    opened.map_err(|source| AuditError::Log {
        path: path.to_owned(),
        source,
    })
}

fn run(mut outlet: Outlet, mut output: Output) {
    let mut block = Vec::with_capacity(BLOCK);
    loop {
        let mut next = Some(outlet.blocking_next());
        let mut flushed = Vec::new();
        let mut lines = 0;
        while let Some(message) = next {
            match message {
                Next::Event(line) => {
                    if lines > 0
                        && (block.len() + line.len() > BLOCK
                            || !output.has_room(block.len() + line.len()))
                    {
                        write(&mut output, &mut block, &mut lines, &outlet);
                    }
                    block.extend_from_slice(&line);
                    lines += 1;
                }
                Next::Flush(told) => flushed.push(told),
                Next::End => {
                    write(&mut output, &mut block, &mut lines, &outlet);
                    return;
                }
            }
            next = outlet.ready();
        }
        write(&mut output, &mut block, &mut lines, &outlet);
        for told in flushed {
            // Whoever asked may have stopped waiting.
            let _ = told.send(());
        }
    }
}

fn write(output: &mut Output, block: &mut Vec<u8>, lines: &mut usize, outlet: &Outlet) {
    if *lines > 0
        && let Err(error) = output.append(block)
    {
        outlet.losses.count(*lines, &error);
    }
    block.clear();
    // One long line is no reason to keep its room.
    block.shrink_to(BLOCK);
    *lines = 0;
}

impl Output {
    fn has_room(&self, bytes: usize) -> bool {
        match self {
            Self::Stdout => true,
            Self::File(file) => bytes as u64 <= file.room(),
        }
    }

    fn append(&mut self, block: &[u8]) -> io::Result<()> {
        match self {
            Self::Stdout => {
                let mut stdout = io::stdout().lock();
                stdout.write_all(block).and_then(|()| stdout.flush())
            }
            Self::File(file) => file.append(block, Timestamp::now()),
        }
    }
}
