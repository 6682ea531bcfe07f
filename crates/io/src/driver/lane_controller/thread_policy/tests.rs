//! Tests of the thread policy on a modelled machine with processors and other load.

use super::*;
use base::Rng;

const SEEDS: core::ops::Range<u64> = 0..200;

fn look(s: u64, busy: f64, free: f64, rate: f64) -> Measurement {
    Measurement { now: Time::ZERO + Span::from_secs(s), busy, free, rate, ..Measurement::default() }
}

/// One that has seen a rate of 1.0 already.
fn steady(ordered: bool, most: u16) -> ThreadPolicy {
    let mut r = ThreadPolicy::new(ordered, most);
    assert_eq!(r.decide(&look(0, 1.0, 9.0, 1.0)), None, "the interval in which it began is not a whole one");
    r
}

#[test]
fn idle_time_before_a_steady_rate_is_ignored() {
    // Processors are free while nothing flows, and in the interval in which it begins; then both ends' loops have them.
    for ordered in [false, true] {
        let mut r = ThreadPolicy::new(ordered, 2);
        for (s, (free, rate)) in
            [(2.0, 0.0), (1.9, 0.0), (1.9, 1e3), (1.1, 2e8), (0.1, 1e9)].iter().enumerate()
        {
            assert_eq!(r.decide(&look(s as u64, 1.0, *free, *rate)), None);
        }
        assert!((5..60).all(|s| r.decide(&look(s, 1.0, 0.1, 1e9)).is_none() && r.working() == 0));
        // The system has put both ends' loops on one processor: the other one is for the one that will move.
        let together = Measurement { late: 0.5, ..look(60, 0.5, 1.0, 1e9) };
        assert_eq!(r.decide(&together), None);
        assert_eq!(r.decide(&look(61, 1.0, 1.0, 1e9)), Some(ThreadChange::Begin(2)));
    }
}

#[test]
fn threads_that_delay_the_loop_are_still_evaluated() {
    let mut r = steady(true, 2);
    assert_eq!(r.decide(&look(1, 1.0, 1.0, 1.0)), Some(ThreadChange::Begin(2)));
    let late = |s| Measurement { late: 0.5, ..look(s, 0.5, 0.0, 1.0) };
    let steps: Vec<_> = (2..30).filter_map(|s| r.decide(&late(s))).collect();
    assert_eq!(steps[..2], [ThreadChange::Keep(2), ThreadChange::Measure(2)]);
}

#[test]
fn busy_loop_gets_a_thread_on_a_free_processor() {
    let mut r = ThreadPolicy::new(false, 4);
    assert_eq!(r.decide(&look(1, 0.5, 1.5, 1.0)), None);
    assert_eq!(r.decide(&look(2, 0.99, 0.1, 1.0)), None, "no processor is free");
    assert_eq!(ThreadPolicy::new(false, 1).decide(&look(3, 0.99, 1.0, 1.0)), None, "one is all it may have");
    assert_eq!(r.decide(&look(4, 0.99, 1.0, 1.0)), Some(ThreadChange::Begin(2)));
    assert_eq!((r.lanes(), r.working()), (2, 2));
    // On trial, nothing else is changed.
    let steps: Vec<_> = (5..11).map(|s| r.decide(&look(s, 0.99, 1.0, 1.5))).collect();
    assert_eq!(steps, [None, None, None, None, None, Some(ThreadChange::Keep(2))]);
    // There is need and room for more.
    assert_eq!(r.decide(&look(10, 0.99, 1.0, 1.5)), None);
    assert_eq!(r.decide(&look(11, 0.99, 1.0, 1.5)), Some(ThreadChange::Begin(4)));
    assert_eq!((r.lanes(), r.working()), (3, 6));
}

#[test]
fn useless_thread_is_suspended_with_backoff() {
    let mut r = steady(false, 4);
    assert_eq!(r.decide(&look(1, 1.0, 1.0, 1.0)), Some(ThreadChange::Begin(2)));
    let last = (2..8).map(|s| r.decide(&look(s, 1.0, 1.0, 1.0))).last();
    assert_eq!(last, Some(Some(ThreadChange::Useless(2))));
    assert_eq!(r.working(), 0);
    assert_eq!(r.decide(&look(8, 1.0, 0.5, 1.0)), None);
    assert_eq!(r.decide(&look(8, 1.0, 0.5, 1.0)), None);
    // Another one may be on a better processor.
    assert_eq!(r.decide(&look(9, 1.0, 1.0, 1.0)), Some(ThreadChange::Begin(4)));
}

#[test]
fn thread_without_a_processor_is_suspended_until_one_is_free() {
    let mut r = steady(true, 3);
    assert_eq!(r.decide(&look(1, 0.2, 1.9, 1.0)), Some(ThreadChange::Begin(6)), "by order, all of them");
    let taken = Measurement { waited: 4, ..look(2, 0.2, 0.0, 1.0) };
    assert_eq!(r.decide(&taken), Some(ThreadChange::Crowded(4)));
    assert_eq!((r.lanes(), r.working()), (3, 2), "the lane stays, and so does the other thread");
    assert_eq!(r.decide(&look(4, 0.2, 1.0, 1.0)), None, "not at once");
    assert_eq!(r.decide(&look(8, 0.2, 0.1, 1.0)), None, "its processor is still taken");
    assert_eq!(r.decide(&look(9, 0.2, 1.0, 1.0)), Some(ThreadChange::Begin(4)));
    let last = (10..16).map(|s| r.decide(&look(s, 0.2, 0.1, 1.2))).last();
    assert_eq!(last, Some(Some(ThreadChange::Keep(4))));
    // What is free changes: later they are weighed, and go on where they are worth it.
    assert_eq!(r.decide(&look(25, 0.2, 0.1, 1.2)), None);
    assert_eq!(r.decide(&look(26, 0.2, 0.1, 1.2)), Some(ThreadChange::Measure(6)));
    assert_eq!(r.working(), 0);
    let last = (27..33).map(|s| r.decide(&look(s, 0.2, 0.1, 0.8))).last();
    assert_eq!((last, r.working()), (Some(Some(ThreadChange::Keep(6))), 6));
}

#[test]
fn idle_lanes_close_unless_configured() {
    let mut r = steady(false, 4);
    assert_eq!(r.decide(&look(0, 1.0, 1.0, 1.0)), Some(ThreadChange::Begin(2)));
    for s in 1..7 {
        r.decide(&look(s, 1.0, 0.0, 2.0));
    }
    let lazy = (7..7 + u64::from(IDLE_SAMPLES))
        .filter(|s| r.decide(&look(*s, 0.1, 0.0, 0.0)) == Some(ThreadChange::Close));
    assert_eq!(lazy.count(), 1);
    assert_eq!((r.lanes(), r.working()), (1, 0));
    let mut r = ThreadPolicy::new(true, 4);
    assert!((0..100).all(|s| r.decide(&look(s, 0.1, 0.0, 0.0)) != Some(ThreadChange::Close)));
    assert_eq!(r.lanes(), 4);
}

/// A machine with a loop on it, threads that may help it, and other work.
struct Machine {
    rng: Rng,
    /// Processors besides the loop's.
    processors: u32,
    /// What the rate grows by with each thread that has a processor, as a part of the loop's alone.
    worth: f64,
    /// What each thread costs all the same.
    cost: f64,
    /// Rates differ by so much from look to look.
    noise: f64,
    /// Processors that others are busy on.
    taken: u32,
}

impl Machine {
    /// The rate with so many threads, of the loop's alone, and which of them have to wait.
    fn rate(&self, working: u64) -> (f64, u64) {
        let n = working.count_ones();
        let apart = n.min(self.processors - self.taken);
        let crowded = (0..64).filter(|k| working >> k & 1 == 1).skip(apart as usize);
        let waits = crowded.fold(0, |all, k| all | 1 << k);
        (1.0 + f64::from(apart) * self.worth - f64::from(n) * self.cost - f64::from(n - apart) * 0.2, waits)
    }

    fn look(&mut self, now: Time, working: u64) -> (Measurement, f64) {
        let (rate, waited) = self.rate(working);
        let free = (self.processors - self.taken).saturating_sub(working.count_ones());
        let noise = 1.0 + self.noise * (self.rng.unit() * 2.0 - 1.0);
        let l = Measurement { now, busy: 1.0, free: f64::from(free), rate: rate * noise, waited, late: 0.0 };
        (l, rate)
    }
}

/// The mean rate over some seconds, of the loop's alone.
fn run(m: &mut Machine, r: &mut ThreadPolicy, from: u64, seconds: u64) -> f64 {
    let (mut sum, mut looks) = (0.0, 0.0);
    for k in 0..seconds * 5 {
        let now = Time::ZERO + Span::from_secs(from) + EVERY * k;
        let (l, rate) = m.look(now, r.working());
        r.decide(&l);
        (sum, looks) = (sum + rate, looks + 1.0);
    }
    sum / looks
}

fn machine(rng: &mut Rng) -> Machine {
    let processors = 1 + rng.below(7) as u32;
    let (worth, cost) = (0.15 + rng.unit() * 0.85, rng.unit() * 0.05);
    Machine { rng: rng.fork(), processors, worth, cost, noise: 0.08, taken: 0 }
}

#[test]
fn threads_use_free_processors_and_never_slow_the_loop() {
    for seed in SEEDS {
        let mut rng = Rng::from_u64(seed);
        for ordered in [false, true] {
            let mut m = machine(&mut rng);
            let mut r = ThreadPolicy::new(ordered, 1 + m.processors as u16);
            let best = m.rate(!0 >> (63 - m.processors) & !1).0;
            let free = run(&mut m, &mut r, 0, 60);
            assert!(free > 0.85 * best, "seed {seed}, ordered {ordered}: {free} of {best}");
            // All processors are taken, and stay so.
            m.taken = m.processors;
            let taken = run(&mut m, &mut r, 60, 60);
            assert!(taken > 0.95, "seed {seed}, ordered {ordered}: {taken} while all are taken");
            // And are free again.
            m.taken = 0;
            run(&mut m, &mut r, 120, 90);
            let again = run(&mut m, &mut r, 210, 60);
            assert!(again > 0.85 * best, "seed {seed}, ordered {ordered}: {again} of {best} again");
        }
    }
}

#[test]
fn slowing_threads_are_suspended() {
    // The other end is what limits: more lanes cost it more, and nothing here has to wait.
    for seed in SEEDS {
        let mut rng = Rng::from_u64(seed);
        let mut m = Machine { worth: 0.0, cost: 0.1, noise: 0.04, ..machine(&mut rng) };
        m.processors = 1;
        for ordered in [false, true] {
            let mut r = ThreadPolicy::new(ordered, 2);
            let rate = run(&mut m, &mut r, 0, 120);
            assert!(rate > 0.95, "seed {seed}, ordered {ordered}: {rate}");
        }
    }
}

#[test]
fn throughput_with_varying_other_load_exceeds_one_lane() {
    for seed in SEEDS {
        let mut rng = Rng::from_u64(seed);
        let mut m = machine(&mut rng);
        let mut r = ThreadPolicy::new(seed % 2 == 0, 1 + m.processors as u16);
        let mut sum = 0.0;
        for k in 0..30 {
            m.taken = rng.below(u64::from(m.processors) + 1) as u32;
            sum += run(&mut m, &mut r, k * 10, 10) / 30.0;
        }
        assert!(sum > 0.97, "seed {seed}: {sum}");
    }
}
