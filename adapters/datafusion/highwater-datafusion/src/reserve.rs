//! The bytes of a pool that was admitted with a reserve: the reserve stays charged, and only what
//! exceeds it is charged and uncharged.
//!
//! **Invariant.** `charged = max(used, reserve)`, but for calls in progress, which hold more. A
//! growing call charges the difference first and counts then; a shrinking call counts first and
//! uncharges then. Each counts by a compare and exchange, so that the differences of all calls sum
//! to the difference between the first and the last count.
//!
//! The end of the reserve counts it as used, and uncharges what of it was not. From then on no call
//! finds any of it free, and `charged = used`: the count less the former reserve.
//!
//! `tests/loom/reserves.rs` is a model of all that.

use crate::slot::Active;
use crate::sync::{AtomicU64, Ordering};

/// The used bytes of a pool with a reserve.
#[derive(Debug)]
pub(crate) struct Reserve {
    reserve: u64,
    /// The reserve; nothing once it has ended.
    /// Written by: `end`. Read by: `used`, fairness. Publishes: nothing.
    left: AtomicU64,
    /// The used bytes, and the reserve once it has ended.
    /// Written by: growing and shrinking calls, `end`. Read by: the same, `used`. Publishes:
    /// nothing.
    counted: AtomicU64,
    /// The query's consumers that can spill and hold memory.
    pub(crate) active: Active,
}

/// What is charged for this count, and the reserve once it has ended.
const fn charged(counted: u64, reserve: u64) -> u64 {
    if counted > reserve { counted } else { reserve }
}

impl Reserve {
    /// Returns the count of a pool whose `reserve` is charged already.
    pub(crate) fn new(reserve: u64) -> Self {
        Self {
            reserve,
            left: AtomicU64::new(reserve),
            counted: AtomicU64::new(0),
            active: Active::default(),
        }
    }

    /// Returns whether a consumer that can spill and has `of_consumer` bytes may have `bytes` more
    /// of the first `ceiling` bytes of the reserve: anything of the first half, and then an equal
    /// part with the `active` ones that hold any.
    pub(crate) fn may_have(&self, of_consumer: u64, bytes: u64, ceiling: u64, active: u64) -> bool {
        let used = self.used().saturating_add(bytes);
        let share = || ceiling / active.max(1);
        used <= ceiling / 2 || used <= ceiling && of_consumer.saturating_add(bytes) <= share()
    }

    /// Returns the used bytes; off by up to the reserve beside the call that ends it.
    pub(crate) fn used(&self) -> u64 {
        // Relaxed: a number by itself.
        let counted = self.counted.load(Ordering::Relaxed);
        counted.saturating_sub(self.reserve - self.bytes())
    }

    /// Returns the part of the reserve that is not used.
    pub(crate) fn unused(&self) -> u64 {
        self.bytes().saturating_sub(self.used())
    }

    /// Returns the reserve; nothing once it has ended.
    pub(crate) fn bytes(&self) -> u64 {
        // Relaxed: a number by itself.
        self.left.load(Ordering::Relaxed)
    }

    /// Counts `bytes` more. `charge` charges what exceeds the reserve; `uncharge` returns what
    /// other calls made superfluous meanwhile.
    pub(crate) fn grow<E>(
        &self,
        bytes: u64,
        charge: impl Fn(u64) -> Result<(), E>,
        uncharge: impl Fn(u64),
    ) -> Result<(), E> {
        // Relaxed, here and below: a number by itself. The charge itself orders nothing either.
        let mut counted = self.counted.load(Ordering::Relaxed);
        let mut got = 0;
        loop {
            let after = counted.saturating_add(bytes);
            let need = charged(after, self.reserve) - charged(counted, self.reserve);
            if need > got {
                if let Err(refusal) = charge(need - got) {
                    return_all(got, &uncharge);
                    return Err(refusal);
                }
                got = need;
            }
            let (set, failed) = (Ordering::Relaxed, Ordering::Relaxed);
            match self
                .counted
                .compare_exchange_weak(counted, after, set, failed)
            {
                Ok(_) => {
                    return_all(got - need, &uncharge);
                    return Ok(());
                }
                Err(now) => counted = now,
            }
        }
    }

    /// Counts `bytes` less, and uncharges what exceeded the reserve.
    ///
    /// # Panics
    ///
    /// When fewer bytes are used, and the reserve has not ended.
    pub(crate) fn shrink(&self, bytes: u64, uncharge: impl Fn(u64)) {
        let less = |counted: u64| counted.checked_sub(bytes);
        // Relaxed: as in `grow`.
        let before = self
            .counted
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less)
            .unwrap_or_else(|used| panic!("{bytes} bytes are returned, and {used} are used"));
        let surplus = charged(before, self.reserve) - charged(before - bytes, self.reserve);
        return_all(surplus, &uncharge);
    }

    /// Ends the reserve, once: uncharges what of it is not used. What is used stays charged until
    /// it is returned.
    pub(crate) fn end(&self, uncharge: impl Fn(u64)) {
        // Relaxed: as in `grow`.
        let ended = self.left.swap(0, Ordering::Relaxed);
        let used = self.counted.fetch_add(ended, Ordering::Relaxed);
        return_all(ended.saturating_sub(used), &uncharge);
    }
}

fn return_all(bytes: u64, uncharge: &impl Fn(u64)) {
    if bytes > 0 {
        uncharge(bytes);
    }
}
