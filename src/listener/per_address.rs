//! Limits the connections of each address, so that none can take them all.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use dashmap::DashMap;

/// Counts open connections by address. It holds no more entries than there are connections.
#[derive(Clone)]
pub(super) struct AddressLimiter {
    limit: usize,
    open: Arc<DashMap<IpAddr, usize>>,
}

/// The slot of one connection, free again when it is dropped.
pub(super) struct ConnectionSlot {
    open: Arc<DashMap<IpAddr, usize>>,
    address: IpAddr,
}

impl AddressLimiter {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            limit,
            open: Arc::default(),
        }
    }

    /// Returns a slot for a connection from this address, if it has one left.
    pub(super) fn acquire(&self, address: IpAddr) -> Option<ConnectionSlot> {
        let address = client_network(address);
        let mut count = self.open.entry(address).or_insert(0);
        if *count >= self.limit {
            return None;
        }
        *count += 1;
        Some(ConnectionSlot {
            open: Arc::clone(&self.open),
            address,
        })
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.open.remove_if_mut(&self.address, |_, count| {
            *count -= 1;
            *count == 0
        });
    }
}

/// Returns what an address is counted as: itself, or the 64-bit network of an IPv6 address.
///
/// The holder of one address of such a network has all of them.
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
    fn each_address_has_its_own_slots() {
        let addresses = AddressLimiter::new(2);
        let address = |text: &str| text.parse().unwrap();
        let slots = [
            addresses.acquire(address("10.0.0.1")),
            addresses.acquire(address("::ffff:10.0.0.1")),
        ];
        assert!(slots.iter().all(Option::is_some));
        assert!(addresses.acquire(address("10.0.0.1")).is_none());
        let other = addresses.acquire(address("10.0.0.2"));
        assert!(other.is_some());
        drop(slots);
        let again = addresses.acquire(address("10.0.0.1"));
        assert!(again.is_some());
        drop((other, again));
        assert!(
            addresses.open.is_empty(),
            "closed connections leave no entry"
        );
    }

    #[test]
    fn an_ipv6_network_counts_as_one_address() {
        let addresses = AddressLimiter::new(1);
        let _slot = addresses.acquire("2001:db8::1".parse().unwrap()).unwrap();
        assert!(addresses.acquire("2001:db8::2".parse().unwrap()).is_none());
        assert!(
            addresses
                .acquire("2001:db8:0:1::1".parse().unwrap())
                .is_some()
        );
    }
}
