//! Reads `TCP_INFO` of a stream, and sets its pacing rate.

use base::{Rate, Span};
use endpoint::StreamStats;
use rustix::net::sockopt;
use std::os::fd::{AsRawFd, OwnedFd};

/// Bytes of the structure `tcp_info` that are looked at (linux/tcp.h; it only ever grows at its end).
const LEN: usize = 232;

/// The structure `tcp_info` as bytes; fields that an older system lacks are zero.
struct TcpInfo([u8; LEN]);

impl TcpInfo {
    fn ask(fd: &OwnedFd) -> Option<TcpInfo> {
        let mut raw = TcpInfo([0; LEN]);
        let mut len = LEN as libc::socklen_t;
        // SAFETY: pointer and length describe the array, which is ours to write, and may hold any bytes.
        let r = unsafe {
            let to = raw.0.as_mut_ptr().cast();
            libc::getsockopt(fd.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, to, &raw mut len)
        };
        (r == 0).then_some(raw)
    }
    fn u32(&self, at: usize) -> u64 {
        self.0.get(at..).and_then(|b| b.first_chunk()).map_or(0, |b| u32::from_ne_bytes(*b).into())
    }
    fn u64(&self, at: usize) -> u64 {
        self.0.get(at..).and_then(|b| b.first_chunk()).map_or(0, |b| u64::from_ne_bytes(*b))
    }
}

/// The statistics of a TCP connection.
pub fn stream_stats(fd: &OwnedFd) -> Option<StreamStats> {
    let raw = TcpInfo::ask(fd)?;
    let mss = raw.u32(16);
    // Of no round trip yet it says the highest number.
    let span = |us: u64| if us >= u32::MAX.into() { Span::ZERO } else { Span::from_micros(us) };
    Some(StreamStats {
        congestion: sockopt::tcp_congestion(fd).unwrap_or_default(),
        srtt: span(raw.u32(68)),
        min_rtt: span(raw.u32(148)),
        rate: Rate::from_bytes_per_sec(raw.u64(104)),
        dscp: super::socket::dscp(fd),
        max_rate: Some(raw.u64(112)).filter(|r| *r != u64::MAX).map(Rate::from_bytes_per_sec),
        inflight: raw.u32(24).saturating_mul(mss),
        sent: raw.u64(200),
        again: raw.u64(208),
        acked: raw.u64(120),
        unsent: raw.u32(144),
        received: raw.u64(128),
        segments_out: raw.u32(136),
        data_segments_out: raw.u32(156),
        segments_in: raw.u32(140),
        segments_again: raw.u32(100),
        marked: raw.u32(196),
        mss,
        window: raw.u32(80).saturating_mul(mss),
        delivery: Rate::from_bytes_per_sec(raw.u64(160)),
    })
}

/// Limits TCP's sending rate (`SO_MAX_PACING_RATE`); `None` removes the limit.
pub fn set_pacing_rate(fd: &OwnedFd, rate: Option<Rate>) {
    // The highest value stands for no limit; zero would stop it for good.
    let value = rate.map_or(u64::MAX, |r| r.bytes_per_sec().max(1));
    // SAFETY: pointer and length describe `value`, which is read only.
    let r = unsafe {
        let (from, len) = ((&raw const value).cast(), size_of::<u64>() as libc::socklen_t);
        libc::setsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE, from, len)
    };
    if r != 0 {
        let error = std::io::Error::last_os_error();
        tracing::warn!(%error, "TCP cannot be paced: the limit of the rate does not hold on this connection");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read as _, Write as _};

    /// Where the limit of the rate stands in `tcp_info`.
    const MAX_PACING: usize = 112;

    #[test]
    fn tcp_info_reports_bytes_and_pacing_rate_is_kept() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let mut out = std::net::TcpStream::connect(listener.local_addr().expect("bound")).expect("connected");
        let (mut back, _) = listener.accept().expect("accepted");
        out.write_all(&[7; 10_000]).expect("sent");
        back.read_exact(&mut [0; 10_000]).expect("received");
        back.write_all(&[7]).expect("sent");
        out.read_exact(&mut [0; 1]).expect("received");
        let fd = OwnedFd::from(out);
        set_pacing_rate(&fd, Some(Rate::from_mbit(8)));
        let f = stream_stats(&fd).expect("told");
        assert_eq!((f.sent, f.again, f.received), (10_000, 0, 1), "{f:?}");
        assert!(f.acked >= 10_000 && f.mss > 500 && !f.srtt.is_zero(), "{f:?}");
        assert!(f.segments_out >= f.data_segments_out && f.data_segments_out > 0, "{f:?}");
        assert!(f.window >= f.mss && f.delivery > Rate::ZERO, "{f:?}");
        assert!(f.rate <= Rate::from_mbit(8) && !f.congestion.is_empty(), "{f:?}");
        let most = || TcpInfo::ask(&fd).expect("told").u64(MAX_PACING);
        assert_eq!(most(), Rate::from_mbit(8).bytes_per_sec());
        // What it paces at rises with the next acknowledgement.
        set_pacing_rate(&fd, None);
        assert_eq!(most(), u64::MAX);
    }
}
