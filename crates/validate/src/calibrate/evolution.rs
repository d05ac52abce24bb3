//! The least value of a function without derivatives: the evolution strategy with covariance matrix adaptation (CMA-ES),
//! after N. Hansen, "The CMA Evolution Strategy: A Tutorial" (arXiv:1604.00772), with its standard parameters.
//!
//! The error of a simulation has long narrow valleys, since a dearer token and a cheaper pass look much alike, and steps,
//! since a little less time lets a request join another pass. This method learns the shape of the valley and looks
//! only at which of its guesses are better, so steps do not stop it.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use std::f64::consts::TAU;

/// Where the search ended.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Least {
    pub at: Vec<f64>,
    pub value: f64,
}

/// Searches around `start`, at first as far as `spread`, for about `evaluations` values of `f`, or until all guesses of a
/// generation are as good as each other. What has no value counts as infinite. The same input gives the same answer.
///
/// # Errors
/// The first that `f` gives.
pub(super) fn minimize<E>(
    start: &[f64],
    spread: f64,
    evaluations: usize,
    mut f: impl FnMut(&[f64]) -> Result<f64, E>,
) -> Result<Least, E> {
    let mut value = |x: &[f64]| f(x).map(|value| if value.is_nan() { f64::INFINITY } else { value });
    let mut best = Least { at: start.to_vec(), value: value(start)? };
    let mut strategy = Strategy::new(start, spread);
    let mut normal = Normal(ChaCha8Rng::seed_from_u64(1));
    for _ in 0..evaluations.div_ceil(strategy.children) {
        let (axes, lengths) = eigen(&strategy.covariance);
        let mut children = Vec::with_capacity(strategy.children);
        for _ in 0..strategy.children {
            let drawn: Vec<f64> = lengths.iter().map(|length| length * normal.draw()).collect();
            let step = combined(&axes, &drawn);
            let at: Vec<f64> = strategy.mean.iter().zip(&step).map(|(m, s)| m + strategy.sigma * s).collect();
            children.push((Least { value: value(&at)?, at }, step));
        }
        children.sort_by(|a, b| a.0.value.total_cmp(&b.0.value));
        let (first, last) = (&children[0].0, &children[children.len() - 1].0);
        if first.value < best.value {
            best = first.clone();
        }
        let flat = last.value - first.value <= 1e-9 * first.value.abs();
        let steps: Vec<&[f64]> = children.iter().map(|(_, step)| &step[..]).collect();
        strategy.adapt(&steps, &axes, &lengths);
        if flat || strategy.sigma * lengths.iter().copied().fold(0.0, f64::max) < 1e-6 {
            break;
        }
    }
    Ok(best)
}

/// Mean, step size and covariance of the guesses, and the paths along which they went (section B of the tutorial).
struct Strategy {
    children: usize,
    /// Of the better half, by rank; they sum to 1.
    weights: Vec<f64>,
    /// How many of them count, as it were.
    mass: f64,
    mean: Vec<f64>,
    sigma: f64,
    covariance: Vec<Vec<f64>>,
    path: Vec<f64>,
    sigma_path: Vec<f64>,
    generation: i32,
}

impl Strategy {
    fn new(start: &[f64], sigma: f64) -> Strategy {
        let n = start.len();
        let children = 4 + (3.0 * (n as f64).ln()).floor() as usize;
        let half = children / 2;
        let raw: Vec<f64> =
            (0..half).map(|i| ((children as f64 + 1.0) / 2.0).ln() - (i as f64 + 1.0).ln()).collect();
        let sum: f64 = raw.iter().sum();
        let weights: Vec<f64> = raw.iter().map(|w| w / sum).collect();
        let mass = 1.0 / weights.iter().map(|w| w * w).sum::<f64>();
        let covariance = (0..n).map(|i| (0..n).map(|j| f64::from(u8::from(i == j))).collect()).collect();
        Strategy {
            children,
            weights,
            mass,
            mean: start.to_vec(),
            sigma,
            covariance,
            path: vec![0.0; n],
            sigma_path: vec![0.0; n],
            generation: 0,
        }
    }

    /// Learns from the steps of a generation, the best first.
    fn adapt(&mut self, steps: &[&[f64]], axes: &[Vec<f64>], lengths: &[f64]) {
        let n = self.mean.len() as f64;
        let mass = self.mass;
        let sigma_rate = (mass + 2.0) / (n + mass + 5.0);
        let damping = 1.0 + 2.0 * (((mass - 1.0) / (n + 1.0)).sqrt() - 1.0).max(0.0) + sigma_rate;
        let path_rate = (4.0 + mass / n) / (n + 4.0 + 2.0 * mass / n);
        let one_rate = 2.0 / ((n + 1.3).powi(2) + mass);
        let many_rate = (1.0 - one_rate).min(2.0 * (mass - 2.0 + 1.0 / mass) / ((n + 2.0).powi(2) + mass));
        let expected = n.sqrt() * (1.0 - 1.0 / (4.0 * n) + 1.0 / (21.0 * n * n));

        let step: Vec<f64> = (0..self.mean.len())
            .map(|i| self.weights.iter().zip(steps).map(|(weight, step)| weight * step[i]).sum())
            .collect();
        for (mean, step) in self.mean.iter_mut().zip(&step) {
            *mean += self.sigma * step;
        }
        // The step as it would be if the covariance were a ball.
        let along: Vec<f64> = axes
            .iter()
            .zip(lengths)
            .map(|(axis, length)| axis.iter().zip(&step).map(|(a, s)| a * s).sum::<f64>() / length)
            .collect();
        let round = combined(axes, &along);
        let norm = advance(&mut self.sigma_path, &round, sigma_rate, mass);
        self.generation += 1;
        let settled = (1.0 - (1.0 - sigma_rate).powi(2 * self.generation)).sqrt();
        let goes_on = norm / settled < (1.4 + 2.0 / (n + 1.0)) * expected;
        let lost = if goes_on { 0.0 } else { path_rate * (2.0 - path_rate) };
        let pace = if goes_on { mass } else { 0.0 };
        advance(&mut self.path, &step, path_rate, pace);
        let kept = 1.0 - one_rate - many_rate + one_rate * lost;
        for i in 0..self.mean.len() {
            for j in 0..self.mean.len() {
                let many: f64 =
                    self.weights.iter().zip(steps).map(|(weight, step)| weight * step[i] * step[j]).sum();
                self.covariance[i][j] =
                    kept * self.covariance[i][j] + one_rate * self.path[i] * self.path[j] + many_rate * many;
            }
        }
        self.sigma *= ((sigma_rate / damping) * (norm / expected - 1.0)).min(1.0).exp();
    }
}

/// A path decays, and goes on by a step. Its length afterwards.
fn advance(path: &mut [f64], step: &[f64], rate: f64, mass: f64) -> f64 {
    let gain = (rate * (2.0 - rate) * mass).sqrt();
    for (path, step) in path.iter_mut().zip(step) {
        *path = (1.0 - rate) * *path + gain * step;
    }
    path.iter().map(|x| x * x).sum::<f64>().sqrt()
}

/// Σ amount · axis.
fn combined(axes: &[Vec<f64>], amounts: &[f64]) -> Vec<f64> {
    let of = |i: usize| axes.iter().zip(amounts).map(|(axis, amount)| axis[i] * amount).sum();
    (0..axes.len()).map(of).collect()
}

/// Axes of a symmetric matrix, and the roots of its eigenvalues, by Jacobi's rotations.
fn eigen(matrix: &[Vec<f64>]) -> (Vec<Vec<f64>>, Vec<f64>) {
    let n = matrix.len();
    let mut a = matrix.to_vec();
    let mut axes: Vec<Vec<f64>> =
        (0..n).map(|i| (0..n).map(|j| f64::from(u8::from(i == j))).collect()).collect();
    for _ in 0..50 {
        let off: f64 = (0..n).flat_map(|i| (0..i).map(move |j| (i, j))).map(|(i, j)| a[i][j].powi(2)).sum();
        if off < 1e-24 * (0..n).map(|i| a[i][i].powi(2)).sum::<f64>() {
            break;
        }
        for p in 0..n {
            for q in p + 1..n {
                if a[p][q] == 0.0 {
                    continue;
                }
                let theta = 0.5 * (2.0 * a[p][q]).atan2(a[q][q] - a[p][p]);
                let (sin, cos) = theta.sin_cos();
                for row in &mut a {
                    (row[p], row[q]) = (cos * row[p] - sin * row[q], sin * row[p] + cos * row[q]);
                }
                for k in 0..n {
                    (a[p][k], a[q][k]) = (cos * a[p][k] - sin * a[q][k], sin * a[p][k] + cos * a[q][k]);
                    (axes[p][k], axes[q][k]) =
                        (cos * axes[p][k] - sin * axes[q][k], sin * axes[p][k] + cos * axes[q][k]);
                }
            }
        }
    }
    let lengths = (0..n).map(|i| a[i][i].max(1e-20).sqrt()).collect();
    (axes, lengths)
}

/// Standard normal numbers (Box and Muller).
struct Normal(ChaCha8Rng);

impl Normal {
    fn draw(&mut self) -> f64 {
        let mut uniform = || ((self.0.next_u64() >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
        let (radius, angle) = ((-2.0 * uniform().ln()).sqrt(), TAU * uniform());
        radius * angle.cos()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    #[test]
    fn the_valley_of_rosenbrock() {
        let f = |x: &[f64]| {
            let valley = x.windows(2).map(|p| 100.0 * (p[1] - p[0] * p[0]).powi(2) + (1.0 - p[0]).powi(2));
            Ok::<_, Infallible>(valley.sum())
        };
        let Ok(least) = minimize(&[-1.2, 1.0, -0.5, 0.3, 2.0], 0.5, 8000, f);
        assert!(least.value < 1e-8 && least.at.iter().all(|x| (x - 1.0).abs() < 1e-3), "{least:?}");
    }

    #[test]
    fn steps_do_not_stop_it() {
        // Whole numbers of hundredths, and a ridge on which one coordinate undoes the other.
        let f = |x: &[f64]| {
            let value = 50.0 * (x[0] + x[1] - 3.0).abs() + (x[0] - 1.0).abs();
            Ok::<_, Infallible>((value * 100.0).floor() / 100.0)
        };
        let Ok(least) = minimize(&[9.0, -9.0], 1.0, 3000, f);
        assert!(least.value <= 0.02, "{least:?}");
    }

    #[test]
    fn an_error_and_the_number_of_evaluations_end_it() {
        let mut asked = 0;
        let least = minimize(&[5.0, 5.0, 5.0], 1.0, 50, |x| {
            asked += 1;
            Ok::<_, Infallible>(x.iter().map(|x| x * x).sum())
        });
        let Ok(least) = least;
        assert!(least.value < 75.0 && asked < 60, "{least:?} after {asked}");
        assert_eq!(minimize(&[1.0], 1.0, 50, |_| Err::<f64, _>("no")), Err("no"));
    }

    #[test]
    fn a_place_without_a_value_is_avoided() {
        let f = |x: &[f64]| Ok::<_, Infallible>(if x[0] > 3.0 { f64::NAN } else { (x[0] - 2.0).abs() });
        let Ok(least) = minimize(&[0.0], 2.5, 400, f);
        assert!((least.at[0] - 2.0).abs() < 1e-3, "{least:?}");
    }
}
