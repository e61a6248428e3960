//! Followed objects, parsed once for each version.
use std::collections::HashMap;

use serde::de::DeserializeOwned;
use watershed_protocol::ResourceVersion;

use crate::store::Snapshot;

/// The parsed objects, by their keys.
#[derive(Debug)]
pub(super) struct ParsedObjects<T> {
    /// With the version of each object: it is parsed again only when that changes.
    known: HashMap<String, (ResourceVersion, T)>,
}

impl<T> Default for ParsedObjects<T> {
    fn default() -> Self {
        Self {
            known: HashMap::new(),
        }
    }
}

impl<T> ParsedObjects<T> {
    pub(super) fn all(&self) -> impl Iterator<Item = &T> {
        self.known.values().map(|(_, parsed)| parsed)
    }

    /// Has all objects parsed again with the next update, as their versions mean nothing any more.
    pub(super) fn forget_versions(&mut self) {
        for (version, _) in self.known.values_mut() {
            *version = ResourceVersion::default();
        }
    }

    /// Takes in the newest objects. `read` gets each that is new or has changed, and what it said before.
    /// One that cannot be parsed as `kind` stays as it was.
    pub(super) fn update<O: DeserializeOwned>(
        &mut self,
        snapshot: &Snapshot,
        kind: &str,
        mut read: impl FnMut(O, Option<&T>) -> T,
    ) {
        for object in snapshot.items(None) {
            let before = self.known.get(object.key());
            if before.is_some_and(|(version, _)| *version == object.version) {
                continue;
            }
            match serde_json::from_slice(&object.bytes.get().text()) {
                Ok(parsed) => {
                    let now = read(parsed, before.map(|(_, before)| before));
                    let key = object.key().to_owned();
                    self.known.insert(key, (object.version, now));
                }
                Err(error) => {
                    let name = object.key();
                    tracing::warn!(name, %error, "cannot parse a {kind}; ignoring it");
                }
            }
        }
        self.known.retain(|key, _| snapshot.get(key).is_some());
    }
}
