//! The streams of all scopes: when one brings something again, another that is silent may, too.
use std::sync::Arc;

use tokio::sync::watch;

/// Tells the tasks of other scopes that a stream brings something again, and hears it from them.
pub(super) struct OtherStreams {
    all: Arc<watch::Sender<()>>,
    news: watch::Receiver<()>,
    /// The watch was opened again as other streams brought something, and has not been found silent
    /// since.
    has_reopened: bool,
}

impl OtherStreams {
    /// Joins the scopes that `all` tells.
    pub(super) fn new(all: &Arc<watch::Sender<()>>) -> Self {
        Self {
            news: all.subscribe(),
            all: Arc::clone(all),
            has_reopened: false,
        }
    }

    /// Tells all scopes that a stream brings something, this one included.
    pub(super) fn tell_all(&self) {
        self.all.send_replace(());
    }

    /// Tells the other scopes that this one's stream brings something.
    pub(super) fn tell_others(&mut self) {
        self.tell_all();
        self.forget();
    }

    /// Forgets what streams have brought so far.
    pub(super) fn forget(&mut self) {
        self.news.mark_unchanged();
    }

    /// Waits until a stream brings something. Cancelling a call loses nothing.
    pub(super) async fn changed(&mut self) {
        // The sender lives as long as this does.
        let _ = self.news.changed().await;
    }

    /// Returns `true` if the watch was opened again for others, and not found silent since.
    pub(super) fn has_reopened(&self) -> bool {
        self.has_reopened
    }

    /// Notes that the watch was opened again for others.
    pub(super) fn mark_reopened(&mut self) {
        self.has_reopened = true;
    }

    /// Notes that the watch was found silent, or to lack an event.
    pub(super) fn mark_silent(&mut self) {
        self.has_reopened = false;
    }
}
