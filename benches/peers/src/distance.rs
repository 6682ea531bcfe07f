//! How far the two cores are from each other.
//!
//! A virtual machine's processors are moved about by its host, within seconds: next to each other a line of cache goes to and fro in
//! 55 ns, from one part of the host to another in 340, and then every peer carries a third to a fifth of what it did. Seldom it takes 28,
//! as if both were threads of one core, which would share its units. Runs of one place and of another cannot be compared. So a run counts
//! that was made where the cores are near, if that is to be had: the lower quartile of all that was seen is taken for that.

use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use lhio::clock::Clock;
use rustix::thread::{CpuSet, sched_setaffinity};

/// How often the line goes to and fro, and how often before that without counting.
const TRIPS: u32 = 10_000;
const BEFORE: u32 = 1_000;
/// So much more or less than where the cores are near is the same place still.
const SAME: f64 = 1.6;
/// Times a run is made at most, and how long all runs together wait for the cores to come back.
const TRIES: u32 = 5;
const PATIENCE: Duration = Duration::from_secs(300);
const PAUSE: Duration = Duration::from_millis(200);

/// The cores of both ends, and how far they were from each other: nanoseconds that a line of cache took to and fro.
pub struct Distance {
    cores: [usize; 2],
    trip: fn([usize; 2]) -> Result<f64>,
    /// All that was ever seen, ascending: two of each run, and five a second of what is waited for.
    seen: Vec<f64>,
    /// For each run that counts, before it and after it.
    runs: Vec<[f64; 2]>,
    waited: Duration,
}

impl Distance {
    /// Of these cores.
    ///
    /// # Errors
    /// A core that is not there, or may not be used.
    pub fn new(cores: [usize; 2]) -> Result<Distance> {
        let (seen, runs, waited) = (Vec::new(), Vec::new(), Duration::ZERO);
        let mut d = Distance { cores, trip, seen, runs, waited };
        d.measure()?;
        Ok(d)
    }

    /// Makes a run where the cores are near; where that is not to be had, a run all the same.
    ///
    /// # Errors
    /// The run's own.
    pub fn near<T>(&mut self, mut run: impl FnMut() -> Result<T>) -> Result<T> {
        let mut tries = 0;
        loop {
            let before = self.come_near()?;
            let done = run()?;
            let after = self.measure()?;
            tries += 1;
            // Who was not near before has no time left to wait for it.
            if self.is_near(before) && !self.is_near(after) && tries < TRIES {
                continue;
            }
            self.runs.push([before, after]);
            return Ok(done);
        }
    }

    /// In words, of all runs.
    pub fn words(&self) -> String {
        let (near, all) = (self.near_by(), self.runs.len());
        let elsewhere = self.runs.iter().filter(|r| !r.iter().all(|ns| self.is_near(*ns))).count();
        let (least, most) = self.seen.first().zip(self.seen.last()).unwrap_or((&near, &near));
        let cores = format!("A line of cache went between the cores and back in {near:.0} ns");
        match (self.is_near(*least) && self.is_near(*most), elsewhere) {
            (true, _) => format!("{cores}."),
            (false, 0) => {
                format!(
                    "{cores} during all runs; others, in which it took {least:.0} to {most:.0}, do not count."
                )
            }
            (false, _) => {
                format!("{cores} ({least:.0} to {most:.0}); {elsewhere} of {all} runs were made elsewhere.")
            }
        }
    }

    /// What the line takes where the cores are near.
    fn near_by(&self) -> f64 {
        self.seen.get(self.seen.len() / 4).copied().unwrap_or(0.0)
    }
    fn is_near(&self, ns: f64) -> bool {
        let near = self.near_by();
        (near / SAME..=near * SAME).contains(&ns)
    }

    /// Waits until the cores are near, for as long as there is patience; gives how far they are then.
    fn come_near(&mut self) -> Result<f64> {
        loop {
            let ns = self.measure()?;
            if self.is_near(ns) || self.waited >= PATIENCE {
                return Ok(ns);
            }
            #[expect(clippy::disallowed_methods, reason = "a measurement waits for the machine")]
            thread::sleep(PAUSE);
            self.waited += PAUSE;
        }
    }

    /// The middle one of three: whoever is interrupted has waited.
    fn measure(&mut self) -> Result<f64> {
        let mut each = [0.0; 3];
        for ns in &mut each {
            *ns = (self.trip)(self.cores)?;
        }
        each.sort_by(f64::total_cmp);
        let at = self.seen.partition_point(|ns| *ns < each[1]);
        self.seen.insert(at, each[1]);
        Ok(each[1])
    }
}

/// How long a line of cache takes from one core to another and back, in nanoseconds.
fn trip([a, b]: [usize; 2]) -> Result<f64> {
    if a == b {
        return Ok(0.0);
    }
    let line = AtomicU32::new(0);
    thread::scope(|s| {
        let other = s.spawn(|| {
            let there = stay_on(b);
            for n in 0..BEFORE + TRIPS {
                answer(&line, 2 * n + 1);
            }
            there
        });
        // On a thread of its own: the caller stays where it may be.
        let own = s.spawn(|| {
            let there = stay_on(a);
            let clock = Clock::new();
            let mut begin = clock.now();
            for n in 0..BEFORE + TRIPS {
                if n == BEFORE {
                    begin = clock.now();
                }
                line.store(2 * n + 1, Ordering::Release);
                while line.load(Ordering::Acquire) != 2 * n + 2 {
                    std::hint::spin_loop();
                }
            }
            there.map(|()| clock.now().since(begin).as_nanos() as f64 / f64::from(TRIPS))
        });
        let ns = own.join().expect("it does not panic");
        other.join().expect("it does not panic")?;
        ns
    })
}

/// Waits for a number, and answers with the next.
fn answer(line: &AtomicU32, wanted: u32) {
    while line.load(Ordering::Acquire) != wanted {
        std::hint::spin_loop();
    }
    line.store(wanted + 1, Ordering::Release);
}

fn stay_on(core: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(core);
    sched_setaffinity(None, &set).with_context(|| format!("core {core} of --cores cannot be used"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(trip: fn([usize; 2]) -> Result<f64>, seen: &[f64]) -> Distance {
        Distance { cores: [0, 1], trip, seen: seen.to_vec(), runs: Vec::new(), waited: PATIENCE }
    }

    #[test]
    fn a_run_counts_where_the_cores_are_near() {
        let mut near = of(|_| Ok(56.0), &[55.0, 60.0]);
        assert_eq!((near.near(|| Ok(7)).expect("run"), near.runs.len()), (7, 1));
        assert_eq!(near.words(), "A line of cache went between the cores and back in 56 ns.");
        assert!(near.near(|| anyhow::bail!("the peer is missing")).map(|(): ()| ()).is_err());
        // For ever elsewhere, and nobody waits longer: further away, or at the same core.
        for (ns, seen) in [(340.0, "55 to 340"), (28.0, "28 to 60")] {
            let trip = if ns > 100.0 { |_| Ok(340.0) } else { |_| Ok(28.0) };
            let mut elsewhere = of(trip, &[55.0; 8]);
            elsewhere.seen.push(60.0);
            assert_eq!((elsewhere.near(|| Ok(7)).expect("run all the same"), elsewhere.runs.len()), (7, 1));
            let words = elsewhere.words();
            assert!(words.ends_with(&format!("({seen}); 1 of 1 runs were made elsewhere.")), "{words}");
        }
    }

    #[test]
    fn a_run_during_which_the_cores_went_apart_is_made_again() {
        static LOOKS: AtomicU32 = AtomicU32::new(0);
        // Near before the first run, far behind it, and near from then on: three trips a look.
        let trip = |_| Ok(if LOOKS.fetch_add(1, Ordering::Relaxed) / 3 == 1 { 340.0 } else { 55.0 });
        let (mut moved, mut made) = (of(trip, &[55.0]), 0);
        let run = || {
            made += 1;
            Ok(made)
        };
        assert_eq!(moved.near(run).expect("run"), 2);
        let words = moved.words();
        assert!(words.contains("during all runs") && words.contains("340"), "{words}");
    }

    #[test]
    fn a_run_that_was_near_as_far_as_was_known_is_told_of_once_that_is_known_better() {
        static LOOKS: AtomicU32 = AtomicU32::new(0);
        // Far during the first run, and never was anything else seen.
        let trip = |_| Ok(if LOOKS.fetch_add(1, Ordering::Relaxed) < 6 { 340.0 } else { 55.0 });
        let mut d = of(trip, &[340.0]);
        for n in 0..3 {
            assert_eq!(d.near(|| Ok(n)).expect("run"), n);
        }
        assert!(d.words().ends_with("1 of 3 runs were made elsewhere."), "{}", d.words());
    }

    #[test]
    fn a_core_that_is_not_there_is_named() {
        let error = Distance::new([0, 1_000]).map(|_| ()).expect_err("there is none");
        assert!(format!("{error:#}").contains("core 1000"), "{error:#}");
        assert!(Distance::new([0, 0]).is_ok(), "one core is nowhere else");
    }
}
