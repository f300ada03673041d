//! The rules against their promises, on a machine of numbers: a list is its count, run and growth,
//! and the zones are a number too (frames-and-reclaim specification, section 18, items 2 to 9).

use super::policy::{AutoTuned, ListState, PcpPolicy, Rules, Shortage, Use};
use crate::frame::{PcpSizes, Tunables};
use crate::units::Order;

/// Lists of one size, which drain in one hold.
#[derive(Debug)]
pub(super) struct Fixed;

impl PcpPolicy for Fixed {
    fn sizes(&self, sizes: PcpSizes) -> PcpSizes {
        PcpSizes {
            high_max: sizes.high_min,
            ..sizes
        }
    }

    fn piece(&self, _: &Rules, count: u32) -> u32 {
        count
    }
}

pub(super) const POLICIES: [&dyn PcpPolicy; 2] = [&Fixed, &AutoTuned];
/// Decays that bring any list of these tests to its minimum size.
const TICKS_MAX: u32 = 2000;

/// A list without frames: the numbers that the rules see, moved as a list moves them.
#[derive(Debug)]
pub(super) struct Machine {
    pub(super) rules: Rules,
    pub(super) list: ListState,
    pub(super) used: Use,
    pub(super) shortage: Shortage,
}

/// The kind of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Alloc(Order),
    Free(Order),
}

/// The frames that one step moved.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Moved {
    pub(super) refilled: u32,
    pub(super) drained: u32,
    limit: u32,
    is_drain_all: bool,
}

impl Machine {
    pub(super) fn new(rules: Rules) -> Self {
        Self {
            rules,
            list: rules.initial(),
            used: Use {
                count: 0,
                free_run: 0,
                grow: 0,
            },
            shortage: Shortage::default(),
        }
    }

    /// Allocates a block of an order whose list holds `held` frames of the count.
    pub(super) fn alloc(&mut self, order: Order, held: u32) -> Moved {
        let mut moved = Moved::default();
        self.used.free_run /= 2;
        let frames = 1 << order.get();
        if held < frames {
            let (rules, list) = (&self.rules, &mut self.list);
            let policy = rules.policy;
            let refill = policy.refill(rules, list, self.used, order, self.shortage);
            self.used.grow = refill.grow;
            moved.refilled = refill.blocks << order.get();
            self.used.count += moved.refilled;
        }
        self.used.count -= frames;
        moved
    }

    pub(super) fn free(&mut self, order: Order) -> Moved {
        self.used.grow /= 2;
        self.used.count += 1 << order.get();
        let (rules, list) = (&self.rules, &mut self.list);
        let policy = rules.policy;
        let freed = policy.freed(rules, list, self.used, order, self.shortage);
        self.used.free_run = freed.free_run;
        // Whole blocks leave, too: the caller knows which.
        self.used.count -= freed.drain;
        Moved {
            refilled: 0,
            drained: freed.drain,
            limit: freed.limit,
            is_drain_all: freed.is_drain_all,
        }
    }

    pub(super) fn decay(&mut self) -> u32 {
        let drained = self.rules.decay(&mut self.list, self.used.count);
        self.used.count -= drained;
        drained
    }
}

fn rules(scale: i64, sizes: (u32, u32, u32)) -> Rules {
    rules_of(&AutoTuned, scale, sizes)
}

fn rules_of(
    policy: &'static dyn PcpPolicy,
    scale: i64,
    (batch, high_min, high_max): (u32, u32, u32),
) -> Rules {
    let tunables = Tunables::default()
        .with("pcp_batch_scale_max", scale)
        .expect("in range");
    let sizes = PcpSizes {
        batch,
        high_min,
        high_max,
    };
    Rules::new(policy, sizes, &tunables, 256)
}

/// Returns every policy and scale, with sizes from a list that holds nothing to the specification's
/// largest (frames, 4.2).
fn all_rules() -> impl Iterator<Item = Rules> {
    let sizes = [
        (1, 0, 0),
        (1, 1, 1),
        (1, 2, 16),
        (1, 5, 40),
        (3, 17, 113),
        (15, 320, 4096),
        (63, 252, 512),
        (63, 252, 252),
        (63, 2715, 147_456),
    ];
    let scales = (0..=6).flat_map(move |scale| sizes.map(|sizes| (scale, sizes)));
    scales.flat_map(|(scale, sizes)| POLICIES.map(|policy| rules_of(policy, scale, sizes)))
}

fn order_of(random: &mut fastrand::Rng) -> Order {
    match random.u8(..20) {
        0 => Order::HUGE,
        1..4 => Order::new(random.u8(1..=3)).expect("in range"),
        _ => Order::ZERO,
    }
}

/// Runs `check` on each step of long random lives of lists: bursts of frees and allocations,
/// shortage that comes and goes, decays.
fn random_lives(mut check: impl FnMut(&Machine, Step, &Moved)) {
    let mut random = crate::seed::rng(0x9c9);
    for rules in all_rules() {
        let mut machine = Machine::new(rules);
        for _ in 0..300 {
            match random.u8(..16) {
                0 => machine.shortage.reclaim_active ^= true,
                1 => machine.shortage.below_high ^= true,
                2 => {
                    let drained = machine.decay();
                    assert!(drained <= rules.decay_max(), "{rules:?}");
                }
                _ => (),
            }
            let (frees, most) = (random.bool(), 1 << random.u8(..9));
            for _ in 0..random.u32(..most) {
                let order = order_of(&mut random);
                let (step, moved) = if frees {
                    (Step::Free(order), machine.free(order))
                } else {
                    // The frames of the requested order are some of all.
                    let held = random.u32(..=machine.used.count);
                    (Step::Alloc(order), machine.alloc(order, held))
                };
                check(&machine, step, &moved);
            }
        }
    }
}

#[test]
fn after_a_free_the_list_is_below_its_limit_or_gave_what_it_must() {
    // Goal: item 2. Method: random lives; after each free the count is below the limit, or the free
    // moved as much as a free may at that limit, and so does each one after it until the count is
    // below; and `high` is within its bounds after every step.
    random_lives(|machine, step, moved| {
        let (rules, high) = (machine.rules, machine.list.high);
        let bounds = rules.high_min..=rules.high_max;
        assert!(bounds.contains(&high), "{rules:?}: high {high}");
        if matches!(step, Step::Free(_)) {
            let is_below = machine.used.count < moved.limit;
            let gave = moved.drained
                >= rules
                    .batch
                    .min(moved.limit.saturating_sub(rules.batch))
                    .max(1);
            assert!(is_below || gave, "{rules:?}: {:?} {moved:?}", machine.used);
        }
    });
}

#[test]
fn a_single_free_at_rest_leaves_less_than_the_limit() {
    // Goal: item 2 for lists that only frames go through, with nothing else changing: each free
    // that reaches the limit ends below it. Method: fill lists by frees alone.
    for rules in all_rules() {
        let mut machine = Machine::new(rules);
        for _ in 0..3 * rules.high_max.min(5000) {
            let moved = machine.free(Order::ZERO);
            assert!(
                machine.used.count < moved.limit || moved.limit == 0 && machine.used.count == 0,
                "{rules:?}: {:?} {moved:?}",
                machine.used
            );
        }
    }
}

#[test]
fn transfers_are_bounded() {
    // Goal: item 3. Method: random lives; each refill and each drain against its bound.
    random_lives(|machine, step, moved| {
        let Machine { rules, used, .. } = machine;
        match step {
            Step::Free(order) => {
                let most = rules
                    .cap()
                    .min(moved.limit.saturating_sub(rules.batch).max(1));
                let most = if moved.is_drain_all {
                    rules.cap()
                } else {
                    most
                };
                assert!(moved.drained <= most, "{rules:?} {order:?}: {moved:?}");
            }
            Step::Alloc(Order::ZERO) => {
                // Before the refill the count was smaller, and `high` has its raised value.
                let before = (used.count + 1).saturating_sub(moved.refilled);
                let room = machine.list.high.saturating_sub(before + rules.batch);
                let most = rules.cap().min(room.max(rules.batch));
                assert!(moved.refilled <= most, "{rules:?}: {moved:?}");
            }
            Step::Alloc(order) => {
                let most = rules.batch.max(2 << order.get());
                assert!(moved.refilled <= most, "{rules:?}: {moved:?}");
            }
        }
    });
}

#[test]
fn refills_of_single_frames_double_up_to_the_cap() {
    // Goal: item 3, for the order that matters, to the frame. Method: allocate alone; the growth is
    // doubled by each refill while there is room.
    for rules in all_rules() {
        let mut machine = Machine::new(rules);
        let mut expected = rules.batch;
        for _ in 0..12 {
            while machine.used.count > 0 {
                machine.alloc(Order::ZERO, machine.used.count);
            }
            let high = machine.list.high;
            let moved = machine.alloc(Order::ZERO, 0);
            if high < rules.batch {
                assert_eq!(moved.refilled, 1);
                break;
            }
            let room = machine
                .list
                .high
                .saturating_sub(rules.batch)
                .max(rules.batch);
            let least = if expected.min(room) > 1 { 2 } else { 1 };
            assert_eq!(moved.refilled, expected.min(room).max(least), "{rules:?}");
            if expected <= room && expected < rules.cap() {
                expected *= 2;
            }
        }
    }
}

#[test]
fn a_list_that_moves_frames_one_way_stays_short() {
    // Goal: frames that go one way are not held up on the way, not even in lists that were large.
    // Method: bursts that lists can hold a part of make one as large as can be, and leave it so;
    // then its CPU frees what others allocate, and allocates what others free, by turns. The list
    // and its `high` after each turn.
    let rules = rules(5, (63, 252, 16_384));
    let mut machine = Machine::new(rules);
    let alloc = |machine: &mut Machine| machine.alloc(Order::ZERO, machine.used.count);
    for nth in 0..8 {
        (0..40_000).for_each(|_| _ = machine.free(Order::ZERO));
        let least = rules.high_max - rules.cap();
        assert!(
            nth == 0 || machine.used.count >= least,
            "{nth}: {machine:?}"
        );
        (0..40_000).for_each(|_| _ = alloc(&mut machine));
    }
    assert_eq!(machine.list.high, rules.high_max);
    let most = rules.cap() + rules.batch;
    for turn in 0..3 {
        (0..100_000).for_each(|_| _ = machine.free(Order::ZERO));
        let (count, high) = (machine.used.count, machine.list.high);
        assert!(count <= most && high <= most, "{turn}: {machine:?}");
        (0..100_000).for_each(|_| _ = alloc(&mut machine));
        assert!(machine.list.high <= most, "{turn}: {machine:?}");
    }
}

#[test]
fn the_run_of_frees_is_capped_and_halved() {
    // Goal: item 4. Method: random lives, with the run of the previous step.
    let mut before = 0;
    random_lives(|machine, step, _| {
        let Machine { rules, used, .. } = machine;
        assert!(used.free_run <= rules.cap(), "{rules:?}: {used:?}");
        if matches!(step, Step::Alloc(_)) && before <= rules.cap() {
            assert!(used.free_run <= rules.cap() / 2 + 1, "{rules:?}: {used:?}");
        }
        before = used.free_run;
    });
    let mut machine = Machine::new(rules(5, (63, 643, 16_384)));
    for _ in 0..100 {
        machine.free(Order::ZERO);
    }
    assert_eq!(machine.used.free_run, 100);
    machine.free(Order::HUGE);
    assert_eq!(machine.used.free_run, 612, "a block counts by its frames");
    machine.alloc(Order::ZERO, 1);
    assert_eq!(machine.used.free_run, 306);
    for _ in 0..9 {
        machine.free(Order::HUGE);
    }
    assert_eq!(
        machine.used.free_run, 2016,
        "the thread's first patch: never above the cap"
    );
}

#[test]
fn without_scale_transfers_are_batches() {
    // Goal: item 5. Method: scale 0, random single frames; and by the rules themselves in every
    // step.
    let mut random = crate::seed::rng(5);
    for policy in POLICIES {
        let rules = rules_of(policy, 0, (63, 643, 16_384));
        let mut machine = Machine::new(rules);
        for _ in 0..20_000 {
            let burst = random.u32(..200);
            let frees = random.bool();
            for _ in 0..burst {
                if frees {
                    let drained = machine.free(Order::ZERO).drained;
                    assert!(drained == 0 || drained == 63, "{drained}");
                } else {
                    let refilled = machine.alloc(Order::ZERO, machine.used.count).refilled;
                    assert!(refilled == 0 || refilled == 63, "{refilled}");
                }
                assert_eq!(machine.used.grow, 0);
                assert!(machine.used.free_run <= 63);
            }
        }
    }
}

#[test]
fn a_size_set_by_hand_stays() {
    // Goal: item 6. Method: random lives of lists whose bounds are one; decay leaves what fits.
    random_lives(|machine, _, _| {
        if machine.rules.high_min == machine.rules.high_max {
            assert_eq!(machine.list.high, machine.rules.high_min);
        }
    });
    let mut machine = Machine::new(rules(5, (63, 5242, 5242)));
    machine.used.count = 5241;
    assert_eq!(machine.decay(), 0);
    machine.used.count = 6000;
    assert_eq!(machine.decay(), 758);
}

#[test]
fn an_idle_list_decays_to_its_least_size() {
    // Goal: item 7, and the thread's second patch. Method: any list, as full and as large as it can
    // be; decays are bounded, independent of the scale, and end at the minimum size.
    for sizes in [(1, 2, 16), (1, 5, 40), (3, 17, 113), (63, 2715, 147_456)] {
        let ticks_at = |scale| {
            let rules = rules(scale, sizes);
            let mut machine = Machine::new(rules);
            machine.list.high = rules.high_max;
            machine.used.count = rules.high_max;
            let mut ticks = 0;
            while machine.list.high > rules.high_min || machine.used.count > rules.high_min {
                assert!(machine.decay() <= rules.decay_max());
                ticks += 1;
                assert!(ticks < TICKS_MAX, "{rules:?}: {:?}", machine.used);
            }
            assert_eq!(machine.decay(), 0);
            ticks
        };
        let ticks = ticks_at(5);
        assert!((0..=6).all(|scale| ticks_at(scale) == ticks), "{sizes:?}");
    }
}

#[test]
fn lists_shrink_at_each_free_while_memory_is_short() {
    // Goal: the coupling to reclaim (4.6, 3 and 5). Method: a large list under each condition:
    // frees lower `high` by at least a batch, down to the minimum, and drain the excess above the
    // limit of the condition.
    let rules = rules(5, (63, 643, 16_384));
    for (shortage, rest) in [
        (
            Shortage {
                reclaim_active: true,
                below_high: false,
            },
            252,
        ),
        (
            Shortage {
                reclaim_active: false,
                below_high: true,
            },
            643,
        ),
    ] {
        let mut machine = Machine::new(rules);
        (machine.list.high, machine.used.count) = (16_384, 10_000);
        machine.shortage = shortage;
        let mut frees = 0;
        while machine.list.high > 643 || machine.used.count >= rest {
            let (high, count) = (machine.list.high, machine.used.count);
            assert_eq!(
                rules.unlooked(&machine.list, shortage) == 0,
                high > 643,
                "looked at"
            );
            machine.free(Order::ZERO);
            assert!(machine.list.high <= (high - 63.min(high)).max(643));
            assert!(machine.used.count < count.max(rest), "{:?}", machine.used);
            frees += 1;
        }
        assert!(frees <= 16_384 / 63, "{frees}");
        // And no growth by refills while few are free.
        machine.used.count = 0;
        machine.alloc(Order::ZERO, 0);
        assert_eq!(machine.list.high == 643, shortage.below_high);
    }
}

#[test]
fn a_push_that_need_not_look_changes_nothing() {
    // Goal: skipping the rules on the fast path does not matter. Method: random lives; whenever a
    // free of a single frame would find less than `unlooked`, it moves neither `high` nor frames.
    let mut random = crate::seed::rng(77);
    for rules in all_rules() {
        for _ in 0..200 {
            let mut machine = Machine::new(rules);
            machine.list.high = random.u32(rules.high_min..=rules.high_max);
            machine.used.count = random.u32(..=rules.high_max);
            machine.used.free_run = random.u32(..=rules.cap());
            machine.shortage = Shortage {
                reclaim_active: random.bool(),
                below_high: random.bool(),
            };
            let unlooked = rules.unlooked(&machine.list, machine.shortage);
            let (count, list) = (machine.used.count, machine.list);
            let moved = machine.free(Order::ZERO);
            if count < unlooked {
                assert_eq!((moved.drained, machine.list), (0, list), "{rules:?}");
            } else {
                // And a push that applies the rules does so for a reason, except under a flag that
                // moves `high`.
                let is_moved = machine.list != list || moved.drained > 0;
                assert!(is_moved || count + 1 >= moved.limit, "{rules:?} {moved:?}");
            }
        }
    }
}

#[test]
fn blocks_in_a_row_empty_the_list() {
    // Goal: 4.5.3, with the threshold of 2025. Method: a run of single frees, then blocks of order
    // 1: the second of two in a row drains all, one between single frames does not, nor one after a
    // short run.
    let rules = rules(5, (63, 252, 16_384));
    let order = Order::new(1).unwrap();
    let after = |run: u32, orders: &[Order]| {
        let mut machine = Machine::new(rules);
        machine.list.high = 10_000;
        (machine.used.count, machine.used.free_run) = (3000, run);
        let freed = orders.iter().map(|&order| machine.free(order)).last();
        (freed.unwrap().is_drain_all, machine.used.count)
    };
    let threshold = 63 + 252 / 2;
    assert_eq!(after(threshold, &[order, order]), (true, 3004 - 2016));
    assert_eq!(after(threshold, &[order]), (false, 3002));
    assert_eq!(
        after(threshold, &[order, Order::ZERO, order]),
        (false, 3005)
    );
    assert_eq!(after(threshold - 4, &[order, order]), (false, 3004));
}

#[test]
fn a_disabled_list_keeps_nothing() {
    // Goal: item 8. Method: every free of a disabled list drains at once, and refills bring only
    // the requested blocks.
    for rules in all_rules() {
        let mut machine = Machine::new(rules.disabled());
        assert_eq!(machine.rules.clamp(&mut machine.list), 0);
        assert_eq!(machine.alloc(Order::ZERO, 0).refilled, 1);
        for _ in 0..10 {
            machine.free(Order::ZERO);
            assert_eq!(machine.used.count, 0);
        }
    }
}
