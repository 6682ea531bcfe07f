//! Flows and their counters.

use std::cell::Cell;
use std::collections::HashMap;
use std::rc::Rc;

use base::{Span, Time};

use super::packet::FlowKey;
use super::record::FlowSample;

/// Most flows that are counted individually; packets of further ones are carried and counted with their links only.
pub const MAX_FLOWS: usize = 1 << 16;

/// The flows of a run.
#[derive(Debug, Default)]
pub(super) struct Flows {
    numbers: HashMap<FlowKey, u32>,
    flows: Vec<Flow>,
    /// Flows with activity in this interval.
    active: Vec<u32>,
}

#[derive(Debug, Default)]
struct Flow {
    touched: bool,
    now: FlowSample,
    total: FlowSample,
    delay: DelaySum,
    total_delay: DelaySum,
    /// Segments dropped anywhere in the network.
    lost: Rc<Cell<u64>>,
    /// The value of `lost` at the end of the last interval.
    reported_lost: u64,
}

/// Sum of times spent in the network.
#[derive(Clone, Copy, Debug, Default)]
struct DelaySum {
    count: u64,
    sum: u128,
}

/// Counters of one super-packet on entering the network.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct EntryCounts {
    pub(super) packets: u64,
    pub(super) bytes: u64,
    pub(super) dropped_queue: u64,
    pub(super) dropped_loss: u64,
}

impl Flows {
    /// The number of a flow, its loss counter, and whether the flow is new. `None` beyond the limit.
    pub(super) fn find(&mut self, key: &FlowKey) -> Option<(u32, Rc<Cell<u64>>, bool)> {
        if let Some(&number) = self.numbers.get(key) {
            return Some((number, Rc::clone(&self.flows[number as usize].lost), false));
        }
        if self.flows.len() == MAX_FLOWS {
            return None;
        }
        let number = self.flows.len() as u32;
        self.numbers.insert(*key, number);
        let mut flow = Flow::default();
        (flow.now.flow, flow.total.flow) = (number, number);
        let lost = Rc::clone(&flow.lost);
        self.flows.push(flow);
        Some((number, lost, true))
    }

    pub(super) fn entered(&mut self, number: u32, what: &EntryCounts) {
        let Some(flow) = self.activate(number) else { return };
        flow.now.in_packets += what.packets;
        flow.now.in_bytes += what.bytes;
        flow.now.dropped_queue += what.dropped_queue;
        flow.now.dropped_loss += what.dropped_loss;
    }

    pub(super) fn delivered(
        &mut self,
        number: u32,
        bytes: u64,
        payload: u64,
        marked: bool,
        entered: Time,
        at: Time,
    ) {
        let Some(flow) = self.activate(number) else { return };
        flow.now.delivered_packets += 1;
        flow.now.delivered_bytes += bytes;
        flow.now.delivered_payload += payload;
        flow.now.marked += u64::from(marked);
        let delay = at.since(entered).as_nanos();
        let first = flow.delay.count == 0;
        flow.now.delay_min_ns = if first { delay } else { flow.now.delay_min_ns.min(delay) };
        flow.now.delay_max_ns = flow.now.delay_max_ns.max(delay);
        flow.delay.add(Span::from_nanos(delay));
    }

    fn activate(&mut self, number: u32) -> Option<&mut Flow> {
        let flow = self.flows.get_mut(number as usize)?;
        if !flow.touched {
            flow.touched = true;
            self.active.push(number);
        }
        Some(flow)
    }

    /// Ends an interval and returns its samples of active flows, by number.
    pub(super) fn take(&mut self) -> Vec<FlowSample> {
        let mut touched = std::mem::take(&mut self.active);
        touched.sort_unstable();
        touched.iter().filter_map(|number| self.flows.get_mut(*number as usize).map(Flow::take)).collect()
    }

    /// Ends the interval and returns the totals of all flows.
    pub(super) fn totals(&mut self) -> Vec<FlowSample> {
        self.active.clear();
        let end = |flow: &mut Flow| {
            let _ = flow.take();
            flow.total
        };
        self.flows.iter_mut().map(end).collect()
    }
}

impl Flow {
    fn take(&mut self) -> FlowSample {
        self.touched = false;
        let lost = self.lost.get();
        // The reason is known only for drops at the entrance of the first link.
        self.now.dropped_other =
            (lost - self.reported_lost).saturating_sub(self.now.dropped_queue + self.now.dropped_loss);
        self.reported_lost = lost;
        self.now.delay_mean_ns = self.delay.mean();
        let taken = std::mem::take(&mut self.now);
        self.now.flow = taken.flow;
        self.add_to_total(&taken);
        self.delay = DelaySum::default();
        taken
    }

    fn add_to_total(&mut self, taken: &FlowSample) {
        let total = &mut self.total;
        total.in_packets += taken.in_packets;
        total.in_bytes += taken.in_bytes;
        total.delivered_packets += taken.delivered_packets;
        total.delivered_bytes += taken.delivered_bytes;
        total.delivered_payload += taken.delivered_payload;
        total.dropped_queue += taken.dropped_queue;
        total.dropped_loss += taken.dropped_loss;
        total.dropped_other += taken.dropped_other;
        total.marked += taken.marked;
        if self.delay.count > 0 {
            let first = self.total_delay.count == 0;
            total.delay_min_ns =
                if first { taken.delay_min_ns } else { total.delay_min_ns.min(taken.delay_min_ns) };
            total.delay_max_ns = total.delay_max_ns.max(taken.delay_max_ns);
            self.total_delay.count += self.delay.count;
            self.total_delay.sum += self.delay.sum;
            total.delay_mean_ns = self.total_delay.mean();
        }
    }
}

impl DelaySum {
    fn add(&mut self, delay: Span) {
        self.count += 1;
        self.sum += u128::from(delay.as_nanos());
    }

    fn mean(&self) -> u64 {
        u64::try_from(self.sum.checked_div(u128::from(self.count)).unwrap_or(0)).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::SocketAddr;

    fn key(port: u16) -> FlowKey {
        FlowKey {
            protocol: 6,
            source: SocketAddr::from(([10, 0, 0, 1], port)),
            destination: SocketAddr::from(([10, 0, 0, 2], 80)),
        }
    }

    #[test]
    fn intervals_add_up_to_the_total() {
        let mut flows = Flows::default();
        let (number, lost, new) = flows.find(&key(1)).unwrap();
        assert!(new && !flows.find(&key(1)).unwrap().2);
        flows.entered(number, &EntryCounts { packets: 5, bytes: 50, dropped_queue: 1, dropped_loss: 1 });
        lost.set(2);
        flows.delivered(number, 10, 4, true, Time::from_nanos(100), Time::from_nanos(130));
        flows.delivered(number, 10, 4, false, Time::from_nanos(100), Time::from_nanos(110));
        let first = flows.take();
        assert_eq!(first.len(), 1);
        assert_eq!((first[0].delay_min_ns, first[0].delay_mean_ns, first[0].delay_max_ns), (10, 20, 30));
        assert_eq!((first[0].dropped_queue, first[0].dropped_loss, first[0].dropped_other), (1, 1, 0));
        assert!(flows.take().is_empty());
        // One was dropped by a later link.
        lost.set(3);
        flows.delivered(number, 10, 4, false, Time::from_nanos(100), Time::from_nanos(150));
        assert_eq!(flows.take()[0].dropped_other, 1);
        let total = flows.totals()[0];
        assert_eq!(
            (total.in_packets, total.delivered_packets, total.delivered_payload, total.marked),
            (5, 3, 12, 1)
        );
        assert_eq!((total.delay_min_ns, total.delay_mean_ns, total.delay_max_ns), (10, 30, 50));
    }

    #[test]
    fn number_of_flows_is_limited() {
        let mut flows = Flows::default();
        for port in 0..=u16::MAX {
            assert!(flows.find(&key(port)).is_some());
        }
        let other = FlowKey { protocol: 17, ..key(0) };
        assert!(flows.find(&other).is_none() && flows.find(&key(7)).is_some());
    }
}
