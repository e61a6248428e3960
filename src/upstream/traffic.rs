//! Counters of requests to upstream, bytes from it and connections, by purpose.

use std::array;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use http::StatusCode;
use tokio::sync::watch;

use super::class::ConnectionClass;
use super::error::UpstreamError;

/// The purpose of a request to upstream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RequestPurpose {
    /// The proxy's own list of a scope.
    List,
    /// The proxy's own watch of a scope.
    Watch,
    /// A forwarded request of a caller.
    Forward,
    /// The proxy's own questions: authentication, authorization, freshness and discovery.
    #[default]
    Internal,
    /// A question that upstream answers by a refusal.
    Probe,
}

impl RequestPurpose {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::List,
        Self::Watch,
        Self::Forward,
        Self::Internal,
        Self::Probe,
    ];

    /// Returns the metric label.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::List => "list",
            Self::Watch => "watch",
            Self::Forward => "forward",
            Self::Internal => "internal",
            Self::Probe => "probe",
        }
    }
}

/// The purpose of a connection to upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionPurpose {
    /// The proxy's own watches and lists.
    Watch,
    /// Short requests.
    Short,
    /// Forwarded watches.
    LongForward,
    /// Forwarded requests to pods, services and nodes, logs among them.
    Relayed,
    /// One session of exec, attach, port-forward or WebSocket.
    Tunnel,
}

impl ConnectionPurpose {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Watch,
        Self::Short,
        Self::LongForward,
        Self::Relayed,
        Self::Tunnel,
    ];

    /// Returns the metric label.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Watch => "watch",
            Self::Short => "short",
            Self::LongForward => "long-forward",
            Self::Relayed => "relayed",
            Self::Tunnel => "tunnel",
        }
    }
}

impl From<ConnectionClass> for ConnectionPurpose {
    fn from(class: ConnectionClass) -> Self {
        match class {
            ConnectionClass::Watch => Self::Watch,
            ConnectionClass::Short => Self::Short,
            ConnectionClass::LongForward => Self::LongForward,
            ConnectionClass::Relayed => Self::Relayed,
        }
    }
}

/// The reason why a request got no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoAnswer {
    /// No connection could be made.
    Connect,
    /// All connections are busy.
    Busy,
    /// The connection ended.
    Closed,
    /// The proxy or its client waited for a second or longer, and then no more.
    Late,
    /// The proxy or its client stopped waiting before that.
    Abandoned,
}

impl NoAnswer {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Connect,
        Self::Busy,
        Self::Closed,
        Self::Late,
        Self::Abandoned,
    ];

    /// Returns the metric label.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Busy => "busy",
            Self::Closed => "closed",
            Self::Late => "late",
            Self::Abandoned => "abandoned",
        }
    }

    /// Returns the reason behind an error, or `None` if this process refused the request.
    fn of(error: &UpstreamError) -> Option<Self> {
        match error {
            UpstreamError::Connect(_) | UpstreamError::Handshake { .. } => Some(Self::Connect),
            UpstreamError::NoStreams { .. } | UpstreamError::Exhausted => Some(Self::Busy),
            UpstreamError::EndedUnsent { .. }
            | UpstreamError::Closed { .. }
            | UpstreamError::Cut { .. } => Some(Self::Closed),
            UpstreamError::Ending | UpstreamError::Refused { .. } => None,
        }
    }
}

/// Outcomes of the requests of one purpose.
#[derive(Debug)]
struct Outcomes {
    /// The number of answers with each status, from [`FIRST_STATUS`] on.
    answers: Box<[AtomicU64; STATUSES]>,
    unanswered: [AtomicU64; NoAnswer::ALL.len()],
}

/// Time after which an answer is late. The proxy itself waits at least as long.
const LATE: Duration = Duration::from_secs(1);
/// The least status. Source: `http::StatusCode` takes 100 to 999.
const FIRST_STATUS: u16 = 100;
const STATUSES: usize = 900;

impl Default for Outcomes {
    fn default() -> Self {
        Self {
            answers: Box::new(array::from_fn(|_| AtomicU64::default())),
            unanswered: Default::default(),
        }
    }
}

/// Sums since the start of the process, and the connections open now.
#[derive(Debug, Default)]
pub struct UpstreamTraffic {
    outcomes: [Outcomes; RequestPurpose::ALL.len()],
    received: [AtomicU64; RequestPurpose::ALL.len()],
    connections: [AtomicU64; ConnectionPurpose::ALL.len()],
    /// The number of connections that were made.
    made: watch::Sender<u64>,
}

impl UpstreamTraffic {
    /// Returns the number of answered requests.
    pub fn requests(&self, purpose: RequestPurpose) -> u64 {
        self.answers(purpose).map(|(_, answers)| answers).sum()
    }

    /// Returns the statuses of answers, and how many had each.
    pub fn answers(&self, purpose: RequestPurpose) -> impl Iterator<Item = (u16, u64)> {
        let counters = self.outcomes[purpose as usize].answers.iter();
        let counts = counters.map(|counter| counter.load(Ordering::Relaxed));
        (FIRST_STATUS..).zip(counts).filter(|(_, count)| *count > 0)
    }

    /// Returns the number of requests that got no answer for a reason.
    pub fn unanswered(&self, purpose: RequestPurpose, reason: NoAnswer) -> u64 {
        self.outcomes[purpose as usize].unanswered[reason as usize].load(Ordering::Relaxed)
    }

    /// Returns the bytes of answers' bodies, compressed as they came.
    pub fn received_bytes(&self, purpose: RequestPurpose) -> u64 {
        self.received[purpose as usize].load(Ordering::Relaxed)
    }

    /// Returns the number of open connections.
    pub fn connections(&self, kind: ConnectionPurpose) -> u64 {
        self.connections[kind as usize].load(Ordering::Relaxed)
    }

    /// Returns what changes with each connection that is made from now on.
    pub(super) fn new_connections(&self) -> watch::Receiver<u64> {
        self.made.subscribe()
    }

    /// Begins a request.
    pub(super) fn send(self: &Arc<Self>, purpose: RequestPurpose) -> SentRequest {
        SentRequest {
            traffic: Arc::clone(self),
            purpose,
            began: Instant::now(),
            is_over: false,
        }
    }

    /// Counts a connection until the result is dropped.
    pub(super) fn connected(self: &Arc<Self>, kind: ConnectionPurpose) -> OpenConnection {
        self.connections[kind as usize].fetch_add(1, Ordering::Relaxed);
        self.made.send_modify(|number| *number += 1);
        OpenConnection {
            traffic: Arc::clone(self),
            kind,
        }
    }
}

/// Counts the outcome of a request. One that is dropped before has none: nobody waits for it any more.
pub(super) struct SentRequest {
    traffic: Arc<UpstreamTraffic>,
    purpose: RequestPurpose,
    began: Instant,
    is_over: bool,
}

impl SentRequest {
    /// Counts the answer. The result counts its bytes.
    pub(super) fn answered(&mut self, status: StatusCode) -> ReceivedMeter {
        self.is_over = true;
        let answers = &self.outcomes().answers;
        let with_status = answers.get(usize::from(status.as_u16() - FIRST_STATUS));
        if let Some(answers) = with_status {
            answers.fetch_add(1, Ordering::Relaxed);
        }
        ReceivedMeter {
            traffic: Arc::clone(&self.traffic),
            purpose: self.purpose,
        }
    }

    /// Counts that there is no answer.
    pub(super) fn failed(&mut self, error: &UpstreamError) {
        self.is_over = true;
        if let Some(reason) = NoAnswer::of(error) {
            self.count_unanswered(reason);
        }
    }

    fn count_unanswered(&self, reason: NoAnswer) {
        self.outcomes().unanswered[reason as usize].fetch_add(1, Ordering::Relaxed);
    }

    fn outcomes(&self) -> &Outcomes {
        &self.traffic.outcomes[self.purpose as usize]
    }
}

impl Drop for SentRequest {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let is_late = self.began.elapsed() >= LATE;
        self.count_unanswered(if is_late {
            NoAnswer::Late
        } else {
            NoAnswer::Abandoned
        });
    }
}

/// Counts the bytes of one answer.
pub(super) struct ReceivedMeter {
    traffic: Arc<UpstreamTraffic>,
    purpose: RequestPurpose,
}

impl ReceivedMeter {
    pub(super) fn add(&self, bytes: usize) {
        self.traffic.received[self.purpose as usize].fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

/// An open connection.
pub(super) struct OpenConnection {
    traffic: Arc<UpstreamTraffic>,
    kind: ConnectionPurpose,
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.traffic.connections[self.kind as usize].fetch_sub(1, Ordering::Relaxed);
    }
}

impl fmt::Debug for OpenConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OpenConnection").field(&self.kind).finish()
    }
}
