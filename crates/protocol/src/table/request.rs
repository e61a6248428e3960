//! The Table that a client asks for.

/// The version of the Table type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TableVersion {
    /// `meta.k8s.io/v1`.
    V1,
    /// `meta.k8s.io/v1beta1`, which looks the same.
    V1Beta1,
}

/// The part of an object that its row has beside the cells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum IncludedObject {
    /// Nothing.
    None,
    /// Its metadata.
    #[default]
    Metadata,
    /// The whole object.
    Object,
}

/// The Table that a client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TableRequest {
    /// The version of the Table.
    pub version: TableVersion,
    /// The objects beside the cells.
    pub include: IncludedObject,
}

impl TableVersion {
    /// Returns the version of this name.
    pub fn parse(version: &str) -> Option<Self> {
        match version {
            "v1" => Some(Self::V1),
            "v1beta1" => Some(Self::V1Beta1),
            _ => None,
        }
    }

    pub(super) fn api_version(self) -> &'static str {
        match self {
            Self::V1 => "meta.k8s.io/v1",
            Self::V1Beta1 => "meta.k8s.io/v1beta1",
        }
    }
}

impl IncludedObject {
    /// Returns the part that the value of `includeObject` names. Upstream refuses other values.
    pub fn parse(value: &str) -> Option<Self> {
        match value {
            "" | "Metadata" => Some(Self::Metadata),
            "None" => Some(Self::None),
            "Object" => Some(Self::Object),
            _ => None,
        }
    }
}
