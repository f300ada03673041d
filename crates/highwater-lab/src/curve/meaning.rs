//! What a curve says: the sizes that suffice, knees, and the policy with the fewest misses.

use highwater::units::PAGE_BYTES;

use super::config::policy_name;
use super::report::{Curve, Point, Winner};
use super::split::hull;
use crate::models::Algorithm;
use crate::report::text::to_f64;

/// Differences of miss ratios below this say nothing. Chosen: the error that the sample aims at.
pub(super) const ALIKE: f64 = 0.005;

/// Factor between the gain per byte before and after a knee. Chosen: along a smooth curve, the gain
/// between two sizes of the ladder changes by less than half of it.
const KNEE: f64 = 3.0;

/// Part of the accesses that must become hits before a knee.
const KNEE_GAIN: f64 = 0.01;

/// Makes the curve of each policy from the miss ratios of all, in order: of each at `sizes`, in
/// pages.
pub(super) fn curves(policies: &[Algorithm], sizes: &[u64], ratios: &[f64]) -> Vec<Curve> {
    let point = |(pages, miss_ratio): (&u64, &f64)| Point {
        size_bytes: pages * PAGE_BYTES,
        miss_ratio: *miss_ratio,
    };
    let ratios = ratios.chunks(sizes.len().max(1));
    let curves = policies.iter().zip(ratios).map(|(policy, ratios)| {
        let points = sizes.iter().zip(ratios).map(point);
        curve(policy_name(*policy).to_owned(), points.collect())
    });
    curves.collect()
}

/// Makes a curve of its points.
pub(super) fn curve(policy: String, points: Vec<Point>) -> Curve {
    Curve {
        policy,
        within_1_percent_bytes: within(&points, 0.99),
        within_5_percent_bytes: within(&points, 0.95),
        knees_bytes: knees(&points),
        points,
    }
}

/// Returns the smallest size with this part of the best hit ratio; 0 without points.
fn within(points: &[Point], part: f64) -> u64 {
    let best = points.iter().map(|at| at.miss_ratio).fold(1.0, f64::min);
    let wanted = 1.0 - part * (1.0 - best);
    let found = points.iter().find(|at| at.miss_ratio <= wanted);
    found.map_or(0, |at| at.size_bytes)
}

fn knees(points: &[Point]) -> Vec<u64> {
    let mut hull = hull(points);
    // A curve that stays flat to its end bends where it becomes flat.
    let end = hull.last().copied().zip(points.last());
    if let Some((corner, last)) = end
        && last.size_bytes > corner.size_bytes
    {
        hull.push(Point {
            size_bytes: last.size_bytes,
            ..corner
        });
    }
    let gain = |pair: [Point; 2]| {
        let bytes = to_f64(pair[1].size_bytes - pair[0].size_bytes);
        (pair[0].miss_ratio - pair[1].miss_ratio) / bytes
    };
    // Knees gain from the one before, or from a cache of nothing.
    let mut since = 1.0;
    let mut knees = Vec::new();
    for three in hull.windows(3) {
        let [before, at, after] = [three[0], three[1], three[2]];
        // Below the smallest size, the curve is not known.
        let is_known = at.size_bytes > points[0].size_bytes;
        let is_bend = is_known && gain([before, at]) > KNEE * gain([at, after]);
        if is_bend && since - at.miss_ratio >= KNEE_GAIN {
            knees.push(at.size_bytes);
            since = at.miss_ratio;
        }
    }
    knees
}

/// Returns the policy with the fewest misses in each range of sizes. A policy that wins stays the
/// winner for as long as no other is better by [`ALIKE`].
pub(super) fn winners(curves: &[Curve]) -> Vec<Winner> {
    let Some(first) = curves.first() else {
        return Vec::new();
    };
    let mut winners: Vec<Winner> = Vec::new();
    for (at, point) in first.points.iter().enumerate() {
        let last = winners.last().and_then(|winner| winner.policy.as_deref());
        let policy = winner_at(curves, at, last);
        let size = point.size_bytes;
        match winners.last_mut() {
            Some(winner) if winner.policy == policy => winner.to_bytes = size,
            _ => winners.push(Winner {
                from_bytes: size,
                to_bytes: size,
                policy,
            }),
        }
    }
    winners
}

fn winner_at(curves: &[Curve], at: usize, last: Option<&str>) -> Option<String> {
    let ratio = |curve: &Curve| curve.points[at].miss_ratio;
    let best = curves.iter().min_by(|a, b| ratio(a).total_cmp(&ratio(b)))?;
    let worst = curves.iter().map(ratio).fold(0.0, f64::max);
    if worst - ratio(best) < ALIKE {
        return None;
    }
    let is_good =
        |curve: &&Curve| Some(curve.policy.as_str()) == last && ratio(curve) - ratio(best) < ALIKE;
    let winner = curves.iter().find(is_good).unwrap_or(best);
    Some(winner.policy.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn points(ratios: &[f64]) -> Vec<Point> {
        let sizes = (1..).map(|at| at * MIB);
        let points = sizes.zip(ratios);
        let point = |(size_bytes, &miss_ratio)| Point {
            size_bytes,
            miss_ratio,
        };
        points.map(point).collect()
    }

    fn named(policy: &str, ratios: &[f64]) -> Curve {
        curve(policy.to_owned(), points(ratios))
    }

    // Goal: sizes that suffice are relative to the best hit ratio. Method: hit ratios of 0.5 at
    // best, with 95 % and 99 % of it on the way.
    #[test]
    fn sizes_that_suffice() {
        let it = named("lru", &[0.9, 0.6, 0.524, 0.506, 0.504, 0.5]);
        assert_eq!(it.within_5_percent_bytes, 3 * MIB);
        assert_eq!(it.within_1_percent_bytes, 5 * MIB);
        let never = named("lru", &[1.0, 1.0]);
        assert_eq!(never.within_1_percent_bytes, MIB, "no size has hits");
        assert_eq!(named("lru", &[]).within_1_percent_bytes, 0);
    }

    // Goal: a knee is where the gain ends, and nowhere on a straight or smooth curve.
    #[test]
    fn knees_are_where_the_gain_ends() {
        let loops = named("lru", &[0.9, 0.8, 0.7, 0.1, 0.1, 0.1]);
        assert_eq!(loops.knees_bytes, [4 * MIB]);
        let two = named("lru", &[0.5, 0.49, 0.48, 0.2, 0.195, 0.19]);
        assert_eq!(two.knees_bytes, [4 * MIB], "not at the smallest size");
        assert!(named("lru", &[0.9, 0.8, 0.7, 0.6]).knees_bytes.is_empty());
    }

    // Goal: differences that say nothing name no winner, and do not change it.
    #[test]
    fn winners_by_range() {
        let curves = [
            named("lru", &[0.9, 0.800, 0.698, 0.5, 0.1]),
            named("balanced", &[0.9, 0.700, 0.700, 0.6, 0.1]),
            named("sieve", &[0.9, 0.800, 0.800, 0.6, 0.1]),
        ];
        let found = winners(&curves);
        let found: Vec<_> = found
            .iter()
            .map(|it| (it.from_bytes / MIB, it.to_bytes / MIB, it.policy.as_deref()))
            .collect();
        assert_eq!(
            found,
            [
                (1, 1, None),
                (2, 3, Some("balanced")),
                (4, 4, Some("lru")),
                (5, 5, None)
            ]
        );
        assert!(winners(&[]).is_empty());
    }
}
