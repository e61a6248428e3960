//! Limits what each caller may take here and at upstream.
pub(super) mod exceeded;
pub(super) mod forwards;
mod limit;
pub(super) mod list_memory;
pub(super) mod memory;
pub(super) mod reads;
pub(super) mod refusal_log;
pub(super) mod requests;
pub(super) mod unknown_callers;
pub(super) mod watches;

/// The memory budget by which callers are limited where there is none.
const WITHOUT_BUDGET: usize = 4 << 30;
