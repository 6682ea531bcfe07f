//! Ranks the cipher suites of module "aead" by a quick measurement on this processor.
//!
//! Whether AEGIS beats AES-GCM, and its wide variant the narrow one, depends on the processor's AES instructions, on how
//! wide they are and on what a hypervisor lets through: measuring tells, in about a millisecond. Time is passed in.

use base::{Span, Time};

use super::packet::{IV_LEN, OpenKey, SealKey};
use super::suite::Suite;

/// Packets sealed and opened in one run, each of [`PACKET`] bytes: 22 KiB, which stay in the first cache.
const PACKETS: usize = 16;
const PACKET: usize = 1_400;
/// Runs of each suite, of which the median counts: an interrupt or a cold cache spoils one or two. Odd.
const RUNS: usize = 5;
/// A suite that has taken this long is not run again: it is slow, and one run shows that well enough. Fast ones take
/// 10 to 100 us for all runs.
const BUDGET: Span = Span::from_micros(300);
/// Steps of the cost's scale in which time doubles: 19 % each, so that near-equals are equal.
const STEPS: f64 = 4.0;

/// The suites of module "aead", fastest first, each with its cost: [`cost`] of a packet sealed and opened. `clock` gives
/// the time now. Equally fast ones keep the order of [`Suite::ALL`].
pub fn fastest_first(clock: &mut dyn FnMut() -> Time) -> Vec<(Suite, u8)> {
    let aead = Suite::ALL.into_iter().filter(|s| s.module() == wire::Module::Aead);
    let mut measured: Vec<(Suite, Span)> = aead.map(|s| (s, measure(s, clock))).collect();
    measured.sort_by_key(|(_, time)| *time);
    measured.into_iter().map(|(s, time)| (s, cost(time))).collect()
}

/// What is told of a time: the quarters of its binary logarithm, in nanoseconds; 1 to 255. 1 us gives 40, 2 us 44.
pub fn cost(time: Span) -> u8 {
    let steps = (time.as_nanos().max(1) as f64).log2() * STEPS;
    // At most 4 times 64, less a little: cut to the byte.
    steps.round().clamp(1.0, 255.0) as u8
}

/// How long one packet takes to be sealed and opened: the median of the runs.
fn measure(suite: Suite, clock: &mut dyn FnMut() -> Time) -> Span {
    let mut times = [Span::ZERO; RUNS];
    let mut packets = vec![[0u8; PACKET]; PACKETS];
    // Nothing secret is sealed, and nothing sealed is shown.
    let (key, iv) = ([0x5a; 32], [0xa5; IV_LEN]);
    let key = &key[..suite.key_len()];
    let (seal, open) = (SealKey::new(suite, key, &iv), OpenKey::new(suite, key, &iv));
    let (start, mut done) = (clock(), 0);
    let mut before = start;
    while done < RUNS && (done == 0 || before.since(start) < BUDGET) {
        for (p, pn) in packets.iter_mut().zip(0..) {
            let opened = seal.seal(0, pn, &[0; 9], p).map(|tag| open.open(0, pn, &[0; 9], &tag, p));
            debug_assert_eq!(opened, Ok(Ok(())), "{suite} opens what it seals");
            core::hint::black_box(p);
        }
        let now = clock();
        times[done] = now.since(before);
        (before, done) = (now, done + 1);
    }
    let times = &mut times[..done];
    times.sort_unstable();
    Span::from_nanos(times[done / 2].as_nanos() / PACKETS as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SUITES: [Suite; 4] =
        [Suite::Aes128Gcm, Suite::ChaCha20Poly1305, Suite::Aegis128L, Suite::Aegis128X2];

    /// A clock by which the runs of each suite take the times that are given, in microseconds, in turn.
    fn ticking(runs: [&[u64]; 4]) -> (Vec<(Suite, u8)>, usize) {
        let mut steps: Vec<u64> = Vec::new();
        for times in runs {
            steps.push(0);
            steps.extend(times);
        }
        let (mut at, mut read) = (0, 0);
        let got = fastest_first(&mut || {
            at += steps[read] * 1_000;
            read += 1;
            Time::from_nanos(at)
        });
        (got, read)
    }

    #[test]
    fn suites_are_ordered_by_median_time() {
        let (got, read) =
            ticking([&[32, 32, 32, 32, 32], &[48; 5], &[160, 16, 16, 1, 16], &[8, 8, 90, 8, 90]]);
        let order: Vec<Suite> = got.iter().map(|(s, _)| *s).collect();
        assert_eq!(order, [Suite::Aegis128X2, Suite::Aegis128L, Suite::Aes128Gcm, Suite::ChaCha20Poly1305]);
        // Sixteen packets a run: 0.5, 1, 2 and 3 us a packet.
        let costs: Vec<u8> = got.iter().map(|(_, c)| *c).collect();
        assert_eq!(costs, [36, 40, 44, 46]);
        assert_eq!(read, 4 * 6, "no reading more than needed");
    }

    #[test]
    fn slow_suites_run_once_and_ties_keep_their_order() {
        // The first once; the second until the budget is used; a clock that stands still measures nothing.
        let (got, read) = ticking([&[5_000], &[200, 200], &[0; 5], &[0; 5]]);
        let order: Vec<Suite> = got.iter().map(|(s, _)| *s).collect();
        assert_eq!(order, [Suite::Aegis128L, Suite::Aegis128X2, Suite::ChaCha20Poly1305, Suite::Aes128Gcm]);
        assert_eq!((got[0].1, got[1].1), (1, 1));
        assert_eq!(read, 2 + 3 + 6 + 6);
    }

    #[test]
    fn every_suite_of_the_module_is_measured() {
        assert!(SUITES.iter().all(|s| s.module() == wire::Module::Aead));
        let mut at = 0;
        let got = fastest_first(&mut || {
            at += 1_000;
            Time::from_nanos(at)
        });
        assert_eq!(got.len(), SUITES.len());
        assert!(SUITES.iter().all(|s| got.iter().any(|(t, _)| t == s)));
    }

    #[test]
    fn costs_fit_a_byte_and_are_never_zero() {
        assert_eq!(cost(Span::ZERO), 1);
        assert_eq!((cost(Span::from_micros(1)), cost(Span::from_micros(2))), (40, 44));
        assert_eq!(cost(Span::from_nanos(u64::MAX)), 255);
    }
}
