//! Receives a batch of trains.

use super::addr::{self, Control, RawAddr, Received};
use super::slot::Slot;
use super::{UdpError, UdpSocket, errno, is_network_report};
use crate::clock::WallTime;
use crate::syscall;
use base::{Ecn, Span};
use rustix::io::Errno;
use std::cell::LazyCell;
use std::io;
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering::Relaxed;

/// With GRO: eight trains of up to 64 KiB, half a mebibyte that stays in the second-level cache.
const TRAIN_SLOTS: usize = 8;
const TRAIN_SLOT: usize = 64 << 10;
/// Without: 64 single datagrams, each up to a jumbo frame of 9,216 bytes.
const SINGLE_SLOTS: usize = 64;
const SINGLE_SLOT: usize = 9_216;
const MAX_SLOTS: usize = SINGLE_SLOTS;
/// Longest believable stay in a socket.
const MAX_AGE: Span = Span::from_secs(1);
/// Lone datagrams up to this long are short messages, of which hardly more than one is under way at a time.
const SHORT: usize = 512;
/// Of so many short ones in a row the traffic class of one is asked for, see [`RecvBatch::expect_plain`].
const PLAIN: u32 = 16;
/// So many that were asked in a row had the same before others are taken to have it. Reports between messages have another.
const SAME: u32 = 4;
/// Error reports about earlier datagrams to pass over in one call before giving the loop its turn.
const MAX_REPORTS: usize = 64;

/// Where a received train came from, and its shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecvMeta {
    /// The sender.
    pub remote: SocketAddr,
    /// The local address it was sent to, and should be answered from. The port is the socket's.
    pub local: Option<IpAddr>,
    /// The ECN field. GRO joins only packets that have the same.
    pub ecn: Ecn,
    /// Its differentiated-services code point, 0 to 63; the same holds.
    pub dscp: u8,
    /// Bytes of each datagram in the train; the last may be shorter. Equal to `len` for a single datagram.
    /// Zero only for an empty datagram.
    pub stride: usize,
    /// Bytes in all.
    pub len: usize,
    /// How long it waited in the socket, from the kernel's stamp; zero where it has none. Taken off, the time for which a
    /// thread waits for a processor is not mistaken for a queue in the network.
    pub age: Span,
}

/// Reusable memory for one receive call: allocated once, hot in the cache ever after. It belongs to the socket that made
/// it.
pub struct RecvBatch {
    /// Each holds a message's payload. Empty ones are filled by the socket.
    pub(crate) slots: Box<[Slot]>,
    /// Bytes of the longest payload.
    pub(crate) slot: usize,
    names: Box<[RawAddr]>,
    controls: Box<[Control]>,
    /// For each message of the last call: its shape, or `None` if it was unusable.
    pub(crate) metas: Box<[Option<RecvMeta>]>,
    /// Messages of the last call.
    pub(crate) filled: usize,
    /// The last train can go on: see [`RecvBatch::push`].
    open: bool,
    /// Messages to ask the kernel for next. One, as long as they come alone: asking in vain for a second one costs a
    /// twentieth of a round trip within a machine.
    wanted: usize,
    /// Messages that the last call could have brought.
    asked: usize,
    /// Short messages are expected one by one.
    plain: Option<SingleReceive>,
}

/// How short messages are received that arrive one at a time.
#[derive(Clone, Copy, Debug)]
struct SingleReceive {
    /// The traffic class of the last one that was asked for it.
    class: (u8, Ecn),
    /// So many that were asked before it, in a row, had the same.
    same: u32,
    /// So many more are taken to have it.
    left: u32,
}

impl core::fmt::Debug for RecvBatch {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "RecvBatch({} of {} slots of {})", self.filled, self.metas.len(), self.slot)
    }
}

impl RecvBatch {
    /// For a socket with GRO or without; see [`UdpSocket::recv_batch`].
    pub fn new(gro: bool) -> RecvBatch {
        let (slots, slot) = if gro { (TRAIN_SLOTS, TRAIN_SLOT) } else { (SINGLE_SLOTS, SINGLE_SLOT) };
        RecvBatch {
            slots: (0..slots).map(|_| Slot::default()).collect(),
            slot,
            names: vec![addr::empty(); slots].into_boxed_slice(),
            controls: vec![Control::EMPTY; slots].into_boxed_slice(),
            metas: vec![None; slots].into_boxed_slice(),
            filled: 0,
            open: false,
            wanted: 1,
            asked: slots,
            plain: None,
        }
    }

    /// Forgets what the last call brought.
    pub(crate) fn clear(&mut self) {
        (self.filled, self.open, self.asked) = (0, false, self.metas.len());
    }

    /// Whether more may be waiting: the last call brought all that it could.
    pub fn is_full(&self) -> bool {
        self.filled == self.asked
    }

    /// Whether the last call was for one message only: look again, but not before that one is answered.
    pub fn is_single(&self) -> bool {
        self.asked == 1
    }

    /// A datagram that came alone, and that nothing stood behind, is what a call for one message would have brought.
    pub(crate) fn note_single(&mut self) {
        if let [Some(m)] = self.metas[..self.filled]
            && m.len == m.stride
        {
            self.asked = 1;
        }
    }

    /// Trains that the last call brought.
    pub(crate) fn trains(&self) -> usize {
        self.filled
    }

    /// Bytes that the last call brought.
    pub(crate) fn bytes(&self) -> usize {
        self.metas[..self.filled].iter().flatten().map(|m| m.len).sum()
    }

    /// Several messages are likely to be there: the next call takes as many as it can.
    pub(crate) fn expect_many(&mut self) {
        self.wanted = self.metas.len();
    }

    /// The next call is to bring one message, as after a look that found nothing.
    #[cfg(test)]
    pub(crate) fn expect_one(&mut self) {
        self.wanted = 1;
    }

    /// Short messages are expected one by one, and the kernel joins none (or not any more). It is asked for the traffic
    /// class of one in [`PLAIN`] of them only, and the others are taken to have the same: without control data, and without
    /// the header that it needs, a look costs a third less. What can be wrong then, a mark that is overlooked, is of
    /// no use to a flow that has one packet under way. With the first that is longer or is seen to be marked, all are asked
    /// for again.
    pub(crate) fn expect_plain(&mut self) {
        self.plain.get_or_insert(SingleReceive { class: (0, Ecn::NotEct), same: 0, left: 0 });
    }

    /// Every datagram is to tell its traffic class.
    pub(crate) fn expect_classes(&mut self) {
        self.plain = None;
    }

    /// The kernel told the shape of the only message of a call.
    fn learn(&mut self, meta: Option<&RecvMeta>) {
        let Some(p) = &mut self.plain else { return };
        let short = |m: &&RecvMeta| m.len <= SHORT && m.len == m.stride && m.ecn != Ecn::Ce;
        let Some(m) = meta.filter(short) else { return self.plain = None };
        let class = (m.dscp, m.ecn);
        p.same = if p.class == class { p.same + 1 } else { 0 };
        p.left = if p.same >= SAME { PLAIN - 1 } else { 0 };
        p.class = class;
    }

    /// Adds a datagram: to the last train where it goes on with it, as GRO joins packets (same ends, same traffic class, as long as
    /// those before it or a shorter last one), else as a train of its own. False when there is no room.
    pub(crate) fn push(
        &mut self,
        remote: SocketAddr,
        local: IpAddr,
        (dscp, ecn): (u8, Ecn),
        bytes: &[u8],
    ) -> bool {
        if let (true, Some(Some(m))) = (self.open, self.metas[..self.filled].last_mut()) {
            let end = m.len + bytes.len();
            let goes_on = m.remote == remote && m.local == Some(local) && (m.dscp, m.ecn) == (dscp, ecn);
            if goes_on && !bytes.is_empty() && bytes.len() <= m.stride && end <= self.slot {
                self.slots[self.filled - 1].payload()[m.len..end].copy_from_slice(bytes);
                m.len = end;
                self.open = bytes.len() == m.stride;
                return true;
            }
        }
        let fits = bytes.len() <= self.slot;
        let (true, Some(meta)) = (fits, self.metas.get_mut(self.filled)) else { return false };
        let len = bytes.len();
        self.slots[self.filled].ready(self.slot)[..len].copy_from_slice(bytes);
        *meta = Some(RecvMeta { remote, local: Some(local), ecn, dscp, stride: len, len, age: Span::ZERO });
        self.filled += 1;
        self.open = len > 0;
        true
    }

    /// How many messages one call can bring.
    pub fn capacity(&self) -> usize {
        self.metas.len()
    }

    /// The trains of the last receive call, each with its bytes, which may be changed in place (decrypted).
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (RecvMeta, &mut [u8])> {
        self.metas[..self.filled].iter().zip(&mut self.slots).filter_map(|(meta, slot)| {
            let meta = (*meta)?;
            Some((meta, &mut slot.payload()[..meta.len]))
        })
    }
}

impl UdpSocket {
    /// Takes what has arrived, up to the batch's capacity. Returns the number of usable trains; zero when
    /// nothing is waiting. [`RecvBatch::is_full`] tells whether more may be.
    ///
    /// Reports about earlier datagrams (ICMP port unreachable and the like) are counted and passed over.
    ///
    /// # Errors
    /// [`UdpError::Os`] when the socket is beyond use.
    pub fn recv(&self, batch: &mut RecvBatch) -> Result<usize, UdpError> {
        batch.clear();
        for _ in 0..MAX_REPORTS {
            match self.recv_once(batch) {
                Ok(n) => return Ok(self.describe(batch, n)),
                Err(libc::EAGAIN) => return Ok(0),
                Err(libc::EINTR) => {}
                Err(e) if is_network_report(e) => {
                    self.counters.refused.fetch_add(1, Relaxed);
                }
                Err(e) => return Err(UdpError::Os(io::Error::from_raw_os_error(e))),
            }
        }
        Ok(0)
    }

    /// One `recvmmsg`. The headers are built anew on the stack, so that the batch holds no pointers.
    fn recv_once(&self, b: &mut RecvBatch) -> Result<usize, i32> {
        let slots = b.wanted.min(b.metas.len()).min(MAX_SLOTS);
        (b.asked, b.wanted) = (slots, 1);
        if slots == 1 {
            return match (b.plain, self.defaults.src()) {
                (Some(p), Some(local)) if p.left > 0 => self.recv_plain(b, p, local),
                _ => self.recv_alone(b),
            };
        }
        // Only what is used is written: a loop that looks for work makes this call some hundred thousand times a second.
        let mut iovs: [MaybeUninit<libc::iovec>; MAX_SLOTS] = [const { MaybeUninit::uninit() }; MAX_SLOTS];
        let mut msgs: [MaybeUninit<libc::mmsghdr>; MAX_SLOTS] = [const { MaybeUninit::uninit() }; MAX_SLOTS];
        let parts = b.slots.iter_mut().zip(&mut b.names).zip(&mut b.controls);
        for ((m, iov), ((slot, name), control)) in msgs[..slots].iter_mut().zip(&mut iovs).zip(parts) {
            let bytes = slot.ready(b.slot);
            let iov = iov.write(libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() });
            // SAFETY: pointers and integers, for which all zeroes is a value.
            let m = m.write(unsafe { core::mem::zeroed() });
            m.msg_hdr.msg_iov = iov;
            m.msg_hdr.msg_iovlen = 1;
            m.msg_hdr.msg_name = (&raw mut *name).cast();
            m.msg_hdr.msg_namelen = size_of::<RawAddr>() as libc::socklen_t;
            m.msg_hdr.msg_control = control.as_mut_ptr();
            m.msg_hdr.msg_controllen = Control::LEN as _;
        }
        let first = msgs.as_mut_ptr().cast::<libc::mmsghdr>();
        // SAFETY: the first `slots` headers, of which there are as many as slots, names and control areas, were written
        // above and point to distinct buffers of the stated lengths, all of which outlive the call and are not borrowed
        // otherwise.
        let n = unsafe {
            let flags = libc::MSG_DONTWAIT as _;
            libc::recvmmsg(self.fd.as_raw_fd(), first, slots as _, flags, core::ptr::null_mut())
        };
        let Ok(n) = usize::try_from(n) else { return Err(errno()) };
        if n == slots || n > 1 {
            b.wanted = b.metas.len();
        }
        let now: LazyCell<WallTime> = LazyCell::new(WallTime::now);
        for (i, m) in msgs[..n.min(slots)].iter().enumerate() {
            // SAFETY: the first `slots` were written above.
            let m = unsafe { m.assume_init_ref() };
            // The field's type differs between C libraries.
            #[allow(clippy::unnecessary_cast)]
            let told = b.controls[i].decode(m.msg_hdr.msg_controllen as usize);
            let (len, flags) = (m.msg_len as usize, m.msg_hdr.msg_flags);
            b.metas[i] = self.meta_of(len, b.slot, flags, &b.names[i], &told, &now);
        }
        Ok(n.min(slots))
    }

    /// One `recvmsg`, which costs less than one message of a `recvmmsg`.
    fn recv_alone(&self, b: &mut RecvBatch) -> Result<usize, i32> {
        let bytes = b.slots[0].ready(b.slot);
        let mut iov = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        // SAFETY: pointers and integers, for which all zeroes is a value.
        let mut m: libc::msghdr = unsafe { core::mem::zeroed() };
        m.msg_iov = &raw mut iov;
        m.msg_iovlen = 1;
        m.msg_name = (&raw mut b.names[0]).cast();
        m.msg_namelen = size_of::<RawAddr>() as libc::socklen_t;
        m.msg_control = b.controls[0].as_mut_ptr();
        m.msg_controllen = Control::LEN as _;
        // SAFETY: the header points to a buffer, a name and control data of the stated lengths, which outlive the call and
        // are not borrowed otherwise.
        let n = unsafe { libc::recvmsg(self.fd.as_raw_fd(), &raw mut m, libc::MSG_DONTWAIT) };
        let Ok(len) = usize::try_from(n) else { return Err(errno()) };
        b.wanted = b.metas.len();
        // The field's type differs between C libraries.
        #[allow(clippy::unnecessary_cast)]
        let told = b.controls[0].decode(m.msg_controllen as usize);
        let now: LazyCell<WallTime> = LazyCell::new(WallTime::now);
        let meta = self.meta_of(len, b.slot, m.msg_flags, &b.names[0], &told, &now);
        b.learn(meta.as_ref());
        b.metas[0] = meta;
        Ok(1)
    }

    /// One `recvfrom`, which tells nothing but bytes and the sender.
    fn recv_plain(&self, b: &mut RecvBatch, p: SingleReceive, local: IpAddr) -> Result<usize, i32> {
        let bytes = b.slots[0].ready(b.slot);
        // Attached, it is known.
        let attached = self.defaults.attached.map(|a| a.dst);
        let mut size = size_of::<RawAddr>() as libc::socklen_t;
        let (name, len) = match attached {
            Some(_) => (core::ptr::null_mut(), core::ptr::null_mut()),
            None => ((&raw mut b.names[0]).cast(), &raw mut size),
        };
        // So that a longer one is noticed, it gives the length that it had.
        let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC;
        // SAFETY: buffer and name have the stated lengths, outlive the call and are not borrowed otherwise; without a name
        // there is no length either.
        let len =
            unsafe { syscall::recvfrom(&self.fd, (bytes.as_mut_ptr(), bytes.len()), flags, (name, len)) }
                .map_err(Errno::raw_os_error)?;
        b.wanted = b.metas.len();
        b.plain = Some(SingleReceive { left: p.left - 1, ..p }).filter(|_| len <= SHORT);
        b.metas[0] = None;
        let remote = attached.or_else(|| addr::decode(&b.names[0]));
        if len > b.slot {
            self.counters.truncated.fetch_add(1, Relaxed);
        } else if let Some(remote) = remote {
            let ((dscp, ecn), age) = (p.class, Span::ZERO);
            b.metas[0] = Some(RecvMeta { remote, local: Some(local), ecn, dscp, stride: len, len, age });
        } else {
            self.counters.unattributed.fetch_add(1, Relaxed);
        }
        Ok(1)
    }

    /// The shape of a message of `len` bytes that was received into `slot` bytes with the kernel's `flags`; `None`, and
    /// counted, when it is of no use.
    pub(crate) fn meta_of(
        &self,
        len: usize,
        slot: usize,
        flags: i32,
        name: &RawAddr,
        told: &Received,
        now: &LazyCell<WallTime>,
    ) -> Option<RecvMeta> {
        // A datagram that was cut is not the sender's datagram any more.
        if flags & libc::MSG_TRUNC != 0 || len > slot {
            self.counters.truncated.fetch_add(1, Relaxed);
            return None;
        }
        // Without its control data a train cannot be told from a single datagram.
        let (Some(remote), true) = (addr::decode(name), flags & libc::MSG_CTRUNC == 0) else {
            self.counters.unattributed.fetch_add(1, Relaxed);
            return None;
        };
        let attached = || self.defaults.attached.filter(|a| a.dst == remote).map(|a| a.src);
        let local = told.local.or(self.defaults.src).or_else(attached);
        let stride = told.segment.unwrap_or(len).min(len);
        let age = told.arrived.map_or(Span::ZERO, |then| age(**now, then));
        Some(RecvMeta { remote, local, ecn: told.ecn, dscp: told.dscp, stride, len, age })
    }

    fn describe(&self, batch: &mut RecvBatch, n: usize) -> usize {
        batch.filled = n;
        batch.metas[..n].iter().flatten().count()
    }
}

/// Time from `then` to `now`. Nothing waits longer in a socket than [`MAX_AGE`]: then the calendar clock was set.
fn age(now: WallTime, then: WallTime) -> Span {
    let nanos = |t: WallTime| i128::from(t.secs) * 1_000_000_000 + i128::from(t.nanos);
    let age = u64::try_from(nanos(now) - nanos(then)).map_or(Span::ZERO, Span::from_nanos);
    if age > MAX_AGE { Span::ZERO } else { age }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn datagrams_of_a_flow_are_joined_into_trains() {
        let (a, b) = ("10.0.0.1:1".parse().unwrap(), "10.0.0.2:1".parse().unwrap());
        let local = "10.0.0.9".parse().unwrap();
        let mut batch = RecvBatch::new(true);
        let bytes = [7; 65_536];
        let mut push = |from, ecn, len: usize| batch.push(from, local, (0, ecn), &bytes[..len]);
        for (from, ecn, len) in [
            (a, Ecn::Ect0, 100), // first train
            (a, Ecn::Ect0, 100),
            (a, Ecn::Ect0, 40), // a shorter one is the last
            (a, Ecn::Ect0, 40), // second
            (a, Ecn::Ect0, 50), // third: longer
            (b, Ecn::Ect0, 50), // fourth: another sender
            (b, Ecn::Ce, 50),   // fifth: marked
            (b, Ecn::Ce, 0),    // sixth: empty ones stay alone
            (b, Ecn::Ce, 50),   // seventh
        ] {
            assert!(push(from, ecn, len));
        }
        assert!(push(b, Ecn::NotEct, 65_536), "eighth");
        assert!(!push(b, Ecn::NotEct, 1));
        let shapes: Vec<_> = batch.iter_mut().map(|(m, bytes)| (m.stride, bytes.len())).collect();
        let expected =
            [(100, 240), (40, 40), (50, 50), (50, 50), (50, 50), (0, 0), (50, 50), (65_536, 65_536)];
        assert_eq!(shapes, expected);
    }

    #[test]
    fn trains_end_at_their_slot() {
        let (from, local) = ("10.0.0.1:1".parse().unwrap(), "10.0.0.9".parse().unwrap());
        let mut batch = RecvBatch::new(true);
        while batch.push(from, local, (0, Ecn::Ect0), &[1; 1_000]) {}
        assert_eq!(batch.trains(), batch.capacity());
        assert!(batch.iter_mut().all(|(m, bytes)| m.stride == 1_000 && bytes.len() == 65_000));
    }

    #[test]
    fn clock_steps_do_not_add_age() {
        let at = |secs, nanos| WallTime { secs, nanos };
        assert_eq!(age(at(5, 1_000), at(4, 999_999_000)), Span::from_nanos(2_000));
        assert_eq!(age(at(5, 0), at(5, 1)), Span::ZERO);
        assert_eq!(age(at(i64::MAX, 0), at(i64::MIN, 0)), Span::ZERO);
        assert_eq!(age(at(9, 0), at(7, 0)), Span::ZERO);
    }
}
