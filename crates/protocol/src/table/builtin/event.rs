//! Events of the core group.
use serde::Deserialize;

use super::definition::{BuiltinPrinter, read};
use super::meta::PrintedMeta;
use crate::encoding::Malformed;
use crate::table::age::ObjectTime;
use crate::table::cells::Cells;
use crate::table::column::{KnownColumn, NAME, text, wide};
use crate::table::row_metadata::RowMetadata;

pub(super) const PRINTERS: &[BuiltinPrinter] = &[BuiltinPrinter {
    resource: ("", "v1", "events"),
    columns: &[
        text("Last Seen"),
        text("Type"),
        text("Reason"),
        text("Object"),
        wide("Subobject"),
        wide("Source"),
        text("Message"),
        wide("First Seen"),
        wide("Count"),
        KnownColumn {
            priority: 1,
            ..NAME
        },
    ],
    print,
    metadata: RowMetadata::AsIs,
}];

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Event {
    metadata: PrintedMeta,
    first_timestamp: ObjectTime,
    last_timestamp: ObjectTime,
    #[serde(rename = "eventTime")]
    occurred: ObjectTime,
    count: i64,
    series: Option<EventSeries>,
    involved_object: InvolvedObject,
    source: EventSource,
    reporting_component: String,
    reporting_instance: String,
    #[serde(rename = "type")]
    kind: String,
    reason: String,
    message: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct EventSeries {
    count: i64,
    last_observed_time: ObjectTime,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct InvolvedObject {
    kind: String,
    name: String,
    field_path: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct EventSource {
    component: String,
    host: String,
}

fn print(object: &[u8], cells: &mut Cells) -> Result<(), Malformed> {
    let event: Event = read(object)?;
    let first = ObjectTime(event.first_timestamp.0.or(event.occurred.0));
    let (last, count) = match &event.series {
        Some(series) => (series.last_observed_time, series.count),
        None => (
            ObjectTime(event.last_timestamp.0.or(first.0)),
            // Single events of the newer API have no count.
            if event.count == 0 { 1 } else { event.count },
        ),
    };
    cells.since(last);
    cells.text(&event.kind);
    cells.text(&event.reason);
    cells.text(&event.involved_object.format()?);
    cells.text(&event.involved_object.field_path);
    cells.text(&event.origin());
    cells.text(event.message.trim());
    cells.since(first);
    cells.integer(count);
    cells.text(&event.metadata.name);
    Ok(())
}

impl Event {
    fn origin(&self) -> String {
        let or = |first: &str, second: &str| {
            let chosen = if first.is_empty() { second } else { first };
            chosen.to_owned()
        };
        let component = or(&self.source.component, &self.reporting_component);
        let instance = or(&self.source.host, &self.reporting_instance);
        if instance.is_empty() {
            component
        } else {
            format!("{component}, {instance}")
        }
    }
}

impl InvolvedObject {
    fn format(&self) -> Result<String, Malformed> {
        if !self.kind.is_ascii() {
            return Err(Malformed(
                "a kind in letters that releases may lower differently",
            ));
        }
        let kind = self.kind.to_ascii_lowercase();
        Ok(if self.name.is_empty() {
            kind
        } else {
            format!("{kind}/{}", self.name)
        })
    }
}
