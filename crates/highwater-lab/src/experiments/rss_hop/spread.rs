//! Statistics of errors: mean, root mean square, and extremes of `precise - shown`.

/// Errors in pages, positive where too little is shown.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spread {
    samples: u32,
    sum: i128,
    squares: u128,
    min: i64,
    max: i64,
}

impl Spread {
    pub(super) const fn new() -> Self {
        Self {
            samples: 0,
            sum: 0,
            squares: 0,
            min: i64::MAX,
            max: i64::MIN,
        }
    }

    #[inline]
    pub(super) fn add(&mut self, error: i64) {
        self.samples += 1;
        self.sum += i128::from(error);
        let size = u128::from(error.unsigned_abs());
        self.squares += size * size;
        self.min = self.min.min(error);
        self.max = self.max.max(error);
    }

    /// Returns the errors of both.
    pub(super) fn joined(self, other: Self) -> Self {
        Self {
            samples: self.samples + other.samples,
            sum: self.sum + other.sum,
            squares: self.squares + other.squares,
            min: self.min.min(other.min),
            max: self.max.max(other.max),
        }
    }

    #[expect(
        clippy::cast_precision_loss,
        reason = "sums of errors for people: 53 bits are enough"
    )]
    pub(super) fn mean(&self) -> f64 {
        self.sum as f64 / f64::from(self.samples)
    }

    #[expect(
        clippy::cast_precision_loss,
        reason = "sums of errors for people: 53 bits are enough"
    )]
    pub(super) fn rms(&self) -> f64 {
        (self.squares as f64 / f64::from(self.samples)).sqrt()
    }

    pub(super) const fn min(&self) -> i64 {
        self.min
    }

    pub(super) const fn max(&self) -> i64 {
        self.max
    }

    /// Returns the largest error, in either direction.
    pub(super) fn peak(&self) -> i64 {
        self.max.abs().max(self.min.abs())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_is_what_it_says() {
        let mut one = Spread::new();
        let mut other = Spread::new();
        for error in [3, -5] {
            one.add(error);
        }
        other.add(2);
        let all = one.joined(other);
        assert_eq!((all.min(), all.max(), all.peak()), (-5, 3, 5));
        assert!(all.mean().abs() < 1e-12);
        assert!((all.rms() - (38.0_f64 / 3.0).sqrt()).abs() < 1e-12);
    }
}
