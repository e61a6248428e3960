//! Declarations of metrics: the name, kind, labels and help of each are in one place.
//!
//! A module declares its metrics as constants and lists them in its `METRICS`. `app` collects these
//! lists for the registry, which shows the help, and for docs/configuration.md.
mod labelled_types;

use std::marker::PhantomData;

use metrics::{Key, Label, Level, Metadata, with_recorder};

pub use labelled_types::{labelled, type_labels};
pub use metrics::{Counter, Gauge, Histogram, SharedString};

/// A metric with a fixed number of labels. `I` is its kind: [`Counter`], [`Gauge`] or
/// [`Histogram`].
#[derive(Clone, Copy, Debug)]
pub struct Metric<I, const LABELS: usize = 0> {
    name: &'static str,
    labels: &'static [&'static str; LABELS],
    help: &'static str,
    instrument: PhantomData<fn() -> I>,
}

impl<I: Instrument, const LABELS: usize> Metric<I, LABELS> {
    /// Declares a metric.
    pub const fn new(
        name: &'static str,
        labels: &'static [&'static str; LABELS],
        help: &'static str,
    ) -> Self {
        Self {
            name,
            labels,
            help,
            instrument: PhantomData,
        }
    }

    /// Returns the declaration without the types of the kind and the number of labels.
    pub const fn declaration(&self) -> Declaration {
        Declaration {
            name: self.name,
            kind: I::KIND,
            labels: self.labels,
            help: self.help,
        }
    }

    /// Returns the series with these label values, in the order of the declared labels.
    ///
    /// Each call looks the series up in the registry, so hot paths keep the returned handle.
    pub fn with(&self, values: [SharedString; LABELS]) -> I {
        let labels = self.labels.iter().zip(values);
        let labels: Vec<_> = labels
            .map(|(label, value)| Label::new(*label, value))
            .collect();
        I::register(&Key::from_parts(self.name, labels))
    }
}

/// A metric's declaration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Declaration {
    /// The name in `/metrics`.
    pub name: &'static str,
    /// The kind.
    pub kind: MetricKind,
    /// The names of its labels.
    pub labels: &'static [&'static str],
    /// The help text.
    pub help: &'static str,
}

impl Declaration {
    /// Gives the help text to the recorder in use.
    pub fn describe(&self) {
        let (name, help) = (self.name.into(), self.help.into());
        with_recorder(|recorder| match self.kind {
            MetricKind::Counter => recorder.describe_counter(name, None, help),
            MetricKind::Gauge => recorder.describe_gauge(name, None, help),
            MetricKind::Histogram => recorder.describe_histogram(name, None, help),
        });
    }
}

/// The kinds of metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// A value that only grows.
    Counter,
    /// A value that goes up and down.
    Gauge,
    /// Counts of observations by size.
    Histogram,
}

impl MetricKind {
    /// Returns Prometheus' name of the kind.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// A handle on one series of a metric.
pub trait Instrument: Sized {
    /// The kind of metric that the handle belongs to.
    const KIND: MetricKind;

    /// Finds or creates the series in the recorder in use.
    fn register(key: &Key) -> Self;
}

impl Instrument for Counter {
    const KIND: MetricKind = MetricKind::Counter;

    fn register(key: &Key) -> Self {
        with_recorder(|recorder| recorder.register_counter(key, &METADATA))
    }
}

impl Instrument for Gauge {
    const KIND: MetricKind = MetricKind::Gauge;

    fn register(key: &Key) -> Self {
        with_recorder(|recorder| recorder.register_gauge(key, &METADATA))
    }
}

impl Instrument for Histogram {
    const KIND: MetricKind = MetricKind::Histogram;

    fn register(key: &Key) -> Self {
        with_recorder(|recorder| recorder.register_histogram(key, &METADATA))
    }
}

static METADATA: Metadata<'static> =
    Metadata::new(module_path!(), Level::INFO, Some(module_path!()));
