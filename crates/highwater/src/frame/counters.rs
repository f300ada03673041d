//! Event counts of per-CPU lists (pcp).

use crate::sync::StatCell;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// Events of per-CPU lists, since the pool was created. A hit counts nothing.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[cfg_attr(feature = "serde", derive(serde::Serialize))]
        pub struct PcpCounters {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl PcpCounters {
            /// Returns every count with its name.
            pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
                [$((stringify!($name), self.$name)),*].into_iter()
            }

            /// Returns the events since `earlier`.
            #[must_use]
            pub const fn since(&self, earlier: &Self) -> Self {
                Self {
                    $($name: self.$name.wrapping_sub(earlier.$name),)*
                }
            }

            pub(super) const fn plus(&self, other: &Self) -> Self {
                Self {
                    $($name: self.$name.wrapping_add(other.$name),)*
                }
            }
        }

        /// Event counters of one list.
        #[derive(Debug, Default)]
        pub(super) struct Events {
            $(pub(super) $name: StatCell,)*
        }

        impl Events {
            pub(super) fn read(&self) -> PcpCounters {
                PcpCounters {
                    $($name: self.$name.get(),)*
                }
            }
        }
    };
}

counters! {
    /// Visits to the zones that brought frames.
    refills,
    /// Frames that they brought (`alloc_zone`).
    refilled,
    /// Frames that refills took from lists of idle CPUs, instead of fresh ones.
    recalled,
    /// Frees that found their list full.
    drains,
    /// Frames that they moved to the zones.
    drained,
    /// Drains of a list because blocks were freed in a row (`free_high`).
    drain_alls,
    /// Allocations and frees that went to the zones because another thread held the list.
    fallbacks,
    /// Frames moved to the zones by decay.
    decayed,
}
