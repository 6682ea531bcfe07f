//! The packets of a train.

use super::Connection;
use super::transmit::{Draft, MAX_SEGMENTS, MAX_TRAIN, Permit};
use crate::lane::sent::{Content, SentPacket, State};
use crate::streams::Streams;
use base::{Ecn, Time};
use wire::SliceWriter;
use wire::packet::SHORT_CLEAR;

impl Connection {
    /// Writes unsealed packets, as many as are permitted and fit: `most` full ones. A probe is one packet, and one with `lead`
    /// bytes in front, for what hops write, leaves alone.
    ///
    /// All packets of a train but the last are equally long. Where the first is not full, what is no longer goes on with it,
    /// padded where it lacks little: short messages travel in trains as well.
    pub(super) fn fill_train(
        &mut self,
        now: Time,
        (lane, flow, train): (usize, u8, u64),
        (most, lead, ecn): (usize, usize, Ecn),
        permit: &mut Permit,
        buf: &mut [u8],
        streams: &mut impl Streams,
    ) -> Draft {
        let l = &self.lanes[lane];
        let (mtu, overhead) = (usize::from(l.mtu.current()), u64::from(l.overhead()));
        let alone = lead > 0 || matches!(permit, Permit::Probe(_));
        let mut d = Draft { packets: 0, wire_bytes: 0, len: 0, segment: mtu, ecn };
        loop {
            let short = d.segment < mtu;
            let most = match (alone, short) {
                (true, _) => 1,
                (false, true) => MAX_SEGMENTS,
                (false, false) => most,
            };
            let fits = d.len + d.segment <= MAX_TRAIN.min(buf.len());
            if d.packets >= most as u64 || !fits || !permit.covers(d.segment as u64 + overhead) {
                break;
            }
            let (packet, first) = (&mut buf[d.len + lead..d.len + d.segment], d.packets == 0);
            let Some(n) = self.build_packet(now, (lane, flow, train), (mtu - lead, first), packet, streams)
            else {
                break;
            };
            let is_last = d.packets > 0 && n < d.segment;
            if d.packets == 0 {
                d.segment = n;
            }
            d.packets += 1;
            d.len += n;
            d.wire_bytes += n as u64 + overhead;
            permit.spend((n + lead) as u64 + overhead);
            if is_last {
                break;
            }
        }
        d
    }

    /// Writes one unsealed packet of the queue pair whose turn it is: header and payload where they stay. It is what would go
    /// into a packet of `full` bytes; all but the `first` of a train only if that fits `buf`.
    fn build_packet(
        &mut self,
        now: Time,
        (lane, flow, train): (usize, u8, u64),
        (full, first): (usize, bool),
        buf: &mut [u8],
        streams: &mut impl Streams,
    ) -> Option<usize> {
        let tag_len = self.keys.as_ref()?.suite().tag_len();
        let start = SHORT_CLEAR + tag_len;
        let (qpn, next) = loop {
            let qpn = self.scheduler.current(flow)?;
            let within = if first { None } else { Some(buf.len() - start) };
            match streams.next(qpn, full - start, within) {
                Some(n) => break (qpn, n),
                // What does not fit leaves with the next train.
                None if buf.len() < full => return None,
                None => self.scheduler.deactivate(qpn),
            }
        };
        let mut w = SliceWriter::new(&mut buf[start..]);
        next.header.put(&mut w);
        let body = start + w.len();
        let end = body + next.segment.len as usize;
        streams.gather(qpn, &next, &mut buf[body..end]);
        if !streams.has_more(qpn) {
            self.scheduler.deactivate(qpn);
        }
        buf[0] = next.header.flags();
        self.stats.payload_sent += u64::from(next.segment.len);
        if next.again {
            self.stats.packets_again += 1;
            self.stats.payload_again += u64::from(next.segment.len);
        }
        let l = &mut self.lanes[lane];
        let bytes = end as u32 + u32::from(l.overhead());
        let content = Content::Data(qpn, next.segment);
        l.on_data_sent(now, next.again);
        l.asks |= !next.quiet;
        l.sent.push(SentPacket { time: now, train, bytes, state: State::Outstanding, content });
        Some(end)
    }
}
