//! Sends a batch of trains.

use super::addr::{self, Control, RawAddr, traffic_class};
use super::{SocketDefaults, UdpError, UdpSocket, errno, is_network_report};
use crate::syscall;
use base::Ecn;
use rustix::io::Errno;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd;
use std::sync::Once;
use std::sync::atomic::Ordering::Relaxed;

/// Trains in one batch.
pub const MAX_TRAINS: usize = 8;
/// Segments in one train (the kernel's `UDP_MAX_SEGMENTS` before Linux 6.9).
pub const MAX_SEGMENTS: usize = 64;
/// Bytes in one train: an IPv4 packet of 65,535 less its IP and UDP headers.
pub const MAX_TRAIN: usize = 65_507;

const SLOT: usize = 64 << 10;
/// Refusals about earlier datagrams to pass over per call.
const MAX_REPORTS: usize = 64;

/// Where a train goes, and its shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendMeta {
    /// The destination.
    pub dst: SocketAddr,
    /// The local address to send from; `None` leaves it to the kernel's routes.
    pub src: Option<IpAddr>,
    /// The ECN field of every packet.
    pub ecn: Ecn,
    /// Its differentiated-services code point, 0 to 63.
    pub dscp: u8,
    /// Bytes of each segment; the last may be shorter.
    pub segment: usize,
}

/// Reusable memory for one send call: eight trains, each filled in place.
pub struct SendBatch {
    bytes: Box<[u8]>,
    trains: [Option<(SendMeta, usize)>; MAX_TRAINS],
    /// Trains committed.
    filled: usize,
    /// Trains that have left.
    head: usize,
    /// Bytes of the train at `head` that have left, where it had to be split.
    pub(crate) head_at: usize,
}

impl core::fmt::Debug for SendBatch {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "SendBatch({} of {} sent)", self.head, self.filled)
    }
}

impl Default for SendBatch {
    fn default() -> SendBatch {
        SendBatch::new()
    }
}

impl SendBatch {
    /// An empty batch; allocates its 512 KiB once.
    pub fn new() -> SendBatch {
        let bytes = vec![0; MAX_TRAINS * SLOT].into_boxed_slice();
        SendBatch { bytes, trains: [None; MAX_TRAINS], filled: 0, head: 0, head_at: 0 }
    }

    /// The memory of the next train, [`MAX_TRAIN`] bytes; `None` when the batch is full. Its content is what
    /// an earlier train left there. [`SendBatch::commit`] adds the train.
    pub fn slot(&mut self) -> Option<&mut [u8]> {
        let at = self.filled * SLOT;
        self.bytes.get_mut(at..at + MAX_TRAIN)
    }

    /// Adds the train that fills the first `len` bytes of [`SendBatch::slot`].
    ///
    /// # Errors
    /// [`UdpError::BadTrain`] outside the limits, [`UdpError::BatchFull`] after [`MAX_TRAINS`].
    pub fn commit(&mut self, meta: SendMeta, len: usize) -> Result<(), UdpError> {
        let segment = meta.segment;
        if segment == 0 || len == 0 || len > MAX_TRAIN || len.div_ceil(segment) > MAX_SEGMENTS {
            return Err(UdpError::BadTrain { len, segment });
        }
        let train = self.trains.get_mut(self.filled).ok_or(UdpError::BatchFull)?;
        *train = Some((meta, len));
        self.filled += 1;
        Ok(())
    }

    /// A train of the batch by its place, and the bytes of its segments: to be sealed before the batch is sent.
    pub fn train_mut(&mut self, i: usize) -> Option<(&mut [u8], usize)> {
        let (meta, len) = (*self.trains[..self.filled].get(i)?)?;
        Some((&mut self.bytes[i * SLOT..i * SLOT + len], meta.segment))
    }

    /// Trains that have not left yet.
    pub fn len(&self) -> usize {
        self.filled - self.head
    }

    /// Whether everything has left.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether no further train fits.
    pub fn is_full(&self) -> bool {
        self.filled == MAX_TRAINS
    }

    /// Discards the trains that were not sent.
    pub fn clear(&mut self) {
        (self.filled, self.head, self.head_at) = (0, 0, 0);
    }

    /// Gives up the memory for good, as the kernel may still be reading it, and begins anew with other memory.
    pub(crate) fn abandon(&mut self) {
        let fresh = SendBatch::new();
        std::mem::forget(std::mem::replace(self, fresh).bytes);
    }

    pub(crate) fn pop(&mut self) {
        self.head += 1;
        self.head_at = 0;
    }

    /// The first train that has not left, and what of it has not.
    pub(crate) fn head(&self) -> Option<(SendMeta, &[u8])> {
        let (meta, len) = (*self.trains.get(self.head)?)?;
        let at = self.head * SLOT;
        (self.head < self.filled).then(|| (meta, &self.bytes[at + self.head_at..at + len]))
    }

    /// Takes note that `bytes` of the first train, whole segments, have left. True when that was the rest of it; then the
    /// next one is first, and a batch that has left entirely is empty again.
    pub(crate) fn leave(&mut self, bytes: usize) -> bool {
        self.head_at += bytes;
        let ended = self.trains[self.head].is_some_and(|(_, len)| self.head_at >= len);
        if ended {
            self.pop();
            if self.is_empty() {
                self.clear();
            }
        }
        ended
    }
}

/// Why a batch has not left entirely.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Blocked {
    /// It has.
    #[default]
    No,
    /// The socket's buffer is full: call again when the socket is writable.
    Buffer,
    /// The device's queue is full (ENOBUFS), or memory is short: the socket stays writable all the time, so
    /// call again after about a millisecond.
    Device,
}

/// A datagram larger than the interface's MTU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooBig {
    /// Where it was to go.
    pub dst: SocketAddr,
    /// Its size in bytes, without IP and UDP headers.
    pub segment: usize,
}

/// The result of sending a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendReport {
    /// Trains that left.
    pub sent: usize,
    /// Trains that the kernel refused for good and that were dropped, `too_big` included. To the protocol
    /// they are lost packets.
    pub dropped: usize,
    /// Whether and why trains are still in the batch.
    pub blocked: Blocked,
    /// The last train that exceeded the interface's MTU: the packet size to this destination must come down.
    pub too_big: Option<TooBig>,
    /// A train had no way: its address here is gone, or there is no route from there.
    pub no_route: bool,
}

impl UdpSocket {
    /// Sends the batch as far as the kernel takes it. What is left stays in the batch for the next call;
    /// a batch that has left entirely is empty again.
    ///
    /// # Errors
    /// [`UdpError::Os`] when the socket is beyond use.
    pub fn send(&self, batch: &mut SendBatch) -> Result<SendReport, UdpError> {
        self.send_first(batch, MAX_TRAINS)
    }

    /// As [`UdpSocket::send`], but no more than the first `most` trains.
    pub(crate) fn send_first(&self, batch: &mut SendBatch, most: usize) -> Result<SendReport, UdpError> {
        let mut report = SendReport::default();
        let mut reports = 0;
        while !batch.is_empty() && report.blocked == Blocked::No {
            let left = most.saturating_sub(report.sent + report.dropped);
            if left == 0 {
                break;
            }
            let whole = self.gso() && batch.head_at == 0;
            let result = if whole { self.send_whole(batch, left) } else { self.send_split(batch) };
            match result {
                Ok(trains) => report.sent += trains,
                Err(libc::EINTR) => {}
                Err(libc::EAGAIN) => report.blocked = Blocked::Buffer,
                Err(e @ (libc::ENOBUFS | libc::ENOMEM)) => {
                    warn_full_device(e);
                    report.blocked = Blocked::Device;
                }
                Err(libc::EBADF | libc::ENOTSOCK | libc::EFAULT) => {
                    return Err(UdpError::Os(io::Error::from_raw_os_error(libc::EBADF)));
                }
                Err(e) if whole && may_lack_gso(e) && batch.head_segments() > 1 => {
                    self.without_gso(batch, &mut report, e);
                }
                // Left by an earlier datagram: the same train may well go now.
                Err(e) if e == libc::ECONNREFUSED && reports < MAX_REPORTS => {
                    reports += 1;
                    self.counters.refused.fetch_add(1, Relaxed);
                }
                Err(e) => self.drop_head(batch, &mut report, e),
            }
        }
        if batch.is_empty() {
            batch.clear();
        }
        Ok(report)
    }

    /// The head train was refused whole. One of its datagrams alone tells whether segmentation is at fault:
    /// the same errors also mean a bad address, or (before Linux 6.14) a segment beyond the MTU.
    fn without_gso(&self, batch: &mut SendBatch, report: &mut SendReport, whole: i32) {
        match self.send_split(batch) {
            Ok(trains) => {
                warn_missing_gso(&format!("a device refuses it: {}", io::Error::from_raw_os_error(whole)));
                self.gso.store(false, Relaxed);
                report.sent += trains;
            }
            Err(libc::EAGAIN) => report.blocked = Blocked::Buffer,
            Err(libc::ENOBUFS | libc::ENOMEM) => report.blocked = Blocked::Device,
            Err(e) => self.drop_head(batch, report, e),
        }
    }

    fn drop_head(&self, batch: &mut SendBatch, report: &mut SendReport, errno: i32) {
        if let Some((meta, len)) = batch.trains[batch.head] {
            if errno == libc::EMSGSIZE {
                report.too_big = Some(TooBig { dst: meta.dst, segment: meta.segment.min(len) });
            } else {
                let network = is_network_report(errno);
                report.no_route |= is_no_route(errno);
                tracing::debug!(dst = %meta.dst, errno, network, "the kernel refused a train");
                warn_refusal(meta.dst, errno);
            }
        }
        self.counters.unsendable.fetch_add(1, Relaxed);
        report.dropped += 1;
        batch.pop();
    }

    /// Sends whole trains with GSO, at most `most`. Returns how many left.
    fn send_whole(&self, b: &mut SendBatch, most: usize) -> Result<usize, i32> {
        // Room for eight costs something to clear, and messages that are waited for come alone.
        let n = if b.len().min(most) == 1 {
            if let Some(result) = self.send_plain(b) {
                return result.inspect(|_| b.pop());
            }
            let mut out = Messages::<1>::new();
            out.fill(&self.defaults, b, 1);
            out.send(self)?
        } else {
            let mut out = Messages::<MAX_TRAINS>::new();
            out.fill(&self.defaults, b, most);
            out.send(self)?
        };
        (0..n).for_each(|_| b.pop());
        Ok(n)
    }

    /// Sends the head train by `sendto`, which spares the kernel the reading of a message's header, where there is nothing to
    /// say in it. Returns 1 when it left; `None`: a header is needed.
    fn send_plain(&self, b: &SendBatch) -> Option<Result<usize, i32>> {
        let (meta, bytes) = b.head()?;
        let mut name = addr::empty();
        let len = self.defaults.plain(&meta, bytes.len(), &mut name)?;
        let to = if len > 0 { (&raw const name).cast() } else { core::ptr::null() };
        // SAFETY: `bytes` is readable, and `to` points to an address of `len` bytes, or is null where that is zero.
        let sent = unsafe {
            syscall::sendto(&self.fd, (bytes.as_ptr(), bytes.len()), libc::MSG_DONTWAIT, (to, len))
        };
        // A datagram leaves whole or not at all.
        Some(sent.map(|_| 1).map_err(Errno::raw_os_error))
    }

    /// Sends the rest of the head train as single datagrams. Returns 1 when that finished it.
    fn send_split(&self, b: &mut SendBatch) -> Result<usize, i32> {
        let Some((meta, len)) = b.trains[b.head] else { return Err(libc::EINVAL) };
        let at = b.head * SLOT;
        let mut out = Messages::<MAX_SEGMENTS>::new();
        for segment in b.bytes[at + b.head_at..at + len].chunks(meta.segment) {
            if !out.push(&self.defaults, &meta, segment) {
                break;
            }
        }
        let n = out.send(self)?;
        b.head_at += n * meta.segment;
        if b.head_at < len {
            return Ok(0);
        }
        if len > meta.segment {
            self.counters.split.fetch_add(1, Relaxed);
        }
        b.pop();
        Ok(1)
    }
}

/// Errors by which the kernel says that there is no route: EINVAL is about the source.
fn is_no_route(errno: i32) -> bool {
    matches!(
        errno,
        libc::ENETUNREACH
            | libc::EHOSTUNREACH
            | libc::ENETDOWN
            | libc::EADDRNOTAVAIL
            | libc::ENODEV
            | libc::EINVAL
    )
}

impl SendBatch {
    /// Where trains that have not left are to go, and from where.
    pub(crate) fn ends(&self) -> impl Iterator<Item = (SocketAddr, Option<IpAddr>)> + '_ {
        self.trains[self.head..self.filled].iter().flatten().map(|(meta, _)| (meta.dst, meta.src))
    }

    fn head_segments(&self) -> usize {
        self.trains[self.head].map_or(0, |(meta, len)| len.div_ceil(meta.segment))
    }
}

/// Logs once that trains are split here.
pub(super) fn warn_missing_gso(why: &str) {
    static SAID: Once = Once::new();
    SAID.call_once(|| {
        tracing::warn!("segmentation offload cannot be used, {why}: packets are sent one by one, which costs processor time");
    });
}

/// Logs once that the device's queue is full at times.
fn warn_full_device(errno: i32) {
    static SAID: Once = Once::new();
    SAID.call_once(|| {
        let error = io::Error::from_raw_os_error(errno);
        tracing::warn!(
            "the system has no room for packets at times ({error}): sending pauses for half a millisecond then, and nothing \
             is lost; a longer queue of the device (ip link set DEV txqueuelen 10000) or more memory helps"
        );
    });
}

/// Logs once that the system drops packets by its firewall; to the protocol they are lost.
fn warn_refusal(dst: SocketAddr, errno: i32) {
    static SAID: Once = Once::new();
    SAID.call_once(|| {
        let error = io::Error::from_raw_os_error(errno);
        let advice = match errno {
            libc::EPERM | libc::EACCES => "look at this machine's firewall",
            _ => "look at this machine's routes and links",
        };
        tracing::warn!(
            "the system does not send packets to {}: {error}; they count as lost and are sent again; {advice}",
            dst.ip()
        );
    });
}

/// Errors by which kernels and devices decline segmentation: EIO where the device lacks checksum offload
/// (udp(7)), EINVAL and EOPNOTSUPP where the kernel or a tunnel does not know it, ENOPROTOOPT on old ones.
fn may_lack_gso(errno: i32) -> bool {
    matches!(errno, libc::EIO | libc::EINVAL | libc::ENOPROTOOPT | libc::EOPNOTSUPP)
}

impl SocketDefaults {
    /// The address at which everything that arrives has arrived, where that is known beforehand.
    pub(super) fn src(&self) -> Option<IpAddr> {
        self.src.or(self.attached.map(|a| a.src))
    }

    fn is_attached_to(&self, meta: &SendMeta) -> bool {
        self.attached.is_some_and(|a| a.dst == meta.dst && Some(a.src) == meta.src)
    }

    /// Writes the destination; gives its length, zero where the kernel knows it. `None`: the socket's family cannot reach it.
    fn name(&self, meta: &SendMeta, name: &mut RawAddr) -> Option<libc::socklen_t> {
        if self.is_attached_to(meta) { Some(0) } else { addr::encode(meta.dst, self.v6, name) }
    }

    /// What the kernel has to be asked for: source, traffic class, length of segments. What it does unasked is not: each control
    /// message takes it some 0.1 microseconds.
    fn asks(&self, meta: &SendMeta, len: usize) -> (Option<IpAddr>, Option<u8>, Option<u16>) {
        let src = meta.src.filter(|src| Some(*src) != self.src && !self.is_attached_to(meta));
        let class = Some(traffic_class(meta.dscp, meta.ecn)).filter(|class| Some(*class) != self.class);
        // Not for a single segment: it works on devices without offload.
        (src, class, (len > meta.segment).then_some(meta.segment as u16))
    }

    /// As [`SocketDefaults::name`], if nothing has to be asked for.
    fn plain(&self, meta: &SendMeta, len: usize, name: &mut RawAddr) -> Option<libc::socklen_t> {
        if self.asks(meta, len) == (None, None, None) { self.name(meta, name) } else { None }
    }
}

/// The arguments of one `sendmmsg`, or of as many single sends.
pub(crate) struct Messages<const N: usize> {
    names: [RawAddr; N],
    controls: [Control; N],
    iovs: [libc::iovec; N],
    lens: [(libc::socklen_t, usize); N],
    pub(crate) count: usize,
}

impl<const N: usize> Messages<N> {
    /// Begins anew with the whole trains of `b` that have not left, at most `most` and `N`, up to the first that the
    /// socket's family cannot reach:
    /// what precedes it can still leave, and the next call meets it at its head. `b` must outlive what is done with it.
    pub(crate) fn fill(&mut self, defaults: &SocketDefaults, b: &SendBatch, most: usize) {
        self.count = 0;
        for (i, train) in b.trains[b.head..b.filled].iter().enumerate().take(most.min(N)) {
            let at = (b.head + i) * SLOT;
            let Some((meta, len)) = *train else { return };
            if !self.push(defaults, &meta, &b.bytes[at..at + len]) {
                return;
            }
        }
    }

    pub(crate) fn new() -> Messages<N> {
        Messages {
            names: [addr::empty(); N],
            controls: [Control::EMPTY; N],
            iovs: [libc::iovec { iov_base: core::ptr::null_mut(), iov_len: 0 }; N],
            lens: [(0, 0); N],
            count: 0,
        }
    }

    /// Adds a message; `bytes` must outlive [`Messages::send`], which both callers see to by holding the
    /// batch borrowed across both. False when the socket's family cannot reach the destination. At most `N`
    /// are added: callers' loops are over at most `N` things.
    fn push(&mut self, defaults: &SocketDefaults, meta: &SendMeta, bytes: &[u8]) -> bool {
        let i = self.count;
        let Some(name) = defaults.name(meta, &mut self.names[i]) else { return false };
        let v4 = meta.dst.ip().to_canonical().is_ipv4();
        let (src, class, segment) = defaults.asks(meta, bytes.len());
        let control = self.controls[i].encode(v4, src, class, segment);
        self.iovs[i] = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        self.lens[i] = (name, control);
        self.count += 1;
        true
    }

    /// The first `count` point into this structure and to what was pushed: neither may move or end before the kernel is
    /// done with them.
    pub(crate) fn headers(&mut self) -> [libc::mmsghdr; N] {
        // SAFETY: pointers and integers, for which all zeroes is a value.
        let mut msgs: [libc::mmsghdr; N] = unsafe { core::mem::zeroed() };
        let parts = self.names.iter_mut().zip(&mut self.controls).zip(&mut self.iovs).zip(&self.lens);
        for (m, (((name, control), iov), (name_len, control_len))) in msgs[..self.count].iter_mut().zip(parts)
        {
            if *name_len > 0 {
                m.msg_hdr.msg_name = (&raw mut *name).cast();
                m.msg_hdr.msg_namelen = *name_len;
            }
            m.msg_hdr.msg_iov = iov;
            m.msg_hdr.msg_iovlen = 1;
            m.msg_hdr.msg_control = control.as_mut_ptr();
            m.msg_hdr.msg_controllen = *control_len as _;
        }
        msgs
    }

    fn send(&mut self, socket: &UdpSocket) -> Result<usize, i32> {
        if self.count == 0 {
            return Err(libc::EAFNOSUPPORT);
        }
        let mut msgs = self.headers();
        if self.count == 1 {
            // SAFETY: as below.
            let n = unsafe {
                libc::sendmsg(socket.fd.as_raw_fd(), &raw const msgs[0].msg_hdr, libc::MSG_DONTWAIT)
            };
            // A datagram leaves whole or not at all.
            return if n < 0 { Err(errno()) } else { Ok(1) };
        }
        // SAFETY: the first `count` headers point to names, control data and payloads of the stated lengths
        // that outlive the call; the kernel only reads them.
        let n = unsafe {
            let flags = libc::MSG_DONTWAIT as _;
            libc::sendmmsg(socket.fd.as_raw_fd(), msgs.as_mut_ptr(), self.count as _, flags)
        };
        usize::try_from(n).map_err(|_| errno())
    }
}
