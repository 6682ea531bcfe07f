//! In-band telemetry: what hops of a path write into passing packets, and its layout in a datagram.
//!
//! ```text
//! 0..5    f0 4c 48 54 01     tells a datagram with telemetry from all others
//! 5       hops that wrote, or would have had there been room
//! 6       room: records that fit, at most 8
//! 7..     room times 34 bytes, the first hop's first:
//!             identifier 2 | time (ns) 8 | bytes waiting 8 | bytes sent 8 | rate (bytes/s) 8
//! then    the packet, as it would be without
//! ```
//!
//! Big-endian. The layout stands here, and neither with the protocol nor with the model of links, because both need it and
//! neither knows the other: a hop writes without understanding, or having keys for, the packet behind. The fields are those
//! of HPCC's INT header (Li et al., "HPCC: High Precision Congestion Control", SIGCOMM 2019, section 4.1), in full width.

use crate::{Rate, Time};

/// Most hops that one packet's telemetry names.
pub const MAX_HOPS: usize = 8;
/// Bytes of one hop's record.
pub const HOP_BYTES: usize = 34;
/// Bytes before the records.
pub const PREFIX: usize = 7;

/// The first byte of a datagram with telemetry. Its highest bit is set, as in packets of the set-up, and the next four say
/// what no version of the protocol does.
const MAGIC: [u8; 5] = [0xf0, b'L', b'H', b'T', 1];
const COUNT: usize = 5;
const ROOM: usize = 6;

/// What one hop of the path wrote into a packet as it left there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hop {
    /// Which hop, so that a change of the path shows; unique along the path.
    pub id: u16,
    /// When the packet left it, by the hop's clock.
    pub at: Time,
    /// Bytes that waited in its queue then.
    pub queue: u64,
    /// Bytes that had left by this port so far; wraps at 2^64.
    pub sent: u64,
    /// What the port carries.
    pub rate: Rate,
}

impl Hop {
    fn emit(&self) -> [u8; HOP_BYTES] {
        let mut out = [0; HOP_BYTES];
        out[..2].copy_from_slice(&self.id.to_be_bytes());
        let longs = [self.at.as_nanos(), self.queue, self.sent, self.rate.bytes_per_sec()];
        for (to, v) in out[2..].chunks_exact_mut(8).zip(longs) {
            to.copy_from_slice(&v.to_be_bytes());
        }
        out
    }

    fn parse(record: &[u8]) -> Option<Hop> {
        let (id, rest) = record.split_first_chunk::<2>()?;
        let mut longs = rest.chunks_exact(8).map(|b| b.iter().fold(0, |v, &x| v << 8 | u64::from(x)));
        Some(Hop {
            id: u16::from_be_bytes(*id),
            at: Time::from_nanos(longs.next()?),
            queue: longs.next()?,
            sent: longs.next()?,
            rate: Rate::from_bytes_per_sec(longs.next()?),
        })
    }
}

/// Bytes in front of a packet that leaves room for so many hops.
pub const fn lead_len(room: usize) -> usize {
    PREFIX + room * HOP_BYTES
}

/// Writes what stands in front of a packet: room for as many hops as `lead` has bytes for, none of them there yet. Nothing is
/// written where not even one fits.
pub fn put_lead(lead: &mut [u8]) {
    let room = (lead.len().saturating_sub(PREFIX) / HOP_BYTES).min(MAX_HOPS);
    if room == 0 {
        return;
    }
    lead.fill(0);
    lead[..COUNT].copy_from_slice(&MAGIC);
    lead[ROOM] = room as u8;
}

/// Whether a datagram begins as one with telemetry does.
pub fn is_led(datagram: &[u8]) -> bool {
    datagram.starts_with(&MAGIC)
}

/// Splits a datagram with telemetry into what hops wrote and the packet. `None` when it is none, or is none that could have
/// been sent; whatever hops wrote otherwise does not matter.
pub fn split(datagram: &mut [u8]) -> Option<(&[u8], &mut [u8])> {
    let room = usize::from(*datagram.get(ROOM)?);
    if !is_led(datagram) || room == 0 || room > MAX_HOPS {
        return None;
    }
    let (lead, packet) = datagram.split_at_mut_checked(lead_len(room))?;
    Some((lead, packet))
}

/// The hops that wrote into a lead, first to last. `None` when there were more than there was room for, or they wrote
/// nonsense: a part of the path is not the path.
pub fn hops(lead: &[u8]) -> Option<impl Iterator<Item = Hop> + '_> {
    let (count, room) = (usize::from(*lead.get(COUNT)?), usize::from(*lead.get(ROOM)?));
    let records = lead.get(PREFIX..)?;
    if !is_led(lead) || count > room.min(MAX_HOPS) || records.len() < count * HOP_BYTES {
        return None;
    }
    Some(records.chunks_exact(HOP_BYTES).take(count).filter_map(Hop::parse))
}

/// A hop writes itself into a datagram that passes, if that has telemetry. Where there is no room left, only their count
/// grows. Whether it was written.
pub fn stamp(datagram: &mut [u8], hop: &Hop) -> bool {
    let (Some(&count), Some(&room)) = (datagram.get(COUNT), datagram.get(ROOM)) else { return false };
    if !is_led(datagram) || usize::from(room) > MAX_HOPS {
        return false;
    }
    let at = PREFIX + usize::from(count) * HOP_BYTES;
    datagram[COUNT] = count.saturating_add(1);
    match datagram.get_mut(at..at + HOP_BYTES) {
        Some(record) if count < room => {
            record.copy_from_slice(&hop.emit());
            true
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn hop(n: u64) -> Hop {
        let rate = Rate::from_bytes_per_sec(n << 40);
        Hop { id: n as u16, at: Time::from_nanos(n * 1_000), queue: n * 3, sent: u64::MAX - n, rate }
    }

    fn led(room: usize, packet: &[u8]) -> Vec<u8> {
        let mut d = vec![0xaa; lead_len(room)];
        put_lead(&mut d);
        d.extend_from_slice(packet);
        d
    }

    #[test]
    fn vector() {
        let mut d = led(1, b"x");
        let h =
            Hop { id: 0x0102, at: Time::from_nanos(3), queue: 4, sent: 5, rate: Rate::from_bytes_per_sec(6) };
        assert!(stamp(&mut d, &h));
        let mut want = vec![0xf0, 0x4c, 0x48, 0x54, 1, 1, 1, 1, 2];
        for last in 3..7 {
            want.extend([0, 0, 0, 0, 0, 0, 0, last]);
        }
        want.push(b'x');
        assert_eq!(d, want);
    }

    #[test]
    fn hops_append_records_and_leave_the_packet_unchanged() {
        let mut d = led(3, b"packet");
        assert!((1..4).all(|n| stamp(&mut d, &hop(n))));
        let (lead, packet) = split(&mut d).unwrap();
        assert_eq!(hops(lead).unwrap().collect::<Vec<_>>(), [hop(1), hop(2), hop(3)]);
        assert_eq!(packet, b"packet");
        // One more than there is room for: nothing is written over, and nobody takes three for the whole path.
        assert!(!stamp(&mut d, &hop(4)));
        let (lead, packet) = split(&mut d).unwrap();
        assert!(hops(lead).is_none());
        assert_eq!(packet, b"packet");
        assert!((0..300).all(|_| !stamp(&mut d, &hop(5))), "the count does not wrap");
        assert!(hops(split(&mut d).unwrap().0).is_none());
    }

    #[test]
    fn packets_without_telemetry_are_unchanged() {
        for plain in [&b""[..], b"\xf0LHT", b"\xf0LHT\x01", &[0x40; 1_200], &[0xf0; 60]] {
            let mut d = plain.to_vec();
            assert!(!stamp(&mut d, &hop(1)) && split(&mut d).is_none());
            assert_eq!(d, plain);
        }
        let mut short = [0xaa; PREFIX + HOP_BYTES - 1];
        put_lead(&mut short);
        assert_eq!(short, [0xaa; PREFIX + HOP_BYTES - 1]);
    }

    proptest! {
        #[test]
        fn arbitrary_telemetry_does_not_affect_the_packet(mut d in proptest::collection::vec(any::<u8>(), 0..400), magic in any::<bool>(), times in 0u8..12) {
            if magic && d.len() >= 5 {
                d[..5].copy_from_slice(&MAGIC);
            }
            let before = d.len();
            (0..times).for_each(|n| { stamp(&mut d, &hop(n.into())); });
            prop_assert_eq!(d.len(), before);
            if let Some((lead, _)) = split(&mut d) {
                prop_assert!(hops(lead).is_none_or(|h| h.count() <= MAX_HOPS));
            }
            let _ = hops(&d).map(Iterator::count);
        }
    }
}
