//! The bytes of a pool that was admitted with a reserve: the reserve stays charged, and only what
//! exceeds it is charged and uncharged.
//!
//! **Invariant.** `charged = max(used, reserve)`, but for calls in progress, which hold more. A
//! growing call charges the difference first and counts then; a shrinking call counts first and
//! uncharges then. Each counts by a compare and exchange, so that the differences of all calls sum
//! to the difference between the first and the last count.

use std::sync::atomic::{AtomicU64, Ordering};

/// The used bytes of a pool with a reserve.
#[derive(Debug)]
pub(crate) struct Reserve {
    reserve: u64,
    /// Written by: growing and shrinking calls. Read by: the same, `used`. Publishes: nothing.
    used: AtomicU64,
    /// The query's consumers that can spill and hold memory.
    /// Written by: calls that take the first byte or return the last. Read by: fairness.
    /// Publishes: nothing.
    active: AtomicU64,
}

/// What is charged for this many used bytes.
const fn charged(used: u64, reserve: u64) -> u64 {
    if used > reserve { used } else { reserve }
}

impl Reserve {
    /// Returns the count of a pool whose `reserve` is charged already.
    pub(crate) const fn new(reserve: u64) -> Self {
        Self {
            reserve,
            used: AtomicU64::new(0),
            active: AtomicU64::new(0),
        }
    }

    /// Counts a consumer that can spill and holds its first byte.
    pub(crate) fn add_active(&self) {
        // Relaxed: a number by itself.
        self.active.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a consumer that can spill and has returned its last byte.
    pub(crate) fn sub_active(&self) {
        // Relaxed: a number by itself.
        self.active.fetch_sub(1, Ordering::Relaxed);
    }

    /// Returns whether a consumer that can spill and has `of_consumer` bytes may have `bytes` more
    /// of the first `ceiling` bytes of the reserve: anything of the first half, and then an equal
    /// part with those that hold any.
    pub(crate) fn may_have(&self, of_consumer: u64, bytes: u64, ceiling: u64) -> bool {
        let used = self.used().saturating_add(bytes);
        // Relaxed: a number by itself.
        let share = || ceiling / self.active.load(Ordering::Relaxed).max(1);
        used <= ceiling / 2 || used <= ceiling && of_consumer.saturating_add(bytes) <= share()
    }

    pub(crate) fn used(&self) -> u64 {
        // Relaxed: a number by itself.
        self.used.load(Ordering::Relaxed)
    }

    /// Returns the part of the reserve that is not used.
    pub(crate) fn unused(&self) -> u64 {
        self.reserve.saturating_sub(self.used())
    }

    pub(crate) const fn bytes(&self) -> u64 {
        self.reserve
    }

    /// Counts `bytes` more. `charge` charges what exceeds the reserve; `uncharge` returns what
    /// other calls made superfluous meanwhile.
    pub(crate) fn grow<E>(
        &self,
        bytes: u64,
        charge: impl Fn(u64) -> Result<(), E>,
        uncharge: impl Fn(u64),
    ) -> Result<(), E> {
        let mut used = self.used();
        let mut got = 0;
        loop {
            let after = used.saturating_add(bytes);
            let need = charged(after, self.reserve) - charged(used, self.reserve);
            if need > got {
                if let Err(refusal) = charge(need - got) {
                    return_all(got, &uncharge);
                    return Err(refusal);
                }
                got = need;
            }
            // Relaxed: as in `used`. The charge itself orders nothing either.
            let (set, failed) = (Ordering::Relaxed, Ordering::Relaxed);
            match self.used.compare_exchange_weak(used, after, set, failed) {
                Ok(_) => {
                    return_all(got - need, &uncharge);
                    return Ok(());
                }
                Err(now) => used = now,
            }
        }
    }

    /// Counts `bytes` less, and uncharges what exceeded the reserve.
    ///
    /// # Panics
    ///
    /// When fewer bytes are used.
    pub(crate) fn shrink(&self, bytes: u64, uncharge: impl Fn(u64)) {
        let less = |used: u64| used.checked_sub(bytes);
        // Relaxed: as in `grow`.
        let before = self
            .used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less)
            .unwrap_or_else(|used| panic!("{bytes} bytes are returned, and {used} are used"));
        let surplus = charged(before, self.reserve) - charged(before - bytes, self.reserve);
        return_all(surplus, &uncharge);
    }
}

fn return_all(bytes: u64, uncharge: &impl Fn(u64)) {
    if bytes > 0 {
        uncharge(bytes);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicI64;

    use super::*;

    // Goal: what is charged is the larger of reserve and use, at each step and at the end, and
    // never less than that while calls are in progress. Method: four threads grow and shrink at
    // random; every charge and uncharge is counted, and compared with the uses that have ended.
    #[test]
    fn the_larger_of_reserve_and_use_is_charged() {
        const RESERVE: u64 = 1000;
        let reserve = Reserve::new(RESERVE);
        let total = AtomicI64::new(RESERVE.cast_signed());
        let change = |bytes: i64| _ = total.fetch_add(bytes, Ordering::SeqCst);
        let grow = |bytes| {
            reserve.grow(
                bytes,
                |more| match more {
                    0..500 => Ok(change(more.cast_signed())),
                    _ => Err(()),
                },
                |less| change(-less.cast_signed()),
            )
        };
        let shrink = |bytes| reserve.shrink(bytes, |less| change(-less.cast_signed()));
        std::thread::scope(|scope| {
            for seed in 0..4 {
                scope.spawn(move || {
                    let mut state = seed + 1_u64;
                    let mut held = 0;
                    for _ in 0..20_000 {
                        state = state.wrapping_mul(6364136223846793005).wrapping_add(1);
                        let bytes = (state >> 33) % 700;
                        if state >> 63 == 0 {
                            held += grow(bytes).map_or(0, |()| bytes);
                        } else {
                            let bytes = bytes.min(held);
                            shrink(bytes);
                            held -= bytes;
                        }
                    }
                    shrink(held);
                });
            }
        });
        assert_eq!(reserve.used(), 0);
        assert_eq!(total.into_inner(), RESERVE.cast_signed());
        let total = AtomicI64::new(0);
        let alone = Reserve::new(100);
        let charge = |more: u64| {
            total.fetch_add(more.cast_signed(), Ordering::SeqCst);
            Ok::<(), ()>(())
        };
        alone
            .grow(70, charge, |_| unreachable!())
            .expect("reserved");
        assert_eq!(total.load(Ordering::SeqCst), 0);
        alone.grow(70, charge, |_| unreachable!()).expect("granted");
        assert_eq!(total.load(Ordering::SeqCst), 40);
    }
}
