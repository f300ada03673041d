//! The promise: waiting charges are served in FIFO order, are never overtaken, and never sleep
//! while there is room for them.

#![expect(clippy::unwrap_used, reason = "a test stops where it goes wrong")]

#[path = "../src/seed.rs"]
mod seed;

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use highwater::group::{ChargeError, GroupNode, GroupTree, Limits, NodeCharge, NodeChargeWait};
use highwater::units::{Bytes, CpuId};

/// `count` times an odd amount, so that no sum is a number of whole pages.
const fn amount(count: u64) -> Bytes {
    Bytes(count.saturating_mul(4001))
}

/// Records that it was called.
#[derive(Default)]
struct Bell(AtomicBool);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A task of an executor that runs a task only when it was called.
struct Task {
    wait: NodeChargeWait,
    bell: Arc<Bell>,
}

impl Task {
    fn new(wait: NodeChargeWait) -> Self {
        let bell = Arc::new(Bell(AtomicBool::new(true)));
        Self { wait, bell }
    }

    fn is_called(&self) -> bool {
        self.bell.0.load(Ordering::Relaxed)
    }

    fn poll(&mut self) -> Poll<Result<NodeCharge, ChargeError>> {
        self.bell.0.store(false, Ordering::Relaxed);
        let waker = Waker::from(Arc::clone(&self.bell));
        Pin::new(&mut self.wait).poll(&mut Context::from_waker(&waker))
    }

    /// Returns the charge, if the task was called and is granted now.
    fn granted(&mut self) -> Option<NodeCharge> {
        match self.is_called().then(|| self.poll())? {
            Poll::Ready(outcome) => Some(outcome.unwrap()),
            Poll::Pending => None,
        }
    }
}

fn child(parent: &GroupNode, name: &str, max: u64) -> GroupNode {
    parent.child(name, Limits::max(amount(max))).unwrap()
}

fn behind(outcome: Result<NodeCharge, ChargeError>) -> usize {
    match outcome.unwrap_err() {
        ChargeError::Behind { nr_waiting, .. } => nr_waiting,
        error => panic!("{error}"),
    }
}

// Goal: grants come in FIFO order, for all sizes, and no other charge passes. Method: waiters of
// all sizes at one group, charging through different groups and CPUs; give pages back one by one on
// 384 CPUs; after each, exactly those are granted that a queue would grant, and a charge of one
// page is refused while a charge waits.
#[test]
fn waiters_are_served_in_order_of_arrival() {
    let tree = GroupTree::new(384);
    let top = child(&tree.root(), "top", 50);
    let groups = ["a", "b"].map(|name| child(&top, name, Bytes::MAX.0));
    let mut held = groups[0].at(CpuId(3)).try_charge(amount(50)).unwrap();
    let sizes = [30, 1, 1, 20, 5, 40, 2, 50, 1];
    let mut tasks: Vec<Task> = sizes
        .iter()
        .zip(0..)
        .map(|(size, nth)| {
            let group = &groups[nth as usize % 2];
            Task::new(group.at(CpuId(nth * 7)).charge_wait(amount(*size)))
        })
        .collect();
    for task in &mut tasks {
        assert!(task.poll().is_pending());
    }
    assert_eq!(top.nr_waiting(), sizes.len());
    let (mut nr_granted, mut free) = (0, 0);
    let mut granted: Vec<NodeCharge> = Vec::new();
    for on in (0..384).cycle() {
        if nr_granted == sizes.len() {
            break;
        }
        assert_eq!(
            behind(groups[1].at(CpuId(on)).try_charge(amount(1))),
            sizes.len() - nr_granted
        );
        // The first holder gives back its whole charge, and then those that came after it.
        if held.bytes() == Bytes::ZERO {
            held = granted.remove(0);
        }
        held.at(CpuId(on)).shrink(amount(1));
        free += 1;
        while nr_granted < sizes.len() && sizes[nr_granted] <= free {
            free -= sizes[nr_granted];
            granted.push(tasks[nr_granted].granted().expect("its turn and room"));
            nr_granted += 1;
        }
        assert!(
            !tasks[nr_granted..].iter().any(Task::is_called),
            "called for nothing"
        );
        assert_eq!(top.usage_precise(), amount(50 - free));
    }
    drop((held, granted, tasks));
    tree.check_invariants();
    assert_eq!((top.usage_precise(), top.nr_waiting()), (Bytes::ZERO, 0));
}

// Goal: a charge that waits at its own group does not block the groups above. Method: a waiter that
// first found the top full and then its own group; a sibling must use the top's room meanwhile, and
// the waiter must be first again at the top when its own group has room.
#[test]
fn a_full_group_holds_up_nobody_beside_it() {
    let tree = GroupTree::new(2);
    let top = child(&tree.root(), "top", 10);
    let (a, b) = (child(&top, "a", 4), child(&top, "b", 10));
    let in_a = a.try_charge(amount(1)).unwrap();
    let mut in_b = b.try_charge(amount(9)).unwrap();
    let mut task = Task::new(a.charge_wait(amount(3)));
    assert!(task.poll().is_pending());
    assert_eq!(task.wait.stands_at(), Some(top.id()));
    let forced = a.force_charge(amount(1));
    in_b.shrink(amount(4));
    assert!(task.granted().is_none());
    assert_eq!(task.wait.stands_at(), Some(a.id()));
    in_b.try_grow(amount(3)).unwrap();
    assert_eq!(behind(a.try_charge(amount(1))), 1);
    drop(forced);
    assert!(task.granted().is_none());
    assert_eq!(task.wait.stands_at(), Some(top.id()));
    assert_eq!(
        behind(in_b.try_grow(amount(1)).map(|()| panic!("overtook"))),
        1
    );
    in_b.shrink(amount(2));
    let granted = task.granted().expect("room everywhere");
    drop((granted, in_a, in_b));
    tree.check_invariants();
}

// Goal: a waiter that can never be served gets an error: its group removed, the maximum set below
// its size, the deadline passed. One that gives up lets the next one proceed.
#[test]
fn waiters_that_cannot_be_served_are_told() {
    let tree = GroupTree::new(2);
    let top = child(&tree.root(), "top", 10);
    let leaf = child(&top, "leaf", Bytes::MAX.0);
    let mut held = top.try_charge(amount(8)).unwrap();
    let mut tasks = [(&leaf, 4), (&top, 9), (&top, 3)]
        .map(|(group, pages)| Task::new(group.charge_wait(amount(pages))));
    tasks
        .iter_mut()
        .for_each(|task| assert!(task.poll().is_pending()));

    let now = Instant::now();
    let late = top.charge_wait(amount(1)).wait_until(now).unwrap_err();
    let expected = "group /top: 4001 B asked, 8002 B free below its maximum of 40010 B at the deadline, \
                    charges wait there (4); reclaim from it or raise its maximum";
    assert_eq!(late.to_string(), expected);
    tree.remove(&leaf).unwrap();
    assert!(tasks[0].is_called());
    let removed = ChargeError::Removed { group: leaf.path() };
    assert_eq!(
        tasks[0].poll().map(Result::unwrap_err),
        Poll::Ready(removed)
    );

    top.set_max(amount(8)).unwrap();
    assert!(tasks[1].is_called() && !tasks[2].is_called());
    let Poll::Ready(Err(ChargeError::OverMax { max, .. })) = tasks[1].poll() else {
        panic!("9 pages of 8");
    };
    assert_eq!((max, top.events().max), (amount(8), 1));
    held.shrink(amount(2));
    assert!(tasks[2].granted().is_none());
    let mut last = Task::new(top.charge_wait(amount(2)));
    assert!(last.poll().is_pending());
    let [_, _, given_up] = tasks;
    drop(given_up);
    let granted = last.granted().expect("the first gave up");
    assert_eq!(
        top.charge_wait(amount(9))
            .wait()
            .unwrap_err()
            .to_string()
            .split(':')
            .next(),
        Some("group /top")
    );
    drop((granted, held));
    tree.check_invariants();
}

// Symptom: a charge that a lowered maximum made impossible waited for as long as those before it.
#[test]
fn what_can_never_fit_is_told_behind_others_that_wait() {
    let tree = GroupTree::new(2);
    let top = child(&tree.root(), "top", 100);
    let held = top.try_charge(amount(100)).unwrap();
    let [mut first, mut too_large, mut last] =
        [10, 80, 1].map(|pages| Task::new(top.charge_wait(amount(pages))));
    for task in [&mut first, &mut too_large, &mut last] {
        assert!(task.poll().is_pending());
    }
    assert!(top.set_max(amount(50)).is_err(), "it uses more");
    assert!(!first.is_called() && too_large.is_called() && !last.is_called());
    let Poll::Ready(Err(ChargeError::OverMax { max, .. })) = too_large.poll() else {
        panic!("80 pages of 50");
    };
    assert_eq!(max, amount(50));
    drop(held);
    let [first, last] = [&mut first, &mut last].map(|task| task.granted());
    assert!(first.is_some() && last.is_some());
    drop((first, last));
    tree.check_invariants();
}

// Symptom: a charge that a lowered maximum made impossible waited for ever, where it was queued at
// another group of its way.
// Goal: it is woken and refused. Method: the maximum between two groups at which charges are queued
// is lowered; then charges come that are larger.
#[test]
fn what_can_never_fit_is_told_where_it_waits_below_or_above() {
    let tree = GroupTree::new(2);
    let top = child(&tree.root(), "top", 100);
    let middle = child(&top, "middle", 200);
    let leaf = child(&middle, "leaf", 60);
    let held = [top.try_charge(amount(50)), leaf.try_charge(amount(30))].map(Result::unwrap);
    let charges = [
        (&leaf, 45),
        (&leaf, 44),
        (&middle, 42),
        (&top, 41),
        (&leaf, 40),
    ];
    let mut tasks = charges.map(|(group, pages)| Task::new(group.charge_wait(amount(pages))));
    for task in &mut tasks {
        assert!(task.poll().is_pending());
    }
    let nr_waiting = [&leaf, &middle, &top].map(GroupNode::nr_waiting);
    assert_eq!(nr_waiting, [3, 0, 2]);
    middle.set_max(amount(40)).unwrap();
    let is_called = tasks.each_ref().map(Task::is_called);
    assert_eq!(is_called, [true, true, true, false, false]);
    let mut later = [41, 60].map(|pages| Task::new(leaf.charge_wait(amount(pages))));
    // The second first: it is behind another.
    for task in later.iter_mut().chain(tasks[..3].iter_mut().rev()) {
        let Poll::Ready(Err(ChargeError::OverMax { group, max, .. })) = task.poll() else {
            panic!("more than 40 pages");
        };
        assert_eq!((group, max), (middle.path(), amount(40)));
    }
    drop(held);
    let [.., first, last] = tasks.each_mut().map(Task::granted);
    assert!(first.is_some() && last.is_some());
    drop((first, last));
    tree.check_invariants();
}

#[test]
fn a_deadline_passes_beside_free_memory_only_where_others_wait_for_it() {
    // Goal: no charge gives up beside room for itself and all before it, also while those have been
    // called and have not polled. Method: the full group has room for the first two of three; the
    // first is not polled. The second is granted, and leaves the room for the first; the third is
    // refused by its deadline.
    let tree = GroupTree::new(1);
    let top = child(&tree.root(), "top", 10);
    let held = top.try_charge(amount(10)).unwrap();
    let mut first = Task::new(top.charge_wait(amount(4)));
    let mut second = Task::new(top.charge_wait(amount(3)));
    assert!(first.poll().is_pending() && second.poll().is_pending());
    drop(held);
    assert!(first.is_called() && second.is_called());
    let second = second.granted().expect("there is room for both");
    let soon = Instant::now() + Duration::from_millis(1);
    let third = top.charge_wait(amount(4)).wait_until(soon);
    assert!(matches!(third, Err(ChargeError::DeadlinePassed { .. })));
    let soon = Instant::now() + Duration::from_millis(1);
    let fourth = top.charge_wait(amount(3)).wait_until(soon).unwrap();
    let first = first.granted().expect("it was left room");
    drop((first, second, fourth));
    tree.check_invariants();
}

/// Random groups, charges and tasks, and an executor that polls called tasks.
struct World {
    rng: fastrand::Rng,
    tree: GroupTree,
    groups: Vec<GroupNode>,
    held: Vec<NodeCharge>,
    tasks: Vec<(usize, Task)>,
    nr_granted: usize,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let tree = GroupTree::new([1, 2, 8, 384][rng.usize(..4)]);
        let mut groups = vec![tree.root()];
        for nth in 0..8 {
            let max = [5, 20, 60, 300][rng.usize(..4)];
            let parent = groups[rng.usize(..groups.len())].clone();
            groups.push(child(&parent, &format!("g{nth}"), max));
        }
        groups[0].set_max(amount(200)).unwrap();
        Self {
            rng,
            tree,
            groups,
            held: Vec::new(),
            tasks: Vec::new(),
            nr_granted: 0,
        }
    }

    fn step(&mut self) {
        let on = CpuId::from_index(self.rng.usize(..self.tree.nr_cpus()));
        let at = self.rng.usize(..self.groups.len());
        let group = self.groups[at].clone();
        let large = self.rng.u8(..6) == 0;
        let pages = amount(self.rng.u64(..if large { 80 } else { 5 }));
        let nth = (!self.held.is_empty()).then(|| self.rng.usize(..self.held.len()));
        match (self.rng.u8(..24), nth) {
            (0..6, _) => {
                let task = Task::new(group.at(on).charge_wait(pages));
                self.tasks.push((at, task));
            }
            (6..10, _) => self.held.extend(group.at(on).try_charge(pages)),
            (10, _) => self.held.push(group.at(on).force_charge(pages)),
            (11, _) => drop(group.set_max(amount(self.rng.u64(..250)))),
            (12, Some(nth)) => {
                let part = Bytes(self.rng.u64(..=self.held[nth].bytes().0));
                let moved = self.held[nth].at(on).transfer(&group, part);
                self.held.extend(moved);
            }
            (13, _) if !self.tasks.is_empty() => {
                let nth = self.rng.usize(..self.tasks.len());
                self.tasks.swap_remove(nth);
            }
            (14, _) if at > 0 && group.children().is_empty() => {
                let parent = group.parent().unwrap();
                if self.tree.remove(&group).is_ok() && !parent.is_removed() {
                    let name = format!("r{}", self.rng.u64(..));
                    self.groups[at] = child(&parent, &name, self.rng.u64(..100));
                }
            }
            (15.., Some(nth)) => {
                let mut charge = self.held.swap_remove(nth);
                let all = charge.bytes();
                charge.at(on).shrink(all);
            }
            _ => {}
        }
    }

    /// Polls called tasks until none is called.
    fn run(&mut self) {
        while let Some(nth) = self.tasks.iter().position(|(_, task)| task.is_called()) {
            match self.tasks[nth].1.poll() {
                Poll::Pending => {}
                Poll::Ready(outcome) => {
                    self.nr_granted += usize::from(outcome.is_ok());
                    self.held.extend(outcome);
                    self.tasks.swap_remove(nth);
                }
            }
        }
    }

    /// No task is called now: the head of each queue must really lack room there.
    fn check(&self) {
        self.tree.check_invariants();
        let mut firsts = 0;
        for group in self.tree.subtree(&self.tree.root()) {
            let here = |(_, task): &&(usize, Task)| task.wait.stands_at() == Some(group.id());
            let account = group.account();
            assert_eq!(self.tasks.iter().filter(here).count(), group.nr_waiting());
            let first = self
                .tasks
                .iter()
                .filter(here)
                .find(|(_, task)| task.wait.is_first());
            let Some((_, first)) = first else {
                assert_eq!(group.nr_waiting(), 0, "no charge is first");
                continue;
            };
            firsts += 1;
            assert_eq!(
                account.escrowed,
                Bytes::ZERO,
                "hidden below {}",
                group.path()
            );
            let wanted = first.wait.bytes();
            assert!(
                account.used + wanted > group.limits().max,
                "{wanted} sleep beside {account:?} of {}",
                group.limits().max
            );
        }
        assert_eq!(firsts == 0, self.tasks.is_empty(), "a charge in no queue");
    }
}

// Goal: no charge sleeps while there is room for it, and no wake-up is lost, under any operations.
// Method: random operations of all kinds on random trees; tasks are polled only when called. When
// no task is called any more, the head of every queue must lack room there, nothing may be in
// escrow below, and every task must be in a queue. At the end everything is released, and every
// task must be done.
#[test]
fn nobody_sleeps_beside_free_pages() {
    let seed = seed::seed(1);
    let mut nr_granted = 0;
    for round in 0..60 {
        let mut world = World::new(seed * 1000 + round);
        for _ in 0..400 {
            world.step();
            world.run();
            world.check();
        }
        while let Some(charge) = world.held.pop() {
            drop(charge);
            world.run();
        }
        world.check();
        assert!(
            world.tasks.is_empty(),
            "{} wait in an empty tree",
            world.tasks.len()
        );
        nr_granted += world.nr_granted;
    }
    assert!(nr_granted > 1000, "{nr_granted} grants");
}

// Goal: the same with threads that park. Method: eight threads want up to a whole maximum each,
// through two groups with limits of their own, beside threads that try, force and give back; all
// must be served well before a deadline that only a lost wake-up can reach. If threads hardly run
// at the same time, on an emulated machine, they continue, and hold their charges for longer, until
// a try has met a waiter.
#[test]
fn threads_that_wait_are_all_served() {
    const ROUNDS: u64 = 300;
    const TIME: Duration = Duration::from_secs(60);
    let seed = seed::seed(1);
    let tree = GroupTree::new(4);
    let top = child(&tree.root(), "top", 100);
    let groups = [child(&top, "a", 80), child(&top, "b", 60)];
    let (served, behind) = (AtomicU64::new(0), AtomicU64::new(0));
    let begun = Instant::now();
    thread::scope(|scope| {
        for nth in 0..8 {
            let (groups, served, behind) = (&groups, &served, &behind);
            let mut rng = fastrand::Rng::with_seed(seed * 100 + nth);
            scope.spawn(move || {
                for round in 0.. {
                    let is_met = || behind.load(Ordering::Relaxed) > 0;
                    if round >= ROUNDS && (is_met() || begun.elapsed() > TIME) {
                        break;
                    }
                    let group = &groups[rng.usize(..2)];
                    let (on, pages) = (CpuId(rng.u32(..4)), amount(rng.u64(1..=60)));
                    if rng.u8(..4) == 0 {
                        match group.at(on).try_charge(pages) {
                            Ok(charge) => group.at(on).uncharge(charge.disown()),
                            Err(ChargeError::Behind { .. }) => {
                                behind.fetch_add(1, Ordering::Relaxed);
                            }
                            Err(_) => {}
                        }
                        continue;
                    }
                    let deadline = Instant::now() + Duration::from_secs(60);
                    let mut charge = group
                        .at(on)
                        .charge_wait(pages)
                        .wait_until(deadline)
                        .unwrap();
                    served.fetch_add(1, Ordering::Relaxed);
                    match round {
                        ROUNDS.. => thread::sleep(Duration::from_millis(1)),
                        _ if rng.bool() => thread::yield_now(),
                        _ => {}
                    }
                    charge.at(CpuId(rng.u32(..4))).shrink(pages);
                }
            });
        }
    });
    tree.check_invariants();
    assert_eq!((top.usage_precise(), top.nr_waiting()), (Bytes::ZERO, 0));
    assert!(served.into_inner() > 1000 && behind.into_inner() > 0);
}

#[test]
fn what_can_never_fit_is_refused_at_once() {
    // Goal: no charge waits for an amount that no account can hold, also without a maximum.
    let root = GroupTree::new(1).root();
    let group = root.child("a", Limits::default()).unwrap();
    for pages in [1 << 44, 1 << 45, u64::MAX >> 12, u64::MAX] {
        for outcome in [
            group.charge_wait(amount(pages)).wait(),
            group.try_charge(amount(pages)),
        ] {
            let error = outcome.unwrap_err();
            let ChargeError::OverMax { requested, max, .. } = error else {
                panic!("{error}")
            };
            assert!(requested > max, "{error}");
        }
        drop(group.try_charge(amount(1)).unwrap());
    }
}

/// A waker that keeps pages charged while it exists.
struct Holder(#[expect(dead_code, reason = "dropped with the waker")] NodeCharge);

impl Wake for Holder {
    fn wake(self: Arc<Self>) {}
}

#[test]
fn wakers_are_dropped_when_no_lock_is_held() {
    // Goal: objects dropped with a waker may charge and uncharge. Method: the last handles of two
    // wakers are left in the queue; one is replaced, one is dropped with its place, and each gives
    // pages back where a charge waits.
    let group = GroupTree::new(1)
        .root()
        .child("a", Limits::max(amount(10)))
        .unwrap();
    let mut all = group.try_charge(amount(10)).unwrap();
    let mut first = group.charge_wait(amount(5));
    let mut second = group.charge_wait(amount(1));
    let bell = Arc::new(Bell::default());
    let ring = Waker::from(Arc::clone(&bell));
    assert!(
        Pin::new(&mut first)
            .poll(&mut Context::from_waker(&ring))
            .is_pending()
    );
    for _ in 0..2 {
        let holder = Waker::from(Arc::new(Holder(all.split(amount(2)))));
        let polled = Pin::new(&mut second).poll(&mut Context::from_waker(&holder));
        assert!(polled.is_pending());
    }
    assert_eq!(
        group.usage_precise(),
        amount(8),
        "the first waker was replaced"
    );
    drop(second);
    assert_eq!(group.usage_precise(), amount(6));
    drop(all.split(amount(1)));
    assert!(bell.0.load(Ordering::Relaxed), "there is room for five");
    assert!(
        Pin::new(&mut first)
            .poll(&mut Context::from_waker(&ring))
            .is_ready()
    );
}
