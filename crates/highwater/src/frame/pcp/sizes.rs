//! Sizes of per-CPU lists (pcp): `batch`, `high_min`, `high_max`.

use crate::frame::Tunables;
use crate::units::Pages;

/// Sizes of a per-CPU list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct PcpSizes {
    /// Minimum number of frames moved between list and zones at once.
    pub batch: u32,
    /// Capacity of an idle list; 0: lists hold nothing.
    pub high_min: u32,
    /// Capacity of the busiest list; at most 2^22.
    pub high_max: u32,
}

/// Chosen: idle lists hold at most 1/64 of the pool together, so that they withhold at most 1.6 %
/// of a small pool's frames. Models have pools of a few frames, all of which lists may hold.
const SHARE_MIN: u64 = if cfg!(loom) { 1 } else { 64 };
/// Busy lists hold at most 1/8 of the pool together, as the kernel's.
const SHARE_MAX: u64 = if cfg!(loom) { 1 } else { 8 };

/// Capacity of the largest list, 16 GiB. A stack has at most twice as many places.
pub(in crate::frame) const FRAMES_MAX: u32 = 1 << 22;

impl PcpSizes {
    /// Computes the sizes. `batch` is 2^k - 1 near 3/8192 of the pool, at most 63; `high_min` is
    /// the CPU's share of the low watermark, at least four batches, within the CPU's part of 1/64
    /// of the pool; `high_max` is its part of an eighth. With a `percpu_pagelist_high_fraction`,
    /// both are that part of the pool, four batches at least, within the same bounds.
    #[must_use]
    pub fn for_managed(managed: Pages, low: Pages, nr_cpus: usize, tunables: &Tunables) -> Self {
        const MIB_PAGES: u64 = 256;
        let nr_cpus = nr_cpus as u64;
        let target = ((managed.0 / 1024).min(MIB_PAGES) / 4).max(1);
        let batch = ((1 << (target + target / 2).ilog2()) - 1).max(1);
        let capped = |share: u64, high: u64| high.max(4 * batch).min(managed.0 / share / nr_cpus);
        let (high_min, high_max) = match tunables.percpu_pagelist_high_fraction {
            0 => {
                let high_min = capped(SHARE_MIN, low.0 / nr_cpus);
                (high_min, (managed.0 / SHARE_MAX / nr_cpus).max(high_min))
            }
            -1 => (capped(SHARE_MIN, 0), capped(SHARE_MIN, 0)),
            fraction => {
                let share = managed.0 / u64::from(fraction.unsigned_abs()) / nr_cpus;
                let least = capped(SHARE_MIN, 0);
                (share.max(least), share.max(least))
            }
        };
        let batch = batch.min(high_min.div_ceil(4).max(1));
        let size = |pages| u32::try_from(pages).map_or(FRAMES_MAX, |size| size.min(FRAMES_MAX));
        Self {
            batch: size(batch),
            high_min: size(high_min),
            high_max: size(high_max),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::frame::Watermarks;
    use crate::units::Bytes;

    fn with_fraction(bytes: Bytes, nr_cpus: usize, fraction: i64) -> PcpSizes {
        let managed = bytes.pages_floor();
        let tunables = Tunables::default()
            .with("percpu_pagelist_high_fraction", fraction)
            .expect("in range");
        let low = Watermarks::for_managed(managed, &tunables).low;
        PcpSizes::for_managed(managed, low, nr_cpus, &tunables)
    }

    fn sizes(bytes: Bytes, nr_cpus: usize) -> PcpSizes {
        with_fraction(bytes, nr_cpus, 0)
    }

    #[test]
    fn sizes_follow_the_rule() {
        // The specification's table (frames, 4.2), where its sizes are within 1/64 of the pool.
        let of = |bytes, nr_cpus| {
            let PcpSizes {
                batch,
                high_min,
                high_max,
            } = sizes(bytes, nr_cpus);
            (batch, high_min, high_max)
        };
        assert_eq!(of(Bytes::mib(256), 2), (15, 320, 4096));
        assert_eq!(of(Bytes::mib(512), 2), (31, 452, 8192));
        assert_eq!(of(Bytes::gib(1), 2), (63, 643, 16_384));
        assert_eq!(of(Bytes::gib(1), 8), (63, 252, 4096));
        assert_eq!(of(Bytes::gib(4), 18), (63, 252, 7281));
        assert_eq!(of(Bytes::gib(9), 2), (63, 2715, 147_456));
        assert_eq!(of(Bytes::gib(9), 64), (63, 252, 4608));
    }

    #[test]
    fn a_fraction_fixes_the_size() {
        let fixed = |fraction| {
            let sizes = with_fraction(Bytes::gib(4), 2, fraction);
            assert_eq!(sizes.high_min, sizes.high_max, "{fraction}");
            (sizes.batch, sizes.high_min)
        };
        assert_eq!(fixed(8), (63, 65_536));
        assert_eq!(fixed(100), (63, 5242));
        // The smallest, by its own name and by a huge fraction (the thread's experiment B).
        assert_eq!(fixed(-1), (63, 252));
        assert_eq!(fixed(0x7fff_ffff), fixed(-1));
    }

    #[test]
    fn lists_hold_a_bounded_share_of_any_pool() {
        for nr_cpus in [1, 2, 8, 384] {
            for pages in [1, 10, 100, 1000, 10_000, 1 << 20] {
                let sizes = sizes(Bytes(pages * 4096), nr_cpus);
                let PcpSizes {
                    batch,
                    high_min,
                    high_max,
                } = sizes;
                let of_all = |high: u32| u64::from(high) * nr_cpus as u64;
                assert!(of_all(high_min) <= pages / SHARE_MIN, "{sizes:?}, {pages}");
                assert!(of_all(high_max) <= pages / SHARE_MAX, "{sizes:?}, {pages}");
                assert!(high_min <= high_max, "{sizes:?}, {pages}");
                assert!(
                    batch >= 1 && (high_min == 0 || batch <= high_min),
                    "{sizes:?}"
                );
            }
        }
    }
}
