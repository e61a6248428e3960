//! The comparison of one answer with upstream.
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use tokio::time::timeout;
use watershed_protocol::gunzip;

use super::expected::{ExpectedAnswer, UpstreamWord};
use super::pace::PaceTurn;
use crate::budget::{MemoryBudget, MemoryCharge, MemoryClass};
use crate::scope::{DifferenceExcerpt, ObjectDifference, Scope};
use crate::serve::metrics::{self, VerificationResult};
use crate::upstream::AnswerError;

/// Timeout of upstream's answer.
const TIMEOUT: Duration = Duration::from_secs(20);
/// Largest answer that is compared, uncompressed.
const MAX_PLAIN: usize = 64 << 20;

/// A comparison that begins when the answer has ended.
pub(super) struct AnswerComparison {
    scope: Arc<Scope>,
    expected: ExpectedAnswer,
    turn: PaceTurn,
    /// Bytes that upstream reads to answer, if they are more than the answer has.
    read_bytes: usize,
    is_gzip: bool,
    budget: MemoryBudget,
    /// The bytes that the client was sent, and later both answers.
    charge: MemoryCharge,
}

impl AnswerComparison {
    pub(super) fn new(
        scope: Arc<Scope>,
        expected: ExpectedAnswer,
        turn: PaceTurn,
        read_bytes: usize,
        is_gzip: bool,
        budget: &MemoryBudget,
    ) -> Self {
        Self {
            scope,
            expected,
            turn,
            read_bytes,
            is_gzip,
            budget: budget.clone(),
            charge: budget.charge(MemoryClass::Answers, 0),
        }
    }

    /// Counts bytes that are kept until the comparison ends.
    pub(super) fn keep(&mut self, bytes: usize) {
        self.charge.grow(bytes);
    }

    /// Gives the comparison up: the answer is too long, or the client did not take all of it.
    pub(super) fn skip(self) {
        self.count(VerificationResult::Skipped);
    }

    /// Compares what the client was sent.
    pub(super) async fn run(mut self, chunks: Vec<Bytes>) {
        let result = self.result(&chunks).await;
        self.count(result);
    }

    fn count(&self, result: VerificationResult) {
        metrics::verified(&self.expected.resource.gvr, result);
    }

    async fn result(&mut self, chunks: &[Bytes]) -> VerificationResult {
        // There will be two of them: a copy of this one, and upstream's.
        let free = self.budget.free().map_or(usize::MAX, |free| free / 2);
        let Some(answer) = plain(chunks, self.is_gzip, MAX_PLAIN.min(free)) else {
            return VerificationResult::Skipped;
        };
        self.charge.grow(2 * answer.len());
        self.turn.spend(answer.len().max(self.read_bytes));
        // Another release prints objects differently, and another timeline has other versions.
        if !self.is_comparable() {
            return VerificationResult::Changed;
        }
        let word = match timeout(TIMEOUT, self.expected.ask(&answer)).await {
            Ok(Ok(word)) => word,
            Ok(Err(error)) if error.status() == Some(StatusCode::GONE) => {
                return VerificationResult::Expired;
            }
            Ok(Err(error)) => return self.failed(&error),
            Err(late) => return self.failed(&late),
        };
        match word {
            UpstreamWord::Answer(upstream) if upstream == answer => VerificationResult::Same,
            UpstreamWord::Answer(upstream) if self.is_comparable() => {
                self.report(&answer, &upstream);
                VerificationResult::Different
            }
            UpstreamWord::Answer(_) | UpstreamWord::Changed => VerificationResult::Changed,
        }
    }

    fn is_comparable(&self) -> bool {
        self.scope.is_current() && self.scope.is_printed_by_its_server()
    }

    fn failed(&self, error: &dyn std::error::Error) -> VerificationResult {
        let resource = &self.expected.resource.gvr;
        tracing::debug!(%resource, %error, "an answer was not compared with upstream");
        VerificationResult::Failed
    }

    /// Logs where the answers differ, and nothing of what they say.
    fn report(&self, answer: &Bytes, upstream: &Bytes) {
        let same = answer.iter().zip(upstream).take_while(|(a, b)| a == b);
        let differences = if self.expected.is_list() {
            self.object_differences(answer, upstream)
                .unwrap_or_default()
        } else {
            Vec::new()
        };
        let key = &self.scope.key;
        tracing::error!(
            resource = %key.gvr,
            selection = %key.selection,
            representation = %key.representation,
            offset = same.count(),
            bytes = answer.len(),
            upstream_bytes = upstream.len(),
            differences = %DifferenceExcerpt(&differences),
            "an answer from memory differs from upstream's"
        );
    }

    fn object_differences(
        &self,
        answer: &Bytes,
        upstream: &Bytes,
    ) -> Result<Vec<ObjectDifference>, AnswerError> {
        let (_, held) = self.expected.objects(answer)?;
        let (_, listed) = self.expected.objects(upstream)?;
        let mut differences = ObjectDifference::between(
            held.iter().map(|(key, version, _)| (&**key, *version)),
            listed.iter().map(|(key, version, _)| (&**key, *version)),
        );
        if differences.is_empty() {
            let pairs = held.iter().zip(&listed);
            differences.extend(pairs.filter_map(|((key, _, held), (_, _, listed))| {
                ObjectDifference::of_bytes(key, held, listed)
            }));
        }
        Ok(differences)
    }
}

/// Returns the bytes without compression; `None` if they are more than `max`, or not what gzip
/// makes.
fn plain(chunks: &[Bytes], is_gzip: bool, max: usize) -> Option<Bytes> {
    if !is_gzip {
        let length: usize = chunks.iter().map(Bytes::len).sum();
        return (length <= max).then(|| match chunks {
            [only] => only.clone(),
            chunks => chunks.concat().into(),
        });
    }
    gunzip(chunks.iter().map(|chunk| &chunk[..]), max).ok()
}

#[cfg(test)]
mod tests {
    use watershed_protocol::gzip_member;

    use super::*;

    #[test]
    fn compressed_answers_are_compared_without_compression() {
        let text = b"an answer ".repeat(5000);
        let packed = gzip_member(&text);
        let halves = [
            packed.slice(..packed.len() / 2),
            packed.slice(packed.len() / 2..),
        ];
        assert_eq!(plain(&halves, true, MAX_PLAIN).as_deref(), Some(&text[..]));
        assert_eq!(plain(&halves[..1], true, MAX_PLAIN), None);
        assert_eq!(
            plain(&[Bytes::from_static(b"no gzip")], true, MAX_PLAIN),
            None
        );
        assert_eq!(plain(&halves, false, MAX_PLAIN), Some(packed));
        assert_eq!(plain(&[], false, MAX_PLAIN), Some(Bytes::new()));
        assert_eq!(plain(&halves, true, text.len() - 1), None);
        assert_eq!(plain(&[text.clone().into()], false, text.len() - 1), None);
        let bomb = gzip_member(&vec![0; MAX_PLAIN + 1]);
        assert_eq!(plain(&[bomb], true, MAX_PLAIN), None);
    }
}
