//! Random operations against a sequential model that counts every byte on every ancestor.

use std::collections::HashMap;

use super::{ChargeError, ChildError, DEPTH_MAX, GroupTree, Limits, NodeCharge};
use super::{GroupNode, MaxError, RemoveError};
use crate::percpu::Regime;
#[cfg(target_os = "linux")]
use crate::percpu::harness;
use crate::seed;
use crate::units::{Bytes, CpuId, PAGE_BYTES};

/// Returns the seeds to run: the one in the environment, otherwise `count` fixed ones.
fn seeds(count: u64) -> Vec<u64> {
    seed::given().map_or_else(|| (1..=count).collect(), |seed| vec![seed])
}

/// One group in the model.
struct Member {
    node: GroupNode,
    parent: Option<usize>,
    depth: u32,
    is_removed: bool,
    children: usize,
    max: u64,
    used: u64,
    peak: u64,
    /// Lower bound and value as last read.
    peak_shown: (Bytes, Bytes),
    refused: u64,
    forced_over: u64,
    guards: Vec<NodeCharge>,
    disowned: u64,
}

/// The tree under test and the model's state.
struct Model {
    rng: fastrand::Rng,
    tree: GroupTree,
    members: Vec<Member>,
    nr_named: usize,
    /// In the restartable regime: CPUs that the thread moves between.
    cpus: Vec<CpuId>,
}

impl Model {
    fn new(tree: GroupTree, seed: u64) -> Self {
        let root = Member {
            node: tree.root(),
            parent: None,
            depth: 0,
            is_removed: false,
            children: 0,
            max: Bytes::MAX.0,
            used: 0,
            peak: 0,
            peak_shown: (Bytes::ZERO, Bytes::ZERO),
            refused: 0,
            forced_over: 0,
            guards: Vec::new(),
            disowned: 0,
        };
        Self {
            rng: fastrand::Rng::with_seed(seed),
            tree,
            members: vec![root],
            nr_named: 0,
            cpus: Vec::new(),
        }
    }

    /// Returns the CPU to act as; in the restartable regime none, and the thread migrates to
    /// another CPU.
    fn cpu(&mut self) -> Option<CpuId> {
        if self.tree.regime() == Regime::Atomic {
            return Some(CpuId::from_index(self.rng.usize(..self.tree.nr_cpus())));
        }
        #[cfg(target_os = "linux")]
        harness::pin(harness::this_thread(), *self.rng.choice(&self.cpus)?);
        None
    }

    fn any(&mut self) -> usize {
        self.rng.usize(..self.members.len())
    }

    /// Returns up to `pages` pages, drawn to the byte.
    fn up_to(&mut self, pages: u64) -> u64 {
        self.rng.u64(..pages * PAGE_BYTES)
    }

    fn bytes(&mut self) -> u64 {
        match self.rng.u8(..8) {
            0 => 0,
            1 => self.up_to(700),
            2..4 => self.up_to(70),
            4 => self.rng.u64(1..200),
            _ => self.up_to(4),
        }
    }

    fn limit(&mut self) -> u64 {
        match self.rng.u8(..8) {
            0 => self.rng.u64(..200),
            1..3 => self.up_to(40),
            3..6 => self.up_to(3000),
            _ => Bytes::MAX.0,
        }
    }

    fn chain(&self, of: usize) -> Vec<usize> {
        std::iter::successors(Some(of), |at| self.members[*at].parent).collect()
    }

    /// Returns the lowest group on the way whose maximum is below `bytes`, or else the lowest that
    /// has no room for them.
    fn refuser(&self, way: &[usize], bytes: u64) -> Option<usize> {
        let is_too_small = |at: &&usize| bytes > self.members[**at].max;
        let is_full = |at: &&usize| {
            let member = &self.members[**at];
            member.used + bytes > member.max.max(member.used)
        };
        let too_small = way.iter().find(is_too_small);
        too_small.or_else(|| way.iter().find(is_full)).copied()
    }

    fn add(&mut self, at: usize, bytes: u64) {
        self.add_on(&self.chain(at), bytes);
    }

    fn add_on(&mut self, way: &[usize], bytes: u64) {
        for at in way {
            let member = &mut self.members[*at];
            member.used += bytes;
            member.peak = member.peak.max(member.used);
        }
    }

    /// Moves part of a guard: groups above both ends do not change.
    fn transfer(&mut self) {
        let Some((from, mut guard)) = self.guard() else {
            return;
        };
        let (to, cpu) = (self.any(), self.cpu());
        let bytes = self.rng.u64(..=guard.bytes().0);
        let (mut down, mut up) = (self.chain(from), self.chain(to));
        while down.last() == up.last() && !up.is_empty() {
            down.pop();
            up.pop();
        }
        let node = self.members[to].node.clone();
        let before = guard.bytes();
        let outcome = match cpu {
            Some(cpu) => guard.at(cpu).transfer(&node, Bytes(bytes)),
            None => guard.transfer(&node, Bytes(bytes)),
        };
        let summary = outcome.as_ref().map(drop).map_err(ChargeError::clone);
        let refuser = self.refuser(&up, bytes);
        if self.expect(to, bytes, refuser, summary) {
            self.add_on(&up, bytes);
            for at in down {
                self.members[at].used -= bytes;
            }
            assert_eq!(guard.bytes() + Bytes(bytes), before);
        } else {
            assert_eq!(guard.bytes(), before);
        }
        self.members[to].guards.extend(outcome);
        self.members[from].guards.push(guard);
    }

    fn subtract(&mut self, at: usize, bytes: u64) {
        for at in self.chain(at) {
            self.members[at].used -= bytes;
        }
    }

    /// Checks the outcome of a charge against the model, and counts it.
    fn expect_charge(&mut self, at: usize, bytes: u64, outcome: Result<(), ChargeError>) {
        let refuser = self.refuser(&self.chain(at), bytes);
        if self.expect(at, bytes, refuser, outcome) {
            self.add(at, bytes);
        }
    }

    /// Checks an outcome that succeeds unless `at` is removed or `refuser` has no room; returns
    /// whether it did.
    fn expect(
        &mut self,
        at: usize,
        bytes: u64,
        refuser: Option<usize>,
        outcome: Result<(), ChargeError>,
    ) -> bool {
        let expected = if self.members[at].is_removed {
            Err(ChargeError::Removed {
                group: self.members[at].node.path(),
            })
        } else if let Some(refuser) = refuser {
            let member = &mut self.members[refuser];
            member.refused += 1;
            let Err(ChargeError::OverMax { escrowed, .. }) = outcome else {
                panic!(
                    "{} took {bytes} bytes too many: {outcome:?}",
                    member.node.path()
                );
            };
            assert!(escrowed == Bytes::ZERO || bytes > member.max);
            Err(ChargeError::OverMax {
                group: member.node.path(),
                requested: Bytes(bytes),
                max: Bytes(member.max),
                usage: Bytes(member.used),
                escrowed,
            })
        } else {
            Ok(())
        };
        assert_eq!(outcome, expected, "charging {bytes} bytes");
        expected.is_ok()
    }

    fn create(&mut self) {
        // Half of the time below the newest group, so that chains get deep.
        let at = if self.rng.bool() {
            self.members.len() - 1
        } else {
            self.any()
        };
        self.nr_named += 1;
        let (name, max) = (format!("g{}", self.nr_named), self.limit());
        let parent = &mut self.members[at];
        let path = parent.node.path();
        match parent.node.child(&name, Limits::max(Bytes(max))) {
            Ok(node) => {
                assert!(!parent.is_removed && parent.depth < DEPTH_MAX);
                parent.children += 1;
                let depth = parent.depth + 1;
                assert!(node.is_descendant_of(&parent.node) && node.depth() == depth);
                self.members.push(Member {
                    node,
                    parent: Some(at),
                    depth,
                    is_removed: false,
                    children: 0,
                    max,
                    used: 0,
                    peak: 0,
                    peak_shown: (Bytes::ZERO, Bytes::ZERO),
                    refused: 0,
                    forced_over: 0,
                    guards: Vec::new(),
                    disowned: 0,
                });
            }
            Err(ChildError::Removed { parent: of }) => assert!(parent.is_removed && of == path),
            Err(error) => {
                let depth = DEPTH_MAX;
                assert_eq!(
                    error,
                    ChildError::TooDeep {
                        parent: path,
                        depth
                    }
                );
                assert_eq!(parent.depth, depth);
            }
        }
    }

    fn remove(&mut self) {
        let at = self.any();
        let member = &mut self.members[at];
        let group = member.node.path();
        let expected = match member.parent {
            None => Err(RemoveError::IsRoot),
            Some(_) if member.is_removed => Err(RemoveError::Removed { group }),
            Some(_) if member.children > 0 => Err(RemoveError::HasChildren {
                group,
                children: member.children,
            }),
            Some(_) => Ok(()),
        };
        assert_eq!(self.tree.remove(&member.node), expected);
        if expected.is_ok() {
            member.is_removed = true;
            let parent = member.parent.expect("the root is not removed");
            self.members[parent].children -= 1;
        }
    }

    fn charge(&mut self) {
        let (at, bytes, cpu) = (self.any(), self.bytes(), self.cpu());
        let outcome = match cpu {
            Some(cpu) => self.members[at].node.at(cpu).try_charge(Bytes(bytes)),
            None => self.members[at].node.try_charge(Bytes(bytes)),
        };
        let summary = outcome.as_ref().map(drop).map_err(ChargeError::clone);
        self.expect_charge(at, bytes, summary);
        self.members[at].guards.extend(outcome);
    }

    /// Charges by force: nothing may refuse it, and every group above its maximum counts it.
    fn force(&mut self) {
        let (at, bytes, cpu) = (self.any(), self.bytes(), self.cpu());
        let charge = match cpu {
            Some(cpu) => self.members[at].node.at(cpu).force_charge(Bytes(bytes)),
            None => self.members[at].node.force_charge(Bytes(bytes)),
        };
        let heir = self.heir(at);
        assert_eq!(charge.group(), self.members[heir].node.id());
        self.add_forced(heir, bytes);
        self.members[heir].guards.push(charge);
    }

    /// Returns the nearest of a group and its ancestors that is not removed.
    fn heir(&self, at: usize) -> usize {
        let chain = self.chain(at);
        let found = chain.into_iter().find(|at| !self.members[*at].is_removed);
        found.expect("the root is not removed")
    }

    fn add_forced(&mut self, at: usize, bytes: u64) {
        let is_free = bytes == 0 || self.refuser(&self.chain(at), bytes).is_none();
        self.add(at, bytes);
        for at in self.chain(at) {
            let member = &mut self.members[at];
            member.forced_over += u64::from(!is_free && member.used > member.max);
        }
    }

    /// Takes a random guard of a random group.
    fn guard(&mut self) -> Option<(usize, NodeCharge)> {
        let at = self.any();
        let nr_guards = self.members[at].guards.len();
        let nth = (nr_guards > 0).then(|| self.rng.usize(..nr_guards))?;
        Some((at, self.members[at].guards.swap_remove(nth)))
    }

    fn resize(&mut self) {
        let Some((at, mut guard)) = self.guard() else {
            return;
        };
        let cpu = self.cpu();
        match self.rng.u8(..8) {
            6 => {
                let bytes = self.bytes();
                let outcome = match cpu {
                    Some(cpu) => guard.at(cpu).force_grow(Bytes(bytes)),
                    None => guard.force_grow(Bytes(bytes)),
                };
                assert_eq!(outcome.is_err(), self.members[at].is_removed);
                if outcome.is_ok() {
                    self.add_forced(at, bytes);
                }
            }
            0 => {
                let bytes = self.bytes();
                let before = guard.bytes();
                let outcome = match cpu {
                    Some(cpu) => guard.at(cpu).try_grow(Bytes(bytes)),
                    None => guard.try_grow(Bytes(bytes)),
                };
                let grown = if outcome.is_ok() { bytes } else { 0 };
                assert_eq!(guard.bytes(), before + Bytes(grown));
                self.expect_charge(at, bytes, outcome);
            }
            1 => {
                let bytes = self.rng.u64(..=guard.bytes().0);
                match cpu {
                    Some(cpu) => guard.at(cpu).shrink(Bytes(bytes)),
                    None => guard.shrink(Bytes(bytes)),
                };
                self.subtract(at, bytes);
            }
            2 => {
                let half = guard.split(Bytes(self.rng.u64(..=guard.bytes().0)));
                self.members[at].guards.push(half);
            }
            3 => {
                self.members[at].disowned += guard.disown().0;
                return;
            }
            _ => {
                self.subtract(at, guard.bytes().0);
                drop(guard);
                return;
            }
        }
        self.members[at].guards.push(guard);
    }

    fn uncharge_disowned(&mut self) {
        let (at, cpu) = (self.any(), self.cpu());
        let held = self.members[at].disowned;
        if held == 0 {
            return;
        }
        let bytes = self.rng.u64(1..=held);
        self.members[at].disowned -= bytes;
        let node = self.members[at].node.clone();
        assert_eq!(
            self.tree.get(node.id()),
            Some(node.clone()),
            "in use, so found"
        );
        match (self.rng.u8(..3), self.members[at].parent) {
            (0, Some(parent)) => {
                node.uncharge_to_parent(Bytes(bytes));
                self.members[at].used -= bytes;
                self.members[parent].disowned += bytes;
            }
            (1, _) => {
                self.tree.uncharge(node.id(), Bytes(bytes));
                self.subtract(at, bytes);
            }
            _ => {
                match cpu {
                    Some(cpu) => node.at(cpu).uncharge(Bytes(bytes)),
                    None => node.uncharge(Bytes(bytes)),
                };
                self.subtract(at, bytes);
            }
        }
    }

    fn set_max(&mut self) {
        let (at, max) = (self.any(), self.limit());
        let member = &mut self.members[at];
        let (group, used) = (member.node.path(), member.used);
        let expected = if member.is_removed {
            Err(MaxError::Removed { group })
        } else {
            member.max = max;
            if used <= max {
                Ok(())
            } else {
                Err(MaxError::BelowUsage {
                    group,
                    max: Bytes(max),
                    usage: Bytes(used),
                    over: Bytes(used - max),
                })
            }
        };
        assert_eq!(member.node.set_max(Bytes(max)), expected);
    }

    /// Runs that many operations; at the end drops everything.
    fn run(&mut self, operations: u32) {
        for _ in 0..operations {
            self.step();
            self.compare();
        }
        for member in &mut self.members {
            member.guards.clear();
            let disowned = std::mem::take(&mut member.disowned);
            self.tree.uncharge(member.node.id(), Bytes(disowned));
            member.used = 0;
        }
        for member in &self.members {
            assert_eq!(member.node.usage_precise(), Bytes::ZERO);
        }
        self.tree.check_invariants();
    }

    fn step(&mut self) {
        match self.rng.u8(..20) {
            0..2 if self.members.len() < 80 => self.create(),
            2 => self.remove(),
            3 => self.set_max(),
            4 => self.force(),
            5..11 => self.charge(),
            11..15 => self.resize(),
            15 => self.transfer(),
            _ => self.uncharge_disowned(),
        }
    }

    /// Compares every read of every group with the model.
    fn compare(&mut self) {
        self.tree.check_invariants();
        let mut ids = HashMap::new();
        for (at, member) in self.members.iter_mut().enumerate() {
            let (node, used) = (&member.node, Bytes(member.used));
            assert_eq!(node.usage_precise(), used, "{}", node.path());
            assert!(node.usage().contains(used), "{:?} for {used}", node.usage());
            assert_eq!(node.is_removed(), member.is_removed);
            assert_eq!(node.events_local().max, member.refused);
            if !member.is_removed {
                let (reserved, peak) = (node.usage().high, node.peak());
                assert_eq!(node.escrowed(), reserved - used);
                let account = node.account();
                assert!(account.is_exact && account.used == used);
                assert_eq!(account.reserved, account.used + account.escrowed);
                assert_eq!((account.reserved, account.debt), (reserved, node.debt()));
                assert_eq!(node.limits().max, Bytes(member.max));
                assert!(reserved <= Bytes(member.max.max(member.used)));
                assert_eq!(node.debt(), Bytes(member.used.saturating_sub(member.max)));
                assert_eq!(node.events_local().debt, member.forced_over);
                assert!(
                    peak.contains(Bytes(member.peak)),
                    "{peak} for {}",
                    member.peak
                );
                let (low, value) = member.peak_shown;
                assert!(peak.low >= low && peak.value >= value, "a peak decreased");
                member.peak_shown = (peak.low, peak.value);
            }
            if !member.is_removed || used > Bytes::ZERO {
                assert_eq!(ids.insert(node.id(), at), None, "two groups have one id");
            }
        }
    }
}

// Goal: every outcome and every read matches counting each byte on each ancestor: a charge is
// refused if and only if the model refuses it, and by the same group. Method: random operations on
// random explicit CPUs; after each, all reads of all groups are compared. At the end everything is
// dropped, and every group must be at zero.
#[test]
fn operations_match_the_sequential_model() {
    for nr_cpus in [1, 2, 8, 384] {
        for seed in seeds(if nr_cpus == 384 { 2 } else { 6 }) {
            seed::show(seed);
            Model::new(GroupTree::new(nr_cpus), seed).run(1500);
        }
    }
}

// Goal: as above in the restartable regime, where each CPU steps its own words. Method: the same
// operations by one thread that migrates to a random CPU before each.
#[cfg(target_os = "linux")]
#[test]
fn operations_on_the_own_cpu_match_the_sequential_model() {
    use crate::topology::Topology;
    let machine = Topology::detect();
    // Also with fewer CPUs than there are: threads on the others step the extra word.
    for nr_cpus in [1, machine.nr_cpus()] {
        for seed in seeds(6) {
            let tree = GroupTree::with_regime(Regime::preferred(&machine), nr_cpus);
            if tree.regime() == Regime::Atomic {
                return harness::skipped("no sequences here that other CPUs can restart");
            }
            let cpus = harness::allowed_cpus();
            harness::run_on(cpus[0], || {
                seed::show(seed);
                let mut model = Model::new(tree, seed);
                model.cpus = cpus.clone();
                model.run(1000);
            });
        }
    }
}
