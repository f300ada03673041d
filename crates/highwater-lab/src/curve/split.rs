//! The best split of a total among tenants: the next byte goes to the tenant that gains most hits
//! by it, along the lower convex hulls of the curves.
//!
//! On convex curves this is the best split. Elsewhere a hull promises what only its corners keep,
//! so the result is judged by the curves themselves, and equal shares stand if they miss less.
//!
//! Source: greedy allocation by marginal gain (Fox 1966; Stone, Turek and Wolf 1992), on hulls as
//! in Talus (Beckmann and Sanchez, HPCA 2015).

use highwater::units::{Bytes, PAGE_BYTES};

use super::report::{Curve, Point, Share, Split};
use crate::report::text::to_f64;

/// A tenant, as far as a split depends on it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Claim<'a> {
    pub(super) tenant: &'a str,
    pub(super) page_accesses: u64,
    pub(super) curve: &'a Curve,
}

/// A cache of nothing.
const EMPTY: Point = Point {
    size_bytes: 0,
    miss_ratio: 1.0,
};

/// Returns the corners of the lower convex hull of a curve, from a cache of nothing to the smallest
/// size of the fewest misses.
pub(super) fn hull(points: &[Point]) -> Vec<Point> {
    let mut hull = vec![EMPTY];
    for &point in points {
        if hull
            .last()
            .is_some_and(|last| point.miss_ratio >= last.miss_ratio)
        {
            continue;
        }
        while let [.., before, last] = hull[..]
            && slope(before, last) >= slope(before, point)
        {
            hull.pop();
        }
        hull.push(point);
    }
    hull
}

/// Returns the change of the miss ratio with each byte.
fn slope(from: Point, to: Point) -> f64 {
    (to.miss_ratio - from.miss_ratio) / to_f64(to.size_bytes - from.size_bytes)
}

/// Returns the miss ratio at a size: on the line between its neighbours, and that of the largest
/// size above it.
pub(super) fn ratio_at(points: &[Point], size_bytes: u64) -> f64 {
    let mut before = EMPTY;
    for &point in points {
        if point.size_bytes >= size_bytes {
            let part = to_f64(size_bytes - before.size_bytes)
                / to_f64(point.size_bytes - before.size_bytes).max(1.0);
            return before.miss_ratio + part * (point.miss_ratio - before.miss_ratio);
        }
        before = point;
    }
    before.miss_ratio
}

fn misses(claims: &[Claim<'_>], shares: &[u64]) -> f64 {
    let each = claims
        .iter()
        .zip(shares)
        .map(|(claim, share)| to_f64(claim.page_accesses) * ratio_at(&claim.curve.points, *share));
    each.sum()
}

/// Splits a total among tenants.
pub(super) fn split(claims: &[Claim<'_>], total: Bytes) -> Split {
    let even = even(claims.len(), total);
    let mut best = greedy(claims, total);
    let even_misses = misses(claims, &even);
    let mut best_misses = misses(claims, &best);
    if best_misses >= even_misses {
        best.clone_from(&even);
        best_misses = even_misses;
    }
    let fewer_misses_percent = match even_misses > 0.0 {
        true => 100.0 * (1.0 - best_misses / even_misses),
        false => 0.0,
    };
    let shares: Vec<Share> = (claims.iter().zip(even).zip(best))
        .map(|((claim, even_bytes), best_bytes)| Share {
            tenant: claim.tenant.to_owned(),
            even_bytes,
            best_bytes,
        })
        .collect();
    Split {
        total_bytes: total.0,
        policy: claims
            .first()
            .map_or_else(String::new, |claim| claim.curve.policy.clone()),
        advice: advice(&shares, fewer_misses_percent),
        shares,
        even_misses,
        best_misses,
        fewer_misses_percent,
    }
}

/// Returns equal shares of whole pages; the first tenants get the pages that are left over.
fn even(tenants: usize, total: Bytes) -> Vec<u64> {
    let page = PAGE_BYTES;
    let pages = total.0 / page;
    let tenants = tenants.max(1) as u64;
    let share = |at| (pages / tenants + u64::from(at < pages % tenants)) * page;
    (0..tenants).map(share).collect()
}

/// Gives each piece of a hull to its tenant, the steepest first, until the total is used up. Memory
/// that gains nothing is shared equally.
fn greedy(claims: &[Claim<'_>], total: Bytes) -> Vec<u64> {
    let page = PAGE_BYTES;
    let mut pieces: Vec<(f64, usize, u64)> = Vec::new();
    for (at, claim) in claims.iter().enumerate() {
        for pair in hull(&claim.curve.points).windows(2) {
            let gain = -slope(pair[0], pair[1]) * to_f64(claim.page_accesses);
            pieces.push((gain, at, pair[1].size_bytes - pair[0].size_bytes));
        }
    }
    // Stable: pieces of one hull stay in their order.
    pieces.sort_by(|a, b| b.0.total_cmp(&a.0));
    let mut shares = vec![0; claims.len()];
    let mut left = total.0 / page * page;
    for (_, at, bytes) in pieces {
        let given = bytes.min(left);
        shares[at] += given;
        left -= given;
    }
    for (share, spare) in shares.iter_mut().zip(even(claims.len(), Bytes(left))) {
        *share += spare;
    }
    shares
}

fn advice(shares: &[Share], fewer_misses_percent: f64) -> String {
    let moved = |share: &Share, gains: bool| match gains {
        true => share.best_bytes.saturating_sub(share.even_bytes),
        false => share.even_bytes.saturating_sub(share.best_bytes),
    };
    // Below a twentieth of a percent, the sentence would promise 0.0 %.
    if fewer_misses_percent < 0.05 {
        return "equal shares are as good as any".to_owned();
    }
    let side = |gains| {
        let changed = shares.iter().filter(|share| moved(share, gains) > 0);
        let mut changed: Vec<&Share> = changed.collect();
        changed.sort_by_key(|share| std::cmp::Reverse(moved(share, gains)));
        changed
    };
    let gainers: Vec<String> = (side(true).iter())
        .map(|share| format!("{} {} more", share.tenant, size(moved(share, true))))
        .collect();
    let givers: Vec<&str> = side(false).iter().map(|it| it.tenant.as_str()).collect();
    format!(
        "give {} from {}: {fewer_misses_percent:.1} % fewer misses",
        gainers.join(" and "),
        givers.join(" and ")
    )
}

/// Formats an amount in whole units where it has ten of them or more.
fn size(bytes: u64) -> String {
    let (shift, unit) = match bytes {
        0..0x100_0000 => (10, "KiB"),
        0x100_0000..0x4_0000_0000 => (20, "MiB"),
        _ => (30, "GiB"),
    };
    format!("{} {unit}", (bytes + (1 << (shift - 1))) >> shift)
}

#[cfg(test)]
mod tests {
    use super::super::meaning::curve;
    use super::*;

    const PAGE: u64 = PAGE_BYTES;

    fn random_drops(random: &mut fastrand::Rng) -> Vec<f64> {
        (0..8).map(|_| random.f64() / 8.0).collect()
    }

    fn curve_of(drops: Vec<f64>) -> Curve {
        let mut ratio = 1.0;
        let mut points = Vec::new();
        for (at, drop) in (1..).zip(drops) {
            ratio -= drop;
            points.push(Point {
                size_bytes: at * PAGE,
                miss_ratio: ratio,
            });
        }
        curve("lru".to_owned(), points)
    }

    /// Returns the fewest misses over all splits into whole pages.
    fn fewest(claims: &[Claim<'_>], pages: u64, shares: &mut Vec<u64>) -> f64 {
        if shares.len() + 1 == claims.len() {
            shares.push(pages * PAGE);
            let misses = misses(claims, shares);
            shares.pop();
            return misses;
        }
        let mut least = f64::INFINITY;
        for given in 0..=pages {
            shares.push(given * PAGE);
            least = least.min(fewest(claims, pages - given, shares));
            shares.pop();
        }
        least
    }

    // Goal: the split is the best one on convex curves, never worse than equal shares on any, and
    // uses the whole total. Method: random curves of three tenants, and every possible split.
    #[test]
    fn splits_are_the_best_of_all() {
        let mut random = fastrand::Rng::with_seed(7);
        for round in 0..60 {
            let is_convex = round % 2 == 0;
            let curves = [(); 3].map(|()| {
                let mut drops = random_drops(&mut random);
                if is_convex {
                    drops.sort_by(|a, b| b.total_cmp(a));
                }
                curve_of(drops)
            });
            let claims: Vec<Claim<'_>> = (curves.iter().zip(["web", "db", "log"]))
                .map(|(curve, tenant)| Claim {
                    tenant,
                    page_accesses: random.u64(1..1000),
                    curve,
                })
                .collect();
            for pages in [0, 1, 5, 12, 24, 30] {
                let found = split(&claims, Bytes(pages * PAGE + 7));
                let least = fewest(&claims, pages, &mut Vec::new());
                assert!(found.best_misses <= found.even_misses);
                assert!(found.best_misses >= least - 1e-9, "better than the best");
                if is_convex {
                    assert!(found.best_misses <= least + 1e-9, "{found:?}, not {least}");
                }
                let best = found.shares.iter().map(|share| share.best_bytes);
                assert_eq!(best.sum::<u64>(), pages * PAGE);
                let even = found.shares.iter().map(|share| share.even_bytes);
                assert_eq!(even.sum::<u64>(), pages * PAGE);
            }
        }
    }

    // Goal: the advice is a sentence with amounts. Method: a tenant that gains from memory, and one
    // that does not.
    #[test]
    fn advice_says_whose_memory_goes_where() {
        let points = |ratios: [f64; 2]| {
            let sizes = [16 << 20, 32 << 20];
            let points = sizes.into_iter().zip(ratios);
            let point = |(size_bytes, miss_ratio)| Point {
                size_bytes,
                miss_ratio,
            };
            curve("balanced".to_owned(), points.map(point).collect())
        };
        let (web, db) = (points([0.5, 0.2]), points([1.0, 1.0]));
        let claim = |tenant, curve| Claim {
            tenant,
            page_accesses: 1000,
            curve,
        };
        let found = split(&[claim("web", &web), claim("db", &db)], Bytes(32 << 20));
        assert_eq!(
            found.advice,
            "give web 16 MiB more from db: 20.0 % fewer misses"
        );
        assert_eq!(found.policy, "balanced");
        let alike = split(&[claim("web", &web), claim("db", &web)], Bytes(64 << 20));
        assert_eq!(alike.advice, "equal shares are as good as any");
    }

    // Goal: a hull is convex, below its curve, and ends where misses end.
    #[test]
    fn hulls_are_convex_and_below() {
        let mut random = fastrand::Rng::with_seed(3);
        for _ in 0..200 {
            let curve = curve_of(random_drops(&mut random));
            let hull = hull(&curve.points);
            let slopes: Vec<f64> = hull.windows(2).map(|two| slope(two[0], two[1])).collect();
            assert!(slopes.is_sorted());
            for point in &curve.points {
                let below = ratio_at(&hull, point.size_bytes);
                assert!(below <= point.miss_ratio + 1e-12);
            }
        }
    }
}
