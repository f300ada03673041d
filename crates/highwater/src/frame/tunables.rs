//! Tunables of a running manager and its pool, under the names of the kernel's sysctls.
//!
//! One table has them all: the pool keeps them, and the background write-back reads its own there.

use std::fmt;
use std::time::Duration;

use thiserror::Error;

/// The tunables of a manager. A value is checked when it is set, so that every `Tunables` is valid;
/// a manager takes a new one at any time
/// ([`Manager::set_tunables`](crate::Manager::set_tunables)). Names, defaults and ranges:
/// [tuning](crate::docs::tuning).
///
/// # Examples
///
/// ```
/// use highwater::frame::Tunables;
///
/// let tunables = Tunables::default().with("pcp_batch_scale_max", 0)?.with("dirty_ratio", 40)?;
/// assert!(tunables.to_string().contains("vm.pcp_batch_scale_max = 0\n"));
/// let refused = tunables.with("percpu_pagelist_high_fraction", 7).unwrap_err();
/// assert_eq!(
///     refused.to_string(),
///     "percpu_pagelist_high_fraction cannot be 7: give -1, 0, or 8 to 2147483647 (1 to 7 would let lists \
///      hold more than an eighth of the pool)"
/// );
/// # Ok::<(), highwater::frame::TunableError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Tunables {
    /// How often a refill may double: a CPU's list moves at most `batch << scale` frames in one
    /// visit to the zones, and counts as many frees in a row.
    pub(super) pcp_batch_scale_max: u8,
    /// The share of the pool that all lists together may hold: 0 auto-tunes each list, `f` from 8
    /// fixes it at one `f`th of the pool, and -1 keeps lists as small as possible.
    pub(super) percpu_pagelist_high_fraction: i32,
    /// The distance between watermarks in ten-thousandths of the pool.
    pub(super) watermark_scale_factor: u16,
    /// The time between two decays of lists that are larger than they need to be.
    decay_interval_ms: u32,
    /// The percentage of memory that may be dirty before the thread writes back the oldest pages;
    /// half of `dirty_ratio`, if that is less.
    pub(crate) dirty_background_ratio: u8,
    /// The percentage of memory that may be dirty before writers are throttled.
    pub(crate) dirty_ratio: u8,
    /// The interval of the periodic runs of write-back; 0: none.
    pub(crate) dirty_writeback_centisecs: u32,
    /// The age at which a dirty page is written back, by the next periodic run.
    pub(crate) dirty_expire_centisecs: u32,
}

/// Why a tunable was not set.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TunableError {
    /// The value is outside the knob's range.
    #[error("{knob} cannot be {value}: give {range} ({reason})")]
    Range {
        /// The knob.
        knob: &'static str,
        /// The requested value.
        value: i64,
        /// The valid range.
        range: &'static str,
        /// The reason for the range.
        reason: &'static str,
    },
    /// There is no such knob.
    #[error("there is no knob `{name}`: give one of {}", Tunables::NAMES.join(", "))]
    Unknown {
        /// The requested name.
        name: String,
    },
}

impl Default for Tunables {
    fn default() -> Self {
        Self {
            pcp_batch_scale_max: 5,
            percpu_pagelist_high_fraction: 0,
            watermark_scale_factor: 10,
            decay_interval_ms: 1000,
            dirty_background_ratio: 10,
            dirty_ratio: 20,
            dirty_writeback_centisecs: 500,
            dirty_expire_centisecs: 3000,
        }
    }
}

impl Tunables {
    /// Every knob's name.
    pub const NAMES: [&'static str; 8] = [
        "pcp_batch_scale_max",
        "percpu_pagelist_high_fraction",
        "watermark_scale_factor",
        "decay_interval_ms",
        "dirty_background_ratio",
        "dirty_ratio",
        "dirty_writeback_centisecs",
        "dirty_expire_centisecs",
    ];

    /// Sets a tunable by name.
    ///
    /// # Errors
    ///
    /// A value outside the tunable's range, and a name that no knob has.
    pub fn with(mut self, name: &str, value: i64) -> Result<Self, TunableError> {
        let known = Self::NAMES.into_iter().find(|knob| *knob == name);
        let knob = known.ok_or_else(|| TunableError::Unknown { name: name.into() })?;
        let wanted = KnobValue { knob, value };
        match knob {
            "pcp_batch_scale_max" => {
                let why = "64 batches would be 16 MiB in one visit";
                self.pcp_batch_scale_max = wanted.within("0 to 6", why, |scale| *scale <= 6)?;
            }
            "percpu_pagelist_high_fraction" => {
                let why = "1 to 7 would let lists hold more than an eighth of the pool";
                let is_valid = |fraction: &i32| matches!(fraction, -1 | 0 | 8..);
                self.percpu_pagelist_high_fraction =
                    wanted.within("-1, 0, or 8 to 2147483647", why, is_valid)?;
            }
            "watermark_scale_factor" => {
                let why = "in ten-thousandths, so that 1000 is a tenth of the pool";
                let is_valid = |factor: &u16| (1..=1000).contains(factor);
                self.watermark_scale_factor = wanted.within("1 to 1000", why, is_valid)?;
            }
            "decay_interval_ms" => {
                let why = "an hour at most, so that idle memory is found";
                let is_valid = |interval: &u32| (1..=3_600_000).contains(interval);
                self.decay_interval_ms = wanted.within("1 to 3600000", why, is_valid)?;
            }
            "dirty_background_ratio" => self.dirty_background_ratio = wanted.percentage()?,
            "dirty_ratio" => self.dirty_ratio = wanted.percentage()?,
            "dirty_writeback_centisecs" => {
                self.dirty_writeback_centisecs = wanted.hour_at_most()?
            }
            _ => self.dirty_expire_centisecs = wanted.hour_at_most()?,
        }
        debug_assert_eq!(self.get(name), Some(value), "another knob was set");
        Ok(self)
    }

    /// Returns a tunable's value, by name.
    #[must_use]
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn get(&self, name: &str) -> Option<i64> {
        match name {
            "pcp_batch_scale_max" => Some(self.pcp_batch_scale_max.into()),
            "percpu_pagelist_high_fraction" => Some(self.percpu_pagelist_high_fraction.into()),
            "watermark_scale_factor" => Some(self.watermark_scale_factor.into()),
            "decay_interval_ms" => Some(self.decay_interval_ms.into()),
            "dirty_background_ratio" => Some(self.dirty_background_ratio.into()),
            "dirty_ratio" => Some(self.dirty_ratio.into()),
            "dirty_writeback_centisecs" => Some(self.dirty_writeback_centisecs.into()),
            "dirty_expire_centisecs" => Some(self.dirty_expire_centisecs.into()),
            _ => None,
        }
    }

    /// Returns the time between two decays.
    #[must_use]
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn decay_interval(&self) -> Duration {
        Duration::from_millis(self.decay_interval_ms.into())
    }
}

/// The value that a knob is to have.
#[derive(Clone, Copy, Debug)]
struct KnobValue {
    knob: &'static str,
    value: i64,
}

impl KnobValue {
    /// Returns the value, if its type has room for it and it `is_valid`.
    fn within<T: TryFrom<i64>>(
        self,
        range: &'static str,
        reason: &'static str,
        is_valid: impl FnOnce(&T) -> bool,
    ) -> Result<T, TunableError> {
        let Self { knob, value } = self;
        let valid = T::try_from(value).ok().filter(is_valid);
        valid.ok_or(TunableError::Range {
            knob,
            value,
            range,
            reason,
        })
    }

    fn percentage(self) -> Result<u8, TunableError> {
        self.within("0 to 100", "in percent of memory", |percent| {
            *percent <= 100
        })
    }

    fn hour_at_most(self) -> Result<u32, TunableError> {
        let why = "an hour at most, so that dirty pages are found";
        self.within("0 to 360000", why, |centisecs| *centisecs <= 360_000)
    }
}

impl fmt::Display for Tunables {
    /// Writes a line for each tunable, as sysctl shows them.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Self::NAMES
            .iter()
            .filter_map(|name| Some((name, self.get(name)?)))
            .try_for_each(|(name, value)| writeln!(f, "vm.{name} = {value}"))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn knobs_take_their_range_and_nothing_else() {
        // Goal: a `Tunables` is always valid. Method: the ends of each range, and one beyond.
        let cases: [(&str, &[i64], &[i64]); 8] = [
            ("pcp_batch_scale_max", &[0, 5, 6], &[-1, 7, 256, i64::MAX]),
            (
                "percpu_pagelist_high_fraction",
                &[-1, 0, 8, 0x7fff_ffff],
                &[-2, 1, 7, 0x8000_0000],
            ),
            ("watermark_scale_factor", &[1, 1000], &[0, 1001, -1, 65_537]),
            ("decay_interval_ms", &[1, 3_600_000], &[0, 3_600_001, -5]),
            ("dirty_background_ratio", &[0, 100], &[-1, 101, 256]),
            ("dirty_ratio", &[0, 100], &[-1, 101, 256]),
            ("dirty_writeback_centisecs", &[0, 360_000], &[-1, 360_001]),
            ("dirty_expire_centisecs", &[0, 360_000], &[-1, 360_001]),
        ];
        for (name, good, bad) in cases {
            for &value in good {
                let set = Tunables::default().with(name, value).unwrap();
                assert_eq!(set.get(name), Some(value), "{name}");
            }
            for &value in bad {
                let error = Tunables::default().with(name, value).unwrap_err();
                let text = error.to_string();
                assert!(
                    text.starts_with(&format!("{name} cannot be {value}: give ")),
                    "{text}"
                );
            }
        }
        let unknown = Tunables::default().with("swappiness", 60).unwrap_err();
        assert!(unknown.to_string().contains("`swappiness`"), "{unknown}");
        assert_eq!(Tunables::default().get("swappiness"), None);
    }
}
