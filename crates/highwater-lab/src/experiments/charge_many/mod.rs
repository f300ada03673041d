//! `charge-many`: charging many groups in turn, and what the CPUs park meanwhile.
//!
//! Groups below one parent are charged a page and uncharged again, round robin, on virtual CPUs.
//! The experiment counts how often a charge reserved at the parent, the pages that stay parked, and
//! how far a read of usage can be off by them, at the root and at the worst group. Beside the
//! library's tokens: the kernel's stock with one slot for each CPU (before Linux 6.16), with 7
//! (since), and in each counter (proposed in 2026). The library is timed on a real CPU.

mod kernel;
mod timing;

use highwater::group::{GroupNode, GroupTree, Limits};
use highwater::units::{Bytes, CpuId};

use super::{Experiment, ExperimentError, Extra, Findings, Setup, published};
use crate::baselines::{CHARGE_BATCH, StockSlots, StockedGroups};
use crate::control::Control;
use crate::report::text::to_f64;
use crate::report::{Check, Headline, Noun, Row, Source, Unit};

/// The experiment.
pub static EXPERIMENT: Experiment = Experiment {
    name: "charge-many",
    thread: "memcg-charge-stock-2026",
    summary: "many groups charged in turn: refills, pages parked, and how far usage is uncertain",
    headline: Headline::of_variants(
        MANY,
        "root_width_bytes",
        Noun::Mass("uncertainty of the root's usage"),
        [OURS, OF_COUNTER],
    ),
    topology: "2x12x8x2",
    cpus: 1..=1024,
    extras: &[Extra::Kernel],
    run,
};

const OURS: &str = "Highwater";
const ONE_SLOT: &str = "stock, one slot a CPU";
const SEVEN_SLOTS: &str = "stock, 7 slots a CPU";
const OF_COUNTER: &str = "a stock in each counter";

const ONE_CPU: &str = "on one CPU";
const FEW: &str = "1,000 groups on some of the CPUs";
const MANY: &str = "1,000 groups on all CPUs";
const TOO_MANY: &str = "10,000 groups, each on a few of all CPUs";
const PROPOSAL: &str = "time for a run that faults and frees in that many groups, 40 CPUs";

/// Pages that a CPU may park as a group sees it: the kernel's stock with 7 slots.
const PAGES_OF_CPU: u64 = 7 * CHARGE_BATCH;
/// Numbers of CPUs between one and all.
const CPU_STEPS: [usize; 2] = [16, 64];
/// Charged to each group throughout, so that no interval ends at zero.
const BASE: Bytes = Bytes::mib(256);
/// Upper bound of the words of one case, each 128 bytes.
const WORDS_MAX: usize = 400_000;
/// Rounds that fill the stocks, and rounds that are counted.
const WARM_UP: usize = 3;

const NOTE: &str = "Charges are made on virtual CPUs, one at a time: exact, the same in each run. \
    A refill is a charge that reserved at the parent. The root's width is how far a read of its \
    usage can be off by what is parked: for the stocks 64 pages for each slot in use. An idle slot \
    of the kernel is drained when a limit is reached; no limit is, here. Times are of the library \
    alone, on one CPU of this machine.";

/// A case: groups used in turn.
struct Case {
    part: &'static str,
    nr_groups: usize,
    nr_cpus: usize,
}

/// What one design did in one case.
struct Counted {
    name: &'static str,
    refills_per_charge: f64,
    parked: u64,
    root_width: u64,
    group_width: u64,
}

fn run(setup: &Setup, control: &Control) -> Result<Findings, ExperimentError> {
    let cases = cases(setup);
    control.expect(cases.len() as u64 * 4 + timing::steps());
    let mut checks = Vec::new();
    let mut rows = Vec::new();
    for case in &cases {
        let counted = count(setup, case, control)?;
        judge(case, &counted, &mut checks);
        rows.extend(counted.iter().map(|counted| row(case, counted)));
    }
    rows.extend(timing::rows(setup, &mut checks, control)?);
    let (kernel, skipped) = kernel::rows(setup, control)?;
    rows.extend(kernel);
    let mut config = setup.config().with("note_scope", NOTE);
    if let Some(reason) = skipped {
        config = config.with("note_kernel", reason);
    }
    Ok(Findings {
        config,
        rows,
        published: published::rows(
            include_str!("../../../published/charge-many.json"),
            &[PROPOSAL],
        ),
        checks,
    })
}

fn cases(setup: &Setup) -> Vec<Case> {
    let nr_cpus = setup.topology.nr_cpus();
    let numbers: &[usize] = setup.pick(&[1, 4, 7, 8, 32, 1000, 10_000], &[1, 7, 8, 1000]);
    let on_one = numbers.iter().map(|&nr_groups| Case {
        part: ONE_CPU,
        nr_groups,
        nr_cpus: 1,
    });
    let on_few = CPU_STEPS.into_iter().filter(move |&step| step < nr_cpus);
    let on_few = on_few.map(|nr_cpus| Case {
        part: FEW,
        nr_groups: 1000,
        nr_cpus,
    });
    let many = Case {
        part: MANY,
        nr_groups: 1000,
        nr_cpus,
    };
    let too_many = Case {
        part: TOO_MANY,
        nr_groups: setup.pick(10_000, 3000),
        nr_cpus,
    };
    on_one.chain(on_few).chain([many, too_many]).collect()
}

impl Case {
    /// Calls `turn` with each pair of CPU and group, the groups in turn on each CPU. A group runs
    /// on as many CPUs as [`WORDS_MAX`] allows.
    fn round(&self, mut turn: impl FnMut(usize, usize)) {
        let cpus_each = self.nr_cpus.min((WORDS_MAX / self.nr_groups).max(1));
        for cpu in 0..self.nr_cpus {
            for group in 0..self.nr_groups {
                let distance = (cpu + self.nr_cpus - group % self.nr_cpus) % self.nr_cpus;
                if distance < cpus_each {
                    turn(cpu, group);
                }
            }
        }
    }
}

fn count(setup: &Setup, case: &Case, control: &Control) -> Result<Vec<Counted>, ExperimentError> {
    let stocks = [
        (ONE_SLOT, StockSlots::OfCpu(1)),
        (SEVEN_SLOTS, StockSlots::OfCpu(7)),
        (OF_COUNTER, StockSlots::OfCounter),
    ];
    let mut counted = vec![count_ours(setup, case)];
    control.advance(1)?;
    for (name, slots) in stocks {
        counted.push(count_stock(setup, case, name, slots));
        control.advance(1)?;
    }
    Ok(counted)
}

fn rounds(setup: &Setup) -> usize {
    setup.pick(4, 2)
}

fn count_ours(setup: &Setup, case: &Case) -> Counted {
    let tree = GroupTree::new(case.nr_cpus);
    let parent = child(&tree.root(), "parent");
    let groups: Vec<_> = (0..case.nr_groups)
        .map(|nth| child(&parent, &format!("g{nth}")))
        .collect();
    let base: Vec<_> = groups
        .iter()
        .map(|group| group.at(CpuId(0)).try_charge(BASE).expect("no limit"))
        .collect();
    // The upper end of a read is what is reserved.
    let reserved = || parent.usage().high;
    let charge = |cpu: usize, group: usize| {
        let group = groups[group].at(CpuId::from_index(cpu));
        group.try_charge(Bytes::PAGE).expect("no limit").disown()
    };
    let uncharge = |cpu: usize, group: usize, bytes| {
        groups[group].at(CpuId::from_index(cpu)).uncharge(bytes);
    };
    for _ in 0..WARM_UP {
        case.round(|cpu, group| uncharge(cpu, group, charge(cpu, group)));
    }
    let (mut charges, mut refills) = (0, 0);
    for _ in 0..rounds(setup) {
        case.round(|cpu, group| {
            let before = reserved();
            let bytes = charge(cpu, group);
            refills += u64::from(reserved() > before);
            uncharge(cpu, group, bytes);
            charges += 1;
        });
    }
    let width = |group: &GroupNode| {
        let usage = group.usage();
        (usage.high - usage.low).0
    };
    let widths = groups.iter().map(width);
    let counted = Counted {
        name: OURS,
        refills_per_charge: to_f64(refills) / to_f64(charges),
        parked: tree.root().escrowed().0 / Bytes::PAGE.0,
        root_width: width(&tree.root()),
        group_width: widths.max().unwrap_or(0),
    };
    drop(base);
    tree.check_invariants();
    assert_eq!(parent.usage_precise(), Bytes::ZERO, "a page was lost");
    counted
}

fn child(parent: &GroupNode, name: &str) -> GroupNode {
    let limits = Limits::default();
    parent.child(name, limits).expect("a name that is free")
}

fn count_stock(setup: &Setup, case: &Case, name: &'static str, slots: StockSlots) -> Counted {
    let mut groups = StockedGroups::new(slots, case.nr_groups, case.nr_cpus, setup.options.seed);
    let turns = |groups: &mut StockedGroups, rounds| {
        let mut charges = 0_u64;
        for _ in 0..rounds {
            case.round(|cpu, group| {
                groups.charge(cpu, group, 1);
                groups.uncharge(group, 1);
                charges += 1;
            });
        }
        charges
    };
    turns(&mut groups, WARM_UP);
    let before = groups.walks();
    let charges = turns(&mut groups, rounds(setup));
    assert_eq!(groups.charged(), groups.parked(), "a page was lost");
    Counted {
        name,
        refills_per_charge: to_f64(groups.walks() - before) / to_f64(charges),
        parked: groups.parked(),
        root_width: groups.parked_max() * Bytes::PAGE.0,
        group_width: groups.parked_max_of_any() * Bytes::PAGE.0,
    }
}

fn row(case: &Case, counted: &Counted) -> Row {
    // The first tables have several numbers of groups and CPUs under each name.
    let variant = match case.part {
        ONE_CPU => format!("{}, {}", counted.name, groups_of(case.nr_groups)),
        FEW => format!("{}, {} CPUs", counted.name, case.nr_cpus),
        _ => counted.name.to_owned(),
    };
    Row::new(case.part, Source::Run, variant)
        .with("groups", case.nr_groups)
        .with("refills_per_charge", counted.refills_per_charge)
        .with("parked_pages", counted.parked)
        .with("root_width_bytes", counted.root_width)
        .with("group_width_bytes", counted.group_width)
}

fn groups_of(count: usize) -> String {
    match count {
        1 => "1 group".to_owned(),
        count => format!("{count} groups"),
    }
}

fn judge(case: &Case, counted: &[Counted], checks: &mut Vec<Check>) {
    let of = |name: &str| {
        let found = counted.iter().find(|counted| counted.name == name);
        found.expect("every design is counted")
    };
    let place = match case.part {
        ONE_CPU => format!("{} on one CPU", groups_of(case.nr_groups)),
        FEW => format!("1,000 groups on {} CPUs", case.nr_cpus),
        part => part.to_owned(),
    };
    let (ours, seven, one) = (of(OURS), of(SEVEN_SLOTS), of(ONE_SLOT));
    let check = |what: &str| Check::counted(format!("{place}: {what}"));
    let nr_words = case.nr_groups.min(8) * case.nr_cpus;
    let bound = (nr_words as u64 * CHARGE_BATCH).min(case.nr_cpus as u64 * PAGES_OF_CPU);
    let widest = to_f64(ours.root_width.max(ours.group_width));
    checks.push(
        check("Highwater: the widest interval, against the stock of 7 slots").at_most(
            widest,
            to_f64(bound * Bytes::PAGE.0),
            Unit::Bytes,
        ),
    );
    checks.push(check("Highwater: pages parked").at_most(
        to_f64(ours.parked),
        to_f64(bound),
        Unit::Pages,
    ));
    checks.push(check("Highwater: refills a charge").at_most(
        ours.refills_per_charge,
        1.0 / 28.0,
        Unit::Plain,
    ));
    let is_kept = |slots| case.nr_groups <= slots;
    for (slots, counted) in [(1, one), (7, seven)] {
        let subject = check(&format!("{}: refills a charge", counted.name));
        let refills = counted.refills_per_charge;
        checks.push(match is_kept(slots) {
            true => subject.at_most(refills, 0.05, Unit::Plain),
            // The random slot that gives way is the next group's once in so many turns.
            false => subject.at_least(refills, 0.1, Unit::Plain),
        });
    }
    if case.nr_groups >= 1000 {
        let ratio = to_f64(of(OF_COUNTER).root_width) / to_f64(ours.root_width);
        checks.push(
            check("a stock in each counter: the root's width, against Highwater's").at_least(
                ratio,
                2.0,
                Unit::Ratio,
            ),
        );
    }
}
