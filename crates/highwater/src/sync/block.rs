//! Waiting for a future on a thread, without a runtime.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Instant;

use super::lock::{Condvar, LockClass, Mutex, Rank};

static SIGNAL: LockClass = LockClass::new("blocked thread", Rank::Leaf);

/// Wakes one blocked thread.
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
    /// Waits to be woken; false when the deadline passed first.
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

/// Parks the thread until `future` is ready: its output, or `None` when the deadline passed first. Polls
/// at least once.
pub fn block_on<F: Future>(future: F, deadline: Option<Instant>) -> Option<F::Output> {
    let signal = Arc::new(Signal {
        is_woken: Mutex::new(&SIGNAL, false),
        bell: Condvar::new(),
    });
    let waker = Waker::from(Arc::clone(&signal));
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return Some(output);
        }
        if !signal.wait(deadline) {
            return None;
        }
    }
}
