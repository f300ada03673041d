//! Replays access traces through the whole manager, under limits, and verifies every page.
//!
//! [`Replay::prepare`] builds a [`Manager`](highwater::Manager) and, for each tenant, a
//! group, a sparse data file and a mapping of it; [`Replay::run`] drives the traces through them
//! with real threads and returns an [`Outcome`]. The program `highwater replay` is this and its
//! arguments.
//!
//! Invariant: every byte that the cache returns is compared with the expected one. A page's
//! contents are a function of seed, tenant, page number and version (`content`), the file lays them
//! out when first touched (`backing`), writes raise the version, and the oracle of versions, which
//! the cache never sees, says which one is due (`versions`). At the end every written page is read
//! from the data file itself and verified again.
//!
//! Memory: nothing here grows with a trace's footprint or length. Traces are streamed, versions and
//! keys are kept on disk, latencies in histograms.
//!
//! | file | mechanism |
//! |---|---|
//! | `content` | the contents of a page |
//! | `backing` | the sparse data file of a tenant |
//! | `layout` | its layout before the run |
//! | `versions` | the oracle of written pages |
//! | `run_dir` | the directory of these files, and its cleanup |
//! | `schedule` | the order of requests |
//! | `engine` | the access loop and the final verification |
//! | `in_flight` | the same with several reads in flight |
//! | `timeline`, `victims` | the run over time; selections of a victim |
//! | `manifest`, `recorded`, `latency`, `report`, `table` | the report |
//! | `recording` | recording a run without background threads |

mod backing;
mod config;
mod content;
mod engine;
mod error;
mod in_flight;
mod latency;
mod layout;
mod report;
mod manifest;
mod recorded;
mod recording;
mod run;
mod run_dir;
mod schedule;
mod setup;
mod table;
mod timeline;
mod versions;
mod victims;

pub use config::{
    DataIo, IN_FLIGHT_MAX, ReplayConfig, TENANTS_MAX, THREADS_MAX, TenantConfig, TraceInput,
};
pub use error::{ManagerError, ReplayError};
pub use latency::{LatencyCurve, LatencySummary};
pub(crate) use manifest::bytes_of;
pub use manifest::{Machine, Manifest, TraceReport};
pub use recorded::{FileReport, RecordingReport};
pub use report::{Outcome, Report, TenantReport};
pub use run::{Failure, Leaks};
pub use schedule::PageObserver;
pub use setup::Replay;
pub use table::Table;
pub use timeline::{TenantTimeline, Timeline};
pub use victims::VictimRecord;
