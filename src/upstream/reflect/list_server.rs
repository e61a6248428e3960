//! The server that prints the objects of a list.
use crate::upstream::ServedBy;

/// The server of the answers of which a list consists.
#[derive(Debug, Default)]
pub(super) enum ListServer {
    /// There is no answer yet.
    #[default]
    None,
    One(ServedBy),
    /// The pages are of several servers, which may be of several releases, or of unknown ones.
    Several,
}

impl ListServer {
    /// Notes the server of one more answer.
    pub(super) fn answered_by(&mut self, server: Option<&ServedBy>) {
        let is_same = |one: &ServedBy| server.is_some_and(|server| server.is_same(one));
        *self = match (std::mem::take(self), server) {
            (Self::None, Some(server)) => Self::One(server.clone()),
            (Self::One(one), _) if is_same(&one) => Self::One(one),
            _ => Self::Several,
        };
    }

    /// Returns the server of all answers so far, if there is one.
    pub(super) fn one(&self) -> Option<&ServedBy> {
        match self {
            Self::One(server) => Some(server),
            Self::None | Self::Several => None,
        }
    }
}
