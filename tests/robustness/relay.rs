//! A relay on the way to a server. It can cut, stall or slow down what passes.
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

/// Bytes that pass at a time while the relay is slow.
const SLOW_PIECE: usize = 2048;

/// The treatment by a relay of bytes and connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Passage {
    #[default]
    Open,
    /// Nothing passes, and nothing is closed.
    Stalled,
    /// A small piece every few milliseconds.
    Slow,
    /// New connections are closed at once.
    Closed,
}

#[derive(Clone, Copy, Default)]
struct RelayState {
    passage: Passage,
    cuts: u64,
}

pub(crate) struct Relay {
    pub(crate) address: SocketAddr,
    state: watch::Sender<RelayState>,
    _task: AbortOnDropHandle<()>,
}

impl Relay {
    pub(crate) async fn start(target: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let state = watch::Sender::new(RelayState::default());
        let states = state.clone();
        let accept = async move {
            while let Ok((client, _)) = listener.accept().await {
                let state = states.subscribe();
                if state.borrow().passage != Passage::Closed {
                    tokio::spawn(relay(client, target, state));
                }
            }
        };
        Self {
            address,
            state,
            _task: AbortOnDropHandle::new(tokio::spawn(accept)),
        }
    }

    pub(crate) fn set(&self, passage: Passage) {
        self.state.send_modify(|state| state.passage = passage);
    }

    /// Closes all connections.
    pub(crate) fn cut(&self) {
        self.state.send_modify(|state| state.cuts += 1);
    }
}

async fn relay(client: TcpStream, target: SocketAddr, mut state: watch::Receiver<RelayState>) {
    let Ok(server) = TcpStream::connect(target).await else {
        return;
    };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let cuts = state.borrow_and_update().cuts;
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let up = pass(from_client, to_server, state.clone());
    let down = pass(from_server, to_client, state.clone());
    tokio::select! {
        () = async { tokio::join!(up, down); } => {}
        _ = state.wait_for(|state| state.cuts != cuts) => {}
    }
}

async fn pass(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut state: watch::Receiver<RelayState>,
) {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let slow = state.borrow().passage == Passage::Slow;
        let most = if slow { SLOW_PIECE } else { buffer.len() };
        let Ok(count @ 1..) = from.read(&mut buffer[..most]).await else {
            break;
        };
        if slow {
            tokio::time::sleep(Duration::from_millis(4)).await;
        }
        // The guard of the state must not be held while bytes are written.
        let released = state.wait_for(|state| state.passage != Passage::Stalled);
        let released = released.await.is_ok();
        if !released || to.write_all(&buffer[..count]).await.is_err() {
            break;
        }
    }
    let _ = to.shutdown().await;
}
