//! The end of a transfer that the fuzzer plays: it says whatever record it wants, and writes where it was let and where not.

#![allow(dead_code, reason = "each target uses its part")]

mod kept;

use crate::bytes::Bytes;
use crate::house::{FILLING, SECRET, tells};
use lhio::accounts::Sort;
use longhaul_endpoint::{ConnInfo, Endpoint};
use mover::delta::{Copied, Listed};
use mover::hash::{ChunkHasher, Digest, HOLE, chunk_log2, root};
use mover::path::RelPath;
use mover::proto::{
    Account, AccountAnswer, CopyMessage, CopyRequest, Entry, Extra, Flags, Hello, Kind, LinkFrom,
    MAX_MESSAGE, Mapping, Meta, Name, Offer, Op, Record, Root, SecretSeed, Sending, SourceCounts, VERSION,
    decode, put,
};
use mover::{Chown, DataReduction, Keep, Placement, ReductionMode, Select};
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;
use verbs::{Access, CqId, Data, Memory, Mr, Opcode, QpId, RecvWr, SendOp, SendWr, Sge, Sges, Status};

/// Operations of one input at most.
pub const MAX_OPS: usize = 64;
/// Bytes that all of this may take at most: buffers for messages, and mapped files.
pub const MAX_GROWTH: usize = 96 << 20;
/// How often the threads of the other end are waited for after one operation.
pub const MAX_WAITS: usize = 64;
/// Receives of this end, a message each.
const RECEIVES: u64 = 16;
/// Bytes of one Write.
const PIECE: usize = 60_000;
/// Longest file that is offered.
const MAX_OFFER: u64 = 1 << 20;
/// Parts that names are made of. What no path may have is put in later: see `FORBIDDEN`.
const PARTS: [&str; 11] =
    ["a", "b", "dir", "out", "link", "secret", "@@", "@", "b#", "x%y", ".a.longhaul-part"];
/// What stands for bytes that lead elsewhere.
const FORBIDDEN: [(u8, u8); 3] = [(b'@', b'.'), (b'#', b'/'), (b'%', 0)];

/// Rung by the threads of the other end.
#[derive(Default)]
pub struct Bell(Mutex<bool>, Condvar);

impl Bell {
    /// What those threads are to call.
    pub fn wake(self: &Arc<Bell>) -> mover::Wake {
        let ring = self.clone();
        Arc::new(move || {
            *ring.0.lock().expect("not poisoned") = true;
            ring.1.notify_one();
        })
    }

    /// Waits so long for it; whether it rang.
    pub fn wait(&self, patience: Duration) -> bool {
        let rung = self.0.lock().expect("not poisoned");
        let waited = self.1.wait_timeout_while(rung, patience, |rung| !*rung);
        core::mem::take(&mut *waited.expect("not poisoned").0)
    }
}

/// The fuzzer's end.
pub struct Peer {
    qp: QpId,
    cq: CqId,
    inbox: Mr,
    /// Memory of this end that the other may write, as far as it is told of it.
    pub key: u32,
    /// Memory that the other end granted: key, length.
    grants: Vec<(u32, u64)>,
    /// Large files offered: size.
    offered: Vec<u64>,
    /// What must not be heard: what is outside, and what each target adds.
    pub untold: Vec<&'static [u8]>,
    /// What the next thing that is sent has beside its contents.
    extra: Option<Extra>,
    /// What the next session is asked to keep, and whether it changes names.
    keep: Keep,
    changes: bool,
}

impl Peer {
    /// On the first queue pair of a connection.
    pub fn new(ep: &mut Endpoint, info: &ConnInfo) -> Peer {
        let len = RECEIVES as usize * MAX_MESSAGE;
        let inbox = ep.adapter().reg_mr(info.pd, Memory::zeroed(len), Access::LOCAL_WRITE);
        let inbox = inbox.map_err(|e| e.0).expect("room");
        let (grants, offered) = Default::default();
        let (qp, cq, untold) = (info.qps[0], info.cq, vec![SECRET]);
        let (extra, keep, changes) = Default::default();
        let peer = Peer { qp, cq, inbox, key: 5, grants, offered, untold, extra, keep, changes };
        (0..RECEIVES).for_each(|i| peer.receive(ep, i));
        peer
    }

    fn receive(&self, ep: &mut Endpoint, i: u64) {
        let len = MAX_MESSAGE as u64;
        let sges = Sges::from(Sge { lkey: self.inbox.lkey, offset: i * len, len });
        let _ = ep.adapter().post_recv(self.qp, RecvWr { wr_id: i, sges });
    }

    /// Takes what the other end says.
    pub fn hear(&mut self, ep: &mut Endpoint) {
        while let Some(wc) = ep.adapter().poll_cq(self.cq) {
            if wc.opcode != Opcode::Recv || wc.status != Status::Success {
                continue;
            }
            let mut message = vec![0; wc.byte_len as usize];
            let at = wc.wr_id * MAX_MESSAGE as u64;
            ep.adapter().read_mr(self.inbox.id, at, &mut message).expect("registered");
            self.receive(ep, wc.wr_id);
            for secret in &self.untold {
                assert!(!tells(&message, secret), "{:?} was told", String::from_utf8_lossy(secret));
            }
            for record in decode(&message).expect("the other end writes sound records") {
                if let Record::Grant { rkey, len, .. } = record {
                    self.grants.push((rkey, len));
                }
            }
        }
    }

    fn post(&self, ep: &mut Endpoint, op: SendOp, data: Vec<u8>) {
        let _ = ep.adapter().post_send(self.qp, SendWr::new(1, op, Data::Inline(data.into())));
    }

    /// Says these records in one message.
    pub fn say(&self, ep: &mut Endpoint, records: &[Record<'_>]) {
        let mut message = Vec::new();
        records.iter().for_each(|r| put(&mut message, r));
        self.post(ep, SendOp::Send, message);
    }

    /// Writes all of what was granted.
    fn fill(&self, ep: &mut Endpoint, which: usize) {
        let Some((rkey, len)) = self.grants.get(which).copied() else { return };
        for offset in (0..len.min(MAX_OFFER)).step_by(PIECE) {
            let n = (len - offset).min(PIECE as u64);
            self.post(ep, SendOp::Write { rkey, offset }, vec![FILLING; n as usize]);
        }
    }

    /// Carries out an operation; `None` when the input has ended. The first kind of record is made by `first`: each end has
    /// words of its own to begin with.
    pub fn operation(
        &mut self,
        ep: &mut Endpoint,
        op: u8,
        b: &mut Bytes<'_>,
        first: fn(&mut Bytes<'_>) -> Option<Record<'static>>,
    ) -> Option<()> {
        match op & 15 {
            0..=10 => {
                let mut message = Vec::new();
                for _ in 0..1 + (op >> 6) {
                    let r = self.record(op & 15, b, first)?;
                    self.put(&mut message, r);
                }
                if op & 0x20 != 0 {
                    let (at, xor) = (usize::from(b.u16()?), b.u8()?);
                    match message.get_mut(at) {
                        Some(byte) => *byte ^= xor,
                        None => forbid(&mut message),
                    }
                }
                self.post(ep, SendOp::Send, message);
            }
            11 => {
                let n = usize::from(b.u16()?);
                let message = b.take(n).to_vec();
                self.post(ep, SendOp::Send, message);
            }
            12 => self.fill(ep, usize::from(b.u8()?)),
            13 => {
                // Somewhere in granted memory, or beside it.
                let (which, len, offset) = (usize::from(b.u8()?), usize::from(b.u16()?), b.number()?);
                let (rkey, _) = self.grants.get(which).copied().unwrap_or((u32::from(op), 0));
                self.post(ep, SendOp::Write { rkey, offset }, vec![FILLING; len]);
            }
            15 => {
                let mut message = Vec::new();
                for _ in 0..1 + (op >> 6) {
                    let r = arranging(b)?;
                    self.put(&mut message, r);
                }
                if op & 0x20 != 0 {
                    forbid(&mut message);
                }
                self.post(ep, SendOp::Send, message);
            }
            _ => {}
        }
        Some(())
    }

    /// Appends a record, with what was said to belong to it; what belongs to a later one is kept for that.
    fn put(&mut self, message: &mut Vec<u8>, mut r: Record<'static>) {
        match &mut r {
            Record::Extra(e) => return self.extra = Some(core::mem::take(e)),
            // Of nothing lost: not said, but asked for by the next session.
            Record::Kept { keep, owners: 0, .. } => return self.keep = *keep,
            Record::Change(_) => self.changes = true,
            Record::Hello(h) => {
                h.keep = self.keep;
                if self.changes {
                    h.op = Op::Change;
                }
            }
            Record::Dir { .. }
            | Record::Link { .. }
            | Record::Small { .. }
            | Record::Touch { .. }
            | Record::Node { .. }
            | Record::Offer(_)
            | Record::Entry(_) => {
                self.extra.take().iter().for_each(|e| put(message, &Record::Extra(e.clone())))
            }
            _ => {}
        }
        put(message, &r);
    }

    fn record(
        &mut self,
        kind: u8,
        b: &mut Bytes<'_>,
        first: fn(&mut Bytes<'_>) -> Option<Record<'static>>,
    ) -> Option<Record<'static>> {
        let file = u64::from(b.u8()?);
        Some(match kind {
            0 => first(b)?,
            1 => {
                let kind = [Kind::File, Kind::Dir, Kind::Link, Kind::Other][(file & 3) as usize];
                Record::Roots(vec![Root { name: path(b)?, kind }; 1 + usize::from(file > 250)])
            }
            2 => Record::Dir { name: name(b)?, meta: meta(b)? },
            3 => {
                let targets: [&'static [u8]; 4] = [b"../outside", b"/", b"a", b""];
                Record::Link { name: name(b)?, meta: meta(b)?, target: targets[(file & 3) as usize] }
            }
            4 => {
                let data: &'static [u8] = if file & 1 == 0 { b"small" } else { &[FILLING; 5_000] };
                let hash = if file & 2 == 0 { *blake3::hash(data).as_bytes() } else { [7; 32] };
                Record::Small { name: name(b)?, meta: meta(b)?, hash, data }
            }
            5 => {
                let size = b.number()? % MAX_OFFER;
                let name = name(b)?;
                let file = if file & 0x80 == 0 { self.offered.len() as u64 } else { file };
                let half = size / 2;
                let extents = match file & 3 {
                    0 | 1 if size > 0 => one(0..size),
                    2 if half > 0 => one(0..half),
                    _ => Vec::new(),
                };
                self.offered.push(size);
                Record::Offer(Offer { file, name, meta: meta(b)?, size, extents })
            }
            6 => {
                let hashes = self.hashes(file);
                let first = if file & 0x80 == 0 { 0 } else { b.number()? };
                Record::Hashes { file: file & 0x7f, first, hashes }
            }
            7 => {
                let size = self.offered.get(usize::from(file as u8 & 0x7f)).copied().unwrap_or_default();
                let hash = root(&self.hashes(file), size, chunk_log2(size)).unwrap_or(HOLE);
                Record::End { file: file & 0x7f, hash }
            }
            8 => self.remark(file, b)?,
            9 => Record::Touch { name: name(b)?, meta: meta(b)? },
            _ => self.answer(file, b)?,
        })
    }

    /// What a source says beside files.
    fn remark(&self, file: u64, b: &mut Bytes<'_>) -> Option<Record<'static>> {
        Some(match file & 7 {
            0 => Record::SourceEnd,
            1 => Record::Counts(SourceCounts { files: b.number()?, ..SourceCounts::default() }),
            4 => Record::ListFrom(name(b)?),
            2 => Record::ListCredit(b.number()?),
            3 => Record::AskBasis { file: file >> 3 },
            5 => Record::Copies {
                file: file >> 6,
                copies: vec![Copied {
                    at: b.number()? % MAX_OFFER,
                    from: b.number()? % MAX_OFFER,
                    len: b.number()? % MAX_OFFER + 1,
                }],
                last: file & 0x20 != 0,
            },
            6 => Record::Packed {
                file: file >> 6,
                chunk: b.number()? % 64,
                len: b.number()? % MAX_OFFER,
                hash: [7; 32],
            },
            _ => Record::Drop { file: file >> 2, cause: b.u8()?, text: "gone".into() },
        })
    }

    /// What a sink says.
    fn answer(&self, file: u64, b: &mut Bytes<'_>) -> Option<Record<'static>> {
        Some(match file & 7 {
            0 => Record::ListEnd,
            1 => {
                let n = b.number()?;
                if n & 1 == 1 {
                    let piece =
                        Listed { gap: n >> 8 & 0xffff, len: n as u32 & 0xffff | 1, key: [file as u8; 16] };
                    let pieces = vec![piece; (n >> 2 & 0x3f) as usize];
                    return Some(Record::Basis { file: file >> 3, pieces, last: n & 2 != 0 });
                }
                let end = n >> 1;
                Record::Accept { file: file >> 3, have: if end == 0 { Vec::new() } else { one(0..end) } }
            }
            2 => Record::Grant { file: file >> 3, start: b.number()?, len: b.number()?, rkey: self.key },
            3 => Record::Again { file: file >> 3, chunk: b.number()? },
            4 => Record::Done { file: file >> 3, failed: None },
            5 => Record::SinkEnd(Default::default()),
            6 => {
                let (name, meta, size) = (name(b)?, meta(b)?, b.number()?);
                let (root, path, kind, hash) = (name.root, name.path, Kind::File, None);
                Record::Entry(Entry { root, path, kind, size, meta, hash })
            }
            _ => Record::Abort { refused: false, text: "enough".into() },
        })
    }

    /// The true hashes of an offered file whose contents are all filling.
    fn hashes(&self, file: u64) -> Vec<Digest> {
        let size = self.offered.get(usize::from(file as u8 & 0x7f)).copied().unwrap_or(1);
        let chunk = 1u64 << chunk_log2(size);
        let hash = |at: u64| {
            let mut h = ChunkHasher::new(at, size <= chunk);
            h.update(&vec![FILLING; chunk.min(size - at) as usize]);
            h.finish()
        };
        (0..size.div_ceil(chunk)).map(|n| hash(n * chunk)).collect()
    }
}

fn one(range: Range<u64>) -> Vec<Range<u64>> {
    core::iter::once(range).collect()
}

/// Puts what no path may have into all names.
fn forbid(message: &mut [u8]) {
    for byte in message {
        if let Some((_, real)) = FORBIDDEN.iter().find(|(mark, _)| mark == byte) {
            *byte = *real;
        }
    }
}

/// What a client says first.
pub fn hello(b: &mut Bytes<'_>) -> Option<Record<'static>> {
    let (kind, flags) = (b.u8()?, b.u8()?);
    let paths = (0..1 + usize::from(kind >> 6)).map(|_| path(b)).collect::<Option<Vec<_>>>()?;
    let bit = |n: u8| flags >> n & 1 == 1;
    Some(Record::Hello(Hello {
        version: VERSION,
        op: match kind & 0x13 {
            0x03 => Op::Invite,
            0x13 => Op::Copy,
            n => [Op::Put, Op::Get, Op::List][usize::from(n & 3)],
        },
        flags: Flags {
            skip_same: bit(0),
            checksum: bit(1),
            overwrite: bit(2),
            dry_run: bit(3) && bit(6),
            recursive: bit(4),
            fresh: bit(5),
            scan: bit(5) && bit(6),
        },
        transfer: [kind & 4; 16],
        contents: vec![bit(7); paths.len()],
        paths,
        into: kind & 8 != 0,
        sending: Sending { cc: (kind & 0x30 == 0x30).then(|| "cubic".to_owned()), ..Sending::default() },
        link_targets: kind & 0x30 == 0x20,
        data_reduction: DataReduction {
            deltas: if flags & 0x41 == 0x41 { ReductionMode::Always } else { ReductionMode::Auto },
            compress: if flags & 0x42 == 0x42 { ReductionMode::Always } else { ReductionMode::Auto },
        },
        keep: Default::default(),
    }))
}

/// What is said about folders beside the destination, accounts, rates, copies between servers, and more than contents.
fn arranging(b: &mut Bytes<'_>) -> Option<Record<'static>> {
    let n = b.u8()?;
    let sort = if n & 0x10 == 0 { Sort::User } else { Sort::Group };
    let folders: [&[u8]; 6] = [b"../out", b"dir", b"/", b"../../outside", b"/../outside", b"dir/../link"];
    let folder = |n: u8| folders[usize::from(n) % folders.len()].to_vec();
    Some(match n & 15 {
        0 => {
            let link_dest = (0..b.u8()? % 4).map(|_| Some(folder(b.u8()?))).collect::<Option<Vec<_>>>()?;
            let partial = b.u8()?;
            let partial_dir = match partial & 7 {
                0 => Some(b"dir".to_vec()),
                1 => Some(b"/dir".to_vec()),
                2 => Some(b"out/x".to_vec()),
                3 => Some(folder(partial)).filter(|f| f.starts_with(b"/")),
                _ => None,
            };
            let chmod = mover::placement::chmod::parse("D700,Fu=rw,go-w,g=u", 0).ok()?;
            let chmod = if n & 0x20 == 0 { Vec::new() } else { chmod };
            let chown = Chown { user: (n & 0x40 != 0).then(|| b"nobody at all".to_vec()), group: None };
            Record::Placement(Box::new(Placement { chmod, chown, link_dest, partial_dir }))
        }
        1 | 2 => {
            let (name, meta, listed) = (name(b)?, meta(b)?, meta(b)?);
            let size = if n & 0x20 == 0 { b.number()? } else { 13 };
            Record::LinkFrom(LinkFrom { name, meta, folder: n >> 6, size, listed, copy: n & 0x10 != 0 })
        }
        3 => {
            let (name, meta, size) = (name(b)?, meta(b)?, b.number()?);
            let entry = Entry { root: name.root, path: name.path, kind: Kind::File, size, meta, hash: None };
            Record::Alternate { folder: n >> 4, entry }
        }
        4 => Record::AskAccount {
            sort,
            account: Account { id: u32::from(n), name: vec![b'x'; usize::from(n >> 5)] },
        },
        5 => Record::Account(AccountAnswer { id: u32::from(n), settable: n & 0x20 != 0 }),
        6 => Record::Note("\u{1b}[31mnote".into()),
        7 => Record::Limit((n & 0x10 == 0).then(|| base::Rate::from_bytes_per_sec(1_000 + u64::from(n)))),
        8 => Record::Select(Box::new(Select { existing: n & 0x10 != 0, ..Select::default() })),
        9..=11 => Record::Copy(copying(n, b)?),
        _ => kept::record(n, b)?,
    })
}

/// What is said about copies.
fn copying(n: u8, b: &mut Bytes<'_>) -> Option<CopyMessage> {
    Some(match n >> 4 & 7 {
        0 | 1 => CopyMessage::Invite { guest: [b.u8()?; 32] },
        2 | 3 => {
            let sources = vec![(path(b)?, n & 0x80 != 0)];
            let Some(Record::Hello(put)) = hello(b) else { return None };
            // Nowhere: the address is refused, or the target's runner connects to none.
            let to = std::net::SocketAddr::from(([127, 0, 0, b.u8()?], 9));
            CopyMessage::Start(Box::new(CopyRequest {
                put,
                sources,
                to,
                fingerprint: [n; 32],
                seed: SecretSeed([n; 32]),
            }))
        }
        4 => CopyMessage::List,
        5 => CopyMessage::Follow { job: b.number()? },
        6 => CopyMessage::Cancel { job: u64::from(b.u8()?) },
        _ => CopyMessage::End,
    })
}

/// What only a server says.
pub fn welcome(b: &mut Bytes<'_>) -> Option<Record<'static>> {
    let n = b.u8()?;
    // Escape sequences, for whoever shows them.
    let text = || "\u{1b}[31mno\u{202e}".to_owned();
    Some(match n & 7 {
        0..=2 => Record::Welcome { version: VERSION + u64::from(n > 250) },
        3 => Record::Mapped(Mapping {
            rule: text(),
            why: vec![text(); usize::from(n >> 3)],
            ..Mapping::default()
        }),
        4 => Record::Progress { files: b.number()?, bytes: b.number()?, resumed: b.number()? },
        5 => Record::Failed { path: text(), cause: n >> 3, text: text() },
        6 => Record::Abort { refused: n & 8 == 0, text: text() },
        _ => Record::Done { file: u64::from(n >> 3), failed: Some((n >> 3, text())) },
    })
}

fn meta(b: &mut Bytes<'_>) -> Option<Meta> {
    let secs = i64::from(b.u8()?);
    Some(Meta {
        mode: 0o700 | (secs as u32 & 0o77),
        secs: if secs == 255 { i64::MIN } else { secs },
        nanos: 5,
    })
}

fn name(b: &mut Bytes<'_>) -> Option<Name> {
    let path = path(b)?;
    Some(Name { root: u32::from(b.u8()? & 1), path })
}

/// A path of up to three parts.
fn path(b: &mut Bytes<'_>) -> Option<RelPath> {
    let n = b.u8()? % 4;
    let parts =
        (0..n).map(|_| Some(PARTS[usize::from(b.u8()?) % PARTS.len()])).collect::<Option<Vec<_>>>()?;
    Some(RelPath::parse(parts.join("/").as_bytes()).unwrap_or_default())
}
