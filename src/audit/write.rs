//! The file sink. It has a thread of its own, because writing may wait for a disk.
use std::io::{self, Write as _};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use bytes::Bytes;
use jiff::Timestamp;

use super::config::AuditLogConfig;
use super::error::AuditError;
use super::queue::{EventQueue, QueueMessage, QueueOutlet, queue};
use super::rotate::{RotatedFile, folder};

/// Limit of the events that wait for the file. Source: kube-apiserver's default for both of its
/// sinks (apiserver/pkg/server/options/audit.go).
const BUFFER_SIZE: usize = 10_000;
/// Lines are written in blocks of up to about this many bytes.
const BLOCK: usize = 64 * 1024;

/// Opens the file and starts the thread. The thread ends with the queue.
pub(super) fn start(config: AuditLogConfig) -> Result<EventQueue, AuditError> {
    let path = config.path.clone();
    start_thread(config).map_err(|source| AuditError::Log { path, source })
}

/// Checks that the file can be written or created, without creating it.
pub(super) fn check(path: &Path) -> Result<(), AuditError> {
    if is_stdout(path) {
        return Ok(());
    }
    let folder = folder(path);
    let opened = if path.exists() {
        // Opened for reading, too, as it is for writing events: a pipe may have no reader.
        std::fs::OpenOptions::new()
            .read(true)
            .append(true)
            .open(path)
            .map(drop)
    } else if folder.exists() {
        tempfile::tempfile_in(folder).map(drop)
    } else {
        // The folder is created with the file.
        Ok(())
    };
    opened.map_err(|source| AuditError::Log {
        path: path.to_owned(),
        source,
    })
}

fn start_thread(config: AuditLogConfig) -> io::Result<EventQueue> {
    let output = if is_stdout(&config.path) {
        LogOutput::Stdout
    } else {
        LogOutput::File(RotatedFile::open(config, Timestamp::now())?)
    };
    let (queue, outlet) = queue("log", BUFFER_SIZE);
    let mut writer = BlockWriter {
        output,
        outlet,
        block: Vec::with_capacity(BLOCK),
        lines: 0,
    };
    std::thread::Builder::new()
        .name("audit-log".to_owned())
        .spawn(move || writer.run_on())?;
    Ok(queue)
}

fn is_stdout(path: &Path) -> bool {
    path == Path::new("-")
}

struct BlockWriter {
    output: LogOutput,
    outlet: QueueOutlet,
    /// The lines that are written next.
    block: Vec<u8>,
    /// The number of these lines.
    lines: usize,
}

impl BlockWriter {
    /// Runs until the queue ends, even if a block cannot be written without a panic.
    fn run_on(&mut self) {
        while catch_unwind(AssertUnwindSafe(|| self.run())).is_err() {
            self.outlet
                .losses
                .count(self.lines, &"writing them panicked");
            self.clear();
        }
    }

    fn run(&mut self) {
        while let Some(message) = self.outlet.blocking_next() {
            let mut flushed = Vec::new();
            let mut next = Some(message);
            while let Some(message) = next {
                match message {
                    QueueMessage::Event(line) => self.add(&line),
                    QueueMessage::Flush(sender) => flushed.push(sender),
                }
                next = self.outlet.ready();
            }
            self.write();
            for sender in flushed {
                // The receiver is gone if it has stopped waiting.
                let _ = sender.send(());
            }
        }
    }

    fn add(&mut self, line: &Bytes) {
        let size = self.block.len() + line.len();
        if self.lines > 0 && (size > BLOCK || !self.output.fits(size)) {
            self.write();
        }
        self.block.extend_from_slice(line);
        self.lines += 1;
    }

    fn write(&mut self) {
        if self.lines > 0
            && let Err(error) = self.output.append(&self.block)
        {
            self.outlet.losses.count(self.lines, &error);
        }
        self.clear();
    }

    fn clear(&mut self) {
        self.block.clear();
        // A long line must not keep its memory allocated.
        self.block.shrink_to(BLOCK);
        self.lines = 0;
    }
}

enum LogOutput {
    Stdout,
    File(RotatedFile),
}

impl LogOutput {
    fn fits(&self, bytes: usize) -> bool {
        match self {
            Self::Stdout => true,
            Self::File(file) => bytes as u64 <= file.bytes_left(),
        }
    }

    fn append(&mut self, block: &[u8]) -> io::Result<()> {
        match self {
            Self::Stdout => {
                let mut stdout = io::stdout().lock();
                stdout.write_all(block)?;
                stdout.flush()
            }
            Self::File(file) => file.append(block, Timestamp::now()),
        }
    }
}
