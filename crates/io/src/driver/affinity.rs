//! CPU affinity of the loop while it works alone and several processors are named for it.
//!
//! Left to the system, two loops that talk to each other over one machine often end up on one processor: whoever is woken
//! is put beside who woke it. So a loop that is busy stays where it is, and one that has to wait for its processor moves
//! to another one of its own: to an idle one at once; where none is, later and later, to see whether it is better there.

use super::lane_controller::{SchedStats, idle_times};
use base::{Span, Time};

/// How often it is looked, and how often once so many looks in a row have found that it need not wait: a look costs some
/// tenths of a millisecond.
const EVERY: Span = Span::from_millis(15);
const CALM_EVERY: Span = Span::from_millis(300);
const CALM_LOOKS: u32 = 5;
/// A loop that waited for this part of the time for which it had something to do looks for another processor,
const WAITED: f64 = 0.2;
/// if that was at least this part of all time; one that is idle for this part is better.
const ACTIVE: f64 = 0.3;
const IDLE: f64 = 0.3;
/// Looks in a row before a client moves. Servers move at once: two ends that both move are together again.
const CLIENT_LOOKS: u32 = 2;
/// Looks in a row before it moves to a processor that is not idle: the first time, more for a client, and at most.
const BLIND_LOOKS: u32 = 2;
const MOST_BLIND_LOOKS: u32 = 2_000;

/// The processors to choose from and what was measured on them.
#[derive(Debug)]
pub(super) struct CpuAffinity {
    cores: Vec<usize>,
    looks: u32,
    crowded: u32,
    calm: u32,
    /// Looks in a row before the next move to where it is not idle.
    blind: u32,
    on: Option<usize>,
    last: Option<(Time, SchedStats, Vec<Span>)>,
    next: Time,
}

impl CpuAffinity {
    /// Among these processors, of which there may be one or none.
    pub fn new(cores: &[usize], serves: bool) -> CpuAffinity {
        let looks = if serves { 1 } else { CLIENT_LOOKS };
        let blind = BLIND_LOOKS * looks;
        CpuAffinity {
            cores: cores.to_vec(),
            looks,
            crowded: 0,
            calm: 0,
            blind,
            on: None,
            last: None,
            next: Time::ZERO,
        }
    }

    /// The processor to run on, once it matters; before, any of them does.
    pub fn core(&self) -> Option<usize> {
        self.on
    }

    /// Measures, if it is time: [`CpuAffinity::core`] may have changed.
    pub fn update(&mut self, now: Time) {
        if now < self.next || self.cores.len() < 2 {
            return;
        }
        let every = if self.calm < CALM_LOOKS { EVERY } else { CALM_EVERY };
        self.next = now + every;
        let (turns, idle) = (SchedStats::of_loop(), idle_times(&self.cores));
        let seen = self.last.replace((now, turns, idle.clone()));
        let Some((then, turns_then, idle_then)) = seen else { return };
        let span = now.since(then);
        if span > CALM_EVERY * 2 {
            // It slept: there is nothing to move for.
            self.crowded = 0;
            return;
        }
        let span = span.as_secs_f64();
        let (ran, waited) = turns.shares(turns_then, span);
        let since = |(now, then): (&Span, &Span)| (*now).max(*then) - *then;
        let idle = idle.iter().zip(&idle_then).map(|p| since(p).as_secs_f64() / span);
        self.decide(ran, waited, &idle.collect::<Vec<_>>(), rustix::thread::sched_getcpu());
    }

    /// With the shares of time for which it ran, and waited while it could have run, and the processors were idle; `here` is
    /// the one that it runs on.
    fn decide(&mut self, ran: f64, waited: f64, idle: &[f64], here: usize) {
        if ran < ACTIVE * (1.0 - waited) {
            self.crowded = 0;
            return;
        }
        if waited < WAITED {
            (self.crowded, self.calm) = (0, self.calm.saturating_add(1));
            self.on = self.on.or(Some(here).filter(|h| self.cores.contains(h)));
            return;
        }
        (self.crowded, self.calm) = (self.crowded + 1, 0);
        let others = self.cores.iter().zip(idle).filter(|(c, _)| **c != here);
        let Some((core, idle)) = others.max_by(|(_, a), (_, b)| a.total_cmp(b)) else { return };
        if *idle >= IDLE && self.crowded >= self.looks {
            (self.on, self.crowded) = (Some(*core), 0);
        } else if self.crowded >= self.blind {
            (self.on, self.crowded) = (Some(*core), 0);
            self.blind = (self.blind * 2).min(MOST_BLIND_LOOKS);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_loop_moves_to_an_idle_processor() {
        let mut p = CpuAffinity::new(&[0, 3, 5], true);
        p.decide(0.05, 0.5, &[0.0, 1.0, 1.0], 0);
        assert_eq!(p.core(), None, "it has little to do");
        p.decide(0.5, 0.5, &[0.0, 0.7, 0.9], 0);
        assert_eq!(p.core(), Some(5));
        p.decide(0.9, 0.0, &[1.0, 0.9, 0.0], 5);
        assert_eq!(p.core(), Some(5), "it does not wait");
        p.decide(0.4, 0.5, &[1.0, 0.9, 0.0], 5);
        assert_eq!(p.core(), Some(0), "somebody else came");
    }

    #[test]
    fn busy_loop_stays_on_its_processor() {
        let mut p = CpuAffinity::new(&[0, 3], false);
        p.decide(0.9, 0.05, &[1.0, 0.0], 3);
        assert_eq!(p.core(), Some(3));
        let mut p = CpuAffinity::new(&[0, 3], false);
        p.decide(0.9, 0.05, &[1.0, 0.0], 7);
        assert_eq!(p.core(), None, "a processor that is none of its own");
    }

    #[test]
    fn moves_back_off_when_no_processor_is_idle() {
        let mut p = CpuAffinity::new(&[0, 1], true);
        let mut moves = 0;
        for _ in 0..20_000 {
            let here = p.core().unwrap_or(0);
            p.decide(0.5, 0.5, &[0.0, 0.1], here);
            moves += usize::from(p.core() != Some(here) && p.core().is_some());
        }
        assert!((8..25).contains(&moves), "{moves}");
    }

    #[test]
    fn two_ends_sharing_a_processor_do_not_both_move() {
        for idle in [0.0, 1.0] {
            let (mut a, mut b) = (CpuAffinity::new(&[0, 1], true), CpuAffinity::new(&[0, 1], false));
            while a.core().is_none() {
                a.decide(0.5, 0.5, &[0.0, idle], 0);
                b.decide(0.5, 0.5, &[0.0, idle], 0);
            }
            assert_eq!((a.core(), b.core()), (Some(1), None));
            b.decide(0.9, 0.0, &[0.0, 0.0], 0);
            assert_eq!(b.core(), Some(0));
        }
    }
}
