//! Tunables of a running pool, under the names of the kernel's sysctls.

use std::fmt;
use std::time::Duration;

use thiserror::Error;

/// The tunables of a pool. A value is checked when it is set, so that every `Tunables` is valid; a
/// pool takes a new one at any time ([`FramePool::set_tunables`](super::FramePool::set_tunables)).
///
/// # Examples
///
/// ```
/// use highwater::frame::Tunables;
///
/// let tunables = Tunables::default().with("pcp_batch_scale_max", 0)?;
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
    pub(super) pcp_batch_scale_max: u8,
    pub(super) percpu_pagelist_high_fraction: i32,
    pub(super) watermark_scale_factor: u16,
    pub(super) decay_interval_ms: u32,
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
        }
    }
}

impl Tunables {
    /// Every knob's name.
    pub const NAMES: [&'static str; 4] = [
        "pcp_batch_scale_max",
        "percpu_pagelist_high_fraction",
        "watermark_scale_factor",
        "decay_interval_ms",
    ];

    /// Sets how often a refill may double: a CPU's list moves at most `batch << scale` frames in
    /// one visit to the zones, and counts as many frees in a row. Default: 5.
    ///
    /// # Errors
    ///
    /// Outside 0 to 6.
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn pcp_batch_scale_max(mut self, scale: i64) -> Result<Self, TunableError> {
        let range = KnobRange {
            knob: "pcp_batch_scale_max",
            range: "0 to 6",
            reason: "64 batches would be 16 MiB in one visit",
        };
        self.pcp_batch_scale_max = range.check(scale, |scale| *scale <= 6)?;
        Ok(self)
    }

    /// Sets the share of the pool that all lists together may hold: 0 auto-tunes each list, `f`
    /// from 8 fixes it at one `f`th of the pool, and -1 keeps lists as small as possible. Default:
    /// 0.
    ///
    /// # Errors
    ///
    /// Below -1, and 1 to 7.
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn percpu_pagelist_high_fraction(
        mut self,
        fraction: i64,
    ) -> Result<Self, TunableError> {
        let range = KnobRange {
            knob: "percpu_pagelist_high_fraction",
            range: "-1, 0, or 8 to 2147483647",
            reason: "1 to 7 would let lists hold more than an eighth of the pool",
        };
        let is_valid = |fraction: &i32| matches!(fraction, -1 | 0 | 8..);
        self.percpu_pagelist_high_fraction = range.check(fraction, is_valid)?;
        Ok(self)
    }

    /// Sets the distance between watermarks in ten-thousandths of the pool. Default: 10.
    ///
    /// # Errors
    ///
    /// Outside 1 to 1000.
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn watermark_scale_factor(mut self, factor: i64) -> Result<Self, TunableError> {
        let range = KnobRange {
            knob: "watermark_scale_factor",
            range: "1 to 1000",
            reason: "in ten-thousandths, so that 1000 is a tenth of the pool",
        };
        self.watermark_scale_factor = range.check(factor, |factor| (1..=1000).contains(factor))?;
        Ok(self)
    }

    /// Sets the time between two decays of lists that are larger than they need to be. Default: 1
    /// s.
    ///
    /// # Errors
    ///
    /// Outside 1 ms to an hour.
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn decay_interval_ms(mut self, interval: i64) -> Result<Self, TunableError> {
        let range = KnobRange {
            knob: "decay_interval_ms",
            range: "1 to 3600000",
            reason: "an hour at most, so that idle memory is found",
        };
        let is_valid = |interval: &u32| (1..=3_600_000).contains(interval);
        self.decay_interval_ms = range.check(interval, is_valid)?;
        Ok(self)
    }

    /// Sets a tunable by name.
    ///
    /// # Errors
    ///
    /// Those of the setter, and a name that no knob has.
    pub fn with(self, name: &str, value: i64) -> Result<Self, TunableError> {
        match name {
            "pcp_batch_scale_max" => self.pcp_batch_scale_max(value),
            "percpu_pagelist_high_fraction" => self.percpu_pagelist_high_fraction(value),
            "watermark_scale_factor" => self.watermark_scale_factor(value),
            "decay_interval_ms" => self.decay_interval_ms(value),
            _ => Err(TunableError::Unknown { name: name.into() }),
        }
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

/// The valid range of a tunable.
pub(crate) struct KnobRange {
    pub(crate) knob: &'static str,
    pub(crate) range: &'static str,
    pub(crate) reason: &'static str,
}

impl KnobRange {
    /// Returns the new value, if its type has room for it and it `is_valid`.
    pub(crate) fn check<T: TryFrom<i64>>(
        self,
        value: i64,
        is_valid: impl FnOnce(&T) -> bool,
    ) -> Result<T, TunableError> {
        let Self {
            knob,
            range,
            reason,
        } = self;
        let valid = T::try_from(value).ok().filter(is_valid);
        valid.ok_or(TunableError::Range {
            knob,
            value,
            range,
            reason,
        })
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
        let cases: [(&str, &[i64], &[i64]); 4] = [
            ("pcp_batch_scale_max", &[0, 5, 6], &[-1, 7, 256, i64::MAX]),
            (
                "percpu_pagelist_high_fraction",
                &[-1, 0, 8, 0x7fff_ffff],
                &[-2, 1, 7, 0x8000_0000],
            ),
            ("watermark_scale_factor", &[1, 1000], &[0, 1001, -1, 65_537]),
            ("decay_interval_ms", &[1, 3_600_000], &[0, 3_600_001, -5]),
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
