//! Builds the data packets of one train: equal segments that leave in one system call.

use super::Connection;
use super::transmit::{MAX_SEGMENTS, MAX_TRAIN, Permit, TrainDraft};
use crate::lane::sent::{Content, SentPacket, State};
use crate::streams::Streams;
use base::{Ecn, Time};
use wire::SliceWriter;
use wire::packet::SHORT_CLEAR;

/// Code of QP_ERROR: memory of ours failed (docs/protocol.md, 9.2).
const LOCAL_FAULT: u64 = 12;

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
    ) -> TrainDraft {
        let l = &self.lanes[lane];
        let (mtu, overhead) = (usize::from(l.mtu.current()), u64::from(l.overhead()));
        let alone = lead > 0 || matches!(permit, Permit::Probe(_));
        let mut d = TrainDraft { packets: 0, wire_bytes: 0, len: 0, segment: mtu, ecn };
        let room = MAX_TRAIN.min(buf.len());
        loop {
            let most = match (alone, d.segment < mtu) {
                (true, _) => 1,
                (false, true) => MAX_SEGMENTS as u64,
                (false, false) => most as u64,
            };
            let each = d.segment as u64 + overhead;
            if d.packets >= most || d.len + d.segment > room || !permit.covers(each) {
                break;
            }
            let (packet, first) = (&mut buf[d.len + lead..d.len + d.segment], d.packets == 0);
            let built = self.build_packet(now, (lane, flow, train), (mtu - lead, first), packet, streams);
            let Some((n, goes_on)) = built else { break };
            let is_last = d.packets > 0 && n < d.segment;
            if d.packets == 0 {
                d.segment = n;
            }
            d.add(1, n, overhead);
            permit.spend((n + lead) as u64 + overhead);
            if is_last {
                break;
            }
            if let Some(qpn) = goes_on.filter(|_| !alone) {
                let (each, most) = (d.segment as u64 + overhead, most.saturating_sub(d.packets));
                let fit = ((room - d.len) / d.segment) as u64;
                let left = most.min(fit).min(permit.bytes() / each) as usize;
                let rest = &mut buf[d.len..d.len + left * d.segment];
                let n = self.build_run(now, (lane, train, qpn), (rest, d.segment), streams);
                d.add(n, d.segment, overhead);
                permit.spend(n as u64 * each);
            }
        }
        d
    }

    /// Writes more packets, `segment` bytes each, of the message that the last one was of, as many as `buf` holds at most:
    /// those that are like that one but for the place of what they carry, so that all else is found out once. Gives how many.
    fn build_run(
        &mut self,
        now: Time,
        (lane, train, qpn): (usize, u64, u16),
        (buf, segment): (&mut [u8], usize),
        streams: &mut impl Streams,
    ) -> usize {
        let Some(tag_len) = self.keys.as_ref().map(|k| k.suite().tag_len()) else { return 0 };
        let Some((first, n)) = streams.run(qpn, buf.len() / segment) else { return 0 };
        let len = first.segment.len as usize;
        let (start, body) = (SHORT_CLEAR + tag_len, segment - len);
        let buf = &mut buf[..n * segment];
        let (flags, mut header) = (first.header.flags(), first.header);
        for packet in buf.chunks_exact_mut(segment) {
            packet[0] = flags;
            header.put(&mut SliceWriter::new(&mut packet[start..body]));
            header.offset += len as u64;
        }
        if !streams.gather_run(qpn, buf, segment, body) {
            self.send_qp_error(qpn, LOCAL_FAULT);
        }
        self.stats.payload_sent += (n * len) as u64;
        let l = &mut self.lanes[lane];
        let bytes = segment as u32 + u32::from(l.overhead());
        l.on_data_sent(now, n as u64, false);
        l.asks |= !first.quiet;
        let p = SentPacket { time: now, train, bytes, state: State::Outstanding, content: Content::Nothing };
        l.sent.push_run(&p, (qpn, first.segment), n);
        n
    }

    /// Writes one unsealed packet of the queue pair whose turn it is: header and payload where they stay. It is what would go
    /// into a packet of `full` bytes; all but the `first` of a train only if that fits `buf`. Gives its length, and the queue
    /// pair if its message goes on.
    fn build_packet(
        &mut self,
        now: Time,
        (lane, flow, train): (usize, u8, u64),
        (full, first): (usize, bool),
        buf: &mut [u8],
        streams: &mut impl Streams,
    ) -> Option<(usize, Option<u16>)> {
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
        buf[0] = next.header.flags();
        if !streams.gather(qpn, &next, &mut buf[body..end]) {
            // Its memory is gone. Room is taken and numbered already: a control packet of padding takes the place, so that the peer
            // never completes a message with bytes that are not its own.
            buf[0] = 0;
            buf[start..end].fill(0);
            self.send_qp_error(qpn, LOCAL_FAULT);
        }
        if !streams.has_more(qpn) {
            self.scheduler.deactivate(qpn);
        }
        self.stats.payload_sent += u64::from(next.segment.len);
        if next.again {
            self.stats.packets_again += 1;
            self.stats.payload_again += u64::from(next.segment.len);
        }
        let l = &mut self.lanes[lane];
        let bytes = end as u32 + u32::from(l.overhead());
        let content = Content::Data(qpn, next.segment);
        l.on_data_sent(now, 1, next.again);
        l.asks |= !next.quiet;
        l.sent.push(SentPacket { time: now, train, bytes, state: State::Outstanding, content });
        Some((end, next.header.last.is_none().then_some(qpn)))
    }
}
