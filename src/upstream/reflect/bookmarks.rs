//! Knowledge of upstream's bookmarks, from the streams of a type.

/// Streams in a row without a bookmark after which upstream is believed to send none of the type. It
/// has no watch caches then, or the type is that of another API server. Fewer would believe a load
/// balancer that takes watches and brings nothing.
const QUIET_STREAMS: u32 = 3;
/// The same once upstream has sent bookmarks of the type: a gateway that takes watches and brings nothing
/// is more likely than an API server that was started again without its watch caches.
const QUIET_STREAMS_AFTER_BOOKMARKS: u32 = 20;

/// Knowledge of upstream's bookmarks, from the streams of a type.
#[derive(Debug, Default)]
pub(super) struct BookmarkKnowledge {
    /// Upstream has sent one.
    have_come: bool,
    /// Streams in a row that fell silent before their first one.
    quiet_streams: u32,
    /// Streams in a row, up to the last one, that fell silent.
    silent_streams: u32,
    /// Their form was learned.
    is_form_known: bool,
}

impl BookmarkKnowledge {
    /// Returns `true` if upstream may send bookmarks: silence on a stream means that it is dead.
    pub(super) fn are_expected(&self) -> bool {
        let limit = if self.have_come {
            QUIET_STREAMS_AFTER_BOOKMARKS
        } else {
            QUIET_STREAMS
        };
        self.quiet_streams < limit
    }

    /// Returns `true` if upstream has sent bookmarks, and nothing shows that it does no longer.
    pub(super) fn are_sent(&self) -> bool {
        self.have_come && self.are_expected()
    }

    /// Returns `true` if the last stream fell silent.
    pub(super) fn has_fallen_silent(&self) -> bool {
        self.silent_streams > 0
    }

    /// Notes a bookmark.
    pub(super) fn one_came(&mut self) {
        self.have_come = true;
        self.quiet_streams = 0;
    }

    /// Notes that a stream fell silent, with or without a bookmark before.
    pub(super) fn stream_fell_silent(&mut self, had_bookmarks: bool) {
        self.silent_streams = self.silent_streams.saturating_add(1);
        if !had_bookmarks {
            self.quiet_streams = self.quiet_streams.saturating_add(1);
        }
    }

    /// Notes that a stream brought something or ended, or that the type was listed.
    pub(super) fn nothing_is_silent(&mut self) {
        self.silent_streams = 0;
    }

    /// Returns `true` if their form is to be learned from the next one.
    pub(super) fn is_form_due(&self) -> bool {
        !self.is_form_known
    }

    /// Notes that their form was learned.
    pub(super) fn form_learned(&mut self) {
        self.is_form_known = true;
    }

    /// Has their form learned again from the next one.
    pub(super) fn forget_form(&mut self) {
        self.is_form_known = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_type_is_believed_to_have_no_bookmarks_after_some_quiet_streams() {
        let mut bookmarks = BookmarkKnowledge::default();
        for _ in 1..QUIET_STREAMS {
            bookmarks.stream_fell_silent(false);
            assert!(bookmarks.are_expected() && !bookmarks.are_sent());
        }
        bookmarks.stream_fell_silent(false);
        assert!(!bookmarks.are_expected());
        // One proves the contrary, and is believed for longer.
        bookmarks.one_came();
        for _ in 1..QUIET_STREAMS_AFTER_BOOKMARKS {
            bookmarks.stream_fell_silent(true);
            bookmarks.stream_fell_silent(false);
            assert!(bookmarks.are_sent() && bookmarks.has_fallen_silent());
        }
        bookmarks.nothing_is_silent();
        assert!(bookmarks.are_sent() && !bookmarks.has_fallen_silent());
        bookmarks.stream_fell_silent(false);
        assert!(!bookmarks.are_expected() && !bookmarks.are_sent());
    }
}
