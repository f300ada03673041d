//! The promise: under any operations of eight threads on a tree, no page is lost or counted twice,
//! no limit is wrong, no waiter sleeps beside free room, and at the end every counter is at zero.
//!
//! Runs for 3 seconds, or for `TORTURE_SECONDS`.

#![expect(clippy::unwrap_used, reason = "a test stops where it goes wrong")]

#[path = "../src/seed.rs"]
mod seed;

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use highwater::Topology;
use highwater::group::{
    ChargeError, GroupNode, GroupTree, Limits, MaxError, NodeCharge, NodeChargeWait,
};
use highwater::lab::percpu::Regime;
use highwater::units::{Bytes, CpuId, GroupId, PAGE_BYTES};

const NR_THREADS: u64 = 8;

/// Stops the observer on drop, also when a worker fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Records that it was called.
struct Bell(AtomicBool);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A waiting charge, polled only when it was called.
struct Task {
    wait: NodeChargeWait,
    bell: Arc<Bell>,
}

/// Calls a method, as the given CPU if there is one.
macro_rules! act {
    ($on:expr, $of:ident.$operation:ident($($argument:expr),*)) => {
        match $on {
            Some(cpu) => $of.at(cpu).$operation($($argument),*),
            None => $of.$operation($($argument),*),
        }
    };
}

/// Shared state of the threads.
struct Arena {
    tree: GroupTree,
    nr_cpus: usize,
    /// Living groups, and some that were removed a moment ago.
    groups: Mutex<Vec<GroupNode>>,
    /// Guards in transit from one thread to another.
    passing: Mutex<Vec<NodeCharge>>,
}

/// Events by kind; the end asserts that all occurred.
#[derive(Default)]
struct Tally(HashMap<&'static str, u64>);

impl Tally {
    fn count(&mut self, what: &'static str) {
        *self.0.entry(what).or_default() += 1;
    }
}

/// One thread's state.
struct Worker {
    rng: fastrand::Rng,
    held: Vec<NodeCharge>,
    /// Bytes without a guard, by group.
    disowned: Vec<(GroupNode, u64)>,
    tasks: Vec<Task>,
    tally: Tally,
}

impl Arena {
    fn new(rng: &mut fastrand::Rng) -> Self {
        // Without restartable sequences, that regime uses its extra word alone.
        let (regime, nr_cpus) = if rng.u8(..3) == 0 {
            (Regime::Restartable, Topology::detect().nr_cpus())
        } else {
            (Regime::Atomic, [1, 2, 8, 64, 384][rng.usize(..5)])
        };
        let tree = GroupTree::with_regime(regime, nr_cpus);
        let groups = Mutex::new(vec![tree.root()]);
        let arena = Self {
            tree,
            nr_cpus,
            groups,
            passing: Mutex::new(Vec::new()),
        };
        for nth in 0..10 {
            arena.grow(rng, &format!("g{nth}"));
        }
        arena
    }

    fn grow(&self, rng: &mut fastrand::Rng, name: &str) {
        let parent = self.any(rng);
        if let Ok(group) = parent.child(name, limits(rng)) {
            self.groups.lock().unwrap().push(group);
        }
    }

    fn any(&self, rng: &mut fastrand::Rng) -> GroupNode {
        let groups = self.groups.lock().unwrap();
        groups[rng.usize(..groups.len())].clone()
    }

    /// Removes a random group and forgets it.
    fn prune(&self, rng: &mut fastrand::Rng) -> bool {
        let group = self.any(rng);
        let is_removed = self.tree.remove(&group).is_ok();
        // Other threads may still pick it until here: their operations must fail or work, not go
        // wrong.
        self.groups
            .lock()
            .unwrap()
            .retain(|other| !other.is_removed());
        is_removed
    }

    /// Checks every group until stopped: readings of one moment must be consistent.
    fn observe(&self, stop: &AtomicBool) -> u64 {
        let mut looks = 0;
        while !stop.load(Ordering::Relaxed) {
            for group in self.tree.subtree(&self.tree.root()) {
                let account = group.account();
                if account.is_exact {
                    assert_eq!(account.reserved, account.used + account.escrowed);
                    assert!(
                        account.debt == Bytes::ZERO || account.escrowed == Bytes::ZERO,
                        "{account:?} in {}",
                        group.path()
                    );
                }
                let (usage, peak) = (group.usage(), group.peak());
                assert!(usage.low <= usage.high && peak.low <= peak.high);
            }
            looks += 1;
            thread::yield_now();
        }
        looks
    }
}

fn limits(rng: &mut fastrand::Rng) -> Limits {
    let mut amount = || match rng.u8(..6) {
        0 => Bytes::MAX,
        1 => Bytes(rng.u64(..8 * PAGE_BYTES)),
        2 => Bytes(rng.u64(..5000 * PAGE_BYTES)),
        _ => Bytes(rng.u64(..300 * PAGE_BYTES)),
    };
    let max = amount();
    Limits {
        min: amount().min(max),
        low: amount().min(max),
        high: amount(),
        ..Limits::max(max)
    }
}

impl Task {
    fn poll(&mut self) -> Poll<Result<NodeCharge, ChargeError>> {
        self.bell.0.store(false, Ordering::Relaxed);
        let waker = Waker::from(Arc::clone(&self.bell));
        Pin::new(&mut self.wait).poll(&mut Context::from_waker(&waker))
    }

    fn is_called(&self) -> bool {
        self.bell.0.load(Ordering::Relaxed)
    }
}

impl Worker {
    fn new(seed: u64) -> Self {
        Self {
            rng: fastrand::Rng::with_seed(seed),
            held: Vec::new(),
            disowned: Vec::new(),
            tasks: Vec::new(),
            tally: Tally::default(),
        }
    }

    fn run(&mut self, arena: &Arena, until: Instant) {
        while Instant::now() < until {
            for _ in 0..50 {
                self.step(arena);
            }
        }
    }

    /// Returns the CPU to act as; `None` if only the CPU itself may.
    fn cpu(&mut self, arena: &Arena) -> Option<CpuId> {
        let cpu = CpuId::from_index(self.rng.usize(..arena.nr_cpus));
        (arena.tree.regime() == Regime::Atomic).then_some(cpu)
    }

    fn amount(&mut self) -> Bytes {
        let pages = if self.rng.u8(..8) == 0 { 150 } else { 6 };
        Bytes(self.rng.u64(..pages * PAGE_BYTES))
    }

    fn step(&mut self, arena: &Arena) {
        self.poll_called();
        match self.rng.u8(..20) {
            0..6 => self.charge(arena),
            6..8 => self.wait(arena),
            8 => self.change_shape(arena),
            9 => self.change_limits(arena),
            10..12 => self.by_hand(arena),
            _ => self.resize(arena),
        }
    }

    /// Counts the outcome of a charge, and keeps it.
    fn keep(&mut self, what: &'static str, outcome: Result<NodeCharge, ChargeError>) {
        self.tally.count(match outcome.as_ref().err() {
            None => what,
            Some(ChargeError::OverMax { .. }) => "refused",
            Some(ChargeError::Behind { .. }) => "behind",
            Some(ChargeError::Removed { .. }) => "removed",
            Some(ChargeError::DeadlinePassed { .. }) => "late",
            Some(ChargeError::Contended { .. }) => "contended",
            Some(error) => panic!("{error}"),
        });
        self.held.extend(outcome);
    }

    fn charge(&mut self, arena: &Arena) {
        let (group, on, bytes) = (arena.any(&mut self.rng), self.cpu(arena), self.amount());
        if self.held.len() > 60 {
            drop(self.held.swap_remove(self.rng.usize(..self.held.len())));
        } else if self.rng.u8(..8) == 0 {
            self.keep("forced", Ok(act!(on, group.force_charge(bytes))));
        } else {
            self.keep("charged", act!(on, group.try_charge(bytes)));
        }
    }

    fn wait(&mut self, arena: &Arena) {
        let (group, on, bytes) = (arena.any(&mut self.rng), self.cpu(arena), self.amount());
        let wait = act!(on, group.charge_wait(bytes));
        if self.rng.u8(..16) == 0 {
            let deadline = Instant::now() + Duration::from_micros(self.rng.u64(..500));
            self.keep("waited", wait.wait_until(deadline));
        } else if self.tasks.len() < 3 {
            let bell = Arc::new(Bell(AtomicBool::new(true)));
            self.tasks.push(Task { wait, bell });
        } else {
            // Leaves the queue.
            drop(self.tasks.swap_remove(self.rng.usize(..self.tasks.len())));
        }
    }

    fn poll_called(&mut self) {
        for nth in (0..self.tasks.len()).rev() {
            if self.tasks[nth].is_called()
                && let Poll::Ready(outcome) = self.tasks[nth].poll()
            {
                self.tasks.swap_remove(nth);
                self.keep("served", outcome);
            }
        }
    }

    fn change_shape(&mut self, arena: &Arena) {
        let nr_groups = arena.groups.lock().unwrap().len();
        if nr_groups > 30 || (nr_groups > 6 && self.rng.bool()) {
            if arena.prune(&mut self.rng) {
                self.tally.count("pruned");
            }
        } else {
            let name = format!("n{}", self.rng.u64(..));
            arena.grow(&mut self.rng, &name);
            self.tally.count("grown");
        }
    }

    fn change_limits(&mut self, arena: &Arena) {
        let (group, limits) = (arena.any(&mut self.rng), limits(&mut self.rng));
        self.tally.count(match group.set_limits(limits) {
            Ok(()) => "limited",
            Err(MaxError::BelowUsage { usage, max, .. }) => {
                assert!(usage > max);
                "limited below"
            }
            Err(_) => "limited late",
        });
        let peak = group.peak();
        assert!(peak.low <= peak.high);
    }

    /// Charges without guards.
    fn by_hand(&mut self, arena: &Arena) {
        let on = self.cpu(arena);
        if self.disowned.len() < 10
            && let Some(guard) = self.held.pop()
        {
            // The group of an empty guard may be gone.
            if guard.bytes() > Bytes::ZERO {
                let node = arena.tree.get(guard.group()).unwrap();
                self.disowned.push((node, guard.disown().0));
            }
            return;
        }
        if self.disowned.is_empty() {
            return;
        }
        let (node, bytes) = self
            .disowned
            .swap_remove(self.rng.usize(..self.disowned.len()));
        match (self.rng.u8(..3), node.parent()) {
            (0, Some(parent)) => {
                node.uncharge_to_parent(Bytes(bytes));
                self.tally.count("handed up");
                self.disowned.push((parent, bytes));
            }
            (1, _) => arena.tree.uncharge(node.id(), Bytes(bytes)),
            _ => act!(on, node.uncharge(Bytes(bytes))),
        }
    }

    fn resize(&mut self, arena: &Arena) {
        if self.held.is_empty() {
            return;
        }
        let nth = self.rng.usize(..self.held.len());
        let mut guard = self.held.swap_remove(nth);
        let (on, bytes) = (self.cpu(arena), self.amount());
        let part = Bytes(self.rng.u64(..=guard.bytes().0));
        match self.rng.u8(..10) {
            0 => {
                let grown = act!(on, guard.try_grow(bytes)).map(|()| guard.split(bytes));
                self.keep("grown by", grown);
            }
            1 => drop(act!(on, guard.force_grow(bytes))),
            2 => act!(on, guard.shrink(part)),
            3 => {
                let half = guard.split(part);
                if self.rng.bool() {
                    self.held.push(half);
                } else {
                    guard.merge(half).unwrap();
                }
            }
            4 | 5 => {
                let to = arena.any(&mut self.rng);
                let moved = act!(on, guard.transfer(&to, part));
                self.keep("moved", moved);
            }
            6 => {
                let mut passing = arena.passing.lock().unwrap();
                passing.push(guard);
                if passing.len() > 8 {
                    self.held.push(passing.swap_remove(self.rng.usize(..8)));
                }
                return;
            }
            _ => return drop(guard),
        }
        self.held.push(guard);
    }

    fn all_held(&self) -> impl Iterator<Item = (GroupId, u64)> {
        let guards = self.held.iter();
        guards.map(|guard| (guard.group(), guard.bytes().0)).chain(
            self.disowned
                .iter()
                .map(|(node, bytes)| (node.id(), *bytes)),
        )
    }
}

/// Checks at rest: every number must be the sum of the guards, and every waiter must lack room.
fn check(arena: &Arena, workers: &[Worker]) {
    arena.tree.check_invariants();
    let mut used: HashMap<GroupId, u64> = HashMap::new();
    let passing = arena.passing.lock().unwrap();
    let passing = passing.iter().map(|guard| (guard.group(), guard.bytes().0));
    for (id, bytes) in workers.iter().flat_map(Worker::all_held).chain(passing) {
        if bytes > 0 {
            let node = arena.tree.get(id).unwrap();
            for group in std::iter::successors(Some(node), GroupNode::parent) {
                *used.entry(group.id()).or_default() += bytes;
            }
        }
    }
    for (id, used) in &used {
        let node = arena.tree.get(*id).unwrap();
        assert_eq!(node.usage_precise(), Bytes(*used), "{}", node.path());
    }
    for group in arena.tree.subtree(&arena.tree.root()) {
        let (account, max) = (group.account(), group.limits().max);
        assert!(account.is_exact);
        assert_eq!(account.used.0, used.get(&group.id()).copied().unwrap_or(0));
        assert_eq!(account.debt, account.used.saturating_sub(max));
        assert!(account.reserved <= max.max(account.used));
    }
    for task in workers.iter().flat_map(|worker| &worker.tasks) {
        if !task.is_called() && task.wait.is_first() {
            let group = arena.tree.get(task.wait.stands_at().unwrap()).unwrap();
            let (used, max) = (group.usage_precise(), group.limits().max);
            assert!(
                used + task.wait.bytes() > max,
                "{:?} sleeps: {used} of {max}",
                task.wait
            );
        }
    }
}

/// One tree, for a while: phases of work, each followed by a check.
fn round(seed: u64, tally: &mut Tally) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let arena = Arena::new(&mut rng);
    let mut workers: Vec<_> = (1..=NR_THREADS)
        .map(|nth| Worker::new(seed * 100 + nth))
        .collect();
    for _ in 0..4 {
        let (stop, until) = (
            AtomicBool::new(false),
            Instant::now() + Duration::from_millis(60),
        );
        thread::scope(|scope| {
            let observer = scope.spawn(|| arena.observe(&stop));
            let stop_observer = Stop(&stop);
            let arena = &arena;
            let threads: Vec<_> = workers
                .iter_mut()
                .map(|worker| scope.spawn(move || worker.run(arena, until)))
                .collect();
            let outcomes: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
            drop(stop_observer);
            assert!(outcomes.iter().all(Result::is_ok), "a worker failed");
            // On a busy machine it may miss a phase, not all of them.
            if observer.join().unwrap() > 0 {
                tally.count("observed");
            }
        });
        check(&arena, &workers);
    }
    finish(&arena, workers, tally);
}

/// Releases everything. Every counter must be at zero, and every refusal counted once.
fn finish(arena: &Arena, mut workers: Vec<Worker>, tally: &mut Tally) {
    arena.passing.lock().unwrap().clear();
    for worker in &mut workers {
        worker.held.clear();
        for (node, bytes) in worker.disowned.drain(..) {
            node.uncharge(Bytes(bytes));
        }
    }
    while workers
        .iter()
        .any(|worker| worker.tasks.iter().any(Task::is_called))
    {
        for worker in &mut workers {
            worker.poll_called();
            worker.held.clear();
        }
    }
    let waiting = workers
        .iter()
        .map(|worker| worker.tasks.len())
        .sum::<usize>();
    assert_eq!(waiting, 0, "charges sleep in an empty tree");
    arena.tree.check_invariants();
    let mut refused = 0;
    for worker in workers {
        refused += worker.tally.0.get("refused").copied().unwrap_or(0);
        for (what, count) in worker.tally.0 {
            *tally.0.entry(what).or_default() += count;
        }
    }
    assert_eq!(arena.tree.root().events().max, refused);
    for group in arena.tree.subtree(&arena.tree.root()) {
        let account = group.account();
        assert_eq!((account.used, account.debt), (Bytes::ZERO, Bytes::ZERO));
        assert_eq!(group.nr_waiting(), 0);
        let chain = std::iter::successors(Some(group.clone()), GroupNode::parent);
        let tightest = chain.map(|group| group.limits().max).min().unwrap();
        let most = Bytes(tightest.0.min(1 << 40));
        drop(group.try_charge(most).unwrap());
    }
}

// Goal: the promise. Method: random trees; eight threads run every operation, in phases of 60 ms,
// while an observer reads every group; after each phase the guards are added up and compared with
// every group. At the end everything is released.
#[test]
fn torture_by_every_operation_loses_nothing() {
    let seed = seed::seed(1);
    let seconds = std::env::var("TORTURE_SECONDS").map_or(3, |seconds| seconds.parse().unwrap());
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut tally = Tally::default();
    let mut nr_rounds = 0;
    while Instant::now() < end || nr_rounds < 4 {
        round(seed * 10_000 + nr_rounds, &mut tally);
        nr_rounds += 1;
    }
    for what in [
        "charged",
        "forced",
        "refused",
        "behind",
        "removed",
        "waited",
        "served",
        "late",
        "pruned",
        "grown",
        "limited",
        "limited below",
        "handed up",
        "grown by",
        "moved",
        "observed",
    ] {
        assert!(tally.0.contains_key(what), "never {what}: {:?}", tally.0);
    }
}
