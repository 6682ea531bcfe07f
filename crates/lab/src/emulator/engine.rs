//! The path of packets: from a device through the network to another device.

use std::cell::Cell;
use std::collections::HashMap;
use std::io::{self, IoSlice};
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;

use base::telemetry::{Hop, MAX_HOPS};
use base::{Ecn, Rng, Time};
use lhio::clock::Clock;
use netem::{Arrival, DropReason, Entered, Network, Packet, Payload, PortId, flip_bits};

use super::flows::{EntryCounts, Flows};
use super::lateness::LatenessMeter;
use super::packet::{FlowKey, Offload, SuperPacket};
use super::record::FlowInfo;
use crate::tun::{HEADER_LEN, MAX_READ, Tun};

/// Most bytes of packets in memory: 5 Gbit/s for three seconds, in the queue and on the wire.
pub const MAX_MEMORY: u64 = 2 << 30;

/// Reads from one device before other devices and due packets get their turn.
const READS_PER_TURN: usize = 32;

/// Packets delivered before devices are read again.
const DELIVERIES_PER_TURN: usize = 4096;

/// Counters since the start, in packets unless they say otherwise.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counters {
    pub(super) read: u64,
    pub(super) written: u64,
    pub(super) unroutable: u64,
    pub(super) over_limit: u64,
    pub(super) refused: u64,
    /// System calls.
    pub(super) reads: u64,
    /// System calls.
    pub(super) writes: u64,
}

/// A device and its port of the network.
#[derive(Debug)]
pub(super) struct Device {
    pub(super) tun: Tun,
    pub(super) port: PortId,
    /// Its node's name.
    pub(super) node: String,
    pub(super) addresses: [IpAddr; 2],
}

/// A super-packet in the network, kept while any of its segments is in flight.
#[derive(Debug)]
struct HeldPacket {
    packet: SuperPacket,
    ecn: Ecn,
    flow: Option<u32>,
    lost: Rc<Cell<u64>>,
    entered: Time,
    memory: Rc<Cell<u64>>,
}

impl Drop for HeldPacket {
    fn drop(&mut self) {
        self.memory.set(self.memory.get() - self.packet.memory() as u64);
    }
}

/// One packet in the network. A segment that is dropped without delivery counts as lost.
#[derive(Debug)]
struct Segment {
    held: Rc<HeldPacket>,
    index: u16,
    arrived: bool,
    /// The seed of its bit errors, if it was corrupted.
    damage: Option<u32>,
    /// The telemetry of its hops, in order.
    hops: Vec<Hop>,
}

impl Clone for Segment {
    fn clone(&self) -> Segment {
        Segment { held: Rc::clone(&self.held), hops: self.hops.clone(), ..*self }
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        if !self.arrived {
            self.held.lost.set(self.held.lost.get() + 1);
        }
    }
}

impl Payload for Segment {
    fn corrupt(&mut self, rng: &mut Rng) {
        self.damage = Some(rng.u32());
    }

    fn stamp(&mut self, hop: &Hop) {
        // The bytes are shared by all segments of the super-packet, so telemetry is written on delivery. One hop more
        // than fits is kept, to show that there was no room.
        if self.hops.len() <= MAX_HOPS && self.held.packet.carries_telemetry(self.index.into()) {
            self.hops.push(*hop);
        }
    }
}

/// Consecutive segments of one super-packet that are delivered together.
#[derive(Debug)]
struct SegmentRun {
    held: Rc<HeldPacket>,
    first: usize,
    count: usize,
    ecn: Ecn,
    damage: Option<u32>,
    hops: Vec<Hop>,
}

impl SegmentRun {
    /// Whether its bytes were changed in the network; it is then delivered alone and with a complete checksum.
    fn was_modified(&self) -> bool {
        self.damage.is_some() || !self.hops.is_empty()
    }
}

/// The network between the devices.
pub(super) struct Engine {
    clock: Clock,
    start: Time,
    pub(super) devices: Vec<Device>,
    by_address: HashMap<IpAddr, usize>,
    network: Network<Segment>,
    pub(super) flows: Flows,
    /// New flows since the list was last taken.
    pub(super) new_flows: Vec<FlowInfo>,
    pub(super) meter: LatenessMeter,
    pub(super) counters: Counters,
    memory: Rc<Cell<u64>>,
    /// Loss counter for packets of flows that are not counted.
    uncounted_lost: Rc<Cell<u64>>,
    /// For each device, the segments waiting to be written, and when they were due.
    runs: Vec<(Option<SegmentRun>, Vec<Time>)>,
    buffer: Box<[u8]>,
}

impl Engine {
    /// Connects these devices by a network whose time starts now.
    pub(super) fn new(devices: Vec<Device>, network: Segments) -> Result<Engine, String> {
        let by_address =
            devices.iter().enumerate().flat_map(|(n, d)| d.addresses.map(|address| (address, n))).collect();
        let clock = Clock::new();
        Ok(Engine {
            start: clock.now(),
            clock,
            by_address,
            network: network.0,
            flows: Flows::default(),
            new_flows: Vec::new(),
            meter: LatenessMeter::new()?,
            counters: Counters::default(),
            memory: Rc::default(),
            uncounted_lost: Rc::default(),
            runs: devices.iter().map(|_| (None, Vec::new())).collect(),
            buffer: vec![0; MAX_READ].into(),
            devices,
        })
    }

    /// The time since the start.
    pub(super) fn now(&self) -> Time {
        Time::ZERO + self.clock.now().since(self.start)
    }

    /// The links.
    pub(super) fn network(&mut self) -> Links<'_> {
        Links(&mut self.network)
    }

    /// The descriptors to wait for, in the order of the devices.
    pub(super) fn descriptors(&self) -> impl ExactSizeIterator<Item = BorrowedFd<'_>> {
        self.devices.iter().map(|device| device.tun.as_fd())
    }

    /// The earliest time at which something is to be delivered.
    pub(super) fn next_event(&self) -> Option<Time> {
        self.network.next_event()
    }

    /// Reads the packets of a device, up to the limit of one turn.
    ///
    /// # Errors
    /// When the device is gone.
    pub(super) fn read(&mut self, device: usize) -> io::Result<()> {
        for _ in 0..READS_PER_TURN {
            let Some(length) = self.devices[device].tun.read(&mut self.buffer)? else { break };
            self.counters.reads += 1;
            let now = self.now();
            let Some((header, packet)) = self.buffer[..length].split_first_chunk::<HEADER_LEN>() else {
                continue;
            };
            match SuperPacket::parse(Offload::parse(header), packet) {
                Ok(packet) => self.enter(now, device, packet),
                Err(_) => {
                    self.counters.read += 1;
                    self.counters.unroutable += 1;
                }
            }
        }
        Ok(())
    }

    fn enter(&mut self, now: Time, device: usize, packet: SuperPacket) {
        let segments = packet.segments();
        self.counters.read += segments as u64;
        let Some(&to) = self.by_address.get(&packet.key().destination.ip()) else {
            self.counters.unroutable += segments as u64;
            return;
        };
        let memory = self.memory.get() + packet.memory() as u64;
        if memory > MAX_MEMORY {
            self.counters.over_limit += segments as u64;
            return;
        }
        self.memory.set(memory);
        let found = self.find_flow(now, device, to, packet.key());
        let (flow, lost) =
            found.map_or((None, Rc::clone(&self.uncounted_lost)), |(flow, lost)| (Some(flow), lost));
        let (ecn, memory) = (packet.ecn(), Rc::clone(&self.memory));
        let held = Rc::new(HeldPacket { packet, ecn, flow, lost, entered: now, memory });
        let (from, to) = (self.devices[device].port, self.devices[to].port);
        let mut entrance = EntryCounts { packets: segments as u64, ..EntryCounts::default() };
        for index in 0..segments {
            let bytes = held.packet.packet_length(index) as u64;
            entrance.bytes += bytes;
            let segment = Segment {
                held: Rc::clone(&held),
                index: index as u16,
                arrived: false,
                damage: None,
                hops: Vec::new(),
            };
            match self.network.enter(now, from, to, Packet { bytes, ecn, payload: segment }) {
                Entered::Dropped(DropReason::QueueFull) => entrance.dropped_queue += 1,
                Entered::Dropped(DropReason::Loss) => entrance.dropped_loss += 1,
                Entered::NoRoute => self.counters.unroutable += 1,
                Entered::OnItsWay | Entered::Dropped(_) | Entered::Lost => {}
            }
        }
        if let Some(flow) = flow {
            self.flows.entered(flow, &entrance);
        }
    }

    fn find_flow(
        &mut self,
        now: Time,
        from: usize,
        to: usize,
        key: &FlowKey,
    ) -> Option<(u32, Rc<Cell<u64>>)> {
        let (flow, lost, new) = self.flows.find(key)?;
        if new {
            self.new_flows.push(FlowInfo {
                flow,
                at_ns: now.as_nanos(),
                protocol: key.protocol,
                source: key.source.to_string(),
                destination: key.destination.to_string(),
                from: self.devices[from].node.clone(),
                to: self.devices[to].node.clone(),
            });
        }
        Some((flow, lost))
    }

    /// Delivers packets that have arrived by now, up to the limit of one turn.
    pub(super) fn deliver(&mut self) {
        let now = self.now();
        for _ in 0..DELIVERIES_PER_TURN {
            let Some(arrival) = self.network.poll(now) else { break };
            self.add_to_run(arrival);
        }
        for device in 0..self.devices.len() {
            self.write_run(device);
        }
    }

    /// Appends a segment to the run that it continues, or starts another.
    fn add_to_run(&mut self, arrival: Arrival<Segment>) {
        let Arrival { time, to, bytes, ecn, payload: mut segment } = arrival;
        segment.arrived = true;
        let (held, index) = (&segment.held, usize::from(segment.index));
        if let Some(flow) = held.flow {
            let payload = held.packet.payload_length(index) as u64;
            let marked = ecn == Ecn::Ce && held.ecn != Ecn::Ce;
            self.flows.delivered(flow, bytes, payload, marked, held.entered, time);
        }
        let device = to.index();
        if let (Some(run), due) = &mut self.runs[device] {
            let continues = Rc::ptr_eq(&run.held, held) && run.first + run.count == index && run.ecn == ecn;
            let changed = run.was_modified() || segment.damage.is_some() || !segment.hops.is_empty();
            if continues && !changed {
                run.count += 1;
                due.push(time);
                return;
            }
            self.write_run(device);
        }
        let (damage, hops) = (segment.damage, core::mem::take(&mut segment.hops));
        let run = SegmentRun { held: Rc::clone(&segment.held), first: index, count: 1, ecn, damage, hops };
        self.runs[device].0 = Some(run);
        self.runs[device].1.push(time);
    }

    /// Writes the waiting run of a device.
    fn write_run(&mut self, device: usize) {
        let Some(run) = self.runs[device].0.take() else { return };
        let now = self.now();
        for due in self.runs[device].1.drain(..) {
            self.meter.record_delivery(due, now);
        }
        let tun = &self.devices[device].tun;
        let written = match run.was_modified() {
            true => write_modified(tun, &run),
            false => match run.held.packet.run(run.first, run.count, run.ecn) {
                Some((headers, payload)) => {
                    tun.write(&[IoSlice::new(headers.as_bytes()), IoSlice::new(payload)])
                }
                None => Err(io::ErrorKind::InvalidInput.into()),
            },
        };
        self.counters.writes += 1;
        match written {
            Ok(()) => self.counters.written += run.count as u64,
            Err(_) => self.counters.refused += run.count as u64,
        }
    }
}

/// Writes a modified packet with a complete checksum, which is valid for telemetry and detects corruption.
fn write_modified(tun: &Tun, run: &SegmentRun) -> io::Result<()> {
    let packet = run.held.packet.stamped(run.first, run.ecn, &run.hops);
    let mut packet = packet.ok_or(io::ErrorKind::InvalidInput)?;
    if let Some(seed) = run.damage {
        flip_bits(&mut packet, &mut Rng::from_u64(seed.into()));
    }
    tun.write(&[IoSlice::new(&Offload::default().emit()), IoSlice::new(&packet)])
}

/// A network under construction.
pub(super) struct Segments(Network<Segment>);

impl Segments {
    /// Ports, links and routes: for each route the number of its first and last port, and of its links.
    pub(super) fn build(
        ports: usize,
        links: &[netem::LinkConfig],
        routes: &[(usize, usize, Vec<usize>)],
        seed: u64,
    ) -> Result<(Segments, Vec<PortId>, Vec<netem::LinkId>), netem::NetworkError> {
        let mut network = Network::empty(Rng::from_u64(seed));
        let ports = (0..ports).map(|_| network.add_port()).collect::<Result<Vec<_>, _>>()?;
        let links =
            links.iter().map(|config| network.add_link(config.clone())).collect::<Result<Vec<_>, _>>()?;
        for (from, to, way) in routes {
            let way: Vec<_> = way.iter().map(|link| links[*link]).collect();
            network.set_route(ports[*from], ports[*to], &way)?;
        }
        Ok((Segments(network), ports, links))
    }
}

/// The links of an engine's network.
pub(super) struct Links<'a>(&'a mut Network<Segment>);

impl Links<'_> {
    /// Counters of a link.
    pub(super) fn stats(&self, link: netem::LinkId) -> netem::Stats {
        self.0.stats(link).unwrap_or_default()
    }

    /// The present configuration of a link, with the rest of its schedule.
    pub(super) fn config(&self, link: netem::LinkId) -> Option<&netem::LinkConfig> {
        self.0.config(link)
    }

    /// Replaces the configuration of a link.
    pub(super) fn set(&mut self, now: Time, link: netem::LinkId, config: netem::LinkConfig) {
        self.0.set_config(now, link, config);
    }
}
