//! Least-squares fit of a straight line through points.

/// The line with the least squared vertical distances from its points.
#[derive(Clone, Copy, Debug)]
pub(super) struct Line {
    pub(super) slope: f64,
    pub(super) intercept: f64,
    /// The part of the points' variance that the line explains (R squared).
    pub(super) explained: f64,
}

impl Line {
    /// Fits a line to `points`; `NaN` unless two points have different abscissae.
    pub(super) fn through(points: &[(f64, f64)]) -> Self {
        let count: f64 = points.iter().map(|_| 1.0).sum();
        let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
        let (mean_x, mean_y) = (mean(|point| point.0), mean(|point| point.1));
        let sum = |of: &dyn Fn(f64, f64) -> f64| {
            let terms = points.iter().map(|(x, y)| of(x - mean_x, y - mean_y));
            terms.sum::<f64>()
        };
        let (xx, xy, yy) = (sum(&|x, _| x * x), sum(&|x, y| x * y), sum(&|_, y| y * y));
        let slope = xy / xx;
        Self {
            slope,
            intercept: mean_y - slope * mean_x,
            explained: xy * xy / (xx * yy),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the fit finds a line again, and one that explains little says so. Method: points on a
    /// line, and off it.
    #[test]
    fn lines_are_found_again() {
        let on = Line::through(&[(1.0, 5.0), (2.0, 7.0), (4.0, 11.0)]);
        assert!((on.slope - 2.0).abs() < 1e-12 && (on.intercept - 3.0).abs() < 1e-12);
        assert!((on.explained - 1.0).abs() < 1e-12);
        let off = Line::through(&[(1.0, 1.0), (2.0, 0.0), (3.0, 1.0)]);
        assert!(off.explained.abs() < 1e-12);
        assert!(Line::through(&[(1.0, 1.0)]).slope.is_nan());
        assert!(Line::through(&[]).slope.is_nan());
    }
}
