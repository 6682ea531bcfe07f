//! Computes metrics from the observations of a run, equally for the emulator and the simulator.

use super::outcome::{Curves, FlowResult};
use crate::plan::{Kind, Metric, Topology, trace};
use base::{Span, Time};
use netem::{Change, LinkConfig};
use std::collections::BTreeMap;

/// Most points of a curve, as many as a plot can show.
const MAX_POINTS: usize = 400;
/// Payload of an initial window, minus the possible size of headers.
const INITIAL_WINDOW: f64 = 12_000.0;
/// Round trips without new data that count as a stall.
const MIN_STALL_RTTS: f64 = 0.25;
/// Duration of the first part of a run, for its own metric.
const FIRST_SECONDS: Span = Span::from_secs(4);
/// Most completion times that are kept.
pub const MAX_COMPLETIONS: usize = 2_000;

/// The bottleneck in one interval.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Interval {
    /// Packets that entered.
    pub packets: u64,
    /// Bytes that arrived at its far end.
    pub delivered: u64,
    /// Packets its queue dropped.
    pub dropped: u64,
    /// Bytes that waited at the end of the interval.
    pub queue: u64,
    /// Bytes that waited in front of the way back.
    pub queue_back: u64,
    /// Time in seconds that the next data had waited in the slowest receiver's host at the end of the interval, if
    /// known.
    pub receiver_delay: Option<f64>,
    /// Mean time that delivered packets spent in the network, both ways, in seconds, if known.
    pub delays: Option<f64>,
}

/// The observations of one flow.
#[derive(Clone, Debug, Default)]
pub struct ObservedFlow {
    /// The reports of the programs at both ends.
    pub result: FlowResult,
    /// Payload that arrived in each interval, and after them what arrived later. It only gives the distribution over
    /// time and is scaled to the program's byte count.
    pub shape: Vec<f64>,
    /// Payload as a share of the bytes of full packets.
    pub payload_share: f64,
    /// Whether it has a given size, so that its goodput is that of the whole transfer.
    pub whole: bool,
    /// Whether it consists of requests.
    pub requests: bool,
    /// The node whose port is the bottleneck, where each has its own (a star); else empty.
    pub port: String,
}

/// The observations of a run.
#[derive(Clone, Debug, Default)]
pub struct ObservedRun {
    /// Length of an interval.
    pub step: Span,
    /// The bottleneck from the start of the run on.
    pub intervals: Vec<Interval>,
    /// Bytes per interval that the bottleneck could carry; infinite without a limit.
    pub capacity: Vec<f64>,
    /// Round trip of the idle network.
    pub rtt: Span,
    /// Delay of the bottleneck itself, one way.
    pub delay: Span,
    /// End of the last event of the link.
    pub event_end: Option<Span>,
    /// Start of the last event.
    pub event_start: Option<Span>,
    /// Idle round trip of the path with the last event.
    pub event_rtt: Span,
    /// Start and end of the measured time.
    pub window: (Span, Span),
    /// Random loss of the bottleneck.
    pub loss: f64,
    /// All flows.
    pub flows: Vec<ObservedFlow>,
}

/// The capacity of a link in each of `n` intervals of `step`, in bytes.
pub fn capacity(link: &LinkConfig, lines: Option<&[u64]>, step: Span, n: usize) -> Vec<f64> {
    // The long-run rate of a policer.
    let most = link.police.map_or(f64::INFINITY, |p| p.rate.bytes_per_sec() as f64);
    if let Some(lines) = lines {
        let mut out = trace_capacity(lines, step, n);
        out.iter_mut().for_each(|b| *b = b.min(most * step.as_secs_f64()));
        return out;
    }
    let of = |rate: Option<base::Rate>| rate.map_or(f64::INFINITY, |r| r.bytes_per_sec() as f64).min(most);
    let (mut rate, mut dark) = (of(link.rate), Time::ZERO);
    let mut changes = link.schedule.iter().peekable();
    let mut out = Vec::with_capacity(n);
    // Within an interval each rate counts for its part of the time.
    for i in 0..n as u64 {
        let (mut at, end) = (Time::ZERO + step * i, Time::ZERO + step * (i + 1));
        let mut bytes = 0.0;
        while at < end {
            let next = changes.peek().map_or(end, |(t, _)| (*t).max(at).min(end));
            let lit = next.since(at.max(dark.min(next)));
            bytes += if lit.is_zero() { 0.0 } else { rate * lit.as_secs_f64() };
            at = next;
            while let Some((t, change)) = changes.next_if(|(t, _)| *t <= at && *t < end) {
                match change {
                    Change::Rate(r) => rate = of(*r),
                    Change::BlackOut(length) => dark = dark.max(*t + *length),
                    _ => {}
                }
            }
        }
        out.push(bytes);
    }
    out
}

fn trace_capacity(lines: &[u64], step: Span, n: usize) -> Vec<f64> {
    let mut out = vec![0.0; n];
    let (period, nanos) = (lines.last().copied().unwrap_or(0).max(1), step.as_nanos().max(1));
    let end = nanos.saturating_mul(n as u64) / 1_000_000;
    let mut base = 0;
    while base <= end && !lines.is_empty() {
        for ms in lines {
            let i = ((base + ms) as u128 * 1_000_000 / u128::from(nanos)) as usize;
            if let Some(b) = out.get_mut(i) {
                *b += trace::OPPORTUNITY as f64;
            }
        }
        base += period;
    }
    out
}

/// Start and end of the last event of a link.
pub fn last_event(link: &LinkConfig) -> Option<(Span, Span)> {
    let (at, change) = link.schedule.iter().max_by_key(|(t, _)| *t)?;
    let start = at.since(Time::ZERO);
    Some((start, if let Change::BlackOut(length) = change { start + *length } else { start }))
}

/// Jain's index (Jain, Chiu and Hawe, "A Quantitative Measure of Fairness", 1984): 1 for equal values, `1 / n` if one
/// has all. `None` for fewer than two values, or if all are zero.
pub fn jain(values: &[f64]) -> Option<f64> {
    let (sum, squares) = values.iter().fold((0.0, 0.0), |(s, q), v| (s + v, q + v * v));
    (values.len() > 1 && squares > 0.0).then(|| sum * sum / (values.len() as f64 * squares))
}

/// The value below which a share of the sorted values lies.
pub fn quantile(sorted: &[f64], share: f64) -> Option<f64> {
    let at = ((sorted.len().max(1) - 1) as f64 * share).round() as usize;
    sorted.get(at).copied()
}

/// Sorts completion times and thins them out evenly; returns their original number.
pub fn thin_completions(values: &mut Vec<f64>) -> u64 {
    values.sort_by(f64::total_cmp);
    let n = values.len();
    if n > MAX_COMPLETIONS {
        // The extremes are kept.
        *values = (0..MAX_COMPLETIONS).map(|i| values[i * (n - 1) / (MAX_COMPLETIONS - 1)]).collect();
    }
    n as u64
}

impl ObservedRun {
    /// An empty run over a topology.
    pub fn new(t: &Topology, step: Span, lasts: Span, window: (Span, Span)) -> ObservedRun {
        let n = lasts.as_nanos().div_ceil(step.as_nanos().max(1)) as usize;
        let least = t.rtts.iter().min().copied().unwrap_or(Span::ZERO);
        let on_second = |(forward, reverse): &(LinkConfig, LinkConfig)| {
            last_event(forward).map(|e| (e, forward.delay + reverse.delay))
        };
        let event = last_event(&t.forward).map(|e| (e, least)).or(t.second.as_ref().and_then(on_second));
        let event_rtt = event.map_or(Span::ZERO, |e| e.1);
        let event = event.map(|e| e.0);
        let mut capacity = capacity(&t.forward, t.trace.as_deref().map(Vec::as_slice), step, n);
        if let (Kind::TwoPaths, Some((second, _))) = (t.kind, &t.second) {
            let other = self::capacity(second, None, step, n);
            capacity.iter_mut().zip(other).for_each(|(a, b)| *a += b);
        }
        ObservedRun {
            step,
            intervals: vec![Interval::default(); n],
            capacity,
            rtt: least,
            delay: t.forward.delay,
            event_rtt,
            event_start: event.map(|e| e.0),
            event_end: event.map(|e| e.1),
            window,
            loss: t.forward.loss.mean().get(),
            flows: Vec::new(),
        }
    }

    fn index(&self, at: Span) -> usize {
        ((at.as_nanos() / self.step.as_nanos().max(1)) as usize).min(self.intervals.len())
    }
    fn at(&self, index: usize) -> Span {
        self.step * index as u64
    }
    fn window_bins(&self) -> core::ops::Range<usize> {
        let (a, b) = (self.index(self.window.0), self.index(self.window.1));
        a..b.max(a)
    }

    /// The earliest time from `from` on at which the bottleneck was used to `level` for a whole round trip, by the
    /// time at which packets left its queue.
    pub fn first_time_at_level(&self, from: Span, level: f64) -> Option<Span> {
        let width = (self.rtt.as_nanos().div_ceil(self.step.as_nanos().max(1)) as usize).max(2);
        // Data arriving in an interval left the queue one delay earlier.
        let shift = (self.delay.as_nanos() / self.step.as_nanos().max(1)) as usize;
        let first = self.index(from);
        (first..).take_while(|i| i + shift + width <= self.intervals.len()).find_map(|i| {
            let sent: f64 =
                self.intervals[i + shift..i + shift + width].iter().map(|b| b.delivered as f64).sum();
            let most: f64 = self.capacity[i..i + width].iter().sum();
            (most > 0.0 && sent >= level * most).then(|| self.at(i).max(from))
        })
    }

    /// When data began to flow, by the time at which packets left the queue: the first packet of the first round trip
    /// in which an initial window (10 packets, RFC 6928) of the measured flows arrived. Earlier packets set up
    /// connections, which differs between programs.
    pub fn data_start(&self) -> Option<Span> {
        let measured = || self.flows.iter().filter(|f| !f.result.background);
        let payload = |i: usize| measured().filter_map(|f| f.shape.get(i)).sum::<f64>();
        let width = (self.rtt.as_nanos() / self.step.as_nanos().max(1)).max(1) as usize;
        let n = self.intervals.len();
        let first = (0..n).find(|i| {
            payload(*i) > 0.0 && (*i..n.min(*i + width)).map(payload).sum::<f64>() >= INITIAL_WINDOW
        })?;
        Some(self.at(first) - self.delay)
    }

    /// Round trip in an interval, in seconds.
    fn rtt_in(&self, i: usize) -> f64 {
        let b = &self.intervals[i];
        if let Some(d) = b.delays {
            return d;
        }
        let rate = self.capacity[i] / self.step.as_secs_f64().max(1e-9);
        let wait = |bytes: u64| if rate > 0.0 { bytes as f64 / rate } else { 0.0 };
        self.rtt.as_secs_f64() + wait(b.queue) + wait(b.queue_back)
    }

    /// The bandwidth-delay product in bytes, by the mean capacity.
    pub fn bdp(&self) -> f64 {
        self.mean_capacity() * self.rtt.as_secs_f64()
    }
    /// Mean capacity in the measured time, in bytes per second.
    pub fn mean_capacity(&self) -> f64 {
        let w = self.window_bins();
        let seconds = self.step.as_secs_f64() * w.len() as f64;
        if seconds > 0.0 { self.capacity[w].iter().sum::<f64>() / seconds } else { 0.0 }
    }

    /// Goodput of a flow in the measured time, in bits per second.
    fn goodput(&self, flow: &ObservedFlow) -> f64 {
        let w = self.window_bins();
        let seconds = self.step.as_secs_f64() * w.len() as f64;
        let all: f64 = flow.shape.iter().sum();
        if flow.whole || all <= 0.0 || seconds <= 0.0 {
            return if flow.result.seconds > 0.0 {
                flow.result.bytes as f64 * 8.0 / flow.result.seconds
            } else {
                0.0
            };
        }
        let w = w.start.min(flow.shape.len())..w.end.min(flow.shape.len());
        let part: f64 = flow.shape[w].iter().sum();
        flow.result.bytes as f64 * 8.0 * part / all / seconds
    }

    /// Computes all metrics that this run has.
    pub fn figures(&mut self) -> BTreeMap<Metric, f64> {
        for i in 0..self.flows.len() {
            self.flows[i].result.goodput = self.goodput(&self.flows[i]);
        }
        let mut out = BTreeMap::new();
        self.add_flow_metrics(&mut out);
        self.add_start_metrics(&mut out);
        self.add_queue_metrics(&mut out);
        self.add_event_metrics(&mut out);
        self.add_stall_metrics(&mut out);
        self.add_part_metrics(&mut out);
        out.retain(|_, v| v.is_finite());
        out
    }

    fn add_flow_metrics(&self, out: &mut BTreeMap<Metric, f64>) {
        let measured: Vec<&ObservedFlow> = self.flows.iter().filter(|f| !f.result.background).collect();
        let each: Vec<f64> = measured.iter().map(|f| f.result.goodput).collect();
        let (sum, all): (f64, f64) =
            (each.iter().sum(), self.flows.iter().map(|f| f.result.goodput).sum::<f64>());
        out.insert(Metric::Goodput, sum);
        let shares: f64 = measured.iter().map(|f| f.payload_share).sum();
        let limit = self.mean_capacity() * 8.0 * (1.0 - self.loss) * shares / measured.len().max(1) as f64;
        if limit > 0.0 {
            out.insert(Metric::Share, sum / limit);
        }
        if FIRST_SECONDS <= self.at(self.intervals.len()) {
            let early = |f: &&ObservedFlow| {
                let all: f64 = f.shape.iter().sum();
                let part: f64 = f.shape[..self.index(FIRST_SECONDS).min(f.shape.len())].iter().sum();
                if all > 0.0 { f.result.bytes as f64 * part / all } else { 0.0 }
            };
            out.insert(Metric::FirstBytes, measured.iter().map(early).sum());
        }
        if let Some(j) = jain(&each) {
            out.insert(Metric::Jain, j);
            let least = each.iter().copied().fold(f64::INFINITY, f64::min);
            out.insert(Metric::MinShare, least / sum);
        }
        if let Some(first) = measured.first().filter(|_| self.flows.len() > 1 && all > 0.0) {
            out.insert(Metric::FirstFlowShare, first.result.goodput / all);
        }
        let weighed = |of: fn(&FlowResult) -> Option<f64>| {
            let known = measured.iter().filter_map(|f| of(&f.result).map(|v| (v, f.result.bytes as f64)));
            let (v, w) = known.fold((0.0, 0.0), |(v, w), (x, b)| (v + x * b, w + b));
            (w > 0.0).then(|| v / w)
        };
        let cpu = |f: &FlowResult| f.cpu.map(|[a, b]| (a + b) / (f.bytes.max(1) as f64 / 1e9));
        for (m, v) in [
            (Metric::Retransmitted, weighed(|f| f.retransmitted)),
            (Metric::Spurious, weighed(|f| f.spurious)),
            (Metric::Cpu, weighed(cpu)),
        ] {
            out.extend(v.map(|v| (m, v)));
        }
        let mut times: Vec<f64> = measured.iter().flat_map(|f| f.result.completions.clone()).collect();
        times.sort_by(f64::total_cmp);
        for (m, share) in
            [(Metric::Completion, 0.5), (Metric::CompletionP95, 0.95), (Metric::CompletionP99, 0.99)]
        {
            out.extend(quantile(&times, share).map(|v| (m, v)));
        }
        if !times.is_empty() {
            out.insert(Metric::CompletionMean, times.iter().sum::<f64>() / times.len() as f64);
        }
        self.add_bulk_metrics(&measured, out);
    }

    /// Adds the metrics of bulk flows next to requests, for each bottleneck separately.
    fn add_bulk_metrics(&self, measured: &[&ObservedFlow], out: &mut BTreeMap<Metric, f64>) {
        let bulk: Vec<&&ObservedFlow> = measured.iter().filter(|f| !f.requests).collect();
        if bulk.is_empty() || bulk.len() == measured.len() {
            return;
        }
        let got: f64 = bulk.iter().map(|f| f.result.goodput).sum();
        out.insert(Metric::Bulk, got / bulk.len() as f64);
        let ports: std::collections::BTreeSet<&str> = bulk.iter().map(|f| f.port.as_str()).collect();
        let payload = bulk.iter().map(|f| f.payload_share).sum::<f64>() / bulk.len() as f64;
        let requests = measured.iter().filter(|f| f.requests && ports.contains(f.port.as_str()));
        let carries = self.mean_capacity() * 8.0 * (1.0 - self.loss) * payload * ports.len() as f64;
        let left = carries - requests.map(|f| f.result.goodput).sum::<f64>();
        if left > 0.0 {
            out.insert(Metric::BulkShare, got / left);
        }
    }

    fn add_start_metrics(&self, out: &mut BTreeMap<Metric, f64>) {
        let Some(first) = self.data_start() else { return };
        for (m, level) in [(Metric::TimeTo50, 0.5), (Metric::TimeTo90, 0.9), (Metric::TimeTo95, 0.95)] {
            out.extend(self.first_time_at_level(first, level).map(|t| (m, (t - first).as_secs_f64())));
        }
        let w = self.index(first)..self.index(first + Span::from_secs(1));
        out.extend(self.dropped(w).map(|v| (Metric::StartLoss, v)));
    }

    fn dropped(&self, w: core::ops::Range<usize>) -> Option<f64> {
        let (dropped, packets) =
            self.intervals[w].iter().fold((0, 0), |(d, p), b| (d + b.dropped, p + b.packets));
        (packets > 0).then(|| dropped as f64 / packets as f64)
    }

    fn add_queue_metrics(&self, out: &mut BTreeMap<Metric, f64>) {
        let w = self.window_bins();
        out.extend(self.dropped(w.clone()).map(|v| (Metric::QueueLoss, v)));
        let mut queue: Vec<f64> = self.intervals[w.clone()].iter().map(|b| b.queue as f64).collect();
        queue.sort_by(f64::total_cmp);
        if let Some(q) = quantile(&queue, 0.5).filter(|_| self.bdp() > 0.0) {
            out.insert(Metric::Queue, q / self.bdp());
        }
        let mut rtt: Vec<f64> =
            w.clone().filter(|i| self.intervals[*i].delivered > 0).map(|i| self.rtt_in(i)).collect();
        rtt.sort_by(f64::total_cmp);
        for (m, share) in [(Metric::Rtt, 0.5), (Metric::RttP95, 0.95)] {
            out.extend(quantile(&rtt, share).map(|v| (m, v)));
        }
        let mut host: Vec<f64> = self.intervals[w.clone()].iter().filter_map(|b| b.receiver_delay).collect();
        host.sort_by(f64::total_cmp);
        out.extend(quantile(&host, 0.5).map(|v| (Metric::ReceiverDelay, v)));
        let (sent, most) =
            w.fold((0.0, 0.0), |(s, c), i| (s + self.intervals[i].delivered as f64, c + self.capacity[i]));
        if most > 0.0 {
            out.insert(Metric::Utilisation, sent / most);
        }
    }

    fn add_event_metrics(&self, out: &mut BTreeMap<Metric, f64>) {
        let (Some(start), Some(end)) = (self.event_start, self.event_end) else { return };
        out.extend(self.first_time_at_level(end, 0.95).map(|t| (Metric::Recovery, (t - end).as_secs_f64())));
        let second = Span::from_secs(1);
        let per = self.index(second).max(1);
        let (from, to) = (self.index(start), self.index(self.window.1));
        let before: u64 =
            self.intervals[from.saturating_sub(2 * per)..from].iter().map(|b| b.delivered).sum();
        let before = before as f64 / from.min(2 * per).max(1) as f64;
        let sum = |i: usize| self.intervals[i..i + per].iter().map(|b| b.delivered).sum::<u64>() as f64;
        let least = (from..(to + 1).saturating_sub(per)).map(sum).fold(f64::INFINITY, f64::min);
        if before > 0.0 {
            out.insert(Metric::Dip, least / per as f64 / before);
        }
    }

    /// Adds the metrics of receivers' reactions to the last event, by data new to them. Data in flight when a path
    /// was cut still arrives, so the search for the remaining paths' full rate begins a one-way delay later, or after
    /// the stall.
    fn add_stall_metrics(&self, out: &mut BTreeMap<Metric, f64>) {
        let (Some(start), true) = (self.event_start, !self.event_rtt.is_zero()) else { return };
        let measured: Vec<&ObservedFlow> = self.flows.iter().filter(|f| !f.result.background).collect();
        let trips = |bins: usize| (self.step * bins as u64).as_secs_f64() / self.event_rtt.as_secs_f64();
        let (from, to) = (self.index(start), self.index(self.window.1));
        // Length, and where it ended.
        let mut longest: Option<(usize, usize)> = None;
        let mut arrived = vec![0.0; to];
        for f in &measured {
            let all: f64 = f.shape.iter().sum();
            let scale = if all > 0.0 { f.result.bytes as f64 / all } else { 0.0 };
            arrived.iter_mut().zip(&f.shape).for_each(|(a, b)| *a += b * scale);
            let new = |i: usize| f.shape.get(i).is_some_and(|b| *b > 0.0);
            let mut run = 0;
            for i in from..to {
                run = if new(i) { 0 } else { run + 1 };
                if longest.is_none_or(|(n, _)| run > n) {
                    longest = Some((run, i + 1));
                }
            }
        }
        out.extend(longest.map(|(n, _)| (Metric::Stall, trips(n))));
        let shares: f64 = measured.iter().map(|f| f.payload_share).sum();
        let share = shares / measured.len().max(1) as f64 * (1.0 - self.loss);
        let width = self.index(self.event_rtt).max(1);
        let stall = longest.filter(|(n, _)| trips(*n) >= MIN_STALL_RTTS);
        let first = stall.map_or(self.index(start + self.event_rtt / 2), |(_, end)| end);
        let full = (first..(to + 1).saturating_sub(width)).find(|i| {
            let (got, most) = (&arrived[*i..*i + width], &self.capacity[*i..*i + width]);
            let (got, most) = (got.iter().sum::<f64>(), most.iter().sum::<f64>() * share);
            most > 0.0 && got >= 0.9 * most
        });
        out.extend(full.map(|i| (Metric::Failover, trips(i - from))));
    }

    /// Adds the metrics of promises to the parts of senders.
    fn add_part_metrics(&self, out: &mut BTreeMap<Metric, f64>) {
        let parts = || self.flows.iter().filter(|f| !f.result.background).flat_map(|f| &f.result.parts);
        out.extend(parts().filter_map(|p| p.share()).reduce(f64::min).map(|v| (Metric::PromiseMet, v)));
        let due: Vec<bool> = parts().filter_map(|p| p.kept()).collect();
        if !due.is_empty() {
            let kept = due.iter().filter(|k| **k).count();
            out.insert(Metric::DeadlinesMet, kept as f64 / due.len() as f64);
        }
    }

    /// Downsampled curves for plots.
    pub fn curves(&self) -> Curves {
        let group = self.intervals.len().div_ceil(MAX_POINTS).max(1);
        let seconds = self.step.as_secs_f64() * group as f64;
        let groups =
            || (0..self.intervals.len()).step_by(group).map(|i| i..(i + group).min(self.intervals.len()));
        let mean = |of: &dyn Fn(usize) -> f64| -> Vec<f32> {
            groups().map(|g| (g.clone().map(of).sum::<f64>() / g.len() as f64) as f32).collect()
        };
        let per_second = 8.0 / self.step.as_secs_f64().max(1e-9);
        let flows = self.flows.iter().map(|f| {
            let all: f64 = f.shape.iter().sum();
            let scale = if all > 0.0 { f.result.bytes as f64 / all * per_second } else { 0.0 };
            let of = |i: usize| f.shape.get(i).copied().unwrap_or(0.0) * scale;
            (f.result.name.clone(), mean(&of))
        });
        Curves {
            step: seconds,
            throughput: mean(&|i| self.intervals[i].delivered as f64 * per_second),
            rtt: mean(&|i| self.rtt_in(i)),
            queue: mean(&|i| self.intervals[i].queue as f64),
            flows: flows.collect(),
        }
    }
}

#[cfg(test)]
mod tests;
