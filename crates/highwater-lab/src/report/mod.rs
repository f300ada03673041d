//! Outcomes of experiments, for programs and for people.
//!
//! An [`Outcome`] holds the configuration of the run, a row of figures for each variant, published
//! figures, and checks. Serialised, it is the JSON object that tools depend on:
//!
//! ```text
//! {"experiment", "thread", "config": {...}, "rows": [{"variant", "part", "source", <figures>}],
//!  "published": [...], "checks": [{"name", "want", "got", "pass", "decided_by", "judged",
//!  "measured", "at_least", "at_most", "below", "unit"}], "pass"}
//! ```
//!
//! The suffix of a figure's name is its unit: `_bytes`, `_pages`, `_us`, `_ns`, `_s`, `_per_s`,
//! `_ratio`, `_percent`; a name without one is a plain number. [`Table`] shows bytes and times in
//! suitable units, and published rows above measured ones in one table for each *part*: rows that
//! answer one question with the same figures.
//!
//! The basis of a check is counts or times ([`Basis`]). Checks by counts hold in every run; checks
//! by times hold on an idle machine, in the median of several runs. The run's request selects the
//! checks that the verdict includes ([`Judge`]); all are shown.
//!
//! Invariant: an outcome passes if it judges checks and all of these hold. One without checks
//! fails: it has shown nothing.

mod check;
mod figures;
mod headline;
pub(crate) mod narrow;
mod outcome;
mod table;
pub(crate) mod text;

pub use check::{Basis, Check, Judge, Measured, Subject};
pub use figures::{Figures, Unit, Value};
pub use headline::{Headline, Noun, Side};
pub use narrow::wrapped;
pub use outcome::{Outcome, Row, Source};
pub use table::Table;
