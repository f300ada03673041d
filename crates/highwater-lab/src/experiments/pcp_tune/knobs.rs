//! What each knob does, turned while the pool is under load.

use highwater::frame::{DrainMode, PcpCounters, PoolConfig, Tunables};

use super::loads::{Driven, Load, Seen};
use super::{KNOBS, Sizes, auto, pool};
use crate::experiments::{Control, ExperimentError, Setup};
use crate::report::text::to_f64;
use crate::report::{Check, Row, Source};

/// Knobs and what they are turned to; each time from their defaults.
const TURNS: [(&str, i64); 15] = [
    ("pcp_batch_scale_max", 0),
    ("pcp_batch_scale_max", 1),
    ("pcp_batch_scale_max", 3),
    ("pcp_batch_scale_max", 5),
    ("pcp_batch_scale_max", 6),
    (FRACTION, -1),
    (FRACTION, 0),
    (FRACTION, 8),
    (FRACTION, 64),
    (FRACTION, FRACTION_HUGE),
    ("watermark_scale_factor", 1),
    ("watermark_scale_factor", 10),
    ("watermark_scale_factor", 1000),
    ("decay_interval_ms", 100),
    ("decay_interval_ms", 1000),
];

const FRACTION: &str = "percpu_pagelist_high_fraction";
const FRACTION_HUGE: i64 = 0x7fff_ffff;

/// Values that knobs must refuse.
const REFUSED: [(&str, i64); 6] = [
    ("pcp_batch_scale_max", 7),
    ("pcp_batch_scale_max", -1),
    (FRACTION, 1),
    (FRACTION, 7),
    (FRACTION, -2),
    ("watermark_scale_factor", 0),
];

/// Steps that [`run`] reports.
pub(super) const STEPS: u64 = TURNS.len() as u64;

/// A knob that was turned, and the load that followed.
struct Turned {
    knob: &'static str,
    value: i64,
    /// As zoneinfo says at once, and at the end.
    shown: Option<i64>,
    low: u64,
    sizes: Sizes,
    seen: Seen,
    lost: u64,
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
    // How often lists decay is up to who calls, and shows in no table.
    let shown = turned
        .iter()
        .filter(|turned| turned.knob != "decay_interval_ms");
    rows.extend(shown.map(row));
    let hidden = turned
        .iter()
        .filter(|turned| turned.shown != Some(turned.value));
    checks.push(Check::equal(
        "knobs turned that zoneinfo does not show at once",
        &hidden.count(),
        &0,
    ));
    let accepted = REFUSED
        .iter()
        .filter(|(knob, value)| Tunables::default().with(knob, *value).is_ok());
    checks.push(Check::equal(
        "values out of range that a knob takes",
        &accepted.count(),
        &0,
    ));
    let lost: u64 = turned.iter().map(|turned| turned.lost).sum();
    checks.push(Check::equal("frames lost by turning knobs", &lost, &0));
    fraction_checks(&turned, checks);
    scale_checks(&turned, checks);
    Ok(())
}

fn find<'a>(turned: &'a [Turned], knob: &str, value: i64) -> &'a Turned {
    let found = turned
        .iter()
        .find(|turned| turned.knob == knob && turned.value == value);
    found.expect("every turn is taken")
}

fn fraction_checks(turned: &[Turned], checks: &mut Vec<Check>) {
    let [huge, smallest] = [FRACTION_HUGE, -1].map(|value| find(turned, FRACTION, value));
    let four_batches = 4 * huge.sizes.batch;
    checks.push(Check::equal(
        "fraction 0x7fffffff: high is four batches, from and to",
        &format!("{} {}", huge.sizes.high_min, huge.sizes.high_max),
        &format!("{four_batches} {four_batches}"),
    ));
    checks.push(Check::equal(
        "fraction 0x7fffffff: frames and visits to the zones, as with -1",
        &visits(&huge.seen.counters),
        &visits(&smallest.seen.counters),
    ));
    let fixed = find(turned, FRACTION, 8);
    checks.push(Check::equal(
        "fraction 8: high does not move",
        &(fixed.sizes.high_min == fixed.sizes.high_max),
        &true,
    ));
}

/// How often lists went to the zones, and with how many frames.
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
    let zero = find(turned, "pcp_batch_scale_max", 0);
    let counters = zero.seen.counters;
    checks.push(Check::equal(
        "scale 0: frames of all refills, against one batch each",
        &counters.refilled,
        &(counters.refills * zero.sizes.batch),
    ));
    checks.push(Check::equal(
        "scale 0: frames of all drains, against one batch each",
        &counters.drained,
        &(counters.drains * zero.sizes.batch),
    ));
}

fn turn(
    setup: &Setup,
    sizes: Sizes,
    knob: &'static str,
    value: i64,
    control: &Control,
) -> Result<Turned, ExperimentError> {
    let config = PoolConfig {
        drain: DrainMode::OneHold,
        ..auto(setup)
    };
    let pool = pool(setup, config)?;
    let mut driven = Driven::new(&pool, setup.topology.nr_cpus(), setup.seed);
    let steps = setup.pick(8000, 2000);
    driven.run(Load::OneWay, sizes.most(), steps, control)?;
    pool.set_tunables(config.tunables.with(knob, value)?);
    let shown = pool.zoneinfo().tunables.get(knob);
    let seen = driven.run(Load::OneWay, sizes.most(), steps, control)?;
    let low = pool.zoneinfo().watermarks.low.0;
    let sizes = Sizes::of(&pool);
    Ok(Turned {
        knob,
        value,
        shown,
        low,
        sizes,
        seen,
        lost: driven.finish(),
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
    .with("low_watermark_pages", turned.low)
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
