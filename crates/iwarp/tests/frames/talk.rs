//! Lets two engines exchange messages, captures them, and lists what they were told to send.

use crate::capture::{Capture, Flag, Tcp};
use crate::end::End;
use base::Time;
use longhaul_iwarp::ddp::{QN_ATOMIC, QN_REQUEST, QN_SEND, QN_TERMINATE, UNTAGGED};
use longhaul_iwarp::mpa::{fpdu, markers};
use longhaul_iwarp::rdmap::messages::READ_REQUEST;
use longhaul_iwarp::{Cause, Config, Connection, Event};
use verbs::{AtomicOp, SendOp, SendWr};

/// Turns of both ends until nothing moves, at most.
const TURNS: usize = 1000;

/// Which buffer a message is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum To {
    /// One that is named.
    Tagged { stag: u32, to: u64 },
    /// That of the read that was asked for earliest and has no answer yet.
    Sink,
    /// One of a queue.
    Queue { qn: u32, msn: u32 },
}

/// What is to be found in a capture.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Said {
    /// A start-up frame: reply or request, its flags (markers, CRC, reject), revision, bytes of private data.
    Frame { reply: bool, flags: [bool; 3], revision: u8, private: u64 },
    /// A message in one or more records: the operation, for which buffer, bytes, fields of it by their names, contents.
    Message { opcode: u8, to: To, len: u64, fields: Vec<(&'static str, u64)>, payload: Option<Vec<u8>> },
}

/// How the stream is cut into segments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cut {
    /// So many bytes, from the start of what is sent in one call on.
    Bytes(usize),
    /// A record each.
    Records,
}

/// What is to be found in the capture of a connection.
#[derive(Clone, PartialEq, Debug)]
pub struct Transcript {
    pub name: String,
    pub ports: [u16; 2],
    pub said: [Vec<Said>; 2],
    /// Markers and CRCs in what each end sends.
    pub terms: [(bool, bool); 2],
    pub enhanced: bool,
    /// Whether what an end sends is compared.
    pub compared: [bool; 2],
    /// Packets with bytes that an engine did not send.
    pub foreign: Vec<u32>,
    /// Packets that were damaged on the way.
    pub damaged: Vec<u32>,
    /// Packets that reset the connection.
    pub resets: Vec<u32>,
    /// End 1 does not accept.
    pub rejects: bool,
}

/// Two ends and the path between them.
pub struct Talk<'a> {
    pub log: Transcript,
    pub ends: [End; 2],
    tcp: Tcp,
    capture: &'a mut Capture,
    cut: Cut,
    /// Bytes of records that each end has sent.
    position: [u64; 2],
    /// Number of the next message of each queue, of each end.
    msn: [[u32; 4]; 2],
    /// End 1 does not answer a request.
    pub mute: bool,
    /// Flips a bit of the next segment of this end.
    pub damage: Option<usize>,
}

impl<'a> Talk<'a> {
    /// Two ends with `configs` that have said nothing yet. End 1 will accept, unless it is told otherwise.
    pub fn new(name: &str, n: u16, capture: &'a mut Capture, configs: [Config; 2], cut: Cut) -> Talk<'a> {
        let [i, r] = configs;
        let seed = 2 * u64::from(n);
        let x = End::new(seed, |qp| Connection::initiator(i, qp, b"hello", Time::ZERO).unwrap());
        let y = End::new(seed + 1, |_| Connection::responder(r, Time::ZERO));
        let with_markers = i.markers || r.markers;
        // Numbers that wrap in the midst, where tshark can follow.
        let tcp = Tcp::open(capture, n, if with_markers { 1000 } else { u32::MAX - 2000 });
        let crc = i.crc || r.crc;
        let (revision, before) = if i.enhanced { (2, 4) } else { (1, 0) };
        let frame = |reply, c: &Config, crc, private: &str| Said::Frame {
            reply,
            flags: [c.markers, crc, false],
            revision,
            private: private.len() as u64 + before,
        };
        let log = Transcript {
            name: format!("connection {n} ({name})"),
            ports: tcp.ports(),
            said: [vec![frame(false, &i, i.crc, "hello")], vec![frame(true, &r, crc, "welcome")]],
            terms: [(r.markers, crc), (i.markers, crc)],
            enhanced: i.enhanced,
            // tshark expects markers both ways when one end asks for them.
            compared: [r.markers || !i.markers, i.markers || !r.markers],
            foreign: Vec::new(),
            damaged: Vec::new(),
            resets: Vec::new(),
            rejects: false,
        };
        let (position, msn) = ([0; 2], [[1; 4]; 2]);
        Talk { log, ends: [x, y], tcp, capture, cut, position, msn, mute: false, damage: None }
    }
    /// Bytes of records that an end has sent.
    pub fn position(&self, end: usize) -> u64 {
        self.position[end]
    }
    pub fn finish(self) -> Transcript {
        self.log
    }
    /// A rejection is what is to be seen.
    pub fn reject(&mut self) {
        self.log.rejects = true;
        if let Some(Said::Frame { flags, .. }) = self.log.said[1].first_mut() {
            flags[2] = true;
        }
    }

    /// Bytes go to and fro until nothing moves.
    pub fn run(&mut self) {
        for _ in 0..TURNS {
            let moved = [0, 1].map(|from| self.carry(from));
            if moved == [false; 2] {
                return;
            }
        }
        panic!("{}: it never ends", self.log.name);
    }

    fn carry(&mut self, from: usize) -> bool {
        let bytes = self.ends[from].batch();
        for part in self.segments(from, &bytes) {
            let mut part = part.to_vec();
            let damaged = self.damage.take_if(|d| *d == from).is_some();
            if damaged {
                let middle = part.len() / 2;
                part[middle] ^= 4;
            }
            let frame = self.tcp.segment(self.capture, from, Flag::None, &part);
            if damaged {
                self.log.damaged.push(frame);
            }
            self.arrive(1 - from, &part);
        }
        self.ends[from].look();
        let end = &mut self.ends[from];
        let (fin, reset) = (core::mem::take(&mut end.shut), core::mem::take(&mut end.reset));
        let to = &mut self.ends[1 - from];
        if reset {
            let packet = self.tcp.segment(self.capture, from, Flag::Reset, &[]);
            self.log.resets.push(packet);
            to.c.on_error(&mut to.a);
        } else if fin {
            self.tcp.segment(self.capture, from, Flag::Fin, &[]);
            to.c.on_fin(&mut to.a, Time::ZERO);
        }
        !bytes.is_empty() || fin || reset
    }

    /// The segments that `bytes` are sent in.
    fn segments<'b>(&mut self, from: usize, bytes: &'b [u8]) -> Vec<&'b [u8]> {
        if bytes.starts_with(b"MPA ID Re") {
            return vec![bytes];
        }
        let starts = self.record_starts(from, bytes);
        let (mut parts, mut at) = (Vec::new(), 0);
        while at < bytes.len() {
            let next = |from: usize| starts.iter().copied().find(|s| *s >= from).unwrap_or(bytes.len());
            let end = match self.cut {
                Cut::Records => next(at + 1),
                // tshark loses its way when a segment ends less than eight bytes behind the start of a record.
                Cut::Bytes(n) => match (at + n).min(bytes.len()) {
                    end if next(end.saturating_sub(7).max(at + 1)) < end => next(end - 7),
                    end => end,
                },
            };
            parts.push(&bytes[at..end]);
            at = end;
        }
        parts
    }

    /// Where records begin in `bytes`, which are whole ones.
    fn record_starts(&mut self, from: usize, bytes: &[u8]) -> Vec<usize> {
        let (with_markers, mut at, mut starts) = (self.log.terms[from].0, 0, Vec::new());
        while at < bytes.len() {
            starts.push(at);
            let position = &mut self.position[from];
            let front = if with_markers && markers::is_here(*position) { markers::LEN } else { 0 };
            let ulpdu = usize::from(u16::from_be_bytes([bytes[at + front], bytes[at + front + 1]]));
            let mut len = fpdu::len(ulpdu);
            if with_markers {
                len += markers::LEN * markers::count(*position, len);
                // tshark counts a marker that stands right behind a record as one of its own.
                let odd = markers::is_here(*position + len as u64);
                assert!(!odd || self.cut != Cut::Records, "{}: choose other lengths", self.log.name);
            }
            *position += len as u64;
            at += len;
        }
        starts
    }

    fn arrive(&mut self, at: usize, bytes: &[u8]) {
        let rejects = self.log.rejects;
        let end = &mut self.ends[at];
        end.c.receive(&mut end.a, bytes, Time::ZERO);
        let known = end.events.len();
        end.look();
        if !self.mute && end.events[known..].iter().any(|e| matches!(e, Event::Requested { .. })) {
            let qp = end.qp;
            if rejects {
                end.c.reject(b"welcome", Time::ZERO).unwrap();
            } else {
                end.c.accept(&mut end.a, qp, b"welcome", Time::ZERO).unwrap();
            }
        }
    }

    /// Bytes that no engine made, from `from`.
    pub fn inject(&mut self, from: usize, bytes: &[u8]) {
        let frame = self.tcp.segment(self.capture, from, Flag::None, bytes);
        self.log.foreign.push(frame);
        self.arrive(1 - from, bytes);
        self.run();
    }

    pub fn is_up(&self) -> bool {
        self.ends.iter().all(|e| e.events.iter().any(|v| matches!(v, Event::Established { .. })))
    }

    // ---- what is posted, and what is to be seen of it ----

    fn take_msn(&mut self, end: usize, qn: u32) -> To {
        let msn = &mut self.msn[end][qn as usize];
        *msn += 1;
        To::Queue { qn, msn: *msn - 1 }
    }
    pub fn expect(&mut self, end: usize, opcode: u8, to: To, len: u64, fields: &[(&'static str, u64)]) {
        self.log.said[end].push(Said::Message { opcode, to, len, fields: fields.to_vec(), payload: None });
    }
    /// A message on a queue.
    pub fn expect_on(&mut self, end: usize, opcode: u8, qn: u32, len: u64, fields: &[(&'static str, u64)]) {
        let to = self.take_msn(end, qn);
        self.expect(end, opcode, to, len, fields);
    }
    /// What was put on the list last has these contents. (tshark leaves bytes of markers in them.)
    fn with(&mut self, end: usize, bytes: Vec<u8>) {
        let plain = !self.log.terms[end].0;
        if let Some(Said::Message { payload, .. }) = self.log.said[end].last_mut() {
            *payload = plain.then_some(bytes);
        }
    }

    pub fn write(&mut self, from: usize, at: u64, len: u64) {
        let rkey = self.ends[1 - from].dst.rkey;
        self.write_to(from, rkey, at, len);
    }
    pub fn write_to(&mut self, from: usize, rkey: u32, at: u64, len: u64) {
        let e = &mut self.ends[from];
        e.post(SendWr::new(1, SendOp::Write { rkey, offset: at }, e.sge(len)));
        let bytes = e.source(0, len);
        self.expect(from, 0, To::Tagged { stag: rkey, to: at }, len, &[]);
        self.with(from, bytes);
    }
    /// With immediate data behind it; without bytes, that alone.
    pub fn write_imm(&mut self, from: usize, at: u64, len: u64, imm: u32, solicited: bool) {
        let rkey = self.ends[1 - from].dst.rkey;
        self.ends[1 - from].receive();
        let e = &mut self.ends[from];
        let wr = SendWr::new(2, SendOp::WriteImm { rkey, offset: at, imm }, e.sge(len));
        e.post(SendWr { solicited, ..wr });
        let bytes = e.source(0, len);
        if len > 0 {
            self.expect(from, 0, To::Tagged { stag: rkey, to: at }, len, &[]);
            self.with(from, bytes);
        }
        self.expect_on(from, if solicited { 9 } else { 8 }, QN_SEND, 8, &[]);
    }
    pub fn send(&mut self, from: usize, len: u64, solicited: bool, invalidate: bool) {
        let rkey = self.ends[1 - from].window();
        self.ends[1 - from].receive();
        self.send_to(from, len, solicited, invalidate.then_some(rkey));
    }
    pub fn send_to(&mut self, from: usize, len: u64, solicited: bool, invalidate: Option<u32>) {
        let e = &mut self.ends[from];
        let op = invalidate.map_or(SendOp::Send, |rkey| SendOp::SendInvalidate { rkey });
        e.post(SendWr { solicited, ..SendWr::new(3, op, e.sge(len)) });
        let bytes = e.source(0, len);
        let fields: Vec<_> =
            invalidate.map(|key| ("iwarp_rdma.inval_stag", key.into())).into_iter().collect();
        let opcode = 3 + u8::from(invalidate.is_some()) + 2 * u8::from(solicited);
        self.expect_on(from, opcode, QN_SEND, len, &fields);
        self.with(from, bytes);
    }
    pub fn read(&mut self, from: usize, at: u64, len: u64) {
        let rkey = self.ends[1 - from].src.rkey;
        self.read_of(from, rkey, at, len);
        let bytes = self.ends[1 - from].source(at, len);
        self.expect(1 - from, 2, To::Sink, len, &[]);
        self.with(1 - from, bytes);
    }
    /// The request alone.
    pub fn read_of(&mut self, from: usize, rkey: u32, at: u64, len: u64) {
        let e = &mut self.ends[from];
        e.post(SendWr::new(4, SendOp::Read { rkey, offset: at }, e.sink(len)));
        let fields = [
            ("iwarp_rdma.sinkto", 0),
            ("iwarp_rdma.rdmardsz", len),
            ("iwarp_rdma.srcstag", rkey.into()),
            ("iwarp_rdma.srcto", at),
        ];
        self.expect_on(from, 1, QN_REQUEST, 28, &fields);
    }
    pub fn atomic(&mut self, from: usize, at: u64, op: AtomicOp) {
        let rkey = self.ends[1 - from].dst.rkey;
        let to = &self.ends[1 - from];
        let before = to.word(at);
        let e = &mut self.ends[from];
        e.post(SendWr::new(5, SendOp::Atomic { rkey, offset: at, op }, e.sink(8)));
        let (code, names, [data, mask, compare, compare_mask]) = match op {
            AtomicOp::FetchAdd { add, mask } => {
                (0, ["iwarp_rdma.atomic.add_data", "iwarp_rdma.atomic.add_mask"], [add, mask, 0, u64::MAX])
            }
            AtomicOp::CompareSwap { compare, compare_mask, swap, swap_mask } => (
                2,
                ["iwarp_rdma.atomic.swap_data", "iwarp_rdma.atomic.swap_mask"],
                [swap, swap_mask, compare, compare_mask],
            ),
        };
        let fields = [
            ("iwarp_rdma.atomic.opcode", code),
            ("iwarp_rdma.atomic.remote_stag", rkey.into()),
            ("iwarp_rdma.atomic.remote_tagged_offset", at),
            (names[0], data),
            (names[1], mask),
            ("iwarp_rdma.atomic.compare_data", compare),
            ("iwarp_rdma.atomic.compare_mask", compare_mask),
        ];
        self.expect_on(from, 10, QN_REQUEST, 52, &fields);
        let fields = [("iwarp_rdma.atomic.original_remote_data_value", before)];
        self.expect_on(1 - from, 11, QN_ATOMIC, 12, &fields);
    }
    /// The last that an end says: with `quoted` bytes of the record that was wrong, of so many bytes of contents.
    pub fn terminate(&mut self, end: usize, cause: Cause, quoted: u64, wrong: u64) {
        let (etype, code) = match (cause.layer, cause.etype) {
            (0, 0) => ("iwarp_rdma.term_etype_rdma", "iwarp_rdma.term_errcode"),
            (0, _) => ("iwarp_rdma.term_etype_rdma", "iwarp_rdma.term_errcode_rdma"),
            (1, 1) => ("iwarp_rdma.term_etype_ddp", "iwarp_rdma.term_errcode_ddp_tagged"),
            (1, 2) => ("iwarp_rdma.term_etype_ddp", "iwarp_rdma.term_errcode_ddp_untagged"),
            (1, _) => ("iwarp_rdma.term_etype_ddp", "iwarp_rdma.term_errcode"),
            _ => ("iwarp_rdma.term_etype_llp", "iwarp_rdma.term_errcode_llp"),
        };
        let with_request = quoted == (UNTAGGED + READ_REQUEST) as u64;
        let mut fields = vec![
            ("iwarp_rdma.term_layer", cause.layer.into()),
            (etype, cause.etype.into()),
            (code, cause.code.into()),
            ("iwarp_rdma.term_hdrct_m", u64::from(quoted > 0)),
            ("iwarp_rdma.hdrct_d", u64::from(quoted > 0)),
            ("iwarp_rdma.hdrct_r", u64::from(with_request)),
        ];
        if quoted > 0 {
            fields.push(("iwarp_rdma.term_ddp_seg_len", wrong));
        }
        let len = 4 + quoted + if quoted > 0 { 2 } else { 0 };
        self.expect_on(end, 7, QN_TERMINATE, len, &fields);
    }
}
