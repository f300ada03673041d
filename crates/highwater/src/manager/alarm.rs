//! Alarms: timers that poll a waiting charge again when no memory was given back.
//!
//! A future has no clock, and the library starts no thread for one. A charge whose grace period or
//! deadline has passed is woken by the first of these that the program has:
//! |---|---|
//! | the program has | the alarm is |
//! |---|---|
//! | [`Builder::timer`](super::Builder::timer) | a timer of its runtime |
//! | [`Background::Thread`](super::Background::Thread) | rung by the reclaim thread, between passes |
//! | neither | rung by the next poll of any charge, and by [`Manager::balance`](super::Manager::balance) |
//!
//! # Why no alarm is lost
//!
//! An alarm is inserted under the list's lock and then nudges the thread if it is the earliest. The
//! thread reads the earliest alarm before it sleeps; a nudge in between ends that sleep at once,
//! because the nudge is a flag under the condition variable's lock. An alarm that is polled after
//! its time is ready, rung or not.

use std::collections::BTreeMap;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use super::background::Wakeup;
use crate::sync::{Arc, LockClass, Mutex, Rank, Woken};

static ALARMS_LOCK: LockClass = LockClass::new("alarms", Rank::Leaf);

/// A timer of the program's runtime: a future that is ready at the given moment.
pub(super) type Sleep = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Makes a [`Sleep`] in the program's runtime.
#[derive(Clone)]
pub(super) struct Timer(Arc<dyn Fn(Instant) -> Sleep + Send + Sync>);

impl Timer {
    pub(super) fn new<F, S>(sleep_until: F) -> Self
    where
        F: Fn(Instant) -> S + Send + Sync + 'static,
        S: Future<Output = ()> + Send + 'static,
    {
        Self(Arc::new(move |at| Box::pin(sleep_until(at))))
    }
}

impl fmt::Debug for Timer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Timer").finish_non_exhaustive()
    }
}

/// The alarms of a manager, ordered by the manager's clock.
#[derive(Debug)]
pub(super) struct Alarms {
    list: Mutex<AlarmList>,
    wakeup: Arc<Wakeup>,
    timer: Option<Timer>,
}

#[derive(Debug, Default)]
struct AlarmList {
    wakers: BTreeMap<(Duration, u64), Waker>,
    next: u64,
}

impl Alarms {
    pub(super) fn new(wakeup: Arc<Wakeup>, timer: Option<Timer>) -> Self {
        Self {
            list: Mutex::new(&ALARMS_LOCK, AlarmList::default()),
            wakeup,
            timer,
        }
    }

    /// Returns whether alarms ring on time, rather than only when some charge is polled.
    pub(super) fn are_rung(&self) -> bool {
        self.timer.is_some() || self.wakeup.has_thread()
    }

    /// Returns the time of the earliest alarm.
    pub(super) fn next(&self) -> Option<Duration> {
        self.list.lock().wakers.keys().next().map(|(at, _)| *at)
    }

    /// Wakes every alarm that is due at `now`.
    pub(super) fn ring(&self, now: Duration) {
        let due = {
            let mut list = self.list.lock();
            if list.wakers.keys().next().is_none_or(|(at, _)| *at > now) {
                return;
            }
            let later = list.wakers.split_off(&(now, u64::MAX));
            std::mem::replace(&mut list.wakers, later)
        };
        debug_assert!(due.keys().all(|(at, _)| *at <= now), "no alarm rings early");
        // Outside the lock: a waker may run any code.
        drop(Woken::from_iter(due.into_values()));
    }

    /// Inserts an alarm.
    fn enter(&self, at: Duration, waker: Waker) -> (Duration, u64) {
        let mut list = self.list.lock();
        let key = (at, list.next);
        list.next += 1;
        let former = list.wakers.insert(key, waker);
        debug_assert!(former.is_none(), "each place in the list is given out once");
        let is_earliest = list.wakers.keys().next() == Some(&key);
        drop(list);
        if is_earliest {
            self.wakeup.nudge();
        }
        key
    }

    fn cancel(&self, key: (Duration, u64)) {
        let waker = self.list.lock().wakers.remove(&key);
        // Outside the lock: dropping a waker may run any code.
        drop(waker);
    }
}

/// One charge's alarm. Cancelled on drop.
pub(super) struct Alarm {
    alarms: Arc<Alarms>,
    at: Duration,
    ring: AlarmSource,
}

/// The source of the wake-up.
enum AlarmSource {
    ByTimer(Sleep),
    /// Key in the list, while the alarm is in it.
    ByList(Option<(Duration, u64)>),
}

impl Alarm {
    /// Creates an alarm for `at` on the manager's clock, which started at `begun`.
    pub(super) fn new(alarms: &Arc<Alarms>, begun: Instant, at: Duration) -> Self {
        let ring = match (&alarms.timer, begun.checked_add(at)) {
            (Some(timer), Some(instant)) => AlarmSource::ByTimer((timer.0)(instant)),
            _ => AlarmSource::ByList(None),
        };
        Self {
            alarms: Arc::clone(alarms),
            at,
            ring,
        }
    }

    /// Returns the time of the alarm.
    pub(super) fn at(&self) -> Duration {
        self.at
    }

    /// Registers the task; ready once the time has come.
    pub(super) fn poll(&mut self, now: Duration, context: &mut Context<'_>) -> Poll<()> {
        match &mut self.ring {
            AlarmSource::ByTimer(sleep) => sleep.as_mut().poll(context),
            AlarmSource::ByList(_) if self.at <= now => Poll::Ready(()),
            AlarmSource::ByList(place) => {
                if let Some(former) = place.take() {
                    debug_assert_eq!(former.0, self.at, "an alarm keeps its time");
                    self.alarms.cancel(former);
                }
                *place = Some(self.alarms.enter(self.at, context.waker().clone()));
                Poll::Pending
            }
        }
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        if let AlarmSource::ByList(Some(place)) = self.ring {
            self.alarms.cancel(place);
        }
    }
}

#[cfg(all(test, loom))]
mod loom {
    use std::future::poll_fn;

    use super::*;
    use crate::sync::atomic::{AtomicU64, Ordering};
    use crate::sync::{block_on, thread};

    const AT: Duration = Duration::from_secs(1);

    // Goal: an alarm that is set while the thread looks or falls asleep is rung; a cancelled one
    // delays nothing. Method: a thread that follows the reclaim thread's protocol, on a clock that
    // advances when the thread would have waited in vain. If the task is never woken, the model
    // fails with a deadlock.
    #[test]
    fn an_alarm_is_rung_whenever_it_is_set() {
        let mut builder = ::loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(|| {
            let wakeup = Arc::new(Wakeup::new());
            let alarms = Arc::new(Alarms::new(Arc::clone(&wakeup), None));
            // Written by: the thread. Read by: the task. Publishes: nothing.
            let clock = Arc::new(AtomicU64::new(0));
            let (ringing, time) = (Arc::clone(&alarms), Arc::clone(&clock));
            let rings = thread::spawn(move || {
                let next = loop {
                    match ringing.next() {
                        Some(next) => break next,
                        None => wakeup.wait_for_nudge(),
                    }
                };
                // Relaxed: the list's lock orders it before the waker is called.
                time.store(next.as_secs(), Ordering::Relaxed);
                ringing.ring(next);
            });
            let mut alarm = Alarm::new(&alarms, Instant::now(), AT);
            let rung = poll_fn(|context| {
                // Relaxed: an alarm that is inserted after its time is rung by the next advance of
                // the clock.
                let now = Duration::from_secs(clock.load(Ordering::Relaxed));
                alarm.poll(now, context)
            });
            assert_eq!(block_on(rung, None), Some(()));
            rings.join().unwrap();
            drop(alarm);
            assert_eq!(alarms.next(), None);
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::task::Wake;

    use super::*;
    use crate::sync::atomic::{AtomicU64, Ordering};

    #[derive(Default)]
    struct Bell(AtomicU64);

    impl Wake for Bell {
        fn wake(self: Arc<Self>) {
            // Relaxed: one thread.
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn alarms_ring_in_time_and_once() {
        // Goal: an alarm rings when due, once, and never after it was dropped. Method: three
        // alarms, two of them for the same time.
        let alarms = Arc::new(Alarms::new(Arc::new(Wakeup::new()), None));
        let bells = [2, 1, 2].map(|at| (s(at), Arc::new(Bell::default())));
        let mut set = bells.each_ref().map(|(at, bell)| {
            let mut alarm = Alarm::new(&alarms, Instant::now(), *at);
            let waker = Waker::from(Arc::clone(bell));
            let mut context = Context::from_waker(&waker);
            assert!(alarm.poll(s(0), &mut context).is_pending());
            assert!(alarm.poll(s(0), &mut context).is_pending(), "entered anew");
            alarm
        });
        // Relaxed: one thread.
        let rung = || {
            bells
                .each_ref()
                .map(|(_, bell)| bell.0.load(Ordering::Relaxed))
        };
        assert_eq!(alarms.next(), Some(s(1)));
        alarms.ring(Duration::from_millis(999));
        assert_eq!(rung(), [0, 0, 0]);
        alarms.ring(s(1));
        assert_eq!((rung(), alarms.next()), ([0, 1, 0], Some(s(2))));
        let mut context = Context::from_waker(Waker::noop());
        assert!(set[1].poll(s(1), &mut context).is_ready());
        let [first, _rung, third] = set;
        drop(first);
        alarms.ring(s(3));
        assert_eq!((rung(), alarms.next()), ([0, 1, 1], None));
        drop(third);
    }
}
