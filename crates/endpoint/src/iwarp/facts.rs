//! What the system tells of a connection's streams, and how fast they may go.

use super::{StreamId, StreamOrder};
use crate::Endpoint;
use crate::app::ConnId;
use base::{Rate, Span};

/// What TCP says of a stream. Counters count from its start, and bytes without headers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StreamFacts {
    /// Congestion control, by the system's name for it.
    pub congestion: String,
    /// Smoothed round trip; zero when not known.
    pub srtt: Span,
    /// Lowest round trip; zero when not known.
    pub min_rtt: Span,
    /// How fast it leaves; `Rate::MAX` when it is not paced.
    pub rate: Rate,
    /// Bytes that are on the way.
    pub inflight: u64,
    /// Bytes sent, repeated ones included.
    pub sent: u64,
    /// Bytes sent again.
    pub again: u64,
    /// Bytes that the peer's system has acknowledged.
    pub acked: u64,
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
}

/// Bytes of headers around a segment with time stamps: IPv4 (20) or IPv6 (40), TCP (20), its option (12).
const fn headers(v6: bool) -> u64 {
    if v6 { 72 } else { 52 }
}

impl Endpoint {
    /// What the system says of a stream now. The driver tells it from time to time.
    pub fn set_stream_facts(&mut self, id: StreamId, facts: StreamFacts) {
        let Some(s) = self.hub.streams.get(&id) else { return };
        let Some((conn, index)) = s.conn.map(|c| (c, usize::from(s.index))) else { return };
        let Some(b) = self.hub.bundles.get_mut(&conn) else { return };
        if let Some(info) = b.info.iwarp.as_mut().filter(|i| i.congestion != facts.congestion) {
            info.congestion.clone_from(&facts.congestion);
        }
        if b.facts.len() <= index {
            b.facts.resize(index + 1, StreamFacts::default());
        }
        b.facts[index] = facts;
        self.share_rate(conn);
    }

    /// What this end sends on a connection by iWARP at most.
    pub(crate) fn set_bundle_cap(&mut self, conn: ConnId, cap: Option<Rate>) {
        let Some(b) = self.hub.bundles.get_mut(&conn) else { return };
        b.rate_cap = cap;
        self.share_rate(conn);
    }

    /// Divides the cap among the streams that send; TCP keeps to it by pacing. A stream that begins to send is counted when
    /// the system's next word on it comes: so long it may take a share that another has.
    pub(crate) fn share_rate(&mut self, conn: ConnId) {
        let Some(b) = self.hub.bundles.get_mut(&conn) else { return };
        let busy = b.facts.iter().filter(|f| f.inflight > 0).count();
        let ruled = b.ruled.as_ref().and_then(|r| r.choice.as_ref()?.cap);
        let cap = b.rate_cap.into_iter().chain(ruled).min();
        let share = match (cap, busy) {
            (None, _) => None,
            // Nothing was told yet: all of them may begin.
            (Some(cap), 0) => Some(b.rate_share.unwrap_or(cap.scale(1, b.streams.len().max(1) as u64))),
            (Some(cap), n) => Some(cap.scale(1, n as u64)),
        };
        if b.rate_share == share || !b.told {
            return;
        }
        b.rate_share = share;
        for (stream, _) in b.streams.iter().flatten() {
            self.hub.orders.push_back(StreamOrder::Pace { stream: *stream, rate: share });
        }
    }

    /// Counters of a connection by iWARP: payload by the queue pairs, the rest by TCP, a moment old. Headers are reckoned
    /// with time stamps; what MPA adds counts as sent and not as payload. There is no bound: TCP holds what is on the way itself,
    /// and its window, which may be far beyond what it uses, is no measure for an application's memory.
    pub(crate) fn bundle_stats(&self, conn: ConnId) -> Option<transport::Stats> {
        let b = self.hub.bundles.get(&conn)?;
        let head = headers(b.info.remote.is_ipv6());
        let mut all = transport::Stats { cc: ("tcp", ""), ..Default::default() };
        for s in b.streams.iter().flatten().filter_map(|(_, qp)| self.adapter.stats((*qp)?)) {
            all.payload_sent += s.bytes_out;
            all.payload_received += s.bytes_in;
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
