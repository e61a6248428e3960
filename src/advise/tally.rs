//! Sums by client, type and answer, in bounded memory.
use std::collections::{HashMap, HashSet};

use watershed_protocol::GroupVersionResource;

use super::client_name::ClientName;
use crate::serve::{AnswerSource, Forecast};

/// Upper bound of rows. The requests of further ones count as those of other clients.
const MAX_ROWS: usize = 50_000;
/// Upper bound of scopes that are told apart.
const MAX_SCOPES: usize = 10_000;

/// The properties that the requests of one row share.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct RowKey {
    pub(super) client: ClientName,
    pub(super) verb: &'static str,
    pub(super) resource: Option<GroupVersionResource>,
    pub(super) source: AnswerSource,
}

/// The load of some requests.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Load {
    pub(super) requests: u64,
    /// Seconds that upstream took for requests that are not long-running.
    pub(super) seconds: f64,
    /// Seconds for which long-running requests were open.
    pub(super) open_seconds: f64,
}

/// All sums.
#[derive(Default)]
pub(super) struct Tally {
    rows: HashMap<RowKey, Load>,
    scopes: HashSet<u64>,
}

impl Load {
    pub(super) fn add(&mut self, other: Self) {
        self.requests += other.requests;
        self.seconds += other.seconds;
        self.open_seconds += other.open_seconds;
    }
}

impl Tally {
    /// Adds the load of a request.
    pub(super) fn add(&mut self, client: ClientName, forecast: &Forecast, load: Load) {
        if let Some(scope) = forecast.scope
            && self.scopes.len() < MAX_SCOPES
        {
            self.scopes.insert(scope);
        }
        let mut key = RowKey {
            client,
            verb: forecast.verb,
            resource: forecast.resource.clone(),
            source: forecast.source,
        };
        if self.rows.len() >= MAX_ROWS && !self.rows.contains_key(&key) {
            key.client = ClientName::others();
        }
        self.rows.entry(key).or_default().add(load);
    }

    /// Returns all rows, in no order.
    pub(super) fn rows(&self) -> impl Iterator<Item = (&RowKey, &Load)> {
        self.rows.iter()
    }

    /// Returns the number of scopes that answer.
    pub(super) fn scopes(&self) -> usize {
        self.scopes.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_rows_is_bounded_and_no_request_is_lost() {
        let mut tally = Tally::default();
        let forecast = Forecast {
            verb: "get",
            resource: None,
            source: AnswerSource::Snapshot,
            scope: Some(1),
            is_long_running: false,
        };
        let load = Load {
            requests: 1,
            ..Load::default()
        };
        let clients = MAX_ROWS as u64 + 10;
        for number in 0..clients {
            tally.add(ClientName::new(&number.to_string(), ""), &forecast, load);
        }
        assert_eq!(tally.rows().count(), MAX_ROWS + 1);
        let requests: u64 = tally.rows().map(|(_, load)| load.requests).sum();
        assert_eq!((requests, tally.scopes()), (clients, 1));
    }
}
