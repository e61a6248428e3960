//! Drops what is held, and lists a scope again.
use std::fmt;

use watershed_protocol::is_built_in_group;

use super::ScopePump;
use crate::scope::cached::discard;

impl ScopePump {
    /// Stops serving the scope: upstream may now return the same versions in other bytes. The scope is
    /// listed again once upstream has taken the schema into use. Its watches go on until then, as
    /// upstream's do.
    pub(super) fn handle_schema_change(&mut self) {
        if let Some(reflector) = self.feed.reflector() {
            reflector.schema_changed();
        }
        self.schema.record_change();
        self.served.phase.change_schema();
    }

    /// Lists the scope again, as upstream has taken another schema into use.
    pub(super) fn list_changed_schema(&mut self) {
        tracing::info!(
            resource = %self.scope.key.gvr,
            "the type's schema changed; listing again"
        );
        self.schema.begin_list();
        self.feed.list_changed_schema();
        self.expect_list();
    }

    /// Lists the scope again, as an object is printed differently in the same version. The definition of a
    /// custom type may have changed.
    pub(super) fn relist_rewritten(&mut self, error: impl fmt::Display) {
        let resource = &self.scope.key.gvr;
        let is_explained = self.schema.record_rewriting();
        if is_explained && !is_built_in_group(&resource.group) {
            tracing::info!(
                %resource,
                %error,
                "objects differ, as after a change of the type's definition; listing again"
            );
            self.relist();
        } else {
            self.inconsistent(error);
        }
    }

    /// Drops everything held, as upstream has another history.
    pub(super) fn forget_timeline(&mut self) {
        self.relist();
        self.scope.history.expect_new_timeline();
        self.drop_held();
        // Afterwards, so that no old version counts as one of the new timeline.
        self.continuity.begin_anew();
    }

    /// Drops everything held. Requests need not wait for the next list.
    pub(super) fn drop_held(&mut self) {
        // Before the store, so that nobody takes an empty one for a state.
        self.served.phase.fail();
        let charges = self.scope.memory.charges.lock().take();
        let replaced = self.served.writer.reset();
        // Others may have counted what was held after its charges were taken.
        self.scope.count_held();
        discard(replaced, charges);
        self.scope.publish_version();
    }

    /// Lists the scope again, as an event does not fit to what is known.
    pub(super) fn inconsistent(&mut self, error: impl fmt::Display) {
        tracing::error!(
            resource = %self.scope.key.gvr,
            %error,
            "upstream's events are inconsistent; listing again"
        );
        self.relist();
    }

    /// Gives up the watch, and lists the scope again. Changes do not arrive until then: lists have
    /// pauses between them, and upstream may not answer.
    pub(super) fn relist(&mut self) {
        self.feed.restart();
        self.expect_list();
    }

    /// Notes that the feed's next change is a list.
    fn expect_list(&mut self) {
        self.continuity.expect_list();
        self.abandon_restored();
        self.served.mark_lost();
    }
}
