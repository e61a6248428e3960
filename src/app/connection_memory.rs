//! The connections that fit into the memory budget.
use crate::listener::ConnectionLimits;

/// Divisor: connections may fill a quarter of the budget, unless an operator chose their number.
/// Strangers who only stay connected would have everything given up that is cached.
const BUDGET_DIVISOR: usize = 4;
/// Connections that are allowed with any budget.
const LEAST: usize = 256;

/// Reduces the number of connections to those that fit into a part of the budget.
pub(super) fn fit(limits: &mut ConnectionLimits) {
    let Some(bytes) = limits.memory.limit() else {
        return;
    };
    let fitting = fitting(bytes);
    if limits.connections <= fitting {
        return;
    }
    tracing::info!(
        bytes,
        connections = fitting,
        "the memory limit limits connections (see --max-connections)"
    );
    limits.reduce(fitting);
}

/// Returns how many connections fit into a budget of so many bytes.
fn fitting(bytes: usize) -> usize {
    (bytes / BUDGET_DIVISOR / ConnectionLimits::CONNECTION_BYTES).max(LEAST)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::MemoryBudget;

    #[test]
    fn connections_fit_into_a_quarter_of_the_budget() {
        for (memory, connections) in [
            (None, (20_000, 15_000)),
            (Some(4 << 30), (20_000, 15_000)),
            (Some(200 << 20), (1_600, 1_200)),
            (Some(1 << 20), (256, 192)),
        ] {
            let mut limits = ConnectionLimits {
                memory: MemoryBudget::new(memory),
                ..ConnectionLimits::default()
            };
            fit(&mut limits);
            assert_eq!((limits.connections, limits.of_address()), connections);
        }
    }

    #[test]
    fn the_number_that_an_operator_chose_for_an_address_is_kept() {
        let mut limits = ConnectionLimits {
            memory: MemoryBudget::new(Some(800 << 20)),
            connections_per_address: Some(15_000),
            ..ConnectionLimits::default()
        };
        fit(&mut limits);
        assert_eq!((limits.connections, limits.of_address()), (6_400, 6_400));
    }
}
