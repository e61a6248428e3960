//! Callers of requests, and the credentials with which their requests are forwarded.
use std::sync::Arc;

use watershed_protocol::Status;

use super::error::ReviewError;
use super::identity::Identity;
use super::impersonate;
use crate::upstream::ForwardIdentity;

/// The caller of a request.
#[derive(Clone, Debug)]
pub enum Caller {
    /// A caller with credentials in the request. Upstream accepts them as they are; the
    /// authenticator finds out the identity if it matters here.
    WithCredentials,
    /// A caller that upstream knows only through this proxy.
    Vouched(Vouched),
    /// A caller that upstream would not accept.
    Rejected(RejectedCaller),
}

impl Caller {
    /// Returns the identity under which the caller's requests are forwarded.
    pub fn forward_identity(&self) -> ForwardIdentity {
        match self {
            Self::Vouched(vouched) => vouched.forwarded_as.clone(),
            Self::WithCredentials | Self::Rejected(_) => ForwardIdentity::Caller,
        }
    }

    /// Returns the user that the credentials name, as far as it is known without asking upstream.
    pub fn user(&self) -> Option<&Arc<Identity>> {
        match self {
            Self::WithCredentials => None,
            Self::Vouched(vouched) => match &vouched.impersonation {
                Some(impersonation) => Some(&impersonation.impersonator),
                None => vouched.identity.as_ref(),
            },
            Self::Rejected(rejected) => rejected.identity.as_ref(),
        }
    }

    /// Returns the impersonated user, if there is one.
    pub fn impersonated(&self) -> Option<(&Arc<Identity>, &Impersonation)> {
        match self {
            Self::Vouched(vouched) => vouched
                .identity
                .as_ref()
                .zip(vouched.impersonation.as_ref()),
            _ => None,
        }
    }
}

/// A caller that upstream knows only through this proxy.
#[derive(Clone, Debug)]
pub struct Vouched {
    /// The identity; `None` if only upstream knows it.
    pub identity: Option<Arc<Identity>>,
    /// The impersonation that led to the identity, if the credentials name another one.
    pub impersonation: Option<Impersonation>,
    /// The identity under which the caller's requests are forwarded.
    pub forwarded_as: ForwardIdentity,
}

impl Vouched {
    /// Vouches for an identity in Impersonate headers. Fails if they cannot express it.
    pub(super) fn new(identity: Arc<Identity>) -> Result<Self, Rejection> {
        let headers = impersonate::headers(&identity)
            .map_err(|error| Status::bad_request(error.to_string()))?;
        Ok(Self {
            identity: Some(identity),
            impersonation: None,
            forwarded_as: ForwardIdentity::Impersonated(Arc::new(headers)),
        })
    }

    /// Notes who acts as this identity.
    pub(super) fn impersonated_by(self, impersonation: Impersonation) -> Self {
        Self {
            impersonation: Some(impersonation),
            ..self
        }
    }
}

/// An impersonation that is allowed.
#[derive(Clone, Debug)]
pub struct Impersonation {
    /// The user that the credentials name.
    pub impersonator: Arc<Identity>,
    /// The verb of the permission, if it is one of constrained impersonation.
    pub constraint: Option<&'static str>,
}

/// A caller that is not accepted.
#[derive(Clone, Debug)]
pub struct RejectedCaller {
    /// The reason.
    pub reason: Rejection,
    /// The user that the credentials name, if they are valid.
    pub identity: Option<Arc<Identity>>,
}

impl From<Status> for RejectedCaller {
    fn from(status: Status) -> Self {
        Self {
            reason: status.into(),
            identity: None,
        }
    }
}

/// The reason for not accepting a caller.
#[derive(Clone, Debug)]
pub enum Rejection {
    /// The caller gets this status.
    Status(Box<Status>),
    /// Upstream could not be asked what the caller may do.
    ReviewFailed(Arc<ReviewError>),
}

impl From<Status> for Rejection {
    fn from(status: Status) -> Self {
        Self::Status(Box::new(status))
    }
}
