//! Fair shares: what is bounded for all callers together is bounded for each of them as well, so
//! that none takes what the others need.
mod caller_key;
mod queue;
mod shares;

pub use caller_key::CallerKey;
pub use queue::{FairQueue, QueueTurn, Seats};
pub use shares::{Share, ShareLimits, Shares};
