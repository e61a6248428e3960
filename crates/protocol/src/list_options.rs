//! The parameters of get, list and watch requests, and the state each combination asks for.
//!
//! Source: `apimachinery/pkg/apis/meta/internalversion/{defaults.go,validation/validation.go}`,
//! `apiserver/pkg/storage/interfaces.go` and `apiserver/pkg/storage/cacher/delegator/interface.go`
//! (meaning). Whatever upstream refuses, or answers in a way this program does not imitate, is an
//! error here. Such requests are forwarded.
use std::time::Duration;

use super::{
    ContinueToken, FieldSelector, InvalidSelector, LabelSelector, Query, ResourceVersion, Selectors,
};

/// Parameters of a list or watch request.
///
/// ```
/// use watershed_protocol::{Freshness, ListOptions, ResourceVersion, WatchStart};
///
/// let list = ListOptions::parse(Some("resourceVersion=7&limit=500"))?;
/// assert_eq!(list.list_start()?.freshness, Freshness::Exact(ResourceVersion(7)));
/// assert_eq!(list.page_limit(), Some(500));
///
/// let watch = ListOptions::parse(Some("watch=1&resourceVersion=7"))?;
/// assert_eq!(watch.watch_start()?, WatchStart::After(ResourceVersion(7)));
/// # Ok::<(), watershed_protocol::InvalidOptions>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListOptions {
    /// `watch`: stream events instead of answering a list.
    pub watch: bool,
    /// `resourceVersion`
    pub version: VersionParam,
    /// `resourceVersionMatch`
    pub version_match: VersionMatch,
    /// `limit`; zero and negative numbers mean none. [`ListOptions::page_limit`] says what applies.
    pub limit: i64,
    /// `continue`; `None` when absent or empty.
    pub continue_token: Option<String>,
    /// `sendInitialEvents` as sent, before defaulting; see [`ListOptions::initial_events`].
    pub send_initial_events: Option<bool>,
    /// `allowWatchBookmarks`
    pub allow_bookmarks: bool,
    /// `timeoutSeconds`; only watches heed it.
    pub timeout_seconds: Option<i64>,
    /// `labelSelector`, unparsed; `None` when absent or empty.
    pub label_selector: Option<String>,
    /// `fieldSelector`, unparsed; `None` when absent or empty.
    pub field_selector: Option<String>,
    /// `shardSelector`, unparsed; `None` when absent or empty. Most releases ignore it.
    pub shard_selector: Option<String>,
    /// `pretty` is given and true. [`super::wants_pretty`] also looks at the client's name.
    pub pretty: bool,
}

/// The `resourceVersion` parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VersionParam {
    /// Absent or empty.
    Unset,
    /// Exactly `0`.
    Zero,
    /// A version in its canonical spelling.
    At(ResourceVersion),
}

/// The `resourceVersionMatch` parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VersionMatch {
    /// Absent or empty.
    Unset,
    /// `Exact`
    Exact,
    /// `NotOlderThan`
    NotOlderThan,
}

/// A parameter that upstream would refuse, or whose meaning is not certain.
///
/// The request is forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidOptions {
    /// The query has a part that is not a well-formed key and value.
    #[error("the query is malformed")]
    Query,
    /// `resourceVersion` is not a decimal number in canonical spelling.
    #[error("resourceVersion is not a canonical decimal number")]
    Version,
    /// `resourceVersionMatch` is neither `Exact` nor `NotOlderThan`.
    #[error("resourceVersionMatch is unknown")]
    VersionMatch,
    /// `limit` is not an integer.
    #[error("limit is not an integer")]
    Limit,
    /// `timeoutSeconds` is not an integer.
    #[error("timeoutSeconds is not an integer")]
    TimeoutSeconds,
    /// `timeout` is not a plain duration.
    #[error("timeout is not a plain duration")]
    Timeout,
    /// `export` is asked for, which upstream has removed.
    #[error("export is no longer supported")]
    Export,
    /// Upstream refuses the parameters together, or this program does not imitate its answer.
    #[error("the parameters do not fit together")]
    Combination,
    /// The continue token is not one that this program can follow.
    #[error("the continue token is not understood")]
    ContinueToken,
}

/// Required freshness of the state that an answer shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freshness {
    /// No older than the request.
    MostRecent,
    /// Any state that the cache has.
    Any,
    /// The state at this version, or a later one.
    NotOlderThan(ResourceVersion),
    /// The state at exactly this version.
    Exact(ResourceVersion),
}

/// The state and the page that a list asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListStart {
    /// The state.
    pub freshness: Freshness,
    /// The key after which the page begins, from a continue token.
    pub after: Option<String>,
}

/// The start of a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchStart {
    /// With the objects of a state, as synthetic ADDED events, then the events after it.
    State {
        /// The state.
        freshness: Freshness,
        /// A bookmark marks the end of the initial events.
        end_mark: bool,
    },
    /// With the events after this version.
    After(ResourceVersion),
    /// With the events after a state of this freshness.
    Now(Freshness),
}

impl WatchStart {
    /// Returns the freshness of the state that the watch starts from. The window decides whether
    /// it still has the events after a version.
    pub fn freshness(self) -> Freshness {
        match self {
            Self::State { freshness, .. } | Self::Now(freshness) => freshness,
            Self::After(_) => Freshness::Any,
        }
    }
}

impl ListOptions {
    /// Parses a query string.
    ///
    /// As upstream does, it uses the first of repeated parameters and ignores unknown ones.
    pub fn parse(query: Option<&str>) -> Result<Self, InvalidOptions> {
        Self::of(&Query::parse(query))
    }

    /// Reads the options from a query.
    pub fn of(query: &Query<'_>) -> Result<Self, InvalidOptions> {
        let parameters = checked(query)?;
        let text = |name| parameters.first(name).filter(|value| !value.is_empty());
        let watch = parameters.flag("watch").unwrap_or(false);
        if !watch && parameters.timeout().is_none() {
            return Err(InvalidOptions::Timeout);
        }
        Ok(Self {
            watch,
            version: version_of(parameters)?,
            version_match: match text("resourceVersionMatch") {
                None => VersionMatch::Unset,
                Some("Exact") => VersionMatch::Exact,
                Some("NotOlderThan") => VersionMatch::NotOlderThan,
                Some(_) => return Err(InvalidOptions::VersionMatch),
            },
            limit: parameters
                .integer("limit")
                .map_err(|_| InvalidOptions::Limit)?
                .unwrap_or(0),
            continue_token: text("continue").map(str::to_owned),
            send_initial_events: parameters.flag("sendInitialEvents"),
            allow_bookmarks: parameters.flag("allowWatchBookmarks").unwrap_or(false),
            timeout_seconds: parameters
                .integer("timeoutSeconds")
                .map_err(|_| InvalidOptions::TimeoutSeconds)?,
            label_selector: text("labelSelector").map(str::to_owned),
            field_selector: text("fieldSelector").map(str::to_owned),
            shard_selector: text("shardSelector").map(str::to_owned),
            pretty: parameters.pretty().unwrap_or(false),
        })
    }

    /// Parses the label selector and the field selector.
    pub fn selectors(&self) -> Result<Selectors, InvalidSelector> {
        let labels = self.label_selector.as_deref().map(LabelSelector::parse);
        let fields = self.field_selector.as_deref().map(FieldSelector::parse);
        Ok(Selectors {
            labels: labels.transpose()?.unwrap_or_default(),
            fields: fields.transpose()?.unwrap_or_default(),
        })
    }

    /// Returns where these options start a watch on one of the deprecated `/watch/` paths.
    ///
    /// Upstream reads options without `watch` by the rules of lists there. Then no watch marks the
    /// end of its initial events.
    pub fn legacy_watch_start(&self) -> Result<WatchStart, InvalidOptions> {
        if self.watch {
            return self.watch_start();
        }
        let is_plain = self.version_match == VersionMatch::Unset
            && self.send_initial_events.is_none()
            && self.continue_token.is_none();
        if !is_plain {
            return Err(InvalidOptions::Combination);
        }
        let freshness = match self.version {
            VersionParam::At(version) => return Ok(WatchStart::After(version)),
            // Any state would do for releases with a watch cache. The newest one does for all.
            VersionParam::Unset => Freshness::MostRecent,
            VersionParam::Zero => Freshness::Any,
        };
        Ok(WatchStart::State {
            freshness,
            end_mark: false,
        })
    }

    /// Returns where these options start a watch. Options without `watch` are an error.
    pub fn watch_start(&self) -> Result<WatchStart, InvalidOptions> {
        let matched = match self.version_match {
            VersionMatch::Exact => return Err(InvalidOptions::Combination),
            VersionMatch::NotOlderThan => true,
            VersionMatch::Unset => false,
        };
        let matched_by_default = self.initial_events_by_default();
        if !self.watch
            || matched != self.send_initial_events.is_some()
            || (self.continue_token.is_some() && (matched || matched_by_default))
        {
            return Err(InvalidOptions::Combination);
        }
        let freshness = match self.version {
            VersionParam::Unset => Freshness::MostRecent,
            VersionParam::Zero => Freshness::Any,
            VersionParam::At(version) if !self.initial_events() => {
                return Ok(WatchStart::After(version));
            }
            VersionParam::At(version) => Freshness::NotOlderThan(version),
        };
        if !self.initial_events() {
            return Ok(WatchStart::Now(freshness));
        }
        Ok(WatchStart::State {
            freshness,
            end_mark: self.end_mark(),
        })
    }

    /// Returns `true` if a watch with these options begins with the existing objects.
    ///
    /// Clients ask for that. It is also the default if nothing about the start is given.
    pub fn initial_events(&self) -> bool {
        self.send_initial_events
            .unwrap_or_else(|| self.initial_events_by_default())
    }

    /// Returns `true` if the initial events end with a marked bookmark.
    ///
    /// Upstream compresses exactly these watches.
    pub fn end_mark(&self) -> bool {
        self.initial_events() && self.allow_bookmarks
    }

    /// Returns the default of [`initial_events`](Self::initial_events) (`SetListOptionsDefaults`).
    fn initial_events_by_default(&self) -> bool {
        self.watch
            && self.send_initial_events.is_none()
            && self.version_match == VersionMatch::Unset
            && !matches!(self.version, VersionParam::At(_))
    }

    /// Returns the state and the page that a list with these options asks for.
    pub fn list_start(&self) -> Result<ListStart, InvalidOptions> {
        if self.watch || self.send_initial_events.is_some() {
            return Err(InvalidOptions::Combination);
        }
        if let Some(token) = &self.continue_token {
            return self.continued(token);
        }
        let freshness = match (self.version, self.version_match) {
            (VersionParam::Unset, VersionMatch::Unset) => Freshness::MostRecent,
            (VersionParam::Zero, VersionMatch::Unset | VersionMatch::NotOlderThan) => {
                Freshness::Any
            }
            (VersionParam::At(version), VersionMatch::NotOlderThan) => {
                Freshness::NotOlderThan(version)
            }
            (VersionParam::At(version), VersionMatch::Unset) if self.limit <= 0 => {
                Freshness::NotOlderThan(version)
            }
            // A limit makes it exact, except where a selector for one name makes it a read of one
            // key, which is then the latest.
            (VersionParam::At(_), VersionMatch::Unset) if self.may_select_one_name() => {
                return Err(InvalidOptions::Combination);
            }
            (VersionParam::At(version), VersionMatch::Unset | VersionMatch::Exact) => {
                Freshness::Exact(version)
            }
            (VersionParam::Unset, _) | (VersionParam::Zero, VersionMatch::Exact) => {
                return Err(InvalidOptions::Combination);
            }
        };
        Ok(ListStart {
            freshness,
            after: None,
        })
    }

    /// Returns the page after a continue token, at the token's version.
    fn continued(&self, token: &str) -> Result<ListStart, InvalidOptions> {
        if self.version_match != VersionMatch::Unset || matches!(self.version, VersionParam::At(_))
        {
            return Err(InvalidOptions::Combination);
        }
        let token = ContinueToken::decode(token).ok_or(InvalidOptions::ContinueToken)?;
        Ok(ListStart {
            freshness: Freshness::Exact(token.version),
            after: Some(token.after),
        })
    }

    /// Returns the limit that applies to a list. At version `0`, limits have no effect.
    pub fn page_limit(&self) -> Option<u64> {
        match self.version {
            VersionParam::Zero => None,
            _ => u64::try_from(self.limit).ok().filter(|&limit| limit > 0),
        }
    }

    fn may_select_one_name(&self) -> bool {
        self.field_selector.as_deref().is_some_and(|text| {
            FieldSelector::parse(text).map_or(true, |s| s.required_value("metadata.name").is_some())
        })
    }
}

/// Returns the freshness that a get with this query asks for. Only `resourceVersion` says so;
/// upstream ignores all list parameters here, even malformed ones.
pub fn get_freshness(query: &Query<'_>) -> Result<Freshness, InvalidOptions> {
    let parameters = checked(query)?;
    if parameters.flag("export") == Some(true) {
        return Err(InvalidOptions::Export);
    }
    if parameters.timeout().is_none() {
        return Err(InvalidOptions::Timeout);
    }
    Ok(match version_of(parameters)? {
        VersionParam::Unset => Freshness::MostRecent,
        VersionParam::Zero => Freshness::Any,
        VersionParam::At(version) => Freshness::NotOlderThan(version),
    })
}

/// Returns the time that the client of a request gives it with `timeout`; `None` if it says nothing,
/// or nothing that is understood. Watches ignore the parameter.
pub fn request_timeout(query: &Query<'_>) -> Option<Duration> {
    let timeout = checked(query).ok()?.timeout()?;
    Some(timeout).filter(|timeout| !timeout.is_zero())
}

/// Returns the query if upstream understands all of it.
fn checked<'a, 'q>(query: &'a Query<'q>) -> Result<&'a Query<'q>, InvalidOptions> {
    if query.is_whole() {
        Ok(query)
    } else {
        Err(InvalidOptions::Query)
    }
}

fn version_of(parameters: &Query<'_>) -> Result<VersionParam, InvalidOptions> {
    match parameters.first("resourceVersion") {
        None | Some("") => Ok(VersionParam::Unset),
        Some("0") => Ok(VersionParam::Zero),
        // Upstream takes leading zeros; and revisions are signed numbers inside etcd.
        Some(text) => ResourceVersion::parse(text)
            .filter(|version| !text.starts_with('0') && i64::try_from(version.0).is_ok())
            .map(VersionParam::At)
            .ok_or(InvalidOptions::Version),
    }
}

#[cfg(test)]
mod tests;
