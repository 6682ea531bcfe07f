//! Injects packet loss, for measurements.

use base::Rng;

/// Drops datagrams that have arrived.
#[derive(Debug)]
pub(super) struct LossInjector {
    rng: Rng,
    share: f64,
    /// Datagrams that still pass.
    passing: u64,
}

impl LossInjector {
    pub fn new(share: f64, rng: Rng) -> LossInjector {
        let mut l = LossInjector { rng, share, passing: 0 };
        l.draw();
        l
    }
    /// Calls `take` with the remaining pieces of a train of datagrams of `stride` bytes, each with the number of
    /// datagrams before it in the train.
    pub fn pass(
        loss: &mut Option<LossInjector>,
        train: &mut [u8],
        stride: usize,
        mut take: impl FnMut(&mut [u8], usize),
    ) {
        let Some(loss) = loss else { return take(train, 0) };
        let (mut rest, mut before) = (train, 0);
        while !rest.is_empty() {
            let (pass, lost) = loss.cut(rest, stride);
            let (piece, behind) = rest.split_at_mut(pass);
            if !piece.is_empty() {
                take(piece, before);
            }
            before += (pass + lost).div_ceil(stride.max(1));
            rest = &mut behind[lost..];
        }
    }
    /// How many pass before the next is lost: geometrically distributed.
    fn draw(&mut self) {
        let u = 1.0 - self.rng.unit();
        self.passing = (u.ln() / (1.0 - self.share).ln()) as u64;
    }
    /// The first piece of `train` that passes whole: its length, and that of what is lost behind it.
    pub fn cut(&mut self, train: &[u8], stride: usize) -> (usize, usize) {
        let all = train.len().div_ceil(stride.max(1)) as u64;
        if self.passing >= all {
            self.passing -= all;
            return (train.len(), 0);
        }
        let pass = self.passing as usize * stride;
        self.draw();
        (pass, stride.min(train.len() - pass))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configured_share_of_datagrams_is_lost() {
        let mut l = LossInjector::new(0.01, Rng::from_u64(1));
        let (mut passed, mut lost) = (0, 0);
        for n in 0..20_000 {
            // Trains of 1 to 44 datagrams of 100 bytes, the last one of 7.
            let train = vec![0; n % 44 * 100 + 7];
            let mut rest = &train[..];
            while !rest.is_empty() {
                let (pass, gone) = l.cut(rest, 100);
                (passed, lost) = (passed + pass.div_ceil(100), lost + usize::from(gone > 0));
                assert!(
                    gone == 0 && pass == rest.len() || gone == 100 || gone == 7 && pass + 7 == rest.len()
                );
                rest = &rest[pass + gone..];
            }
        }
        let share = lost as f64 / (passed + lost) as f64;
        assert!((0.009..0.011).contains(&share), "{share}");
    }
}
