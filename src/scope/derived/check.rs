//! Compares upstream's JSON with what is printed here, before anything of that is shown.
use std::time::Duration;

use bytes::Bytes;
use http::HeaderValue;
use watershed_protocol::{BookmarkFormat, ObjectAttributes};
use watershed_transcode::Transcoder;

use super::failures::FallbackReason;
use super::printer::{JsonPrinter, PrintManner};
use super::step::{CheckedServer, ReprintedObjects};
use crate::scope::cached::Scope;
use crate::scope::metrics;
use crate::store::{ObjectPeek, StoredObject};
use crate::upstream::{
    AnswerError, InitialEventsAnswer, InitialEventsProbe, PrintedObjects, PrintedSample,
    ReflectorTarget, Release, ServedBy, UpstreamClient, release_of,
};

/// Most objects that are compared, and their bytes in protobuf, unless the first alone has more.
const SAMPLE: usize = 20;
const SAMPLE_BYTES: usize = 128 << 10;
/// Samples that are read, until one has an object in the version that is held.
const ATTEMPTS: usize = 3;
/// Time for the source to reach the version of a sample.
const CATCH_UP: Duration = Duration::from_secs(2);

/// Checks how servers print one type.
pub(super) struct PrintCheck {
    client: UpstreamClient,
    pub(super) target: ReflectorTarget,
    pub(super) printer: JsonPrinter,
}

/// A server that prints the type as it is printed here, and what its answers show beside objects.
#[derive(Clone)]
pub(super) struct CheckedPrint {
    pub(super) server: ServedBy,
    /// Its release, if it is known.
    pub(super) release: Option<Release>,
    pub(super) manner: PrintManner,
    pub(super) warnings: Vec<HeaderValue>,
    pub(super) bookmark: BookmarkFormat,
    /// Objects were compared: there were some.
    pub(super) has_seen_objects: bool,
}

/// The reason why a check did not succeed.
pub(super) enum CheckError {
    /// Upstream's answer is not usable now.
    NoAnswer(AnswerError),
    /// The source's objects are those of another release yet, or may be.
    Outdated,
    /// The type cannot be derived.
    FallBack(FallbackReason),
}

impl CheckedPrint {
    /// Returns what the caller is told of the server, and of the objects that it prints anew.
    pub(super) fn as_reported(&self, reprinted: ReprintedObjects) -> CheckedServer {
        CheckedServer {
            release: self.release.clone(),
            bookmark: self.bookmark.clone(),
            reprinted,
        }
    }
}

impl<E: Into<FallbackReason>> From<E> for CheckError {
    fn from(reason: E) -> Self {
        Self::FallBack(reason.into())
    }
}

impl PrintCheck {
    pub(super) fn new(
        client: UpstreamClient,
        target: ReflectorTarget,
        printer: JsonPrinter,
    ) -> Self {
        Self {
            client,
            target,
            printer,
        }
    }

    /// Compares some objects that a server prints with the source's. A server of the release that
    /// `known` has is not asked again.
    pub(super) async fn check(
        &mut self,
        source: &Scope,
        server: &ServedBy,
        known: Option<&CheckedPrint>,
    ) -> Result<CheckedPrint, CheckError> {
        let release = release_of(&self.client, server).await.map_err(no_answer)?;
        if let Some(known) = known
            && known.release.is_some()
            && known.release == release
            && known.has_seen_objects
        {
            return Ok(CheckedPrint {
                server: server.clone(),
                ..known.clone()
            });
        }
        // A few objects do not show what else it prints differently.
        if let Some(unknown) = release.as_ref().filter(|it| !is_known_release(it)) {
            return Err(FallbackReason::UnknownRelease(unknown.clone()).into());
        }
        // Side by side: upstream may wait for etcd before it answers each.
        let mark = end_mark(self.client.clone(), self.target.clone(), server);
        let compared = self.compare(source, server, release.as_ref());
        let (mark, compared) = tokio::join!(mark, compared);
        let (mark, (sample, has_seen_objects)) = (mark?, compared?);
        let bookmark = BookmarkFormat::learn(&sample.format, &mark)?;
        Ok(CheckedPrint {
            server: server.clone(),
            manner: self.printer.manner(release.as_ref(), &sample.format),
            release,
            warnings: sample.warnings,
            bookmark,
            has_seen_objects,
        })
    }

    /// Reads some objects, and compares those that the source has in the same version. Returns
    /// them, and true if there were any.
    async fn compare(
        &mut self,
        source: &Scope,
        server: &ServedBy,
        release: Option<&Release>,
    ) -> Result<(PrintedSample, bool), CheckError> {
        let printed = PrintedObjects::new(&self.client, server, self.target.clone());
        for _ in 0..ATTEMPTS {
            metrics::of_type(&metrics::UPSTREAM_LISTS, &self.target.gvr).increment(1);
            let sample = printed.sample(sample_size(source)).await;
            let sample = sample.map_err(no_answer)?;
            if sample.objects.is_empty() && source.reader.followed().is_empty() {
                return Ok((sample, false));
            }
            if self.compare_printed(source, &sample, release)? {
                return Ok((sample, true));
            }
            // All of them changed since the source's last event.
            source.wait_until_version(sample.version, CATCH_UP).await;
            if self.compare_printed(source, &sample, release)? {
                return Ok((sample, true));
            }
        }
        let reason = "no object is in the version that is held".to_owned();
        Err(no_answer(AnswerError::Unusable(reason)))
    }

    /// Returns `true` if there was an object to compare. Differences count only in objects that the
    /// server's release printed.
    fn compare_printed(
        &mut self,
        source: &Scope,
        sample: &PrintedSample,
        release: Option<&Release>,
    ) -> Result<bool, CheckError> {
        // Before as well: they may be printed anew meanwhile.
        let was_current = is_printed_by(source, release);
        match self.compare_sample(source, sample, release) {
            Err(FallbackReason::Difference { .. })
                if !was_current || !is_printed_by(source, release) =>
            {
                Err(CheckError::Outdated)
            }
            compared => Ok(compared?),
        }
    }

    /// Returns `true` if there was an object to compare.
    fn compare_sample(
        &mut self,
        source: &Scope,
        sample: &PrintedSample,
        release: Option<&Release>,
    ) -> Result<bool, FallbackReason> {
        let manner = self.printer.manner(release, &sample.format);
        let held = source.reader.followed();
        let (mut has_compared, mut peek) = (false, ObjectPeek::default());
        for (upstream, scanned) in &sample.objects {
            let Some(object) = held.get_version(scanned.attributes.key(), scanned.version) else {
                continue;
            };
            let printed = self.printer.print(&manner, &peek.bytes(object))?;
            let upstream = UpstreamText {
                text: upstream,
                attributes: &scanned.attributes,
            };
            expect_same(object, &printed, upstream)?;
            has_compared = true;
        }
        Ok(has_compared)
    }
}

/// Upstream's text of an object, and the attributes in it.
#[derive(Clone, Copy)]
pub(super) struct UpstreamText<'a> {
    pub(super) text: &'a [u8],
    pub(super) attributes: &'a ObjectAttributes,
}

/// Returns an error if upstream's text of an object, or the attributes in it, are not what is printed of
/// the object in protobuf.
pub(super) fn expect_same(
    object: &StoredObject,
    printed: &[u8],
    upstream: UpstreamText<'_>,
) -> Result<(), FallbackReason> {
    if printed != upstream.text {
        return Err(FallbackReason::difference(
            object.key(),
            upstream.text,
            printed,
        ));
    }
    // Selectors look at what was read in protobuf.
    if object.attributes != *upstream.attributes {
        return Err(FallbackReason::Difference {
            key: object.key().to_owned(),
            offset: 0,
        });
    }
    Ok(())
}

/// Returns the bookmark with which a server ends initial events.
async fn end_mark(
    client: UpstreamClient,
    target: ReflectorTarget,
    server: &ServedBy,
) -> Result<Bytes, CheckError> {
    let probe = InitialEventsProbe::new(client, &target);
    match probe.beside(server).ask().await.map_err(no_answer)? {
        InitialEventsAnswer::Streamed(mark) => Ok(mark),
        InitialEventsAnswer::NotStreamed => Err(FallbackReason::NotStreamed.into()),
    }
}

fn no_answer(error: AnswerError) -> CheckError {
    CheckError::NoAnswer(error)
}

/// Returns `true` if the tables have what a release prints.
pub(in crate::scope) fn is_known_release(release: &Release) -> bool {
    release.minor().is_some_and(Transcoder::knows_release)
}

/// Returns `true` if this release is known to have printed all of the source's objects. Of one that
/// does not tell, it is enough that no other is known to have.
fn is_printed_by(source: &Scope, release: Option<&Release>) -> bool {
    let is_known = || source.print.is_of(release);
    !source.print.is_outdated() && (release.is_none() || is_known())
}

/// Returns the number of objects to compare: fewer if they are large.
fn sample_size(source: &Scope) -> usize {
    let average = source.reader.stats().average_bytes();
    (SAMPLE_BYTES / average.max(1)).clamp(1, SAMPLE)
}
