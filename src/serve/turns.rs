//! One question at a time, whose answer counts for everybody who was waiting when it was asked.
use std::sync::Arc;

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::watch;

/// Lets callers share questions. An answer is given only to callers that came before its question
/// was asked: the answer to a question that is under way may be from before the caller came.
pub(super) struct Turns<T> {
    state: Mutex<State<T>>,
}

/// The next question, as the first who waits for it asks it, and where its answer will appear. It
/// may hold that caller's credentials: those of one who has left are not used for others.
struct Next<T> {
    ask: Box<dyn FnOnce() -> BoxFuture<'static, T> + Send>,
    answer: watch::Sender<Option<T>>,
}

struct State<T> {
    asking: bool,
    /// There are callers for whom no question was asked yet.
    next: Option<Next<T>>,
}

impl<T> Default for Turns<T> {
    fn default() -> Self {
        Self {
            state: Mutex::new(State {
                asking: false,
                next: None,
            }),
        }
    }
}

impl<T: Clone + Send + Sync + 'static> Turns<T> {
    /// The answer to a question that is asked after this call. The question is asked in a task of
    /// its own: it goes on if the caller goes away, as others may wait for it. `None` if it failed.
    pub(super) async fn next<F, A>(self: &Arc<Self>, ask: F) -> Option<T>
    where
        F: FnOnce() -> A + Send + 'static,
        A: Future<Output = T> + Send + 'static,
    {
        let mut answer = {
            let mut state = self.state.lock();
            let next = state.next.get_or_insert_with(|| Next {
                ask: Box::new(|| Box::pin(ask())),
                answer: watch::Sender::new(None),
            });
            let answer = next.answer.subscribe();
            if !std::mem::replace(&mut state.asking, true) {
                tokio::spawn(Arc::clone(self).ask());
            }
            answer
        };
        let answer = answer.wait_for(Option::is_some).await.ok()?;
        (*answer).clone()
    }

    async fn ask(self: Arc<Self>) {
        let asking = Asking(&self);
        // Taken before the question is asked: who comes later waits for the next one.
        while let Some(Next { ask, answer }) = asking.begin() {
            answer.send_replace(Some(ask().await));
        }
    }
}

/// Leaves the turns in order, however the task ends.
struct Asking<'a, T>(&'a Turns<T>);

impl<T> Asking<'_, T> {
    fn begin(&self) -> Option<Next<T>> {
        let mut state = self.0.state.lock();
        let next = state.next.take();
        state.asking = next.is_some();
        next
    }
}

impl<T> Drop for Asking<'_, T> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        // Only if a question failed: whoever waits is told by the end of their place.
        if std::thread::panicking() {
            *state = State {
                asking: false,
                next: None,
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::Semaphore;

    use super::*;

    #[tokio::test]
    async fn an_answer_is_for_those_who_came_before_its_question() {
        let turns = Arc::new(Turns::default());
        let (asked, may_answer) = (Arc::new(AtomicUsize::new(0)), Arc::new(Semaphore::new(0)));
        let come = || {
            let (turns, asked, may_answer) = (turns.clone(), asked.clone(), may_answer.clone());
            tokio::spawn(async move {
                turns
                    .next(move || {
                        let question = asked.fetch_add(1, Ordering::Relaxed) + 1;
                        let may_answer = may_answer.clone();
                        async move {
                            may_answer.acquire().await.unwrap().forget();
                            question
                        }
                    })
                    .await
            })
        };
        let settle = || async {
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
        };
        let first = come();
        settle().await;
        assert_eq!(asked.load(Ordering::Relaxed), 1);
        let later: Vec<_> = (0..100).map(|_| come()).collect();
        settle().await;
        assert_eq!(asked.load(Ordering::Relaxed), 1, "one question at a time");
        // A caller that goes away takes nothing with it.
        first.abort();
        may_answer.add_permits(2);
        for caller in later {
            assert_eq!(caller.await.unwrap(), Some(2));
        }
        let after = come();
        may_answer.add_permits(1);
        assert_eq!(after.await.unwrap(), Some(3));
        assert_eq!(asked.load(Ordering::Relaxed), 3);
    }

    #[tokio::test]
    async fn a_question_that_fails_holds_nobody_up() {
        let turns = Arc::new(Turns::default());
        let failed = turns
            .next(|| async { if true { panic!("as planned") } else { 0 } })
            .await;
        assert_eq!(failed, None);
        assert_eq!(turns.next(|| async { 7 }).await, Some(7));
    }
}
