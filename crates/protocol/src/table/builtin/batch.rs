//! Jobs and cron jobs.
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::definition::{BuiltinPrinter, read};
use super::meta::{PrintedCondition, PrintedMeta};
use super::template::PodTemplate;
use crate::encoding::Malformed;
use crate::table::age::{ObjectTime, between, human_duration, pointer};
use crate::table::cells::Cells;
use crate::table::column::{NAME, integer, text, typed, wide};
use crate::table::row_metadata::RowMetadata;
use crate::table::selector::{ObjectSelector, or_none};

pub(super) const PRINTERS: &[BuiltinPrinter] = &[
    BuiltinPrinter {
        resource: ("batch", "v1", "jobs"),
        columns: &[
            NAME,
            text("Status"),
            text("Completions"),
            text("Duration"),
            text("Age"),
            wide("Containers"),
            wide("Images"),
            wide("Selector"),
        ],
        print: job,
        metadata: RowMetadata::AsIs,
    },
    BuiltinPrinter {
        resource: ("batch", "v1", "cronjobs"),
        columns: &[
            NAME,
            text("Schedule"),
            text("Timezone"),
            typed("Suspend", "boolean"),
            integer("Active"),
            text("Last Schedule"),
            text("Age"),
            wide("Containers"),
            wide("Images"),
            wide("Selector"),
        ],
        print: cron_job,
        metadata: RowMetadata::AsIs,
    },
];

/// The conditions that name a job's status, the first that is true. What is being deleted and
/// neither complete nor failed is terminating.
const CONDITIONS: [(&str, &str); 5] = [
    ("Complete", "Complete"),
    ("Failed", "Failed"),
    ("Suspended", "Suspended"),
    ("FailureTarget", "FailureTarget"),
    (SUCCEEDS, SUCCEEDS),
];
const SUCCEEDS: &str = "SuccessCriteriaMet";

#[derive(Deserialize)]
struct Job {
    metadata: PrintedMeta,
    #[serde(default)]
    spec: JobSpec,
    #[serde(default)]
    status: JobStatus,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct JobSpec {
    completions: Option<i64>,
    parallelism: Option<i64>,
    selector: Option<ObjectSelector>,
    template: PodTemplate,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct JobStatus {
    succeeded: i64,
    #[serde(deserialize_with = "pointer")]
    start_time: Option<ObjectTime>,
    #[serde(deserialize_with = "pointer")]
    completion_time: Option<ObjectTime>,
    conditions: Option<Vec<PrintedCondition>>,
}

impl JobSpec {
    /// Makes the cells of containers and selector.
    fn print(&self, cells: &mut Cells) -> Result<(), Malformed> {
        self.template.print(cells);
        let selector = self.selector.as_ref();
        let selector = selector.map_or_else(|| Ok(String::new()), ObjectSelector::format)?;
        cells.text(&or_none(selector));
        Ok(())
    }
}

fn job(object: &[u8], cells: &mut Cells) -> Result<(), Malformed> {
    let job: Job = read(object)?;
    cells.text(&job.metadata.name);
    let status = job.status(cells)?;
    cells.text(status);
    cells.text(&job.completions());
    cells.text(&job.duration(cells)?);
    cells.since(job.metadata.creation_timestamp);
    job.spec.print(cells)
}

impl Job {
    fn status(&self, cells: &Cells) -> Result<&'static str, Malformed> {
        let is_true = |(kind, _): &&(&str, &'static str)| {
            PrintedCondition::first_is_true(self.status.conditions.as_ref(), kind)
        };
        let (ended, others) = CONDITIONS.split_at(2);
        if let Some((_, status)) = ended.iter().find(is_true) {
            return Ok(status);
        }
        if self.metadata.deletion_timestamp.is_some() {
            return Ok("Terminating");
        }
        Ok(match others.iter().find(is_true) {
            Some((SUCCEEDS, _)) if !cells.is_at_least(34)? => "Running",
            Some((_, status)) => status,
            None => "Running",
        })
    }

    fn completions(&self) -> String {
        let succeeded = self.status.succeeded;
        match (self.spec.completions, self.spec.parallelism) {
            (Some(wanted), _) => format!("{succeeded}/{wanted}"),
            (None, Some(parallelism)) if parallelism > 1 => {
                format!("{succeeded}/1 of {parallelism}")
            }
            (None, _) => format!("{succeeded}/1"),
        }
    }

    fn duration(&self, cells: &Cells) -> Result<String, Malformed> {
        let Some(started) = self.status.start_time else {
            return Ok(String::new());
        };
        let ended = match self.status.completion_time {
            None => Some(cells.now()),
            Some(completed) => completed.0,
        };
        // A time that is set and zero is too odd.
        let (Some(started), Some(ended)) = (started.0, ended) else {
            return Err(Malformed("a job that began or ended at the zero time"));
        };
        Ok(human_duration(between(started, ended)))
    }
}

#[derive(Deserialize)]
struct CronJob {
    metadata: PrintedMeta,
    #[serde(default)]
    spec: CronJobSpec,
    #[serde(default)]
    status: CronJobStatus,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct CronJobSpec {
    schedule: String,
    time_zone: Option<String>,
    suspend: Option<bool>,
    job_template: JobTemplate,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct JobTemplate {
    spec: JobSpec,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct CronJobStatus {
    active: Option<Vec<IgnoredAny>>,
    #[serde(deserialize_with = "pointer")]
    last_schedule_time: Option<ObjectTime>,
}

fn cron_job(object: &[u8], cells: &mut Cells) -> Result<(), Malformed> {
    let job: CronJob = read(object)?;
    let active = job.status.active.as_ref().map_or(0, Vec::len);
    cells.text(&job.metadata.name);
    cells.text(&job.spec.schedule);
    cells.text(job.spec.time_zone.as_deref().unwrap_or("<none>"));
    cells.text(match job.spec.suspend {
        Some(true) => "True",
        Some(false) => "False",
        None => "<unset>",
    });
    cells.size(active);
    match job.status.last_schedule_time {
        Some(moment) => cells.since(moment),
        None => cells.text("<none>"),
    }
    cells.since(job.metadata.creation_timestamp);
    job.spec.job_template.spec.print(cells)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cells(
        print: fn(&[u8], &mut Cells) -> Result<(), Malformed>,
        status: &str,
    ) -> Option<String> {
        let object = format!(
            r#"{{"metadata":{{"name":"a","creationTimestamp":null}},"status":{{{status}}}}}"#
        );
        let mut cells = Cells::new("2026-11-23T05:00:00Z".parse().unwrap(), Some(37));
        print(object.as_bytes(), &mut cells).ok()?;
        Some(cells.row_head())
    }

    #[test]
    fn a_time_that_is_set_and_zero_is_not_taken_for_one_that_is_not_set() {
        let last_schedule = |status| {
            let row = cells(cron_job, status).unwrap();
            row.split(',').nth(5).unwrap().to_owned()
        };
        assert_eq!(last_schedule(""), r#""\u003cnone\u003e""#);
        let unknown = r#""\u003cunknown\u003e""#;
        assert_eq!(last_schedule(r#""lastScheduleTime":null"#), unknown);
        assert!(cells(job, "").is_some());
        for status in [
            r#""startTime":null"#,
            r#""startTime":"2026-11-23T04:00:00Z","completionTime":null"#,
        ] {
            assert_eq!(cells(job, status), None, "{status} is forwarded");
        }
    }
}
