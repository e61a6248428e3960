//! A proxy in a process of its own, in which every allocation is counted.
use std::hint::black_box;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::ops::Sub;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use stats_alloc::{INSTRUMENTED_SYSTEM, Stats};
use watershed::app::{self, AppConfig};
use watershed_connect::ConnectOptions;
use watershed_lab::sim::SimulatedServer;

use crate::children::{Child, announce};
use crate::client::Endpoint;

/// Commands on the counter's socket: report the counts, or make [`PLANTED`] allocations before.
const COUNT: u8 = b'c';
const PLANT: u8 = b'p';
/// Allocations that the counter must see, of [`PLANTED_BYTES`] each.
pub(crate) const PLANTED: u64 = 1000;
pub(crate) const PLANTED_BYTES: usize = 64;

/// Since the process began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Allocations, and allocations that were moved or grew.
    pub(crate) allocations: u64,
    pub(crate) bytes: u64,
}

/// The process, seen from outside.
pub(crate) struct Counted {
    pub(crate) endpoint: Endpoint,
    counter: SocketAddr,
    _child: Child,
}

impl From<Stats> for Counts {
    fn from(stats: Stats) -> Self {
        Self {
            allocations: (stats.allocations + stats.reallocations) as u64,
            bytes: stats.bytes_allocated as u64,
        }
    }
}

impl Sub for Counts {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self {
            allocations: self.allocations - before.allocations,
            bytes: self.bytes - before.bytes,
        }
    }
}

// === in the process ===

/// Runs a proxy with its defaults until it is killed.
pub(crate) fn run(folder: &Path) -> anyhow::Result<()> {
    let counter = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let counter_at = counter.local_addr()?;
    std::thread::spawn(move || {
        counter
            .incoming()
            .flatten()
            .for_each(|asked| drop(send_counts(asked)));
    });
    watershed_connect::install_crypto();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let loopback = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let upstream = ConnectOptions {
            kubeconfig: Some(kubeconfig(folder)),
            ..ConnectOptions::default()
        };
        let running = app::start(AppConfig::new(
            upstream,
            loopback,
            loopback,
            folder.join("certs"),
        ))
        .await?;
        let address = running.address.context("no address")?;
        announce(&format!("counted {address} {counter_at}"))?;
        std::future::pending::<()>().await;
        Ok(())
    })
}

/// Answers without an allocation of its own.
fn send_counts(mut asked: TcpStream) -> std::io::Result<()> {
    let mut what = [0];
    asked.read_exact(&mut what)?;
    if what[0] == PLANT {
        for _ in 0..PLANTED {
            black_box(Box::new([0_u8; PLANTED_BYTES]));
        }
    }
    let counts = Counts::from(INSTRUMENTED_SYSTEM.stats());
    asked.write_all(&counts.allocations.to_be_bytes())?;
    asked.write_all(&counts.bytes.to_be_bytes())
}

fn kubeconfig(folder: &Path) -> PathBuf {
    folder.join("kubeconfig")
}

// === outside ===

impl Counted {
    /// Starts it in front of `upstream`.
    pub(crate) fn start(folder: &Path, upstream: &SimulatedServer) -> anyhow::Result<Self> {
        std::fs::write(kubeconfig(folder), upstream.kubeconfig_yaml())?;
        let name = folder.to_str().context("the folder's path is not text")?;
        let child = Child::program(
            "counted",
            folder,
            &std::env::current_exe()?,
            &["proxy", name],
        )?;
        let line = child.await_line("counted ")?;
        let mut words = line.split(' ').skip(1);
        let (address, counter) = (
            words.next().context("no address")?,
            words.next().context("no counter")?,
        );
        let ca = std::fs::read(folder.join("certs").join("ca.crt"))?;
        let endpoint = Endpoint::new(address, &ca, upstream.admin_token())?;
        Ok(Self {
            endpoint,
            counter: counter.parse()?,
            _child: child,
        })
    }

    pub(crate) fn counts(&self) -> anyhow::Result<Counts> {
        self.ask(COUNT)
    }

    /// The counts after [`PLANTED`] more allocations.
    pub(crate) fn plant(&self) -> anyhow::Result<Counts> {
        self.ask(PLANT)
    }

    fn ask(&self, what: u8) -> anyhow::Result<Counts> {
        let mut counter = TcpStream::connect(self.counter)?;
        counter.write_all(&[what])?;
        let mut number = || -> anyhow::Result<u64> {
            let mut bytes = [0; 8];
            counter.read_exact(&mut bytes)?;
            Ok(u64::from_be_bytes(bytes))
        };
        Ok(Counts {
            allocations: number()?,
            bytes: number()?,
        })
    }
}
