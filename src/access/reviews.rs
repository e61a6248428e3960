//! Reviews: the questions that upstream answers about callers, and the order in which they are sent.
pub(super) mod queues;
pub(super) mod sending;
pub(super) mod sent;
pub(super) mod verdict_form;
