//! The events of a scope that is followed for what they say about grants.
use std::future::{pending, poll_fn};
use std::task::Poll;
use std::time::Duration;

use tokio::time::{sleep, timeout};

use crate::scope::{REOPEN_AFTER, Scope};
use crate::store::{
    Interest, StoreReader, Subscription, SubscriptionStart, SubscriptionStep, WindowEvent,
};

/// Time after which a resumed watch counts as followed. The changes that it missed arrive at once,
/// and must be taken in before.
const CATCH_UP: Duration = Duration::from_secs(1);
/// Events that are taken in before other tasks have their turn. Each may look at all open watches.
const EVENTS_PER_TURN: usize = 8;
/// Pause after a scope that stopped. It is not opened again before.
pub(super) const PAUSE: Duration = REOPEN_AFTER.saturating_add(Duration::from_secs(1));

/// Waits until a scope that stopped may be opened again, or is ready after all: one that was refused and
/// never ready is listed again before.
pub(super) async fn pause_after(scope: &Scope) {
    let _ = timeout(PAUSE, scope.wait_until_recovered()).await;
}

/// Subscribes to all events that change the followed state from now on.
pub(super) fn subscribe(reader: &StoreReader) -> Subscription {
    let (subscription, _) = reader.subscribe(SubscriptionStart::Followed, Interest::All);
    subscription
}

/// Takes in the events of a subscription until the scope is listed again or stops. `set_followed`
/// is told if all changes arrive, and perhaps told it again.
pub(super) async fn follow(
    scope: &Scope,
    mut subscription: Subscription,
    mut take: impl FnMut(&WindowEvent) + Send,
    set_followed: impl Fn(bool) + Send + Sync,
) {
    let mut following = scope.upstream.delivering();
    loop {
        let connected = *following.borrow_and_update();
        let settle = async {
            if connected {
                sleep(CATCH_UP).await;
            }
            set_followed(connected);
            pending::<()>().await;
        };
        tokio::select! {
            () = take_all(&mut subscription, &mut take) => return,
            changed = following.changed() => if changed.is_err() { return },
            () = settle => {}
        }
    }
}

/// Takes in events until the subscription ends. Cancel safe: no event is lost.
async fn take_all(subscription: &mut Subscription, take: &mut (impl FnMut(&WindowEvent) + Send)) {
    poll_fn(
        |context| match subscription.step(context, EVENTS_PER_TURN, usize::MAX) {
            SubscriptionStep::Events(events) => {
                for event in &events {
                    take(event);
                }
                context.waker().wake_by_ref();
                Poll::Pending
            }
            SubscriptionStep::CaughtUp(_) | SubscriptionStep::Unfinished => Poll::Pending,
            SubscriptionStep::Ended(_) => Poll::Ready(()),
        },
    )
    .await;
}
