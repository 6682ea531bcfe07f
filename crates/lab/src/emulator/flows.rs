//! Flows and what was seen of them.

use std::cell::Cell;
use std::collections::HashMap;
use std::rc::Rc;

use base::{Span, Time};

use super::packet::FlowKey;
use super::record::FlowSample;

/// Most flows that are counted one by one; packets of further ones are carried and counted with their links only.
pub const MAX_FLOWS: usize = 1 << 16;

/// The flows of a run.
#[derive(Debug, Default)]
pub(super) struct Flows {
    numbers: HashMap<FlowKey, u32>,
    flows: Vec<Flow>,
    /// Those of which anything was seen in this interval.
    touched: Vec<u32>,
}

#[derive(Debug, Default)]
struct Flow {
    touched: bool,
    now: FlowSample,
    total: FlowSample,
    delay: Delay,
    total_delay: Delay,
    /// Segments that were dropped anywhere, counted when they cease to exist.
    lost: Rc<Cell<u64>>,
    /// What `lost` was at the end of the last interval.
    told: u64,
}

/// Times spent in the network.
#[derive(Clone, Copy, Debug, Default)]
struct Delay {
    count: u64,
    sum: u128,
}

/// What a device handed over: a super-packet's share in the counters.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Entrance {
    pub(super) packets: u64,
    pub(super) bytes: u64,
    pub(super) dropped_queue: u64,
    pub(super) dropped_loss: u64,
}

impl Flows {
    /// The number of a flow and its count of lost packets; the flag says that it is new. `None` for one too many.
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

    pub(super) fn entered(&mut self, number: u32, what: &Entrance) {
        let Some(flow) = self.touch(number) else { return };
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
        let Some(flow) = self.touch(number) else { return };
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

    fn touch(&mut self, number: u32) -> Option<&mut Flow> {
        let flow = self.flows.get_mut(number as usize)?;
        if !flow.touched {
            flow.touched = true;
            self.touched.push(number);
        }
        Some(flow)
    }

    /// Ends an interval: what was seen of each flow in it, by number.
    pub(super) fn take(&mut self) -> Vec<FlowSample> {
        let mut touched = std::mem::take(&mut self.touched);
        touched.sort_unstable();
        touched.iter().filter_map(|number| self.flows.get_mut(*number as usize).map(Flow::take)).collect()
    }

    /// All flows from the start. Ends the interval.
    pub(super) fn totals(&mut self) -> Vec<FlowSample> {
        self.touched.clear();
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
        // The reason is known for what the first link dropped on entrance.
        self.now.dropped_other =
            (lost - self.told).saturating_sub(self.now.dropped_queue + self.now.dropped_loss);
        self.told = lost;
        self.now.delay_mean_ns = self.delay.mean();
        let taken = std::mem::take(&mut self.now);
        self.now.flow = taken.flow;
        self.add_to_total(&taken);
        self.delay = Delay::default();
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

impl Delay {
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
        flows.entered(number, &Entrance { packets: 5, bytes: 50, dropped_queue: 1, dropped_loss: 1 });
        lost.set(2);
        flows.delivered(number, 10, 4, true, Time::from_nanos(100), Time::from_nanos(130));
        flows.delivered(number, 10, 4, false, Time::from_nanos(100), Time::from_nanos(110));
        let first = flows.take();
        assert_eq!(first.len(), 1);
        assert_eq!((first[0].delay_min_ns, first[0].delay_mean_ns, first[0].delay_max_ns), (10, 20, 30));
        assert_eq!((first[0].dropped_queue, first[0].dropped_loss, first[0].dropped_other), (1, 1, 0));
        assert!(flows.take().is_empty());
        // One was dropped farther on.
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
    fn there_is_an_end_to_flows() {
        let mut flows = Flows::default();
        for port in 0..=u16::MAX {
            assert!(flows.find(&key(port)).is_some());
        }
        let other = FlowKey { protocol: 17, ..key(0) };
        assert!(flows.find(&other).is_none() && flows.find(&key(7)).is_some());
    }
}
