//! Promise: queries wait in one queue for each tenant, in order of arrival, for as long as there is
//! no room for the first of them and no longer; one that gives up leaves nothing behind.

mod support;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use datafusion_common::{DataFusionError, Result};
use datafusion_execution::memory_pool::{MemoryPool, MemoryReservation};
use futures::executor::block_on;
use highwater::group::Limits;
use highwater::{Bytes, Manager};
use highwater_datafusion::{HighwaterPool, Options, Retry, Stopped, Tenant};

use support::{MIB, holding, manager, query, spilling, tenant};

/// Returns what a future has decided by now.
fn now<T>(future: impl Future<Output = T> + Unpin) -> Option<T> {
    block_on(futures::future::poll_immediate(future))
}

/// Remembers whether it was woken.
struct Bell(AtomicBool);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A query that waits, and was polled at least once.
struct Waiting {
    /// Its number by arrival.
    nth: u32,
    reserve: Bytes,
    bell: Arc<Bell>,
    admitted: Pin<Box<dyn Future<Output = Result<Arc<HighwaterPool>>>>>,
}

/// A query that runs: its reserve, and what it holds above that.
struct Running {
    reserve: u64,
    held: MemoryReservation,
}

impl Running {
    fn charged(&self) -> u64 {
        self.reserve.max(self.held.size() as u64)
    }
}

/// Two tenants of one parent, and their queries by tenant.
struct Model {
    hw: Manager,
    tenants: [Tenant; 2],
    waiting: [VecDeque<Waiting>; 2],
    running: [Vec<Running>; 2],
    last_admitted: [u32; 2],
    arrived: u32,
}

impl Model {
    const CAPACITY: u64 = 100;
    const MAX: u64 = 70;

    fn new() -> Self {
        let hw = manager(Bytes::mib(1));
        let parent = hw.root().child("org", Limits::max(Bytes(Self::CAPACITY)));
        let parent = parent.expect("the name is free");
        let of_parent = |name| {
            let group = parent.child(name, Limits::max(Bytes(Self::MAX)));
            Tenant::new(group.expect("the name is free"), Options::default())
        };
        Self {
            tenants: ["a", "b"].map(of_parent),
            waiting: Default::default(),
            running: Default::default(),
            last_admitted: [0; 2],
            arrived: 0,
            hw,
        }
    }

    fn used(&self, tenant: usize) -> u64 {
        self.running[tenant].iter().map(Running::charged).sum()
    }

    fn arrive(&mut self, tenant: usize, reserve: u64) {
        self.arrived += 1;
        let of_query = self.tenants[tenant].clone();
        let reserve = Bytes(reserve);
        self.waiting[tenant].push_back(Waiting {
            nth: self.arrived,
            reserve,
            bell: Arc::new(Bell(AtomicBool::new(true))),
            admitted: Box::pin(async move { of_query.admit(reserve).await }),
        });
    }

    /// Polls the queries that were woken, and no others, until none is left.
    fn run_woken(&mut self) {
        while self.poll_one_woken() {}
    }

    fn poll_one_woken(&mut self) -> bool {
        for (tenant, queue) in self.waiting.iter_mut().enumerate() {
            let is_woken = |it: &Waiting| it.bell.0.swap(false, Ordering::Relaxed);
            let Some(at) = queue.iter().position(is_woken) else {
                continue;
            };
            let waker = Waker::from(Arc::clone(&queue[at].bell));
            let polled = queue[at]
                .admitted
                .as_mut()
                .poll(&mut Context::from_waker(&waker));
            if let Poll::Ready(pool) = polled {
                let query = queue.remove(at).expect("it was found");
                assert_eq!(at, 0, "query {} passes others of its tenant", query.nth);
                assert!(query.nth > self.last_admitted[tenant]);
                self.last_admitted[tenant] = query.nth;
                let pool: Arc<dyn MemoryPool> = pool.expect("it is below the maximum");
                let register = if query.nth % 2 == 0 {
                    holding
                } else {
                    spilling
                };
                let (reserve, held) = (query.reserve.0, register("join", &pool));
                self.running[tenant].push(Running { reserve, held });
            }
            return true;
        }
        false
    }

    fn step(&mut self, random: &mut fastrand::Rng) {
        let tenant = random.usize(..2);
        let (waits, runs) = (self.waiting[tenant].len(), self.running[tenant].len());
        match random.u32(..8) {
            0..3 => self.arrive(tenant, random.u64(..=Self::MAX)),
            3 if waits > 0 => drop(self.waiting[tenant].remove(random.usize(..waits))),
            4 if runs > 0 => {
                let held = &self.running[tenant][random.usize(..runs)].held;
                _ = held.try_grow(random.usize(..50));
            }
            5 if runs > 0 => {
                let held = &self.running[tenant][random.usize(..runs)].held;
                held.shrink(random.usize(..=held.size()));
            }
            _ if runs > 0 => drop(self.running[tenant].swap_remove(random.usize(..runs))),
            _ => {}
        }
    }

    fn check(&self) {
        let all = self.used(0) + self.used(1);
        assert_eq!(self.hw.root().usage_precise(), Bytes(all));
        for (nth, tenant) in self.tenants.iter().enumerate() {
            let (waiting, used) = (&self.waiting[nth], self.used(nth));
            let counts = tenant.counts();
            let lens = (waiting.len() as u64, self.running[nth].len() as u64);
            assert_eq!((counts.waiting, counts.running), lens);
            if let Some(first) = waiting.front() {
                let left = (Self::MAX - used).min(Self::CAPACITY - all);
                assert!(
                    first.reserve > Bytes(left),
                    "{left} B are left for the first"
                );
            }
        }
    }
}

// Goal: the first of each queue is admitted as soon as there is room for it, in its tenant and
// above, whichever query of whichever tenant made it, and none passes another; what is charged is
// exact. Method: random arrivals, cancellations, growths, returns and ends; queries are polled only
// when they were woken, so that a wake-up that is lost leaves one waiting beside its room.
#[test]
fn no_first_query_waits_beside_its_room_and_none_passes_another() {
    for seed in 0..24 {
        println!("seed {seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        let mut model = Model::new();
        for _ in 0..300 {
            model.step(&mut random);
            model.run_woken();
            model.check();
        }
        model.waiting = Default::default();
        model.running = Default::default();
        model.check();
        for tenant in &model.tenants {
            assert!(tenant.group().children().is_empty(), "no group is left");
        }
    }
}

// Goal: a query that can never have its reserve is refused with the group's path, its maximum and
// the setting, also where an ancestor decides it or the tenant is gone; one byte less is admitted.
#[test]
fn a_reserve_that_is_never_free_is_refused_by_path_and_maximum() {
    let hw = manager(Bytes::mib(4));
    let tenant = tenant(&hw, "a", Bytes::mib(3), Options::default());
    let refusal = |reserve| match now(Box::pin(tenant.admit(reserve))) {
        Some(Err(DataFusionError::ResourcesExhausted(text))) => text,
        other => panic!("{other:?}"),
    };
    drop(block_on(tenant.admit(Bytes::mib(3))).expect("the maximum itself"));
    let expected = "a query that reserves 3.0 MB is never admitted: /a has 3.0 MB at most; \
                    reserve less, or raise the maximum (Group::set_max)";
    assert_eq!(refusal(Bytes::mib(3) + Bytes(1)), expected);
    tenant
        .group()
        .set_max(Bytes::mib(8))
        .expect("nothing is used");
    drop(block_on(tenant.admit(Bytes::mib(4))).expect("all of the ancestor"));
    let text = refusal(Bytes::mib(4) + Bytes(1));
    assert!(text.contains("/a has 4.0 MB at most"), "{text}");
    tenant.group().remove().expect("no query is left");
    let text = refusal(Bytes(1));
    assert!(
        text.contains("/a was removed, or has a maximum of 0"),
        "{text}"
    );
    assert!(
        block_on(tenant.admit(Bytes::ZERO)).is_ok(),
        "it reserves nothing"
    );
    assert_eq!(tenant.counts().waited, 0);
}

// Goal: a query that waits follows the maximum of its tenant: it is admitted when that is raised,
// and refused when it is lowered below the reserve; then the next in the queue has its turn. What
// the program returns by itself counts once the queue is woken.
#[test]
fn a_query_that_waits_follows_its_tenants_maximum() {
    let hw = manager(Bytes::mib(16));
    let tenant = tenant(&hw, "a", Bytes::mib(4), Options::default());
    let of_program = tenant
        .group()
        .try_charge(Bytes::mib(3))
        .expect("there is room");
    let [mut raised, mut lowered, mut next] =
        [3, 4, 1].map(|mib| Box::pin(tenant.admit(Bytes::mib(mib))));
    for waits in [&mut raised, &mut lowered, &mut next] {
        assert!(now(waits).is_none(), "there is no room");
    }
    tenant.group().set_max(Bytes::mib(6)).expect("raised");
    tenant.admission().wake();
    let raised = now(raised).expect("decided").expect("it was raised");
    assert!(now(&mut lowered).is_none());
    drop(raised);
    let below = tenant.group().set_max(Bytes::mib(4) - Bytes(1));
    below.expect("3 MiB are used");
    tenant.admission().wake();
    let text = now(lowered)
        .expect("decided")
        .expect_err("never")
        .to_string();
    assert!(text.contains("reserves 4.0 MB is never admitted"), "{text}");
    assert!(now(&mut next).is_none(), "a byte is lacking");
    drop(of_program);
    tenant.admission().wake();
    let next = now(next).expect("decided").expect("its turn");
    assert_eq!(tenant.group().usage_precise(), Bytes::mib(1));
    drop(next);
    assert!(tenant.group().children().is_empty());
}

// Goal: a query that is dropped while it waits to run again leaves no place, no group and no byte,
// and its attempt is not made; those behind it go on.
#[test]
fn a_query_that_is_dropped_while_it_waits_leaves_nothing() {
    let hw = manager(Bytes::mib(16));
    let tenant = tenant(&hw, "a", Bytes::mib(16), Options::default());
    let neighbour = query(&tenant);
    let hoard = holding("hoard", &neighbour);
    hoard.try_grow(15 * MIB).expect("there is room");
    let attempts = AtomicU32::new(0);
    let run = || {
        Box::pin(tenant.run(Retry::default(), |pool| {
            attempts.fetch_add(1, Ordering::Relaxed);
            let pool: Arc<dyn MemoryPool> = pool;
            let join = holding("join", &pool);
            let grown = join.try_grow(2 * MIB);
            async move { grown.map(|()| join.size()) }
        }))
    };
    let [mut first, mut second] = [(); 2].map(|()| run());
    for waits in [&mut first, &mut second] {
        assert!(now(waits).is_none(), "there is no room");
    }
    // The second waits behind the first before its first attempt.
    assert_eq!(
        (attempts.load(Ordering::Relaxed), tenant.counts().waiting),
        (1, 2)
    );
    drop(first);
    assert!(now(&mut second).is_none(), "there is no room");
    drop(second);
    let counts = tenant.counts();
    assert_eq!((counts.waiting, counts.running), (0, 1));
    assert_eq!(tenant.group().children().len(), 1, "the neighbour's");
    assert_eq!(tenant.group().usage_precise(), Bytes::mib(15));
    drop((hoard, neighbour));
    assert_eq!(attempts.load(Ordering::Relaxed), 2, "each had one attempt");
    assert!(tenant.group().children().is_empty());
}

// Goal: attempts reserve as `Retry` says: what it sets; what the last one used and was refused;
// twice what it used; everything. Method: four attempts that use and are refused known sizes.
#[test]
fn each_attempt_reserves_as_retry_says() {
    let hw = manager(Bytes::mib(64));
    let tenant = tenant(&hw, "a", Bytes::mib(32), Options::default());
    let mut reserves = Vec::new();
    let retry = Retry::default()
        .with_attempts(4)
        .with_first_reserve(Bytes::mib(1));
    let outcome = block_on(tenant.run(retry, |pool| {
        reserves.push(tenant.group().usage_precise());
        let pool: Arc<dyn MemoryPool> = pool;
        let join = holding("join", &pool);
        if reserves.len() == 1 {
            join.try_grow(4 * MIB).expect("there is room");
            join.shrink(MIB);
            // Refused, because the rest of the tenant is taken for this moment.
            let rest = tenant
                .group()
                .try_charge(Bytes::mib(28))
                .expect("there is room");
            join.try_grow(6 * MIB).expect_err("there is no room");
            drop(rest);
        } else if reserves.len() < 4 {
            join.try_grow(11 * MIB).expect("there is room");
        }
        let outcome = match reserves.len() {
            4 => Ok(pool.reserved()),
            nth => Err(DataFusionError::ResourcesExhausted(format!(
                "attempt {nth}"
            ))),
        };
        async { outcome }
    }));
    outcome.expect("the last");
    // A peak may be too high by what a few CPUs hold as tokens.
    for (reserve, mib) in reserves.into_iter().zip([1, 10, 22, 32]) {
        let most = Bytes::mib(mib + 2);
        assert!(
            (Bytes::mib(mib)..=most).contains(&reserve),
            "{reserve}, {mib} MiB"
        );
    }
}

// Goal: a query runs once where no attempt or one is set, and the error of its last attempt is the
// one that is returned.
#[test]
fn the_error_of_the_last_attempt_is_returned() {
    let hw = manager(Bytes::mib(16));
    let tenant = tenant(&hw, "a", Bytes::mib(16), Options::default());
    for (attempts, runs) in [(0, 1), (1, 1), (2, 2), (5, 5)] {
        let mut nth = 0;
        let outcome = block_on(tenant.run(Retry::default().with_attempts(attempts), |_| {
            nth += 1;
            let refused = DataFusionError::ResourcesExhausted(format!("attempt {nth}"));
            async { Err::<(), _>(refused.context("while joining")) }
        }));
        let text = outcome
            .expect_err("each is refused")
            .find_root()
            .to_string();
        assert_eq!(text, format!("Resources exhausted: attempt {runs}"));
        assert_eq!(nth, runs);
    }
    assert!(tenant.group().children().is_empty());
}

// Symptom: a query that waited never began after the program had removed its group, and those
// behind it neither. Method: one that waits in a tenant without room; its group is removed.
#[test]
fn a_query_whose_group_was_removed_while_it_waited_begins_in_another() {
    let hw = manager(Bytes::mib(16));
    let tenant = tenant(&hw, "a", Bytes::mib(16), Options::default());
    let first = now(Box::pin(tenant.admit(Bytes::mib(16)))).expect("there is room");
    let first = first.expect("there is room");
    let mut second = Box::pin(tenant.admit(Bytes::mib(8)));
    assert!(now(&mut second).is_none(), "no room");
    let of_first = first.group().expect("it was charged").id();
    let groups = tenant.group().children();
    let waiting = groups.iter().find(|group| group.id() != of_first);
    waiting.expect("it waits").remove().expect("no children");
    drop(first);
    let bell = Arc::new(Bell(AtomicBool::new(true)));
    let waker = Waker::from(Arc::clone(&bell));
    let mut admitted = Poll::Pending;
    // Ends: each poll but the last has rung.
    while admitted.is_pending() {
        assert!(
            bell.0.swap(false, Ordering::Relaxed),
            "it waits for nothing"
        );
        admitted = second.as_mut().poll(&mut Context::from_waker(&waker));
    }
    assert_eq!(tenant.group().usage_precise(), Bytes::mib(8));
}

// Symptom: a query that was stopped while it waited to run again went on. Method: its first attempt
// finds no room; the program keeps the pool of that, stops it, and makes room then.
#[test]
fn a_query_that_is_stopped_while_it_waits_to_run_again_ends() {
    let hw = manager(Bytes::mib(16));
    let tenant = tenant(&hw, "a", Bytes::mib(16), Options::default());
    let neighbour = query(&tenant);
    let hoard = holding("hoard", &neighbour);
    hoard.try_grow(15 * MIB).expect("there is room");
    let kept = RefCell::new(Vec::new());
    let mut run = Box::pin(tenant.run(Retry::default(), |pool| {
        kept.borrow_mut().push(Arc::clone(&pool));
        let pool: Arc<dyn MemoryPool> = pool;
        let join = holding("join", &pool);
        let grown = join.try_grow(2 * MIB);
        async move { grown.map(|()| join.size()) }
    }));
    let bell = Arc::new(Bell(AtomicBool::new(false)));
    let waker = Waker::from(Arc::clone(&bell));
    let mut context = Context::from_waker(&waker);
    assert!(run.as_mut().poll(&mut context).is_pending(), "no room");
    assert_eq!(tenant.counts().waiting, 1);
    bell.0.store(false, Ordering::Relaxed);
    kept.borrow()[0].stop();
    assert!(bell.0.load(Ordering::Relaxed), "it is told");
    drop((hoard, neighbour));
    let Poll::Ready(Err(DataFusionError::External(error))) = run.as_mut().poll(&mut context) else {
        panic!("it ends with the reason");
    };
    let stopped = error.downcast_ref::<Stopped>().expect("it was stopped");
    assert_eq!(stopped.usage, Bytes::ZERO, "one that waits holds nothing");
    drop(run);
    assert_eq!(kept.into_inner().len(), 1, "it did not run again");
    assert_eq!(tenant.counts().waiting, 0);
    assert!(tenant.group().children().is_empty());
}

// Symptom: a tenant that was to be removed with its last query was removed between two attempts of
// that query, and the second was refused for ever.
#[test]
fn a_query_that_runs_again_keeps_its_tenant() {
    let hw = manager(Bytes::mib(16));
    let tenant = tenant(&hw, "a", Bytes::mib(16), Options::default());
    let mut nr_attempts = 0;
    let outcome = block_on(tenant.run(Retry::default(), |pool| {
        nr_attempts += 1;
        let pool: Arc<dyn MemoryPool> = pool;
        let join = holding("join", &pool);
        let refused = join.try_grow(20 * MIB).expect_err("more than the maximum");
        tenant.group().remove_when_unused();
        let granted = join.try_grow(8 * MIB);
        let is_first = nr_attempts == 1;
        async move { if is_first { Err(refused) } else { granted } }
    }));
    outcome.expect("the second attempt has room");
    assert_eq!(nr_attempts, 2);
    assert!(hw.root().children().is_empty(), "its last query has ended");
}
