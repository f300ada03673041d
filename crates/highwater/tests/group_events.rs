//! Promise: each limit event is counted once, at its group and in the subtree of each group above
//! it, where it stays when the group is removed; a snapshot tells the same as the groups' handles.

#![expect(clippy::unwrap_used, reason = "a test stops where it goes wrong")]

#[path = "../src/seed.rs"]
mod seed;

use std::sync::{Arc, Mutex};

use highwater::group::{ChargeError, GroupEvents};
use highwater::{Bytes, Charge, ChargeFailed, Group, Limits, Manager};

/// A manager of 12 MiB that only accounts.
fn manager() -> Manager {
    let builder = Manager::builder().capacity(Bytes::mib(12));
    builder.frames(Bytes::ZERO).build().unwrap()
}

/// The test's record of a group.
struct Node {
    group: Group,
    /// The numbers of the group and of those above it, the lowest first.
    path: Vec<usize>,
    limits: Limits,
    used: Bytes,
    local: GroupEvents,
    subtree: GroupEvents,
}

/// Groups beside a record of what each must have counted.
struct Model {
    hw: Manager,
    nodes: Vec<Node>,
    /// Charges, each with the number of its group.
    held: Vec<(usize, Charge)>,
}

impl Model {
    /// Makes a root with two tenants of two queries each, with a maximum and a `high`.
    fn new() -> Self {
        let hw = manager();
        let mut model = Self {
            nodes: Vec::new(),
            held: Vec::new(),
            hw,
        };
        let root = model.hw.root();
        model.add(root, None);
        for tenant in ["a", "b"] {
            let limits = Limits {
                high: Bytes::mib(5),
                ..Limits::max(Bytes::mib(7))
            };
            let group = model.hw.root().child(tenant, limits).unwrap();
            let above = model.add(group.clone(), Some(0));
            for query in ["x", "y"] {
                let limits = Limits {
                    high: Bytes::mib(2),
                    ..Limits::max(Bytes::mib(4))
                };
                model.add(group.child(query, limits).unwrap(), Some(above));
            }
        }
        model
    }

    fn add(&mut self, group: Group, above: Option<usize>) -> usize {
        let number = self.nodes.len();
        let above = above.map_or(&[][..], |above| &self.nodes[above].path);
        let path = [&[number], above].concat();
        self.nodes.push(Node {
            limits: group.limits(),
            group,
            path,
            used: Bytes::ZERO,
            local: GroupEvents::default(),
            subtree: GroupEvents::default(),
        });
        number
    }

    fn count(&mut self, at: usize, add: impl Fn(&mut GroupEvents)) {
        add(&mut self.nodes[at].local);
        for above in self.nodes[at].path.clone() {
            add(&mut self.nodes[above].subtree);
        }
    }

    /// Records that groups use `bytes` more.
    fn use_more(&mut self, groups: &[usize], bytes: Bytes) {
        for at in groups {
            self.nodes[*at].used += bytes;
        }
    }

    fn use_less(&mut self, groups: &[usize], bytes: Bytes) {
        for at in groups {
            self.nodes[*at].used -= bytes;
        }
    }

    /// Checks the outcome of a charge of `bytes` to these groups, and records its events.
    fn charged<T>(
        &mut self,
        outcome: Result<T, ChargeFailed>,
        groups: &[usize],
        bytes: Bytes,
    ) -> Option<T> {
        let charged = self.moved(outcome, groups, bytes)?;
        for at in groups {
            let node = &self.nodes[*at];
            if node.used > node.limits.high {
                self.count(*at, |events| events.high += 1);
            }
        }
        Some(charged)
    }

    /// As [`charged`](Self::charged), for a transfer, which is not throttled.
    fn moved<T>(
        &mut self,
        outcome: Result<T, ChargeFailed>,
        groups: &[usize],
        bytes: Bytes,
    ) -> Option<T> {
        let has_room = |at: &&usize| {
            let node = &self.nodes[**at];
            bytes == Bytes::ZERO || node.used + bytes <= node.limits.max
        };
        let never_fits = |at: &&usize| bytes > self.nodes[**at].limits.max;
        let full = groups.iter().find(never_fits);
        let full = full.or_else(|| groups.iter().find(|at| !has_room(at)));
        match (outcome, full.copied()) {
            (Ok(charged), None) => {
                self.use_more(groups, bytes);
                Some(charged)
            }
            (Err(failed), Some(full)) => {
                let path = self.nodes[full].group.path();
                let is_named =
                    matches!(&failed.refusal, ChargeError::OverMax { group, .. } if *group == path);
                assert!(is_named, "{path} is full: {failed}");
                let attempts = u64::from(failed.attempts);
                self.count(full, |events| events.max += attempts);
                None
            }
            (outcome, full) => panic!("{:?}, and {full:?} is full", outcome.map(|_| ())),
        }
    }

    fn step(&mut self, rng: &mut fastrand::Rng) {
        let at = rng.usize(..self.nodes.len());
        let path = self.nodes[at].path.clone();
        // More than the tokens of a CPU in a group, so that each charge looks at `high`.
        let bytes = Bytes(rng.u64(225 << 10..1 << 20));
        let group = self.nodes[at].group.clone();
        match rng.u8(..10) {
            0 | 1 => {
                let charged = self.charged(group.charge(bytes), &path, bytes);
                self.held.extend(charged.map(|charge| (at, charge)));
            }
            2 => {
                let charged = self.charged(group.try_charge(bytes), &path, bytes);
                self.held.extend(charged.map(|charge| (at, charge)));
            }
            3 | 4 => {
                // None to a group in debt is no event either.
                let bytes = if rng.u8(..4) == 0 { Bytes::ZERO } else { bytes };
                self.held.push((at, group.force_charge(bytes)));
                self.use_more(&path, bytes);
                for up in path {
                    let node = &self.nodes[up];
                    if bytes > Bytes::ZERO && node.used > node.limits.max {
                        self.count(up, |events| events.debt += 1);
                    }
                }
            }
            _ if self.held.is_empty() => {}
            choice => self.change(choice, at, bytes, rng),
        }
    }

    /// Changes a charge that exists: grows it, moves it to group `to`, or gives it back.
    fn change(&mut self, choice: u8, to: usize, bytes: Bytes, rng: &mut fastrand::Rng) {
        let (at, mut charge) = self.held.swap_remove(rng.usize(..self.held.len()));
        let path = self.nodes[at].path.clone();
        match choice {
            5 => {
                let grown = charge.grow(bytes);
                self.charged(grown, &path, bytes);
                self.held.push((at, charge));
            }
            6 => {
                let bytes = charge.bytes();
                let to_path = self.nodes[to].path.clone();
                let only = |of: &[usize], other: &[usize]| -> Vec<usize> {
                    of.iter()
                        .filter(|at| !other.contains(at))
                        .copied()
                        .collect()
                };
                let (left, entered) = (only(&path, &to_path), only(&to_path, &path));
                let moved = charge.transfer(&self.nodes[to].group, bytes);
                match self.moved(moved, &entered, bytes) {
                    Some(moved) => {
                        self.use_less(&left, bytes);
                        self.held.push((to, moved));
                    }
                    None => self.held.push((at, charge)),
                }
            }
            _ => self.use_less(&path, charge.bytes()),
        }
    }

    fn check(&self) {
        for node in &self.nodes {
            let group = &node.group;
            let path = group.path();
            assert_eq!(group.usage_precise(), node.used, "{path}");
            assert_eq!(group.events_local(), node.local, "{path}, itself");
            assert_eq!(group.events(), node.subtree, "{path}");
        }
    }
}

// Goal: refusals, charges above `high` and debts count once each: a refusal at the lowest group
// without room, for each attempt; `high` and debt at each group that the charge found or took
// above. Moves are not throttled, and nothing else counts. Method: random charges, forced charges,
// growth, moves and drops in three levels, beside a record; then all queries are removed.
#[test]
fn each_event_counts_once_at_its_group_and_once_above() {
    let mut model = Model::new();
    let mut rng = seed::rng(1);
    for _ in 0..3_000 {
        model.step(&mut rng);
        model.check();
    }
    let GroupEvents {
        high, max, debt, ..
    } = model.nodes[0].subtree;
    assert!(high.min(max).min(debt) > 100, "{high}, {max}, {debt}");
    let tree = model.hw.snapshot();
    for (told, at) in tree.groups.iter().zip([0, 1, 2, 3, 4, 5, 6]) {
        let node = &model.nodes[at];
        assert_eq!(node.group.path(), told.path.as_str());
        assert_eq!((told.events, told.events_local), (node.subtree, node.local));
    }
    let queries = model.nodes.extract_if(.., |node| node.path.len() == 3);
    let queries: Vec<Node> = queries.collect();
    for query in &queries {
        query.group.remove().unwrap();
        assert_eq!(query.group.events(), query.subtree, "a handle remembers");
    }
    model.check();
}

// Goal: a victim counts where room was lacking and where it was told, once each, also if it gives
// nothing back, and a request tells at most four; another that waits for the same groups counts
// none. Method: six queries below a full tenant, and a handler that counts.
#[test]
fn a_request_tells_at_most_four_groups_and_each_counts_once() {
    let builder = Manager::builder().capacity(Bytes::mib(64)).frames(Bytes(0));
    let hour = std::time::Duration::from_secs(3600);
    let hw = builder.grace(hour).build().unwrap();
    let tenant = hw.root().child("tenant", Limits::max(Bytes::mib(21)));
    let tenant = tenant.unwrap();
    let query = |mib: u64| {
        let group = tenant.child(&mib.to_string(), Limits::default()).unwrap();
        let charge = group.charge(Bytes::mib(mib)).unwrap();
        (group, charge)
    };
    let queries: Vec<(Group, Charge)> = (1..=6).map(query).collect();
    let told = Arc::new(Mutex::new(Vec::new()));
    let tells = Arc::clone(&told);
    hw.root()
        .on_exhausted(move |victim| tells.lock().unwrap().push(victim.group().name().to_owned()));
    let events = |oom, oom_kill, max| {
        let mut events = GroupEvents::default();
        (events.oom, events.oom_kill, events.max) = (oom, oom_kill, max);
        events
    };
    let mut attempts = 0;
    for counts in [(4, 0), (0, 4)] {
        let failed = tenant.charge(Bytes(1)).unwrap_err();
        assert_eq!((failed.victims, failed.dying), counts);
        attempts += u64::from(failed.attempts);
        assert_eq!(*told.lock().unwrap(), ["6", "5", "4", "3"]);
        assert_eq!(tenant.events_local(), events(4, 0, attempts));
        for group in [&tenant, &hw.root()] {
            assert_eq!(group.events(), events(4, 4, attempts));
        }
        assert_eq!(hw.root().events_local(), GroupEvents::default());
        for ((group, _), killed) in queries.iter().zip([0, 0, 1, 1, 1, 1]) {
            assert_eq!(group.events(), events(0, killed, 0), "{}", group.path());
        }
        assert_eq!(hw.snapshot().counter("oom_kill"), 4);
    }
}

// Goal: a snapshot tells of each group what its handles tell, parents before children, and of none
// that was removed; one without groups has the same counters. Method: groups with all kinds of
// settings, charges, debt and events; the unset limits are absent.
#[test]
fn a_snapshot_tells_of_each_group_what_its_handle_tells() {
    let hw = manager();
    let all = Limits {
        min: Bytes(1),
        low: Bytes::mib(1),
        high: Bytes::mib(2),
        max: Bytes::mib(3),
    };
    let tenant = hw.root().child("z", all).unwrap();
    let gone = hw.root().child("gone", Limits::default()).unwrap();
    let query = tenant.child("a", Limits::max(Bytes::mib(1))).unwrap();
    let late = hw.root().child("b", Limits::default()).unwrap();
    let _kept = [
        gone.charge(Bytes(77)).unwrap(),
        query.charge(Bytes::kib(700)).unwrap(),
        tenant.force_charge(Bytes::mib(4)),
    ];
    assert!(query.charge(Bytes::mib(1)).is_err());
    gone.remove().unwrap();
    let snapshot = hw.snapshot();
    let paths: Vec<&str> = snapshot.groups.iter().map(|it| it.path.as_str()).collect();
    assert_eq!(paths, ["/", "/b", "/z", "/z/a"]);
    for (told, group) in snapshot
        .groups
        .iter()
        .zip([&hw.root(), &late, &tenant, &query])
    {
        let Limits {
            min,
            low,
            high,
            max,
        } = group.limits();
        let set = |limit| Some(limit).filter(|limit| *limit < Bytes::MAX);
        assert_eq!((told.min, told.low), (min, low), "{}", told.path);
        assert_eq!((told.high, told.max), (set(high), set(max)));
        assert_eq!(
            (told.id, told.usage, told.peak),
            (group.id(), group.usage(), group.peak())
        );
        assert_eq!(
            (told.events, told.events_local),
            (group.events(), group.events_local())
        );
        assert!(told.usage.contains(group.usage_precise()));
    }
    assert_eq!(
        (snapshot.groups[2].high, snapshot.groups[3].high),
        (Some(all.high), None)
    );
    assert_eq!(
        (
            snapshot.groups[2].events.debt,
            snapshot.groups[3].events.debt
        ),
        (1, 0)
    );
    let counters = highwater::Snapshot::from(&hw);
    assert!(counters.groups.is_empty());
    let names =
        |of: &highwater::Snapshot| -> Vec<_> { of.vmstat.iter().map(|it| it.name).collect() };
    assert_eq!(names(&counters), names(&snapshot));
}
