//! What is measured, for documents: taken from the descriptions that the registry gets.
use metrics::{
    Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit,
    with_local_recorder,
};
use parking_lot::Mutex;

use super::labels;

/// What becomes of a metric's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sort {
    /// It only grows.
    Counter,
    /// It goes up and down.
    Gauge,
    /// Counted by size.
    Histogram,
}

/// One metric.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Described {
    /// As Prometheus sees it.
    pub name: String,
    /// What becomes of its values.
    pub sort: Sort,
    /// By what it is told apart.
    pub labels: &'static [&'static str],
    /// What it means.
    pub help: String,
}

impl Sort {
    /// As Prometheus calls it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// All metrics that a proxy may show, by name.
pub fn reference() -> Vec<Described> {
    let listener = Listener::default();
    with_local_recorder(&listener, super::describe);
    let mut all = listener.0.into_inner();
    all.sort_by(|one, other| one.name.cmp(&other.name));
    all
}

/// Writes down what is described, and counts nothing.
#[derive(Default)]
struct Listener(Mutex<Vec<Described>>);

impl Listener {
    fn take(&self, name: &KeyName, sort: Sort, help: &SharedString) {
        let name = name.as_str().to_owned();
        let labels = labels::of(&name);
        self.0.lock().push(Described {
            name,
            sort,
            labels,
            help: help.to_string(),
        });
    }
}

impl Recorder for Listener {
    fn describe_counter(&self, name: KeyName, _: Option<Unit>, help: SharedString) {
        self.take(&name, Sort::Counter, &help);
    }

    fn describe_gauge(&self, name: KeyName, _: Option<Unit>, help: SharedString) {
        self.take(&name, Sort::Gauge, &help);
    }

    fn describe_histogram(&self, name: KeyName, _: Option<Unit>, help: SharedString) {
        self.take(&name, Sort::Histogram, &help);
    }

    fn register_counter(&self, _: &Key, _: &Metadata<'_>) -> Counter {
        Counter::noop()
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}
