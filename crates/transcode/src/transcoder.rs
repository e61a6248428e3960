//! The JSON of one object: the interface for other crates.
use crate::message::Printer;
use crate::releases::differ;
use crate::table::{BuiltInType, MessageTable};
use crate::unexplained::Unexplained;

/// Types that kube-apiserver stores in JSON, whatever it stores others in.
/// Sources: `kubernetes/cmd/kube-apiserver/app/apiextensions.go`, `aggregator.go`: their codecs are
/// `LegacyCodec`s.
const STORED_AS_JSON: &[&str] = &["apiextensions.k8s.io/", "apiregistration.k8s.io/"];

/// The oldest minor release that was compared with the table's.
const OLDEST_RELEASE: u32 = 30;

/// Prints the JSON of one type's objects. Cheap to copy.
///
/// ```
/// use watershed_transcode::{Heading, Transcoder};
///
/// let transcoder = Transcoder::for_type("v1", "Secret").expect("the type is built in");
/// // {1: metadata {1: name, 2: generateName}, 2: data {1: key, 2: value}}
/// let secret = b"\x0a\x05\x0a\x01a\x12\x00\x12\x07\x0a\x01k\x12\x02hi";
/// let mut json = Vec::new();
/// transcoder.object_json(secret, Heading::TypeMeta, &mut json)?;
/// assert_eq!(
///     std::str::from_utf8(&json)?,
///     r#"{"kind":"Secret","apiVersion":"v1","metadata":{"name":"a"},"data":{"k":"aGk="}}"#
/// );
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Transcoder {
    built_in: BuiltInType,
    /// The minor release in whose manner objects are printed.
    release: u32,
}

/// The part of an object's JSON before its first member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heading {
    /// `{"kind":"Pod","apiVersion":"v1",`: in gets and in watch events.
    TypeMeta,
    /// `{`: in lists.
    Brace,
    /// Nothing: the object follows a heading that is held elsewhere.
    None,
}

impl Transcoder {
    /// Returns the transcoder of a built-in type: `apps/v1`, `Deployment`.
    pub fn for_type(api_version: &str, kind: &str) -> Option<Self> {
        let built_in = MessageTable::get().find(api_version, kind)?;
        Some(Self::newest(built_in))
    }

    /// Returns `true` if the differences of a minor release to that of the table are known.
    pub fn knows_release(minor: u32) -> bool {
        (OLDEST_RELEASE..=MessageTable::get().minor).contains(&minor)
    }

    /// Returns a transcoder that prints as another release does: 33 for Kubernetes 1.33.
    ///
    /// It is exact for the releases that are [known](Self::knows_release). Those before print as the
    /// oldest of them here, and those after as the newest. One difference is not made up for: 1.36
    /// prints `"resources":null` in a pod's `nodeAllocatableResourceClaimStatuses`, an alpha feature,
    /// for a member that later releases do not have.
    pub fn for_release(self, minor: u32) -> Self {
        Self {
            release: minor,
            ..self
        }
    }

    /// Returns `true` if `other` prints every object of the type as this one does. Both are of the
    /// same type, perhaps of two releases.
    pub fn prints_like(&self, other: &Self) -> bool {
        let releases = (self.release, other.release);
        !differ(MessageTable::get(), self.built_in.message, releases)
    }

    /// Returns the transcoders of all types, in no order.
    pub fn all() -> impl Iterator<Item = Self> {
        MessageTable::get().types().map(Self::newest)
    }

    /// Returns group and version of the objects, as `apps/v1`.
    pub fn api_version(&self) -> &'static str {
        self.built_in.api_version
    }

    /// Returns the kind of the objects.
    pub fn kind(&self) -> &'static str {
        self.built_in.kind
    }

    /// Returns the release of Kubernetes whose types are known, as `kubernetes v1.37.1`.
    pub fn release() -> &'static str {
        MessageTable::get().release
    }

    /// Returns `true` if kube-apiserver stores the type's objects as JSON.
    ///
    /// A list or map of such an object can be empty where another's is absent, and only JSON tells.
    pub fn is_stored_as_json(&self) -> bool {
        STORED_AS_JSON
            .iter()
            .any(|group| self.built_in.api_version.starts_with(group))
    }

    /// Appends the JSON of an object, given its message: the `raw` field of its `runtime.Unknown`,
    /// or an item of a list.
    ///
    /// Appends nothing if the message is not explained.
    pub fn object_json(
        &self,
        message: &[u8],
        heading: Heading,
        out: &mut Vec<u8>,
    ) -> Result<(), Unexplained> {
        let start = out.len();
        match heading {
            Heading::TypeMeta => self.built_in.put_type_meta(out),
            Heading::Brace => out.push(b'{'),
            Heading::None => {}
        }
        let is_stored_as_json = self.is_stored_as_json();
        let printed = Printer::new(MessageTable::get(), is_stored_as_json, self.release, out)
            .put_members(self.built_in.message, message, heading != Heading::TypeMeta);
        if printed.is_ok() {
            out.push(b'}');
        } else {
            out.truncate(start);
        }
        printed
    }

    fn newest(built_in: BuiltInType) -> Self {
        Self {
            built_in,
            release: u32::MAX,
        }
    }
}
