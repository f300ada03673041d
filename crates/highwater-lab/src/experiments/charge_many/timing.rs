//! Time of a charge and its uncharge by the library, on one CPU of this machine.

use std::hint::black_box;

use highwater::group::{GroupNode, GroupTree, Limits};
use highwater::lab::percpu::Regime;
use highwater::topology::Topology;
use highwater::units::Bytes;

use crate::control::Control;
use crate::experiments::clock::{median, time_threads};
use crate::experiments::{ExperimentError, Setup};
use crate::report::text::to_f64;
use crate::report::{Check, Row, Source, Unit};

const PART: &str = "CPU time of a charge and its uncharge, at depth 4, on this machine";
/// Numbers of groups used in turn. The first is what the others are compared with.
const GROUPS: [usize; 7] = [1, 4, 7, 8, 32, 1000, 10_000];

pub(super) fn steps() -> u64 {
    1
}

/// Numbers of groups that are judged, and how many times the time of one group each may take: as
/// `bench charge` promises, on a machine without other load.
const JUDGED: [(usize, f64); 3] = [(7, 1.05), (32, 2.0), (1000, 2.2)];

/// Returns a row for each number of groups, with medians over interleaved rounds, and adds checks
/// of them.
pub(super) fn rows(
    setup: &Setup,
    checks: &mut Vec<Check>,
    control: &Control,
) -> Result<Vec<Row>, ExperimentError> {
    let rounds = setup.repeats(11, 3, 1);
    let charges: usize = setup.pick(200_000, 20_000);
    let trees: Vec<_> = GROUPS.iter().map(|&count| below_a_session(count)).collect();
    let mut times: Vec<Vec<f64>> = vec![Vec::new(); GROUPS.len()];
    for _ in 0..=rounds {
        for (groups, times) in trees.iter().zip(&mut times) {
            let took = time_threads(1, &|_| {
                for group in groups.iter().cycle().take(charges) {
                    drop(black_box(group.try_charge(black_box(Bytes::PAGE))));
                }
            })?;
            times.push(took.cpu_ns / to_f64(charges as u64));
        }
    }
    control.advance(1)?;
    // The first round filled the stock.
    let medians: Vec<_> = times
        .into_iter()
        .map(|mut times| median(times.split_off(1)))
        .collect();
    for (&groups, &ns) in GROUPS.iter().zip(&medians) {
        let judged = JUDGED.iter().find(|(judged, _)| *judged == groups);
        if let Some(&(_, most)) = judged {
            let what = format!("time of a charge: {groups} groups in turn against one");
            checks.push(Check::timed(what).at_most(ns / medians[0], most, Unit::Ratio));
        }
    }
    let row = |(&groups, &ns): (&usize, &f64)| {
        Row::new(PART, Source::Run, format!("{groups} in turn"))
            .with("charge_ns", ns)
            .with("to_one_group_ratio", ns / medians[0])
    };
    Ok(GROUPS.iter().zip(&medians).map(row).collect())
}

fn below_a_session(count: usize) -> Vec<GroupNode> {
    let machine = Topology::detect();
    let tree = GroupTree::with_regime(Regime::preferred(&machine), machine.nr_cpus());
    let child = |parent: &GroupNode, name: &str| {
        let limits = Limits::default();
        parent.child(name, limits).expect("a name that is free")
    };
    let session = child(&child(&tree.root(), "tenant"), "session");
    (0..count)
        .map(|nth| child(&session, &format!("q{nth}")))
        .collect()
}
