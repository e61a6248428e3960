//! The form of a type's Tables.
use std::fmt::Write as _;
use std::ops::RangeInclusive;

use bytes::{BufMut, Bytes, BytesMut};
use jiff::{SignedDuration, Timestamp};
use memchr::memmem;

use super::answer::{AnswerColumn, TableAnswer, TableMetadata};
use super::printer::TablePrinter;
use super::request::{IncludedObject, TableRequest, TableVersion};
use crate::encoding::{
    BookmarkFormat, EventKind, ItemBytes, ListMetadata, ListParts, Malformed, PartialFormat,
    WireFormat, list_metadata,
};
use crate::{Encoding, ResourceVersion};

/// Difference of upstream's clock and this one's that a learned row may show.
const CLOCK_DIFFERENCE: SignedDuration = SignedDuration::from_secs(2);
/// Steps in which the moment of a learned row is looked for.
const CLOCK_STEP: SignedDuration = SignedDuration::from_millis(250);
/// Upper bound of the steps: an answer may be late.
const MAX_STEPS: i32 = 100;

/// The form of a type's Tables, learned from an answer of upstream.
#[derive(Clone, Debug)]
pub struct TableForm {
    /// The column definitions: JSON of an array.
    columns: Box<str>,
    printer: TablePrinter,
    format: WireFormat,
    partial: PartialFormat,
    /// Rows that were compared with upstream's.
    samples: usize,
    /// The minor release of upstream; `None` if it is not known.
    minor: Option<u32>,
}

/// One row of a Table.
#[derive(Clone, Debug)]
pub struct TableRow {
    /// Everything before the object's own bytes.
    head: Bytes,
    /// The object, or its metadata.
    object: Bytes,
    /// Those bytes are part of the object's own.
    is_shared: bool,
    tail: &'static [u8],
}

/// A Table of one row, as gets and watches have it.
#[derive(Clone, Copy, Debug)]
pub struct RowTable {
    /// The Table that the client asks for.
    pub request: TableRequest,
    /// The version of the object or event.
    pub version: ResourceVersion,
    /// The Table has its column definitions. In a watch, upstream sends them with the first one only.
    pub has_columns: bool,
    /// The moment of the ages.
    pub now: Timestamp,
}

impl TableForm {
    /// Learns the form from a list as a Table, whose rows have whole objects.
    ///
    /// Refuses an answer that it would not print byte for byte, at a moment while it was asked for. Rows that
    /// are upstream's to print are not compared. `minor` is the minor release of Kubernetes 1 that answered, if
    /// it is known.
    pub fn learn(
        format: &WireFormat,
        printer: &TablePrinter,
        answer: &[u8],
        asked: RangeInclusive<Timestamp>,
        minor: Option<u32>,
    ) -> Result<Self, Malformed> {
        let partial = PartialFormat::of(format, Encoding::Json)
            .ok_or(Malformed("objects that are not JSON"))?;
        let table = TableAnswer::parse(answer)?;
        let columns = table.columns()?;
        let known: Vec<_> = columns.iter().map(AnswerColumn::known).collect();
        if !printer.has_columns(&known) {
            return Err(Malformed("a Table with other columns"));
        }
        let mut form = Self {
            columns: table.column_text().into(),
            printer: printer.clone(),
            format: format.clone(),
            partial,
            samples: 0,
            minor,
        };
        let rows: Vec<_> = table.rows.iter().map(|row| row.get()).collect();
        form.samples = form.compare_all(&rows, &asked)?;
        if form.list_of(&rows.join(","), &table.metadata)? == answer {
            Ok(form)
        } else {
            Err(Malformed("a Table in another style"))
        }
    }

    /// Returns `true` if rows can be printed: some were compared with upstream's.
    pub fn prints_rows(&self) -> bool {
        self.samples > 0
    }

    /// Returns the number of rows that were compared with upstream's.
    #[cfg(test)]
    pub(super) fn samples(&self) -> usize {
        self.samples
    }

    /// Returns `true` if the form is that of these objects, printed by this printer.
    pub fn is_of(&self, format: &WireFormat, printer: &TablePrinter) -> bool {
        self.format == *format && self.printer == *printer
    }

    /// Returns the parts of a list around rows of so many bytes, separators included.
    pub fn list_parts(
        &self,
        version: TableVersion,
        metadata: &ListMetadata<'_>,
        rows: u64,
    ) -> ListParts {
        // Tables do not name the shard of their list.
        // Source: `apiserver/pkg/registry/rest/table.go`, `ConvertToTable`.
        let metadata = list_metadata(metadata, None);
        let head = table_head(version, &metadata, Some(&self.columns));
        ListParts::new(head.into(), Bytes::from_static(b"]}\n"), rows)
    }

    /// Returns a whole list of these rows.
    fn list_of(&self, rows: &str, metadata: &TableMetadata) -> Result<Vec<u8>, Malformed> {
        let version = ResourceVersion::parse(&metadata.resource_version)
            .ok_or(Malformed("a Table without a resourceVersion"))?;
        let metadata = ListMetadata {
            continue_token: metadata.continue_token.as_deref(),
            remaining: metadata.remaining_item_count,
            ..ListMetadata::of(version)
        };
        let parts = self.list_parts(TableVersion::V1, &metadata, rows.len() as u64);
        Ok([&parts.head, rows.as_bytes(), &parts.tail].concat())
    }

    /// Returns the row of an object.
    pub fn row(
        &self,
        request: TableRequest,
        object: &ItemBytes,
        now: Timestamp,
    ) -> Result<TableRow, Malformed> {
        if self.prints_rows() {
            self.print_row(request, object, now)
        } else {
            // Upstream had no objects when it was asked.
            Err(Malformed("a row of a type whose rows were never compared"))
        }
    }

    /// Returns the row of an object, even if none was compared yet.
    fn print_row(
        &self,
        request: TableRequest,
        object: &ItemBytes,
        now: Timestamp,
    ) -> Result<TableRow, Malformed> {
        let own = match request.include {
            IncludedObject::None => Bytes::new(),
            IncludedObject::Metadata => self.metadata(object)?,
            IncludedObject::Object => object.share(),
        };
        let mut head = self.cells(&object.text(), now)?;
        let tail: &[u8] = match request.include {
            IncludedObject::None => b"null}",
            IncludedObject::Metadata => {
                put_partial_head(&mut head, request.version);
                b"}}"
            }
            IncludedObject::Object => {
                head.push_str(self.opening()?);
                b"}"
            }
        };
        Ok(TableRow {
            head: head.into(),
            is_shared: object.shares(&own),
            object: own,
            tail,
        })
    }

    /// Returns the body of a get.
    pub fn get_body(&self, object: &ItemBytes, table: &RowTable) -> Result<Bytes, Malformed> {
        let row = self.row(table.request, object, table.now)?;
        let mut out = self.table_of(&row, table);
        out.put_u8(b'\n');
        Ok(out.freeze())
    }

    /// Returns a whole watch frame.
    pub fn event(
        &self,
        kind: EventKind,
        object: &ItemBytes,
        table: &RowTable,
    ) -> Result<Bytes, Malformed> {
        let row = self.row(table.request, object, table.now)?;
        Ok(self.format.event_of(kind, &self.table_of(&row, table)))
    }

    /// Returns a whole frame of a bookmark, or of the one that ends the initial events, if
    /// upstream's form of it is known.
    pub fn bookmark(
        &self,
        bookmarks: &BookmarkFormat,
        ends_initial_events: bool,
        table: &RowTable,
    ) -> Option<Bytes> {
        let RowTable {
            request,
            version,
            now,
            ..
        } = *table;
        let whole = Bytes::from(bookmarks.object_at(version, ends_initial_events)?);
        let item = self.format.item_bytes(&whole);
        let mut head = self.cells(&item.text(), now).ok()?;
        let reduced = bookmarks
            .partial(&self.partial)?
            .object_at(version, ends_initial_events)?;
        match request.include {
            IncludedObject::None if self.leaves_out_object(ends_initial_events)? => {
                head.push_str("null");
            }
            IncludedObject::Object => head.push_str(std::str::from_utf8(&whole).ok()?),
            IncludedObject::None | IncludedObject::Metadata => {
                let metadata = PartialFormat::metadata_of(&reduced)?;
                put_partial_head(&mut head, request.version);
                head.push_str(metadata);
                head.push('}');
            }
        }
        let row = TableRow {
            head: head.into(),
            object: Bytes::new(),
            is_shared: false,
            tail: b"}",
        };
        let table = self.table_of(&row, table);
        Some(self.format.event_of(EventKind::Bookmark, &table))
    }

    /// Returns `true` if a bookmark whose object is not asked for has none. That depends on the release for
    /// the one that ends the initial events.
    ///
    /// Source: `apiserver/pkg/endpoints/handlers/response.go` (asTable).
    fn leaves_out_object(&self, ends_initial_events: bool) -> Option<bool> {
        if ends_initial_events {
            self.minor.map(|minor| minor < 34)
        } else {
            Some(true)
        }
    }

    /// Returns a Table of one row.
    fn table_of(&self, row: &TableRow, table: &RowTable) -> BytesMut {
        let metadata = list_metadata(&ListMetadata::of(table.version), None);
        let columns = table.has_columns.then_some(&*self.columns);
        let head = table_head(table.request.version, &metadata, columns);
        let mut out = BytesMut::with_capacity(head.len() + row.byte_len() + 2);
        out.put_slice(head.as_bytes());
        row.put(&mut out);
        out.put_slice(b"]}");
        out
    }

    /// Returns the beginning of an object's row, up to the object's value.
    fn cells(&self, object: &[u8], now: Timestamp) -> Result<String, Malformed> {
        // Go writes the character itself, and so for bytes that are not UTF-8.
        if memmem::find(object, br"\ufffd").is_some() {
            return Err(Malformed("a row of text that is not UTF-8"));
        }
        Ok(self.printer.print(object, now, self.minor)?.row_head())
    }

    /// Returns the text that a whole object has before its bytes.
    fn opening(&self) -> Result<&str, Malformed> {
        std::str::from_utf8(&self.format.opening[..self.format.omitted()])
            .map_err(|_| Malformed("objects that are not text"))
    }

    fn metadata(&self, object: &ItemBytes) -> Result<Bytes, Malformed> {
        let metadata = self.partial.metadata(object)?;
        let text =
            std::str::from_utf8(&metadata).map_err(|_| Malformed("metadata is not valid UTF-8"))?;
        match self.printer.metadata().apply(text)? {
            std::borrow::Cow::Borrowed(_) => Ok(metadata),
            std::borrow::Cow::Owned(changed) => Ok(changed.into()),
        }
    }

    /// Compares rows that upstream printed while it was asked. Returns the number of those that are printed
    /// here, too.
    fn compare_all(
        &self,
        rows: &[&str],
        asked: &RangeInclusive<Timestamp>,
    ) -> Result<usize, Malformed> {
        let mut moments = PrintMoments::of(asked);
        let mut compared = 0;
        for row in rows {
            compared += usize::from(self.compare(row, &mut moments)?);
        }
        if compared > 0 || rows.is_empty() {
            Ok(compared)
        } else {
            Err(Malformed(
                "a Table of rows that are all upstream's to print",
            ))
        }
    }

    /// Compares a row that upstream printed, at one of these moments, with what is printed here. Returns
    /// `false` if nothing is.
    fn compare(&self, row: &str, moments: &mut PrintMoments) -> Result<bool, Malformed> {
        const DIFFERS: Malformed = Malformed("a row that upstream prints in another way");
        let whole = Bytes::copy_from_slice(TableAnswer::object_of(row)?.as_bytes());
        self.format.check(&whole)?;
        let object = self.format.item_bytes(&whole);
        let Ok(likely) = self.printed(&object, moments.likely) else {
            return Ok(false);
        };
        if likely == row.as_bytes() {
            return Ok(true);
        }
        // An age is shown as the same text only during one stretch of time.
        let [earliest, latest] = moments.ends().map(|end| self.printed(&object, end));
        if earliest? == latest? {
            return Err(DIFFERS);
        }
        for &moment in &moments.all {
            if self.printed(&object, moment)? == row.as_bytes() {
                moments.likely = moment;
                return Ok(true);
            }
        }
        Err(DIFFERS)
    }

    /// Returns the row of a whole object as of a moment.
    fn printed(&self, object: &ItemBytes, now: Timestamp) -> Result<BytesMut, Malformed> {
        let request = TableRequest {
            version: TableVersion::V1,
            include: IncludedObject::Object,
        };
        let mut printed = BytesMut::new();
        self.print_row(request, object, now)?.put(&mut printed);
        Ok(printed)
    }
}

impl TableRow {
    /// Returns the number of bytes.
    pub fn byte_len(&self) -> usize {
        self.head.len() + self.object.len() + self.tail.len()
    }

    /// Returns the number of bytes that the row takes in memory, beside those of its object.
    pub fn own_len(&self) -> usize {
        let object = if self.is_shared { 0 } else { self.object.len() };
        size_of::<Self>() + self.head.len() + object
    }

    /// Copies what the row shares with an object that nothing else holds, so that it does not keep
    /// the whole object in memory.
    pub fn detach(&mut self) {
        if self.is_shared && self.object.is_unique() {
            self.object = Bytes::copy_from_slice(&self.object);
            self.is_shared = false;
        }
    }

    /// Appends the row.
    pub fn put(&self, out: &mut BytesMut) {
        out.reserve(self.byte_len());
        out.put_slice(&self.head);
        out.put_slice(&self.object);
        out.put_slice(self.tail);
    }
}

/// The moments at which upstream may have printed the rows of an answer. There is at least one.
struct PrintMoments {
    all: Vec<Timestamp>,
    /// The one that is tried first.
    likely: Timestamp,
}

impl PrintMoments {
    /// Returns the moments around the time in which upstream was asked.
    fn of(asked: &RangeInclusive<Timestamp>) -> Self {
        let earliest = *asked.start() - CLOCK_DIFFERENCE;
        let latest = *asked.end() + CLOCK_DIFFERENCE;
        let later = (1..MAX_STEPS).map(|step| earliest + CLOCK_STEP * step);
        let mut all = vec![earliest];
        all.extend(later.take_while(|moment| *moment <= latest));
        // Most answers are prompt, and most clocks are right.
        let during = all.iter().find(|moment| *moment >= asked.start());
        let likely = *during.unwrap_or(&earliest);
        Self { all, likely }
    }

    /// Returns the earliest and the latest moment.
    fn ends(&self) -> [Timestamp; 2] {
        [self.all[0], self.all[self.all.len() - 1]]
    }
}

fn table_head(version: TableVersion, metadata: &str, columns: Option<&str>) -> String {
    let (api_version, columns) = (version.api_version(), columns.unwrap_or("null"));
    format!(
        r#"{{"kind":"Table","apiVersion":"{api_version}","metadata":{metadata},"columnDefinitions":{columns},"rows":["#
    )
}

/// Appends the text before the metadata of an object in a row.
fn put_partial_head(out: &mut String, version: TableVersion) {
    let api_version = version.api_version();
    let _ = write!(
        out,
        r#"{{"kind":"{}","apiVersion":"{api_version}","metadata":"#,
        PartialFormat::KIND
    );
}
