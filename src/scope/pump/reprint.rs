//! Applies what a scope's task learned of another release.
use std::sync::Arc;

use watershed_protocol::BookmarkFormat;

use super::ScopePump;
use super::properties::StateProof;
use super::release::LearnedRelease;
use crate::scope::cached::discard;
use crate::scope::derived::ReprintedObjects;
use crate::scope::metrics;
use crate::scope::phase::ReadyScope;
use crate::store::StoredObject;
use crate::upstream::{InitialEventsAnswer, PrintedForm, Release};
use crate::work::{REPLACED_OBJECT, repeat};

impl ScopePump {
    /// Shows the server at which the scope is followed from now on, whose release is not known yet.
    pub(super) fn name_server(&self) {
        if let Some(server) = self.feed.server().cloned() {
            self.scope.print.set_release(None);
            self.scope.upstream.set_server(server);
        }
    }

    /// Notes the server at which the scope is followed from now on.
    pub(super) fn follow_server(&mut self) {
        let (Some(server), Some(ready)) = (self.feed.server().cloned(), self.properties.get())
        else {
            return;
        };
        self.scope.forms.follow(&server);
        self.server.streaming.follow(&server);
        // Derived objects are as the source's, which is compared itself.
        if self.feed.reflector().is_some() {
            let is_restored = self.properties.is_restored();
            let limit = is_restored.then(|| self.shared.unanswered.patience());
            self.server.release.follow(&server, &ready.format, limit);
        }
        self.name_server();
    }

    pub(super) async fn handle_release(&mut self, learned: LearnedRelease) {
        match learned {
            LearnedRelease::Current(release) => {
                self.note_release(release);
                if self.server.end_rewriting() {
                    self.relist_rewritten("an object is printed differently by the same release");
                } else {
                    self.record_proof(StateProof::Printed);
                }
            }
            LearnedRelease::Other {
                release,
                form,
                objects,
                load,
            } => {
                let Some(ready) = self.properties.get().cloned() else {
                    return;
                };
                let scope = Arc::clone(&self.scope);
                let resource = &scope.key.gvr;
                let Some(changed) = self.reprint(objects).await else {
                    self.server.release.mark_unapplied();
                    self.follow_server();
                    return;
                };
                drop(load);
                self.server.end_rewriting();
                self.server.release.mark_applied();
                let shown = release.as_ref().map(Release::to_string);
                tracing::info!(%resource, release = shown, changed, "continued the watch at another release");
                let result = if changed == 0 { "same" } else { "reprinted" };
                self.count_release(result);
                self.note_release(release);
                self.relearn(&ready, form);
                self.record_proof(StateProof::Printed);
            }
            LearnedRelease::Unaskable(server) => self.reopen_instead_of(&server),
            LearnedRelease::Unanswered => self.give_up_without_release(),
            LearnedRelease::Relist(release) => {
                self.server.end_rewriting();
                if !self.properties.is_unknown() {
                    self.note_release(release);
                    self.count_release("relisted");
                    self.relist();
                }
            }
        }
    }

    /// Replaces the bytes of objects that have not changed, and returns how many differ; `None`
    /// while a version is unfinished. Lets other tasks run in between: these may be all objects of
    /// the type.
    async fn reprint(&mut self, objects: Vec<StoredObject>) -> Option<usize> {
        let mut reprint = self.served.writer.begin_reprint(objects)?;
        repeat(REPLACED_OBJECT, || reprint.replace_next()).await;
        let charges = self.scope.memory.charges.lock().take();
        let (changed, replaced) = reprint.finish();
        self.scope.count_held();
        discard(replaced, charges);
        Some(changed)
    }

    /// Takes in the objects of a derived scope that are printed in another manner from now on.
    /// Returns `false` while a version is unfinished.
    pub(super) async fn apply_reprint(&mut self, reprinted: ReprintedObjects) -> bool {
        let ReprintedObjects { objects, load } = reprinted;
        if objects.is_empty() {
            return true;
        }
        let Some(changed) = self.reprint(objects).await else {
            return false;
        };
        drop(load);
        let resource = &self.scope.key.gvr;
        tracing::info!(%resource, changed, "switched to another release's JSON form");
        self.count_release("reprinted");
        true
    }

    /// Derives the scope again from what is held on, if that is exact now.
    pub(super) async fn rejoin(&mut self) {
        // Whatever the watch in JSON still has to prove would not come by the source's.
        let is_settled = self.continuity.is_settled()
            && !self.served.is_reopening()
            && !self.properties.is_restored();
        let Some(server) = self.feed.rejoin(is_settled) else {
            return;
        };
        self.server.leave_to_source();
        self.adopt_server(server).await;
        self.scope.count_held();
    }

    /// Learns again what objects do not show: warnings, bookmarks, and streaming.
    fn relearn(&mut self, ready: &ReadyScope, form: PrintedForm) {
        self.renew(ReadyScope {
            format: Arc::clone(&ready.format),
            streams_initial_events: ready.streams_initial_events,
            warnings: form.warnings,
        });
        if let Some(reflector) = self.feed.reflector() {
            reflector.forget_bookmark();
        }
        self.server.streaming.ask_again();
    }

    /// Records the followed server's release. What was learned of another one by asking is
    /// forgotten, and has to be asked again.
    pub(super) fn note_release(&mut self, release: Option<Release>) {
        self.scope.print.set_release(release.clone());
        self.shared.failures.meet_release(release.as_ref());
        if self.server.record_release(release) {
            self.scope.forms.forget_answers();
            // This one may print what the last one printed differently.
            self.shared.failures.begin_release();
            self.feed.release_changed();
            self.shared
                .releases
                .send_replace(self.scope.upstream.server());
        }
    }

    fn count_release(&self, result: &'static str) {
        let labels = metrics::with_type(&self.scope.key.gvr, result);
        metrics::RELEASE_CHANGES.with(labels).increment(1);
    }

    /// Records whether upstream streams initial events now.
    pub(super) fn handle_initial_events(&mut self, answer: &InitialEventsAnswer) {
        if let InitialEventsAnswer::Streamed(_) = answer {
            self.served.others.tell_all();
        }
        let Some(ready) = self.properties.get().cloned() else {
            return;
        };
        let resource = &self.scope.key.gvr;
        let streams_initial_events = match answer {
            InitialEventsAnswer::Streamed(mark) => {
                match BookmarkFormat::learn(&ready.format, mark) {
                    Ok(bookmark) => self.learn_bookmark(Some(bookmark)),
                    Err(error) => {
                        tracing::warn!(
                            %resource,
                            %error,
                            "the end of initial events is not understood"
                        );
                        return;
                    }
                }
                true
            }
            InitialEventsAnswer::NotStreamed => false,
        };
        if streams_initial_events == ready.streams_initial_events {
            return;
        }
        tracing::info!(
            %resource,
            on = streams_initial_events,
            "learned whether upstream streams initial events"
        );
        self.renew(ReadyScope {
            format: Arc::clone(&ready.format),
            streams_initial_events,
            warnings: ready.warnings.clone(),
        });
    }

    /// Shows other properties of the type to readers.
    fn renew(&mut self, ready: ReadyScope) {
        let ready = Arc::new(ready);
        self.served.phase.renew(&ready);
        self.properties.renew(ready);
    }
}
