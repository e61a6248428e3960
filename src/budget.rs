//! The memory budget of the process: bytes by class, the limit, and what to do when memory runs
//! short.
//!
//! Owners of memory charge it here, and the charge ends when the memory is freed. What is
//! counted is compared with the process's resident memory, and the larger figure decides. This
//! module knows neither stores nor requests: `app` drives the steps, and others carry them out.
mod account;
mod cgroup;
mod class;
mod load;
pub mod metrics;
mod pressure;
mod quantity;
mod resident;

pub use account::{MemoryBudget, MemoryCharge};
pub use cgroup::container_limit;
pub use class::MemoryClass;
pub use load::{DoesNotFit, MemoryLoad, SizeSource};
pub use pressure::{MemoryUsage, PressureGauge, PressureStep, worth_closing};
pub use quantity::parse_quantity;
