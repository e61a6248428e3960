//! Calls that several callers share.
//!
//! With [`Singleflight`] and [`Gatherings`], a result is for the callers that came before its call
//! began. The former makes one call at a time. The latter let callers wait for company first, and let
//! several calls run. With [`JoinedCalls`], a result is also for those who come while its call runs.
mod gathering;
mod joined;
mod singleflight;

pub use gathering::{Gathering, Gatherings, Hold};
pub use joined::JoinedCalls;
pub use singleflight::{FlightPace, REUNION, Singleflight};
