//! `watershed simulate`: the simulated API server alone.
use std::process::ExitCode;

use tokio_util::sync::CancellationToken;
use watershed_lab::sim::simulate::{self, SimulateArgs};

use super::failure::INTERRUPTED;
use super::interrupt::interruptible;

/// Runs the server until the first signal, or ends it at once on the second.
pub(super) async fn run(args: SimulateArgs) -> anyhow::Result<ExitCode> {
    let interrupt = CancellationToken::new();
    let served = simulate::run(args, interrupt.clone());
    match interruptible(&interrupt, served).await {
        None => Ok(ExitCode::from(INTERRUPTED)),
        Some(served) => served.map(|()| ExitCode::SUCCESS),
    }
}
