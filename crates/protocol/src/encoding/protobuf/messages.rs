//! Messages that are written from values, derived by prost.
//!
//! Upstream's gogo protobuf writes strings and numbers also when they are empty or zero. A proto3
//! encoder leaves those out, so every such field is declared as `required` here.
//!
//! Sources: `apimachinery/pkg/runtime/generated.proto`,
//! `apimachinery/pkg/apis/meta/v1/generated.proto` and `generated.pb.go`.
use prost::Message;

/// `runtime.TypeMeta`
#[derive(Clone, PartialEq, Message)]
pub(crate) struct TypeMeta {
    #[prost(string, required, tag = "1")]
    pub(crate) api_version: String,
    #[prost(string, required, tag = "2")]
    pub(crate) kind: String,
}

/// `meta.v1.ListMeta`
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ListMeta {
    #[prost(string, required, tag = "1")]
    pub(crate) self_link: String,
    #[prost(string, required, tag = "2")]
    pub(crate) resource_version: String,
    #[prost(string, required, tag = "3")]
    pub(crate) continue_token: String,
    #[prost(int64, optional, tag = "4")]
    pub(crate) remaining: Option<i64>,
    #[prost(message, optional, tag = "5")]
    pub(crate) shard_info: Option<ShardInfo>,
}

/// `meta.v1.ShardInfo`
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ShardInfo {
    #[prost(string, required, tag = "1")]
    pub(crate) selector: String,
}

/// An entry of a `map<string, string>`. As a map's entry, prost would leave out an empty value.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct StringEntry {
    #[prost(string, required, tag = "1")]
    pub(crate) key: String,
    #[prost(string, required, tag = "2")]
    pub(crate) value: String,
}
