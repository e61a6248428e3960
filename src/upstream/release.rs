//! The release of an API server, as its `/version` tells.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::Mutex;
use tokio::time::Instant;

/// Time for which an answer holds. One connection leads to one server, except through a load
/// balancer that reads the requests.
const HOLDS: Duration = Duration::from_secs(10);
/// Time for which a failed question is not asked again. All who waited for it would ask in turn.
const FAILED: Duration = Duration::from_secs(1);

/// The release that an API server acts as.
///
/// A release can emulate an older one. It then has the older one's types and defaults.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Release {
    git_version: String,
    #[serde(default)]
    git_commit: String,
    #[serde(default)]
    emulation_major: String,
    #[serde(default)]
    emulation_minor: String,
}

impl Release {
    /// Parses the answer to `/version`.
    pub(super) fn parse(body: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(body)
    }

    /// Returns the minor release of the program, 37 for `v1.37.1-eks`, whatever it emulates: that
    /// has its types. `None` if it is no release of Kubernetes 1.
    pub fn minor(&self) -> Option<u32> {
        let minor = self.git_version.strip_prefix("v1.")?;
        minor
            .split(|c: char| !c.is_ascii_digit())
            .next()?
            .parse()
            .ok()
    }
}

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.git_version)?;
        let emulated = format!("v{}.{}", self.emulation_major, self.emulation_minor);
        if self.emulation_minor.is_empty()
            || self.git_version.starts_with(&(emulated.clone() + "."))
        {
            return Ok(());
        }
        write!(f, " as {emulated}")
    }
}

/// The release at the end of one connection. All who want to know it share one question.
#[derive(Debug, Default)]
pub(super) struct KnownRelease(Mutex<Option<LastAnswer>>);

#[derive(Debug)]
struct LastAnswer {
    at: Instant,
    /// `None` if the server does not tell. The error is one of the question.
    release: Result<Option<Release>, String>,
    /// The last answer that was none of these errors, if there was one.
    known: Option<ToldRelease>,
}

/// The release that a server told; `None` if it does not tell.
#[derive(Clone, Debug)]
struct ToldRelease(Option<Release>);

impl KnownRelease {
    /// Returns the release. Awaits `question` if it is not known, or for too long.
    pub(super) async fn or_ask(
        &self,
        question: impl Future<Output = Result<Option<Release>, String>>,
    ) -> Result<Option<Release>, String> {
        let mut last = self.0.lock().await;
        if let Some(last) = last.as_ref().filter(|last| last.holds()) {
            return last.release.clone();
        }
        let release = question.await;
        let before = last.take().and_then(|last| last.known);
        *last = Some(LastAnswer {
            at: Instant::now(),
            known: release.clone().ok().map(ToldRelease).or(before),
            release: release.clone(),
        });
        release
    }

    /// Returns the last release that is known, however old; `None` if no question was answered.
    pub(super) async fn last(&self) -> Option<Option<Release>> {
        let last = self.0.lock().await;
        Some(last.as_ref()?.known.as_ref()?.0.clone())
    }
}

impl LastAnswer {
    fn holds(&self) -> bool {
        let limit = if self.release.is_ok() { HOLDS } else { FAILED };
        self.at.elapsed() < limit
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    fn parse(text: &str) -> Release {
        Release::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn a_server_that_emulates_another_release_differs_from_one_that_does_not() {
        let plain = r#"{"gitVersion":"v1.37.1","emulationMajor":"1","emulationMinor":"37"}"#;
        let older = r#"{"gitVersion":"v1.37.1","emulationMajor":"1","emulationMinor":"36"}"#;
        assert_ne!(parse(plain), parse(older));
        assert_eq!(parse(plain).to_string(), "v1.37.1");
        assert_eq!(parse(older).to_string(), "v1.37.1 as v1.36");
        // Releases before 1.33 emulate nothing.
        assert_eq!(
            parse(r#"{"gitVersion":"v1.32.13"}"#).to_string(),
            "v1.32.13"
        );
        assert!(Release::parse(b"{}").is_err());
    }

    #[test]
    fn the_minor_release_is_that_of_the_program() {
        let minor = |version: &str| {
            let emulated = r#""emulationMajor":"1","emulationMinor":"30""#;
            parse(&format!(r#"{{"gitVersion":"{version}",{emulated}}}"#)).minor()
        };
        for version in ["v1.33.6", "v1.33.6+k3s1", "v1.33-gke.1", "v1.33"] {
            assert_eq!(minor(version), Some(33), "{version}");
        }
        for version in ["", "v1.", "v1.x", "v2.3.4", "1.33.6", "v1.99999999999"] {
            assert_eq!(minor(version), None, "{version}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn one_question_serves_all_scopes_of_a_connection() {
        let known = KnownRelease::default();
        let asked = AtomicUsize::new(0);
        let ask = |answer: Result<&'static str, &'static str>| {
            let asked = &asked;
            known.or_ask(async move {
                asked.fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep(Duration::from_millis(5)).await;
                let release = format!(r#"{{"gitVersion":"{}"}}"#, answer?);
                Ok(Some(parse(&release)))
            })
        };
        let many = (0..50).map(|_| ask(Ok("v1.37.1")));
        for answer in futures_util::future::join_all(many).await {
            assert_eq!(answer, Ok(Some(parse(r#"{"gitVersion":"v1.37.1"}"#))));
        }
        assert_eq!(asked.load(Ordering::Relaxed), 1);
        tokio::time::advance(HOLDS).await;
        let many = (0..50).map(|_| ask(Err("no answer")));
        for answer in futures_util::future::join_all(many).await {
            assert_eq!(answer, Err("no answer".to_owned()));
        }
        assert_eq!(asked.load(Ordering::Relaxed), 2);
        assert_eq!(
            known.last().await,
            Some(Some(parse(r#"{"gitVersion":"v1.37.1"}"#)))
        );
        tokio::time::advance(FAILED).await;
        assert!(ask(Ok("v1.38.0")).await.is_ok());
    }
}
