//! Decay of per-CPU lists (pcp) after the load stops.

use highwater::frame::ListInfo;

use super::loads::{Driven, Load};
use super::pool::{Sizes, auto, pool};
use crate::control::Control;
use crate::experiments::{ExperimentError, Setup};
use crate::report::text::to_f64;
use crate::report::{Check, Row, Source, Unit};

const DECAY: &str = "frames in lists after the load stopped, by ticks of a second";

/// Scales; the steps of decay must not depend on them.
const SCALES: [i64; 3] = [0, 5, 6];

/// Ticks after which list sizes are sampled.
const LOOKS: [(&str, usize); 7] = [
    ("tick_0_pages", 0),
    ("tick_1_pages", 1),
    ("tick_2_pages", 2),
    ("tick_4_pages", 4),
    ("tick_8_pages", 8),
    ("tick_16_pages", 16),
    ("tick_32_pages", 32),
];

/// More ticks than any list needs.
const TICKS_MAX: usize = 1000;

/// Results of one scale.
struct Decayed {
    scale: i64,
    /// Frames in all lists, tick by tick.
    cached: Vec<u64>,
    /// The size below which every list should decay: `high_min` and a cap; or half of the largest
    /// list, if no list is that large.
    bound: u64,
    /// Ticks until no list is larger.
    ticks: Option<usize>,
    /// Ticks allowed for that.
    allowed: usize,
    /// Whether every list ends at `high_min`.
    is_at_min: bool,
    lost: u64,
}

/// Steps that [`run`] reports.
pub(super) const STEPS: u64 = SCALES.len() as u64;

pub(super) fn run(
    setup: &Setup,
    sizes: Sizes,
    rows: &mut Vec<Row>,
    checks: &mut Vec<Check>,
    control: &Control,
) -> Result<(), ExperimentError> {
    let mut all = Vec::new();
    for scale in SCALES {
        all.push(decay(setup, sizes, scale, control)?);
        control.advance(1)?;
    }
    for decayed in &all {
        rows.push(row(decayed));
        let name = format!(
            "scale {}: ticks until no list holds more than {}",
            decayed.scale, decayed.bound
        );
        let ticks = decayed.ticks.map_or(f64::NAN, |ticks| to_f64(ticks as u64));
        checks.push(Check::counted(name).at_most(
            ticks,
            to_f64(decayed.allowed as u64),
            Unit::Plain,
        ));
        checks.push(
            Check::counted(format!(
                "scale {}: every list ends at its minimum size",
                decayed.scale
            ))
            .equal(&decayed.is_at_min, &true),
        );
    }
    let same = all.iter().all(|decayed| decayed.cached == all[0].cached);
    checks.push(Check::counted("lists decay alike under every scale").equal(&same, &true));
    let lost: u64 = all.iter().map(|decayed| decayed.lost).sum();
    checks.push(Check::counted("frames lost by decay").equal(&lost, &0));
    Ok(())
}

/// Returns the ticks of decay from `most` down to `least`, an eighth each.
fn eighths(most: u64, least: u64) -> usize {
    let (most, least) = (to_f64(most), to_f64(least));
    let steps = |ticks: &usize| most * 0.875_f64.powi(i32::try_from(*ticks).unwrap_or(0)) <= least;
    (0..TICKS_MAX).find(steps).unwrap_or(TICKS_MAX)
}

fn decay(
    setup: &Setup,
    sizes: Sizes,
    scale: i64,
    control: &Control,
) -> Result<Decayed, ExperimentError> {
    let mut config = auto(setup);
    let pool = pool(setup, config)?;
    // The same load fills the lists of every scale; the scale is set only then.
    let mut driven = Driven::new(&pool, setup.topology.nr_cpus(), setup.options.seed);
    driven.run(Load::Loop, sizes.most(), setup.pick(20_000, 4000), control)?;
    driven.rest();
    config.tunables = config.tunables.with("pcp_batch_scale_max", scale)?;
    pool.set_tunables(config.tunables);
    let count = |list: &ListInfo| u64::from(list.count);
    let largest = pool.zoneinfo().lists.iter().map(count).max();
    let largest = largest.unwrap_or(0);
    let with_cap = sizes.high_min + (sizes.batch << scale);
    let (bound, allowed) = match with_cap < largest {
        true => (with_cap, eighths(sizes.high_max, sizes.high_min)),
        // A cap that no list reaches shows nothing: then a list should decay by half, or be empty.
        false => (sizes.high_min.max(largest / 2), eighths(2, 1)),
    };
    let mut decayed = Decayed {
        scale,
        cached: vec![pool.counts().cached.0],
        bound,
        ticks: None,
        allowed,
        is_at_min: false,
        lost: 0,
    };
    for tick in 0..TICKS_MAX {
        let lists = pool.zoneinfo().lists;
        let most = lists.iter().map(count).max().unwrap_or(0);
        if decayed.ticks.is_none() && most <= bound {
            decayed.ticks = Some(tick);
        }
        decayed.is_at_min = lists
            .iter()
            .all(|list| list.high <= list.high_min && list.count <= list.high_min);
        if decayed.is_at_min {
            break;
        }
        pool.decay_tick();
        decayed.cached.push(pool.counts().cached.0);
    }
    decayed.lost = driven.finish();
    Ok(decayed)
}

fn row(decayed: &Decayed) -> Row {
    let last = decayed.cached.len() - 1;
    let mut row = Row::new(DECAY, Source::Run, format!("auto, scale {}", decayed.scale));
    for (name, tick) in LOOKS {
        row = row.with(name, decayed.cached[tick.min(last)]);
    }
    row.with("ticks_until_idle", last)
}
