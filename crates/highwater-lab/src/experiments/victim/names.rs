//! The variants, by their names.

pub(super) const ONE_PASS: &str = "exact sum of all spaces";
pub(super) const TWO_PASS: &str = "published two passes, up to 16 exact sums";
pub(super) const OURS: &str = "Highwater, up to 16 exact sums";
pub(super) const PROVEN: &str = "Highwater, until proven";
