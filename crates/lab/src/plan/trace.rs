//! Traces of delivery opportunities in mahimahi's format: one line for each packet of 1500 bytes that the link could
//! have delivered, with the time in milliseconds (Netravali and others, "Mahimahi: Accurate Record-and-Replay for
//! HTTP", 2015). The time of the last line is the period after which the trace repeats.

use base::Rng;

/// Most lines of a trace: 10 minutes at 1 Gbit/s.
pub const MAX_LINES: usize = 50_000_000;
/// Bytes of a delivery opportunity.
pub const OPPORTUNITY: u64 = 1_500;

/// Why a trace cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TraceError {
    /// The name or the parameters of a synthetic trace are invalid.
    #[error(
        "cannot read `{0}`; write a file's name, or lte(seed=1), lte(seed=1,mean=40mbit,seconds=60), or wifi(...) with the same"
    )]
    Syntax(String),
    /// A line is not a number, or goes back in time.
    #[error(
        "line {line} of the trace is not a time in whole milliseconds that is at or after the line before; each line is one"
    )]
    Line {
        /// From 1.
        line: usize,
    },
    /// It has no lines, or its period is zero.
    #[error("the trace needs at least one line with a time above zero")]
    Empty,
    /// It is too long.
    #[error("the trace has more than {MAX_LINES} lines; cut it")]
    TooLong,
    /// The file cannot be read.
    #[error("cannot read the trace {file}: {why}")]
    File {
        /// Which.
        file: String,
        /// The system's message.
        why: String,
    },
}

/// Parses the lines of a trace.
///
/// # Errors
/// Any [`TraceError`] except [`TraceError::File`] and [`TraceError::Syntax`].
pub fn parse(text: &str) -> Result<Vec<u64>, TraceError> {
    let mut out = Vec::new();
    let mut last = 0;
    for (n, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let at: u64 = line.parse().map_err(|_| TraceError::Line { line: n + 1 })?;
        if at < last {
            return Err(TraceError::Line { line: n + 1 });
        }
        if out.len() == MAX_LINES {
            return Err(TraceError::TooLong);
        }
        last = at;
        out.push(at);
    }
    if last == 0 { Err(TraceError::Empty) } else { Ok(out) }
}

/// A synthetic trace that behaves like a moving LTE receiver; it was not measured.
///
/// What it takes from measurements (Winstein and others, "Stochastic Forecasts Achieve High Throughput and Low Delay over
/// Cellular Networks", 2013, section 2): opportunities arrive as a Poisson process whose rate wanders as Brownian
/// motion (here in the logarithm, pulled back to the mean within a few seconds), over a hundredfold range, with outages
/// that are entered rarely and left after a fraction of a second; and the scheduler gives them out in groups
/// within its interval of a millisecond.
///
/// `mean` is in opportunities per second. The same seed gives the same trace.
pub fn lte(seed: u64, mean: f64, seconds: u32) -> Vec<u64> {
    /// Pull to the mean, per second, and spread of the logarithm's change in a second.
    const PULL: f64 = 0.35;
    const SPREAD: f64 = 0.55;
    /// Rates at which outages begin and end, per second.
    const OUTAGE: f64 = 0.05;
    const RECOVERY: f64 = 4.0;
    /// Limits of the rate as multiples of the mean.
    const RANGE: (f64, f64) = (0.04, 4.0);
    const STEP: f64 = 1e-3;
    let mut rng = Rng::from_u64(seed);
    let (mut log, mut outage) = (0.0f64, false);
    // The mean of a log-normal distribution is above its median; this corrects for it and for outages.
    let bias = (-SPREAD * SPREAD / (4.0 * PULL)).exp() * (1.0 + OUTAGE / RECOVERY);
    let mut out = Vec::new();
    for ms in 1..=u64::from(seconds) * 1_000 {
        log += -PULL * log * STEP + SPREAD * STEP.sqrt() * normal(&mut rng);
        outage = if outage { !rng.chance(RECOVERY * STEP) } else { rng.chance(OUTAGE * STEP) };
        let rate = if outage { 0.0 } else { mean * bias * log.exp().clamp(RANGE.0, RANGE.1) };
        for _ in 0..poisson(&mut rng, rate * STEP) {
            if out.len() < MAX_LINES {
                out.push(ms);
            }
        }
    }
    // The period is the last line's time, so the trace ends with an opportunity.
    out.push(u64::from(seconds.max(1)) * 1_000);
    out
}

/// A synthetic trace that behaves like a shared Wi-Fi channel; it was not measured.
///
/// What it takes from the standard and from measurements: a station sends for up to a transmission opportunity of 4 ms, in which
/// frames are aggregated (IEEE 802.11-2020, section 10.23.2.9), and then waits while others hold the channel, now few and now
/// many; the rate of the radio moves up and down a ladder about ten times a second as its conditions change (Bicket, "Bit-rate
/// Selection in Wireless Networks", 2005).
///
/// `mean` is in opportunities per second. The same seed gives the same trace.
pub fn wifi(seed: u64, mean: f64, seconds: u32) -> Vec<u64> {
    /// Rates as multiples of the lowest (802.11n, 20 MHz, one stream).
    const LADDER: [f64; 8] = [1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 9.0, 10.0];
    /// Probability per millisecond that the rate changes, and that the number of other stations does.
    const MOVES: f64 = 0.01;
    const CROWDS: f64 = 0.0015;
    /// Milliseconds of a transmission opportunity, and mean wait for the next one with few and with many others.
    const TURN: u64 = 4;
    const WAIT: [f64; 2] = [2.0, 12.0];
    let mut rng = Rng::from_u64(seed);
    let (mut rung, mut many, mut turn, mut wait) = (5usize, false, TURN, 0u64);
    let mut share = Vec::new();
    for _ in 0..u64::from(seconds.max(1)) * 1_000 {
        if rng.chance(MOVES) {
            rung = if rng.chance(0.5) { rung.saturating_sub(1) } else { (rung + 1).min(LADDER.len() - 1) };
        }
        many ^= rng.chance(CROWDS);
        if turn > 0 {
            turn -= 1;
            share.push(LADDER[rung]);
            if turn == 0 {
                wait = (-WAIT[usize::from(many)] * (1.0 - rng.unit()).ln()) as u64;
            }
        } else {
            share.push(0.0);
            wait = wait.saturating_sub(1);
        }
        if turn == 0 && wait == 0 {
            turn = TURN;
        }
    }
    let scale = mean * f64::from(seconds.max(1)) / share.iter().sum::<f64>().max(1.0);
    let (mut out, mut due) = (Vec::new(), 0.0);
    for (ms, s) in share.iter().enumerate() {
        due += s * scale;
        while due >= 1.0 && out.len() < MAX_LINES {
            out.push(ms as u64 + 1);
            due -= 1.0;
        }
    }
    // The period is the last line's time, so the trace ends with an opportunity.
    out.push(u64::from(seconds.max(1)) * 1_000);
    out
}

/// Box and Muller, "A Note on the Generation of Random Normal Deviates", 1958.
fn normal(rng: &mut Rng) -> f64 {
    (-2.0 * (1.0 - rng.unit()).ln()).sqrt() * (core::f64::consts::TAU * rng.unit()).cos()
}

/// Knuth's method, for small means.
fn poisson(rng: &mut Rng, mean: f64) -> u32 {
    /// `exp(-mean)` must not vanish.
    const MOST: f64 = 500.0;
    let (limit, mut p, mut n) = ((-mean.min(MOST)).exp(), rng.unit(), 0);
    while p > limit {
        p *= rng.unit();
        n += 1;
    }
    n
}

/// Loads a plan's trace: a file, or the specification of a synthetic trace.
///
/// # Errors
/// [`TraceError`].
pub fn load(spec: &str) -> Result<Vec<u64>, TraceError> {
    type Make = fn(u64, f64, u32) -> Vec<u64>;
    let kinds: [(&str, Make); 2] = [("lte(", lte), ("wifi(", wifi)];
    if let Some((rest, make)) = kinds.into_iter().find_map(|(k, make)| Some((spec.strip_prefix(k)?, make))) {
        let bad = || TraceError::Syntax(spec.to_owned());
        let (mut seed, mut mean, mut seconds) = (1, 40e6, 60);
        for part in rest.strip_suffix(')').ok_or_else(bad)?.split(',').filter(|p| !p.trim().is_empty()) {
            match part.trim().split_once('=').ok_or_else(bad)? {
                ("seed", v) => seed = v.parse().map_err(|_| bad())?,
                ("mean", v) => {
                    mean = super::units::rate(v).ok().flatten().ok_or_else(bad)?.bits_per_sec() as f64;
                }
                ("seconds", v) => seconds = v.parse().ok().filter(|s| *s <= 3_600).ok_or_else(bad)?,
                _ => return Err(bad()),
            }
        }
        return Ok(make(seed, mean / (8.0 * OPPORTUNITY as f64), seconds));
    }
    let file = |why: String| TraceError::File { file: spec.to_owned(), why };
    let text = std::fs::read_to_string(spec).map_err(|e| file(e.to_string()))?;
    parse(&text)
}

/// The mean rate of a trace in bits per second.
pub fn mean_rate(lines: &[u64]) -> f64 {
    let period = lines.last().copied().unwrap_or(0).max(1) as f64 / 1e3;
    lines.len() as f64 * OPPORTUNITY as f64 * 8.0 / period
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trace_times_must_not_decrease() {
        assert_eq!(parse("0\n0\n5\n\n# a comment\n7\n"), Ok(vec![0, 0, 5, 7]));
        assert_eq!(parse("5\n4\n"), Err(TraceError::Line { line: 2 }));
        assert_eq!(parse("x"), Err(TraceError::Line { line: 1 }));
        assert_eq!(parse(""), Err(TraceError::Empty));
        assert_eq!(parse("0\n0"), Err(TraceError::Empty));
    }

    #[test]
    fn lte_trace_is_reproducible_and_has_the_requested_mean() {
        let a = lte(7, 3_000.0, 600);
        assert_eq!(a, lte(7, 3_000.0, 600));
        assert_ne!(a, lte(8, 3_000.0, 600));
        assert!(a.is_sorted() && a.last() == Some(&600_000));
        let mean = mean_rate(&a) / (3_000.0 * 12_000.0);
        assert!((0.7..1.3).contains(&mean), "{mean} of the mean asked for");
        let mut seconds = [0u32; 601];
        a.iter().for_each(|ms| seconds[(*ms / 1_000) as usize] += 1);
        let (low, high) = (seconds[..600].iter().min(), seconds[..600].iter().max());
        assert!(high.copied().unwrap_or(0) > 8 * low.copied().unwrap_or(0).max(1), "{low:?} to {high:?}");
    }

    #[test]
    fn wifi_trace_has_pauses_and_the_requested_mean() {
        let a = wifi(3, 5_000.0, 60);
        assert_eq!(a, wifi(3, 5_000.0, 60));
        assert!(a.is_sorted() && a.last() == Some(&60_000));
        assert!((0.99..1.01).contains(&(mean_rate(&a) / (5_000.0 * 12_000.0))));
        let gaps: Vec<u64> = a.windows(2).map(|w| w[1] - w[0]).filter(|g| *g > 1).collect();
        let long = gaps.iter().filter(|g| **g > 20).count();
        assert!(gaps.len() > 1_000 && long > 20 && gaps.iter().all(|g| *g < 400), "{} {long}", gaps.len());
    }

    #[test]
    fn trace_specifications_are_checked() {
        assert_eq!(load("lte(seed=3)"), Ok(lte(3, 40e6 / 12e3, 60)));
        assert_eq!(load("lte(seed=3,mean=12mbit,seconds=2)"), Ok(lte(3, 1e3, 2)));
        assert_eq!(load("wifi(seed=3,mean=12mbit,seconds=2)"), Ok(wifi(3, 1e3, 2)));
        for bad in ["lte(seed=x)", "wifi(mean=0", "lte(seed=1", "lte(sed=1)", "lte(mean=fast)"] {
            assert!(matches!(load(bad), Err(TraceError::Syntax(_))), "{bad}");
        }
        assert!(matches!(load("/nowhere/there.trace"), Err(TraceError::File { .. })));
    }
}
