//! The result of a run: the JSON object that tools depend on.

use serde::{Deserialize, Serialize};

/// Miss-ratio curves; serialised, they are the JSON output of `highwater curve`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CurveReport {
    /// The program's version.
    pub version: String,
    /// `sampled`, or `exact`: each size in full.
    pub mode: Mode,
    /// The random seed, which selects the sampled pages.
    pub seed: u64,
    /// Limit of the pages of a sample; SIEVE's has up to three times as many.
    pub samples_max: u64,
    /// The tenants, in the order in which they were given.
    pub tenants: Vec<TenantCurves>,
    /// The best split of a total, where one was asked for.
    pub split: Option<Split>,
    /// Wall time.
    pub elapsed_s: f64,
}

/// The way to a curve.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Stack distances and scaled-down caches, over a sample of the pages.
    Sampled,
    /// The exact models over every access.
    Exact,
}

/// The curves of one tenant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TenantCurves {
    /// Its name.
    pub name: String,
    /// Its trace, as given.
    pub trace: String,
    /// The format of the trace's records.
    pub format: String,
    /// Requests of the trace.
    pub requests: u64,
    /// Pages that the requests touched, each time.
    pub page_accesses: u64,
    /// Records that were skipped because they are bad.
    pub bad_records: u64,
    /// Stored bytes after which the trace is cut short or corrupt, so that the rest was skipped;
    /// null where it was read to its end.
    pub cut_after_bytes: Option<u64>,
    /// Distinct pages, in bytes: an estimate if `sample_ratio` is below 1.
    pub footprint_bytes: u64,
    /// Share of the pages that were sampled; 1 if every page was, and the curves are exact.
    pub sample_ratio: f64,
    /// Pages that were sampled.
    pub sampled_pages: u64,
    /// Accesses to them.
    pub sampled_accesses: u64,
    /// A curve for each policy, in the order in which they were asked for.
    pub curves: Vec<Curve>,
    /// The policy with the fewest misses in each range of sizes, smallest first.
    pub winners: Vec<Winner>,
}

/// The miss ratios of one policy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Curve {
    /// The policy: `lru`, `clock`, `balanced` and so on.
    pub policy: String,
    /// Sizes, smallest first; the same for every policy of a tenant.
    pub points: Vec<Point>,
    /// Smallest of the sizes with a hit ratio of at least 99 % of the best one.
    pub within_1_percent_bytes: u64,
    /// Smallest of the sizes with a hit ratio of at least 95 % of the best one.
    pub within_5_percent_bytes: u64,
    /// Sizes after which more memory gains much less than before, smallest first.
    pub knees_bytes: Vec<u64>,
}

/// Returns what to say of the samples of some curves, after their number of sampled pages.
#[must_use]
pub fn sample_note(curves: &[Curve]) -> &'static str {
    match curves.iter().any(|curve| curve.policy == "sieve") {
        true => " (SIEVE's from up to three times as many)",
        false => "",
    }
}

/// A cache of one size.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Memory for pages.
    pub size_bytes: u64,
    /// Misses divided by page accesses; the cache is empty at first.
    pub miss_ratio: f64,
}

/// A range of sizes in which one policy has the fewest misses.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Winner {
    /// First size of the range.
    pub from_bytes: u64,
    /// Last size of the range.
    pub to_bytes: u64,
    /// The policy; null where all are alike, within 0.5 % of the accesses.
    pub policy: Option<String>,
}

/// The split of a total among tenants that has the fewest misses.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Split {
    /// The memory that is split.
    pub total_bytes: u64,
    /// The policy whose curves were used.
    pub policy: String,
    /// What each tenant gets.
    pub shares: Vec<Share>,
    /// Misses of all tenants with equal shares.
    pub even_misses: f64,
    /// Misses of all tenants with the best shares.
    pub best_misses: f64,
    /// Reduction of the misses, in percent of those with equal shares.
    pub fewer_misses_percent: f64,
    /// The same as a sentence.
    pub advice: String,
}

/// A tenant's part of a total.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share {
    /// The tenant.
    pub tenant: String,
    /// An equal share.
    pub even_bytes: u64,
    /// Its share in the best split.
    pub best_bytes: u64,
}
