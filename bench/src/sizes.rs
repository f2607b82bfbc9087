//! Sizes of files as studies of real file systems find them: a log-normal body with a Pareto tail
//! (Agrawal et al., *A Five-Year Study of File-System Metadata*, FAST 2007; the numbers are those
//! of Impressions, FAST 2009, Table 2).

use rng::Rng;

/// A distribution of sizes in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Mean and standard deviation of the body's logarithm.
    body: (f64, f64),
    /// Probability that a size is of the tail.
    tail_share: f64,
    /// Least size and shape of the tail.
    tail: (f64, f64),
    /// Least and largest size; sizes beyond become these.
    limits: (u64, u64),
}

impl Sizes {
    /// Returns sizes of 4 KiB to 1 GiB, and at most `most`.
    pub fn agrawal(most: u64) -> Self {
        Self {
            body: (9.48, 2.46),
            tail_share: 0.00006,
            tail: ((512 << 20) as f64, 0.91),
            limits: (4 << 10, most.min(1 << 30)),
        }
    }

    /// Draws a size.
    pub fn draw(&self, rng: &mut Rng) -> u64 {
        let size = if unit(rng) < self.tail_share {
            let (least, shape) = self.tail;
            least / unit(rng).powf(1.0 / shape)
        } else {
            let (mean, deviation) = self.body;
            (mean + deviation * normal(rng)).exp()
        };
        (size as u64).clamp(self.limits.0, self.limits.1)
    }
}

/// Draws a number above 0, up to 1.
fn unit(rng: &mut Rng) -> f64 {
    const STEPS: u64 = 1 << 53;
    (rng.below_fast(STEPS) + 1) as f64 / STEPS as f64
}

/// Draws a number of the standard normal distribution (Box and Muller).
fn normal(rng: &mut Rng) -> f64 {
    (-2.0 * unit(rng).ln()).sqrt() * (std::f64::consts::TAU * unit(rng)).cos()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(sizes: Sizes, count: usize) -> Vec<u64> {
        let mut rng = Rng::new(5);
        let mut drawn: Vec<u64> = (0..count).map(|_| sizes.draw(&mut rng)).collect();
        drawn.sort_unstable();
        drawn
    }

    #[test]
    fn quantiles_are_those_of_the_body() {
        let drawn = drawn(Sizes::agrawal(u64::MAX), 100_000);
        let at = |share: f64| drawn[(share * drawn.len() as f64) as usize] as f64;
        // exp(9.48), and one and two deviations above.
        assert!((at(0.5) / 13_100.0 - 1.0).abs() < 0.05, "{}", at(0.5));
        assert!((at(0.8413) / 153_000.0 - 1.0).abs() < 0.05, "{}", at(0.8413));
        assert!((at(0.9772) / 1_795_000.0 - 1.0).abs() < 0.1, "{}", at(0.9772));
    }

    #[test]
    fn limits_hold() {
        let drawn = drawn(Sizes::agrawal(1 << 20), 10_000);
        assert_eq!(drawn.first(), Some(&4096));
        assert_eq!(drawn.last(), Some(&(1 << 20)));
        assert_eq!(Sizes::agrawal(u64::MAX).limits.1, 1 << 30);
    }

    #[test]
    fn the_tail_is_pareto() {
        let only = Sizes { tail_share: 1.0, limits: (0, u64::MAX), ..Sizes::agrawal(u64::MAX) };
        let drawn = drawn(only, 50_000);
        assert!(drawn[0] >= 512 << 20);
        // The median of a Pareto distribution: least × 2^(1/shape).
        let median = drawn[25_000] as f64 / (512 << 20) as f64;
        assert!((median / 2f64.powf(1.0 / 0.91) - 1.0).abs() < 0.05, "{median}");
    }
}
