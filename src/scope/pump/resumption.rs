//! Goes on after an interruption, as far as upstream's watch was found to follow what is held.
use super::ScopePump;
use super::continuity::ContinuityChange;
use super::properties::StateProof;
use crate::upstream::{Change, ResumeProof};

impl ScopePump {
    /// Goes on from what is held, or drops it.
    pub(super) fn handle_continuity(&mut self, change: ContinuityChange) {
        match change {
            ContinuityChange::TimelineEnded => self.forget_timeline(),
            ContinuityChange::Proven => {
                self.resumption_is_proven();
                self.go_on();
            }
            ContinuityChange::Presumed => self.go_on(),
            ContinuityChange::Unknown if self.properties.is_restored() => self.give_up_restored(),
            ContinuityChange::Unknown => self.relist(),
            ContinuityChange::ListDue => {}
        }
    }

    /// Notes that upstream's resumed watch is of the history that is held.
    pub(super) fn resumption_is_proven(&mut self) {
        if let Some(reflector) = self.feed.reflector() {
            reflector.resumption_is_proven();
        }
    }

    /// Goes on from what is held, with a resumed watch that did not prove by itself that it follows.
    fn go_on(&mut self) {
        let proof = ResumeProof::None;
        self.apply(Change::Resumed { proof }, None, None);
        self.record_proof(StateProof::Followed);
    }
}
