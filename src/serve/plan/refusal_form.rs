//! The form in which a client gets refusals.
use bytes::Bytes;
use watershed_protocol::{Encoding, Status};

/// The form in which a client gets refusals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::serve) struct RefusalForm {
    pub(in crate::serve) encoding: Encoding,
    /// The client wants JSON indented.
    pub(in crate::serve) indented: bool,
}

impl Default for RefusalForm {
    /// Compact JSON.
    fn default() -> Self {
        Self {
            encoding: Encoding::Json,
            indented: false,
        }
    }
}

impl RefusalForm {
    /// Returns the body of a refusal.
    pub(in crate::serve) fn body(self, status: &Status) -> Bytes {
        match self.encoding {
            Encoding::Json if self.indented => status.to_indented_json(),
            encoding => status.encode(encoding),
        }
    }
}
