//! Flags of `watershed serve` that refuse requests in single-identity mode.
use clap::Args;
use regex::Regex;

use crate::serve::RequestFilter;

/// The hosts of `kubectl proxy`'s default. A page elsewhere can make its own name resolve to this
/// listener, but then sends that name.
const LOCAL_HOSTS: &str = r"^localhost$,^127\.0\.0\.1$,^\[::1\]$";

/// Flags that refuse requests which would be sent with the proxy's own identity.
#[derive(Args, Debug)]
#[command(next_help_heading = "Single identity")]
pub(super) struct RequestFilterFlags {
    /// Regular expressions of the paths that are accepted with --single-identity.
    #[arg(
        long,
        requires = "single_identity",
        value_name = "REGEXPS",
        value_delimiter = ',',
        default_value = "^.*"
    )]
    accept_paths: Vec<Regex>,
    /// Regular expressions of the paths that are refused with --single-identity, such as
    /// "^/api/.*/pods/.*/exec,^/api/.*/pods/.*/attach".
    #[arg(
        long,
        requires = "single_identity",
        value_name = "REGEXPS",
        value_delimiter = ','
    )]
    reject_paths: Vec<Regex>,
    /// Regular expressions of the methods that are refused with --single-identity, such as
    /// "^(POST|PUT|PATCH|DELETE)$".
    #[arg(
        long,
        requires = "single_identity",
        value_name = "REGEXPS",
        value_delimiter = ',',
        default_value = "^CONNECT$,^TRACE$"
    )]
    reject_methods: Vec<Regex>,
    /// Regular expressions of the hosts that requests may be for with --single-identity.
    #[arg(
        long,
        requires = "single_identity",
        value_name = "REGEXPS",
        value_delimiter = ',',
        default_value = LOCAL_HOSTS
    )]
    accept_hosts: Vec<Regex>,
}

impl RequestFilterFlags {
    /// Returns the filter.
    pub(super) fn filter(self) -> RequestFilter {
        RequestFilter {
            accept_paths: self.accept_paths,
            reject_paths: self.reject_paths,
            reject_methods: self.reject_methods,
            accept_hosts: self.accept_hosts,
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        filter: RequestFilterFlags,
        #[arg(long)]
        single_identity: bool,
    }

    #[test]
    fn the_defaults_are_patterns() {
        let filter = Line::parse_from(["x"]).filter.filter();
        let counts = [
            filter.accept_paths.len(),
            filter.reject_paths.len(),
            filter.reject_methods.len(),
            filter.accept_hosts.len(),
        ];
        assert_eq!(counts, [1, 0, 2, 3]);
        let parse = |flags: &[&str]| Line::try_parse_from([&["x"], flags].concat());
        assert!(parse(&["--single-identity", "--reject-paths", "("]).is_err());
        assert!(
            parse(&["--single-identity", "--reject-paths", "^/api"])
                .unwrap()
                .single_identity
        );
        let ignored = parse(&["--reject-methods", "DELETE"]);
        assert!(ignored.is_err(), "nothing would be refused");
    }
}
