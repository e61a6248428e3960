//! Lists of a type's objects in the state of a known version, for comparison with memory.

use bytes::Bytes;
use watershed_protocol::{
    ContinueToken, Encoding, FieldTable, GroupVersionResource, ListPage, Malformed, PartialFormat,
    Representation, ResourceVersion, Scanned, Selection, WireFormat, scan,
};

use super::probe::METADATA_LIST;
use super::read::{ReadForm, read, whole};
use super::{AnswerError, ConnectionClass, UpstreamClient};

/// Largest answer.
const MAX_BYTES: usize = 64 << 20;

/// Lists the selected objects of a type, with the proxy's own identity.
#[derive(Clone, Debug)]
pub struct StateList {
    client: UpstreamClient,
    path: String,
    /// The selectors, each with an ampersand before it.
    selectors: String,
    fields: FieldTable,
}

/// The objects to list.
#[derive(Clone, Copy, Debug)]
pub enum StatePage<'a> {
    /// Some objects at exactly this version.
    Exact {
        /// The version of the state.
        version: ResourceVersion,
        /// The key after which the page begins: `namespace/name` over all namespaces, else `name`.
        after: Option<&'a str>,
        /// Upper bound of objects.
        limit: usize,
    },
    /// All objects, at this version or later. Upstream's watch cache answers, with its indexes;
    /// at an exact version, etcd would read the whole type for a selector.
    NotOlderThan(ResourceVersion),
    /// The first object of the newest state, for the version of that.
    Newest,
}

/// Keys and versions of the objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedVersions {
    /// The version of the list.
    pub version: ResourceVersion,
    /// The objects, in upstream's order.
    pub objects: Vec<(String, ResourceVersion)>,
    /// Objects may follow.
    pub has_more: bool,
    /// Upstream's count of the objects that follow, if it gives one.
    pub remaining: Option<u64>,
}

/// Objects of a state, each as upstream sends it and with what was read from it.
#[derive(Debug)]
pub struct ListedObjects {
    /// The version of the list.
    pub version: ResourceVersion,
    /// The objects, in upstream's order.
    pub objects: Vec<(Bytes, Scanned)>,
    /// Objects may follow.
    pub has_more: bool,
    /// Upstream's count of the objects that follow, if it gives one.
    pub remaining: Option<u64>,
}

impl ListedObjects {
    /// Returns their keys and versions.
    pub fn versions(&self) -> ListedVersions {
        let objects = self.objects.iter();
        let of = |(_, it): &(Bytes, Scanned)| (it.attributes.key().to_owned(), it.version);
        ListedVersions {
            version: self.version,
            objects: objects.map(of).collect(),
            has_more: self.has_more,
            remaining: self.remaining,
        }
    }
}

impl StateList {
    /// Creates a list of the selected objects of a type.
    pub fn new(
        client: UpstreamClient,
        gvr: &GroupVersionResource,
        selection: &Selection,
        namespaced: bool,
    ) -> Self {
        Self {
            client,
            path: selection.path(gvr),
            selectors: selection.parameters(),
            fields: FieldTable::metadata_only(namespaced),
        }
    }

    /// Lists keys and versions. Applies no timeout.
    pub async fn versions(&self, page: StatePage<'_>) -> Result<ListedVersions, AnswerError> {
        let (encoding, body) = self.get(page, METADATA_LIST).await?;
        let (_, listed) = WireFormat::learn(encoding, PartialFormat::KIND, &body)?;
        page.check_version(&listed)?;
        let scanned = listed
            .objects
            .iter()
            .map(|object| scan(encoding, object, &self.fields));
        let objects = scanned
            .map(|scanned| scanned.map(|it| (it.attributes.key().to_owned(), it.version)))
            .collect::<Result<_, Malformed>>()?;
        Ok(ListedVersions {
            version: listed.version,
            objects,
            has_more: listed.continue_token.is_some(),
            remaining: remaining(&listed),
        })
    }

    /// Lists objects in a representation, whose format is known. A list in another one is
    /// [`AnswerError::OtherFormat`]. Applies no timeout.
    pub async fn objects(
        &self,
        page: StatePage<'_>,
        representation: Representation,
        format: &WireFormat,
    ) -> Result<ListedObjects, AnswerError> {
        let body = self.whole(page, representation).await?;
        let listed = format.read_list(&body).map_err(|error| {
            match WireFormat::learn(representation.encoding, format.kind(), &body) {
                Ok(_) => AnswerError::OtherFormat,
                Err(_) => error.into(),
            }
        })?;
        page.check_version(&listed)?;
        let remaining = remaining(&listed);
        let scanned = listed.objects.into_iter().map(|object| {
            let scanned = scan(representation.encoding, &object, &self.fields)?;
            Ok((object, scanned))
        });
        Ok(ListedObjects {
            version: listed.version,
            objects: scanned.collect::<Result<_, Malformed>>()?,
            has_more: listed.continue_token.is_some(),
            remaining,
        })
    }

    /// Returns the bytes of a list in a representation. Applies no timeout.
    pub async fn whole(
        &self,
        page: StatePage<'_>,
        representation: Representation,
    ) -> Result<Bytes, AnswerError> {
        let form = ReadForm::list_of(representation);
        let (encoding, body) = self.get(page, form).await?;
        if encoding != representation.encoding {
            return Err(AnswerError::Unusable("another encoding".to_owned()));
        }
        Ok(body)
    }

    async fn get(
        &self,
        page: StatePage<'_>,
        form: ReadForm,
    ) -> Result<(Encoding, Bytes), AnswerError> {
        let uri = format!("{}?{}{}", self.path, page.query(), self.selectors);
        // Beside the watches: during an upgrade another server may print objects differently.
        let class = ConnectionClass::Watch;
        let (encoding, body) = read(&self.client, class, &uri, form).await?;
        Ok((encoding, whole(body, MAX_BYTES).await?))
    }
}

impl StatePage<'_> {
    /// Returns the parameters of the request.
    fn query(self) -> String {
        match self {
            Self::Newest => "limit=1".to_owned(),
            Self::NotOlderThan(version) => {
                format!("resourceVersion={version}&resourceVersionMatch=NotOlderThan")
            }
            Self::Exact {
                version,
                after: None,
                limit,
            } => format!("limit={limit}&resourceVersion={version}&resourceVersionMatch=Exact"),
            // Upstream's own kind of token names a version and a key. Its alphabet needs no
            // escapes.
            Self::Exact {
                version,
                after: Some(after),
                limit,
            } => {
                let token = ContinueToken {
                    version,
                    after: after.to_owned(),
                };
                format!("limit={limit}&continue={}", token.encode())
            }
        }
    }

    /// Returns an error if the list has another version than was asked for. A server that ignores
    /// the parameters answers so.
    fn check_version(self, listed: &ListPage) -> Result<(), AnswerError> {
        let (wanted, fits) = match self {
            Self::Exact { version, .. } => (version, listed.version == version),
            Self::NotOlderThan(version) => (version, listed.version >= version),
            Self::Newest => return Ok(()),
        };
        if fits {
            return Ok(());
        }
        let message = format!("the list is of version {}, not {wanted}", listed.version);
        Err(AnswerError::Unusable(message))
    }
}

fn remaining(listed: &ListPage) -> Option<u64> {
    listed.remaining.and_then(|count| count.try_into().ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::{Api, HTTP2, Pki, typed, upstream_of};

    const EMPTY: &str = concat!(
        r#"{"kind":"ThingList","apiVersion":"things.test/v1","metadata":{"resourceVersion":"7"},"items":[]}"#,
        "\n"
    );
    /// A list whose items say what they are, which an empty one does not show.
    const WITH_KINDS: &str = concat!(
        r#"{"kind":"ThingList","apiVersion":"things.test/v1","metadata":{"resourceVersion":"7"},"items":["#,
        r#"{"kind":"Thing","apiVersion":"things.test/v1","metadata":{"name":"a","resourceVersion":"5"}}]}"#,
        "\n"
    );

    #[tokio::test]
    async fn a_list_of_another_format_is_told_from_what_is_no_list() {
        let pki = Pki::new();
        let (format, _) = WireFormat::learn(Encoding::Json, "Thing", &EMPTY.into()).unwrap();
        for (body, is_list) in [(WITH_KINDS, true), ("{}", false)] {
            let api = Api::start(&pki, HTTP2, move |_, _| async move {
                typed(200, "application/json", body)
            })
            .await;
            let client = UpstreamClient::new(&upstream_of(&pki, &api).await);
            let things = GroupVersionResource::new("things.test", "v1", "things");
            let list = StateList::new(client, &things, &Selection::default(), false);
            let json = Representation::whole(Encoding::Json);
            let listed = list.objects(StatePage::Newest, json, &format).await;
            let is_other = matches!(listed, Err(AnswerError::OtherFormat));
            assert!(listed.is_err() && is_other == is_list, "{body}");
        }
    }

    #[test]
    fn an_exact_page_begins_at_the_start_or_after_a_key() {
        let page = |after| {
            let version = ResourceVersion(7);
            StatePage::Exact {
                version,
                after,
                limit: 5,
            }
        };
        assert_eq!(
            page(None).query(),
            "limit=5&resourceVersion=7&resourceVersionMatch=Exact"
        );
        let query = page(Some("shop/web")).query();
        let token = query.strip_prefix("limit=5&continue=").unwrap();
        let token = ContinueToken::decode(token).unwrap();
        assert_eq!(
            (token.version, &*token.after),
            (ResourceVersion(7), "shop/web")
        );
    }

    #[test]
    fn an_answer_of_another_version_is_of_no_use() {
        let listed = |version| ListPage {
            version: ResourceVersion(version),
            continue_token: None,
            remaining: None,
            objects: Vec::new(),
        };
        let exact = StatePage::Exact {
            version: ResourceVersion(7),
            after: None,
            limit: 5,
        };
        let later = StatePage::NotOlderThan(ResourceVersion(7));
        for (version, is_exact, is_later) in [(6, false, false), (7, true, true), (8, false, true)]
        {
            let listed = listed(version);
            assert_eq!(exact.check_version(&listed).is_ok(), is_exact);
            assert_eq!(later.check_version(&listed).is_ok(), is_later);
        }
    }
}
