//! The proxy itself, as upstream sees it.
pub(super) mod identity;
pub(super) mod rights;
