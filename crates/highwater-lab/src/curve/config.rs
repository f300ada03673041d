//! The configuration of a run.

use std::collections::HashSet;
use std::path::PathBuf;

use highwater::units::Bytes;

use super::error::CurveError;
use super::report::Mode;
use crate::models::Algorithm;
use crate::replay::{TenantConfig, TraceInput};

/// Sizes of a curve, unless others are asked for.
pub const NR_SIZES: usize = 24;

/// Most sizes of a curve. Chosen: more than any figure shows.
pub const NR_SIZES_MAX: usize = 200;

/// Policies that have a model here: those of the manager, and LRU, which its two-list policy
/// approximates, first; then others.
pub const POLICIES: [(Algorithm, &str); 9] = [
    (Algorithm::Lru, "lru"),
    (Algorithm::Clock, "clock"),
    (Algorithm::Sieve, "sieve"),
    (Algorithm::S3Fifo, "s3-fifo"),
    (Algorithm::Car, "car"),
    (Algorithm::Balanced, "balanced"),
    (Algorithm::Fifo, "fifo"),
    (Algorithm::TwoQ, "2q"),
    (Algorithm::Arc, "arc"),
];

/// Policies of the manager among [`POLICIES`].
pub const NR_OF_MANAGER: usize = 6;

/// Returns the name of a policy in a report.
///
/// # Panics
///
/// For Belady's, which knows the future and is no policy.
#[must_use]
pub fn policy_name(policy: Algorithm) -> &'static str {
    let named = POLICIES.iter().find(|(known, _)| *known == policy);
    named.expect("every policy of curves has a name").1
}

/// What to draw.
#[derive(Clone, Debug)]
pub struct CurveConfig {
    /// Tenants: at least one, with unique names. Their limits do not matter.
    pub tenants: Vec<TenantConfig>,
    /// Policies, of [`POLICIES`].
    pub policies: Vec<Algorithm>,
    /// Sizes of each curve: as many, from 1 % of the footprint to all of it.
    pub sizes: Sizes,
    /// Sampled or exact.
    pub mode: Mode,
    /// Memory to split among the tenants.
    pub total: Option<Bytes>,
    /// Random seed: it selects the sampled pages.
    pub seed: u64,
    /// Directory of temporary files.
    pub dir: PathBuf,
}

/// The sizes of a curve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sizes {
    /// This many, each larger than the one before by the same factor, from 1 % of the footprint to
    /// all of it. Fewer, if it has so few pages.
    Ladder(usize),
    /// These, smallest first; of each, the whole pages.
    Given(Vec<Bytes>),
}

impl CurveConfig {
    /// Rejects invalid configurations.
    pub(super) fn check(&self) -> Result<(), CurveError> {
        if self.tenants.is_empty() {
            return Err(CurveError::NoTenants);
        }
        let of_stdin = |tenant: &&TenantConfig| matches!(tenant.trace, TraceInput::StandardInput);
        if self.tenants.iter().filter(of_stdin).count() > 1 {
            return Err(CurveError::StandardInputTwice);
        }
        let mut names = HashSet::new();
        let mut tenants = self.tenants.iter();
        match tenants.find(|tenant| !names.insert(&tenant.name)) {
            Some(tenant) => Err(CurveError::DuplicateTenant {
                name: tenant.name.clone(),
            }),
            None => Ok(()),
        }
    }
}

/// Returns up to `count` capacities from 1 % of `footprint` pages to all of it, smallest first.
pub(super) fn ladder(footprint: usize, count: usize) -> Vec<usize> {
    let least = footprint.div_ceil(100).max(1);
    let steps = count.saturating_sub(1).max(1);
    let mut capacities: Vec<usize> = (0..=steps)
        .map(|step| capacity_at(least, footprint.max(1), step, steps))
        .collect();
    if count <= 1 {
        capacities.remove(0);
    }
    capacities.dedup();
    capacities
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "counts of pages far below 2^53"
)]
fn capacity_at(least: usize, most: usize, step: usize, steps: usize) -> usize {
    let factor = (most as f64 / least as f64).powf(step as f64 / steps as f64);
    (least as f64 * factor).round() as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    // Goal: sizes are distinct, increase by one factor, and end at the footprint.
    #[test]
    fn ladders_end_at_the_footprint() {
        assert_eq!(ladder(0, 24), [1]);
        assert_eq!(ladder(1, 24), [1]);
        assert_eq!(ladder(3, 24), [1, 2, 3]);
        assert_eq!(ladder(10_000, 1), [10_000]);
        assert_eq!(ladder(10_000, 3), [100, 1000, 10_000]);
        let many = ladder(8192, 24);
        assert_eq!(many.len(), 24);
        assert!(many.is_sorted_by(|a, b| a < b));
        assert_eq!((many[0], many[23]), (82, 8192));
    }

    // Goal: each policy that can be asked for has one name.
    #[test]
    fn policies_have_names() {
        let names: HashSet<&str> = POLICIES.iter().map(|(_, name)| *name).collect();
        assert_eq!(names.len(), POLICIES.len());
        assert_eq!(policy_name(Algorithm::TwoQ), "2q");
        let known = Algorithm::ALL.iter().filter(|it| **it != Algorithm::Belady);
        assert!(known.clone().all(|it| names.contains(policy_name(*it))));
        assert_eq!(known.count(), POLICIES.len());
    }
}
