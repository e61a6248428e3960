//! Turns of tasks that have much to send.
//!
//! A worker polls tasks in the order in which they became ready. If hundreds of them compressed and
//! encrypted a large answer at the same time, a small request would wait for all of them at each of
//! its steps. So only a few go on in each round of a worker, and the others are not ready.
use std::collections::{HashMap, VecDeque};
use std::pin::Pin;
use std::sync::LazyLock;
use std::task::{Context, Poll};

use parking_lot::{Mutex, MutexGuard};
use tokio::runtime::{Handle, Id};
use tokio::sync::oneshot;
use tokio::task::yield_now;

/// Turns that each worker's round has.
const TURNS_OF_WORKER: usize = 2;
/// Most turns that are given at once. All begin on one worker, from which the others take them.
const MAX_AT_ONCE: usize = 16;

/// The tasks that have much to send, by their runtime.
static SENDING: LazyLock<Mutex<HashMap<Id, SendingTasks>>> = LazyLock::new(Mutex::default);

/// The tasks of one runtime that have taken more than one turn and are not done.
#[derive(Default)]
struct SendingTasks {
    count: usize,
    /// Those that wait for their turn, the one that has waited for longest first.
    waiting: VecDeque<oneshot::Sender<()>>,
    /// A task gives turns to them.
    giver_runs: bool,
}

/// The turns of one task that has much to send.
#[derive(Debug)]
pub(super) struct Turns {
    /// `None` outside of a runtime.
    runtime: Option<Id>,
    next: NextTurn,
}

#[derive(Debug)]
enum NextTurn {
    /// It has come.
    Now,
    /// The others that are ready come first.
    AfterOthers,
    /// It comes with a message, or with the end of the channel.
    Given(oneshot::Receiver<()>),
}

impl Default for Turns {
    fn default() -> Self {
        let runtime = Handle::try_current().ok().map(|runtime| runtime.id());
        if let Some(runtime) = runtime {
            SENDING.lock().entry(runtime).or_default().count += 1;
        }
        Self {
            runtime,
            next: NextTurn::Now,
        }
    }
}

impl Turns {
    /// Ends the present turn. Where few tasks send much, the next one comes without a wait.
    pub(super) fn end(&mut self) {
        let given = self.runtime.and_then(given_turn);
        self.next = given.map_or(NextTurn::AfterOthers, NextTurn::Given);
    }

    /// Polls for the next turn.
    pub(super) fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let poll = match &mut self.next {
            NextTurn::Now => return Poll::Ready(()),
            NextTurn::AfterOthers => {
                context.waker().wake_by_ref();
                Poll::Pending
            }
            NextTurn::Given(turn) => match Pin::new(turn).poll(context) {
                Poll::Ready(_) => Poll::Ready(()),
                Poll::Pending => return Poll::Pending,
            },
        };
        self.next = NextTurn::Now;
        poll
    }
}

impl Drop for Turns {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime {
            let mut runtimes = SENDING.lock();
            if let Some(sending) = runtimes.get_mut(&runtime) {
                sending.count -= 1;
            }
            forget_done(&mut runtimes, runtime);
        }
    }
}

/// Returns the next turn of a task of this runtime; `None` if so few have much to send that nobody
/// waits for them. Turns come in the order of these calls.
fn given_turn(id: Id) -> Option<oneshot::Receiver<()>> {
    let runtime = Handle::try_current()
        .ok()
        .filter(|runtime| runtime.id() == id)?;
    let at_a_time = TURNS_OF_WORKER * runtime.metrics().num_workers();
    let mut runtimes = SENDING.lock();
    let sending = runtimes.get_mut(&id)?;
    if sending.count <= at_a_time {
        return None;
    }
    let (task, turn) = oneshot::channel();
    sending.waiting.push_back(task);
    let gives = std::mem::replace(&mut sending.giver_runs, true);
    drop(runtimes);
    if !gives {
        let giver = TurnGiver {
            runtime: id,
            is_needed: true,
        };
        runtime.spawn(give_turns(giver, at_a_time.min(MAX_AT_ONCE)));
    }
    Some(turn)
}

/// Gives turns as long as tasks wait for them, `at_a_time` in each round.
async fn give_turns(mut giver: TurnGiver, at_a_time: usize) {
    loop {
        let mut given = 0;
        while given < at_a_time {
            let Some(task) = giver.next() else {
                return;
            };
            // Those whose client has gone need no turn.
            given += usize::from(task.send(()).is_ok());
        }
        yield_now().await;
    }
}

/// The task that gives turns to the others of a runtime.
struct TurnGiver {
    runtime: Id,
    /// Tasks may be waiting for it.
    is_needed: bool,
}

impl TurnGiver {
    /// Returns the task whose turn it is. If there is none, the giver is not needed any more.
    fn next(&mut self) -> Option<oneshot::Sender<()>> {
        let mut runtimes = SENDING.lock();
        let sending = runtimes.get_mut(&self.runtime);
        let next = sending.and_then(|sending| {
            let next = sending.waiting.pop_front();
            sending.giver_runs = next.is_some();
            next
        });
        self.is_needed = next.is_some();
        next
    }
}

impl Drop for TurnGiver {
    /// Lets all go on that wait. There are some if the runtime ends.
    fn drop(&mut self) {
        let mut runtimes = SENDING.lock();
        let mut waiting = VecDeque::new();
        if let Some(sending) = runtimes.get_mut(&self.runtime)
            && self.is_needed
        {
            sending.giver_runs = false;
            waiting = std::mem::take(&mut sending.waiting);
        }
        forget_done(&mut runtimes, self.runtime);
        // Wakes them, which may need the lock.
        drop(runtimes);
        drop(waiting);
    }
}

/// Forgets a runtime in which no task has much to send.
fn forget_done(runtimes: &mut MutexGuard<'_, HashMap<Id, SendingTasks>>, runtime: Id) {
    let is_done = |sending: &SendingTasks| {
        sending.count == 0 && sending.waiting.is_empty() && !sending.giver_runs
    };
    if runtimes.get(&runtime).is_some_and(is_done) {
        runtimes.remove(&runtime);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Sends for so many turns, and counts those that it has had.
    async fn send(turns: usize, had: Arc<AtomicUsize>) {
        let mut all = Turns::default();
        for _ in 0..turns {
            all.end();
            std::future::poll_fn(|context| all.poll_next(context)).await;
            had.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[tokio::test]
    async fn few_tasks_go_on_before_others_have_their_turn() {
        let had = Arc::new(AtomicUsize::new(0));
        let tasks: Vec<_> = (0..100)
            .map(|_| tokio::spawn(send(20, had.clone())))
            .collect();
        // All of them have begun.
        yield_now().await;
        let mut before = had.load(Ordering::Relaxed);
        while before < 1_000 {
            yield_now().await;
            let now = had.load(Ordering::Relaxed);
            // A round that had begun, and one that has since.
            assert!(now - before <= 2 * TURNS_OF_WORKER, "{before} to {now}");
            before = now;
        }
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(had.load(Ordering::Relaxed), 2_000);
    }

    #[test]
    fn turns_come_when_the_runtime_ends() {
        let ended = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        let mut tasks: Vec<_> = {
            let _inside = ended.enter();
            (0..4).map(|_| Turns::default()).collect()
        };
        {
            let _inside = ended.enter();
            tasks.iter_mut().for_each(Turns::end);
        }
        drop(ended);
        let mut context = Context::from_waker(std::task::Waker::noop());
        for task in &mut tasks {
            assert!(matches!(task.next, NextTurn::Given(_)));
            assert!(task.poll_next(&mut context).is_ready());
        }
        let id = tasks[0].runtime.unwrap();
        drop(tasks);
        assert!(!SENDING.lock().contains_key(&id), "it is forgotten");
    }
}
