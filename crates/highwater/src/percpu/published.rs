//! [`Published`]: a box that is published once (a lock-free `OnceLock`), and stays until its place
//! is dropped.
//!
//! Like the standard library's `OnceLock`, for values whose construction may fail and whose
//! constructors must not wait for each other: each thread brings its own, the first wins, and the
//! others' are dropped.
//!
//! **Protocol.** Publisher: constructs the value, then exchanges null for its address. Reader:
//! loads the address; if not null, it stays valid for as long as the place is borrowed. A reader
//! that finds null comes before the publication in the one order of `SeqCst`.

use std::fmt;
use std::marker::PhantomData;
use std::ptr;

use crate::sync::atomic::{AtomicPtr, Ordering};

/// A place for one box.
pub(crate) struct Published<T> {
    /// Written by: the first publisher, once. Read by: any thread. Publishes: the value.
    address: AtomicPtr<T>,
    /// Owns a `T`.
    owns: PhantomData<Box<T>>,
}

impl<T> Published<T> {
    pub(crate) fn empty() -> Self {
        Self {
            address: AtomicPtr::new(ptr::null_mut()),
            owns: PhantomData,
        }
    }

    /// Returns the value, if one was published.
    #[inline]
    pub(crate) fn get(&self) -> Option<&T> {
        // Pairs with `try_publish`. SeqCst: a pass over token words (`group::state::slot`) that
        // finds none must come before the first step of one; acquire and release would let it miss
        // one.
        let address = self.address.load(Ordering::SeqCst);
        // SAFETY: an address that is not null came from a box in `try_publish`, whose contents this
        // makes visible. Only `take` takes it back, which cannot run while `&self` lives;
        // until then there are only shared references.
        unsafe { address.as_ref() }
    }

    /// Prefetches the first two lines of the value, if one was published.
    #[inline]
    pub(crate) fn prefetch(&self) {
        #[cfg(all(target_arch = "x86_64", not(any(loom, miri))))]
        {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            // Relaxed: nothing is read through the address.
            let first = self.address.load(Ordering::Relaxed).cast::<i8>();
            // SAFETY: a prefetch is a hint for any address, valid or not.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(first) };
            // SAFETY: as above.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(first.wrapping_add(64)) };
        }
    }

    /// Publishes `value` if nothing was published before, otherwise drops it. Returns the published
    /// value.
    pub(crate) fn publish(&self, value: Box<T>) -> &T {
        drop(self.try_publish(value));
        self.get().expect("a value was published here or before")
    }

    /// Publishes `value` if nothing was published before, otherwise gives it back.
    pub(crate) fn try_publish(&self, value: Box<T>) -> Result<(), Box<T>> {
        let mine = Box::into_raw(value);
        // Pairs with `get`, which sees the whole value; SeqCst as there.
        let (null, success) = (ptr::null_mut(), Ordering::SeqCst);
        // Relaxed on failure: `get` loads it again.
        let won = self
            .address
            .compare_exchange(null, mine, success, Ordering::Relaxed);
        // SAFETY: the address comes from the box above, and no other thread knows it.
        won.map(drop).map_err(|_| unsafe { Box::from_raw(mine) })
    }

    /// Takes the value back, if one was published.
    pub(crate) fn take(&mut self) -> Option<Box<T>> {
        // Relaxed, both: `&mut self` is ordered after every use.
        let address = self.address.load(Ordering::Relaxed);
        self.address.store(ptr::null_mut(), Ordering::Relaxed);
        // SAFETY: the address comes from a box in `try_publish`, and references to it have ended;
        // it is not there any more.
        (!address.is_null()).then(|| unsafe { Box::from_raw(address) })
    }
}

impl<T> Drop for Published<T> {
    fn drop(&mut self) {
        drop(self.take());
    }
}

// SAFETY: the place owns its value as a box does, and moving it moves the value.
unsafe impl<T: Send> Send for Published<T> {}
// SAFETY: any thread may read the value through the place, and any may publish one that another
// then drops.
unsafe impl<T: Send + Sync> Sync for Published<T> {}

impl<T: fmt::Debug> fmt::Debug for Published<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Published").field(&self.get()).finish()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::sync::atomic::AtomicU32;

    /// A value that counts its drop.
    #[derive(Debug)]
    struct Counted<'a> {
        number: usize,
        drops: &'a [AtomicU32],
    }

    impl Drop for Counted<'_> {
        fn drop(&mut self) {
            self.drops[self.number].fetch_add(1, Ordering::SeqCst);
        }
    }

    // Goal: the first value stays until its place is dropped, every thread sees it and no other,
    // and the values of all other threads are dropped at once, each of them once. Method: threads
    // that publish at the same moment, again and again; all drops are counted.
    #[test]
    fn of_all_values_the_first_stays_and_the_others_are_dropped() {
        const THREADS: usize = 4;
        for _ in 0..200 {
            let drops = [const { AtomicU32::new(0) }; THREADS];
            let place = Published::empty();
            assert!(place.get().is_none());
            let barrier = std::sync::Barrier::new(THREADS);
            let publish = |number| {
                let value = Box::new(Counted {
                    number,
                    drops: &drops,
                });
                barrier.wait();
                let published = place.publish(value).number;
                (published, place.get().map(|value| value.number))
            };
            let seen: Vec<_> = std::thread::scope(|scope| {
                let spawn = |number| scope.spawn(move || publish(number));
                let threads: [_; THREADS] = std::array::from_fn(spawn);
                threads
                    .map(|thread| thread.join().expect("no panic"))
                    .into()
            });
            let first = seen[0].0;
            assert!(
                seen.iter().all(|&pair| pair == (first, Some(first))),
                "{seen:?}"
            );
            let nr_drops = || drops.each_ref().map(|count| count.load(Ordering::SeqCst));
            let mut expected = [1; THREADS];
            expected[first] = 0;
            assert_eq!(nr_drops(), expected);
            drop(place);
            assert_eq!(nr_drops(), [1; THREADS]);
        }
    }

    // Goal: a value that comes second is given back as it was. Method: its address.
    #[test]
    fn a_value_that_comes_second_is_given_back() {
        let place = Published::empty();
        assert!(place.try_publish(Box::new(5)).is_ok());
        let second = Box::new(6);
        let address = &raw const *second;
        let back = place.try_publish(second).unwrap_err();
        assert_eq!((*back, &raw const *back), (6, address));
        assert_eq!((place.get(), place.publish(back)), (Some(&5), &5));
    }
}
