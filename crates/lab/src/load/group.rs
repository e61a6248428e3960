//! Groups of equal clients: their reads, the rates and the encodings.
use std::str::FromStr;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use serde::de::Deserializer;

use super::counted::NumberedText;
use crate::from_text::from_text;
use crate::rate::Rate;
use watershed_protocol::{
    Encoding, FieldSelector, GroupVersionResource, LabelSelector, Representation,
};

/// Characters that are not escaped in a query's value.
const VALUE: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b'~');

/// A group of equal clients.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ClientGroup {
    /// Watches, open from the start to the end.
    pub watches: usize,
    /// Lists of the whole selection.
    pub lists: Rate,
    /// Gets of single objects, in turn.
    pub gets: Rate,
    /// Type of the objects that are read.
    pub resource: KubectlResource,
    /// All namespaces when empty.
    pub namespace: NumberedText,
    /// A label selector.
    pub selector: NumberedText,
    /// A field selector.
    pub field_selector: NumberedText,
    /// The encoding of answers.
    pub encoding: AnswerEncoding,
    /// Asks for compressed answers.
    pub gzip: bool,
    /// Asks for the objects' metadata only.
    pub metadata_only: bool,
    /// Lists and gets want the latest state (resourceVersion unset) instead of any (0).
    pub consistent: bool,
    /// The way in which watches get their first state.
    pub first_state: FirstState,
}

/// A resource type as kubectl names it: `pods`, `deployments.v1.apps`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KubectlResource(pub GroupVersionResource);

/// The encoding of answers.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, serde::Serialize, clap::ValueEnum,
)]
#[serde(rename_all = "lowercase")]
pub enum AnswerEncoding {
    /// JSON.
    #[default]
    Json,
    /// Kubernetes' protobuf; custom resources do not have it.
    Protobuf,
}

/// The way in which watches get their first state.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, serde::Serialize, clap::ValueEnum,
)]
#[serde(rename_all = "lowercase")]
pub enum FirstState {
    /// Each lists first, at any version (0), and watches from there, as informers always did.
    #[default]
    List,
    /// The watch itself brings the state (sendInitialEvents), as client-go does since 0.35.
    Stream,
    /// One list for the whole group gives the version to watch from, so that the start of the
    /// watches costs next to nothing.
    Version,
}

/// The path and the query of one client's lists and watches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CollectionQuery {
    pub(super) path: String,
    /// The selectors' parameters, each with an `&` before it.
    pub(super) query: String,
}

/// An object that is written, as selectors see it.
#[derive(Clone, Copy, Debug)]
pub(super) struct SelectableObject<'a> {
    pub(super) namespace: &'a str,
    pub(super) name: &'a str,
    pub(super) labels: &'a [(String, String)],
}

impl Default for ClientGroup {
    fn default() -> Self {
        Self {
            watches: 0,
            lists: Rate::default(),
            gets: Rate::default(),
            resource: KubectlResource::config_maps(),
            namespace: NumberedText::default(),
            selector: NumberedText::default(),
            field_selector: NumberedText::default(),
            encoding: AnswerEncoding::default(),
            gzip: false,
            metadata_only: false,
            consistent: false,
            first_state: FirstState::default(),
        }
    }
}

impl ClientGroup {
    pub(super) fn representation(&self) -> Representation {
        let encoding = match self.encoding {
            AnswerEncoding::Json => Encoding::Json,
            AnswerEncoding::Protobuf => Encoding::Protobuf,
        };
        Representation {
            encoding,
            metadata_only: self.metadata_only,
        }
    }

    /// Returns an error that names the flag of what is wrong.
    pub(super) fn check(&self) -> Result<(), String> {
        if self.watches == 0 && self.lists.is_never() && self.gets.is_never() {
            let idle = "clients that neither watch nor list nor get would do nothing \
                        (--watches, --lists, --gets)";
            return Err(idle.to_owned());
        }
        LabelSelector::parse(&self.selector.of(0))
            .map_err(|error| format!("selector {:?}: {error}", self.selector.of(0)))?;
        FieldSelector::parse(&self.field_selector.of(0))
            .map_err(|error| format!("field selector {:?}: {error}", self.field_selector.of(0)))?;
        let namespace = self.namespace.of(0);
        if namespace.is_empty() || is_namespace_name(&namespace) {
            Ok(())
        } else {
            Err(format!("{namespace:?} is not the name of a namespace"))
        }
    }

    /// Returns the path and the query of the n-th client.
    pub(super) fn selection(&self, n: usize) -> CollectionQuery {
        let parameter = |name: &str, value: String| {
            if value.is_empty() {
                String::new()
            } else {
                format!("&{name}={}", utf8_percent_encode(&value, VALUE))
            }
        };
        CollectionQuery {
            path: self.resource.collection(&self.namespace.of(n)),
            query: parameter("labelSelector", self.selector.of(n))
                + &parameter("fieldSelector", self.field_selector.of(n)),
        }
    }

    /// Returns the written objects that the n-th client watches.
    pub(super) fn concerned<'a>(&self, n: usize, written: &[SelectableObject<'a>]) -> Vec<bool> {
        let namespace = self.namespace.of(n);
        let labels = LabelSelector::parse(&self.selector.of(n)).unwrap_or_default();
        let fields = FieldSelector::parse(&self.field_selector.of(n)).unwrap_or_default();
        let of_type = self.resource == KubectlResource::config_maps();
        let concerns = |object: &SelectableObject<'a>| {
            let label = |key: &str| {
                object
                    .labels
                    .iter()
                    .find(|(k, _)| k == key)
                    .map(|(_, v)| &**v)
            };
            let field = |name: &str| match name {
                "metadata.name" => object.name,
                "metadata.namespace" => object.namespace,
                _ => "",
            };
            of_type
                && (namespace.is_empty() || namespace == object.namespace)
                && labels.matches(label)
                && fields.matches(field)
        };
        written.iter().map(concerns).collect()
    }

    /// Describes the group in a line.
    pub(super) fn describe(&self) -> String {
        let Self {
            watches,
            lists,
            gets,
            ..
        } = self;
        let mut text = self.resource.0.qualified_resource();
        for (name, value) in [
            ("in", &self.namespace),
            ("with", &self.selector),
            ("where", &self.field_selector),
        ] {
            if !value.is_empty() {
                text = format!("{text} {name} {value}");
            }
        }
        let form = match self.encoding {
            AnswerEncoding::Json => "JSON",
            AnswerEncoding::Protobuf => "protobuf",
        };
        let gzip = if self.gzip { ", gzip" } else { "" };
        let metadata = if self.metadata_only {
            ", metadata only"
        } else {
            ""
        };
        let mut work = Vec::new();
        if *watches > 0 {
            work.push(format!("{watches} watches"));
        }
        for (name, rate) in [("lists", lists), ("gets", gets)] {
            if !rate.is_never() {
                work.push(format!("{} {name}/s", rate.per_second()));
            }
        }
        format!("{} of {text} ({form}{gzip}{metadata})", work.join(", "))
    }
}

/// Returns `true` if a namespace can have this name.
pub(super) fn is_namespace_name(name: &str) -> bool {
    let is_plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    !name.is_empty() && name.bytes().all(is_plain)
}

impl KubectlResource {
    /// Returns the type of the objects that the tool writes.
    pub(super) fn config_maps() -> Self {
        Self(GroupVersionResource::new("", "v1", "configmaps"))
    }

    /// The path of a collection, in all namespaces when `namespace` is empty.
    pub(super) fn collection(&self, namespace: &str) -> String {
        let all = self.0.collection_path();
        match all.rsplit_once('/') {
            Some((version, resource)) if !namespace.is_empty() => {
                format!("{version}/namespaces/{namespace}/{resource}")
            }
            _ => all,
        }
    }
}

impl FromStr for KubectlResource {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let plain = |word: &str| {
            !word.is_empty()
                && word
                    .bytes()
                    .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        };
        let parts: Vec<&str> = text.splitn(3, '.').collect();
        match parts[..] {
            [resource] if plain(resource) => {
                Ok(Self(GroupVersionResource::new("", "v1", resource)))
            }
            [resource, version, group]
                if plain(resource)
                    && plain(version)
                    && group.split('.').all(plain)
                    && version.starts_with('v') =>
            {
                Ok(Self(GroupVersionResource::new(group, version, resource)))
            }
            _ => Err("not a resource like pods or deployments.v1.apps".to_owned()),
        }
    }
}

impl<'de> Deserialize<'de> for KubectlResource {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        from_text(deserializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(yaml: &str) -> ClientGroup {
        serde_saphyr::from_str(yaml).unwrap()
    }

    #[test]
    fn resources_are_read() {
        let path = |text: &str| {
            text.parse::<KubectlResource>()
                .map(|resource| resource.collection("a"))
        };
        assert_eq!(path("pods").unwrap(), "/api/v1/namespaces/a/pods");
        assert_eq!(
            path("deployments.v1.apps").unwrap(),
            "/apis/apps/v1/namespaces/a/deployments"
        );
        let widgets: KubectlResource = "widgets.v1.example.com".parse().unwrap();
        assert_eq!(widgets.collection(""), "/apis/example.com/v1/widgets");
        for wrong in [
            "",
            "Pods",
            "pods/",
            "deployments.apps",
            "a.v1.",
            "a.v1.b..c",
            "../x",
        ] {
            assert!(path(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn each_client_has_its_own_path() {
        let group = group("{watches: 2, resource: pods, fieldSelector: 'spec.nodeName=n-{1..2}'}");
        let CollectionQuery { path, query } = group.selection(1);
        assert_eq!(
            (path.as_str(), query.as_str()),
            ("/api/v1/pods", "&fieldSelector=spec.nodeName%3Dn-2")
        );
        assert_eq!(
            group.describe(),
            "2 watches of pods where spec.nodeName=n-{1..2} (JSON)"
        );
    }

    #[test]
    fn selectors_decide_the_watched_objects() {
        let labels = [("shard".to_owned(), "1".to_owned())];
        let objects = ["a", "b"].map(|name| SelectableObject {
            namespace: "n",
            name,
            labels: &labels,
        });
        for (yaml, wanted) in [
            ("{}", [true, true]),
            ("{namespace: n}", [true, true]),
            ("{namespace: other}", [false, false]),
            ("{fieldSelector: metadata.name=b}", [false, true]),
            ("{selector: shard=1}", [true, true]),
            ("{selector: shard!=1}", [false, false]),
            ("{resource: pods}", [false, false]),
        ] {
            assert_eq!(group(yaml).concerned(0, &objects), wanted, "{yaml}");
        }
    }

    #[test]
    fn invalid_groups_are_refused_before_the_run() {
        assert!(group("{watches: 1}").check().is_ok());
        for yaml in [
            "{}",
            "{watches: 1, selector: 'a in ('}",
            "{watches: 1, fieldSelector: a}",
            "{watches: 1, namespace: a/b}",
        ] {
            assert!(group(yaml).check().is_err(), "{yaml}");
        }
    }
}
