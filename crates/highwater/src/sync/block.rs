//! Blocking a thread on a future, without a runtime.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Instant;

use super::lock::{Condvar, LockClass, Mutex, Rank};

static SIGNAL: LockClass = LockClass::new("blocked thread", Rank::Leaf);

/// Wakes one blocked thread.
#[derive(Debug)]
struct Signal {
    is_woken: Mutex<bool>,
    bell: Condvar,
}

impl Wake for Signal {
    fn wake(self: Arc<Self>) {
        *self.is_woken.lock() = true;
        self.bell.notify_one();
    }
}

impl Signal {
    /// Waits for a wake-up; returns false if the deadline passed first.
    fn wait(&self, deadline: Option<Instant>) -> bool {
        let mut is_woken = self.is_woken.lock();
        while !*is_woken {
            let Some(deadline) = deadline else {
                self.bell.wait(&mut is_woken);
                continue;
            };
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            self.bell.wait_for(&mut is_woken, left);
        }
        *is_woken = false;
        true
    }
}

/// Parks one thread between its polls of a future.
#[derive(Debug)]
pub(crate) struct Parker {
    signal: Arc<Signal>,
    waker: Waker,
}

impl Parker {
    pub(crate) fn new() -> Self {
        let signal = Arc::new(Signal {
            is_woken: Mutex::new(&SIGNAL, false),
            bell: Condvar::new(),
        });
        let waker = Waker::from(Arc::clone(&signal));
        Self { signal, waker }
    }

    /// Returns the context for polls: its waker ends [`park`](Self::park).
    pub(crate) fn context(&self) -> Context<'_> {
        Context::from_waker(&self.waker)
    }

    /// Parks until a wake-up since the last call; returns false if the deadline passed first.
    pub(crate) fn park(&self, deadline: Option<Instant>) -> bool {
        self.signal.wait(deadline)
    }
}

/// Blocks the thread until `future` is ready; returns its output, or `None` if the deadline passed
/// first. Polls at least once.
pub fn block_on<F: Future>(future: F, deadline: Option<Instant>) -> Option<F::Output> {
    let parker = Parker::new();
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut parker.context()) {
            return Some(output);
        }
        if !parker.park(deadline) {
            return None;
        }
    }
}
