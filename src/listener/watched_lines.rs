//! The requests of an HTTP/1 connection: shows the request head that is not complete.
use std::sync::Arc;

use super::activity::Activity;
use super::inspect::Inspect;
use super::request_lines::LineReader;

/// Reads the lines of a connection, and reports heads that are not complete.
pub(super) struct WatchedLines {
    lines: LineReader,
    /// Bytes between requests that cannot be told from one.
    unclear: usize,
    activity: Arc<Activity>,
}

impl WatchedLines {
    pub(super) fn new(activity: &Arc<Activity>) -> Self {
        Self {
            lines: LineReader::new(Arc::clone(activity.refused())),
            unclear: 0,
            activity: Arc::clone(activity),
        }
    }
}

impl Inspect for WatchedLines {
    fn inspect(&mut self, bytes: &mut [u8]) {
        self.lines.inspect(bytes);
        // What a tunnel carries is no head.
        if !self.activity.is_http1() || self.activity.is_upgraded() {
            return;
        }
        let unfinished = if !self.lines.is_lost() {
            self.lines.unfinished()
        } else if self.activity.is_busy() {
            // The body of the request that runs.
            0
        } else {
            self.unclear += bytes.len();
            self.unclear
        };
        self.activity.note_head(unfinished);
    }
}

#[cfg(test)]
mod tests {
    use super::super::activity::RunningRequest;
    use super::super::fresh_streams::FreshStreams;
    use super::super::input_memory::InputMemory;
    use super::super::limits::ConnectionLimits;
    use super::super::metrics::Cut;
    use super::*;
    use crate::budget::MemoryBudget;

    /// Returns two connections that share little memory for heads.
    fn pair() -> [(Arc<Activity>, WatchedLines); 2] {
        let heads = InputMemory::within(&MemoryBudget::new(Some(1 << 20)));
        let streams = FreshStreams::within(&MemoryBudget::default());
        [(); 2].map(|()| {
            let activity = Activity::new(&heads, &streams);
            activity.set_http1();
            let lines = WatchedLines::new(&activity);
            (activity, lines)
        })
    }

    fn header(bytes: usize) -> Vec<u8> {
        let mut head = b"GET / HTTP/1.1\r\nx: ".to_vec();
        head.resize(bytes, b'x');
        head
    }

    #[test]
    fn what_a_tunnel_carries_is_no_head() {
        let [(tunnel, mut carried), (other, mut lines)] = pair();
        carried.inspect(&mut header(6_000));
        drop(RunningRequest::new(&tunnel));
        tunnel.end_requests();
        carried.inspect(&mut vec![b'x'; 10 << 20]);
        assert_eq!(tunnel.condemned(), None);
        lines.inspect(&mut header(20_000));
        assert_eq!(other.condemned(), None, "the tunnel counts");
        lines.inspect(&mut vec![b'x'; 20_000]);
        assert_eq!(other.condemned(), Some(Cut::Head));
    }

    #[test]
    fn a_body_behind_its_answer_is_no_head() {
        let limits = ConnectionLimits::default();
        let [(activity, mut lines), (other, mut others)] = pair();
        let head = b"POST / HTTP/1.1\r\ncontent-length: 100000\r\n\r\n";
        lines.inspect(&mut head.to_vec());
        drop(RunningRequest::new(&activity));
        lines.inspect(&mut vec![b'x'; 100_000 - 1]);
        assert!(activity.head_at(&limits).is_none() && activity.condemned().is_none());
        others.inspect(&mut header(20_000));
        assert_eq!(other.condemned(), None, "the body counts");
        // The next request, behind the end of the body and an empty line.
        lines.inspect(&mut b"x\r\n".to_vec());
        assert!(activity.head_at(&limits).is_none());
        lines.inspect(&mut b"GET".to_vec());
        assert!(activity.head_at(&limits).is_some());
    }

    #[test]
    fn what_is_no_request_counts_as_a_head() {
        let limits = ConnectionLimits::default();
        let unclear = "POST / HTTP/1.1\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n";
        for (before, sent) in [("", "\r\n"), (unclear, "xx")] {
            let [(activity, mut lines), _] = pair();
            lines.inspect(&mut before.as_bytes().to_vec());
            drop(RunningRequest::new(&activity));
            lines.inspect(&mut sent.repeat(5_000).into_bytes());
            assert!(activity.head_at(&limits).is_some(), "{sent:?}");
            lines.inspect(&mut sent.repeat(20_000).into_bytes());
            assert_eq!(activity.condemned(), Some(Cut::Head), "{sent:?}");
        }
    }

    #[test]
    fn a_head_behind_a_running_request_has_its_time_from_the_end_of_that() {
        let limits = ConnectionLimits::default();
        let [(activity, mut lines), _] = pair();
        lines.inspect(&mut b"GET / HTTP/1.1\r\n\r\nGET".to_vec());
        let running = RunningRequest::new(&activity);
        assert!(activity.head_at(&limits).is_none());
        drop(running);
        assert!(activity.head_at(&limits).is_some());
    }
}
