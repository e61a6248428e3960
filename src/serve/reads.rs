//! Opens what a read needs, and waits until that is as fresh as the answer has to be.
pub(super) mod freshness;
pub(super) mod large_answers;
pub(super) mod open;
pub(super) mod unfolding;
