//! How far the two cores are from each other.
//!
//! A virtual machine's processors are moved about by its host, within seconds: next to each other a line of cache goes to and fro in
//! 55 ns, from one part of the host to another in 340, and then every peer carries a third to a fifth of what it did. Runs
//! of one place and of the other cannot be compared. So a run counts that was made where the cores are nearest, if that is to be had.

use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use lhio::clock::Clock;
use rustix::thread::{CpuSet, sched_setaffinity};

/// How often the line goes to and fro, and how often before that without counting.
const TRIPS: u32 = 10_000;
const BEFORE: u32 = 1_000;
/// So much more than the least is the same place still.
const SAME: f64 = 1.6;
/// Times a run is made at most, and how long all runs together wait for the cores to come back.
const TRIES: u32 = 5;
const PATIENCE: Duration = Duration::from_secs(300);
const PAUSE: Duration = Duration::from_millis(200);

/// The cores of both ends, and what was seen of them.
pub struct Distance {
    cores: [usize; 2],
    trip: fn([usize; 2]) -> Result<f64>,
    least: f64,
    most: f64,
    waited: Duration,
    runs: u32,
    apart: u32,
}

impl Distance {
    /// Of these cores.
    ///
    /// # Errors
    /// A core that is not there, or may not be used.
    pub fn new(cores: [usize; 2]) -> Result<Distance> {
        let mut d =
            Distance { cores, trip, least: f64::MAX, most: 0.0, waited: Duration::ZERO, runs: 0, apart: 0 };
        d.measure()?;
        Ok(d)
    }

    /// Makes a run where the cores are nearest; where that is not to be had, a run all the same.
    ///
    /// # Errors
    /// The run's own.
    pub fn near<T>(&mut self, mut run: impl FnMut() -> Result<T>) -> Result<T> {
        self.runs += 1;
        for _ in 1..TRIES {
            let mut near = self.is_near()?;
            while !near && self.waited < PATIENCE {
                #[expect(clippy::disallowed_methods, reason = "a measurement waits for the machine")]
                thread::sleep(PAUSE);
                self.waited += PAUSE;
                near = self.is_near()?;
            }
            if !near {
                break;
            }
            let done = run()?;
            if self.is_near()? {
                return Ok(done);
            }
        }
        self.apart += 1;
        run()
    }

    /// In words, of all runs.
    pub fn words(&self) -> String {
        let (least, most, runs, apart) = (self.least, self.most, self.runs, self.apart);
        let cores = format!("A line of cache went between the cores and back in {least:.0} ns");
        match (most > least * SAME, apart) {
            (false, _) => format!("{cores}."),
            (true, 0) => {
                format!("{cores} during all runs; others, in which it took up to {most:.0}, do not count.")
            }
            (true, _) => {
                format!("{cores} to {most:.0} ns: {apart} of {runs} runs were not where they are nearest.")
            }
        }
    }

    fn is_near(&mut self) -> Result<bool> {
        Ok(self.measure()? <= self.least * SAME)
    }

    /// The middle one of three, in nanoseconds: whoever is interrupted has waited.
    fn measure(&mut self) -> Result<f64> {
        let mut each = [0.0; 3];
        for ns in &mut each {
            *ns = (self.trip)(self.cores)?;
        }
        each.sort_by(f64::total_cmp);
        (self.least, self.most) = (self.least.min(each[1]), self.most.max(each[1]));
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

    fn of(trip: fn([usize; 2]) -> Result<f64>, most: f64) -> Distance {
        Distance { cores: [0, 1], trip, least: 55.0, most, waited: PATIENCE, runs: 0, apart: 0 }
    }

    #[test]
    fn a_run_counts_where_the_cores_are_nearest() {
        let mut near = of(|_| Ok(56.0), 60.0);
        assert_eq!((near.near(|| Ok(7)).expect("run"), near.runs, near.apart), (7, 1, 0));
        assert_eq!(near.words(), "A line of cache went between the cores and back in 55 ns.");
        assert!(near.near(|| anyhow::bail!("the peer is missing")).map(|(): ()| ()).is_err());
        // For ever elsewhere, and nobody waits longer.
        let mut far = of(|_| Ok(340.0), 60.0);
        assert_eq!((far.near(|| Ok(7)).expect("run all the same"), far.runs, far.apart), (7, 1, 1));
        assert!(far.words().ends_with("1 of 1 runs were not where they are nearest."), "{}", far.words());
    }

    #[test]
    fn a_run_during_which_the_cores_went_apart_is_made_again() {
        static LOOKS: AtomicU32 = AtomicU32::new(0);
        // Near before the first run, far behind it, and near from then on: three trips a look.
        let mut moved =
            of(|_| Ok(if LOOKS.fetch_add(1, Ordering::Relaxed) / 3 == 1 { 340.0 } else { 55.0 }), 55.0);
        let mut made = 0;
        let run = || {
            made += 1;
            Ok(made)
        };
        assert_eq!(moved.near(run).expect("run"), 2);
        let words = moved.words();
        assert!(words.contains("during all runs") && words.contains("340"), "{words}");
    }

    #[test]
    fn a_core_that_is_not_there_is_named() {
        let error = Distance::new([0, 1_000]).map(|_| ()).expect_err("there is none");
        assert!(format!("{error:#}").contains("core 1000"), "{error:#}");
        assert!(Distance::new([0, 0]).is_ok(), "one core is nowhere else");
    }
}
