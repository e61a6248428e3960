//! The forms in which upstream sends the objects of a scope.
use std::sync::Arc;

use arc_swap::ArcSwapOption;

use crate::upstream::{ReflectorTarget, ServedBy, TableForms, UpstreamClient, WatchCompression};
use crate::watcher::{Bookmarks, IrreducibleObject};

/// The forms in which upstream sends a scope's objects, as far as they are known, and objects without
/// such a form. They are learned from the scope's own watch, or once a client asks for a form.
#[derive(Debug)]
pub struct UpstreamForms {
    /// The form of bookmarks, once known.
    pub bookmarks: Bookmarks,
    /// Tells if upstream compresses watches of the type.
    pub compression: WatchCompression,
    /// The form of the type's Tables.
    pub tables: TableForms,
    /// An object that cannot be reduced to its metadata, if a read came to one.
    pub irreducible: Arc<IrreducibleObject>,
    /// An object that cannot be printed as a row, if a read came to one.
    pub unprintable: Arc<IrreducibleObject>,
}

impl UpstreamForms {
    /// Creates the forms of `target`, of which nothing is known yet.
    pub(in crate::scope) fn new(client: &UpstreamClient, target: &ReflectorTarget) -> Self {
        Self {
            bookmarks: Arc::new(ArcSwapOption::empty()),
            compression: WatchCompression::new(client.clone(), target),
            tables: TableForms::new(client.clone(), target.gvr.clone(), &target.selection),
            irreducible: Arc::default(),
            unprintable: Arc::default(),
        }
    }

    /// Asks this server from now on.
    pub(in crate::scope) fn follow(&self, server: &ServedBy) {
        self.compression.follow(server);
        self.tables.follow(server);
    }

    /// Forgets what was learned by asking servers of another release.
    pub(in crate::scope) fn forget_answers(&self) {
        self.compression.forget();
        self.tables.forget();
    }

    /// Forgets objects without a form: new ones took their place.
    pub(in crate::scope) fn forget_objects(&self) {
        self.irreducible.clear();
        self.unprintable.clear();
    }
}
