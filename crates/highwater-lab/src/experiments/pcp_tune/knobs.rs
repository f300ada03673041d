//! Effect of each knob, turned while the pool is under load.

use highwater::frame::{PcpCounters, PoolConfig, Tunables, Watermarks};

use super::loads::{Driven, Load, Seen};
use super::pool::{POOL, POOL_QUICK, Sizes, auto, pool};
use crate::baselines::{Drain, Sizing};
use crate::control::Control;
use crate::experiments::{ExperimentError, Setup};
use crate::report::text::to_f64;
use crate::report::{Check, Row, Source};

const KNOBS: &str = "a knob turned under load";

/// Knobs and their new values; each starts from the defaults.
const TURNS: [(&str, i64); 15] = [
    (SCALE, 0),
    (SCALE, 1),
    (SCALE, 3),
    (SCALE, 5),
    (SCALE, 6),
    (FRACTION, -1),
    (FRACTION, 0),
    (FRACTION, 8),
    (FRACTION, 64),
    (FRACTION, FRACTION_HUGE),
    (FACTOR, 1),
    (FACTOR, 10),
    (FACTOR, 1000),
    ("decay_interval_ms", 100),
    ("decay_interval_ms", 1000),
];

const SCALE: &str = "pcp_batch_scale_max";
const FACTOR: &str = "watermark_scale_factor";
const FRACTION: &str = "percpu_pagelist_high_fraction";
const FRACTION_HUGE: i64 = 0x7fff_ffff;

/// Values that knobs must refuse.
const REFUSED: [(&str, i64); 6] = [
    (SCALE, 7),
    (SCALE, -1),
    (FRACTION, 1),
    (FRACTION, 7),
    (FRACTION, -2),
    (FACTOR, 0),
];

/// Steps that [`run`] reports.
pub(super) const STEPS: u64 = TURNS.len() as u64;

/// A knob that was turned, and the results of the load that followed.
struct Turned {
    knob: &'static str,
    value: i64,
    /// Values in zoneinfo at once, and at the end.
    shown: Option<i64>,
    watermarks: Watermarks,
    sizes: Sizes,
    seen: Seen,
    lost: u64,
    /// Frames in lists after all were drained.
    left: u64,
}

pub(super) fn run(
    setup: &Setup,
    sizes: Sizes,
    rows: &mut Vec<Row>,
    checks: &mut Vec<Check>,
    control: &Control,
) -> Result<(), ExperimentError> {
    let mut turned = Vec::new();
    for (knob, value) in TURNS {
        turned.push(turn(setup, sizes, knob, value, control)?);
        control.advance(1)?;
    }
    // The caller decides how often lists decay, so no table shows that knob.
    let shown = turned
        .iter()
        .filter(|turned| turned.knob != "decay_interval_ms");
    rows.extend(shown.map(row));
    let hidden = turned
        .iter()
        .filter(|turned| turned.shown != Some(turned.value));
    checks.push(
        Check::counted("knobs turned that zoneinfo does not show at once")
            .equal(&hidden.count(), &0),
    );
    let accepted = REFUSED
        .iter()
        .filter(|(knob, value)| Tunables::default().with(knob, *value).is_ok());
    checks.push(
        Check::counted("values out of range that a knob accepts").equal(&accepted.count(), &0),
    );
    let lost: u64 = turned.iter().map(|turned| turned.lost).sum();
    checks.push(Check::counted("frames lost by turning knobs").equal(&lost, &0));
    let left: u64 = turned.iter().map(|turned| turned.left).sum();
    checks.push(Check::counted("frames that a drain of all lists leaves in them").equal(&left, &0));
    watermark_checks(setup, &turned, checks);
    fraction_checks(&turned, checks);
    scale_checks(&turned, checks);
    visit_checks(sizes, &turned, checks);
    Ok(())
}

fn find<'a>(turned: &'a [Turned], knob: &str, value: i64) -> &'a Turned {
    let found = turned
        .iter()
        .find(|turned| turned.knob == knob && turned.value == value);
    found.expect("every turn is taken")
}

/// The low watermark is above min by a quarter of min, or by the scale factor in ten-thousandths of
/// the pool, whichever is more.
fn watermark_checks(setup: &Setup, turned: &[Turned], checks: &mut Vec<Check>) {
    for factor in [1, 10, 1000] {
        let Watermarks { min, low, .. } = find(turned, FACTOR, factor).watermarks;
        let part = setup.pick(POOL, POOL_QUICK).0 * factor.unsigned_abs() / 10_000;
        checks.push(
            Check::counted(format!(
                "{FACTOR} {factor}: pages from the least to the low watermark"
            ))
            .equal(&(low.0 - min.0), &part.max(min.0 / 4)),
        );
    }
}

/// A visit moves at most as many frames as the scale allows, and more with each scale as long as
/// lists are large enough.
fn visit_checks(sizes: Sizes, turned: &[Turned], checks: &mut Vec<Check>) {
    let scales = [0, 1, 3, 5, 6].map(|scale| (scale, find(turned, SCALE, scale)));
    let cap = |scale: i64| sizes.batch << scale;
    let over = scales.iter().filter(|(scale, turned)| {
        let counters = turned.seen.counters;
        counters.refilled > counters.refills * cap(*scale)
            || counters.drained > counters.drains * cap(*scale)
    });
    checks.push(
        Check::counted("scales whose visits move more frames than they allow")
            .equal(&over.count(), &0),
    );
    let fewer = scales.windows(2).filter(|pair| {
        let [small, large] = [&pair[0], &pair[1]];
        let refill = |turned: &Turned| {
            to_f64(turned.seen.counters.refilled) / to_f64(turned.seen.counters.refills)
        };
        let (small, large_refill) = (refill(small.1), refill(large.1));
        match 2 * cap(large.0) <= sizes.high_max {
            true => large_refill <= small,
            false => large_refill < small,
        }
    });
    checks.push(
        Check::counted("scales whose refills are no larger than the previous scale's")
            .equal(&fewer.count(), &0),
    );
}

fn fraction_checks(turned: &[Turned], checks: &mut Vec<Check>) {
    let [huge, smallest] = [FRACTION_HUGE, -1].map(|value| find(turned, FRACTION, value));
    let four_batches = 4 * huge.sizes.batch;
    checks.push(
        Check::counted("fraction 0x7fffffff: high is four batches, from and to").equal(
            &format!("{} {}", huge.sizes.high_min, huge.sizes.high_max),
            &format!("{four_batches} {four_batches}"),
        ),
    );
    checks.push(
        Check::counted("fraction 0x7fffffff: frames and visits to the zones, as with -1").equal(
            &visits(&huge.seen.counters),
            &visits(&smallest.seen.counters),
        ),
    );
    let fixed = find(turned, FRACTION, 8);
    checks.push(
        Check::counted("fraction 8: high does not move")
            .equal(&(fixed.sizes.high_min == fixed.sizes.high_max), &true),
    );
}

/// Describes the refills and drains, and the frames that they moved.
fn visits(counters: &PcpCounters) -> String {
    let PcpCounters {
        refills,
        refilled,
        drains,
        drained,
        ..
    } = counters;
    format!("{refills} for {refilled}, {drains} with {drained}")
}

fn scale_checks(turned: &[Turned], checks: &mut Vec<Check>) {
    let zero = find(turned, SCALE, 0);
    let counters = zero.seen.counters;
    checks.push(
        Check::counted("scale 0: frames of all refills, against one batch each")
            .equal(&counters.refilled, &(counters.refills * zero.sizes.batch)),
    );
    checks.push(
        Check::counted("scale 0: frames of all drains, against one batch each")
            .equal(&counters.drained, &(counters.drains * zero.sizes.batch)),
    );
}

fn turn(
    setup: &Setup,
    sizes: Sizes,
    knob: &'static str,
    value: i64,
    control: &Control,
) -> Result<Turned, ExperimentError> {
    let config = PoolConfig {
        policy: Sizing::Auto.with(Drain::OneHold),
        ..auto(setup)
    };
    let pool = pool(setup, config)?;
    let mut driven = Driven::new(&pool, setup.topology.nr_cpus(), setup.options.seed);
    let steps = setup.pick(8000, 2000);
    driven.run(Load::OneWay, sizes.most(), steps, control)?;
    pool.set_tunables(config.tunables.with(knob, value)?);
    let shown = pool.zoneinfo().tunables.get(knob);
    let seen = driven.run(Load::OneWay, sizes.most(), steps, control)?;
    let watermarks = pool.zoneinfo().watermarks;
    let sizes = Sizes::of(&pool);
    Ok(Turned {
        knob,
        value,
        shown,
        watermarks,
        sizes,
        seen,
        lost: driven.finish(),
        left: pool.counts().cached.0,
    })
}

fn row(turned: &Turned) -> Row {
    let Turned { seen, sizes, .. } = turned;
    let part = |frames: u64, visits: u64| to_f64(frames) / to_f64(visits);
    Row::new(
        KNOBS,
        Source::Run,
        format!("{} = {}", turned.knob, turned.value),
    )
    .with("low_watermark_pages", turned.watermarks.low.0)
    .with("high_min_pages", sizes.high_min)
    .with("high_max_pages", sizes.high_max)
    .with("from_zone_ratio", seen.zone_share())
    .with(
        "refill_pages",
        part(seen.counters.refilled, seen.counters.refills),
    )
    .with(
        "drain_pages",
        part(seen.counters.drained, seen.counters.drains),
    )
    .with("cached_mean_pages", seen.cached_mean)
    .with("cached_peak_pages", seen.cached_peak)
}
