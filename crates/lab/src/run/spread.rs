//! Statistics of equal runs: quantiles, and groups (modes) with gaps between them.

/// Neighbouring values further apart than this share of the median belong to different modes.
pub const GAP: f64 = 0.25;

/// A group of runs that lie close together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mode {
    /// How many runs it has.
    pub runs: usize,
    /// Their median.
    pub median: f64,
}

/// An interpolated quantile of sorted values (Hyndman and Fan, "Sample Quantiles in Statistical Packages", 1996, type
/// 7); zero for none.
pub fn quantile(sorted: &[f64], share: f64) -> f64 {
    let at = sorted.len().saturating_sub(1) as f64 * share.clamp(0.0, 1.0);
    let (below, part) = (at.floor() as usize, at.fract());
    let low = sorted.get(below).copied().unwrap_or(0.0);
    let high = sorted.get(below + 1).copied().unwrap_or(low);
    low + (high - low) * part
}

/// The groups of sorted values, the lowest first: a new one begins where two neighbours are further apart than [`GAP`] of the
/// median. A single run far from all others is a group of its own. Values whose median is zero are one group.
pub fn modes(sorted: &[f64]) -> Vec<Mode> {
    let gap = quantile(sorted, 0.5).abs() * GAP;
    let apart = |a: &f64, b: &f64| gap == 0.0 || (b - a) <= gap;
    sorted.chunk_by(apart).map(|g| Mode { runs: g.len(), median: quantile(g, 0.5) }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(values: &[f64]) -> Vec<(usize, f64)> {
        modes(values).iter().map(|m| (m.runs, (m.median * 1e6).round() / 1e6)).collect()
    }

    #[test]
    fn quantiles_are_interpolated() {
        assert_eq!(quantile(&[1.0, 2.0, 3.0], 0.5), 2.0);
        assert_eq!(quantile(&[1.0, 2.0], 0.5), 1.5);
        assert_eq!(quantile(&[1.0, 11.0], 0.1), 2.0);
        assert_eq!((quantile(&[], 0.5), quantile(&[4.0], 0.1)), (0.0, 4.0));
    }

    #[test]
    fn runs_with_a_gap_between_them_are_of_two_modes() {
        assert_eq!(found(&[0.10, 0.11, 0.95, 0.97, 0.99]), [(2, 0.105), (3, 0.97)]);
        // A single outlier is detected.
        assert_eq!(found(&[0.1, 0.98, 0.98, 0.99, 1.0]), [(1, 0.1), (4, 0.985)]);
        // A gap of exactly a quarter does not count, nor do many small ones.
        assert_eq!(found(&[0.75, 1.0, 1.0]).len(), 1);
        assert_eq!(found(&[0.5, 0.6, 0.7, 0.8, 0.9, 1.0]).len(), 1);
        assert_eq!(found(&[1.0, 2.0, 3.0]).len(), 3);
    }

    #[test]
    fn few_runs_and_zeros_have_one_mode() {
        assert!(found(&[]).is_empty());
        assert_eq!(found(&[3.0]), [(1, 3.0)]);
        assert_eq!(found(&[0.0, 0.0, 0.5]), [(3, 0.0)]);
    }
}
