//! The emulator's event loop, which waits for packets, for their delivery times, and for requests of the owner.

use std::io;
use std::os::fd::AsFd;

use base::{Span, Time};
use lhio::clock::CpuTime;
use netem::{Change, LinkConfig, LinkId, Stats};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;

use super::control::{Answer, Incoming, Input, Request};
use super::engine::Engine;
use super::record::{LinkSample, Mark, Record, Sample, Summary};
use super::recorder::Recorder;
use super::trace::Trace;

/// Packets due within this time are delivered together, so that the receiver gets runs of segments as from a network
/// card. With the usual 30 us of timer lateness that is 7 packets of 1500 bytes at 1 Gbit/s.
const BATCH_SPAN: Span = Span::from_micros(50);

/// While packets are frequent, devices are polled at this interval instead of being waited for: each wake-up costs
/// the sender several microseconds, a tenth of all processor time with four senders on two cores.
const POLL_INTERVAL: Span = Span::from_micros(50);

/// Packets count as frequent if more than this many came in [`BUSY_SPAN`].
const BUSY_PACKETS: u64 = 20;
/// See [`BUSY_PACKETS`]: at most 50 us from one packet to the next.
const BUSY_SPAN: Span = Span::from_millis(1);

/// A link with its recording state.
pub(super) struct RecordedLink {
    pub(super) name: String,
    pub(super) id: LinkId,
    /// Its last configuration, with the whole schedule.
    pub(super) config: LinkConfig,
    trace: Option<Trace>,
    last_stats: Stats,
    max_queue: u64,
}

impl RecordedLink {
    pub(super) fn new(name: String, id: LinkId, config: LinkConfig, trace: Option<Trace>) -> RecordedLink {
        RecordedLink { name, id, config, trace, last_stats: Stats::default(), max_queue: 0 }
    }
}

/// The event loop's state.
pub(super) struct EventLoop {
    pub(super) engine: Engine,
    pub(super) links: Vec<RecordedLink>,
    pub(super) recorder: Recorder,
    pub(super) interval: Span,
    input: Input,
    /// Start and end of the present interval.
    interval_start: Time,
    interval_end: Time,
    /// Device drops and CPU time at the last mark.
    at_last_mark: (u64, Span),
    /// When packets were last counted to see whether they are frequent, the count, and the result.
    frequency: (Time, u64, bool),
}

impl EventLoop {
    pub(super) fn new(
        engine: Engine,
        links: Vec<RecordedLink>,
        recorder: Recorder,
        interval: Span,
    ) -> EventLoop {
        EventLoop {
            engine,
            links,
            recorder,
            interval,
            input: Input::default(),
            interval_start: Time::ZERO,
            interval_end: Time::ZERO + interval,
            at_last_mark: (0, Span::ZERO),
            frequency: (Time::ZERO, 0, false),
        }
    }

    /// Runs until the owner closes the standard input or dies.
    ///
    /// # Errors
    /// When a device is gone, or the answers cannot be written.
    pub(super) fn run(&mut self, answer: &mut dyn FnMut(&Answer) -> io::Result<()>) -> io::Result<()> {
        let owner = std::io::stdin();
        rustix::io::ioctl_fionbio(&owner, true)?;
        loop {
            let due = self.due();
            let (readable, asked) = self.wait(owner.as_fd(), due)?;
            self.follow_traces();
            if asked {
                match self.input.read(&owner)? {
                    Incoming::End => break,
                    Incoming::Lines(lines) => {
                        for line in lines {
                            answer(&self.handle_request(&line))?;
                        }
                    }
                }
            }
            for device in readable {
                self.engine.read(device)?;
                self.sample_queues();
            }
            if due.is_some_and(|due| due <= self.engine.now()) {
                self.engine.deliver();
                self.sample_queues();
            }
            self.write_records();
        }
        // Arrived packets are delivered; those in flight stay in the network.
        self.engine.deliver();
        Ok(())
    }

    /// The next delivery time.
    fn due(&mut self) -> Option<Time> {
        let now = self.engine.now();
        let (since, before, frequent) = &mut self.frequency;
        let passed = now.since(*since);
        if passed >= BUSY_SPAN {
            let packets = self.engine.counters.written;
            *frequent =
                (packets - *before).saturating_mul(BUSY_SPAN.as_nanos()) / passed.as_nanos() > BUSY_PACKETS;
            (*since, *before) = (now, packets);
        }
        let hold = if *frequent { BATCH_SPAN } else { Span::ZERO };
        self.engine.next_event().map(|due| due + hold)
    }

    /// Waits until a device is readable, the owner sends a request, packets are due, or the interval ends.
    fn wait(&self, owner: std::os::fd::BorrowedFd<'_>, due: Option<Time>) -> io::Result<(Vec<usize>, bool)> {
        // Intervals without traffic have no record, so their end needs no wake-up.
        let look = self.frequency.2.then(|| self.engine.now() + POLL_INTERVAL);
        let wake = due.into_iter().chain((due.is_some()).then_some(self.interval_end)).chain(look).min();
        let left = wake.map(|wake| wake.since(self.engine.now()));
        let timeout = left.map(|left| Timespec {
            tv_sec: i64::try_from(left.as_nanos() / 1_000_000_000).unwrap_or(i64::MAX),
            tv_nsec: (left.as_nanos() % 1_000_000_000) as _,
        });
        let devices = self.engine.descriptors();
        let count = devices.len();
        let descriptors = std::iter::once(owner).chain(devices.take(if look.is_some() { 0 } else { count }));
        let mut polled: Vec<_> = descriptors.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        match poll(&mut polled, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let ready = |polled: &PollFd<'_>| !polled.revents().is_empty();
        let readable = (0..count).filter(|device| polled.get(device + 1).is_none_or(&ready)).collect();
        Ok((readable, ready(&polled[0])))
    }

    fn follow_traces(&mut self) {
        for link in &mut self.links {
            let Some(trace) = &mut link.trace else { continue };
            let now = self.engine.now();
            let mut network = self.engine.network();
            if let Some(config) = network.config(link.id).and_then(|config| trace.next(now, config)) {
                network.set(now, link.id, config);
            }
        }
    }

    fn sample_queues(&mut self) {
        let links = self.engine.network();
        let limited = |link: &&mut RecordedLink| link.config.rate.is_some() || link.trace.is_some();
        for link in self.links.iter_mut().filter(limited) {
            link.max_queue = link.max_queue.max(links.stats(link.id).queue_bytes);
        }
    }

    /// Writes records of new flows, and of the interval when it is over.
    fn write_records(&mut self) {
        for flow in std::mem::take(&mut self.engine.new_flows) {
            self.recorder.push(Record::Flow(flow));
        }
        let now = self.engine.now();
        if now >= self.interval_end {
            self.end_interval(now);
        }
    }

    fn end_interval(&mut self, now: Time) {
        let links = self.take_links();
        let flows = self.engine.flows.take();
        if links.is_empty() && flows.is_empty() {
            self.engine.meter.skip_to(now);
        } else {
            let lateness = self.engine.meter.end_interval(now);
            let length_ns = now.since(self.interval_start).as_nanos();
            let sample = Sample { at_ns: now.as_nanos(), length_ns, links, flows, lateness };
            self.recorder.push(Record::Sample(sample));
        }
        self.interval_start = now;
        // Intervals stay aligned to the original grid.
        let passed = now.as_nanos() / self.interval.as_nanos();
        self.interval_end = Time::from_nanos((passed + 1).saturating_mul(self.interval.as_nanos()));
    }

    /// Samples of links with activity since the last call.
    fn take_links(&mut self) -> Vec<LinkSample> {
        let network = self.engine.network();
        let mut samples = Vec::new();
        for (number, link) in self.links.iter_mut().enumerate() {
            let stats = network.stats(link.id);
            if stats != link.last_stats || stats.in_link > 0 {
                let deepest = link.max_queue.max(stats.queue_bytes);
                samples.push(sample(number, &stats, &link.last_stats, deepest));
            }
            (link.last_stats, link.max_queue) = (stats, 0);
        }
        samples
    }

    fn handle_request(&mut self, line: &[u8]) -> Answer {
        match serde_json::from_slice(line) {
            Ok(Request::Mark { label }) => match self.mark(label) {
                Ok(mark) => Answer::Marked(mark),
                Err(error) => Answer::Failed { reason: error.to_string() },
            },
            Ok(Request::SetLink { link, config }) => self.set_link(&link, &config),
            Ok(Request::RestartSchedules) => {
                let now = self.engine.now();
                for index in 0..self.links.len() {
                    self.start_schedule(now, index);
                }
                Answer::Done
            }
            Err(error) => Answer::Failed { reason: format!("cannot read the request: {error}") },
        }
    }

    fn mark(&mut self, label: String) -> io::Result<Mark> {
        self.engine.deliver();
        let now = self.engine.now();
        self.end_interval(now);
        let (drops, cpu) = (self.device_drops()?, CpuTime::of_process().total());
        let mark = Mark {
            at_ns: now.as_nanos(),
            label,
            lateness: self.engine.meter.mark(now),
            device_drops: drops - self.at_last_mark.0,
            cpu_ns: (cpu - self.at_last_mark.1).as_nanos(),
        };
        self.at_last_mark = (drops, cpu);
        self.recorder.push(Record::Mark(mark.clone()));
        Ok(mark)
    }

    fn set_link(&mut self, name: &str, config: &str) -> Answer {
        let Some(index) = self.links.iter().position(|link| link.name == name) else {
            let names: Vec<_> = self.links.iter().map(|link| link.name.as_str()).collect();
            return Answer::Failed {
                reason: format!("there is no link `{name}`; the links are {}", names.join(", ")),
            };
        };
        match LinkConfig::parse(config) {
            Ok(config) => (self.links[index].config, self.links[index].trace) = (config, None),
            Err(error) => return Answer::Failed { reason: error.to_string() },
        }
        let now = self.engine.now();
        self.start_schedule(now, index);
        Answer::Done
    }

    /// Starts a link's schedule, whose times count from `now`.
    fn start_schedule(&mut self, now: Time, index: usize) {
        let link = &mut self.links[index];
        if let Some(trace) = &mut link.trace {
            trace.restart(now);
        }
        let mut config = link.config.clone();
        let later = |(at, change): (Time, Change)| (at + now.since(Time::ZERO), change);
        config.schedule = config.schedule.into_iter().map(later).collect();
        let id = link.id;
        self.engine.network().set(now, id, config);
        self.follow_traces();
    }

    fn device_drops(&self) -> io::Result<u64> {
        self.engine.devices.iter().map(|device| device.tun.dropped()).sum()
    }

    /// The totals since the start.
    ///
    /// # Errors
    /// When the devices' counters cannot be read.
    pub(super) fn summary(&mut self) -> io::Result<Summary> {
        let now = self.engine.now();
        self.end_interval(now);
        let network = self.engine.network();
        let stats: Vec<_> = self.links.iter().map(|link| network.stats(link.id)).collect();
        let links = stats
            .iter()
            .enumerate()
            .map(|(n, stats)| sample(n, stats, &Stats::default(), stats.max_queue_bytes));
        let (links, counters, cpu) = (links.collect(), self.engine.counters, CpuTime::of_process());
        Ok(Summary {
            at_ns: now.as_nanos(),
            links,
            flows: self.engine.flows.totals(),
            lateness: self.engine.meter.total(now),
            read_packets: counters.read,
            written_packets: counters.written,
            unroutable_packets: counters.unroutable,
            over_limit_packets: counters.over_limit,
            refused_packets: counters.refused,
            in_network: stats.iter().map(|stats| stats.in_link).sum(),
            reads: counters.reads,
            writes: counters.writes,
            device_drops: self.device_drops()?,
            cpu_user_ns: cpu.user.as_nanos(),
            cpu_system_ns: cpu.system.as_nanos(),
            lost_lines: self.recorder.lost(),
        })
    }
}

/// A link's counters between two moments.
fn sample(number: usize, now: &Stats, before: &Stats, deepest: u64) -> LinkSample {
    LinkSample {
        link: number as u32,
        in_packets: now.sent - before.sent,
        in_bytes: now.sent_bytes - before.sent_bytes,
        delivered_packets: now.delivered - before.delivered,
        delivered_bytes: now.delivered_bytes - before.delivered_bytes,
        dropped_queue: now.dropped_queue - before.dropped_queue,
        dropped_loss: now.dropped_loss - before.dropped_loss,
        dropped_black_out: now.dropped_black_out - before.dropped_black_out,
        dropped_other: now.dropped_mtu + now.dropped_link_full
            - before.dropped_mtu
            - before.dropped_link_full,
        marked: now.marked - before.marked,
        duplicated: now.duplicated - before.duplicated,
        reordered: now.reordered - before.reordered,
        in_link: now.in_link,
        queue_bytes: now.queue_bytes,
        max_queue_bytes: deepest,
    }
}
