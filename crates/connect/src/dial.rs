//! Dials an API server: chooses an address, connects, and shakes hands.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use parking_lot::Mutex;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::BufReader;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::either::Either;

use super::address::Address;
use super::credentials::{Credentials, TlsIdentity};
use super::error::ConnectError;
use super::protocol::{OfferedProtocols, Protocol};

/// Time for connecting and the TLS handshake together.
///
/// A healthy API server needs milliseconds.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Time after which the next address is tried beside one that has not answered.
const STAGGER: Duration = Duration::from_secs(1);

/// Time for which an address with trouble is tried last.
const COOLDOWN: Duration = Duration::from_secs(10);

/// TCP keepalive for HTTP/1.1 and tunnels, which have no ping: finds a dead peer within about half
/// a minute.
const KEEPALIVE_TIME: Duration = Duration::from_secs(15);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
#[cfg(not(windows))]
const KEEPALIVE_RETRIES: u32 = 3;

/// Time after which the next address of a name is tried beside those that have not answered.
/// Source: RFC 8305, section 5.
const NEXT_ADDRESS: Duration = Duration::from_millis(250);

/// Bytes read from the socket at a time: rustls alone asks for 4 KiB.
const READ_AHEAD: usize = 64 * 1024;

/// Bytes to and from the API server.
pub type DialedStream = Either<TcpStream, TlsStream<BufReader<TcpStream>>>;

/// A new connection.
pub struct Dialed {
    /// Bytes to and from the server. No HTTP has been spoken yet.
    pub stream: DialedStream,
    /// The protocol that was negotiated. Without TLS it is HTTP/1.1.
    pub protocol: Protocol,
    /// The address that accepted.
    pub address: Address,
}

/// Chooses addresses in turn, those with trouble last.
#[derive(Default)]
pub struct Dialer {
    turn: AtomicUsize,
    troubled: Mutex<HashMap<Address, (Trouble, Instant)>>,
}

/// The trouble with the last attempt to connect to an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trouble {
    /// Another address answered before it.
    Slow,
    /// It failed, or hung until the timeout.
    Failed,
}

/// The order in which addresses are tried. Those of equal rank keep their turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    Good,
    Slow,
    /// The caller has had a bad answer from it. The one that is first in the caller's list goes first.
    ToAvoid(usize),
    Failed,
}

impl Dialer {
    /// Creates a dialer whose first turn is that of the address at this index. Indices begin again
    /// after the last address, so that random ones spread processes over the servers.
    pub fn starting_at(index: usize) -> Self {
        Self {
            turn: AtomicUsize::new(index),
            troubled: Mutex::default(),
        }
    }

    /// Connects to the first address that accepts. One that hangs delays the others by a second.
    /// Those in `avoid` are tried once those that rank before all of them have failed.
    pub async fn dial(
        &self,
        credentials: &Credentials,
        identity: TlsIdentity,
        offered: OfferedProtocols,
        avoid: &[Address],
    ) -> Result<Dialed, ConnectError> {
        let begin = |address| connect(credentials, address, identity, offered);
        let order = self.order(&credentials.addresses, avoid);
        self.first_of(order, avoid, begin).await
    }

    /// Returns the first success of attempts at these addresses, each of which begins a second after
    /// the one before, or when no attempt is left. Those in `avoid` are passed over while those before
    /// all of them are tried.
    async fn first_of<T, F>(
        &self,
        order: Vec<Address>,
        avoid: &[Address],
        begin: impl Fn(Address) -> F,
    ) -> Result<T, ConnectError>
    where
        F: Future<Output = Result<T, ConnectError>>,
    {
        let mut race = Race::new(order, avoid);
        let mut attempts = FuturesUnordered::new();
        let mut last = None;
        loop {
            if let Some(address) = race.begin_next() {
                let made = begin(address.clone());
                attempts.push(async move { (address, made.await) });
            }
            match timeout(STAGGER, attempts.next()).await {
                Ok(Some((address, Ok(made)))) => {
                    race.ended(&address);
                    self.note_success(&address, race.slow);
                    return Ok(made);
                }
                Ok(Some((address, Err(error)))) => {
                    tracing::debug!(%error, "upstream address failed");
                    race.ended(&address);
                    let trouble = (Trouble::Failed, Instant::now());
                    self.troubled.lock().insert(address, trouble);
                    last = Some(error);
                }
                Ok(None) => break,
                Err(_elapsed) => race.mark_slow(),
            }
        }
        // Unreachable in practice: credentials always have an address.
        Err(last.unwrap_or_else(|| ConnectError::Credentials("there is no address".to_owned())))
    }

    /// Notes that an address has accepted, and that others did not answer before it.
    fn note_success(&self, address: &Address, slow: Vec<Address>) {
        let mut troubled = self.troubled.lock();
        let trouble = (Trouble::Slow, Instant::now());
        for slow in slow {
            let known = troubled.entry(slow).or_insert(trouble);
            // One that has failed lately is not better for being slow.
            if known.0 == Trouble::Slow {
                *known = trouble;
            }
        }
        troubled.remove(address);
    }

    fn order(&self, addresses: &[Address], avoid: &[Address]) -> Vec<Address> {
        let mut order = addresses.to_vec();
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        if !order.is_empty() {
            let first = turn % order.len();
            order.rotate_left(first);
        }
        let mut troubled = self.troubled.lock();
        troubled.retain(|_, (_, at)| at.elapsed() < COOLDOWN);
        order.sort_by_key(|address| {
            let to_avoid = avoid.iter().position(|other| other == address);
            match (troubled.get(address), to_avoid) {
                (Some((Trouble::Failed, _)), _) => Rank::Failed,
                (_, Some(place)) => Rank::ToAvoid(place),
                (Some((Trouble::Slow, _)), None) => Rank::Slow,
                (None, None) => Rank::Good,
            }
        });
        order
    }
}

/// The addresses of which one is to be connected to.
struct Race<'a> {
    /// Those that are still to be tried, best first.
    waiting: Vec<Address>,
    /// Those before all that are to be avoided.
    preferred: Vec<Address>,
    avoid: &'a [Address],
    under_way: Vec<Address>,
    /// Those under way that have held up the next one.
    slow: Vec<Address>,
}

impl<'a> Race<'a> {
    fn new(order: Vec<Address>, avoid: &'a [Address]) -> Self {
        let preferred = order.iter().take_while(|address| !avoid.contains(address));
        Self {
            preferred: preferred.cloned().collect(),
            waiting: order,
            avoid,
            under_way: Vec::new(),
            slow: Vec::new(),
        }
    }

    /// Returns the address that is to be tried now, if there is one.
    fn begin_next(&mut self) -> Option<Address> {
        let is_preferred = |address: &Address| self.preferred.contains(address);
        let has_preferred = self.under_way.iter().any(is_preferred);
        let may_begin = |address: &Address| !has_preferred || !self.avoid.contains(address);
        let next = self.waiting.iter().position(may_begin)?;
        let address = self.waiting.remove(next);
        self.under_way.push(address.clone());
        Some(address)
    }

    /// Notes that the attempt at an address has ended.
    fn ended(&mut self, address: &Address) {
        self.under_way.retain(|other| other != address);
        self.slow.retain(|other| other != address);
    }

    /// Notes that all that are under way hold up the next one.
    fn mark_slow(&mut self) {
        self.slow.clone_from(&self.under_way);
    }
}

async fn connect(
    credentials: &Credentials,
    address: Address,
    identity: TlsIdentity,
    offered: OfferedProtocols,
) -> Result<Dialed, ConnectError> {
    let deadline = Instant::now() + CONNECT_TIMEOUT;
    let Ok(tcp) = timeout_at(deadline, tcp(&address)).await else {
        return Err(ConnectError::ConnectTimeout {
            address: address.clone(),
            after: CONNECT_TIMEOUT,
        });
    };
    let tcp = tcp.map_err(|source| ConnectError::Connect {
        address: address.clone(),
        source: Arc::new(source),
    })?;
    if !address.is_tls() {
        return Ok(Dialed {
            stream: Either::Left(tcp),
            protocol: Protocol::Http1,
            address: address.clone(),
        });
    }
    let failed = |source| ConnectError::Tls {
        address: address.clone(),
        source: Arc::new(source),
    };
    let name = credentials
        .server_name(&address)
        .map_err(|error| failed(io::Error::other(error)))?;
    let connector = TlsConnector::from(credentials.tls(identity, offered));
    let handshake = connector.connect(name, BufReader::with_capacity(READ_AHEAD, tcp));
    let Ok(tls) = timeout_at(deadline, handshake).await else {
        return Err(ConnectError::HandshakeTimeout {
            address: address.clone(),
            after: CONNECT_TIMEOUT,
        });
    };
    let tls = tls.map_err(failed)?;
    let protocol = match tls.get_ref().1.alpn_protocol() {
        Some(b"h2") => Protocol::Http2,
        _ => Protocol::Http1,
    };
    Ok(Dialed {
        stream: Either::Right(tls),
        protocol,
        address,
    })
}

/// Connects to the first resolved address that accepts.
async fn tcp(address: &Address) -> io::Result<TcpStream> {
    let resolved = tokio::net::lookup_host((address.host(), address.port())).await?;
    let stream = first_connected(alternating(resolved), TcpStream::connect).await?;
    tune(&stream)?;
    Ok(stream)
}

/// Returns addresses of both families in turn, beginning with the family of the first.
fn alternating(addresses: impl Iterator<Item = SocketAddr>) -> Vec<SocketAddr> {
    let mut addresses = addresses.peekable();
    let first = addresses.peek().is_some_and(SocketAddr::is_ipv6);
    let (own, others): (Vec<_>, Vec<_>) = addresses.partition(|one| one.is_ipv6() == first);
    let mut others = others.into_iter();
    let mut ordered = Vec::new();
    for next in own {
        ordered.push(next);
        ordered.extend(others.next());
    }
    ordered.extend(others);
    ordered
}

/// Returns the first success of attempts at these addresses, each of which begins [`NEXT_ADDRESS`] after
/// the one before, or earlier if there are many or one has failed.
async fn first_connected<T, F>(
    addresses: Vec<SocketAddr>,
    begin: impl Fn(SocketAddr) -> F,
) -> io::Result<T>
where
    F: Future<Output = io::Result<T>>,
{
    let share = CONNECT_TIMEOUT / u32::try_from(addresses.len().max(1)).unwrap_or(u32::MAX);
    let pause = NEXT_ADDRESS.min(share);
    let mut waiting = addresses.into_iter();
    let mut attempts = FuturesUnordered::new();
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no addresses");
    loop {
        attempts.extend(waiting.next().map(&begin));
        match timeout(pause, attempts.next()).await {
            Ok(Some(Ok(made))) => return Ok(made),
            Ok(Some(Err(error))) => last = error,
            Ok(None) => return Err(last),
            Err(_elapsed) => {}
        }
    }
}

fn tune(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let keepalive = TcpKeepalive::new()
        .with_time(KEEPALIVE_TIME)
        .with_interval(KEEPALIVE_INTERVAL);
    #[cfg(not(windows))]
    let keepalive = keepalive.with_retries(KEEPALIVE_RETRIES);
    let socket = SockRef::from(stream);
    socket.set_tcp_keepalive(&keepalive)?;
    // Keepalive does not probe while sent bytes wait for their acknowledgement.
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(
        KEEPALIVE_TIME + KEEPALIVE_INTERVAL * (KEEPALIVE_RETRIES + 1),
    ))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_families_of_a_names_addresses_take_turns() {
        let parsed = |text: &str| text.split(' ').map(|one| one.parse().unwrap()).collect();
        let given: Vec<SocketAddr> = parsed("[::1]:1 [::2]:1 1.1.1.1:1 [::3]:1 2.2.2.2:1");
        let wanted: Vec<_> = parsed("[::1]:1 1.1.1.1:1 [::2]:1 2.2.2.2:1 [::3]:1");
        assert_eq!(alternating(given.into_iter()), wanted);
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_that_does_not_answer_delays_the_others_little() {
        let at = |text: &str| -> SocketAddr { text.parse().unwrap() };
        let (silent, refusing, open) = (at("[::1]:1"), at("[::2]:1"), at("1.1.1.1:1"));
        let begin = |address: SocketAddr| async move {
            match address {
                address if address == silent => std::future::pending().await,
                address if address == refusing => Err(io::ErrorKind::ConnectionRefused.into()),
                address => Ok(address),
            }
        };
        let begun = Instant::now();
        let made = first_connected(vec![refusing, open], begin).await;
        assert_eq!((made.unwrap(), begun.elapsed()), (open, Duration::ZERO));
        let made = first_connected(vec![silent, open], begin).await;
        assert_eq!((made.unwrap(), begun.elapsed()), (open, NEXT_ADDRESS));
        let failed = first_connected(vec![refusing, refusing], begin).await;
        let kind = failed.unwrap_err().kind();
        assert_eq!(kind, io::ErrorKind::ConnectionRefused);
        let none = first_connected(Vec::new(), begin).await.unwrap_err();
        assert_eq!(none.kind(), io::ErrorKind::NotFound);
    }

    fn addresses() -> Vec<Address> {
        ["https://a:1", "https://b:1", "https://c:1"]
            .map(|text| Address::parse(text).unwrap())
            .to_vec()
    }

    #[tokio::test]
    async fn the_first_address_depends_on_the_start() {
        let all = addresses();
        let first = |start| Dialer::starting_at(start).order(&all, &[]).remove(0);
        assert_eq!([first(0), first(4), first(5)], addresses()[..]);
        // An overflow of the counter does no harm.
        let last = Dialer::starting_at(usize::MAX);
        let both = [last.order(&all, &[]), last.order(&all, &[])];
        assert_eq!(both.map(|order| order.len()), [3, 3]);
    }

    #[tokio::test]
    async fn addresses_take_turns_and_failed_ones_come_last() {
        let dialer = Dialer::default();
        let all = addresses();
        let firsts: Vec<_> = (0..3).map(|_| dialer.order(&all, &[]).remove(0)).collect();
        assert_eq!(firsts, all);
        let failed = (Trouble::Failed, Instant::now());
        dialer.troubled.lock().insert(all[0].clone(), failed);
        for _ in 0..3 {
            assert_eq!(dialer.order(&all, &[])[2], all[0]);
            let order = dialer.order(&all, &all[1..2]);
            assert_eq!(order, [all[2].clone(), all[1].clone(), all[0].clone()]);
        }
    }

    #[tokio::test]
    async fn of_addresses_to_avoid_the_first_in_the_list_goes_first() {
        let (dialer, all) = (Dialer::default(), addresses());
        let [a, b, c] = [0, 1, 2].map(|index| all[index].clone());
        for _ in 0..3 {
            let order = dialer.order(&all, &[c.clone(), a.clone()]);
            assert_eq!(order, [b.clone(), c.clone(), a.clone()]);
            let order = dialer.order(&all, &[c.clone(), a.clone(), b.clone()]);
            assert_eq!(order, [c.clone(), a.clone(), b.clone()]);
        }
    }

    /// Dials addresses that answer after so many milliseconds; `None` for a failure at once. Returns
    /// the first that answered, and how long that took.
    async fn dialed(
        dialer: &Dialer,
        avoid: &[Address],
        answers: [Option<u64>; 3],
    ) -> (Result<Address, ConnectError>, Duration) {
        let all = addresses();
        let began = Instant::now();
        let begin = |address: Address| {
            let index = all.iter().position(|other| *other == address).unwrap();
            async move {
                let Some(millis) = answers[index] else {
                    return Err(ConnectError::Credentials("failed".to_owned()));
                };
                let answer = tokio::time::sleep(Duration::from_millis(millis));
                let after = CONNECT_TIMEOUT;
                match timeout(after, answer).await {
                    Ok(()) => Ok(address),
                    Err(_) => Err(ConnectError::ConnectTimeout { address, after }),
                }
            }
        };
        let order = dialer.order(&all, avoid);
        (dialer.first_of(order, avoid, begin).await, began.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_that_hangs_delays_the_next_by_a_second_and_is_slow_from_then_on() {
        let (dialer, all) = (Dialer::default(), addresses());
        let answers = [Some(10_000), Some(20), Some(20)];
        let (first, took) = dialed(&dialer, &[], answers).await;
        assert_eq!(first.unwrap(), all[1]);
        assert_eq!(took, STAGGER + Duration::from_millis(20));
        for _ in 0..3 {
            let (_, took) = dialed(&dialer, &[], answers).await;
            assert_eq!(took, Duration::from_millis(20));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_that_stays_slow_stays_last() {
        let (dialer, all) = (Dialer::default(), addresses());
        for _ in 0..3 {
            dialer.note_success(&all[1], vec![all[0].clone()]);
            tokio::time::advance(COOLDOWN.mul_f32(0.9)).await;
            assert_eq!(dialer.order(&all, &[]).last(), Some(&all[0]));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_to_avoid_waits_until_the_others_have_failed() {
        let (dialer, all) = (Dialer::default(), addresses());
        let avoid = &all[..1];
        for _ in 0..3 {
            let (first, took) = dialed(&dialer, avoid, [Some(1), Some(2_500), Some(1_800)]).await;
            assert_ne!(first.unwrap(), all[0], "the others are slow");
            assert!(took > STAGGER);
        }
        let (first, took) = dialed(&dialer, avoid, [Some(1), None, Some(10_000)]).await;
        assert_eq!(first.unwrap(), all[0]);
        assert_eq!(took, CONNECT_TIMEOUT + Duration::from_millis(1));
        let (first, took) = dialed(&dialer, avoid, [Some(1), None, Some(10_000)]).await;
        assert_eq!(first.unwrap(), all[0], "the others have just failed");
        assert_eq!(took, Duration::from_millis(1));
        assert!(dialed(&dialer, avoid, [None; 3]).await.0.is_err());
        // One that failed before and is back need not wait for one that hangs.
        let dialer = Dialer::default();
        let failed = (Trouble::Failed, Instant::now());
        dialer.troubled.lock().insert(all[2].clone(), failed);
        let (first, took) = dialed(&dialer, avoid, [Some(1), Some(10_000), Some(1)]).await;
        assert_eq!(first.unwrap(), all[2]);
        assert_eq!(took, STAGGER + Duration::from_millis(1));
    }
}
