//! Texts that are different for each client: `node-{0..49}` is `node-0` for the first, `node-49`
//! for the fiftieth, and `node-0` again after that.
use std::fmt;
use std::str::FromStr;

use serde::de::{Deserialize, Deserializer};

use crate::from_text::from_text;

/// A text with at most one range in it. The range keeps the leading zeros of its start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NumberedText {
    before: String,
    range: Option<NumberRange>,
    after: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct NumberRange {
    first: u32,
    last: u32,
    width: usize,
}

impl NumberedText {
    /// The text of the n-th client.
    pub fn of(&self, n: usize) -> String {
        let Self {
            before,
            range,
            after,
        } = self;
        match range {
            None => before.clone(),
            Some(NumberRange { first, last, width }) => {
                let count = last - first + 1;
                let number = first + (n % count as usize) as u32;
                format!("{before}{number:0width$}{after}")
            }
        }
    }

    /// Returns the number of different texts.
    pub fn len(&self) -> usize {
        self.range
            .as_ref()
            .map_or(1, |range| (range.last - range.first) as usize + 1)
    }

    /// Returns `true` if the text is empty.
    pub fn is_empty(&self) -> bool {
        self.range.is_none() && self.before.is_empty()
    }
}

impl FromStr for NumberedText {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const WANTED: &str = "a range is written {0..49}";
        let Some((before, rest)) = text.split_once('{') else {
            return Ok(Self {
                before: text.to_owned(),
                ..Self::default()
            });
        };
        let (range, after) = rest.split_once('}').ok_or(WANTED)?;
        let (first, last) = range.split_once("..").ok_or(WANTED)?;
        if after.contains('{') {
            return Err("only one range is possible".to_owned());
        }
        let number = |text: &str| -> Result<u32, String> {
            let plain =
                !text.is_empty() && text.len() <= 6 && text.bytes().all(|b| b.is_ascii_digit());
            if plain {
                text.parse().map_err(|_| WANTED.to_owned())
            } else {
                Err(WANTED.to_owned())
            }
        };
        let width = if first.starts_with('0') {
            first.len()
        } else {
            1
        };
        let (first, last) = (number(first)?, number(last)?);
        if first > last {
            return Err("the range ends before it begins".to_owned());
        }
        let range = Some(NumberRange { first, last, width });
        Ok(Self {
            before: before.to_owned(),
            range,
            after: after.to_owned(),
        })
    }
}

impl fmt::Display for NumberedText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            before,
            range,
            after,
        } = self;
        match range {
            None => f.write_str(before),
            Some(NumberRange { first, last, width }) => {
                write!(f, "{before}{{{first:0width$}..{last}}}{after}")
            }
        }
    }
}

impl<'de> Deserialize<'de> for NumberedText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        from_text(deserializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_client_gets_its_own_number() {
        let nodes: NumberedText = "spec.nodeName=node-{0..2}".parse().unwrap();
        let names: Vec<_> = (0..4).map(|n| nodes.of(n)).collect();
        let wanted =
            ["node-0", "node-1", "node-2", "node-0"].map(|node| format!("spec.nodeName={node}"));
        assert_eq!(names, wanted);
        assert_eq!(
            (nodes.len(), nodes.to_string().as_str()),
            (3, "spec.nodeName=node-{0..2}")
        );
        assert_eq!(
            "n{007..12}x".parse::<NumberedText>().unwrap().of(5),
            "n012x"
        );
        assert_eq!("plain".parse::<NumberedText>().unwrap().of(9), "plain");
        assert!("".parse::<NumberedText>().unwrap().is_empty());
    }

    #[test]
    fn a_malformed_range_is_refused() {
        for wrong in [
            "a{",
            "a{}",
            "a{1}",
            "a{2..1}",
            "a{-1..2}",
            "a{1..2}{3..4}",
            "a{1..9999999}",
            "{a..b}",
        ] {
            assert!(wrong.parse::<NumberedText>().is_err(), "{wrong}");
        }
    }
}
