//! Statistics of streams as the kernel's TCP reports them (`TCP_INFO`).

use super::StreamId;
use super::caps::QUIET;
use crate::app::ConnId;
use crate::{Endpoint, StreamCommand};
use base::{Rate, Span, Time};

/// How often changed needs divide caps anew at most: it takes a look at every connection.
const DIVIDE_EVERY: Span = Span::from_millis(100);

/// Statistics of a TCP stream. Counters start at zero and exclude headers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StreamStats {
    /// Congestion control, by the system's name for it.
    pub congestion: String,
    /// Smoothed round trip; zero when not known.
    pub srtt: Span,
    /// Lowest round trip; zero when not known.
    pub min_rtt: Span,
    /// How fast it leaves; `Rate::MAX` when it is not paced.
    pub rate: Rate,
    /// The most that the system lets it send (`SO_MAX_PACING_RATE`), as the system has it; `None`: no limit.
    pub max_rate: Option<Rate>,
    /// Code point of its packets, as the system has it, 0 to 63.
    pub dscp: u8,
    /// Bytes that are on the way.
    pub inflight: u64,
    /// Bytes sent, repeated ones included.
    pub sent: u64,
    /// Bytes sent again.
    pub again: u64,
    /// Bytes that the peer's system has acknowledged.
    pub acked: u64,
    /// Bytes that were given to the system and not sent yet.
    pub unsent: u64,
    /// Bytes received.
    pub received: u64,
    /// Segments sent.
    pub segments_out: u64,
    /// Segments with data sent.
    pub data_segments_out: u64,
    /// Segments received.
    pub segments_in: u64,
    /// Segments sent again.
    pub segments_again: u64,
    /// Segments that arrived with the mark Congestion Experienced.
    pub marked: u64,
    /// Bytes of a segment.
    pub mss: u64,
    /// Bytes that may be on the way: the congestion window.
    pub window: u64,
    /// The newest sample of the rate at which data arrives.
    pub delivery: Rate,
}

/// Bytes of headers around a segment with time stamps: IPv4 (20) or IPv6 (40), TCP (20), its option (12).
const fn headers(v6: bool) -> u64 {
    if v6 { 72 } else { 52 }
}

impl Endpoint {
    /// Sets the kernel's statistics of a stream. The driver reports them from time to time.
    pub fn set_stream_stats(&mut self, now: Time, id: StreamId, facts: StreamStats) {
        let Some(s) = self.iwarp_state.streams.get(&id) else { return };
        let Some((conn, index)) = s.conn.map(|c| (c, usize::from(s.index))) else { return };
        let records = s.engine.as_ref().map_or(0, ::iwarp::Connection::unsent);
        let sealed = s.sealed.as_ref().map_or(0, |s| s.tls.outgoing().len());
        let Some(b) = self.iwarp_state.conns.get_mut(&conn) else { return };
        if let Some(info) = b.info.iwarp.as_mut().filter(|i| i.congestion != facts.congestion) {
            info.congestion.clone_from(&facts.congestion);
        }
        // Of what is still to be carried out it has said nothing.
        if b.unheard.get(&id) == Some(&0) {
            b.unheard.remove(&id);
        }
        let before = b.is_busy();
        if b.facts.len() <= index {
            b.facts.resize(index + 1, StreamStats::default());
            b.quiet.resize(index + 1, QUIET);
        }
        // On a short path nothing is on the way at most moments, also while much is sent.
        let sends = facts.inflight > 0 || facts.sent > b.facts[index].sent;
        b.quiet[index] = if sends { 0 } else { b.quiet[index].saturating_add(1).min(QUIET) };
        // Headers of MPA and records of TLS are in it: a little more than the payload.
        let on_the_way = facts.sent.saturating_sub(facts.again).saturating_sub(facts.acked);
        let queued = facts.unsent.saturating_add(on_the_way).saturating_add((records + sealed) as u64);
        b.facts[index] = facts;
        let qp = b.streams.get(index).and_then(|s| (*s)?.1);
        let acked = b.facts.iter().map(|f| f.acked).sum();
        let share = b.rate_share.map(|share| share.scale(b.sharers.max(1) as u64, 1));
        let has_new_need = b.need.measure(now, acked, share);
        let is_same = b.is_busy() == before;
        if let Some(qp) = qp {
            self.adapter.count_delivered(qp, queued);
        }
        let state = &mut self.iwarp_state;
        state.needs_changed |= has_new_need;
        let is_due = state.needs_changed && now.since(state.divided) >= DIVIDE_EVERY;
        if (is_due || !is_same) && self.divides_caps() {
            (self.iwarp_state.divided, self.iwarp_state.needs_changed) = (now, false);
            self.divide_caps();
        } else {
            self.share_rate(conn);
        }
    }

    /// Makes the driver report the statistics of an iWARP connection's streams at once: [`Endpoint::stats`] are up to
    /// date in the next turn. Those of the native transport always are.
    pub fn refresh_stats(&mut self, conn: ConnId) {
        if let Some(b) = self.iwarp_state.conns.get(&conn) {
            self.iwarp_state
                .orders
                .extend(b.streams.iter().flatten().map(|(stream, _)| StreamCommand::QueryStats(*stream)));
        }
    }

    /// Returns the statistics of streams that were reported since the last call, of one connection or of all:
    /// connection, stream's index, the report before, and the present one. The report before the first call is not
    /// returned.
    pub fn take_stream_samples(
        &mut self,
        only: Option<ConnId>,
        mut out: impl FnMut(ConnId, u32, &StreamStats, &StreamStats),
    ) {
        for (id, b) in self.iwarp_state.conns.iter_mut().filter(|(id, _)| only.is_none_or(|o| o == **id)) {
            let Some(seen) = &mut b.traced else {
                b.traced = Some(b.facts.clone());
                continue;
            };
            seen.resize(b.facts.len(), StreamStats::default());
            for ((index, seen), now) in
                (0..).zip(seen).zip(&b.facts).filter(|((_, seen), now)| **seen != **now)
            {
                out(*id, index, seen, now);
                seen.clone_from(now);
            }
        }
    }

    /// Counters of a connection by iWARP: payload by the queue pairs, the rest by TCP, a moment old. Headers are reckoned
    /// with time stamps; what MPA adds counts as sent and not as payload. There is no congestion window: TCP keeps what is
    /// in flight itself, and its window, which may be far beyond what it uses, is no measure for an application's memory.
    pub(crate) fn iwarp_stats(&self, conn: ConnId) -> Option<transport::Stats> {
        let b = self.iwarp_state.conns.get(&conn)?;
        let head = headers(b.info.remote.is_ipv6());
        let mut all = transport::Stats { cc: ("tcp", ""), ..Default::default() };
        for s in b.streams.iter().flatten().filter_map(|(_, qp)| self.adapter.stats((*qp)?)) {
            all.payload_sent += s.bytes_out;
            all.payload_received += s.bytes_in;
            all.payload_acked += s.bytes_delivered;
        }
        let least = |a: Span, b: Span| if a.is_zero() || (b < a && !b.is_zero()) { b } else { a };
        let (mut acked, mut busiest) = (0, 0);
        for f in &b.facts {
            all.payload_again += f.again;
            all.packets_sent += f.segments_out;
            all.packets_received += f.segments_in;
            all.packets_lost += f.segments_again;
            all.packets_again += f.segments_again;
            let bare = f.segments_out.saturating_sub(f.data_segments_out);
            all.control_packets_sent += bare;
            all.control_bytes_sent += bare * head;
            all.bytes_sent += f.sent + f.segments_out * head;
            all.bytes_received += f.received + f.segments_in * head;
            all.ce_packets += f.marked;
            all.inflight += f.inflight;
            all.rate =
                Rate::from_bytes_per_sec(all.rate.bytes_per_sec().saturating_add(f.rate.bytes_per_sec()));
            acked += f.acked;
            all.min_rtt = least(all.min_rtt, f.min_rtt);
            // The round trip is that of the stream that carried most.
            if f.sent + f.received >= busiest && !f.srtt.is_zero() {
                busiest = f.sent + f.received;
                (all.srtt, all.mtu) = (f.srtt, f.mss + head);
            }
        }
        // A moment old, and with what MPA adds: never more than was sent.
        all.delivered = acked.min(all.payload_sent);
        all.payload_sent += all.payload_again;
        all.lanes = b.established as u32;
        Some(all)
    }
}
