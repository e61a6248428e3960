//! The callers with whose credentials a shared request was slow.
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use http::{HeaderMap, HeaderValue, header};

use crate::upstream::ForwardIdentity;

/// A caller whose credentials a shared request carries, as a number. Two may have the same by chance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Leader(u64);

/// The leaders whose requests upstream did not begin to answer in time, lately.
///
/// Upstream queues requests by their callers' priority. So one slow request says nothing about those of
/// others, until another caller's is slow as well.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum SlowLeaders {
    #[default]
    None,
    One(Leader),
    Several,
}

impl Leader {
    pub(super) fn of(caller: &HeaderMap, identity: &ForwardIdentity) -> Self {
        let mut hasher = DefaultHasher::new();
        match identity {
            ForwardIdentity::Impersonated(user) => {
                for (name, value) in &**user {
                    (name, value.as_bytes()).hash(&mut hasher);
                }
            }
            ForwardIdentity::Proxy => {}
            ForwardIdentity::Caller | ForwardIdentity::UnknownCaller => {
                let token = caller.get(header::AUTHORIZATION);
                token.map(HeaderValue::as_bytes).hash(&mut hasher);
            }
        }
        Self(hasher.finish())
    }
}

impl SlowLeaders {
    /// Notes another one.
    pub(super) fn add(&mut self, leader: Leader) {
        *self = match *self {
            Self::None => Self::One(leader),
            Self::One(known) if known == leader => Self::One(leader),
            Self::One(_) | Self::Several => Self::Several,
        };
    }

    /// Returns `true` if a request of this caller is likely to be slow.
    pub(super) fn concern(self, caller: Leader) -> bool {
        match self {
            Self::None => false,
            Self::One(leader) => leader == caller,
            Self::Several => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn one_slow_caller_concerns_no_other_and_two_concern_all() {
        let bearer =
            |token: &str| HeaderMap::from_iter([(header::AUTHORIZATION, token.parse().unwrap())]);
        let own = |token| Leader::of(&bearer(token), &ForwardIdentity::Caller);
        let user = |name: &str| {
            let user = [("impersonate-user".parse().unwrap(), name.parse().unwrap())];
            let identity = ForwardIdentity::Impersonated(Arc::new(HeaderMap::from_iter(user)));
            Leader::of(&HeaderMap::new(), &identity)
        };
        let others = [own("a"), own("b"), user("c"), user("d")];
        for (index, leader) in others.iter().enumerate() {
            let mut slow = SlowLeaders::default();
            assert!(!slow.concern(*leader));
            slow.add(*leader);
            slow.add(*leader);
            let concerned = others.map(|other| slow.concern(other));
            assert!(
                concerned
                    .iter()
                    .enumerate()
                    .all(|(at, is)| *is == (at == index))
            );
            slow.add(others[(index + 1) % others.len()]);
            assert!(others.iter().all(|other| slow.concern(*other)));
        }
    }
}
