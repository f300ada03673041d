//! Refusals: DataFusion's text, and the reason.
//!
//! Operators spill when they see `ResourcesExhausted`, and users know the text; so both are
//! upstream's, letter for letter, up to the reason that follows.

use std::fmt::{self, Write as _};

use datafusion_common::DataFusionError;
use datafusion_execution::memory_pool::{MemoryPool, MemoryReservation, human_readable_size};
use highwater::group::{ChargeError, GroupPath};
use highwater::{Bytes, ChargeFailed};

use crate::largest::Largest;
use crate::pool::HighwaterPool;
use crate::tenant::Shared;

/// The query was stopped so that others have memory ([`HighwaterPool::stop`]). The source of the
/// [`DataFusionError::External`] by which [`Tenant::execute`](crate::Tenant::execute) ends.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stopped {
    /// Path of the query's group.
    pub query: String,
    /// What it used when this error was made: less than when it was stopped, if it has returned
    /// memory since.
    pub usage: Bytes,
}

impl fmt::Display for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { query, usage } = self;
        let usage = size(*usage);
        write!(
            f,
            "query {query} was stopped so that others have memory: it used {usage}"
        )
    }
}

impl std::error::Error for Stopped {}

/// Why a pool refused.
#[derive(Debug)]
pub(crate) enum Reason {
    /// The group or an ancestor has no room, or others wait there.
    Room(ChargeFailed),
    /// More than a fair share.
    Share { share: Bytes, active: u64 },
    /// The tenant would use more than operators that can spill may fill.
    Ceiling { ceiling: Bytes },
    /// The query was stopped.
    Stopped(Stopped),
    /// The query's group could not be made.
    NoGroup(String),
}

/// Returns what is left below a maximum.
pub(crate) const fn left(max: Bytes, usage: Bytes) -> Bytes {
    Bytes(max.0.saturating_sub(usage.0))
}

pub(crate) fn size(bytes: Bytes) -> String {
    human_readable_size(usize::try_from(bytes.0).unwrap_or(usize::MAX))
}

impl Reason {
    /// Returns the bytes that are left where this pool was refused.
    fn available(&self, tenant: &Shared) -> Bytes {
        match self {
            Self::Room(failed) => match &failed.refusal {
                ChargeError::OverMax { max, usage, .. } => left(*max, *usage),
                _ => Bytes::ZERO,
            },
            Self::Share { .. } | Self::Ceiling { .. } => {
                let max = tenant.group.effective_max();
                left(max, tenant.group.usage_precise())
            }
            Self::Stopped(_) | Self::NoGroup(_) => Bytes::ZERO,
        }
    }

    /// Returns the refusal of a charge.
    fn charge_error(&self) -> Option<&ChargeError> {
        match self {
            Self::Room(failed) => Some(&failed.refusal),
            _ => None,
        }
    }

    /// Returns the group that has no room, if there is one.
    pub(crate) fn full(&self) -> Option<&GroupPath> {
        match self.charge_error()? {
            ChargeError::OverMax { group, .. } => Some(group),
            _ => None,
        }
    }

    /// Returns whether the same request may be granted the next moment, without any return of
    /// memory.
    pub(crate) fn is_of_a_moment(&self) -> bool {
        matches!(self.charge_error(), Some(ChargeError::Contended { .. }))
    }

    /// Returns whether others may have what this query lacks.
    fn is_lack_of_room(&self) -> bool {
        !matches!(self, Self::Stopped(_) | Self::NoGroup(_))
    }

    /// Returns whether the query's group was removed.
    pub(crate) fn is_removal(&self) -> bool {
        matches!(self.charge_error(), Some(ChargeError::Removed { .. }))
    }

    fn counts_in(&self, tenant: &Shared) {
        let counts = &tenant.refused;
        let count = match self {
            Self::Share { .. } | Self::Ceiling { .. } => &counts.share,
            Self::Room(failed) if matches!(failed.refusal, ChargeError::Behind { .. }) => {
                &counts.behind
            }
            Self::Room(_) => &counts.full,
            Self::Stopped(_) | Self::NoGroup(_) => return,
        };
        // Relaxed: a statistic.
        count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }

    fn write(&self, tenant: &Shared, f: &mut impl fmt::Write) -> fmt::Result {
        match self {
            Self::Room(failed) => write_full(&failed.refusal, tenant, f),
            Self::Share { share, active } => {
                let (share, path) = (size(*share), tenant.group.path());
                let (consumers, verb) = match active {
                    1 => ("consumer", "is"),
                    _ => ("consumers", "are"),
                };
                write!(
                    f,
                    "its fair share of {path} is {share} while {active} {consumers} that can \
                     spill {verb} active (Options::fairness)"
                )
            }
            Self::Ceiling { ceiling } => {
                let (ceiling, path) = (size(*ceiling), tenant.group.path());
                write!(
                    f,
                    "{path} would have more than {ceiling} in use, and the rest is for operators \
                     that cannot spill (Options::unspillable_reserve)"
                )
            }
            Self::Stopped(stopped) => write!(f, "{stopped}"),
            Self::NoGroup(error) => write!(f, "its group cannot be made: {error}"),
        }
    }
}

fn write_full(refusal: &ChargeError, tenant: &Shared, f: &mut impl fmt::Write) -> fmt::Result {
    match refusal {
        ChargeError::OverMax {
            group, max, usage, ..
        } if usage > max => {
            let debt = size(*usage - *max);
            write!(
                f,
                "{group} is {debt} in debt: memory that operators took without asking is paid \
                 back first"
            )
        }
        ChargeError::OverMax {
            group, max, usage, ..
        } => {
            let (usage, max, queries) = (size(*usage), size(*max), tenant.nr_queries());
            let queries = match queries {
                1 => "1 query".into(),
                _ => format!("{queries} queries"),
            };
            write!(
                f,
                "group {group} is full: {usage} of {max} used, {queries} of {}; raise its \
                 maximum (Group::set_max) or run fewer queries",
                tenant.group.path()
            )
        }
        ChargeError::Behind {
            group, nr_waiting, ..
        } => write!(f, "charges wait in line at {group}: {nr_waiting}"),
        other => write!(f, "{other}"),
    }
}

impl HighwaterPool {
    /// Returns the error of a refused call.
    #[cold]
    #[inline(never)]
    pub(crate) fn refused(
        &self,
        reservation: &MemoryReservation,
        additional: usize,
        reason: &Reason,
    ) -> DataFusionError {
        let tenant = self.shared();
        reason.counts_in(tenant);
        self.note_refused(additional as u64);
        let mut text = format!(
            "Failed to allocate additional {} for {} with {} already allocated for this \
             reservation - {} remain available for the total memory pool: {self}; ",
            human_readable_size(additional),
            reservation.consumer().name(),
            human_readable_size(reservation.size()),
            size(reason.available(tenant)),
        );
        // A string takes any text.
        let _written = reason.write(tenant, &mut text);
        if reason.is_lack_of_room() {
            let largest = Largest::of(tenant);
            if !largest.is_empty() {
                let path = tenant.group.path();
                let _written = write!(text, "; largest consumers of {path}: {largest}");
            }
        }
        debug_assert!(text.contains(self.name()), "it names the pool");
        DataFusionError::ResourcesExhausted(text)
    }
}
