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
