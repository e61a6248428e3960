//! Indents gets and lists in JSON for clients that want it, as they are sent.
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt;
use watershed_protocol::{JsonIndenter, Malformed};

use super::gzip;
use crate::body::{Body, BoxError};
use crate::work::WorkBudget;

/// Size of a chunk, about.
const CHUNK: usize = 64 * 1024;

/// Returns a body of compact JSON that is indented as it is sent. The pieces have `length` bytes
/// together.
///
/// The length of a body is known if it is no longer than those that are never compressed.
pub(super) fn indented(
    pieces: impl Iterator<Item = Bytes> + Send + Unpin + 'static,
    length: u64,
) -> Result<Body, Malformed> {
    let mut body = IndentedBody::new(pieces, length);
    if length <= gzip::THRESHOLD {
        body.fill(gzip::THRESHOLD as usize + 1)?;
    }
    Ok(body.boxed_unsync())
}

/// Indents piece by piece, as the connection takes it. Holds a chunk, and references to the rest.
struct IndentedBody<P> {
    pieces: P,
    /// The rest of the piece that is being indented.
    piece: Bytes,
    indenter: JsonIndenter,
    /// Indented bytes that are not sent yet.
    out: BytesMut,
    /// Lower bound of the bytes that are not sent yet. Only a line end is dropped.
    least: u64,
    /// All pieces are indented.
    is_done: bool,
    budget: WorkBudget,
}

impl<P: Iterator<Item = Bytes>> IndentedBody<P> {
    fn new(pieces: P, length: u64) -> Self {
        Self {
            pieces,
            piece: Bytes::new(),
            indenter: JsonIndenter::default(),
            out: BytesMut::new(),
            least: length.saturating_sub(1),
            is_done: false,
            budget: WorkBudget::default(),
        }
    }

    /// Indents until there are `limit` bytes to be sent, or all that are left.
    fn fill(&mut self, limit: usize) -> Result<(), Malformed> {
        while !self.is_done && self.out.len() < limit {
            if self.piece.is_empty() {
                match self.pieces.next() {
                    Some(piece) => self.piece = piece,
                    None => self.is_done = true,
                }
                continue;
            }
            let used = self.indenter.push(&self.piece, limit, &mut self.out)?;
            let _ = self.piece.split_to(used);
        }
        Ok(())
    }

    fn next_chunk(&mut self) -> Result<Option<Bytes>, Malformed> {
        self.out.reserve(CHUNK + CHUNK / 8);
        let filled = self.fill(CHUNK);
        if filled.is_err() {
            self.is_done = true;
            self.out.clear();
        }
        filled?;
        let chunk = self.out.split().freeze();
        self.least = self.least.saturating_sub(chunk.len() as u64);
        Ok(Some(chunk).filter(|chunk| !chunk.is_empty()))
    }
}

impl<P: Iterator<Item = Bytes> + Unpin> http_body::Body for IndentedBody<P> {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = self.get_mut();
        if !this.is_end_stream() && this.budget.awaits_turn(context) {
            return Poll::Pending;
        }
        let chunk = this.next_chunk().map_err(BoxError::from).transpose();
        if let Some(Ok(chunk)) = &chunk {
            this.budget.spend_bytes(chunk.len());
        }
        Poll::Ready(chunk.map(|chunk| chunk.map(Frame::data)))
    }

    fn is_end_stream(&self) -> bool {
        self.is_done && self.out.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        let ready = self.out.len() as u64;
        if self.is_done {
            return SizeHint::with_exact(ready);
        }
        let mut hint = SizeHint::new();
        hint.set_lower(self.least.max(ready));
        hint
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use http_body::Body as _;
    use watershed_protocol::indent;

    use super::*;

    fn list(items: usize) -> Vec<Bytes> {
        let item = |number: usize| {
            let comma = if number == 0 { "" } else { "," };
            let text = "text ".repeat(number % 40);
            format!(r#"{comma}{{"metadata":{{"name":"n{number}"}},"data":{{"a":"{text}"}}}}"#)
        };
        let head = Bytes::from_static(br#"{"kind":"List","items":["#);
        let items = (0..items).map(|number| item(number).into());
        std::iter::once(head)
            .chain(items)
            .chain([Bytes::from_static(b"]}\n")])
            .collect()
    }

    fn body(pieces: &[Bytes]) -> Body {
        let length = pieces.iter().map(|piece| piece.len() as u64).sum();
        indented(Vec::from(pieces).into_iter(), length).unwrap()
    }

    #[tokio::test]
    async fn lists_of_any_length_are_indented() {
        for items in [0, 1, 10, 1_000, 20_000] {
            let pieces = list(items);
            let expected = indent(&pieces.concat()).unwrap();
            let body = body(&pieces);
            let hint = body.size_hint();
            assert!(hint.lower() <= expected.len() as u64);
            let length = expected.len() as u64;
            assert_eq!(hint.exact().is_some(), length <= gzip::THRESHOLD, "{items}");
            assert_eq!(hint.lower() > gzip::THRESHOLD, length > gzip::THRESHOLD);
            assert!(body.collect().await.unwrap().to_bytes() == expected);
        }
    }

    #[test]
    fn a_long_list_lets_other_tasks_have_their_turn() {
        let mut body = body(&list(20_000));
        let mut context = Context::from_waker(Waker::noop());
        let mut turns = 1;
        let mut in_turn = 0;
        while !body.is_end_stream() {
            match Pin::new(&mut body).poll_frame(&mut context) {
                Poll::Pending => (turns, in_turn) = (turns + 1, 0),
                Poll::Ready(Some(Ok(frame))) => {
                    in_turn += frame.into_data().unwrap().len();
                    assert!(in_turn < 4 * CHUNK);
                }
                Poll::Ready(other) => panic!("{other:?}"),
            }
        }
        assert!(turns > 5, "{turns}");
    }

    #[tokio::test]
    async fn json_that_cannot_be_indented_is_no_whole_answer() {
        let unmatched = Bytes::from_static(b"[]]");
        assert!(indented(std::iter::once(unmatched), 3).is_err());
        let deep = Bytes::from([vec![b'['; 20_000], vec![b']'; 20_000]].concat());
        let body = indented(std::iter::once(deep), 40_000).unwrap();
        assert!(body.collect().await.is_err());
    }
}
