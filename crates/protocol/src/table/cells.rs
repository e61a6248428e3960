//! The cells of one row.
use std::fmt::Write;

use jiff::Timestamp;

use super::age::ObjectTime;
use crate::encoding::Malformed;
use crate::escape_json;

/// Makes the cells of one row, as the inside of a JSON array.
pub(super) struct Cells {
    out: String,
    count: usize,
    now: Timestamp,
    /// The minor release of upstream; `None` if it is not known.
    minor: Option<u32>,
    /// The row's conditions: JSON of an array.
    conditions: Option<&'static str>,
}

impl Cells {
    /// Creates an empty row that is printed at this moment, as this minor release does.
    pub(super) fn new(now: Timestamp, minor: Option<u32>) -> Self {
        Self {
            out: String::with_capacity(256),
            count: 0,
            now,
            minor,
            conditions: None,
        }
    }

    pub(super) fn now(&self) -> Timestamp {
        self.now
    }

    /// Returns `true` if upstream is of this minor release of Kubernetes 1 or a later one, and `false` if it
    /// is of an older one. If its release is not known, a row that depends on it is upstream's to print.
    pub(super) fn is_at_least(&self, minor: u32) -> Result<bool, Malformed> {
        let known = self.minor;
        known
            .map(|known| known >= minor)
            .ok_or(Malformed("a row that some releases print in another way"))
    }

    pub(super) fn text(&mut self, text: &str) {
        self.begin();
        self.out.push('"');
        escape_json(&mut self.out, text);
        self.out.push('"');
    }

    pub(super) fn integer(&mut self, number: i64) {
        self.begin();
        let _ = write!(self.out, "{number}");
    }

    /// Appends the number of things.
    pub(super) fn size(&mut self, size: usize) {
        self.begin();
        let _ = write!(self.out, "{size}");
    }

    pub(super) fn null(&mut self) {
        self.json("null");
    }

    /// Appends a value that is JSON as Go prints it.
    pub(super) fn json(&mut self, value: &str) {
        self.begin();
        self.out.push_str(value);
    }

    /// Appends the time since a moment.
    pub(super) fn since(&mut self, moment: ObjectTime) {
        let age = moment.since(self.now);
        self.text(&age);
    }

    pub(super) fn set_conditions(&mut self, conditions: &'static str) {
        self.conditions = Some(conditions);
    }

    /// Returns the number of cells.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Returns the row up to its object's value.
    pub(super) fn row_head(&self) -> String {
        let cells = &self.out;
        match self.conditions {
            None => format!(r#"{{"cells":[{cells}],"object":"#),
            Some(conditions) => {
                format!(r#"{{"cells":[{cells}],"conditions":{conditions},"object":"#)
            }
        }
    }

    fn begin(&mut self) {
        if self.count > 0 {
            self.out.push(',');
        }
        self.count += 1;
    }
}
