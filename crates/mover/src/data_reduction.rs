//! Decides whether to use deltas and compression: as the user says, otherwise by measured rates of path and processors.

use crate::progress::Progress;
use base::{Span, Time};
use lhio::clock::CpuTime;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// When a way to send less is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum ReductionMode {
    /// Where it helps.
    #[default]
    Auto = 0,
    /// Always.
    Always = 1,
    /// Never.
    Never = 2,
}

impl ReductionMode {
    pub(crate) fn from_wire(n: u8) -> Option<ReductionMode> {
        [ReductionMode::Auto, ReductionMode::Always, ReductionMode::Never].get(n as usize).copied()
    }
}

/// How the source reduces what it sends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DataReduction {
    /// Of a large file that exists at the destination, only what differs is sent.
    pub deltas: ReductionMode,
    /// What is sent is compressed.
    pub compress: ReductionMode,
}

/// The shortest round trips of one site, whose networks are about as fast as files can be read and compared.
const NEAR: Span = Span::from_millis(2);
/// How often the path and the processors are last_sample at.
const EVERY: Span = Span::from_millis(100);
/// Bytes packed a second and worker until it was measured.
const PACKS: u64 = 200_000_000;
/// Bytes cut and hashed a second until it was measured.
const CUTS: u64 = 500_000_000;
/// Processor time after which a measured rate counts.
const ENOUGH: u64 = 10_000_000;

/// Work of threads: how many bytes in how much of their processor time.
#[derive(Debug, Default)]
pub(crate) struct Work {
    bytes: AtomicU64,
    nanos: AtomicU64,
}

impl Work {
    /// Does `job`, which handles so many bytes.
    pub fn measure<T>(&self, bytes: u64, job: impl FnOnce() -> T) -> T {
        let before = CpuTime::of_thread();
        let out = job();
        self.add(bytes, CpuTime::of_thread().since(before).total());
        out
    }
    fn add(&self, bytes: u64, took: Span) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.nanos.fetch_add(took.as_nanos(), Ordering::Relaxed);
    }
    /// Bytes a second; `guess` until there is enough to tell.
    fn rate(&self, guess: u64) -> u64 {
        let (bytes, nanos) = (self.bytes.load(Ordering::Relaxed), self.nanos.load(Ordering::Relaxed));
        if nanos < ENOUGH {
            return guess;
        }
        (u128::from(bytes) * 1_000_000_000 / u128::from(nanos)).try_into().unwrap_or(u64::MAX)
    }
}

/// A measurement of the path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PathSample {
    pub now: Time,
    /// The shortest round trip; zero where nobody knows.
    pub rtt: Span,
    /// Payload acknowledged so far.
    pub acked: u64,
    /// Payload read and not acknowledged.
    pub waiting: u64,
}

/// Measured rates and the present decision on compression, shared with worker jobs.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    pub packing: Work,
    pub cutting: Work,
    packs: AtomicBool,
}

impl Shared {
    /// Whether what is sent now is to be packed.
    pub fn packs(&self) -> bool {
        self.packs.load(Ordering::Relaxed)
    }
    /// Packs `data` if that is wanted and helps.
    pub fn pack(&self, data: &[u8]) -> Option<Vec<u8>> {
        if !self.packs() {
            return None;
        }
        // What is left alone after a sample says nothing of the speed of packing.
        let before = CpuTime::of_thread();
        let packed = crate::pack::pack(data)?;
        self.packing.add(data.len() as u64, CpuTime::of_thread().since(before).total());
        Some(packed)
    }
}

/// The decisions for one source.
#[derive(Debug)]
pub(crate) struct ReductionPolicy {
    data_reduction: DataReduction,
    pub shared: std::sync::Arc<Shared>,
    rtt: Span,
    /// Bytes a second that the path carries, once it was what the transfer waited for.
    path: Option<u64>,
    /// The last look: when, bytes acknowledged, ticks that processors had nothing to do.
    last_sample: Option<(Time, u64, u64)>,
}

impl ReductionPolicy {
    pub fn new(data_reduction: DataReduction, rtt: Span) -> ReductionPolicy {
        let j = ReductionPolicy {
            data_reduction,
            shared: std::sync::Arc::default(),
            rtt,
            path: None,
            last_sample: None,
        };
        j.shared.packs.store(data_reduction.compress == ReductionMode::Always, Ordering::Relaxed);
        j
    }
    /// Whether a file that exists at the other end is compared with what is there, rather than sent as a whole.
    pub fn deltas(&self) -> bool {
        match self.data_reduction.deltas {
            ReductionMode::Always => true,
            ReductionMode::Never => false,
            // All is read and hashed first, at both ends, and what was copied once more.
            ReductionMode::Auto => {
                let near = !self.rtt.is_zero() && self.rtt < NEAR;
                let faster = self.path.is_some_and(|p| p > self.shared.cutting.rate(CUTS) / 2);
                !near && !faster
            }
        }
    }
    /// Takes a sample of path and processors, at most every [`EVERY`].
    pub fn look(&mut self, p: PathSample) {
        if self.last_sample.is_some_and(|(t, ..)| p.now.since(t) < EVERY) {
            return;
        }
        let idle = std::fs::read_to_string("/proc/stat").ok().and_then(|t| idle_ticks(&t)).unwrap_or(0);
        self.update(p, idle, rustix::param::clock_ticks_per_second().max(1));
    }
    fn update(&mut self, p: PathSample, idle: u64, ticks_per_second: u64) {
        self.rtt = p.rtt;
        let Some((then, acked, idle_then)) = self.last_sample.replace((p.now, p.acked, idle)) else { return };
        let seconds = p.now.since(then).as_secs_f64().max(1e-3);
        let rate = (p.acked.saturating_sub(acked) as f64 / seconds) as u64;
        // What waits for the path takes longer than what is on its way does anyhow.
        let backlog = p.waiting as f64 > rate as f64 * (2.0 * p.rtt.as_secs_f64() + 0.02);
        if backlog && rate > 0 {
            self.path = Some(rate);
        }
        let idle = idle.saturating_sub(idle_then) as f64 / ticks_per_second as f64 / seconds;
        if self.data_reduction.compress == ReductionMode::Auto && rate > 0 {
            let packs = self.shared.packs();
            // One worker packs at least twice what the path carries; once it is on, it stays on while one keeps up at all.
            let speed = self.shared.packing.rate(PACKS);
            let slow = rate < if packs { speed } else { speed / 2 };
            let on = slow && (packs || backlog && idle >= 0.5);
            self.shared.packs.store(on, Ordering::Relaxed);
        }
    }
}

/// proc(5): `cpu user nice system idle iowait ...`, of all processors together, in ticks.
fn idle_ticks(text: &str) -> Option<u64> {
    text.lines().find_map(|l| l.strip_prefix("cpu "))?.split_ascii_whitespace().nth(3)?.parse().ok()
}

/// Counts what was packed.
pub(crate) fn packed(progress: &Progress, before: u64, after: u64) {
    progress.update(|s| {
        s.bytes_before_compression += before;
        s.bytes_after_compression += after;
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judge(compress: ReductionMode) -> ReductionPolicy {
        ReductionPolicy::new(DataReduction { compress, ..DataReduction::default() }, Span::from_millis(20))
    }
    /// After so many milliseconds, so many bytes were acknowledged in all, and so many wait.
    fn look(j: &mut ReductionPolicy, millis: u64, acked: u64, waiting: u64, idle: u64) -> bool {
        let now = Time::ZERO + Span::from_millis(millis);
        j.update(PathSample { now, rtt: Span::from_millis(20), acked, waiting }, idle, 100);
        j.shared.packs()
    }

    #[test]
    fn compression_starts_on_a_slow_path_with_an_idle_processor() {
        let mb = 1_000_000;
        let mut j = judge(ReductionMode::Auto);
        assert!(!look(&mut j, 0, 0, 0, 0), "nothing is known");
        assert!(!look(&mut j, 1_000, 10 * mb, 8 * mb, 10), "no processor is idle");
        assert!(!look(&mut j, 2_000, 20 * mb, 100_000, 110), "the path is not waited for");
        assert!(look(&mut j, 3_000, 30 * mb, 8 * mb, 210));
        assert!(look(&mut j, 4_000, 40 * mb, 100_000, 210), "it stays on while one worker keeps up");
        assert!(!look(&mut j, 5_000, 540 * mb, 8 * mb, 310), "the path is faster");
        for (c, on) in [(ReductionMode::Always, true), (ReductionMode::Never, false)] {
            let mut j = judge(c);
            assert_eq!([look(&mut j, 0, 0, 0, 0), look(&mut j, 1_000, 10 * mb, 8 * mb, 100)], [on, on]);
        }
    }

    #[test]
    fn deltas_are_used_when_the_path_is_slower_than_comparing() {
        let of = |deltas, rtt| {
            ReductionPolicy::new(DataReduction { deltas, ..DataReduction::default() }, rtt).deltas()
        };
        assert!(of(ReductionMode::Auto, NEAR) && of(ReductionMode::Auto, Span::ZERO));
        assert!(!of(ReductionMode::Auto, Span::from_micros(300)));
        assert!(of(ReductionMode::Always, Span::ZERO) && !of(ReductionMode::Never, Span::from_millis(200)));
        let mut j = judge(ReductionMode::Auto);
        look(&mut j, 0, 0, 0, 0);
        look(&mut j, 1_000, 100_000_000, 1 << 30, 0);
        assert!(j.deltas());
        look(&mut j, 2_000, 2_000_000_000, 1 << 30, 0);
        assert!(!j.deltas(), "the path has shown to be faster");
    }

    #[test]
    fn idle_time_is_read_of_all_processors() {
        let text = "cpu  10 20 30 4000 5 0 0 0 0 0\ncpu0 1 2 3 4 5\n";
        assert_eq!((idle_ticks(text), idle_ticks(""), idle_ticks("cpu  1 2")), (Some(4000), None, None));
    }

    #[test]
    fn rates_are_estimated_until_measured() {
        let w = Work::default();
        assert_eq!(w.rate(7), 7);
        w.add(1_000_000, Span::from_millis(10));
        assert_eq!(w.rate(7), 100_000_000);
    }
}
