//! Server processes that end with this one, however it ends.
use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::process::{Signal, getppid, set_parent_process_death_signal};

/// Time for a server to announce that it is ready.
const PATIENCE: Duration = Duration::from_mins(2);

/// A child process. Dropping it ends it; if this process is killed, the kernel ends it.
#[derive(Debug)]
pub(crate) struct Child {
    process: std::process::Child,
    stdin: Option<ChildStdin>,
    name: &'static str,
    /// Its standard output and error, line by line.
    log: PathBuf,
    /// It ends by itself, and its own children too, when its stdin does.
    polite: bool,
}

/// Becomes another program, in a process that the kernel ends with its parent.
///
/// The death signal stays set across the exec and is of the *thread* that started this process:
/// children are to be started on the main thread.
pub(crate) fn become_program(
    parent: i32,
    program: &Path,
    arguments: &[String],
) -> anyhow::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    if getppid().is_none_or(|now| now.as_raw_nonzero().get() != parent) {
        bail!("the parent is gone already");
    }
    let error = Command::new(program).args(arguments).exec();
    Err(error).with_context(|| format!("cannot run {}", program.display()))
}

/// Says something on standard output that [`Child::await_line`] can find.
pub(crate) fn announce(line: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}

impl Child {
    /// Starts a program.
    pub(crate) fn program(
        name: &'static str,
        folder: &Path,
        program: &Path,
        arguments: &[&str],
    ) -> anyhow::Result<Self> {
        let program = program.to_str().context("the program's path is not text")?;
        let parent = std::process::id().to_string();
        let own = ["exec", "--parent", &parent, "--", program];
        Self::own(name, folder, &[&own[..], arguments].concat())
    }

    /// Starts a part of this program.
    pub(crate) fn own(
        name: &'static str,
        folder: &Path,
        arguments: &[&str],
    ) -> anyhow::Result<Self> {
        Self::start(name, folder, &std::env::current_exe()?, arguments, false)
    }

    /// Starts a program that ends by itself when its stdin does, and has children of its own.
    pub(crate) fn polite(
        name: &'static str,
        folder: &Path,
        program: &Path,
        arguments: &[&str],
    ) -> anyhow::Result<Self> {
        Self::start(name, folder, program, arguments, true)
    }

    fn start(
        name: &'static str,
        folder: &Path,
        program: &Path,
        arguments: &[&str],
        polite: bool,
    ) -> anyhow::Result<Self> {
        let log = folder.join(format!("{name}.log"));
        let output = File::create(&log)?;
        let mut process = Command::new(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()
            .with_context(|| format!("cannot start {name} ({})", program.display()))?;
        let stdin = process.stdin.take();
        Ok(Self {
            process,
            stdin,
            name,
            log,
            polite,
        })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Waits for a line that contains `mark`, and gives it back.
    pub(crate) fn await_line(&self, mark: &str) -> anyhow::Result<String> {
        let started = Instant::now();
        loop {
            let text = fs::read_to_string(&self.log)?;
            // The last piece may be half a line.
            let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
            if let Some(line) = whole.lines().find(|line| line.contains(mark)) {
                return Ok(line.to_owned());
            }
            let gone = !Path::new(&format!("/proc/{}", self.pid())).exists()
                || fs::read_to_string(format!("/proc/{}/stat", self.pid()))
                    .is_ok_and(|s| s.contains(") Z "));
            if gone || started.elapsed() > PATIENCE {
                let how = if gone { "ended" } else { "did not get ready" };
                bail!("{} {how}; it said:\n{text}", self.name);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        drop(self.stdin.take());
        if self.polite {
            let started = Instant::now();
            while started.elapsed() < Duration::from_secs(20) {
                if matches!(self.process.try_wait(), Ok(Some(_)) | Err(_)) {
                    return;
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
