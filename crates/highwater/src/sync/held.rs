//! Latches that each thread holds, in debug builds: a thread that waits for one of them waits for
//! itself.

pub use noted::HeldLatch;

#[cfg(all(debug_assertions, not(loom)))]
mod noted {
    use std::cell::RefCell;

    use crate::sync::latch::Latch;

    thread_local! {
        static HELD: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
    }

    /// Notes that this thread holds a latch, until dropped.
    #[derive(Debug)]
    pub struct HeldLatch(usize);

    impl HeldLatch {
        /// Notes it.
        pub fn note(latch: &Latch) -> Self {
            let address = std::ptr::from_ref(latch).addr();
            // A thread-local handle may be dropped after this thread-local: then nothing is noted.
            let _ = HELD.try_with(|held| held.borrow_mut().push(address));
            Self(address)
        }

        /// Notes nothing: a task holds it, which moves between threads.
        pub const fn by_task() -> Self {
            Self(0)
        }

        /// Returns whether this thread holds the latch.
        pub fn is_noted(latch: &Latch) -> bool {
            let address = std::ptr::from_ref(latch).addr();
            HELD.try_with(|held| held.borrow().contains(&address))
                .unwrap_or(false)
        }
    }

    impl Drop for HeldLatch {
        fn drop(&mut self) {
            let _ = HELD.try_with(|held| {
                let mut held = held.borrow_mut();
                if let Some(at) = held.iter().rposition(|&address| address == self.0) {
                    held.swap_remove(at);
                }
            });
        }
    }
}

/// Release builds note nothing, nor do models, whose threads share a system thread.
#[cfg(any(not(debug_assertions), loom))]
mod noted {
    use crate::sync::latch::Latch;

    /// Notes nothing.
    #[derive(Debug)]
    pub struct HeldLatch;

    impl HeldLatch {
        /// Notes nothing.
        #[inline(always)]
        pub fn note(_: &Latch) -> Self {
            Self
        }
        /// Notes nothing.
        #[inline(always)]
        pub const fn by_task() -> Self {
            Self
        }
        /// Returns false.
        #[inline(always)]
        pub fn is_noted(_: &Latch) -> bool {
            false
        }
    }
}
