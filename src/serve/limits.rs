//! Limits what each caller may take here and at upstream.
pub(super) mod forwards;
pub(super) mod list_memory;
pub(super) mod memory;
pub(super) mod reads;
pub(super) mod requests;
pub(super) mod unknown_callers;
pub(super) mod watches;
