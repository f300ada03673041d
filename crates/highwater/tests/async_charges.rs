//! The promise: a waiting charge needs no thread. It tells one victim at a time, on any worker that
//! polls it, and is served in FIFO order; a group that can spill is asked first; cancelled, it
//! leaves nothing behind.

#![expect(clippy::unwrap_used, reason = "a test stops where it goes wrong")]

mod support;

use std::collections::HashMap;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use highwater::group::ChargeError;
use highwater::units::GroupId;
use highwater::{Background, Bytes, Charge, ChargeFailed, Group, Limits, Manager};
use support::assert_empty;
use tokio::runtime::{Builder, Runtime};
use tokio::task::{JoinHandle, yield_now};
use tokio::time::{sleep, timeout};

const MIB: Bytes = Bytes::mib(1);
/// Longer than anything here takes: only a hang takes so long.
const AGES: Duration = Duration::from_secs(60);
/// A grace period that no test waits out, unless it tests grace periods.
const LONG: Duration = Duration::from_secs(3600);

fn runtime(workers: usize) -> Runtime {
    let mut builder = Builder::new_multi_thread();
    builder
        .worker_threads(workers)
        .enable_time()
        .build()
        .unwrap()
}

fn manager(grace: Duration, background: Background) -> Manager {
    Manager::builder()
        .capacity(Bytes::mib(16))
        .background(background)
        .grace(grace)
        .build()
        .unwrap()
}

/// A query that can be told to stop: it checks at each poll, like a task that is cancelled.
#[derive(Default)]
struct Cancel {
    is_told: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

impl Cancel {
    fn tell(&self) {
        self.is_told.store(true, Ordering::SeqCst);
        if let Some(waker) = self.waker.lock().unwrap().take() {
            waker.wake();
        }
    }

    /// Ready when it was told.
    async fn told(&self) {
        poll_fn(|context| {
            *self.waker.lock().unwrap() = Some(context.waker().clone());
            match self.is_told.load(Ordering::SeqCst) {
                true => Poll::Ready(()),
                false => Poll::Pending,
            }
        })
        .await;
    }

    /// Returns the output of `future`, or `None` if the query is told first.
    async fn unless_told<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        let (mut future, mut told) = (pin!(future), pin!(self.told()));
        poll_fn(|context| {
            if told.as_mut().poll(context).is_ready() {
                return Poll::Ready(None);
            }
            future.as_mut().poll(context).map(Some)
        })
        .await
    }
}

/// Queries that stop when their group is selected as the victim; and their number.
#[derive(Clone, Default)]
struct Queries {
    running: Arc<Mutex<HashMap<GroupId, Arc<Cancel>>>>,
    told: Arc<AtomicU64>,
}

impl Queries {
    fn of(hw: &Manager) -> Self {
        let queries = Self::default();
        let stopping = queries.clone();
        hw.root().on_exhausted(move |victim| {
            stopping.told.fetch_add(1, Ordering::SeqCst);
            let cancel = stopping
                .running
                .lock()
                .unwrap()
                .get(&victim.group().id())
                .cloned();
            if let Some(cancel) = cancel {
                cancel.tell();
            }
        });
        queries
    }

    fn enter(&self, group: &Group) -> Arc<Cancel> {
        let cancel = Arc::new(Cancel::default());
        self.running
            .lock()
            .unwrap()
            .insert(group.id(), Arc::clone(&cancel));
        cancel
    }

    fn nr_told(&self) -> u64 {
        self.told.load(Ordering::SeqCst)
    }
}

/// Waits until `is_so`, letting other tasks run.
async fn until(is_so: impl Fn() -> bool) {
    while !is_so() {
        yield_now().await;
    }
}

fn child(parent: &Group, name: &str) -> Group {
    parent.child(name, Limits::default()).unwrap()
}

async fn joined<T>(task: JoinHandle<T>) -> T {
    timeout(AGES, task).await.expect("it hangs").unwrap()
}

/// Five queries hold 3 MiB each of a tenant's 15, and sleep until they are told; a sixth requests 2
/// MiB.
fn one_victim_is_told_on(workers: usize, background: Background) {
    let hw = manager(LONG, background);
    let tenant = hw
        .root()
        .child("tenant", Limits::max(Bytes::mib(15)))
        .unwrap();
    let queries = Queries::of(&hw);
    let runtime = runtime(workers);
    runtime.block_on(async {
        let holders: Vec<JoinHandle<()>> = (0..5)
            .map(|nth| {
                let group = child(&tenant, &format!("q{nth}"));
                let cancel = queries.enter(&group);
                tokio::spawn(async move {
                    let charge = group.charge_async(Bytes::mib(3)).await.unwrap();
                    cancel.told().await;
                    drop(charge);
                })
            })
            .collect();
        until(|| tenant.usage_precise() == Bytes::mib(15)).await;
        let asking = child(&tenant, "asking");
        let task = tokio::spawn(async move { asking.charge_async(Bytes::mib(2)).await });
        let charge = joined(task).await.unwrap();
        assert_eq!(charge.bytes(), Bytes::mib(2));
        assert_eq!(queries.nr_told(), 1);
        for cancel in queries.running.lock().unwrap().values() {
            cancel.tell();
        }
        for holder in holders {
            joined(holder).await;
        }
        drop(charge);
    });
    assert_eq!(hw.snapshot().counter("oom_kill"), 1);
    assert_empty(&hw);
}

#[test]
fn a_request_of_a_task_tells_one_query_to_stop_and_is_granted() {
    // Goal: the victim gets the worker that it needs to give memory back. Before `charge_async`
    // existed, `charge` from a task told 4 or 5 of 5 queries, and was refused. Method: as many
    // workers as queries, and one; a grace period that never ends, so that a second query is told
    // only if the first is not waited for.
    one_victim_is_told_on(5, Background::Off);
    one_victim_is_told_on(1, Background::Off);
    one_victim_is_told_on(1, Background::Thread);
}

#[test]
fn three_queries_that_wait_for_each_other_do_not_wait_until_their_deadlines() {
    // Goal: one is told to stop, the others get their memory. Before, waiting charges told no
    // victim. Method: three that hold 4 MiB of 12 and want 2 more each; one that stops frees enough
    // for the others.
    for workers in [1, 3] {
        let hw = manager(LONG, Background::Off);
        let tenant = hw
            .root()
            .child("tenant", Limits::max(Bytes::mib(12)))
            .unwrap();
        let queries = Queries::of(&hw);
        let holding = Arc::new(AtomicU64::new(0));
        let runtime = runtime(workers);
        let got = runtime.block_on(async {
            let tasks: Vec<_> = (0..3)
                .map(|nth| {
                    let group = child(&tenant, &format!("q{nth}"));
                    let (cancel, holding) = (queries.enter(&group), Arc::clone(&holding));
                    tokio::spawn(async move {
                        let held = group.charge_async(Bytes::mib(4)).await.unwrap();
                        holding.fetch_add(1, Ordering::SeqCst);
                        until(|| holding.load(Ordering::SeqCst) == 3).await;
                        let deadline = Instant::now() + AGES;
                        let more = group.charge_async(Bytes::mib(2)).with_deadline(deadline);
                        let more = cancel.unless_told(more).await;
                        drop(held);
                        more.is_some_and(|more| more.is_ok())
                    })
                })
                .collect();
            let mut got = 0;
            for task in tasks {
                got += u64::from(joined(task).await);
            }
            got
        });
        assert_eq!((queries.nr_told(), got), (1, 2), "{workers} workers");
        drop(runtime);
        assert_empty(&hw);
    }
}

/// Records that it was called.
#[derive(Default)]
struct Bell(AtomicU64);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// A waiting charge, polled by hand.
struct Waiting {
    wait: Pin<Box<highwater::ChargeWait>>,
    bell: Arc<Bell>,
}

impl Waiting {
    fn new(wait: highwater::ChargeWait) -> Self {
        let bell = Arc::new(Bell(AtomicU64::new(1)));
        Self {
            wait: Box::pin(wait),
            bell,
        }
    }

    fn is_called(&self) -> bool {
        self.bell.0.load(Ordering::SeqCst) > 0
    }

    fn poll(&mut self) -> Poll<Result<Charge, ChargeFailed>> {
        self.bell.0.store(0, Ordering::SeqCst);
        let waker = Waker::from(Arc::clone(&self.bell));
        self.wait.as_mut().poll(&mut Context::from_waker(&waker))
    }

    /// Polls it as long as it is called; returns its result.
    fn run(&mut self) -> Option<Result<Charge, ChargeFailed>> {
        for _ in 0..1000 {
            if !self.is_called() {
                return None;
            }
            if let Poll::Ready(outcome) = self.poll() {
                return Some(outcome);
            }
        }
        panic!("it polls itself for ever");
    }
}

#[test]
fn the_next_victim_is_told_when_the_first_has_given_back_all_it_had() {
    // Goal: not before, however slowly it gives back, and then at once. Method: polls by hand and a
    // grace period that never ends. The first victim has three pieces; while it has one left, no
    // other is told; then, as that was too little, the next is.
    let hw = manager(LONG, Background::Off);
    let queries = Queries::of(&hw);
    let (large, small) = (child(&hw.root(), "large"), child(&hw.root(), "small"));
    let mut of_large: Vec<Charge> = (0..3)
        .map(|_| large.charge(Bytes::mib(3)).unwrap())
        .collect();
    let of_small = small.charge(Bytes::mib(7)).unwrap();
    let mut asking = Waiting::new(child(&hw.root(), "asking").charge_async(Bytes::mib(12)));
    assert!(asking.run().is_none());
    assert_eq!(queries.nr_told(), 1);
    while let Some(piece) = of_large.pop() {
        assert_eq!(queries.nr_told(), 1);
        drop(piece);
        assert!(asking.is_called(), "it checks the released memory");
        assert!(asking.run().is_none());
    }
    assert_eq!(queries.nr_told(), 2);
    assert_eq!((large.events().oom_kill, small.events().oom_kill), (1, 1));
    drop(of_small);
    let charge = asking.run().unwrap().unwrap();
    drop(charge);
    assert_empty(&hw);
}

#[test]
fn a_group_that_is_removed_is_waited_for_no_longer() {
    // Goal: the grace period ends with the group. Method: as above, but the first victim is removed
    // and keeps its charge.
    let hw = manager(LONG, Background::Off);
    let queries = Queries::of(&hw);
    let (large, small) = (child(&hw.root(), "large"), child(&hw.root(), "small"));
    let mut of_large = large.charge(Bytes::mib(8)).unwrap();
    let of_small = small.charge(Bytes::mib(7)).unwrap();
    let mut asking = Waiting::new(child(&hw.root(), "asking").charge_async(Bytes::mib(6)));
    assert!(asking.run().is_none());
    large.remove().unwrap();
    of_large.shrink(MIB);
    assert!(asking.run().is_none());
    assert_eq!((queries.nr_told(), small.events().oom_kill), (2, 1));
    drop(of_small);
    drop(asking.run().unwrap().unwrap());
    drop(of_large);
    assert_empty(&hw);
}

/// Two groups that ignore the request to stop; a request that ends by its deadline. Returns how
/// many were told, and the refusal.
fn graces_in_vain(
    builder: highwater::Builder,
    grace: Duration,
    wait: Duration,
) -> (u64, ChargeFailed) {
    let hw = builder
        .capacity(Bytes::mib(16))
        .grace(grace)
        .build()
        .unwrap();
    let queries = Queries::of(&hw);
    let groups = ["a", "b"].map(|name| child(&hw.root(), name));
    let held = groups
        .each_ref()
        .map(|group| group.charge(Bytes::mib(7)).unwrap());
    let asking = child(&hw.root(), "asking");
    let failed = runtime(1).block_on(async {
        let deadline = Instant::now() + wait;
        let charge = asking.charge_async(Bytes::mib(4)).with_deadline(deadline);
        let outcome = timeout(AGES, charge).await.expect("the deadline wakes it");
        assert!(Instant::now() >= deadline);
        outcome.unwrap_err()
    });
    drop(held);
    assert_empty(&hw);
    (queries.nr_told(), failed)
}

#[test]
fn a_grace_and_a_deadline_end_without_a_release() {
    // Goal: a group that ignores the request is not waited for beyond the grace period, and no wait
    // exceeds the deadline, with the runtime's timer and with the background thread. Method: no
    // memory is given back; the grace period is much shorter than the deadline, or much longer.
    let timed = || Manager::builder().timer(|at| tokio::time::sleep_until(at.into()));
    let threaded = || Manager::builder().background(Background::Thread);
    for make in [timed as fn() -> highwater::Builder, threaded] {
        let short = Duration::from_millis(10);
        let (told, failed) = graces_in_vain(make(), short, Duration::from_millis(500));
        assert_eq!((told, failed.victims), (2, 2), "{failed}");
        assert!(matches!(failed.refusal, ChargeError::DeadlinePassed { .. }));
        let (told, failed) = graces_in_vain(make(), LONG, Duration::from_millis(50));
        assert_eq!((told, failed.victims), (1, 1), "{failed}");
    }
}

#[test]
fn a_thread_that_waits_in_line_tells_one_victim_after_the_other() {
    // Goal: as for tasks, without a runtime, a timer or a background thread. Method: the first
    // victim ignores the request, the second gives back.
    let hw = manager(Duration::from_millis(5), Background::Off);
    let (deaf, other) = (child(&hw.root(), "deaf"), child(&hw.root(), "other"));
    let kept = deaf.charge(Bytes::mib(8)).unwrap();
    let given = Mutex::new(Some(other.charge(Bytes::mib(7)).unwrap()));
    let told = Arc::new(Mutex::new(Vec::new()));
    let (names, deaf_id) = (Arc::clone(&told), deaf.id());
    hw.root().on_exhausted(move |victim| {
        names.lock().unwrap().push(victim.group().name().to_owned());
        if victim.group().id() != deaf_id {
            given.lock().unwrap().take();
        }
    });
    let charge = hw
        .root()
        .charge_async(Bytes::mib(4))
        .wait_until(Instant::now() + AGES);
    assert_eq!(charge.unwrap().bytes(), Bytes::mib(4));
    assert_eq!(*told.lock().unwrap(), ["deaf", "other"]);
    drop(kept);
    hw.root().on_exhausted(|_| ());
    assert_empty(&hw);
}

#[test]
fn a_request_that_is_dropped_leaves_nothing_behind() {
    // Goal: cancellation. Method: drop a charge at each stage: never polled, head of the queue with
    // a victim told, behind the head; the next one proceeds, and waits for the victim that the head
    // has told.
    let hw = manager(LONG, Background::Off);
    let queries = Queries::of(&hw);
    let held = child(&hw.root(), "held").charge(Bytes::mib(15)).unwrap();
    let asking = child(&hw.root(), "asking");
    drop(asking.charge_async(Bytes::mib(4)));
    let mut requests = [4, 3, 2].map(|mib| Waiting::new(asking.charge_async(Bytes::mib(mib))));
    for request in &mut requests {
        assert!(request.run().is_none());
    }
    let root = hw.root();
    assert_eq!((root.nr_waiting(), queries.nr_told()), (3, 1));
    let [first, second, mut third] = requests;
    drop(second);
    assert!(!third.is_called(), "it is not the first");
    drop(first);
    assert!(third.is_called(), "it is the first, and acts");
    assert!(third.run().is_none());
    assert_eq!((root.nr_waiting(), queries.nr_told()), (1, 1));
    assert!(root.charge(MIB).is_err(), "it is behind the third");
    drop(held);
    drop(third.run().unwrap().unwrap());
    assert_eq!(root.nr_waiting(), 0);
    assert_eq!(root.pressure().some.total_us, {
        std::thread::sleep(Duration::from_millis(5));
        root.pressure().some.total_us
    });
    assert_empty(&hw);
}

#[test]
fn tasks_are_served_in_order_of_arrival() {
    // Goal: FIFO on a real runtime. Method: requests that arrive one after the other and need all
    // memory, so that one holds at a time; the first memory comes back in pieces on another worker.
    let hw = manager(LONG, Background::Off);
    let runtime = runtime(4);
    let mut held: Vec<Charge> = (0..16).map(|_| hw.root().charge(MIB).unwrap()).collect();
    let served = Arc::new(Mutex::new(Vec::new()));
    runtime.block_on(async {
        let mut tasks = Vec::new();
        for nth in 0..8 {
            let (group, served) = (hw.root(), Arc::clone(&served));
            tasks.push(tokio::spawn(async move {
                let charge = group.charge_async(Bytes::mib(16)).await.unwrap();
                served.lock().unwrap().push(nth);
                yield_now().await;
                drop(charge);
            }));
            until(|| hw.root().nr_waiting() == nth + 1).await;
        }
        while held.pop().is_some() {
            yield_now().await;
        }
        for task in tasks {
            joined(task).await;
        }
    });
    assert_eq!(*served.lock().unwrap(), [0, 1, 2, 3, 4, 5, 6, 7]);
    assert_empty(&hw);
}

#[test]
fn no_request_sleeps_beside_free_memory() {
    // Goal: no lost wake-up among queues, grace periods, asked groups and victims. Method: 64 tasks
    // on 4 workers that charge, hold, yield and stop when told, for a tenant that has room for a
    // third of them; some cancel, some have deadlines. All end.
    let hw = Manager::builder()
        .capacity(Bytes::mib(16))
        .grace(Duration::from_millis(2))
        .timer(|at| tokio::time::sleep_until(at.into()))
        .build()
        .unwrap();
    let queries = Queries::of(&hw);
    let runtime = runtime(4);
    let granted = Arc::new(AtomicU64::new(0));
    runtime.block_on(async {
        let tasks: Vec<_> = (0..64_u64)
            .map(|nth| {
                let group = child(&hw.root(), &format!("q{nth}"));
                let (cancel, granted) = (queries.enter(&group), Arc::clone(&granted));
                tokio::spawn(async move {
                    for round in 0..20 {
                        let size = Bytes::kib(64 + 97 * ((nth * 31 + round * 17) % 9));
                        let held = group
                            .charge_async(size)
                            .with_deadline(Instant::now() + AGES);
                        let Some(held) = cancel.unless_told(held).await else {
                            cancel.is_told.store(false, Ordering::SeqCst);
                            continue;
                        };
                        let held = held.unwrap();
                        granted.fetch_add(1, Ordering::SeqCst);
                        yield_now().await;
                        let more = group.charge_async(size);
                        let more = cancel
                            .unless_told(timeout(Duration::from_millis(1 + nth % 5), more))
                            .await;
                        drop((held, more));
                    }
                })
            })
            .collect();
        for task in tasks {
            joined(task).await;
        }
    });
    assert!(granted.load(Ordering::SeqCst) > 64);
    assert_eq!(hw.root().nr_waiting(), 0);
    drop(runtime);
    assert_empty(&hw);
}

#[test]
fn charges_for_less_than_a_whole_pool_are_awaited_beside_a_timeout_of_the_runtime() {
    // Goal: a runtime's own timeout composes. Method: one that runs out, and the queue is empty
    // again.
    let hw = manager(LONG, Background::Off);
    let held = hw.root().charge(Bytes::mib(16)).unwrap();
    runtime(1).block_on(async {
        let charge = hw.root().charge_async(MIB);
        assert!(timeout(Duration::from_millis(5), charge).await.is_err());
        assert_eq!(hw.root().nr_waiting(), 0);
        let later = async {
            sleep(Duration::from_millis(2)).await;
            drop(held);
        };
        tokio::spawn(later);
        assert!(
            timeout(AGES, hw.root().charge_async(MIB))
                .await
                .unwrap()
                .is_ok()
        );
    });
    assert_empty(&hw);
}

#[test]
fn a_task_that_waits_asks_a_group_to_spill_before_it_tells_a_victim() {
    // Goal: the engine's own way is first, also if the spill is a task of its own that needs the
    // worker. Method: one worker; a handler that only starts the spill; a victim handler that must
    // not be called.
    let hw = manager(LONG, Background::Off);
    hw.root().on_exhausted(|victim| panic!("{victim:?}"));
    let sort = child(&hw.root(), "sort");
    let held = Arc::new(Mutex::new(Some(sort.charge(Bytes::mib(12)).unwrap())));
    let runtime = runtime(1);
    let (handle, spilled) = (runtime.handle().clone(), Arc::clone(&held));
    sort.on_reclaim(move |request| {
        let spilled = Arc::clone(&spilled);
        handle.spawn(async move {
            sleep(Duration::from_millis(2)).await;
            spilled.lock().unwrap().take();
        });
        request.want
    });
    let group = hw.root();
    let task = runtime.spawn(async move { group.charge_async(Bytes::mib(8)).await });
    drop(runtime.block_on(joined(task)).unwrap());
    assert_eq!(hw.snapshot().counter("on_reclaim_asked"), 1);
    sort.remove().unwrap();
    assert_empty(&hw);
}
