//! Fields that many types have.
use serde::Deserialize;

use crate::table::age::{ObjectTime, pointer};

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct PrintedMeta {
    pub(super) name: String,
    pub(super) creation_timestamp: ObjectTime,
    #[serde(deserialize_with = "pointer")]
    pub(super) deletion_timestamp: Option<ObjectTime>,
}

/// A condition, as far as it is printed.
#[derive(Deserialize)]
pub(super) struct PrintedCondition {
    #[serde(rename = "type")]
    pub(super) kind: String,
    #[serde(default)]
    pub(super) status: String,
    #[serde(default)]
    pub(super) reason: String,
}

impl PrintedCondition {
    /// Returns `true` if the first condition of this type is `True`.
    pub(super) fn first_is_true(conditions: Option<&Vec<Self>>, kind: &str) -> bool {
        let mut conditions = conditions.into_iter().flatten();
        let found = conditions.find(|condition| condition.kind == kind);
        found.is_some_and(Self::is_true)
    }

    /// Returns `true` if any condition of this type is `True`.
    pub(super) fn any_is_true(conditions: Option<&Vec<Self>>, kind: &str) -> bool {
        let mut conditions = conditions.into_iter().flatten();
        conditions.any(|condition| condition.kind == kind && condition.is_true())
    }

    pub(super) fn is_true(&self) -> bool {
        self.status == "True"
    }
}
