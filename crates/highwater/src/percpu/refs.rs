//! Per-CPU reference counts (`percpu_ref`): counted on each CPU, and in one place after the owner
//! is gone.
//!
//! An `Arc` writes one count at each clone and drop, whichever CPU they are on. A value that is
//! kept alive by handles which come and go on all CPUs, such as a tree of groups by the charges to
//! it, is better served by a count for each CPU. Such counts cannot detect when their sum becomes
//! zero, and need not as long as an *owner* keeps the value alive.
//!
//! ```text
//! counts[cpu] = references made here - references dropped here, and whether it is closed
//! central     = BIAS                              while the owner lives
//!             = references                        afterwards
//! ```
//!
//! **Invariant.** While the owner lives, `sum(counts)` is the number of references, and the value
//! stays. The owner's end closes each count, and adds their sum, less the bias, to `central`; a
//! thread that finds a count closed counts in `central`. So at each moment the counts that are not
//! closed, and `central` less the remaining bias and closed counts not added yet, sum to the number
//! of references. The bias exceeds the possible number of references, so that `central` reaches
//! zero once: when the owner is gone and no reference is left. The thread that brings it there
//! frees the value.
//!
//! **Orderings.** A count is stepped as any [`Gated`] word: a plain addition on its own CPU, which
//! releases its thread's uses of the value. The owner raises the gate for good, and closes the
//! count by a locked instruction after the membarrier, which acquires that. So the plain addition
//! checks the gate alone, and the other ways check the mark. Each step of `central` acquires and
//! releases.
//!
//! **Failure modes.** Where the system refuses the membarrier that it granted before, and its
//! substitute, the counts stay open and the value is never dropped.
//!
//! Source: the kernel's `percpu_ref` (`lib/percpu-refcount.c`): mode switch, bias.
//! Deviation: it switches after a grace period; here a step checks a gate, and the only wait is a
//! membarrier.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
use std::ptr::NonNull;

use super::{Gated, Gates, Raised};
use crate::sync::CachePadded;
use crate::sync::atomic::{AtomicI64, Ordering};

/// Set in a count that is closed; the count itself is above.
const CLOSED: u64 = 1;
/// More than the possible number of references: each takes at least a byte of the address space, or
/// is leaked, of which a thousand million a second would take a century.
const BIAS: i64 = 1 << 62;

struct Inner<T> {
    gates: Gates,
    counts: Box<[CachePadded<Gated>]>,
    /// Written by: the owner's end; references made and dropped after that (all by addition). Read
    /// by: the same. Publishes: that the value is no longer used.
    central: AtomicI64,
    /// Counts owner and references where the model checker does not look: for models of other
    /// things, which would have many more interleavings otherwise. Its threads are not interrupted
    /// between two steps of this cell.
    #[cfg(loom)]
    unseen: Option<crate::sync::StatCell>,
    value: T,
}

/// Keeps a value as long as it lives; references to it may live longer.
pub(crate) struct PercpuOwner<T> {
    inner: NonNull<Inner<T>>,
    /// Drops a `T`.
    owns: PhantomData<Inner<T>>,
}

/// A reference to the value of a [`PercpuOwner`]. Cloning and dropping it writes a count of the
/// CPU.
pub(crate) struct PercpuRef<T> {
    inner: NonNull<Inner<T>>,
    /// Drops a `T`, if it is the last.
    owns: PhantomData<Inner<T>>,
}

/// A reference to two parts of the value of a [`PercpuOwner`]: the one that it is used for, and one
/// *beside* it.
pub(crate) struct PercpuView<T, U, B> {
    whole: PercpuRef<T>,
    /// Borrowed from the value, which stays where it is while `whole` lives.
    part: NonNull<U>,
    /// As `part`.
    beside: NonNull<B>,
}

impl<T> PercpuOwner<T> {
    /// Returns the owner of `value`; references are counted in words of `gates`.
    pub(crate) fn new(gates: Gates, value: T) -> Self {
        let count = |index| CachePadded::new(gates.word(index, 0));
        let counts = (0..gates.nr_words()).map(count);
        let inner = Box::new(Inner {
            gates,
            counts: counts.collect(),
            central: AtomicI64::new(BIAS),
            #[cfg(loom)]
            unseen: None,
            value,
        });
        Self {
            inner: NonNull::from(Box::leak(inner)),
            owns: PhantomData,
        }
    }

    /// Like [`new`](Self::new), in models of something else.
    #[cfg(loom)]
    pub(crate) fn unseen(value: T) -> Self {
        let unseen = crate::sync::StatCell::new();
        unseen.add(1);
        let inner = Box::new(Inner {
            gates: Gates::new(super::Regime::Atomic, 1),
            counts: Box::new([]),
            central: AtomicI64::new(BIAS),
            unseen: Some(unseen),
            value,
        });
        Self {
            inner: NonNull::from(Box::leak(inner)),
            owns: PhantomData,
        }
    }

    /// Returns another reference.
    #[inline]
    pub(crate) fn reference(&self) -> PercpuRef<T> {
        // SAFETY: this is the owner.
        unsafe { PercpuRef::to(self.inner) }
    }

    /// Returns the number of references, if none is made or dropped meanwhile.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn nr_references(&self) -> i64 {
        let counts = self.inner().counts.iter();
        counts.map(|count| count.load().cast_signed() >> 1).sum()
    }

    #[inline]
    fn inner(&self) -> &Inner<T> {
        // SAFETY: `new` made it from a box, and it is freed only after the owner's end.
        unsafe { self.inner.as_ref() }
    }
}

impl<T> Drop for PercpuOwner<T> {
    fn drop(&mut self) {
        // SAFETY: this is the owner.
        let is_last = unsafe { Inner::end_owner(self.inner) };
        if is_last {
            // SAFETY: the owner ends here, and it was the last of all.
            unsafe { free(self.inner) };
        }
    }
}

// As in `Arc`, the counting functions take the pointer, not a reference: from the step on that
// takes the last reference away, another thread may free the value, and a reference would have to
// be valid until the function returns. Each returns whether it took away the last of all, owner and
// references: its caller then frees the value.
impl<T> Inner<T> {
    /// Removes the owner's share, and counts references in one place from now on.
    ///
    /// # Safety
    ///
    /// The pointer came from a box in [`PercpuOwner::new`], and the owner lives.
    unsafe fn end_owner(inner: NonNull<Self>) -> bool {
        // SAFETY: the owner lives until the bias is taken from `central`, below.
        let this = unsafe { inner.as_ref() };
        #[cfg(loom)]
        if this.unseen.is_some() {
            // SAFETY: as above.
            return unsafe { Self::add(inner, -1) };
        }
        let Ok(raised) = Raised::try_new(this.counts.iter().map(|count| &**count)) else {
            // The last reference can no longer be detected: the value stays for ever.
            return false;
        };
        let mut sum = 0_i64;
        for open in raised.words() {
            let closed = open.step(&|count| Some(count | CLOSED));
            let count = closed.expect("closing is never refused");
            sum += count.cast_signed() >> 1;
        }
        raised.leave_up();
        Self::add_central(&this.central, sum - BIAS)
    }

    /// Adds or removes a reference.
    ///
    /// # Safety
    ///
    /// The pointer came from a box in [`PercpuOwner::new`]; the owner or a reference lives: when
    /// one is taken away, that one.
    // Always: the call would cost more than the count.
    #[inline(always)]
    unsafe fn add(inner: NonNull<Self>, delta: i64) -> bool {
        // SAFETY: the caller's promise: it is not freed before this has counted.
        let this = unsafe { inner.as_ref() };
        #[cfg(loom)]
        if let Some(unseen) = &this.unseen {
            unseen.add(delta.cast_unsigned());
            return unseen.get() == 0;
        }
        // The gate is down while the owner lives: the plain addition is never the last of all.
        let is_counted = this.gates.try_add(&this.counts, steps(delta));
        // SAFETY: the caller's promise; nothing was counted yet.
        !is_counted && unsafe { Self::add_slowly(inner, delta) }
    }

    /// Continues when a plain store was not possible. A reference that is dropped must not touch
    /// the counts once it has been taken away; so it raises no gate, and counts in the extra word.
    ///
    /// # Safety
    ///
    /// As [`add`](Self::add).
    #[inline(never)]
    unsafe fn add_slowly(inner: NonNull<Self>, delta: i64) -> bool {
        // SAFETY: the caller's promise: it is not freed before this has counted.
        let this = unsafe { inner.as_ref() };
        let here = || this.gates.here();
        let count = &this.counts[this.gates.extra().unwrap_or_else(here)];
        let stepped = count.step_near(&|count| added(count, delta));
        match stepped.expect("no CPU owns the extra word, or words of the atomic regime") {
            Ok(_) => false,
            Err(_) => Self::add_central(&this.central, delta),
        }
    }

    /// Counts in one place. The caller's own reference, or ownership, is among those taken away, or
    /// there are others.
    fn add_central(central: &AtomicI64, delta: i64) -> bool {
        // AcqRel. Pairs with itself: the thread that frees the value is ordered after all uses of
        // it by others.
        let before = central.fetch_add(delta, Ordering::AcqRel);
        let after = before.wrapping_add(delta);
        debug_assert!(after >= 0, "more references were dropped than made");
        after == 0
    }
}

/// Frees a value and its counts, through the pointer from the box.
///
/// # Safety
///
/// The pointer came from a box in [`PercpuOwner::new`], the owner is gone and no reference is left:
/// the caller took away the last of all, which happens once.
#[cold]
#[inline(never)]
unsafe fn free<T>(inner: NonNull<Inner<T>>) {
    // SAFETY: the caller's promise: no thread uses it, and no other thread comes here.
    drop(unsafe { Box::from_raw(inner.as_ptr()) });
}

/// Returns the count after `delta`, unless it is closed.
#[inline]
fn added(count: u64, delta: i64) -> Option<u64> {
    let is_open = count & CLOSED == 0;
    is_open.then(|| count.wrapping_add(steps(delta)))
}

/// Returns the change of a count for `delta` references.
#[inline]
fn steps(delta: i64) -> u64 {
    (delta << 1).cast_unsigned()
}

impl<T> PercpuRef<T> {
    /// Returns another reference to the value at `inner`.
    ///
    /// # Safety
    ///
    /// It came from a box in [`PercpuOwner::new`], and an owner or a reference lives.
    #[inline]
    unsafe fn to(inner: NonNull<Inner<T>>) -> Self {
        // SAFETY: the caller's promise.
        let is_last = unsafe { Inner::add(inner, 1) };
        debug_assert!(!is_last, "one more is not the last");
        Self {
            inner,
            owns: PhantomData,
        }
    }

    #[inline]
    fn counted(&self) -> &Inner<T> {
        // SAFETY: this reference is counted, so that the value is not freed.
        unsafe { self.inner.as_ref() }
    }

    /// Returns a reference to the parts of the value that `find` returns.
    #[inline]
    pub(crate) fn view<U, B>(
        self,
        find: impl for<'a> FnOnce(&'a T) -> (&'a U, &'a B),
    ) -> PercpuView<T, U, B> {
        let (part, beside) = find(&self);
        let (part, beside) = (NonNull::from(part), NonNull::from(beside));
        PercpuView {
            whole: self,
            part,
            beside,
        }
    }
}

impl<T> Clone for PercpuRef<T> {
    #[inline]
    fn clone(&self) -> Self {
        // SAFETY: this reference is counted.
        unsafe { Self::to(self.inner) }
    }
}

impl<T> Drop for PercpuRef<T> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: this reference is counted until this takes it away.
        let is_last = unsafe { Inner::add(self.inner, -1) };
        if is_last {
            // SAFETY: the reference ends here, and it was the last of all.
            unsafe { free(self.inner) };
        }
    }
}

impl<T, U, B> PercpuView<T, U, B> {
    /// Returns the whole value.
    #[inline]
    pub(crate) fn whole(&self) -> &PercpuRef<T> {
        &self.whole
    }

    /// Returns the part beside.
    #[inline]
    pub(crate) fn beside(&self) -> &B {
        // SAFETY: as in `deref`.
        unsafe { self.beside.as_ref() }
    }

    /// Returns a reference to a part of the part, if `find` returns one, with the same part beside.
    /// `find` gets the number of the CPU that the thread seems to run on, if threads of that CPU
    /// step its words by plain stores; otherwise it is not called.
    // Always: it is a charge's fast path.
    #[inline(always)]
    pub(crate) fn narrow_here<V>(
        &self,
        find: impl for<'a> FnOnce(&'a U, usize) -> Option<&'a V>,
    ) -> Option<PercpuView<T, V, B>> {
        let part = NonNull::from(self.find_here(find)?);
        Some(PercpuView {
            part,
            beside: self.beside,
            whole: self.whole.clone(),
        })
    }

    /// Returns a part of the part, if `find` returns one; see [`narrow_here`](Self::narrow_here).
    // Always: as there.
    #[inline(always)]
    pub(crate) fn find_here<'a, V>(
        &'a self,
        find: impl FnOnce(&'a U, usize) -> Option<&'a V>,
    ) -> Option<&'a V> {
        let own = self.whole.counted().gates.own()?;
        find(self, own)
    }

    /// Returns a reference to a part of the part, with the same part beside.
    #[inline]
    pub(crate) fn narrow<V>(
        &self,
        find: impl for<'a> FnOnce(&'a U) -> &'a V,
    ) -> PercpuView<T, V, B> {
        PercpuView {
            part: NonNull::from(find(self)),
            beside: self.beside,
            whole: self.whole.clone(),
        }
    }

    /// Makes this refer to another part of the value.
    #[inline]
    pub(crate) fn turn(&mut self, find: impl for<'a> FnOnce(&'a T) -> &'a U) {
        self.part = NonNull::from(find(&self.whole));
    }
}

impl<T> Deref for PercpuOwner<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.inner().value
    }
}

impl<T> Deref for PercpuRef<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.counted().value
    }
}

impl<T, U, B> Deref for PercpuView<T, U, B> {
    type Target = U;

    #[inline]
    fn deref(&self) -> &U {
        // SAFETY: `find` was given the value for any lifetime, so that what it returned is valid as
        // long as the value is borrowed. Until it is freed, which `whole` prevents, there are
        // shared borrows only, and it does not move.
        unsafe { self.part.as_ref() }
    }
}

impl<T, U, B> Clone for PercpuView<T, U, B> {
    #[inline]
    fn clone(&self) -> Self {
        Self {
            whole: self.whole.clone(),
            part: self.part,
            beside: self.beside,
        }
    }
}

// SAFETY: the owner gives any thread shared references, and the last one of them drops the value
// on whichever thread it is.
unsafe impl<T: Send + Sync> Send for PercpuOwner<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Sync for PercpuOwner<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Send for PercpuRef<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Sync for PercpuRef<T> {}
// SAFETY: as above; of the parts it hands out shared references only.
unsafe impl<T: Send + Sync, U: Sync, B: Sync> Send for PercpuView<T, U, B> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync, U: Sync, B: Sync> Sync for PercpuView<T, U, B> {}

impl<T: fmt::Debug> fmt::Debug for PercpuOwner<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PercpuOwner").field(&**self).finish()
    }
}

impl<T: fmt::Debug> fmt::Debug for PercpuRef<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PercpuRef").field(&**self).finish()
    }
}

impl<T, U: fmt::Debug, B> fmt::Debug for PercpuView<T, U, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PercpuView").field(&**self).finish()
    }
}

#[cfg(all(test, loom))]
mod loom {
    use super::*;
    use crate::percpu::Regime;
    use crate::percpu::model::run_on;
    use crate::sync::atomic::AtomicU64;
    use crate::sync::{Arc, thread};
    use crate::units::CpuId;

    /// Counts how often it is dropped.
    struct Noted(Arc<AtomicU64>);

    impl Drop for Noted {
        fn drop(&mut self) {
            // Relaxed: read after the threads have ended, or as a lower bound.
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    // Goal: the value is dropped once, and not before the owner and every reference. Method: the
    // owner ends while one thread clones and drops, and another drops; all interleavings of the
    // counts.
    #[test]
    fn the_value_goes_with_the_last_of_all() {
        ::loom::model(|| {
            let drops = Arc::new(AtomicU64::new(0));
            let gates = Gates::new(Regime::Atomic, 1);
            let owner = PercpuOwner::new(gates, Noted(Arc::clone(&drops)));
            let (one, two) = (owner.reference(), owner.reference());
            let cloner = thread::spawn(move || {
                let clone = one.clone();
                drop(one);
                // Relaxed: nothing was dropped in this thread's past.
                assert_eq!(clone.0.load(Ordering::Relaxed), 0);
            });
            let dropper = thread::spawn(move || drop(two));
            drop(owner);
            cloner.join().expect("the model's thread ends");
            dropper.join().expect("the model's thread ends");
            // Relaxed: the threads have ended.
            assert_eq!(drops.load(Ordering::Relaxed), 1);
        });
    }

    // Goal: the same where each CPU counts by plain stores. Method: a part of the value is referred
    // to on one CPU while the reference that it came from is dropped there, a reference is dropped
    // on another CPU or on none that is known, and the owner ends, which closes the counts of both.
    #[test]
    fn plain_counts_of_two_cpus_lose_no_reference() {
        for dropped_on in [CpuId(0), CpuId(1), CpuId(9)] {
            ::loom::model(move || {
                let drops = Arc::new(AtomicU64::new(0));
                let gates = Gates::new(Regime::Restartable, 2);
                run_on(CpuId(1));
                let owner = PercpuOwner::new(gates, Noted(Arc::clone(&drops)));
                let (one, two) = (owner.reference(), owner.reference());
                let narrower = thread::spawn(move || {
                    run_on(CpuId(0));
                    let view = one.view(|noted| (noted, &noted.0));
                    let part = view.narrow_here(|noted, own| (own == 0).then_some(&noted.0));
                    drop(view);
                    let part = part.expect("it runs on CPU 0");
                    // Relaxed: nothing was dropped in this thread's past.
                    assert_eq!(part.load(Ordering::Relaxed), 0);
                });
                let dropper = thread::spawn(move || {
                    run_on(dropped_on);
                    drop(two);
                });
                drop(owner);
                narrower.join().expect("the model's thread ends");
                dropper.join().expect("the model's thread ends");
                // Relaxed: the threads have ended.
                assert_eq!(drops.load(Ordering::Relaxed), 1);
            });
        }
    }
}
