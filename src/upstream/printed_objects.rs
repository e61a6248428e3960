//! Reads all objects of a type from one server, to see how it prints them.
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, StatusCode, header};

use super::connection::ServedBy;
use super::error::{AnswerError, in_time};
use super::pool::SendOptions;
use super::read::whole;
use super::reflect::ReflectorTarget;
use super::release_probe::check_release;
use super::traffic::RequestPurpose;
use super::{ConnectionClass, UpstreamClient};
use crate::work::{REDUCED_OBJECT, WorkBudget, work_on};
use watershed_protocol::{
    ListPage, Malformed, PartialFormat, ResourceVersion, Scanned, WireFormat, scan,
};

/// Least and most objects of a page. For each page kube-apiserver looks at all objects that follow.
/// Source: `apiserver/pkg/storage/cacher/store/store_btree.go` (OrderedListPrefix).
const PAGE: RangeInclusive<usize> = 500..=10_000;
/// Bytes of a page, where the objects have the size that is expected.
const PAGE_BYTES: usize = 16 << 20;
/// Largest page.
const MAX_BYTES: usize = 2 << 30;
/// Timeout of a page.
const PAGE_TIMEOUT: Duration = Duration::from_mins(1);

/// The form in which a server prints a type.
#[derive(Debug)]
pub struct PrintedForm {
    /// `false` if lists or objects do not have the known wire format any more.
    pub fits: bool,
    /// The Warning headers of a list.
    pub warnings: Vec<HeaderValue>,
}

/// Some objects as a server prints them.
#[derive(Debug)]
pub struct PrintedSample {
    /// The wire format of lists and objects.
    pub format: Arc<WireFormat>,
    /// The Warning headers of the list.
    pub warnings: Vec<HeaderValue>,
    /// The version of the list.
    pub version: ResourceVersion,
    /// The objects.
    pub objects: Vec<(Bytes, Scanned)>,
}

/// Reads objects page by page.
pub struct PrintedObjects {
    client: UpstreamClient,
    target: ReflectorTarget,
}

impl PrintedObjects {
    /// Prepares to read the objects of a target from the server that gave an answer, or from one
    /// of the same release.
    pub fn new(client: &UpstreamClient, server: &ServedBy, target: ReflectorTarget) -> Self {
        Self {
            client: client.beside(server),
            target,
        }
    }

    /// Reads all objects, in pages, and calls `take` with each. The objects are expected to have so
    /// many bytes each. Ends early if they do not have the wire format, or `take` returns `false`.
    pub async fn read(
        &self,
        format: &WireFormat,
        object_bytes: usize,
        mut take: impl FnMut(&Bytes, Scanned) -> bool + Send,
    ) -> Result<PrintedForm, AnswerError> {
        let limit = (PAGE_BYTES / object_bytes.max(1)).clamp(*PAGE.start(), *PAGE.end());
        let mut warnings = None;
        let mut token: Option<String> = None;
        let mut is_wanted = true;
        let mut budget = WorkBudget::default();
        loop {
            let (headers, body) = self.page(limit, token.as_deref()).await?;
            let warnings = warnings.get_or_insert_with(|| warnings_in(&headers));
            let Some(page) = Self::understood(format, &body, &mut budget).await? else {
                return Ok(PrintedForm {
                    fits: false,
                    warnings: std::mem::take(warnings),
                });
            };
            for object in &page.objects {
                budget.work(work_on(object.len(), REDUCED_OBJECT)).await;
                let encoding = self.target.representation.encoding;
                is_wanted = take(object, scan(encoding, object, &self.target.fields)?);
                if !is_wanted {
                    break;
                }
            }
            token = page.continue_token;
            if token.is_none() || !is_wanted {
                return Ok(PrintedForm {
                    fits: true,
                    warnings: std::mem::take(warnings),
                });
            }
        }
    }

    /// Reads the first objects, at most `limit`, and learns the wire format from them. An answer in
    /// no known format is [`AnswerError::Unusable`].
    pub async fn sample(&self, limit: usize) -> Result<PrintedSample, AnswerError> {
        let (headers, body) = self.page(limit, None).await?;
        let representation = self.target.representation;
        let kind = if representation.metadata_only {
            PartialFormat::KIND
        } else {
            &self.target.kind
        };
        let (format, _) = WireFormat::learn(representation.encoding, kind, &body)?;
        let format = Arc::new(format.with_managed_fields(self.target.managed_fields));
        let page = format.read_list(&body)?;
        let scanned = page.objects.into_iter().map(|object| {
            format.check(&object)?;
            let scanned = scan(representation.encoding, &object, &self.target.fields)?;
            Ok((object, scanned))
        });
        Ok(PrintedSample {
            version: page.version,
            objects: scanned.collect::<Result<_, Malformed>>()?,
            warnings: warnings_in(&headers),
            format,
        })
    }

    /// Returns a page; `None` if it has another wire format. Garbage is an error.
    async fn understood(
        format: &WireFormat,
        body: &Bytes,
        budget: &mut WorkBudget,
    ) -> Result<Option<ListPage>, AnswerError> {
        if let Ok(page) = format.read_list(body) {
            let mut is_understood = true;
            for object in &page.objects {
                budget.work(work_on(object.len(), 1)).await;
                is_understood &= format.check(object).is_ok();
            }
            if is_understood {
                return Ok(Some(page));
            }
        }
        WireFormat::learn(format.encoding(), format.kind(), body)?;
        Ok(None)
    }

    async fn page(
        &self,
        limit: usize,
        token: Option<&str>,
    ) -> Result<(HeaderMap, Bytes), AnswerError> {
        let unusable = |error: &dyn std::fmt::Display| AnswerError::Unusable(error.to_string());
        let ReflectorTarget { gvr, selection, .. } = &self.target;
        let (path, selectors) = (selection.path(gvr), selection.parameters());
        let next = token.map_or_else(String::new, |token| {
            let token = form_urlencoded::byte_serialize(token.as_bytes());
            format!("&continue={}", token.collect::<String>())
        });
        let representation = self.target.representation;
        let request = Request::get(format!("{path}?limit={limit}{next}{selectors}"))
            .header(header::ACCEPT, representation.list_accept_header())
            .body(crate::body::empty())
            .map_err(|error| unusable(&error))?;
        let options = SendOptions {
            purpose: RequestPurpose::List,
            ..SendOptions::default()
        };
        let answer = async {
            let class = ConnectionClass::Watch;
            let response = self.client.send(class, request, options).await?;
            check_release(&self.client, &response).await?;
            if response.status() != StatusCode::OK {
                return Err(AnswerError::refused(&response));
            }
            let actual = response.headers().get(header::CONTENT_TYPE);
            let wanted = representation.encoding.content_type();
            if actual.is_none_or(|actual| actual != wanted) {
                return Err(AnswerError::Unusable(format!("content type {actual:?}")));
            }
            let (head, body) = response.into_parts();
            Ok((head.headers, whole(body, MAX_BYTES).await?))
        };
        in_time(PAGE_TIMEOUT, answer).await
    }
}

fn warnings_in(headers: &HeaderMap) -> Vec<HeaderValue> {
    headers.get_all(header::WARNING).iter().cloned().collect()
}
