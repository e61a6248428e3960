//! Media types of the wire forms.

/// A wire form objects are kept and served in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Encoding {
    /// `application/json`.
    Json,
    /// `application/vnd.kubernetes.protobuf`.
    Protobuf,
}

impl Encoding {
    /// The `Content-Type` of an answer; watches in JSON carry no stream parameter.
    ///
    /// Source: `apiserver/pkg/endpoints/handlers/watch.go:98-110`.
    pub fn content_type(self, watch: bool) -> &'static str {
        match (self, watch) {
            (Self::Json, _) => "application/json",
            (Self::Protobuf, false) => "application/vnd.kubernetes.protobuf",
            (Self::Protobuf, true) => "application/vnd.kubernetes.protobuf;stream=watch",
        }
    }
}
