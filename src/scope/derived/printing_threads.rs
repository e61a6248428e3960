//! Threads that print objects, limited for all scopes together.
use std::sync::Arc;
use std::thread::available_parallelism;

use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};

/// Threads that print at a time, at most.
const MAX_THREADS: usize = 4;

/// Permits to print objects on a thread of their own. All derived scopes begin at once when the
/// process starts. Cheap to clone.
#[derive(Clone, Debug)]
pub(in crate::scope) struct PrintingThreads {
    permits: Arc<Semaphore>,
    count: usize,
}

impl PrintingThreads {
    /// Allows as many threads as the process has processors, but few.
    pub(in crate::scope) fn of_process() -> Self {
        let processors = available_parallelism().map_or(1, usize::from);
        Self::new(processors.min(MAX_THREADS))
    }

    pub(super) fn new(count: usize) -> Self {
        Self {
            permits: Arc::new(Semaphore::new(count)),
            count,
        }
    }

    /// Returns the number of threads.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Waits for a thread. Those who came first get it first.
    pub(super) async fn acquire(&self) -> Result<OwnedSemaphorePermit, AcquireError> {
        Arc::clone(&self.permits).acquire_owned().await
    }
}
