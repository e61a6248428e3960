//! Limits what each caller may take here and at upstream.
//!
//! Whatever a caller holds and gives back is a [`Share`](crate::fairness::Share) of a `Limit` (`limit.rs`): running and
//! forwarded requests, watches, memory. What it starts per second comes out of a token bucket (`request_rate.rs`).
pub(super) mod exceeded;
pub(super) mod forwards;
mod limit;
pub(super) mod list_memory;
pub(super) mod memory;
pub(super) mod reads;
pub(super) mod refusal_log;
mod request_rate;
pub(super) mod requests;
pub(super) mod unknown_callers;
pub(super) mod watches;

/// The memory budget by which callers are limited where there is none.
const WITHOUT_BUDGET: usize = 4 << 30;
