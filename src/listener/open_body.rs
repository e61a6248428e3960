//! A request body that may have pieces which nobody has read.
use std::sync::Arc;

use super::activity::Activity;
use super::unread_bodies::OpenBodies;
use crate::body::BodyReader;

/// A request body that may have pieces which nobody has read.
pub(super) struct OpenBody {
    activity: Arc<Activity>,
    number: u64,
}

impl OpenBody {
    /// Begins a body of which nothing was read.
    pub(super) fn new(activity: &Arc<Activity>) -> Self {
        Self {
            number: change(activity, OpenBodies::begin),
            activity: Arc::clone(activity),
        }
    }
}

impl BodyReader for OpenBody {
    fn has_read(&self, bytes: usize) {
        change(&self.activity, |bodies| {
            bodies.has_read(self.number, bytes as u64);
        });
    }

    fn begins_reading(&self) {
        self.activity.unread_bodies().begins_reading(self.number);
    }

    fn has_read_all(&self) {
        change(&self.activity, |bodies| bodies.has_read_all(self.number));
    }

    fn has_more(&self) {
        change(&self.activity, |bodies| bodies.has_more(self.number));
    }
}

impl Drop for OpenBody {
    fn drop(&mut self) {
        change(&self.activity, |bodies| bodies.end(self.number));
    }
}

/// Changes the bodies of a connection, and counts what is kept with them from then on.
fn change<T>(activity: &Activity, change: impl FnOnce(&mut OpenBodies) -> T) -> T {
    let bodies = activity.unread_bodies();
    bodies.change(change, |unread| activity.note_unread(unread))
}

#[cfg(test)]
mod tests {
    use super::super::fresh_streams::FreshStreams;
    use super::super::input_memory::InputMemory;
    use super::super::limits::STREAM_WINDOW;
    use super::super::metrics::Cut;
    use super::super::request_frames::KeptBytes;
    use super::*;
    use crate::budget::MemoryBudget;

    /// Returns the activity of a connection whose unread bodies may have 100,000 bytes, besides some thousands.
    fn activity() -> Arc<Activity> {
        let budget = MemoryBudget::new(Some(32 * 100_000));
        Activity::new(
            &InputMemory::within(&budget),
            &FreshStreams::within(&budget),
        )
    }

    /// Notes bytes outside of buffers that all pieces so far may have kept, in a turn of their own.
    fn note(activity: &Activity, beside: u64) {
        activity.note_pieces(KeptBytes {
            received: beside,
            in_buffers: 0,
            beside,
        });
        activity.begin_turn();
    }

    /// Reads all that has come of a body.
    fn read_all(body: &OpenBody) {
        body.begins_reading();
        body.has_read_all();
    }

    #[test]
    fn pieces_count_until_they_are_read() {
        let activity = activity();
        (0..2).for_each(|_| note(&activity, 1 << 30));
        let [one, two] = [(); 2].map(|()| OpenBody::new(&activity));
        for number in 1..=100 {
            note(&activity, (1 << 30) + number * 30_000);
            for body in [&one, &two] {
                body.has_more();
                read_all(body);
            }
        }
        drop(one);
        note(&activity, (1 << 30) + 3_030_000);
        two.has_more();
        drop(two);
        note(&activity, 1 << 40);
        assert_eq!(activity.condemned(), None);
        assert!(!activity.is_leaving());
    }

    #[test]
    fn a_connection_with_much_that_nobody_has_read_ends() {
        let activity = activity();
        let unread = OpenBody::new(&activity);
        let read = OpenBody::new(&activity);
        for bytes in 1..=4 {
            note(&activity, bytes * 10_000);
            read_all(&read);
            assert_eq!(activity.condemned(), None);
        }
        note(&activity, 50_000);
        assert_eq!(activity.condemned(), Some(Cut::UnreadBodies));
        drop(unread);
    }

    #[test]
    fn a_body_that_is_read_but_never_to_the_end_of_what_came_does_not_count_from_its_start() {
        let activity = activity();
        let body = OpenBody::new(&activity);
        let window = STREAM_WINDOW as usize;
        for piece in 1..1_000 {
            note(&activity, piece * 10_000);
            body.has_read(window + 1);
            assert_eq!(activity.condemned(), None);
        }
        note(&activity, 10_010_000);
        body.has_read(window);
        note(&activity, 10_025_000);
        assert_eq!(activity.condemned(), Some(Cut::UnreadBodies));
    }

    #[test]
    fn a_body_of_which_nothing_comes_does_not_count_with_the_pieces_of_others() {
        let activity = activity();
        let body = OpenBody::new(&activity);
        read_all(&body);
        note(&activity, 1 << 30);
        note(&activity, (1 << 30) + 20_000);
        body.has_more();
        note(&activity, (1 << 30) + 40_000);
        assert_eq!(activity.condemned(), None);
        note(&activity, (1 << 30) + 50_000);
        assert_eq!(activity.condemned(), Some(Cut::UnreadBodies));
    }

    #[test]
    fn a_piece_that_comes_while_nothing_is_found_counts() {
        let activity = activity();
        let body = OpenBody::new(&activity);
        body.begins_reading();
        note(&activity, 30_000);
        body.has_more();
        body.has_read_all();
        note(&activity, 50_000);
        assert_eq!(activity.condemned(), Some(Cut::UnreadBodies));
    }

    #[test]
    fn pieces_that_come_in_the_turn_of_their_head_count() {
        let activity = activity();
        note(&activity, 1 << 30);
        activity.note_pieces(KeptBytes {
            received: (1 << 30) + 50_000,
            in_buffers: 0,
            beside: (1 << 30) + 50_000,
        });
        let _body = OpenBody::new(&activity);
        assert_eq!(activity.condemned(), Some(Cut::UnreadBodies));
    }

    #[test]
    fn a_known_client_takes_another_connection_first() {
        let activity = activity();
        activity.set_known();
        let _unread = OpenBody::new(&activity);
        note(&activity, 60_000);
        assert!(!activity.is_leaving());
        note(&activity, 70_000);
        assert!(activity.is_leaving());
        assert_eq!(activity.condemned(), None);
        note(&activity, 120_000);
        assert_eq!(activity.condemned(), Some(Cut::UnreadBodies));
    }
}
