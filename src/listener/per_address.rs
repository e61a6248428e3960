//! How many connections each address has, so that none can take them all.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use parking_lot::Mutex;

/// Counts open connections by address. It holds no more entries than there are connections.
#[derive(Clone)]
pub(super) struct PerAddress {
    most: usize,
    open: Arc<Mutex<HashMap<IpAddr, usize>>>,
}

/// The place of one connection.
pub(super) struct Place {
    open: Arc<Mutex<HashMap<IpAddr, usize>>>,
    address: IpAddr,
}

impl PerAddress {
    pub(super) fn new(most: usize) -> Self {
        Self {
            most,
            open: Arc::default(),
        }
    }

    /// A place for a connection from this address, if there is one left.
    pub(super) fn enter(&self, address: IpAddr) -> Option<Place> {
        let address = client_network(address);
        let mut open = self.open.lock();
        let count = open.get(&address).copied().unwrap_or(0);
        if count >= self.most {
            return None;
        }
        open.insert(address, count + 1);
        Some(Place {
            open: Arc::clone(&self.open),
            address,
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut open = self.open.lock();
        if let Some(count) = open.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.address);
            }
        }
    }
}

/// Whoever has one address of a 64-bit network of IPv6 has all of them.
pub fn client_network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) => {
            Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)).into()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_address_has_its_own_places() {
        let addresses = PerAddress::new(2);
        let address = |text: &str| text.parse().unwrap();
        let places = [
            addresses.enter(address("10.0.0.1")),
            addresses.enter(address("::ffff:10.0.0.1")),
        ];
        assert!(places.iter().all(Option::is_some));
        assert!(addresses.enter(address("10.0.0.1")).is_none());
        let other = addresses.enter(address("10.0.0.2"));
        assert!(other.is_some());
        drop(places);
        let again = addresses.enter(address("10.0.0.1"));
        assert!(again.is_some());
        drop((other, again));
        assert!(
            addresses.open.lock().is_empty(),
            "nothing is left of those that are gone"
        );
    }

    #[test]
    fn a_network_of_ipv6_is_one_address() {
        let addresses = PerAddress::new(1);
        let _place = addresses.enter("2001:db8::1".parse().unwrap()).unwrap();
        assert!(addresses.enter("2001:db8::2".parse().unwrap()).is_none());
        assert!(
            addresses
                .enter("2001:db8:0:1::1".parse().unwrap())
                .is_some()
        );
    }
}
