//! Validity of certificates.

use std::net::IpAddr;
use std::time::Duration;

use jiff::Timestamp;
use rustls::pki_types::CertificateDer;
use x509_parser::extensions::GeneralName;

/// A certificate ends soon if it has a tenth of its life left, and no more than this.
///
/// cert-manager renews after two thirds of the life, kubelets and people some days before the end.
const SOON: Duration = Duration::from_hours(30 * 24);

/// The period for which a certificate is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    /// The first second.
    pub not_before: Timestamp,
    /// The last second.
    pub not_after: Timestamp,
}

impl Validity {
    /// Reads the validity of a certificate; `None` if it cannot be parsed.
    pub fn of(certificate: &CertificateDer<'_>) -> Option<Self> {
        let (_, parsed) = x509_parser::parse_x509_certificate(certificate).ok()?;
        // The end of the year 9999, which stands for no end (RFC 5280, 4.1.2.5), is a day later
        // than a timestamp can be.
        let [first, last] = [Timestamp::MIN, Timestamp::MAX].map(Timestamp::as_second);
        let at = |time: x509_parser::time::ASN1Time| {
            Timestamp::from_second(time.timestamp().clamp(first, last)).ok()
        };
        let validity = parsed.validity();
        Some(Self {
            not_before: at(validity.not_before)?,
            not_after: at(validity.not_after)?,
        })
    }

    /// Returns the names and addresses of a certificate.
    pub fn names(certificate: &CertificateDer<'_>) -> Vec<String> {
        let Ok((_, parsed)) = x509_parser::parse_x509_certificate(certificate) else {
            return Vec::new();
        };
        let Ok(Some(names)) = parsed.subject_alternative_name() else {
            return Vec::new();
        };
        let name = |name: &GeneralName<'_>| match name {
            GeneralName::DNSName(name) => Some((*name).to_owned()),
            GeneralName::IPAddress(bytes) => match bytes.len() {
                4 => <[u8; 4]>::try_from(*bytes)
                    .ok()
                    .map(|bytes| IpAddr::from(bytes).to_string()),
                _ => <[u8; 16]>::try_from(*bytes)
                    .ok()
                    .map(|bytes| IpAddr::from(bytes).to_string()),
            },
            _ => None,
        };
        names.value.general_names.iter().filter_map(name).collect()
    }

    /// Returns `true` if the certificate is valid at this moment.
    pub fn is_valid(self, now: Timestamp) -> bool {
        self.not_before <= now && now <= self.not_after
    }

    /// Returns `true` if the certificate should have been renewed by now.
    pub fn ends_soon(self, now: Timestamp) -> bool {
        let seconds = |duration: jiff::SignedDuration| duration.as_secs();
        let life = seconds(self.not_after.duration_since(self.not_before));
        let soon = (life / 10).min(i64::try_from(SOON.as_secs()).unwrap_or(i64::MAX));
        seconds(self.not_after.duration_since(now)) < soon
    }

    /// Describes the validity for the operator.
    pub fn describe(self, now: Timestamp) -> String {
        if now < self.not_before {
            format!("it is not valid before {}", self.not_before)
        } else if now > self.not_after {
            format!("it expired at {}", self.not_after)
        } else {
            format!("it is valid until {}", self.not_after)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_has_a_beginning_and_an_end() {
        let at = |day: i64| Timestamp::from_second(day * 86_400).unwrap();
        let year = Validity {
            not_before: at(0),
            not_after: at(365),
        };
        for (day, valid, soon, told) in [
            (-1, false, false, "not valid before 1970-01-01T00:00:00Z"),
            (1, true, false, "until 1971-01-01T00:00:00Z"),
            (334, true, false, "until"),
            (336, true, true, "until"),
            (366, false, true, "expired at 1971-01-01T00:00:00Z"),
        ] {
            assert_eq!(
                (year.is_valid(at(day)), year.ends_soon(at(day))),
                (valid, soon),
                "day {day}"
            );
            assert!(
                year.describe(at(day)).contains(told),
                "day {day}: {}",
                year.describe(at(day))
            );
        }
        let short = Validity {
            not_before: at(0),
            not_after: at(10),
        };
        assert!(
            !short.ends_soon(at(8))
                && short.ends_soon(Timestamp::from_second(10 * 86_400 - 1).unwrap())
        );
    }

    #[test]
    fn a_certificate_without_an_end_is_valid() {
        let mut params = rcgen::CertificateParams::default();
        params.not_after = rcgen::date_time_ymd(9999, 12, 31);
        let certificate = params
            .self_signed(&rcgen::KeyPair::generate().unwrap())
            .unwrap();
        let valid = Validity::of(certificate.der()).unwrap();
        assert!(
            valid.is_valid(Timestamp::now()) && !valid.ends_soon(Timestamp::now()),
            "{valid:?}"
        );
    }
}
