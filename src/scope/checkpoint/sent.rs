//! A checkpoint on its way to another replica.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::Frame;
use tokio::time::Instant;

use super::captured::CapturedScope;
use super::file::{CheckpointHeader, CheckpointWriter};
use crate::scope::cached::Scope;
use crate::store::{ObjectPeek, Snapshot};
use crate::work::{REDUCED_OBJECT, WorkBudget, retire};

/// Size from which a chunk is sent.
const CHUNK: usize = 64 << 10;
/// Bytes per second below which a state is not sent to its end. Other replicas give up sooner.
const LEAST_RATE: usize = 1 << 20;
/// Time that a state of any size may take.
const LEAST_TIME: Duration = Duration::from_secs(10);

/// The checkpoint of a scope, written piece by piece as the connection takes it.
///
/// Beside the state, which it holds as a list does, it needs the memory of one chunk.
pub struct CheckpointBody {
    snapshot: Snapshot,
    /// Gone once the end is written.
    writer: Option<CheckpointWriter<Vec<u8>>>,
    /// The key of the last object that was written.
    after: Option<String>,
    peek: ObjectPeek,
    budget: WorkBudget,
    /// Then it ends unfinished: whoever takes it slowly takes a turn from others.
    deadline: Instant,
}

impl CheckpointBody {
    /// Captures the state of a scope; `None` if it cannot be shown again exactly. The digest is of
    /// its cluster.
    pub(in crate::scope) fn of(scope: &Scope, cluster: String) -> Option<Self> {
        let captured = CapturedScope::of(scope)?;
        // The addresses of upstream are not the other replica's business.
        let header = captured.header(&scope.key, cluster, Vec::new());
        Self::begin(captured, &header).ok()
    }

    fn begin(captured: CapturedScope, header: &CheckpointHeader) -> io::Result<Self> {
        let mut writer = CheckpointWriter::begin(Vec::with_capacity(CHUNK), header)?;
        writer.block(&captured.bookmark)?;
        let seconds = captured.snapshot.size() / LEAST_RATE;
        let longest = LEAST_TIME + Duration::from_secs(seconds as u64);
        Ok(Self {
            snapshot: captured.snapshot,
            writer: Some(writer),
            after: None,
            peek: ObjectPeek::default(),
            budget: WorkBudget::default(),
            deadline: Instant::now() + longest,
        })
    }

    /// Returns the number of objects.
    pub fn objects(&self) -> usize {
        self.snapshot.len()
    }

    /// Writes the next chunk; `None` after the end.
    fn next(&mut self) -> io::Result<Option<Bytes>> {
        let Some(writer) = &mut self.writer else {
            return Ok(None);
        };
        if Instant::now() > self.deadline {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let mut last = None;
        for object in self.snapshot.items_after(None, self.after.as_deref()) {
            self.budget.spend(REDUCED_OBJECT);
            writer.block(self.peek.bytes(object).as_slice())?;
            last = Some(object.key());
            if writer.waiting() >= CHUNK || self.budget.is_spent() {
                break;
            }
        }
        match last.map(str::to_owned) {
            Some(key) => {
                self.after = Some(key);
                Ok(Some(writer.take().into()))
            }
            None => match self.writer.take() {
                Some(writer) => Ok(Some(writer.end()?.0.into())),
                None => Ok(None),
            },
        }
    }
}

impl http_body::Body for CheckpointBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let this = self.get_mut();
        if this.writer.is_some() && this.budget.awaits_turn(context) {
            return Poll::Pending;
        }
        let chunk = this.next();
        if let Ok(Some(chunk)) = &chunk {
            this.budget.spend_bytes(chunk.len());
        }
        Poll::Ready(chunk.map(|chunk| chunk.map(Frame::data)).transpose())
    }

    fn is_end_stream(&self) -> bool {
        self.writer.is_none()
    }
}

impl Drop for CheckpointBody {
    fn drop(&mut self) {
        let snapshot = std::mem::take(&mut self.snapshot);
        let objects = snapshot.len();
        retire(snapshot, objects);
    }
}
