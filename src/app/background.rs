//! The tasks that run beside the listener for as long as the proxy does.
use std::collections::HashMap;
use std::future::pending;

use tokio::task::{Id, JoinSet};

/// The tasks, which end when this is dropped.
#[derive(Default)]
pub(super) struct BackgroundTasks {
    tasks: JoinSet<()>,
    names: HashMap<Id, &'static str>,
}

impl BackgroundTasks {
    /// Adds a task. It may end by itself, but must not panic.
    pub(super) fn spawn(
        &mut self,
        name: &'static str,
        task: impl Future<Output = ()> + Send + 'static,
    ) {
        let id = self.tasks.spawn(task).id();
        self.names.insert(id, name);
    }

    /// Waits until a task panics, and returns its name. Cancelling a call loses nothing.
    pub(super) async fn failed(&mut self) -> &'static str {
        while let Some(ended) = self.tasks.join_next().await {
            if let Err(error) = ended {
                return self.names.get(&error.id()).copied().unwrap_or("unknown");
            }
        }
        pending().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_task_that_panics_is_named_and_one_that_ends_is_not() {
        let mut tasks = BackgroundTasks::default();
        tasks.spawn("ends", async {});
        tasks.spawn("goes on", pending());
        tasks.spawn("panics", async {
            tokio::task::yield_now().await;
            panic!("planted");
        });
        assert_eq!(tasks.failed().await, "panics");
    }
}
