//! Checks the readers of CPU time and memory against processes whose usage is known.
use std::hint::black_box;
use std::io::Read as _;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, ensure};
use rustix::time::{ClockId, clock_gettime};

use crate::children::{self, Child};
use watershed_figures::median;
use watershed_lab::process;

/// CPU time of the busy loop, by its own clock.
const PLANTED: Duration = Duration::from_millis(600);
/// Tolerance of a reading: a few ticks, and the CPU time of starting and waiting.
const TOLERANCE: Duration = Duration::from_millis(50);

/// Body of the child: uses `milliseconds` of CPU by its own process clock, says so, and waits for
/// its stdin to end.
pub(crate) fn burn(milliseconds: u64) -> anyhow::Result<()> {
    let mut x = 1_u64;
    while own_cpu_time() < Duration::from_millis(milliseconds) {
        for _ in 0..10_000 {
            x = black_box(x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
        }
    }
    children::announce("burnt")?;
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

/// Fails when a reader misses planted usage or reports usage that does not exist.
pub(crate) fn run() -> anyhow::Result<()> {
    cpu_reader()?;
    memory_readers()?;
    ensure!(
        median([3.0, 1.0, 2.0]) == Some(2.0) && median([4.0, 1.0, 2.0, 3.0]) == Some(2.5),
        "median"
    );
    Ok(())
}

fn own_cpu_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ProcessCPUTime)).unwrap_or_default()
}

/// Starts a child that burns CPU. Returns it with the CPU time that the reader sees.
fn burning(folder: &Path, milliseconds: u64) -> anyhow::Result<(Child, Duration)> {
    let child = Child::own("burn", folder, &["burn", &milliseconds.to_string()])?;
    child.await_line("burnt")?;
    let seen = process::cpu_time(child.pid())?;
    Ok((child, seen))
}

fn cpu_reader() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let (_busy, busy) = burning(folder.path(), u64::try_from(PLANTED.as_millis())?)?;
    let (quiet, before) = burning(folder.path(), 0)?;
    std::thread::sleep(Duration::from_millis(300));
    let idle = process::cpu_time(quiet.pid())?.saturating_sub(before);
    println!("a loop of {PLANTED:?} CPU is read as {busy:?}, a sleeping process as {idle:?}");
    ensure!(
        busy.abs_diff(PLANTED) <= TOLERANCE,
        "the CPU reader does not see a planted busy loop"
    );
    ensure!(
        idle <= TOLERANCE,
        "the CPU reader sees work where there is none"
    );
    Ok(())
}

fn memory_readers() -> anyhow::Result<()> {
    let own = process::resident_memory(std::process::id()).context("the memory reader fails")?;
    let ballast = black_box(vec![1_u8; 64 << 20]);
    let grown = process::resident_memory(std::process::id())?.saturating_sub(own);
    println!(
        "{} MiB of memory are read as {} MiB",
        ballast.len() >> 20,
        grown >> 20
    );
    ensure!(
        grown.abs_diff(ballast.len() as u64) < 8 << 20,
        "the memory reader does not see planted memory"
    );
    process::reset_peak_memory(std::process::id())?;
    let before = process::resident_memory(std::process::id())?;
    let again = black_box(vec![1_u8; 32 << 20]);
    let short = again.len() as u64;
    drop(again);
    let peak = process::peak_memory(std::process::id())?.saturating_sub(before);
    println!(
        "{} MiB more for a moment are a peak of {} MiB more",
        short >> 20,
        peak >> 20
    );
    ensure!(
        peak.abs_diff(short) < 8 << 20,
        "the peak reader does not see memory that is gone again"
    );
    drop(ballast);
    // The allocator needs a while to return the memory.
    std::thread::sleep(Duration::from_secs(3));
    process::reset_peak_memory(std::process::id())?;
    let (peak, now) = (
        process::peak_memory(std::process::id())?,
        process::resident_memory(std::process::id())?,
    );
    ensure!(peak.abs_diff(now) < 8 << 20, "a peak is not forgotten");
    Ok(())
}
