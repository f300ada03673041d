//! Waking tasks. A waker is the program's code: it may panic, and may drop the last handle of a
//! file or of a manager. So it runs where no lock is held and nothing is half done.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Waker;

thread_local! {
    /// Tasks of this thread's [`Woken::held_by`], if it is in one.
    static HELD: RefCell<Option<Vec<Waker>>> = const { RefCell::new(None) };
}

/// Tasks to wake: dropping this wakes them, with no lock held, no page isolated and none under
/// eviction. A waker that panics is caught: the others are woken all the same, and the thread goes
/// on.
#[derive(Debug, Default)]
#[must_use = "dropped where it is made, it may wake tasks too early"]
pub struct Woken(Vec<Waker>);

impl Woken {
    /// Does `work`, and holds the tasks back that it wakes on this thread; returns them with its
    /// result. It must not wait for any of them.
    pub fn held_by<R>(work: impl FnOnce() -> R) -> (R, Self) {
        let Ok(before) = HELD.try_with(|held| held.replace(Some(Vec::new()))) else {
            // In the last destructors of a thread nothing is held back any more.
            return (work(), Self::default());
        };
        let done = catch_unwind(AssertUnwindSafe(work));
        let held = Self(HELD.replace(before).unwrap_or_default());
        match done {
            Ok(done) => (done, held),
            Err(panic) => {
                drop(held);
                std::panic::resume_unwind(panic)
            }
        }
    }

    /// Adds a task.
    pub fn push(&mut self, waker: Waker) {
        self.0.push(waker);
    }

    /// Adds the tasks of `other`.
    pub fn append(&mut self, mut other: Self) {
        self.0.append(&mut other.0);
    }

    /// Wakes the tasks so far.
    pub fn wake(&mut self) {
        drop(std::mem::take(self));
    }
}

impl FromIterator<Waker> for Woken {
    fn from_iter<I: IntoIterator<Item = Waker>>(tasks: I) -> Self {
        Self(tasks.into_iter().collect())
    }
}

impl Extend<Waker> for Woken {
    fn extend<I: IntoIterator<Item = Waker>>(&mut self, tasks: I) {
        self.0.extend(tasks);
    }
}

impl Drop for Woken {
    fn drop(&mut self) {
        // Fails in the last destructors of a thread, which holds nothing back any more.
        _ = HELD.try_with(|held| {
            if let Some(held) = &mut *held.borrow_mut() {
                held.append(&mut self.0);
            }
        });
        for waker in self.0.drain(..) {
            if catch_unwind(AssertUnwindSafe(|| waker.wake())).is_err() {
                tracing::error!("the waker of a task panicked");
            }
        }
    }
}

/// Tasks that wait, each for an event that a key names; to be kept under a lock.
///
/// Nothing here clones, calls or drops a waker: callers do so before they take the lock, and after
/// they have released it.
#[derive(Debug)]
pub struct WakerList<K> {
    /// In the order of their tickets. `None` in the places of tasks that have left, which are at
    /// most half of all.
    tasks: Vec<(WakerTicket, Option<(K, Waker)>)>,
    nr_left: usize,
    nr_entered: u64,
}

/// The entry of a task in a [`WakerList`]. Never repeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct WakerTicket(u64);

impl<K> Default for WakerList<K> {
    fn default() -> Self {
        Self {
            tasks: Vec::new(),
            nr_left: 0,
            nr_entered: 0,
        }
    }
}

impl<K> WakerList<K> {
    /// Returns whether no task waits.
    pub fn is_empty(&self) -> bool {
        self.tasks.len() == self.nr_left
    }

    /// Enters a task, in the place of its own entry if that is still there; returns the waker that
    /// was in it.
    #[must_use = "a waker is dropped when no lock is held"]
    pub fn enter(
        &mut self,
        ticket: &mut Option<WakerTicket>,
        key: K,
        waker: Waker,
    ) -> Option<Waker> {
        if let Some(task) = ticket.and_then(|ticket| self.find(ticket))
            && let Some((_, known)) = task
        {
            return Some(std::mem::replace(known, waker));
        }
        self.nr_entered += 1;
        let entered = WakerTicket(self.nr_entered);
        self.tasks.push((entered, Some((key, waker))));
        *ticket = Some(entered);
        None
    }

    /// Removes a task, if it is still there.
    #[must_use = "a waker is dropped when no lock is held"]
    pub fn leave(&mut self, ticket: WakerTicket) -> Option<Waker> {
        let (_, waker) = self.find(ticket)?.take()?;
        self.nr_left += 1;
        if self.nr_left > self.tasks.len() / 2 {
            self.tasks.retain(|(_, task)| task.is_some());
            self.nr_left = 0;
        }
        Some(waker)
    }

    /// Removes the tasks that wait for an event. The caller goes through all of them.
    pub fn take(&mut self, is_over: impl Fn(&K) -> bool) -> impl Iterator<Item = Waker> {
        self.nr_left = 0;
        // With them go the places of tasks that have left.
        let is_taken =
            move |task: &Option<(K, Waker)>| task.as_ref().is_none_or(|(key, _)| is_over(key));
        let taken = self.tasks.extract_if(.., move |(_, task)| is_taken(task));
        taken.filter_map(|(_, task)| Some(task?.1))
    }

    fn find(&mut self, ticket: WakerTicket) -> Option<&mut Option<(K, Waker)>> {
        let found = self.tasks.binary_search_by_key(&ticket, |task| task.0);
        found.ok().map(|at| &mut self.tasks[at].1)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;
    use std::sync::Mutex;
    use std::task::Wake;

    use super::*;

    /// Notes its number when it is woken, and panics if that is odd.
    struct Noted(u32, Arc<Mutex<Vec<u32>>>);

    impl Wake for Noted {
        fn wake(self: Arc<Self>) {
            self.1.lock().expect("no panic under it").push(self.0);
            assert!(self.0.is_multiple_of(2), "this panic is part of a test");
        }
    }

    // Goal: tasks are held back until the work is done, and each is woken once, whatever another's
    // waker does.
    #[test]
    fn held_tasks_are_woken_afterwards_and_panics_are_caught() {
        let order = Arc::new(Mutex::new(Vec::new()));
        let task = |nth| Waker::from(Arc::new(Noted(nth, Arc::clone(&order))));
        let ((), held) = Woken::held_by(|| {
            drop(Woken::from_iter([task(1), task(2)]));
            let ((), inner) = Woken::held_by(|| drop(Woken::from_iter([task(4)])));
            drop(inner);
            assert!(order.lock().unwrap().is_empty(), "the work is not done");
        });
        drop(Woken::from_iter([task(6)]));
        drop(held);
        assert_eq!(*order.lock().unwrap(), [6, 1, 2, 4]);
    }

    // Goal: a task finds its own entry, whatever others have left.
    #[test]
    fn each_task_leaves_its_own_entry() {
        let (mut list, waker) = (WakerList::default(), Waker::noop());
        let mut tickets = [None; 6];
        for (nth, ticket) in tickets.iter_mut().enumerate() {
            assert!(list.enter(ticket, nth % 3, waker.clone()).is_none());
        }
        assert_eq!(list.take(|key| *key == 0).count(), 2);
        let [first, second, .., last] = tickets.map(Option::unwrap);
        assert!(list.leave(first).is_none(), "it was taken");
        assert!(list.leave(second).is_some());
        assert!(list.leave(second).is_none(), "it has left");
        let mut again = Some(last);
        assert!(list.enter(&mut again, 2, waker.clone()).is_some());
        assert_eq!(again, Some(last));
        again = Some(first);
        assert!(list.enter(&mut again, 0, waker.clone()).is_none());
        assert!(again > Some(last), "an entry of its own");
        assert_eq!(list.take(|_| true).count(), 4);
        assert!(list.is_empty());
    }

    // Goal: tasks that leave in the order in which they came, as timeouts do, leave no places
    // behind. Method: many enter and leave; the places that are kept are counted meanwhile.
    #[test]
    fn places_of_tasks_that_left_are_few() {
        let mut list = WakerList::default();
        let enter = |list: &mut WakerList<u32>, key| {
            let mut ticket = None;
            assert!(
                list.enter(&mut ticket, key, Waker::noop().clone())
                    .is_none()
            );
            ticket.unwrap()
        };
        let tickets: Vec<_> = (0..1000).map(|key| enter(&mut list, key)).collect();
        for (nth, ticket) in tickets.into_iter().enumerate() {
            assert!(list.leave(ticket).is_some() && list.leave(ticket).is_none());
            assert!(
                list.tasks.len() <= 2 * (999 - nth),
                "{} places",
                list.tasks.len()
            );
        }
        assert!(list.is_empty());
        let last = enter(&mut list, 7);
        assert!(!list.is_empty());
        assert_eq!(list.take(|&key| key == 7).count(), 1);
        assert!(list.leave(last).is_none() && list.is_empty());
    }

    // Goal: work that panics holds nothing back for ever.
    #[test]
    fn work_that_panics_has_its_tasks_woken() {
        let order = Arc::new(Mutex::new(Vec::new()));
        let task = Waker::from(Arc::new(Noted(2, Arc::clone(&order))));
        let work = || {
            drop(Woken::from_iter([task]));
            panic!("this panic is part of a test");
        };
        let caught = catch_unwind(AssertUnwindSafe(|| drop(Woken::held_by(work))));
        assert!(caught.is_err());
        assert_eq!(*order.lock().unwrap(), [2]);
        assert!(HELD.with_borrow(Option::is_none));
    }
}
