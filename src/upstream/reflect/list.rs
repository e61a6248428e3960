//! Reads the initial state of a scope: streamed, or as a list in pages.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use tokio::time::timeout;
use watershed_protocol::{
    EventKind, ListPage, PartialFormat, Representation, ResourceVersion, WireFormat, read_bookmark,
};

use super::change::{Collect, InitialList, ListedState, ReflectorTarget, Stopped};
use super::error::ReflectorError;
use super::list_server::ListServer;
use super::request::FIRST_PAGE;
use super::{FollowedHistory, FormatSource, ListFreshness, Reflector};
use crate::budget::{MemoryBudget, MemoryLoad, SizeSource};
use crate::headers::HistoryName;
use crate::upstream::AnswerCompression;
use crate::upstream::stream::WatchStream;

/// Silence after which streaming is given up: without sendInitialEvents there is no end mark.
pub(super) const INITIAL_SILENCE: Duration = Duration::from_secs(15);
/// Streamed lists in a row that break off before one is read in pages.
const BROKEN_LISTS: u32 = 2;
/// Objects of a page: at most as many as other clients ask for, and fewer of large objects.
const PAGE: RangeInclusive<usize> = 20..=500;
/// A page has at most this many times the objects of the one before it.
const PAGE_GROWTH: usize = 8;
/// Bytes of a page, where its objects are like those of the page before. It is held beside the objects.
const PAGE_BYTES: usize = 16 << 20;
/// Objects that are looked at for an estimate of all.
const SAMPLE: usize = 20;
/// An estimate from one object suffices if this many times its size is free.
const OBVIOUSLY_ENOUGH: usize = 4;

impl Reflector {
    /// Gets the initial state, streamed or in pages.
    pub(super) async fn list<C: Collect>(&mut self) -> Result<InitialList<C>, ReflectorError> {
        self.listed_by = ListServer::None;
        self.bookmarks.forget_form();
        self.history = FollowedHistory::Unnamed;
        let mut load = self.budget.begin_load();
        if let Some(format) = self.expected_format() {
            let format = format.with_managed_fields(self.target.managed_fields);
            return self.list_by_stream(Arc::new(format), load).await;
        }
        let (format, first) = self.first_page().await?;
        if self.estimates
            && let Some(bytes) = self.estimate(&format, &first).await?
        {
            let known_by = match self.object_bytes {
                Some(_) => SizeSource::Load,
                None => SizeSource::Estimate,
            };
            load.expect(bytes, known_by)?;
        }
        if self.streaming {
            return self.list_by_stream(format, load).await;
        }
        let objects = C::begin(&format, &self.target.fields);
        let (objects, version) = self.list_pages(objects, &mut load, &format, first).await?;
        let listed = self.listed(format, version, objects, load);
        // The next list is estimated again.
        self.estimates = true;
        // Upstream may be another release when it is listed next.
        self.streaming = true;
        self.list_freshness = ListFreshness::MostRecent;
        let (listed, stream) = (Box::new(listed), None);
        Ok(InitialList { listed, stream })
    }

    /// Asks for one object, to find out if upstream answers lists.
    pub(super) async fn try_to_list(&mut self) -> Result<(), ReflectorError> {
        self.get(FIRST_PAGE).await.map(drop)
    }

    /// Returns the format of the objects if it is known before the first answer, and nothing else
    /// needs a first page.
    fn expected_format(&self) -> Option<WireFormat> {
        let ReflectorTarget {
            gvr,
            selection,
            kind,
            representation,
            ..
        } = &self.target;
        // Upstream counts objects only where there is no selector.
        let is_counted = selection.labels.is_everything() && selection.fields.is_everything();
        let is_estimated = self.estimates && is_counted && self.budget.free().is_some();
        let needs_page = !self.streaming
            || self.format_source == FormatSource::List
            || is_estimated
            || representation.metadata_only;
        if needs_page {
            return None;
        }
        WireFormat::built_in(gvr, kind, representation.encoding)
    }

    /// Reads a list of one object, and learns the format from it.
    async fn first_page(&mut self) -> Result<(Arc<WireFormat>, ListPage), ReflectorError> {
        let (headers, body) = self.page(FIRST_PAGE).await?;
        self.warnings = warnings(&headers);
        let Representation {
            encoding,
            metadata_only,
        } = self.target.representation;
        let kind = if metadata_only {
            PartialFormat::KIND
        } else {
            &self.target.kind
        };
        let learned = WireFormat::learn(encoding, kind, &body);
        let (format, _) = learned.map_err(|error| Stopped::NotUnderstood(error.to_string()))?;
        // A server that ignores the parameters of Accept would send whole objects.
        if metadata_only && !format.is_partial() {
            return Err(Stopped::NotAcceptable.into());
        }
        let format = Arc::new(format.with_managed_fields(self.target.managed_fields));
        let first = format.read_list(&body)?;
        self.format = Some(Arc::clone(&format));
        Ok((format, first))
    }

    /// Gets the initial state as a stream, which goes on afterwards.
    async fn list_by_stream<C: Collect>(
        &mut self,
        format: Arc<WireFormat>,
        mut load: MemoryLoad,
    ) -> Result<InitialList<C>, ReflectorError> {
        let streamed = self.stream_initial(&mut load, &format).await;
        self.count_broken_list(streamed.as_ref().err());
        let (objects, version, stream) = streamed?;
        self.estimates = true;
        self.list_freshness = match self.list_freshness {
            ListFreshness::AnyDue => ListFreshness::Any,
            ListFreshness::Any | ListFreshness::MostRecent => ListFreshness::MostRecent,
        };
        let mut listed = self.listed(format, version, objects, load);
        // Known together with the state, for clients that want its end marked.
        let mark = stream.again.as_ref();
        listed.bookmark = mark.and_then(|mark| self.learn_bookmark(&mark.object));
        listed.compression = stream.compression();
        Ok(InitialList {
            listed: Box::new(listed),
            stream: Some(stream),
        })
    }

    /// Counts the streamed lists in a row that broke off. After a few, the next list is read in pages: a
    /// gateway may cut streams that a large type does not fit into.
    fn count_broken_list(&mut self, error: Option<&ReflectorError>) {
        match error {
            None => self.broken_lists = 0,
            Some(ReflectorError::Broken(_) | ReflectorError::Brief | ReflectorError::Watch(..)) => {
                self.broken_lists += 1;
                if self.broken_lists >= BROKEN_LISTS {
                    tracing::info!(
                        resource = %self.target.gvr,
                        "streamed lists break off; listing in pages"
                    );
                    self.broken_lists = 0;
                    self.streaming = false;
                }
            }
            Some(_) => {}
        }
    }

    /// Returns a state as one that was not streamed, and notes how large its objects are.
    fn listed<C>(
        &mut self,
        format: Arc<WireFormat>,
        version: ResourceVersion,
        objects: C,
        load: MemoryLoad,
    ) -> ListedState<C> {
        self.object_bytes = load.object_bytes().or(self.object_bytes);
        ListedState {
            format,
            version,
            objects,
            streams_initial_events: self.streaming,
            warnings: self.warnings.clone(),
            bookmark: None,
            compression: AnswerCompression::NotAsked,
            load,
        }
    }

    /// Estimates the memory that all objects take: by the last list, or else by the first page. `None` if
    /// there is no limit, or upstream does not count them, as with selectors.
    ///
    /// One object may be unlike the others. If the estimate is not obviously small enough, a few
    /// more are looked at, with one request. The first namespaces may have large objects, and those of
    /// the last list may be gone, so the smaller estimate counts: the load stops if it is wrong.
    async fn estimate(
        &mut self,
        format: &WireFormat,
        first: &ListPage,
    ) -> Result<Option<usize>, ReflectorError> {
        let (Some(free), Some(remaining)) = (self.budget.free(), first.remaining) else {
            return Ok(None);
        };
        let count = first.objects.len() + usize::try_from(remaining).unwrap_or(0);
        let by_last_list = self.object_bytes.map(|bytes| count.saturating_mul(bytes));
        if let Some(bytes) = by_last_list.filter(|bytes| *bytes <= free) {
            return Ok(Some(bytes));
        }
        let one = estimate_all(count, &first.objects);
        let Some(token) = &first.continue_token else {
            return Ok(Some(one));
        };
        if one <= free / OBVIOUSLY_ENOUGH {
            return Ok(Some(one));
        }
        let page = self.get(&page_after(token, SAMPLE)).await?.1;
        let sample = format.read_list(&page)?.objects;
        let by_sample = estimate_all(count, &sample);
        Ok(Some(
            by_last_list.map_or(by_sample, |bytes| bytes.min(by_sample)),
        ))
    }

    /// Opens a watch that begins with the state. The end mark stays in the stream as its next
    /// frame.
    async fn stream_initial<C: Collect>(
        &mut self,
        load: &mut MemoryLoad,
        format: &Arc<WireFormat>,
    ) -> Result<(C, ResourceVersion, Box<WatchStream>), ReflectorError> {
        let any = if self.list_freshness == ListFreshness::AnyDue {
            "&resourceVersion=0"
        } else {
            ""
        };
        let query = format!(
            "watch=1&allowWatchBookmarks=true&sendInitialEvents=true\
             &resourceVersionMatch=NotOlderThan{any}"
        );
        let (headers, mut stream) = match self.open(&query).await {
            // Any refusal of the parameters: releases differ in code and words.
            Err(ReflectorError::Status(
                StatusCode::BAD_REQUEST | StatusCode::UNPROCESSABLE_ENTITY,
                _,
            )) => {
                return Err(ReflectorError::NoInitialEvents);
            }
            opened => opened?,
        };
        let name = HistoryName::in_answer(&headers);
        self.history = name.map_or(FollowedHistory::Unnamed, FollowedHistory::Named);
        let mut is_expected = matches!(self.listed_by, ListServer::None);
        if is_expected {
            self.warnings = warnings(&headers);
        }
        // The objects are printed by the server of the stream alone, whoever gave a first page.
        self.listed_by = ListServer::None;
        self.listed_by.answered_by(self.server.as_ref());
        self.format = Some(Arc::clone(format));
        let mut objects = C::begin(format, &self.target.fields);
        loop {
            let frame = match timeout(INITIAL_SILENCE, stream.next_transient_frame()).await {
                Err(_) => return Err(ReflectorError::NoInitialEvents),
                Ok(frame) => frame?.ok_or_else(|| {
                    ReflectorError::Broken("ended before the initial events".into())
                })?,
            };
            if frame.kind != EventKind::Error && std::mem::take(&mut is_expected) {
                format
                    .check_frame(&frame)
                    .map_err(ReflectorError::OtherFormat)?;
            }
            match frame.kind {
                EventKind::Added => {
                    let scanned = self.check_frame(&frame)?;
                    let object = format.held(&frame.object)?;
                    load.add(object.len())?;
                    objects.add(&object, scanned);
                }
                EventKind::Bookmark => {
                    let bookmark =
                        read_bookmark(self.target.representation.encoding, &frame.object)?;
                    if !bookmark.initial_events_end {
                        return Err(ReflectorError::NoInitialEvents);
                    }
                    let version = bookmark.version;
                    stream.again = Some(frame.detached());
                    return Ok((objects, version, stream));
                }
                EventKind::Error => {
                    self.take_in::<C>(frame, &mut stream)?;
                }
                EventKind::Modified | EventKind::Deleted => {
                    // Events before the end mark: this server ignored the parameter.
                    return Err(ReflectorError::NoInitialEvents);
                }
            }
        }
    }

    async fn list_pages<C: Collect>(
        &mut self,
        mut objects: C,
        load: &mut MemoryLoad,
        format: &WireFormat,
        first: ListPage,
    ) -> Result<(C, ResourceVersion), ReflectorError> {
        let mut page = first;
        loop {
            let limit = page_size(&page.objects);
            for object in page.objects {
                let scanned = self.check(&object)?;
                load.add(object.len())?;
                objects.add(&object, scanned);
            }
            let Some(token) = page.continue_token else {
                return Ok((objects, page.version));
            };
            page = format.read_list(&self.page(&page_after(&token, limit)).await?.1)?;
        }
    }

    /// Gets a page of the list, and notes its server.
    async fn page(&mut self, query: &str) -> Result<(HeaderMap, Bytes), ReflectorError> {
        let page = self.get(query).await?;
        self.listed_by.answered_by(self.server.as_ref());
        Ok(page)
    }
}

/// Returns the size of the page that follows these objects, in objects.
fn page_size(before: &[Bytes]) -> usize {
    let bytes: usize = before.iter().map(Bytes::len).sum();
    let fitting = PAGE_BYTES.saturating_mul(before.len()) / bytes.max(1);
    // A few objects may be unlike the rest.
    let most = before.len().saturating_mul(PAGE_GROWTH).min(*PAGE.end());
    fitting.min(most).max(*PAGE.start())
}

/// Returns the Warning headers of an answer.
fn warnings(headers: &HeaderMap) -> Vec<HeaderValue> {
    headers.get_all(header::WARNING).iter().cloned().collect()
}

/// Returns the query of the page with this token.
fn page_after(token: &str, limit: usize) -> String {
    let token: String = form_urlencoded::byte_serialize(token.as_bytes()).collect();
    format!("limit={limit}&continue={token}")
}

/// Returns the memory that `count` objects like these take.
fn estimate_all(count: usize, sample: &[Bytes]) -> usize {
    let bytes: usize = sample.iter().map(Bytes::len).sum();
    let all = bytes.saturating_mul(count) / sample.len().max(1);
    MemoryBudget::estimate(count, all)
}
