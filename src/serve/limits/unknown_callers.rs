//! Bounds what callers can make upstream receive before it has accepted them.
use http::Request;
use watershed_protocol::Status;

use super::exceeded::LimitExceeded;
use crate::access::Authenticated;
use crate::headers::{field_bytes, target_bytes};
use crate::serve::exchange::Exchange;
use crate::serve::unanswered::Refusal;

/// Bytes of a request's header fields that an unknown caller may send. A token of 20 KB fits in.
const MAX_FIELD_BYTES: usize = 32 * 1024;

/// Returns the limit that the head of an unknown caller's request exceeds. Who sends a large head
/// and a token may be known to upstream, which is asked then.
pub(in crate::serve) async fn check_head(exchange: &Exchange<'_>) -> Result<(), LimitExceeded> {
    if exchange.is_known || field_bytes(exchange.headers()) <= MAX_FIELD_BYTES {
        return Ok(());
    }
    if exchange.credential.is_none() {
        return Err(LimitExceeded::HeaderBytes);
    }
    if is_user(exchange).await {
        Ok(())
    } else {
        Err(LimitExceeded::HeaderBytes)
    }
}

/// Counts a request that is about to be forwarded. Returns the refusal, or the limit that it
/// exceeds.
pub(in crate::serve) async fn admit_forward(exchange: &Exchange<'_>) -> Result<(), Refusal> {
    if exchange.is_known {
        return Ok(());
    }
    if let Some(credential) = &exchange.credential
        && !exchange.access.may_try_token(exchange.address())
    {
        return Err(if exchange.access.was_refused(credential) {
            Refusal::access(Status::unauthorized())
        } else {
            LimitExceeded::RefusedTokens.into()
        });
    }
    let connection = &exchange.peer.connection;
    if connection.may_send_on(head_bytes(&exchange.request)) {
        return Ok(());
    }
    // HTTP/2 clients name their token with a byte. Those of upstream's users may, as often as they
    // like, also where no answer has told yet that they are users.
    if is_user(exchange).await {
        Ok(())
    } else {
        Err(LimitExceeded::Amplification.into())
    }
}

/// Returns `true` if upstream knows the caller by its token. It is asked unless it was lately.
async fn is_user(exchange: &Exchange<'_>) -> bool {
    matches!(
        exchange.identify_bearer().await,
        Ok(Authenticated::Known(_))
    )
}

/// Returns the length of a request's head, as HTTP/1.1 writes it.
fn head_bytes<B>(request: &Request<B>) -> u64 {
    const LINE: usize = " HTTP/1.1\r\n\r\n".len();
    let target = target_bytes(request.uri()).max(1);
    let line = request.method().as_str().len() + target + LINE;
    (line + field_bytes(request.headers())) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_as_long_as_it_is_written() {
        let request = Request::get("/api/v1/pods?watch=1")
            .header("host", "proxy")
            .header("accept", "application/json")
            .body(())
            .unwrap();
        let written = "GET /api/v1/pods?watch=1 HTTP/1.1\r\n\
                       host: proxy\r\naccept: application/json\r\n\r\n";
        assert!(head_bytes(&request).abs_diff(written.len() as u64) <= 1);
    }
}
