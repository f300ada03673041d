//! Miss-ratio curves: the share of accesses that miss, by the size of the cache, for each policy.
//!
//! One pass over a trace takes a spatial sample: every access to about 8,192 of its pages. Caches
//! over the sample behave as caches over the trace that are larger by the same factor. LRU needs
//! stack distances, one pass over the sample for all sizes; each other policy is simulated over the
//! sample at each size, by the exact model of [`models`](crate::models). SIEVE has a sample of up
//! to three times as many pages, used for caches of more than 3 % of the footprint, and a model
//! that knows where the hand is between them, for several sizes at once. The same pass counts the
//! reuse times of all accesses, sampled or not, to which the misses are then scaled. A trace of no
//! more pages is its own sample, and its curves are exact.
//!
//! The models know each access, as the manager's policies do not: those read marks later, in
//! clusters. `highwater lab policies --real` compares the two.
//!
//! | file | part |
//! |---|---|
//! | `sample`, `stream` | the samples, in bounded memory |
//! | `reuse` | reuse times of all accesses, by class |
//! | `distance` | stack distances |
//! | `profile` | miss ratios, from misses in the sample |
//! | `sieve` | SIEVE over its sample: its hand by less than a sampled page |
//! | `crew` | several simulations at once |
//! | `config`, `run`, `pages` | from traces to curves |
//! | `beside` | curves of what a replay accesses |
//! | `meaning`, `split` | what the curves say |
//! | `report`, `table` | the result, for programs and for people |

mod beside;
mod config;
mod crew;
mod distance;
mod error;
mod meaning;
mod pages;
mod profile;
mod report;
mod reuse;
mod run;
mod sample;
mod sieve;
mod split;
mod stream;
mod table;

pub use beside::{Beside, BesideCurves};
pub use config::{
    CurveConfig, NR_OF_MANAGER, NR_SIZES, NR_SIZES_MAX, POLICIES, Sizes, policy_name,
};
pub use error::CurveError;
pub use report::{
    Curve, CurveReport, Mode, Point, Share, Split, TenantCurves, Winner, sample_note,
};
pub use run::run;
pub use sample::{SAMPLES_MAX, SAMPLES_OF_SIEVE};
pub use table::Table;
