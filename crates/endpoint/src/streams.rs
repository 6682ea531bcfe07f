//! Implements the transport's [`Streams`] interface over the verbs adapter.

use base::Prefetch;
use transport::connection::MAX_TRAIN;
use transport::{NextSegment, PlaceError, SegmentRef, Streams};
use verbs::{Adapter, Incoming, MaxPayload, Placed, QpId, Segment, SegmentOp, StridedBuffer};
use wire::data::{RESPONSE_HEADER, SEND_HEADER, TAIL, TAIL_IMMEDIATE, WRITE_HEADER};
use wire::{DataHeader, DataOp};

/// The adapter, with the queue pair numbers of one connection.
pub struct ConnStreams<'a> {
    pub adapter: &'a mut Adapter,
    pub qps: &'a [Option<QpId>],
    /// The segment that `next` gave last, for `gather`.
    pub last: Option<Segment>,
}

/// Inner header and tail of the longest kind: rooms below it fit nothing.
const LONGEST_HEADER: usize = 1 + 2 + 2 + 4 + 8 + 1 + 2 + 4;

/// Packets are padded by at most a part in 2 to the power of this: bytes are what slow paths have least of.
const PADDING_SHIFT: u32 = 5;

impl ConnStreams<'_> {
    fn qp(&self, qpn: u16) -> Option<QpId> {
        self.qps.get(usize::from(qpn)).copied().flatten()
    }
}

/// Payload that fits packets of `room` bytes: all of a message are to be equally long.
fn rooms(room: usize) -> Option<MaxPayload> {
    room.checked_sub(LONGEST_HEADER)?;
    let beside = |header| u32::try_from(room - header).unwrap_or(u32::MAX);
    Some(MaxPayload {
        tagged: beside(WRITE_HEADER),
        untagged: beside(SEND_HEADER),
        response: beside(RESPONSE_HEADER),
        tail: TAIL as u32,
        tail_imm: TAIL_IMMEDIATE as u32,
        // Where a train has one packet (loopback's are 64 KiB) there is nothing to be alike for, and large ones are cheaper.
        even: 2 * room <= MAX_TRAIN,
    })
}

fn header(qpn: u16, s: &Segment) -> DataHeader {
    let op = match s.op {
        SegmentOp::Write => DataOp::Write,
        SegmentOp::Send => DataOp::Send,
        SegmentOp::ReadRequest => DataOp::ReadRequest,
        SegmentOp::ReadResponse => DataOp::ReadResponse,
        SegmentOp::AtomicRequest => DataOp::AtomicRequest,
    };
    DataHeader {
        op,
        qpn,
        msn: s.msn as u16,
        key: s.key,
        offset: s.position,
        rsn: s.rsn.map(|r| r as u16),
        first: s.first,
        last: s.last.map(|t| wire::Tail {
            imm: t.imm,
            invalidates: t.invalidates,
            solicited: t.solicited,
            padding: None,
        }),
    }
}

fn reference(s: SegmentRef) -> verbs::SegmentRef {
    verbs::SegmentRef { msn: s.msn, offset: s.offset, len: s.len }
}

impl Streams for ConnStreams<'_> {
    fn next(&mut self, qpn: u16, room: usize, within: Option<usize>) -> Option<NextSegment> {
        let (qp, rooms, len) = (self.qp(qpn)?, rooms(room)?, within.unwrap_or(room));
        if len < room {
            let s = self.adapter.peek(qp, rooms)?;
            if header(qpn, &s).encoded_len() + s.len as usize > len {
                return None;
            }
        }
        let mut s = self.adapter.next_segment_in(qp, rooms)?;
        let mut h = header(qpn, &s);
        let takes = h.encoded_len() + s.len as usize;
        if takes > len {
            // The tail of the last segment, or a wide offset, does not fit: the end goes into another packet.
            let cut = (takes - len).min(s.len as usize) as u32;
            s.len -= cut;
            let rest = verbs::SegmentRef { msn: s.msn, offset: s.offset + u64::from(s.len), len: cut };
            (s.last, s.quiet) = (None, false);
            self.adapter.on_lost(qp, rest);
            h = header(qpn, &s);
        } else if takes < len && within.is_some() && len - takes <= len >> PADDING_SHIFT {
            h.pad(len - takes);
        }
        self.last = Some(s);
        let r = s.reference();
        let segment = SegmentRef { msn: r.msn, offset: r.offset, len: r.len };
        Some(NextSegment { header: h, segment, again: s.retransmission, quiet: s.quiet })
    }

    fn run(&mut self, qpn: u16, most: usize) -> Option<(NextSegment, usize)> {
        let (qp, s) = (self.qp(qpn)?, self.last.filter(|s| s.last.is_none())?);
        let first = s.following();
        // Where offsets come to need more bytes, headers are not alike.
        let reach = u64::from(s.len).saturating_mul(most as u64);
        let end = Segment { position: s.position.saturating_add(reach), ..first };
        let h = header(qpn, &first);
        if h.encoded_len() != header(qpn, &s).encoded_len()
            || h.encoded_len() != header(qpn, &end).encoded_len()
        {
            return None;
        }
        let n = self.adapter.next_run(qp, &s, u32::try_from(most).unwrap_or(u32::MAX)) as usize;
        if n == 0 {
            return None;
        }
        self.last = Some(first);
        let segment = SegmentRef { msn: first.msn, offset: first.offset, len: first.len };
        Some((NextSegment { header: h, segment, again: false, quiet: first.quiet }, n))
    }

    fn gather_run(&mut self, qpn: u16, out: &mut [u8], stride: usize, at: usize) -> bool {
        let done = match (self.qp(qpn), &self.last) {
            (Some(qp), Some(s)) => {
                self.adapter.gather_run(qp, s, &mut StridedBuffer { out, stride, at }).is_ok()
            }
            _ => false,
        };
        if !done {
            // As for one piece.
            let len = self.last.map_or(0, |s| s.len as usize);
            out.chunks_mut(stride).filter_map(|c| c.get_mut(at..at + len)).for_each(|c| c.fill(0));
        }
        done
    }

    fn has_more(&self, qpn: u16) -> bool {
        self.qp(qpn).is_some_and(|q| self.adapter.has_segment(q))
    }

    fn waiting(&self, qpn: u16) -> (u64, u64) {
        self.qp(qpn).map_or((0, 0), |q| self.adapter.waiting(q))
    }

    fn gather(&mut self, qpn: u16, _next: &NextSegment, out: &mut [u8]) -> bool {
        let done = match (self.qp(qpn), &self.last) {
            (Some(qp), Some(s)) => self.adapter.gather(qp, s, out).is_ok(),
            _ => false,
        };
        if !done {
            // The memory failed (a mapped file was cut short): the queue pair is in error. Old bytes of the buffer never leave.
            out.fill(0);
        }
        done
    }

    fn prefetch_hint(&self, qpn: u16) -> Prefetch {
        self.qp(qpn).map_or_else(Prefetch::default, |qp| self.adapter.prefetch_hint(qp))
    }

    fn acked(&mut self, qpn: u16, segment: SegmentRef) {
        if let Some(qp) = self.qp(qpn) {
            self.adapter.on_acked(qp, reference(segment));
        }
    }

    fn lost(&mut self, qpn: u16, segment: SegmentRef) {
        if let Some(qp) = self.qp(qpn) {
            self.adapter.on_lost(qp, reference(segment));
        }
    }

    fn place(&mut self, h: &DataHeader, payload: &[u8]) -> Result<transport::Placed, PlaceError> {
        let Some(qp) = self.qp(h.qpn) else { return Ok(transport::Placed::Refused) };
        let op = match h.op {
            DataOp::Write => SegmentOp::Write,
            DataOp::Send => SegmentOp::Send,
            DataOp::ReadRequest => SegmentOp::ReadRequest,
            DataOp::ReadResponse => SegmentOp::ReadResponse,
            DataOp::AtomicRequest => SegmentOp::AtomicRequest,
        };
        let incoming = Incoming {
            op,
            msn16: h.msn,
            rsn16: h.rsn,
            key: h.key,
            position: h.offset,
            first: h.first,
            last: h.last.map(|t| verbs::Tail {
                imm: t.imm,
                invalidates: t.invalidates,
                solicited: t.solicited,
            }),
        };
        match self.adapter.place(qp, &incoming, payload) {
            Ok(Placed::New) => Ok(transport::Placed::Done),
            Ok(Placed::Duplicate) => Ok(transport::Placed::Duplicate),
            Ok(Placed::Refused) => Ok(transport::Placed::Refused),
            Err(v) => Err(PlaceError { code: v.code().into() }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use verbs::{Access, Data, Limits, Memory, QpInit, QpState, RecvWr, SendOp, SendWr, Sge};

    const LEN: usize = 100_000;
    const ROOM: usize = 1_443;

    fn adapter(seed: u64) -> (Adapter, QpId, verbs::Mr) {
        let mut a = Adapter::new(Limits::default(), base::Rng::from_u64(seed));
        let pd = a.alloc_pd().unwrap();
        let cq = a.create_cq(16).unwrap();
        let qp = a.create_qp(pd, QpInit::new(cq, cq)).unwrap();
        a.modify_qp(qp, QpState::Rtr).unwrap();
        a.modify_qp(qp, QpState::Rts).unwrap();
        let mr = a.reg_mr(pd, Memory::zeroed(LEN), Access::ALL).map_err(|e| e.0).unwrap();
        (a, qp, mr)
    }

    /// Moves all that waits at `from`; the lengths of the packets of each operation.
    fn pass(from: &mut ConnStreams<'_>, to: &mut ConnStreams<'_>) -> Vec<(DataOp, usize)> {
        let mut lengths = Vec::new();
        while let Some(n) = from.next(0, ROOM, None) {
            let mut payload = vec![0; n.segment.len as usize];
            from.gather(0, &n, &mut payload);
            assert!(to.place(&n.header, &payload).is_ok());
            from.acked(0, n.segment);
            lengths.push((n.header.op, n.header.encoded_len() + payload.len()));
        }
        lengths
    }

    /// A packet that is shorter than its train ends it: Sends once left one by one for four bytes, and answers to Reads
    /// with a packet for each byte that did not fit.
    #[test]
    fn segments_of_every_operation_fill_packets() {
        let ((mut a, a_qp, a_mr), (mut b, b_qp, b_mr)) = (adapter(1), adapter(2));
        let all = |lkey| Sge { lkey, offset: 0, len: LEN as u64 };
        b.post_recv(b_qp, RecvWr { wr_id: 1, sges: all(b_mr.lkey).into() }).unwrap();
        a.set_send_limit(a_qp, 1).unwrap();
        for op in [
            SendOp::Write { rkey: b_mr.rkey, offset: 0 },
            SendOp::Send,
            SendOp::Read { rkey: b_mr.rkey, offset: 0 },
        ] {
            let data = Data::from(all(a_mr.lkey));
            a.post_send(a_qp, SendWr::new(1, op, data)).unwrap();
        }
        let (a_qps, b_qps) = ([Some(a_qp)], [Some(b_qp)]);
        let mut a = ConnStreams { adapter: &mut a, qps: &a_qps, last: None };
        let mut b = ConnStreams { adapter: &mut b, qps: &b_qps, last: None };
        let (there, back) = (pass(&mut a, &mut b), pass(&mut b, &mut a));
        for (lengths, op, header) in [
            (&there, DataOp::Write, WRITE_HEADER),
            (&there, DataOp::Send, SEND_HEADER),
            (&back, DataOp::ReadResponse, RESPONSE_HEADER),
        ] {
            let of: Vec<_> = lengths.iter().filter(|(o, _)| *o == op).map(|(_, n)| *n).collect();
            let short = of.iter().filter(|n| **n != ROOM).count();
            assert!(of.len() == LEN.div_ceil(ROOM - header) && short == 1, "{op:?}: {of:?}");
        }
    }

    /// Also where offsets come to need more bytes in the midst of a message.
    #[test]
    fn segment_runs_equal_packets_built_one_by_one() {
        let wide = (1 << 48) - 20 * ROOM as u64;
        for (op, len) in [
            (SendOp::Write { rkey: 7, offset: 0 }, LEN),
            (SendOp::WriteImm { rkey: 7, offset: wide, imm: 1 }, LEN),
            (SendOp::Write { rkey: 7, offset: 1 << 50 }, LEN),
            (SendOp::Send, 5_000),
        ] {
            let packets = |most: usize| {
                let (mut a, qp, mr) = adapter(1);
                a.set_send_limit(qp, 2).unwrap();
                let bytes: Vec<u8> = (0..LEN).map(|i| (i / 7) as u8).collect();
                a.write_mr(mr.id, 0, &bytes).unwrap();
                let data = Data::from(Sge { lkey: mr.lkey, offset: 0, len: len as u64 });
                a.post_send(qp, SendWr::new(1, op, data)).unwrap();
                let qps = [Some(qp)];
                let mut n = ConnStreams { adapter: &mut a, qps: &qps, last: None };
                let mut all = Vec::new();
                while let Some(next) = n.next(0, ROOM, None) {
                    let mut payload = vec![0; next.segment.len as usize];
                    n.gather(0, &next, &mut payload);
                    let (size, at) = (next.header.encoded_len() + payload.len(), next.header.encoded_len());
                    all.push((next.header, next.segment, payload));
                    let run = if most > 0 { n.run(0, most) } else { None };
                    let Some((mut first, k)) = run else { continue };
                    assert!(k <= most && first.header.encoded_len() == at, "{op:?}");
                    let mut out = vec![0; k * size];
                    n.gather_run(0, &mut out, size, at);
                    for p in out.chunks(size) {
                        all.push((first.header, first.segment, p[at..].to_vec()));
                        first.header.offset += p[at..].len() as u64;
                        first.segment.offset += p[at..].len() as u64;
                    }
                }
                all
            };
            let single = packets(0);
            assert!(single.len() > 3 && [1, 2, 43, 64].iter().all(|most| packets(*most) == single), "{op:?}");
        }
    }

    /// All packets of messages of a few are equally long, so that one train takes them whatever the operation.
    #[test]
    fn packets_of_short_messages_have_equal_length() {
        let all = [
            SendOp::Write { rkey: 7, offset: 0 },
            SendOp::WriteImm { rkey: 7, offset: 0, imm: 1 },
            SendOp::Send,
            SendOp::SendImm { imm: 2 },
        ];
        for (op, len) in
            all.iter().flat_map(|op| (1_425..6_000).step_by(7).chain([LEN / 2]).map(move |n| (*op, n)))
        {
            let (mut a, qp, mr) = adapter(1);
            a.set_send_limit(qp, 3).unwrap();
            let data = Data::from(Sge { lkey: mr.lkey, offset: 0, len: len as u64 });
            for _ in 0..3 {
                a.post_send(qp, SendWr::new(1, op, data.clone())).unwrap();
            }
            let qps = [Some(qp)];
            let mut a = ConnStreams { adapter: &mut a, qps: &qps, last: None };
            let takes = |n: NextSegment| n.header.encoded_len() + n.segment.len as usize;
            let first = takes(a.next(0, ROOM, None).unwrap());
            let others: Vec<_> = std::iter::from_fn(|| a.next(0, ROOM, Some(first)).map(takes)).collect();
            let fewest = (len + SEND_HEADER).div_ceil(ROOM) * 3;
            let most = (len + TAIL_IMMEDIATE).div_ceil(ROOM - WRITE_HEADER) * 3;
            assert!((fewest..=most).contains(&(1 + others.len())), "{op:?} of {len}: {first}, {others:?}");
            assert!(others.iter().all(|n| *n == first), "{op:?} of {len}: {first}, {others:?}");
            assert!(!a.has_more(0), "{op:?} of {len}");
        }
    }
}
