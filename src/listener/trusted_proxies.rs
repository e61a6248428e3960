//! Networks of load balancers and proxies that may tell a client's address.

use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;

/// Networks whose members are believed when they tell a client's address. Cheap to clone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrustedProxies(Arc<[Network]>);

impl TrustedProxies {
    /// Creates the set of these networks.
    pub fn new(networks: impl IntoIterator<Item = Network>) -> Self {
        Self(networks.into_iter().collect())
    }

    /// Returns `true` if no network is named.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns `true` if an address is in one of the networks.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.0.iter().any(|network| network.contains(address))
    }

    /// Returns the networks as text.
    pub fn names(&self) -> Vec<String> {
        self.0.iter().map(ToString::to_string).collect()
    }
}

/// A network of addresses: those that begin with the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    prefix: u8,
}

/// The reason why a text is not a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not an address or a network, such as 10.0.0.0/8 or 2001:db8::/32")]
pub struct InvalidNetwork;

impl Network {
    /// Returns `true` if the network has this address. IPv4 addresses that are written as IPv6 ones
    /// count as IPv4.
    fn contains(&self, address: IpAddr) -> bool {
        let bits = |left: u128, right: u128, width: u32| {
            let shift = width - u32::from(self.prefix);
            // A shift by all bits leaves none to compare.
            left.checked_shr(shift).unwrap_or(0) == right.checked_shr(shift).unwrap_or(0)
        };
        match (self.address, address.to_canonical()) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                bits(own.to_bits().into(), other.to_bits().into(), 32)
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => bits(own.to_bits(), other.to_bits(), 128),
            _ => false,
        }
    }
}

impl FromStr for Network {
    type Err = InvalidNetwork;

    fn from_str(text: &str) -> Result<Self, InvalidNetwork> {
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| InvalidNetwork)?;
        let width = if address.is_ipv4() { 32 } else { 128 };
        let prefix = match prefix {
            None => width,
            Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
                digits.parse().map_err(|_| InvalidNetwork)?
            }
            Some(_) => return Err(InvalidNetwork),
        };
        (prefix <= width)
            .then_some(Self { address, prefix })
            .ok_or(InvalidNetwork)
    }
}

impl std::fmt::Display for Network {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proxies(text: &str) -> TrustedProxies {
        TrustedProxies::new(text.split(',').map(|one| one.parse::<Network>().unwrap()))
    }

    #[test]
    fn networks_contain_their_addresses_only() {
        let proxies = proxies("10.1.0.0/16,192.0.2.7,2001:db8::/33,::1");
        for (address, wanted) in [
            ("10.1.255.255", true),
            ("10.2.0.0", false),
            ("::ffff:10.1.2.3", true),
            ("192.0.2.7", true),
            ("192.0.2.6", false),
            ("2001:db8:7fff::1", true),
            ("2001:db8:8000::1", false),
            ("::1", true),
            ("::2", false),
        ] {
            assert_eq!(
                proxies.contains(address.parse().unwrap()),
                wanted,
                "{address}"
            );
        }
        let everything = "0.0.0.0/0".parse::<Network>().unwrap();
        assert!(everything.contains("255.255.255.255".parse().unwrap()));
        assert!(!everything.contains("::1".parse().unwrap()));
        assert!(!TrustedProxies::default().contains("10.0.0.1".parse().unwrap()));
    }

    #[test]
    fn other_texts_are_not_networks() {
        for text in [
            "",
            "10.0.0.0/33",
            "10.0.0/8",
            "::/129",
            "10.0.0.0/",
            "10.0.0.0/+8",
            "host",
            "10.0.0.0/8/8",
        ] {
            assert_eq!(text.parse::<Network>(), Err(InvalidNetwork), "{text}");
        }
        assert_eq!(
            "10.1.0.0/16".parse::<Network>().unwrap().to_string(),
            "10.1.0.0/16"
        );
    }
}
