//! Watermarks: the reserve, and the thresholds at which reclaim begins and ends.

use super::Tunables;
use crate::units::Pages;

/// Free-frame thresholds of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Watermarks {
    /// The reserve: ordinary requests leave this many frames.
    pub min: Pages,
    /// At or below this, background reclaim is woken.
    pub low: Pages,
    /// Background reclaim stops here.
    pub high: Pages,
}

/// Chosen: at most 1/128 of the pool is reserve. Below 64 MiB the square-root rule would reserve up
/// to 8 %, for interrupt handlers that do not exist here.
const MIN_SHARE: u64 = 128;

impl Watermarks {
    /// Computes the watermarks of a pool. `min` grows with the square root of the pool: sqrt(16 x
    /// KiB) KiB, from 128 KiB to 256 MiB, and never more than 1/128 of it; `low` and `high` follow
    /// in steps of min / 4, or of `watermark_scale_factor` ten-thousandths of the pool if that is
    /// more.
    #[must_use]
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn for_managed(managed: Pages, tunables: &Tunables) -> Self {
        let managed_kib = managed.0 * 4;
        let min_kib = (16 * managed_kib).isqrt().clamp(128, 256 << 10);
        let min = (min_kib / 4).min(managed.0 / MIN_SHARE);
        let scaled = managed.0 * u64::from(tunables.watermark_scale_factor) / 10_000;
        let gap = (min / 4).max(scaled).max(1);
        let low = (min + gap).min(managed.0);
        Self {
            min: Pages(min),
            low: Pages(low),
            high: Pages((low + gap).min(managed.0)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Bytes;

    #[test]
    fn sizes_follow_the_rule() {
        let of = |bytes: Bytes| {
            let w = Watermarks::for_managed(bytes.pages_floor(), &Tunables::default());
            (w.min.0, w.low.0, w.high.0)
        };
        // 1 and 4 GiB: min/low/high of the specification's table (frames, 4.2).
        assert_eq!(of(Bytes::gib(1)), (1024, 1286, 1548));
        assert_eq!(of(Bytes::gib(4)), (2048, 3096, 4144));
        assert_eq!(
            of(Bytes::mib(64)),
            (128, 160, 192),
            "capped: the rule alone says 256"
        );
        assert_eq!(of(Bytes(4096)), (0, 1, 1));
        let wide = Tunables::default()
            .with("watermark_scale_factor", 1000)
            .unwrap();
        let wide = Watermarks::for_managed(Pages(10_000), &wide);
        assert_eq!(
            (wide.min, wide.low, wide.high),
            (Pages(78), Pages(1078), Pages(2078))
        );
    }

    #[test]
    fn thresholds_are_ordered_and_never_above_the_pool() {
        for pages in (1..5000).chain([1 << 20, 1 << 30]) {
            let w = Watermarks::for_managed(Pages(pages), &Tunables::default());
            assert!(
                w.min <= w.low && w.low <= w.high && w.high <= Pages(pages),
                "{pages}: {w:?}"
            );
            assert!(w.high.0 <= 2 + pages / 64, "{pages}: {w:?}");
        }
    }
}
