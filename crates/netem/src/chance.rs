//! Random loss and other random events, sampled as distances between events instead of once per packet.

use crate::config::Loss;
use base::Rng;

/// A probability in `0.0..=1.0`.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Default)]
pub struct Probability(f64);

impl Probability {
    /// Never.
    pub const ZERO: Probability = Probability(0.0);
    /// Always.
    pub const ONE: Probability = Probability(1.0);

    /// The probability `p`, as a fraction; `None` unless `0.0 <= p <= 1.0`.
    pub fn new(p: f64) -> Option<Probability> {
        // Adding zero turns -0.0 into 0.0, which prints without a sign.
        (0.0..=1.0).contains(&p).then_some(Probability(p + 0.0))
    }
    /// The fraction, in `0.0..=1.0`.
    pub const fn get(self) -> f64 {
        self.0
    }
}

/// A Bernoulli event per packet, sampled as the geometrically distributed number of packets until the next event,
/// so that a packet without an event costs one decrement.
#[derive(Clone, Debug)]
pub(crate) struct Chance {
    p: Probability,
    /// Packets to pass before the next event.
    left: u64,
}

impl Chance {
    pub(crate) fn new(p: Probability, rng: &mut Rng) -> Chance {
        let mut chance = Chance { p, left: 0 };
        chance.draw(rng);
        chance
    }

    /// Sets the probability; an unchanged one keeps the distance already drawn.
    pub(crate) fn set(&mut self, p: Probability, rng: &mut Rng) {
        if self.p != p {
            *self = Chance::new(p, rng);
        }
    }

    /// Whether the event happens to this packet.
    pub(crate) fn hit(&mut self, rng: &mut Rng) -> bool {
        if self.left > 0 {
            self.left -= 1;
            return false;
        }
        self.draw(rng);
        true
    }

    /// Inversion of the geometric distribution: `floor(ln u / ln(1 - p))` failures before a success.
    fn draw(&mut self, rng: &mut Rng) {
        self.left = if self.p == Probability::ZERO {
            // The next event is 2^64 packets away: never.
            u64::MAX
        } else if self.p == Probability::ONE {
            0
        } else {
            let u = 1.0 - rng.unit(); // In (0, 1]: its logarithm is finite.
            (u.ln() / (-self.p.get()).ln_1p()) as u64
        };
    }
}

/// Random loss. Independent loss is a Gilbert-Elliott chain that never enters the bad state.
#[derive(Clone, Debug)]
pub(crate) struct LossProcess {
    model: Loss,
    is_bad: bool,
    enter_bad: Chance,
    leave_bad: Chance,
    loss_good: Chance,
    loss_bad: Chance,
}

impl LossProcess {
    pub(crate) fn new(model: Loss, rng: &mut Rng) -> LossProcess {
        let (p, r, good, bad) = match model {
            Loss::Independent(loss) => (Probability::ZERO, Probability::ONE, loss, Probability::ZERO),
            Loss::Burst(b) => (b.p, b.r, b.good_loss, b.bad_loss),
        };
        LossProcess {
            model,
            is_bad: false,
            enter_bad: Chance::new(p, rng),
            leave_bad: Chance::new(r, rng),
            loss_good: Chance::new(good, rng),
            loss_bad: Chance::new(bad, rng),
        }
    }

    pub(crate) fn set(&mut self, model: Loss, rng: &mut Rng) {
        if self.model != model {
            *self = LossProcess::new(model, rng);
        }
    }

    /// Whether this packet is lost; the state may change after it.
    pub(crate) fn loses(&mut self, rng: &mut Rng) -> bool {
        let (loss, switch) = if self.is_bad {
            (&mut self.loss_bad, &mut self.leave_bad)
        } else {
            (&mut self.loss_good, &mut self.enter_bad)
        };
        let lost = loss.hit(rng);
        self.is_bad ^= switch.hit(rng);
        lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::BurstLoss;

    fn p(x: f64) -> Probability {
        Probability::new(x).unwrap()
    }

    #[test]
    fn probabilities_outside_zero_to_one_are_refused() {
        for bad in [-0.1, 1.1, f64::NAN, f64::INFINITY] {
            assert_eq!(Probability::new(bad), None);
        }
        assert!(Probability::new(-0.0).unwrap().get().is_sign_positive());
    }

    #[test]
    fn probabilities_zero_and_one_draw_no_random_numbers() {
        let mut rng = Rng::from_u64(1);
        let mut untouched = rng.clone();
        let (mut never, mut always) =
            (Chance::new(Probability::ZERO, &mut rng), Chance::new(Probability::ONE, &mut rng));
        for _ in 0..10_000 {
            assert!(!never.hit(&mut rng) && always.hit(&mut rng));
        }
        assert_eq!(rng.u64(), untouched.u64());
    }

    #[test]
    fn events_occur_with_the_given_probability() {
        const N: u64 = 1_000_000;
        for (seed, q) in [(1, 0.0001), (2, 0.001), (3, 0.01), (4, 0.3), (5, 0.5), (6, 0.99)] {
            let mut rng = Rng::from_u64(seed);
            let mut chance = Chance::new(p(q), &mut rng);
            let hits = (0..N).filter(|_| chance.hit(&mut rng)).count() as f64;
            // Four standard deviations of the binomial distribution.
            let (mean, sigma) = (N as f64 * q, (N as f64 * q * (1.0 - q)).sqrt());
            assert!((hits - mean).abs() < 4.0 * sigma, "p {q}: {hits} hits, expected {mean}");
        }
    }

    #[test]
    fn burst_loss_has_the_mean_and_burst_length_of_the_gilbert_elliott_model() {
        const N: u64 = 2_000_000;
        let cases = [(0.001, 0.2, 0.0, 1.0), (0.01, 0.1, 0.001, 0.5), (0.002, 0.05, 0.0, 1.0)];
        for (seed, (enter, leave, good, bad)) in cases.into_iter().enumerate() {
            let burst = BurstLoss { p: p(enter), r: p(leave), good_loss: p(good), bad_loss: p(bad) };
            let mut rng = Rng::from_u64(seed as u64);
            let mut process = LossProcess::new(Loss::Burst(burst), &mut rng);
            let (mut lost, mut bursts, mut before) = (0u64, 0u64, false);
            for _ in 0..N {
                let now = process.loses(&mut rng);
                lost += u64::from(now);
                bursts += u64::from(now && !before);
                before = now;
            }
            let mean = Loss::Burst(burst).mean().get();
            let theory = (leave * good + enter * bad) / (enter + leave);
            assert!((mean - theory).abs() < 1e-12);
            let measured = lost as f64 / N as f64;
            assert!((measured / mean - 1.0).abs() < 0.05, "loss {measured}, expected {mean}");
            if good == 0.0 && bad == 1.0 {
                // In the bad state every packet is lost, so the mean burst length is the mean stay, 1/r.
                let length = lost as f64 / bursts as f64;
                assert!((length * leave - 1.0).abs() < 0.05, "bursts of {length}, expected {}", 1.0 / leave);
            }
        }
    }
}
