//! Data of the embedder, whose destructor is the embedder's code: it runs while its thread holds no
//! lock that it may take.
//!
//! Data go with the last handle of their group, which a thread may drop anywhere. A thread that
//! drops handles under a lock which the destructor may take as well, as one does that closes a
//! file, makes a [`KeptData`] before it takes the lock: the data wait until that is dropped.

use std::any::Any;
use std::cell::RefCell;
use std::marker::PhantomData;

/// Data as they are attached to a group.
pub(in crate::group) type Data = Box<dyn Any + Send + Sync>;

thread_local! {
    /// Number of `KeptData` of this thread, and the data that they keep.
    static KEPT: RefCell<(u32, Vec<Data>)> = const { RefCell::new((0, Vec::new())) };
}

/// Keeps the data of groups whose last handles this thread drops, until it is dropped itself.
pub(crate) struct KeptData {
    /// Not `Send`.
    of_thread: PhantomData<*const ()>,
}

impl KeptData {
    /// Keeps data from now on. To be called before the lock is taken, so that the lock is released
    /// first.
    pub(crate) fn new() -> Self {
        // A thread that ends keeps none.
        _ = KEPT.try_with(|kept| kept.borrow_mut().0 += 1);
        Self {
            of_thread: PhantomData,
        }
    }
}

impl Drop for KeptData {
    fn drop(&mut self) {
        let end = |kept: &RefCell<(u32, Vec<_>)>| {
            let mut kept = kept.borrow_mut();
            debug_assert!(kept.0 > 0, "each was counted when it was made");
            kept.0 -= 1;
            match kept.0 {
                0 => std::mem::take(&mut kept.1),
                _ => Vec::new(),
            }
        };
        // Dropped without the borrow: destructors may drop handles of further groups.
        drop(KEPT.try_with(end));
    }
}

/// Drops data, or leaves them to this thread's [`KeptData`].
pub(in crate::group) fn drop_data(data: Data) {
    let keep = |kept: &RefCell<(u32, Vec<_>)>| {
        let mut kept = kept.borrow_mut();
        if kept.0 == 0 {
            return Some(data);
        }
        kept.1.push(data);
        None
    };
    drop(KEPT.try_with(keep));
}
