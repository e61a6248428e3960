//! Learns from upstream how it prints a type as a Table.
//!
//! Columns and their descriptions differ from release to release, and those of custom types are in
//! their definitions. So upstream is asked for a few rows with their objects, and the rows are
//! printed again here. What differs anywhere is forwarded.
use std::sync::Arc;
use std::time::Duration;

use http::{Request, StatusCode, header};
use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use tokio::time::Instant;
use watershed_connect::blocking;
use watershed_protocol::{
    Encoding, GroupVersionResource, Malformed, Selection, TableForm, TablePrinter, WireFormat,
};

use super::read::whole;
use super::release::Release;
use super::release_probe::{check_release, release_of};
use super::{AnswerError, ConnectionClass, SendOptions, ServedBy, UpstreamClient, in_time};
use crate::backoff::{Backoff, PauseRange};
use crate::log_throttle::LogThrottle;

/// Rows that are compared.
const SAMPLE: usize = 10;
/// Time for which a form holds. Then other objects are compared.
const HOLDS: Duration = Duration::from_mins(10);
/// Pauses after a question that did not bring a form. A changed definition takes a moment to reach
/// all servers.
const RETRIES: PauseRange = PauseRange::new(Duration::from_secs(1), Duration::from_mins(10));
/// Longest pause after a question without an answer, which says nothing of the form.
const UNANSWERED: Duration = Duration::from_secs(15);
/// Timeout of the answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Limit of the answer. etcd limits an object to 1.5 MiB.
const MAX_BYTES: usize = 64 << 20;
/// Difference of upstream's clock beyond which ages are not printed here.
const CLOCK_DIFFERENCE: SignedDuration = SignedDuration::from_secs(1);
const ACCEPT: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";

/// One line for all types: an outage concerns them all.
static NOT_LEARNED: LogThrottle = LogThrottle::new(Duration::from_secs(10));

/// Knows the form of a type's Tables. Cheap to clone.
///
/// Upstream is asked on first use, once for all concurrent callers.
#[derive(Clone, Debug)]
pub struct TableForms(Arc<TableFormState>);

#[derive(Debug)]
struct TableFormState {
    /// Prefers the server at which the type is followed, once that is known.
    client: Mutex<UpstreamClient>,
    gvr: GroupVersionResource,
    /// The target of the question.
    uri: String,
    known: Mutex<KnownForm>,
    /// Held by the caller who asks.
    asking: tokio::sync::Mutex<()>,
}

#[derive(Debug)]
struct KnownForm {
    result: Option<LearnedForm>,
    retries: Backoff,
    /// Number of times that everything was forgotten. The answer to an earlier question does not
    /// count.
    forgotten: u64,
}

/// The result of a question.
#[derive(Clone, Debug)]
struct LearnedForm {
    /// `None` if upstream prints in another way, or did not answer.
    form: Option<Arc<TableForm>>,
    /// The printer that was tried.
    printer: TablePrinter,
    /// The moment from which on upstream is asked again.
    due: Instant,
}

/// Upstream's answer to a question.
struct TableSample {
    /// The time of day of upstream, to the second.
    date: Option<Timestamp>,
    body: bytes::Bytes,
    /// The minor release of the server that answered, if it tells.
    minor: Option<u32>,
}

#[derive(Debug, thiserror::Error)]
enum TableFormError {
    #[error(transparent)]
    Answer(#[from] AnswerError),
    #[error("upstream's clock differs by more than {CLOCK_DIFFERENCE:#}")]
    Clock,
    #[error("the Tables of this type cannot be printed here: {}", .0.reason())]
    Differs(#[from] Malformed),
}

impl TableForms {
    /// Creates a probe that has asked nothing yet.
    ///
    /// It will ask for objects of the selection, as the proxy may have no access to others.
    pub fn new(client: UpstreamClient, gvr: GroupVersionResource, selection: &Selection) -> Self {
        let (path, parameters) = (selection.path(&gvr), selection.parameters());
        let uri = format!("{path}?limit={SAMPLE}&includeObject=Object{parameters}");
        Self(Arc::new(TableFormState {
            client: Mutex::new(client),
            gvr,
            uri,
            known: Mutex::new(KnownForm {
                result: None,
                retries: RETRIES.backoff(),
                forgotten: 0,
            }),
            asking: tokio::sync::Mutex::default(),
        }))
    }

    /// Notes that the type is followed at the server of this answer from now on.
    pub fn follow(&self, server: &ServedBy) {
        let mut client = self.0.client.lock();
        *client = client.beside(server);
    }

    /// Forgets what was learned, as the followed server is of another release.
    pub fn forget(&self) {
        let mut known = self.0.known.lock();
        known.result = None;
        known.retries.reset();
        known.forgotten += 1;
    }

    /// Returns the form; `None` if the type's Tables are upstream's to print.
    ///
    /// With objects in the scope, a form that was never compared with a row does not count.
    pub async fn form(
        &self,
        format: &WireFormat,
        printer: &TablePrinter,
        has_objects: bool,
    ) -> Option<Arc<TableForm>> {
        let known = || self.0.known(format, printer, has_objects);
        if let Some(known) = known() {
            return known.form;
        }
        let _asking = self.0.asking.lock().await;
        // Somebody else may have asked meanwhile.
        match known() {
            Some(known) => known.form,
            None => self.0.learn(format, printer).await,
        }
    }
}

impl TableFormState {
    fn known(
        &self,
        format: &WireFormat,
        printer: &TablePrinter,
        has_objects: bool,
    ) -> Option<LearnedForm> {
        let known = self.known.lock();
        let learned = known.result.as_ref()?;
        let fits = match &learned.form {
            Some(form) => form.is_of(format, printer) && (form.prints_rows() || !has_objects),
            None => learned.printer == *printer,
        };
        (fits && Instant::now() < learned.due).then(|| learned.clone())
    }

    async fn learn(&self, format: &WireFormat, printer: &TablePrinter) -> Option<Arc<TableForm>> {
        let (forgotten, before) = {
            let known = self.known.lock();
            (known.forgotten, known.result.clone())
        };
        let asked = self.ask(format, printer).await;
        let mut known = self.known.lock();
        if known.forgotten != forgotten {
            return None;
        }
        let (form, holds) = match asked {
            Ok(form) => {
                known.retries.reset();
                (Some(Arc::new(form)), HOLDS)
            }
            Err(error) => {
                if let Some(of_all_types) = NOT_LEARNED.count(1) {
                    tracing::warn!(
                        resource = %self.gvr,
                        %error,
                        of_all_types,
                        "cannot learn how upstream prints Tables"
                    );
                }
                let is_answered = !matches!(error, TableFormError::Answer(_));
                // Without an answer, what was learned before is still upstream's form.
                let before = before.and_then(|before| before.form);
                let is_still_known = |form: &Arc<TableForm>| {
                    !is_answered && form.is_of(format, printer) && form.prints_rows()
                };
                let pause = known.retries.pause();
                let longest = if is_answered { pause } else { UNANSWERED };
                (before.filter(is_still_known), pause.min(longest))
            }
        };
        known.result = Some(LearnedForm {
            form: form.clone(),
            printer: printer.clone(),
            due: Instant::now() + holds,
        });
        form
    }

    async fn ask(
        &self,
        format: &WireFormat,
        printer: &TablePrinter,
    ) -> Result<TableForm, TableFormError> {
        let began = Timestamp::now();
        let sample = in_time(ANSWER_TIMEOUT, self.answer()).await?;
        let TableSample { date, body, minor } = sample;
        let ended = Timestamp::now();
        if let Some(date) = date {
            // The header has whole seconds.
            let behind = CLOCK_DIFFERENCE + SignedDuration::from_secs(1);
            if began.duration_since(date) > behind || date.duration_since(ended) > CLOCK_DIFFERENCE
            {
                return Err(TableFormError::Clock);
            }
        }
        let (format, printer) = (format.clone(), printer.clone());
        // Rows of large objects take long to print.
        let learned =
            blocking(move || TableForm::learn(&format, &printer, &body, began..=ended, minor));
        Ok(learned.await?)
    }

    async fn answer(&self) -> Result<TableSample, AnswerError> {
        let unusable = |error: http::Error| AnswerError::Unusable(error.to_string());
        let request = Request::get(&self.uri)
            .header(header::ACCEPT, ACCEPT)
            .body(crate::body::empty())
            .map_err(unusable)?;
        let client = self.client.lock().clone();
        let class = ConnectionClass::Watch;
        let response = client.send(class, request, SendOptions::default()).await?;
        check_release(&client, &response).await?;
        if response.status() != StatusCode::OK {
            return Err(AnswerError::refused(&response));
        }
        let headers = response.headers();
        let actual = headers.get(header::CONTENT_TYPE);
        if actual.is_none_or(|actual| actual != Encoding::Json.content_type()) {
            return Err(AnswerError::Unusable(format!("content type {actual:?}")));
        }
        let date = headers.get(header::DATE).and_then(|date| {
            let parsed = jiff::fmt::rfc2822::parse(date.to_str().ok()?).ok()?;
            Some(parsed.timestamp())
        });
        let server = response.extensions().get::<ServedBy>().cloned();
        let body = whole(response.into_body(), MAX_BYTES).await?;
        // A question that failed says nothing: what was learned before is still upstream's form.
        let release = match server {
            // Boxed: every question would hold its state.
            Some(server) => Box::pin(release_of(&client, &server)).await?,
            None => None,
        };
        let minor = release.as_ref().and_then(Release::minor);
        Ok(TableSample { date, body, minor })
    }
}
