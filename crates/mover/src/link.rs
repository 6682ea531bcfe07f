//! Messages and Writes over queue pair 0 of a connection.
//!
//! Messages are posted straight from the buffers they were built in. Receives come from buffers that are posted
//! again as soon as their message was copied out, unless the session holds them back: then the peer runs out of
//! credit and waits. Their number grows with what arrives in a round trip.

use crate::proto::MAX_MESSAGE;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use verbs::{
    Access, Adapter, CqId, Error, Memory, Mr, MrId, Opcode, PdId, QpId, RecvWr, SendOp, SendWr, Sge, Sges,
    Status,
};

/// Receive buffers at the start: 8 MiB, of which memory is taken only when they are used.
pub const FIRST_RECEIVES: usize = 32;
/// Receive buffers at most: 64 MiB.
pub const MAX_RECEIVES: usize = 256;
/// Most work requests of this session on the send queue at a time.
const MAX_POSTED: usize = 1024;
/// Bytes of this session on the send queue at most, where a connection that closes sends all of it first (iWARP): what is
/// posted cannot be taken back when somebody stops the transfer. Another one is posted as long as there are fewer.
const MAX_POSTED_ORDERED: u64 = 4 << 20;
/// Messages up to this length travel inside the work request and need no registration.
const INLINE: usize = 4096;
/// Most completions handled in one turn.
const MAX_COMPLETIONS: usize = 4096;

/// Where Writes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// The peer's key.
    pub rkey: u32,
    /// First byte in the peer's region.
    pub offset: u64,
}

/// A part of a registered buffer and where it goes.
#[derive(Clone, Copy, Debug)]
struct Piece {
    offset: u64,
    len: u64,
    target: Target,
}

enum Item {
    Message(Vec<u8>),
    Write { buffer: MrId, lkey: u32, piece: Piece },
}

enum Posted {
    Message(Option<MrId>),
    Write { buffer: MrId },
}

/// Work on the send queue, and how many bytes.
struct Sent {
    what: Posted,
    len: u64,
}

/// What happened on the link.
#[derive(Debug)]
pub enum LinkEvent {
    /// A message arrived.
    Message(Vec<u8>),
    /// All Writes from this buffer were acknowledged; here it is again.
    Returned(Vec<u8>),
    /// The queue pair failed; the end of the connection says why.
    Broken,
}

/// The queue pair as a session uses it.
pub struct Link {
    pd: PdId,
    cq: CqId,
    /// Messages and Writes leave here.
    tx: QpId,
    /// Receives are posted here.
    rx: QpId,
    /// The first queue pair; the same as the others unless they were moved.
    qp: QpId,
    queue: VecDeque<Item>,
    posted: HashMap<u64, Sent>,
    posted_bytes: u64,
    /// Bytes of messages that are queued, or posted and not acknowledged.
    messages: u64,
    max_bytes: u64,
    receives: HashMap<u64, Mr>,
    /// Consumed and not posted again: held back, or the queue was full.
    idle: Vec<Mr>,
    /// Buffers with Writes: how many are not complete.
    writing: HashMap<MrId, usize>,
    next_id: u64,
    received: u64,
    broken: bool,
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "link: {} items queued, ", self.queue.len())?;
        write!(f, "{} posted and not acknowledged ({} bytes), ", self.posted.len(), self.posted_bytes)?;
        write!(f, "{} receives posted, {} held back, ", self.receives.len(), self.idle.len())?;
        write!(f, "{} messages received", self.received)?;
        if self.broken { f.write_str(", broken") } else { Ok(()) }
    }
}

impl Link {
    /// Posts the first receives.
    ///
    /// # Errors
    /// The adapter's.
    pub fn new(a: &mut Adapter, pd: PdId, cq: CqId, qp: QpId) -> Result<Link, Error> {
        let mut l = Link {
            pd,
            cq,
            tx: qp,
            rx: qp,
            qp,
            queue: VecDeque::new(),
            posted: HashMap::new(),
            posted_bytes: 0,
            messages: 0,
            max_bytes: u64::MAX,
            receives: HashMap::new(),
            idle: Vec::new(),
            writing: HashMap::new(),
            next_id: 0,
            received: 0,
            broken: false,
        };
        l.grow(a, FIRST_RECEIVES)?;
        Ok(l)
    }
    /// The connection sends what is posted before it closes: keeps that short.
    pub fn ordered(&mut self) {
        self.max_bytes = MAX_POSTED_ORDERED;
    }
    fn id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }
    /// Adds receive buffers up to `total`; as many as the adapter's limits allow.
    fn grow(&mut self, a: &mut Adapter, total: usize) -> Result<(), Error> {
        while self.receives.len() + self.idle.len() < total.min(MAX_RECEIVES) {
            let mr = a
                .reg_mr(self.pd, Memory::zeroed(MAX_MESSAGE), Access::LOCAL_WRITE | Access::LOCAL_READ)
                .map_err(|e| e.0)?;
            self.idle.push(mr);
        }
        self.post_idle(a);
        Ok(())
    }
    fn post_idle(&mut self, a: &mut Adapter) {
        while let Some(mr) = self.idle.pop() {
            let wr_id = self.id();
            let sges = Sges::One(Sge { lkey: mr.lkey, offset: 0, len: mr.len });
            if a.post_recv(self.rx, RecvWr { wr_id, sges }).is_err() {
                self.idle.push(mr); // the queue is full: later
                return;
            }
            self.receives.insert(wr_id, mr);
        }
    }
    /// From now on everything leaves by `qp`, which has a congestion control of its own. Nothing may have been sent
    /// before: order holds within one queue pair only.
    pub fn send_on(&mut self, qp: QpId) {
        debug_assert!(self.posted.is_empty(), "sent on two queue pairs");
        self.tx = qp;
    }
    /// The queue pair by which this end sends.
    pub const fn sends_on(&self) -> QpId {
        self.tx
    }
    /// The peer sends by `qp` from now on; a second call changes nothing.
    ///
    /// # Errors
    /// The adapter's.
    pub fn receive_on(&mut self, a: &mut Adapter, qp: QpId) -> Result<(), Error> {
        if self.rx != self.qp {
            return Ok(());
        }
        self.rx = qp;
        self.grow(a, self.receives.len() + self.idle.len() + FIRST_RECEIVES)
    }
    /// Grows the receive buffers so that twice of what arrives in a round trip fits: `in_rtt` messages came in the
    /// last one.
    pub fn fit(&mut self, a: &mut Adapter, in_rtt: u64) {
        let have = self.receives.len() + self.idle.len();
        let want = in_rtt.saturating_mul(2).min(MAX_RECEIVES as u64) as usize;
        if want > have {
            // Doubling at least, so that this happens seldom. A limit of the adapter leaves what there is.
            let _ = self.grow(a, want.max(have * 2));
        }
    }
    /// Messages received so far.
    pub fn received(&self) -> u64 {
        self.received
    }
    /// Queues a message of at most [`MAX_MESSAGE`] bytes.
    pub fn send(&mut self, message: Vec<u8>) {
        debug_assert!(message.len() <= MAX_MESSAGE);
        self.messages += message.len() as u64;
        self.queue.push_back(Item::Message(message));
    }
    /// Registers `buffer` and queues a Write for every piece of it: (offset in the buffer, length, target). The
    /// buffer comes back as [`LinkEvent::Returned`].
    ///
    /// # Errors
    /// The buffer, when the adapter has no room for another region.
    pub fn write(
        &mut self,
        a: &mut Adapter,
        buffer: Vec<u8>,
        pieces: &[(u64, u64, Target)],
    ) -> Result<(), Vec<u8>> {
        let mr = match a.reg_mr(self.pd, Memory::from(buffer), Access::LOCAL_READ) {
            Ok(mr) => mr,
            Err((_, m)) => return Err(m.into_vec().unwrap_or_default()),
        };
        self.writing.insert(mr.id, pieces.len());
        for &(offset, len, target) in pieces {
            let piece = Piece { offset, len, target };
            self.queue.push_back(Item::Write { buffer: mr.id, lkey: mr.lkey, piece });
        }
        Ok(())
    }
    /// Registers memory that the peer may Write to.
    ///
    /// # Errors
    /// The memory comes back with the adapter's reason.
    pub fn open_window(&mut self, a: &mut Adapter, m: Memory) -> Result<Mr, (Error, Memory)> {
        a.reg_mr(self.pd, m, Access::LOCAL_WRITE | Access::REMOTE_WRITE)
    }
    /// Work that is queued and not posted yet.
    pub fn queued(&self) -> usize {
        self.queue.len()
    }
    /// Bytes of messages that were queued and are not acknowledged.
    pub fn messages(&self) -> u64 {
        self.messages
    }
    /// Whether everything queued was sent and acknowledged.
    pub fn drained(&self) -> bool {
        self.queue.is_empty() && self.posted.is_empty()
    }
    /// Posts what the queue pair takes.
    pub fn flush(&mut self, a: &mut Adapter) {
        while self.posted.len() < MAX_POSTED && self.posted_bytes < self.max_bytes && !self.broken {
            let Some(item) = self.queue.pop_front() else { return };
            let wr_id = self.id();
            match item {
                Item::Message(m) => {
                    if let Err(m) = self.post_message(a, wr_id, m) {
                        self.queue.push_front(Item::Message(m));
                        return;
                    }
                }
                Item::Write { buffer, lkey, piece } => {
                    let op = SendOp::Write { rkey: piece.target.rkey, offset: piece.target.offset };
                    let data = Sge { lkey, offset: piece.offset, len: piece.len };
                    if a.post_send(self.tx, SendWr::new(wr_id, op, data)).is_err() {
                        self.queue.push_front(Item::Write { buffer, lkey, piece });
                        return;
                    }
                    self.note(wr_id, Posted::Write { buffer }, piece.len);
                }
            }
        }
    }
    fn note(&mut self, wr_id: u64, what: Posted, len: u64) {
        self.posted_bytes += len;
        self.posted.insert(wr_id, Sent { what, len });
    }
    fn post_message(&mut self, a: &mut Adapter, wr_id: u64, m: Vec<u8>) -> Result<(), Vec<u8>> {
        if m.len() <= INLINE {
            let (data, len) = (verbs::Data::Inline(m.clone().into()), m.len() as u64);
            a.post_send(self.tx, SendWr::new(wr_id, SendOp::Send, data)).map_err(|_| m)?;
            self.note(wr_id, Posted::Message(None), len);
            return Ok(());
        }
        let mr = match a.reg_mr(self.pd, Memory::from(m), Access::LOCAL_READ) {
            Ok(mr) => mr,
            Err((_, m)) => return Err(m.into_vec().unwrap_or_default()),
        };
        let data = Sge { lkey: mr.lkey, offset: 0, len: mr.len };
        if a.post_send(self.tx, SendWr::new(wr_id, SendOp::Send, data)).is_err() {
            let m = a.dereg_mr(mr.id).ok().and_then(|m| m.into_vec().ok());
            return Err(m.unwrap_or_default());
        }
        self.note(wr_id, Posted::Message(Some(mr.id)), mr.len);
        Ok(())
    }
    /// Takes completions. With `hold`, consumed receives stay unposted, so that the peer slows down.
    pub fn poll(&mut self, a: &mut Adapter, hold: bool, out: &mut Vec<LinkEvent>) {
        for _ in 0..MAX_COMPLETIONS {
            let Some(wc) = a.poll_cq(self.cq) else { break };
            if wc.status != Status::Success && !self.broken {
                self.broken = true;
                out.push(LinkEvent::Broken);
            }
            if matches!(wc.opcode, Opcode::Recv | Opcode::RecvWriteImm) {
                let Some(mr) = self.receives.remove(&wc.wr_id) else { continue };
                if wc.status == Status::Success {
                    let mut m = vec![0; (wc.byte_len as usize).min(MAX_MESSAGE)];
                    match a.read_mr(mr.id, 0, &mut m) {
                        Ok(()) => out.push(LinkEvent::Message(m)),
                        Err(_) => out.push(LinkEvent::Broken),
                    }
                    self.received += 1;
                }
                self.idle.push(mr);
                continue;
            }
            self.sent(a, wc.wr_id, out);
        }
        if !hold {
            self.repost(a);
        }
    }
    /// Posts receives that were held back.
    pub fn repost(&mut self, a: &mut Adapter) {
        if !self.broken {
            self.post_idle(a);
        }
    }
    fn sent(&mut self, a: &mut Adapter, wr_id: u64, out: &mut Vec<LinkEvent>) {
        let sent = self.posted.remove(&wr_id);
        self.posted_bytes -= sent.as_ref().map_or(0, |s| s.len);
        let message = sent.as_ref().filter(|s| matches!(s.what, Posted::Message(_)));
        self.messages -= message.map_or(0, |s| s.len);
        match sent.map(|s| s.what) {
            Some(Posted::Message(Some(mr))) => {
                let _ = a.dereg_mr(mr); // its only user has completed
            }
            Some(Posted::Write { buffer }) => {
                let Some(n) = self.writing.get_mut(&buffer) else { return };
                *n -= 1;
                if *n == 0 {
                    self.writing.remove(&buffer);
                    let m = a.dereg_mr(buffer).ok().and_then(|m| m.into_vec().ok());
                    out.extend(m.map(LinkEvent::Returned));
                }
            }
            Some(Posted::Message(None)) | None => {}
        }
    }
    /// Gives every region back. Call when the connection is closed or about to be; what is still posted keeps its
    /// region until the queue pair is destroyed.
    pub fn close(&mut self, a: &mut Adapter) {
        for qp in [self.qp, self.tx, self.rx] {
            let _ = a.set_error(qp, Status::FlushError); // gone already: nothing is posted then
        }
        let mut ignored = Vec::new();
        self.poll(a, true, &mut ignored);
        let receives = self.receives.drain().map(|(_, mr)| mr.id);
        self.posted_bytes = 0;
        let messages = self.posted.drain().filter_map(|(_, p)| match p.what {
            Posted::Message(m) => m,
            Posted::Write { .. } => None,
        });
        let buffers = self.writing.drain().map(|(id, _)| id);
        for id in receives.chain(messages).chain(buffers).chain(self.idle.drain(..).map(|m| m.id)) {
            let _ = a.dereg_mr(id);
        }
        self.queue.clear();
    }
}
