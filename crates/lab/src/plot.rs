//! Results of the load generator as pictures (SVG).
mod drawing;
mod result;
mod watches;

pub use result::plot_result;
pub use watches::plot_by_watches;
