//! DDP and RDMAP: records with headers of a peer's choice. Nothing outside of what it was given access to changes,
//! nothing completes that did not arrive, and it makes no difference in which pieces the stream comes.
//!
//! Input: a byte for the terms, then records: how the header is made, its fields, the payload's length; see `record`.

#![no_main]

mod bytes;
mod guarded;

use base::{Rng, Time};
use bytes::Bytes;
use guarded::{Guarded, REGION, UNTOUCHED};
use iwarp::ddp::{Header, Target};
use iwarp::mpa::{fpdu, markers, startup};
use iwarp::rdmap::messages::{AtomicRequest, ReadRequest};
use iwarp::{Config, Connection, Piece, Placement};
use libfuzzer_sys::fuzz_target;
use std::sync::Arc;
use verbs::{
    Access, Adapter, AtomicOp, Kind, Limits, Memory, Mr, QpId, QpInit, RecvWr, SendOp, SendWr, Sge, Sges,
    Status, WindowRange, WorkCompletion,
};

/// What the peer writes.
const WRITTEN: u8 = 0x5a;
/// Records of one input at most.
const RECORDS: usize = 64;

struct World {
    adapter: Adapter,
    qp: QpId,
    cq: verbs::CqId,
    guarded: Arc<Guarded>,
    /// Open to the peer, in memory between guards; of our own; to be read; for receives and answers.
    regions: [Mr; 4],
    window: u32,
    c: Connection,
    sent: Vec<u8>,
}

impl World {
    fn new(config: Config) -> World {
        let mut a = Adapter::new(Limits::default(), Rng::from_u64(1));
        let pd = a.alloc_pd().expect("room");
        let other = a.alloc_pd().expect("room");
        let cq = a.create_cq(4_096).expect("room");
        let (guarded, open) = Guarded::memory();
        let plain = || Memory::from(vec![UNTOUCHED; REGION]);
        let mut register = |pd, memory, access| a.reg_mr(pd, memory, access).map_err(|e| e.0).expect("room");
        let writable = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let regions = [
            register(pd, open, writable),
            register(pd, plain(), Access::LOCAL_WRITE),
            register(pd, plain(), Access::REMOTE_READ),
            register(pd, plain(), Access::LOCAL_WRITE),
        ];
        register(other, plain(), Access::ALL);
        let qp = a.create_qp(pd, QpInit { kind: Kind::Ordered, ..QpInit::new(cq, cq) }).expect("room");
        let mw = a.alloc_mw(pd).expect("room");
        let range = WindowRange { mr: regions[0].id, offset: 16, len: 32, access: Access::REMOTE_WRITE };
        let window = a.bind_mw(qp, mw, range).expect("in bounds");
        let mut c = Connection::initiator(config, qp, b"", Time::ZERO).expect("short");
        // The peer wants no CRCs itself, and markers when we do.
        let peer = Config { crc: false, ..config };
        let mut reply = Vec::new();
        startup::accept(&peer, &startup::request(&config)).0.put(b"", &mut reply);
        let lkey = regions[3].lkey;
        c.receive(&mut a, &reply, Time::ZERO);
        for i in 0..6 {
            let sges = Sges::from(Sge { lkey, offset: 16 * i, len: 16 });
            a.post_recv(qp, RecvWr { wr_id: i, sges }).expect("room");
        }
        let read = SendOp::Read { rkey: 7, offset: 0 };
        a.post_send(qp, SendWr::new(100, read, Sge { lkey, offset: 128, len: 64 })).expect("room");
        let mut w = World { adapter: a, qp, cq, guarded, regions, window, c, sent: Vec::new() };
        w.transmit();
        w
    }

    fn transmit(&mut self) {
        while let Some(t) = self.c.transmit(&mut self.adapter, Time::ZERO) {
            let mut bytes = Vec::new();
            for p in t.pieces {
                match p {
                    Piece::Scratch { start, len } => bytes.extend(&t.scratch[*start..start + len]),
                    Piece::Region(p) => bytes.extend(vec![0; p.len as usize]),
                }
            }
            let n = t.len;
            self.sent.extend(&bytes[t.skip..]);
            self.c.on_sent(&mut self.adapter, n);
        }
    }

    /// The key of the destination of our read, as its request says.
    fn sink(&self, markers: bool) -> u32 {
        // The first record behind the request frame, which has four bytes of private data: length, header, key.
        let at = 24 + if markers { markers::LEN } else { 0 } + 2 + 18;
        self.sent.get(at..at + 4).map_or(0, |b| u32::from_be_bytes(b.try_into().expect("four")))
    }

    /// What holds at all times; gives what is to be the same however the stream was cut.
    fn check(&mut self) -> (Vec<u8>, Vec<WorkCompletion>, Vec<u8>) {
        let middle = self.guarded.check();
        assert!(middle.iter().all(|b| *b == UNTOUCHED || *b == WRITTEN), "bytes that the peer never sent");
        let mut all = middle.to_vec();
        for (mr, from) in [(1, 0), (2, 0), (3, 192)] {
            let mut bytes = vec![0; REGION - from];
            self.adapter.read_mr(self.regions[mr].id, from as u64, &mut bytes).expect("registered");
            assert!(bytes.iter().all(|b| *b == UNTOUCHED), "region {mr} was written");
        }
        let mut own = vec![0; 192];
        self.adapter.read_mr(self.regions[3].id, 0, &mut own).expect("registered");
        let done: Vec<WorkCompletion> = std::iter::from_fn(|| self.adapter.poll_cq(self.cq)).collect();
        for w in done.iter().filter(|w| w.status == Status::Success && w.wr_id < 6 && w.imm.is_none()) {
            let at = 16 * w.wr_id as usize;
            let there = own[at..at + 16].iter().filter(|b| **b == WRITTEN).count();
            assert!(there as u64 >= w.byte_len, "completed with bytes that did not arrive");
        }
        all.extend(own);
        let sent = std::mem::take(&mut self.sent);
        (all, done, sent)
    }
}

/// The contents of a record; `None` at the end of the input.
fn contents(b: &mut Bytes<'_>, w: &World, sink: u32) -> Option<Vec<u8>> {
    let (how, control) = (b.u8()?, b.u8()?);
    let keys = [w.regions[0].rkey, w.regions[1].rkey, w.regions[2].rkey, w.window, sink, 0];
    let key = match b.u8()? {
        n if usize::from(n) < keys.len() => keys[usize::from(n)],
        n => u32::from(n) << 24,
    };
    let at = match how & 3 {
        0 | 1 => u64::from(b.u8()?),
        2 => u64::from(b.u8()?).wrapping_neg(),
        _ => b.number()?,
    };
    let target = if how & 4 != 0 {
        Target::Tagged { stag: key, to: at }
    } else {
        let msn = u32::from(b.u8()?);
        Target::Untagged { invalidate: key, qn: u32::from(how >> 4 & 7), msn, mo: at as u32 }
    };
    let control = if how & 8 != 0 { control } else { 0x40 | control & 0x0f };
    let mut out = Vec::new();
    Header { last: control & 0x20 == 0, control: control & !0x20, target }.put(&mut out);
    match (control & 0x0f, b.u8()?) {
        (1, n) if n < 200 => {
            let source_to = u64::from(n);
            let len = u32::from(b.u8()?);
            ReadRequest { sink_stag: 1, sink_to: 2, len, source_stag: key, source_to }.put(&mut out);
        }
        (10, n) if n < 200 => {
            let op = Some(AtomicOp::FetchAdd { add: 1, mask: 0 });
            AtomicRequest { id: 1, stag: key, to: u64::from(n), op }.put(&mut out);
        }
        (_, 255) => out.resize(out.len() + 6000, WRITTEN),
        (_, n) => out.resize(out.len() + usize::from(n), WRITTEN),
    }
    if how == 255 {
        out.truncate(usize::from(b.u8()?));
    }
    Some(out)
}

/// The stream that the input describes.
fn stream(input: &[u8], w: &World, config: &Config) -> Vec<u8> {
    let (mut b, mut out) = (Bytes(input), Vec::new());
    let sink = w.sink(config.markers);
    for _ in 0..RECORDS {
        let Some(ulpdu) = contents(&mut b, w, sink) else { break };
        let mut record = Vec::from((ulpdu.len() as u16).to_be_bytes());
        record.extend(&ulpdu);
        record.resize(fpdu::len(ulpdu.len()), 0);
        let (at, begin) = (out.len() as u64, out.len());
        if config.markers {
            markers::insert(at, &record, &mut out);
        } else {
            out.extend(record);
        }
        let end = out.len() - fpdu::CRC;
        let crc = fpdu::crc_field(fpdu::crc(0, &out[begin..end]));
        out[end..].copy_from_slice(&crc);
    }
    out
}

fuzz_target!(|input: &[u8]| {
    let Some((&terms, rest)) = input.split_first() else { return };
    let bit = |n: u8| terms >> n & 1 == 1;
    let placement = if bit(2) { Placement::Early } else { Placement::Verified };
    let config = Config { markers: bit(0), crc: bit(1), placement, ..Config::default() };
    let mut seen = None;
    for piece in [usize::MAX, 1 + usize::from(terms >> 3) * 37] {
        let mut w = World::new(config);
        let stream = stream(rest, &w, &config);
        for part in stream.chunks(piece.min(stream.len().max(1))) {
            w.c.receive(&mut w.adapter, part, Time::ZERO);
        }
        w.transmit();
        w.c.abort(&mut w.adapter, Time::ZERO);
        w.transmit();
        let _ = w.adapter.modify_qp(w.qp, verbs::QpState::Error);
        let result = w.check();
        if let Some(before) = &seen {
            assert!(*before == result, "another result with pieces of {piece} bytes");
        }
        seen = Some(result);
    }
});
