//! Parsers of what comes from outside, for the fuzz targets of `watershed-fuzz`. No other use is
//! supported.
//!
//! Each function returns what it found in a form that tells inputs apart, or the error's text.
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use futures_util::FutureExt as _;
use rustls::pki_types::CertificateDer;
use watershed_protocol::RequestInfo;
use x509_parser::prelude::{FromDer as _, X509Certificate};

use crate::access::Identity;
use crate::access::{CertificateSubject, overlap};
use crate::audit::policy::{AuditPolicy, PolicyAttributes};
use crate::cli::config;
use crate::listener::inspect::Inspect;
use crate::listener::request_frames::FrameReader;
use crate::listener::request_lines::{LineReader, RefusedRequests};
use crate::listener::{proxy_protocol, tls};
use crate::scope::checkpoint::fuzzing;
use crate::serve::CachingPolicy;

/// Reads a configuration file. Returns `true` if it changes anything.
pub fn configuration(text: &str) -> Result<bool, String> {
    let policy = config::parse(text, CachingPolicy::default());
    policy
        .map(|policy| policy != CachingPolicy::default())
        .map_err(|error| format!("{error:#}"))
}

/// Reads an audit policy, and asks it about some requests. Returns which of them are logged.
pub fn audit_policy(text: &str) -> Result<Vec<bool>, String> {
    let policy = AuditPolicy::parse(text)?;
    let user = Identity {
        user: "alice".to_owned(),
        uid: None,
        groups: vec!["system:authenticated".to_owned()],
        extra: Vec::new(),
    };
    let requests = [
        ("/api/v1/namespaces/a/pods/b", "get"),
        ("/apis/apps/v1/deployments", "list"),
        ("/api/v1/namespaces/a/pods/b/status", "get"),
        ("/healthz", "get"),
    ];
    let logged = requests.map(|(path, verb)| {
        let info = RequestInfo::parse(&http::Method::GET, path, None);
        let attributes = PolicyAttributes {
            user: Some(&user),
            verb,
            path,
            resource: info.resource.as_ref(),
        };
        policy.evaluate(&attributes).is_some()
    });
    Ok(logged.into())
}

/// Reads a client certificate in DER. Returns its user, if it has one.
pub fn certificate(der: &[u8]) -> Result<Option<String>, String> {
    let one = [CertificateDer::from(der)];
    let overlaps = overlap(&one, &one);
    let (_, certificate) = X509Certificate::from_der(der).map_err(|error| error.to_string())?;
    assert!(overlaps, "a certificate has its own key");
    let subject = CertificateSubject::of(&certificate);
    let identity = subject.as_ref().and_then(CertificateSubject::identity);
    Ok(identity.map(|identity| identity.user))
}

/// Reads the certificates of a PEM file. Returns their lengths.
pub fn certificate_file(pem: &[u8]) -> Result<Vec<usize>, String> {
    let certificates = tls::certificates(Path::new("file"), pem);
    certificates
        .map(|all| all.iter().map(|der| der.len()).collect())
        .map_err(|error| error.to_string())
}

/// Reads a header of the PROXY protocol. Returns the address, and how many bytes follow it.
pub fn proxy_header(mut input: &[u8]) -> (Result<Option<SocketAddr>, String>, usize) {
    let header = proxy_protocol::read(&mut input).now_or_never();
    let address = match header {
        Some(read) => read.map_err(|error| error.to_string()),
        None => Err("memory is always ready".to_owned()),
    };
    (address, input.len())
}

/// Follows requests over HTTP/1 that arrive in pieces of this size. Returns why each of the first
/// hundred is refused, if it is.
pub fn request_lines(input: &[u8], piece: usize) -> Vec<Option<String>> {
    let refused = Arc::new(RefusedRequests::default());
    in_pieces(input, piece, &mut LineReader::new(Arc::clone(&refused)));
    let fault = |number| refused.fault(number).map(|fault| format!("{fault:?}"));
    (0..100).map(fault).collect()
}

/// Follows frames of HTTP/2 that arrive in pieces of this size. Returns what hyper gets to read.
pub fn request_frames(input: &[u8], piece: usize) -> Vec<u8> {
    in_pieces(input, piece, &mut FrameReader::default())
}

fn in_pieces(input: &[u8], piece: usize, reader: &mut impl Inspect) -> Vec<u8> {
    let mut bytes = input.to_vec();
    for piece in bytes.chunks_mut(piece.max(1)) {
        reader.inspect(piece);
    }
    bytes
}

/// Returns checkpoint files, without their checksums.
pub fn checkpoint_examples() -> Vec<Vec<u8>> {
    [true, false]
        .into_iter()
        .filter_map(fuzzing::example)
        .collect()
}

/// Reads a checkpoint file without its checksum. Returns the version, and the number of objects.
pub fn checkpoint(file: &[u8]) -> Result<(u64, u64), String> {
    fuzzing::read(file)
}
