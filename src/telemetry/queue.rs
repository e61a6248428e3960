//! A log that a thread of its own writes. Whoever reads it may stop reading: a pipe or a disk that takes
//! nothing must not stop the proxy.
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use crate::metric::{Counter, Declaration, Metric};

/// All metrics of this module.
pub const METRICS: &[Declaration] = &[DROPPED.declaration()];

const DROPPED: Metric<Counter> = Metric::new(
    "watershed_log_lines_dropped_total",
    &[],
    "Lines of the log that were dropped, because those before them were not read or the write failed.",
);

/// Bytes of lines that may wait: some thousand lines.
const CAPACITY: usize = 1 << 20;
/// Longest wait for the last lines at the end of the process.
const LAST_LINES: Duration = Duration::from_secs(1);
/// Pause between two looks at what is left of them.
const LOOK: Duration = Duration::from_millis(2);

/// Takes lines for the log. Never blocks: lines that do not fit into the queue are dropped.
#[derive(Clone)]
pub(super) struct LogQueue {
    lines: Sender<Vec<u8>>,
    /// Bytes of lines that are not written yet.
    waiting: Arc<AtomicUsize>,
}

/// Waits for the last lines when it is dropped, for at most a second.
pub struct LastLines(Arc<AtomicUsize>);

impl LogQueue {
    /// Starts the thread that writes to `log`.
    pub(super) fn start(log: impl Write + Send + 'static) -> io::Result<(Self, LastLines)> {
        let (lines, received) = channel();
        let waiting = Arc::<AtomicUsize>::default();
        let last = LastLines(Arc::clone(&waiting));
        let writing = Arc::clone(&waiting);
        thread::Builder::new()
            .name("log".to_owned())
            .spawn(move || write_all(&received, log, &writing))?;
        Ok((Self { lines, waiting }, last))
    }

    /// Waits until all lines are written, at most for this time. Blocks.
    pub(super) fn wait(&self, at_most: Duration) {
        wait_until_written(&self.waiting, at_most);
    }
}

impl Write for LogQueue {
    /// Queues a whole line. The subscriber gives each at once.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let before = self.waiting.fetch_add(line.len(), Ordering::Relaxed);
        let is_queued = before + line.len() <= CAPACITY && self.lines.send(line.to_vec()).is_ok();
        if !is_queued {
            self.waiting.fetch_sub(line.len(), Ordering::Relaxed);
            DROPPED.with([]).increment(1);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for LastLines {
    fn drop(&mut self) {
        wait_until_written(&self.0, LAST_LINES);
    }
}

/// Waits until all bytes that are waiting are written, at most for this time. Blocks.
fn wait_until_written(waiting: &AtomicUsize, at_most: Duration) {
    let until = Instant::now() + at_most;
    while waiting.load(Ordering::Relaxed) > 0 && Instant::now() < until {
        thread::sleep(LOOK);
    }
}

/// Writes lines for as long as there may be more.
fn write_all(lines: &Receiver<Vec<u8>>, mut log: impl Write, waiting: &AtomicUsize) {
    for line in lines {
        // The process goes on without a log.
        if log.write_all(&line).is_err() {
            DROPPED.with([]).increment(1);
        }
        waiting.fetch_sub(line.len(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{SyncSender, sync_channel};

    use super::*;

    /// A log whose reader takes one write at a time.
    struct Pipe(SyncSender<Vec<u8>>);

    impl Write for Pipe {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let sent = self.0.send(bytes.to_vec());
            sent.map(|()| bytes.len())
                .map_err(|_| io::ErrorKind::BrokenPipe.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_log_that_nobody_reads_stops_nobody() {
        let (pipe, reader) = sync_channel(0);
        let (mut queue, last) = LogQueue::start(Pipe(pipe)).unwrap();
        let line = vec![b'x'; 1000];
        let lines = 2 * CAPACITY / line.len();
        for _ in 0..lines {
            queue.write_all(&line).unwrap();
        }
        let queued = queue.waiting.load(Ordering::Relaxed) / line.len();
        assert_eq!(queued, CAPACITY / line.len());

        // Somebody reads again: what waited comes, and then what is new.
        for _ in 0..queued {
            assert_eq!(reader.recv().unwrap(), line);
        }
        queue.write_all(b"again\n").unwrap();
        assert_eq!(reader.recv().unwrap(), b"again\n");
        drop(last);
    }

    #[test]
    fn the_last_lines_are_waited_for() {
        let (pipe, reader) = sync_channel(0);
        let (mut queue, last) = LogQueue::start(Pipe(pipe)).unwrap();
        queue.write_all(b"the end\n").unwrap();
        let reading = thread::spawn(move || {
            thread::sleep(Duration::from_millis(50));
            reader.recv()
        });
        drop(last);
        assert_eq!(queue.waiting.load(Ordering::Relaxed), 0);
        assert_eq!(reading.join().unwrap().unwrap(), b"the end\n");
    }
}
