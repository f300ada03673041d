//! Threads of a round that all start, or none of them.
//!
//! The system may refuse a thread. Threads that started before it would wait for it: at a meeting,
//! or for the end that it tells them of. So no member of a crew begins before all have started, and
//! those of a crew that never goes end without having done anything.

use std::panic::resume_unwind;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{Builder, Scope, ScopedJoinHandle};

use super::ExperimentError;

/// Threads of a scope that wait for [`Crew::go`].
#[derive(Debug)]
pub(super) struct Crew<'scope, 'env> {
    scope: &'scope Scope<'scope, 'env>,
    gate: Arc<Gate>,
}

/// A thread of a crew.
#[derive(Debug)]
pub(super) struct Hand<'scope, T>(ScopedJoinHandle<'scope, Option<T>>);

/// Where threads wait until it is known whether all of them started.
#[derive(Debug, Default)]
struct Gate {
    start: Mutex<Start>,
    changed: Condvar,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Start {
    #[default]
    Awaited,
    Given,
    Cancelled,
}

impl<'scope, 'env> Crew<'scope, 'env> {
    pub(super) fn new(scope: &'scope Scope<'scope, 'env>) -> Self {
        Self {
            scope,
            gate: Arc::default(),
        }
    }

    /// Starts a thread that does `work` after [`Self::go`].
    ///
    /// # Errors
    ///
    /// When the system refuses the thread. The others end when the crew is dropped.
    pub(super) fn start<T: Send + 'scope>(
        &self,
        work: impl FnOnce() -> T + Send + 'scope,
    ) -> Result<Hand<'scope, T>, ExperimentError> {
        let gate = Arc::clone(&self.gate);
        let member = move || gate.is_given().then(work);
        let thread = Builder::new().spawn_scoped(self.scope, member);
        thread.map(Hand).map_err(ExperimentError::Thread)
    }

    /// Lets the threads begin.
    pub(super) fn go(self) {
        self.gate.decide(Start::Given);
    }
}

impl Drop for Crew<'_, '_> {
    fn drop(&mut self) {
        self.gate.decide(Start::Cancelled);
    }
}

impl<T> Hand<'_, T> {
    /// The result of the thread's work.
    ///
    /// # Panics
    ///
    /// With the thread's own panic, or if its crew never went.
    pub(super) fn join(self) -> T {
        match self.0.join() {
            Ok(result) => result.expect("the crew has gone"),
            Err(panic) => resume_unwind(panic),
        }
    }
}

impl Gate {
    /// Waits for the decision.
    fn is_given(&self) -> bool {
        let start = self.start.lock().unwrap_or_else(PoisonError::into_inner);
        let start = self
            .changed
            .wait_while(start, |start| *start == Start::Awaited);
        *start.unwrap_or_else(PoisonError::into_inner) == Start::Given
    }

    /// Decides, unless that was done before.
    fn decide(&self, decision: Start) {
        let mut start = self.start.lock().unwrap_or_else(PoisonError::into_inner);
        if *start == Start::Awaited {
            *start = decision;
            self.changed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::thread;

    use super::*;

    /// Goal: threads begin when all have started, and hand their results back.
    #[test]
    fn a_crew_goes_when_it_is_whole() {
        let begun = AtomicU32::new(0);
        let sum = thread::scope(|scope| {
            let crew = Crew::new(scope);
            let begin = || begun.fetch_add(1, Ordering::Relaxed);
            let hands: Vec<_> = (0..3).map(|_| crew.start(begin).unwrap()).collect();
            assert_eq!(begun.load(Ordering::Relaxed), 0);
            crew.go();
            hands.into_iter().map(Hand::join).sum::<u32>()
        });
        assert_eq!((sum, begun.into_inner()), (3, 3));
    }

    /// Goal: threads of a crew that does not become whole end, and do nothing. Method: give up
    /// after two; the scope would wait for ever.
    #[test]
    fn a_crew_that_is_not_whole_does_nothing() {
        let begun = AtomicU32::new(0);
        thread::scope(|scope| {
            let crew = Crew::new(scope);
            for _ in 0..2 {
                crew.start(|| begun.fetch_add(1, Ordering::Relaxed))
                    .unwrap();
            }
        });
        assert_eq!(begun.into_inner(), 0);
    }
}
