//! Trees of proxies: the proxies between a client and the API server, and loops of them.
//!
//! A proxy has a random id while it runs, and two marks that only its upstream sees. Its requests
//! to upstream carry the marks of the proxies that they have passed, by which each finds those that
//! come back. Answers name the proxies from there to the API server by their ids, to known callers
//! who are proxies and to nobody else.
//!
//! Anyone can send the header. So ids are no marks, and only the mark of the proxy's own requests
//! raises the alarm: forwarded requests show theirs also to what is behind `pods/proxy`.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use http::{HeaderMap, HeaderValue, StatusCode};
use parking_lot::Mutex;

use crate::headers::VIA;
use crate::log_throttle::LogThrottle;

/// Limit of the proxies that a request passes.
const MAX_PROXIES: usize = 8;
/// Length of an id or mark.
const ID_LENGTH: usize = 16;
/// Shortest interval between two log lines about refused requests.
const REPORT_INTERVAL: Duration = Duration::from_mins(1);

/// This proxy, and those between it and the API server.
#[derive(Debug)]
pub struct ProxyChain {
    id: String,
    /// The mark of the proxy's own requests.
    own_mark: String,
    /// The mark of the requests that it forwards.
    forward_mark: String,
    /// Requests that were not accepted, by [`ChainRefusal`].
    refused: [AtomicU64; ChainRefusal::ALL.len()],
    refusals: LogThrottle,
    state: Mutex<ChainState>,
}

#[derive(Debug)]
struct ChainState {
    /// The header of upstream's last answer; `None` if the API server itself answered.
    last_via: Option<HeaderValue>,
    /// The ids in it.
    upstream: Vec<String>,
    /// The header of this proxy's answers to other proxies.
    answer: HeaderValue,
    /// `true` once an answer came from a proxy. The log reports that once.
    announced: bool,
    /// The last time that a request of the proxy itself came back.
    came_back: Option<Instant>,
}

/// The kind of a [`ChainError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChainRefusal {
    /// The request came back.
    Loop,
    /// It passed too many proxies.
    TooLong,
    /// No proxy wrote its header.
    Malformed,
}

/// Reason why a request is not accepted from another proxy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChainError {
    /// This proxy has forwarded it before.
    #[error(
        "a loop of proxies: the request came back to watershed {id} (hops: {passed}), so its \
         upstream leads to itself (--server, --kubeconfig)"
    )]
    Loop {
        /// The id of this proxy.
        id: String,
        /// Requests between proxies since then.
        passed: usize,
    },
    /// It passed too many proxies.
    #[error("the request passed more than {MAX_PROXIES} proxies on its way")]
    TooLong,
    /// Another program wrote the header.
    #[error("malformed {VIA} header")]
    Malformed,
}

impl Default for ProxyChain {
    /// Creates the chain of a new proxy, whose upstream has not answered yet.
    fn default() -> Self {
        let id = random();
        let state = ChainState {
            last_via: None,
            upstream: Vec::new(),
            answer: header(std::iter::once(id.as_str())),
            announced: false,
            came_back: None,
        };
        Self {
            id,
            own_mark: random(),
            forward_mark: random(),
            refused: Default::default(),
            refusals: LogThrottle::new(REPORT_INTERVAL),
            state: Mutex::new(state),
        }
    }
}

impl ChainRefusal {
    /// All kinds.
    pub const ALL: [ChainRefusal; 3] = [Self::Loop, Self::TooLong, Self::Malformed];

    /// Returns the name for metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Loop => "loop",
            Self::TooLong => "too-many-proxies",
            Self::Malformed => "malformed",
        }
    }
}

impl ChainError {
    fn kind(&self) -> ChainRefusal {
        match self {
            Self::Loop { .. } => ChainRefusal::Loop,
            Self::TooLong => ChainRefusal::TooLong,
            Self::Malformed => ChainRefusal::Malformed,
        }
    }
}

impl ProxyChain {
    /// Returns the id of this proxy.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Returns the ids of the proxies between this one and the API server, the nearest first. A
    /// load balancer may lead each connection to another one.
    pub fn upstream(&self) -> Vec<String> {
        self.state.lock().upstream.clone()
    }

    /// Returns `true` if the last answer of upstream came from a proxy.
    pub fn is_behind_proxy(&self) -> bool {
        !self.state.lock().upstream.is_empty()
    }

    /// Returns `true` if upstream leads back to this proxy: its answers say so, or a request of
    /// its own came back lately.
    pub fn is_loop(&self) -> bool {
        let state = self.state.lock();
        let is_recent = |at: Instant| at.elapsed() < REPORT_INTERVAL;
        state.upstream.contains(&self.id) || state.came_back.is_some_and(is_recent)
    }

    /// Returns the number of requests that were not accepted.
    pub fn refused(&self, kind: ChainRefusal) -> u64 {
        self.refused[kind as usize].load(Ordering::Relaxed)
    }

    /// Returns `true` if a proxy sent this request, or why it is not accepted.
    pub fn accept(&self, headers: &HeaderMap) -> Result<bool, ChainError> {
        let checked = self.check(headers);
        if let Err(error) = &checked {
            self.refused[error.kind() as usize].fetch_add(1, Ordering::Relaxed);
        }
        checked
    }

    fn check(&self, headers: &HeaderMap) -> Result<bool, ChainError> {
        // A malformed header is refused: without it, a loop would not be found.
        let passed = ids(headers)?;
        let marks = [self.own_mark.as_str(), self.forward_mark.as_str()];
        let Some(at) = passed.iter().rposition(|mark| marks.contains(mark)) else {
            return match passed.len() {
                MAX_PROXIES.. => Err(ChainError::TooLong),
                passed => Ok(passed > 0),
            };
        };
        let error = ChainError::Loop {
            id: self.id.clone(),
            passed: passed.len() - at,
        };
        if passed.contains(&self.own_mark.as_str()) {
            self.state.lock().came_back = Some(Instant::now());
            self.report(&error);
        }
        Err(error)
    }

    /// Marks a request of the proxy itself.
    pub(super) fn mark_own(&self, headers: &mut HeaderMap) {
        headers.insert(VIA, header([self.own_mark.as_str()].into_iter()));
    }

    /// Adds the mark of a forwarded request.
    pub(super) fn mark_forwarded(&self, headers: &mut HeaderMap) {
        let passed = ids(headers).unwrap_or_default();
        let value = header(passed.into_iter().chain([self.forward_mark.as_str()]));
        headers.insert(VIA, value);
    }

    /// Notes what an answer of upstream says about the proxies behind it.
    pub(super) fn note(&self, status: StatusCode, headers: &HeaderMap) {
        let via = headers.get(VIA);
        if via.is_none() && !status.is_success() {
            // A proxy tells unknown callers nothing.
            return;
        }
        let mut state = self.state.lock();
        if state.last_via.as_ref() == via {
            return;
        }
        state.last_via = via.cloned();
        let known = ids(headers).unwrap_or_default().into_iter();
        state.upstream = known.take(MAX_PROXIES).map(str::to_owned).collect();
        let upstream = state.upstream.iter().map(String::as_str);
        // In a loop, the list ends before this proxy.
        let further = upstream.take_while(|id| *id != self.id);
        let answer = header([self.id.as_str()].into_iter().chain(further));
        state.answer = answer;
        if state.upstream.contains(&self.id) {
            let error = ChainError::Loop {
                id: self.id.clone(),
                passed: state.upstream.len(),
            };
            drop(state);
            self.report(&error);
        } else if !state.upstream.is_empty() && !state.announced {
            state.announced = true;
            tracing::info!(
                id = self.id,
                proxies = state.upstream.len(),
                "upstream is a watershed, so this is a tree of proxies"
            );
        }
    }

    /// Returns the header of answers to other proxies that are known callers.
    pub fn answer(&self) -> HeaderValue {
        self.state.lock().answer.clone()
    }

    /// Logs a loop, but not each of its requests.
    fn report(&self, error: &ChainError) {
        if let Some(requests) = self.refusals.count(1) {
            tracing::error!(%error, requests, "refusing requests of other proxies");
        }
    }
}

/// Parses the ids in a header. Fails if no proxy wrote it.
fn ids(headers: &HeaderMap) -> Result<Vec<&str>, ChainError> {
    let mut ids = Vec::new();
    for value in headers.get_all(VIA) {
        let text = value.to_str().map_err(|_| ChainError::Malformed)?;
        for id in text.split(',').map(str::trim) {
            if id.len() != ID_LENGTH || !id.bytes().all(|byte| byte.is_ascii_hexdigit()) {
                return Err(ChainError::Malformed);
            }
            ids.push(id);
        }
    }
    Ok(ids)
}

/// Returns an id that cannot be guessed.
fn random() -> String {
    let id = getrandom::u64().expect("the operating system gives random bytes");
    format!("{id:016x}")
}

fn header<'a>(ids: impl Iterator<Item = &'a str>) -> HeaderValue {
    let ids: Vec<_> = ids.collect();
    HeaderValue::try_from(ids.join(", ")).expect("hexadecimal digits and commas are a header value")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(value: &str) -> HeaderMap {
        HeaderMap::from_iter([(VIA, value.parse().unwrap())])
    }

    /// Sends a client's request through proxies, in order. Returns its headers.
    fn passed(chains: &[&ProxyChain]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for chain in chains {
            chain.mark_forwarded(&mut headers);
        }
        headers
    }

    /// Returns the headers of an answer to a proxy that is known.
    fn answered(chain: &ProxyChain) -> HeaderMap {
        HeaderMap::from_iter([(VIA, chain.answer())])
    }

    #[test]
    fn a_request_that_comes_back_is_refused() {
        let [a, b, c] = [(); 3].map(|()| ProxyChain::default());
        assert_eq!(a.accept(&HeaderMap::new()), Ok(false), "a client's");
        assert_eq!(a.accept(&passed(&[&b])), Ok(true));
        assert_eq!(a.accept(&passed(&[&b, &c])), Ok(true));
        for (chains, hops) in [(vec![&a], 1), (vec![&a, &b], 2), (vec![&c, &a, &b, &c], 3)] {
            let refused = ChainError::Loop {
                id: a.id().to_owned(),
                passed: hops,
            };
            assert_eq!(a.accept(&passed(&chains)), Err(refused));
        }
        assert_eq!(a.refused(ChainRefusal::Loop), 3);
        assert!(
            !a.is_loop(),
            "whoever gets forwarded requests knows their mark"
        );
        let mut own = HeaderMap::new();
        a.mark_own(&mut own);
        b.mark_forwarded(&mut own);
        let refused = a.accept(&own);
        assert!(
            matches!(refused, Err(ChainError::Loop { passed: 2, .. })),
            "{refused:?}"
        );
        assert!(a.is_loop() && !b.is_loop());
    }

    #[test]
    fn what_clients_are_told_is_no_mark() {
        let [leaf, zone] = [ProxyChain::default(), ProxyChain::default()];
        leaf.note(StatusCode::OK, &answered(&zone));
        for chain in [&leaf, &zone] {
            assert_eq!(chain.accept(&answered(&leaf)), Ok(true));
            let long = [chain.id(); MAX_PROXIES].join(",");
            assert_eq!(chain.accept(&headers(&long)), Err(ChainError::TooLong));
            assert_eq!(chain.refused(ChainRefusal::TooLong), 1);
            assert!(!chain.is_loop());
        }
    }

    #[test]
    fn a_request_may_pass_eight_proxies() {
        let proxies: Vec<_> = (0..MAX_PROXIES).map(|_| ProxyChain::default()).collect();
        let proxies: Vec<_> = proxies.iter().collect();
        let last = ProxyChain::default();
        assert_eq!(last.accept(&passed(&proxies[1..])), Ok(true));
        assert_eq!(last.accept(&passed(&proxies)), Err(ChainError::TooLong));
    }

    #[test]
    fn a_header_that_no_proxy_wrote_is_refused() {
        let chain = ProxyChain::default();
        for value in ["", "1", "0123456789abcdeg", "0123456789abcdef,"] {
            let refused = chain.accept(&headers(value));
            assert_eq!(refused, Err(ChainError::Malformed), "{value:?}");
        }
        assert_eq!(chain.refused(ChainRefusal::Malformed), 4);
        let long = ["0123456789abcdef"; 1000].join(",");
        assert_eq!(chain.accept(&headers(&long)), Err(ChainError::TooLong));
    }

    #[test]
    fn answers_name_the_proxies_up_to_the_api_server() {
        let [leaf, zone] = [ProxyChain::default(), ProxyChain::default()];
        zone.note(StatusCode::OK, &HeaderMap::new());
        assert_eq!(zone.upstream(), [""; 0]);
        leaf.note(StatusCode::OK, &answered(&zone));
        assert_eq!(leaf.upstream(), [zone.id()]);
        leaf.note(StatusCode::UNAUTHORIZED, &HeaderMap::new());
        assert_eq!(
            leaf.upstream(),
            [zone.id()],
            "it does not know the leaf now"
        );
        let both = format!("{}, {}", leaf.id(), zone.id());
        assert_eq!(leaf.answer(), both.as_str());
        leaf.note(StatusCode::OK, &HeaderMap::new());
        assert_eq!(leaf.upstream(), [""; 0], "now it is an API server");
        leaf.note(StatusCode::OK, &headers("nonsense"));
        assert_eq!(leaf.upstream(), [""; 0]);
    }

    #[test]
    fn a_loop_shows_in_answers() {
        let [a, b] = [ProxyChain::default(), ProxyChain::default()];
        a.note(StatusCode::OK, &answered(&b));
        assert!(!a.is_loop());
        for _ in 0..20 {
            b.note(StatusCode::OK, &answered(&a));
            a.note(StatusCode::OK, &answered(&b));
        }
        assert!(a.is_loop() && b.is_loop());
        assert_eq!(a.upstream().len(), 2, "the list does not grow");
    }
}
