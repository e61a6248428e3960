//! Compares a sample of the answers from memory with upstream at the same version, byte for byte.
//!
//! The bytes compared are those that the client was sent. The comparison begins when the answer has
//! ended, with the proxy's own identity, and holds up nobody: what there is no room for is skipped.
mod comparison;
mod expected;
mod pace;
mod sampled_body;

use std::sync::Arc;

use http::{HeaderMap, StatusCode, header};
use http_body_util::BodyExt as _;

use super::answer::Answer;
use super::metrics::{self, VerificationResult};
use super::plan::{ReadKind, ReadPlan};
use super::policy::Verification;
use super::reads::freshness::FreshScope;
use crate::budget::MemoryBudget;
use crate::upstream::UpstreamClient;
use comparison::AnswerComparison;
use expected::ExpectedAnswer;
use pace::Pace;
use sampled_body::SampledBody;

/// The whole, in the unit of [`Verification::parts_per_million`].
const MILLION: u32 = 1_000_000;

/// Marks an answer that is compared with upstream once its body has ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct IsSampled;

/// Chooses the answers to compare.
pub(super) struct Verifier {
    client: UpstreamClient,
    budget: MemoryBudget,
    share: u32,
    pace: Arc<Pace>,
}

impl Verifier {
    pub(super) fn new(
        client: UpstreamClient,
        verification: Verification,
        budget: &MemoryBudget,
    ) -> Self {
        Self {
            client,
            budget: budget.clone(),
            share: verification.parts_per_million,
            pace: Arc::new(Pace::default()),
        }
    }

    /// Returns the answer to a read. If it is chosen, it is compared once the client has it.
    pub(super) fn sample(&self, answer: Answer, fresh: &FreshScope, read: &ReadPlan) -> Answer {
        if self.share == 0 || fastrand::u32(..MILLION) >= self.share {
            return answer;
        }
        let Some(expected) = self.expected(&answer, fresh, read) else {
            return answer;
        };
        let gvr = &read.resource.gvr;
        // Both answers are held until they are compared.
        let Some(turn) = self
            .budget
            .is_relaxed()
            .then(|| self.pace.begin())
            .flatten()
        else {
            metrics::verified(gvr, VerificationResult::Skipped);
            return answer;
        };
        let scope = Arc::clone(&fresh.opened.scope);
        let is_gzip = is_gzip(answer.response.headers());
        let comparison = AnswerComparison::new(
            scope,
            expected,
            turn,
            read_bytes(fresh, read),
            is_gzip,
            &self.budget,
        );
        let Answer { source, response } = answer;
        let mut response = response.map(|body| SampledBody::new(body, comparison).boxed_unsync());
        response.extensions_mut().insert(IsSampled);
        Answer { source, response }
    }

    /// Returns what upstream is to be asked for; `None` if the answer cannot be compared.
    fn expected(
        &self,
        answer: &Answer,
        fresh: &FreshScope,
        read: &ReadPlan,
    ) -> Option<ExpectedAnswer> {
        let opened = &fresh.opened;
        let representation = opened.representation;
        // Upstream's indented answers could be compared only with a request for the same client, and
        // Tables only with one at the same moment, as they have ages.
        let is_plain = answer.response.status() == StatusCode::OK
            && read.table.is_none()
            && !read.is_indented(representation.encoding);
        if !is_plain {
            return None;
        }
        let client = opened.scope.beside(&self.client);
        match &read.kind {
            ReadKind::Get { name } if !representation.metadata_only => {
                let ready = Arc::clone(&opened.ready);
                let expected = ExpectedAnswer::get(client, read, name, representation, ready);
                Some(expected)
            }
            // The question would have to name the shard.
            ReadKind::List(list) if list.filter.shard().is_none() => {
                let ready = &opened.ready;
                let expected = ExpectedAnswer::list(client, read, list, representation, ready);
                Some(expected)
            }
            ReadKind::Get { .. } | ReadKind::List(_) | ReadKind::Watch(_) => None,
        }
    }
}

/// Returns the bytes that upstream reads for an answer that selects objects: it looks at all of them
/// to find these. Otherwise it reads what it sends.
fn read_bytes(fresh: &FreshScope, read: &ReadPlan) -> usize {
    match &read.kind {
        ReadKind::List(list) if !list.filter.is_plain() => {
            fresh.opened.scope.reader.snapshot().size()
        }
        ReadKind::List(_) | ReadKind::Get { .. } | ReadKind::Watch(_) => 0,
    }
}

fn is_gzip(headers: &HeaderMap) -> bool {
    headers.contains_key(header::CONTENT_ENCODING)
}
