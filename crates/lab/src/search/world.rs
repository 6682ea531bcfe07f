//! The worlds of the search: path conditions as a few numbers that can be drawn, mutated, and written as a plan.

use base::Rng;
use std::fmt::Write as _;

/// Range of a number that is drawn uniformly in its logarithm.
type Range = (f64, f64);

/// In kbit/s. Faster ones take longer to simulate and show the same.
const RATE: Range = (4_000.0, 120_000.0);
/// In microseconds.
const RTT: Range = (2_000.0, 300_000.0);
/// In thousandths of the bandwidth-delay product.
const QUEUE: Range = (30.0, 8_000.0);
/// In millionths of the packets.
const LOSS: Range = (50.0, 100_000.0);
/// Packets of a loss burst; one is single losses. The chain advances by packets and not by time, so a long burst
/// lasts until a sender that waits for time-outs has sent as many, which stalls every algorithm.
const BURST: Range = (1.0, 8.0);
/// In microseconds to each side.
const JITTER: Range = (200.0, 30_000.0);
/// Reordering in millionths of the packets, and its delay in microseconds.
const REORDER: Range = (100.0, 50_000.0);
const REORDER_DELAY: Range = (500.0, 30_000.0);
/// In per cent of the rate, and in kibibytes.
const POLICE: Range = (20.0, 95.0);
const BUCKET: Range = (8.0, 2_048.0);
/// In per cent of the rate.
const HOST: Range = (30.0, 120.0);

/// Probability that an optional impairment is absent.
const ABSENT_PROBABILITY: f64 = 0.4;
/// Largest factor of a mutation, in either direction.
const MAX_FACTOR: f64 = 2.5;
/// Numbers of a world.
const NUMBERS: u64 = 10;

/// Path conditions. Zero stands for an absent impairment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct World {
    /// Rate in kbit/s.
    pub rate: u64,
    /// Round trip in microseconds.
    pub rtt: u64,
    /// Queue in thousandths of the bandwidth-delay product.
    pub queue: u64,
    /// Loss in millionths, and packets of a burst of it.
    pub loss: (u64, u64),
    /// Jitter in microseconds, and whether it is normally distributed.
    pub jitter: (u64, bool),
    /// Whether jitter may reorder packets.
    pub free: bool,
    /// Packets that come late, in millionths, and how much later in microseconds.
    pub reorder: (u64, u64),
    /// Rate of a policer in per cent of the rate, and its bucket in kibibytes.
    pub police: (u64, u64),
    /// Rate of the receiver's host, in per cent of the rate.
    pub host: u64,
}

/// Rounds to two digits, which are enough and easier to read.
fn two_digits(v: f64) -> u64 {
    let unit = 10f64.powf(v.max(1.0).log10().floor() - 1.0).max(1.0);
    ((v / unit).round() * unit) as u64
}

fn draw(rng: &mut Rng, (low, high): Range) -> u64 {
    two_digits(low * (high / low).powf(rng.unit()))
}

fn draw_or_none(rng: &mut Rng, range: Range) -> u64 {
    if rng.chance(ABSENT_PROBABILITY) { 0 } else { draw(rng, range) }
}

/// A number near this one; an absent one may appear, and a present one vanish.
fn mutate_number(rng: &mut Rng, v: u64, range: Range, optional: bool) -> u64 {
    if v == 0 {
        return draw(rng, range);
    }
    if optional && rng.chance(0.2) {
        return 0;
    }
    let by = MAX_FACTOR.powf(2.0 * rng.unit() - 1.0);
    two_digits((v as f64 * by).clamp(range.0, range.1))
}

impl World {
    /// A random world.
    pub fn random(rng: &mut Rng) -> World {
        World {
            rate: draw(rng, RATE),
            rtt: draw(rng, RTT),
            queue: draw(rng, QUEUE),
            loss: (draw_or_none(rng, LOSS), if rng.chance(0.6) { 1 } else { draw(rng, BURST) }),
            jitter: (draw_or_none(rng, JITTER), rng.chance(0.3)),
            free: rng.chance(0.5),
            reorder: (if rng.chance(0.8) { 0 } else { draw(rng, REORDER) }, draw(rng, REORDER_DELAY)),
            police: (if rng.chance(0.8) { 0 } else { draw(rng, POLICE) }, draw(rng, BUCKET)),
            host: if rng.chance(0.85) { 0 } else { draw(rng, HOST) },
        }
    }

    /// This world with one to three numbers mutated.
    pub fn mutated(&self, rng: &mut Rng) -> World {
        let mut w = *self;
        for _ in 0..=rng.below(3) {
            match rng.below(NUMBERS) {
                0 => w.rate = mutate_number(rng, w.rate, RATE, false),
                1 => w.rtt = mutate_number(rng, w.rtt, RTT, false),
                2 => w.queue = mutate_number(rng, w.queue, QUEUE, false),
                3 => w.loss.0 = mutate_number(rng, w.loss.0, LOSS, true),
                4 => w.loss.1 = mutate_number(rng, w.loss.1, BURST, false),
                5 => w.jitter.0 = mutate_number(rng, w.jitter.0, JITTER, true),
                6 => w.free = !w.free,
                7 => {
                    w.reorder = (
                        mutate_number(rng, w.reorder.0, REORDER, true),
                        mutate_number(rng, w.reorder.1, REORDER_DELAY, false),
                    )
                }
                8 => {
                    w.police = (
                        mutate_number(rng, w.police.0, POLICE, true),
                        mutate_number(rng, w.police.1, BUCKET, false),
                    )
                }
                _ => w.host = mutate_number(rng, w.host, HOST, true),
            }
        }
        w
    }

    /// As a grid of a plan, with this name and seed.
    pub fn grid(&self, name: &str, seed: u64) -> String {
        let mut out = format!(
            "[[grid]]\nname = \"{name}\"\nseed = {seed}\n[grid.topology]\nrate = \"{}kbit\"\nrtt = \"{}us\"\nqueue = \"{}bdp\"\n",
            self.rate,
            self.rtt,
            self.queue as f64 / 1e3
        );
        let mut key = |k: &str, v: String| {
            // Writing to a string does not fail.
            let _ = writeln!(out, "{k} = \"{v}\"");
        };
        let percent = |millionths: f64| format!("{}%", (millionths * 1e2).round() / 1e6);
        if let (loss @ 1.., burst) = self.loss {
            key("loss", if burst > 1 { bursts(loss, burst) } else { percent(loss as f64) });
        }
        if let (us @ 1.., normal) = self.jitter {
            key("jitter", if normal { format!("normal({us}us)") } else { format!("{us}us") });
            if self.free {
                key("order", "free".to_owned());
            }
        }
        if self.reorder.0 > 0 {
            key("reorder", format!("{}({}us)", percent(self.reorder.0 as f64), self.reorder.1));
        }
        if self.police.0 > 0 {
            key("police", format!("{}kbit({}KiB)", self.rate * self.police.0 / 100, self.police.1));
        }
        if self.host > 0 {
            key("host_rate", format!("{}kbit", self.rate * self.host / 100));
        }
        out
    }
}

/// Burst loss with this mean loss in millionths and mean burst length: the chain leaves the bad state after `burst`
/// packets on average.
fn bursts(loss: u64, burst: u64) -> String {
    let (mean, r) = (loss as f64 / 1e6, 1.0 / burst as f64);
    let p = r * mean / (1.0 - mean);
    let percent = |v: f64| format!("{}%", (v * 1e6).round() / 1e4);
    format!("burst(p={},r={})", percent(p.max(1e-6)), percent(r))
}
