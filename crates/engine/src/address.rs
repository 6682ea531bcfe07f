//! Where a queue pair is: its number says by which UDP port its process is reached.
//!
//! Programs for verbs name a queue pair by an IP address (a GID) and a number of 24 bits. The upper 10 bits of our numbers are those
//! of the process among the ports from [`FIRST_PORT`] on, so that nobody has to be asked where a queue pair is, and nothing has to
//! run beside the programs.

use std::net::{IpAddr, SocketAddr};

/// The first of the UDP ports that processes take.
pub const FIRST_PORT: u16 = 0x6000;
/// How many there are: processes with queue pairs in one network namespace at a time.
pub const PORTS: u16 = 1 << 10;
/// Bits of a queue pair's number that are its own within its process.
const OWN_BITS: u32 = 14;
/// Queue pairs of a process at a time.
pub const MAX_QUEUE_PAIRS: u32 = (1 << OWN_BITS) - FIRST_NUMBER;
/// Numbers 0 and 1 are InfiniBand's for management.
const FIRST_NUMBER: u32 = 2;

/// The UDP port of the process that has this queue pair. `None` for numbers above 24 bits.
pub fn port_of(number: u32) -> Option<u16> {
    let slot = u16::try_from(number >> OWN_BITS).ok().filter(|slot| *slot < PORTS)?;
    Some(FIRST_PORT + slot)
}

/// The number of the connection manager of the process with this UDP port: InfiniBand's for management.
pub fn management_number(port: u16) -> Option<u32> {
    const MANAGEMENT: u32 = 1;
    let slot = port.checked_sub(FIRST_PORT).filter(|slot| *slot < PORTS)?;
    Some(u32::from(slot) << OWN_BITS | MANAGEMENT)
}

/// Where the process that has queue pair `number` at `host` is reached.
pub fn address_of(host: IpAddr, number: u32) -> Option<SocketAddr> {
    Some(SocketAddr::new(host.to_canonical(), port_of(number)?))
}

/// Gives out the numbers of one process, each as late as possible after it was given back.
#[derive(Debug)]
pub(crate) struct Numbers {
    slot: u16,
    next: u32,
    taken: Vec<u64>,
}

impl Numbers {
    pub(crate) fn new(port: u16) -> Numbers {
        let taken = vec![0; (1 << OWN_BITS) / 64];
        Numbers { slot: port.wrapping_sub(FIRST_PORT), next: FIRST_NUMBER, taken }
    }

    pub(crate) const fn port(&self) -> u16 {
        self.slot.wrapping_add(FIRST_PORT)
    }

    fn bit(&mut self, own: u32) -> (&mut u64, u64) {
        (&mut self.taken[(own / 64) as usize], 1 << (own % 64))
    }

    /// A number that is free. `None`: there is none.
    pub(crate) fn take(&mut self) -> Option<u32> {
        for _ in 0..MAX_QUEUE_PAIRS {
            let own = self.next;
            self.next = if own + 1 < 1 << OWN_BITS { own + 1 } else { FIRST_NUMBER };
            let (word, bit) = self.bit(own);
            if *word & bit == 0 {
                *word |= bit;
                return Some(u32::from(self.slot) << OWN_BITS | own);
            }
        }
        None
    }

    pub(crate) fn give_back(&mut self, number: u32) {
        let (word, bit) = self.bit(number & ((1 << OWN_BITS) - 1));
        *word &= !bit;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_leads_to_the_port_of_its_process() {
        for port in [FIRST_PORT, FIRST_PORT + 5, FIRST_PORT + PORTS - 1] {
            let number = Numbers::new(port).take().expect("a number");
            assert_eq!(port_of(number), Some(port));
            assert!(number > 1 && number < 1 << 24);
        }
        assert_eq!(port_of(1 << 24), None);
        assert_eq!(management_number(FIRST_PORT + 2), Some(2 << OWN_BITS | 1));
        assert_eq!([FIRST_PORT - 1, FIRST_PORT + PORTS].map(management_number), [None, None]);
        let mapped = "::ffff:192.0.2.1".parse().expect("an address");
        assert_eq!(address_of(mapped, 0x1_4002), "192.0.2.1:24581".parse().ok());
    }

    #[test]
    fn numbers_are_distinct_and_come_back_last() {
        let mut n = Numbers::new(FIRST_PORT + 1);
        let all: std::collections::BTreeSet<u32> = (0..MAX_QUEUE_PAIRS).filter_map(|_| n.take()).collect();
        assert_eq!((all.len() as u32, n.take()), (MAX_QUEUE_PAIRS, None));
        let one = *all.iter().nth(1_000).expect("many");
        n.give_back(one);
        assert_eq!(n.take(), Some(one));
        let mut n = Numbers::new(FIRST_PORT);
        let first = n.take().expect("a number");
        n.give_back(first);
        assert_ne!(n.take(), Some(first));
    }
}
