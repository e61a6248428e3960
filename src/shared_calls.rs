//! Calls that several callers share. A result is for the callers that came before its call began.
//!
//! [`Singleflight`] makes one call at a time. [`Gatherings`] let callers wait for company first, and
//! let several calls run.
mod gathering;
mod singleflight;

pub use gathering::{Gathering, Gatherings};
pub use singleflight::{FlightPace, REUNION, Singleflight};
