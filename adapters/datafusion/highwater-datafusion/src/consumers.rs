//! What each consumer of a pool uses: for [fairness](crate::Fairness), and for the text of a
//! refusal.
//!
//! A consumer has a slot from its registration to its end. Slots are in a few tables, each eight
//! times as large as the one before, that are never freed before the pool. A consumer's number says
//! where its slot is in each, to within [`PROBES`]; so a call finds it without a lock, and in no
//! more steps if there are thousands of others. `split` and `take` move bytes between reservations
//! of one consumer without a call to the pool, so bytes are counted for a consumer and not for a
//! reservation.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use datafusion_execution::memory_pool::MemoryConsumer;
use highwater::Bytes;
use parking_lot::Mutex;

/// Slots of the first table. Chosen: a query of a few partitions has no second one.
const FIRST: usize = 32;

/// Tables: the last holds half a million slots. A consumer that finds none in any is not counted.
const TABLES: usize = 6;

/// Places of a table where a consumer's slot may be.
const PROBES: usize = 2;

/// Use of one consumer at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConsumerUse {
    /// As it was registered.
    pub name: String,
    /// Its number in this process.
    pub id: usize,
    /// Whether it can spill.
    pub can_spill: bool,
    /// What it has reserved now.
    pub bytes: Bytes,
    /// The most that it has had reserved.
    pub peak: Bytes,
}

/// The consumers of one pool.
#[derive(Debug, Default)]
pub(crate) struct Consumers {
    tables: [OnceLock<Box<[Slot]>>; TABLES],
}

/// One consumer's bytes, on a line of their own.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct Slot {
    /// The consumer's number plus one; 0 while the slot is free, which only a thread that has the
    /// lock of `named` changes.
    /// Written by: `claim`, `unregister`. Read by: every call. Publishes: that the bytes are 0.
    owner: AtomicUsize,
    /// Written by: calls for the consumer. Read by: fairness, texts. Publishes: nothing.
    bytes: AtomicU64,
    peak: AtomicU64,
    named: Mutex<(String, bool)>,
}

impl Consumers {
    /// Returns the slot of a consumer, if it has one.
    #[inline]
    pub(crate) fn find(&self, consumer: &MemoryConsumer) -> Option<&Slot> {
        let owner = consumer.id() + 1;
        let tables = self.tables.iter().map_while(OnceLock::get);
        tables
            .flat_map(|table| places(table, consumer))
            // Acquire. Pairs with: the release of `claim`.
            .find(|slot| slot.owner.load(Ordering::Acquire) == owner)
    }

    /// Gives a consumer a slot.
    pub(crate) fn register(&self, consumer: &MemoryConsumer) {
        let make = |nth: usize| (0..FIRST << (3 * nth)).map(|_| Slot::default()).collect();
        let mut tables = (0..TABLES).map(|nth| self.tables[nth].get_or_init(|| make(nth)));
        let _is_counted =
            tables.any(|table| places(table, consumer).any(|slot| slot.claim(consumer)));
    }

    /// Frees the slot of a consumer whose last reservation has ended.
    pub(crate) fn unregister(&self, consumer: &MemoryConsumer) {
        if let Some(slot) = self.find(consumer) {
            debug_assert_eq!(slot.bytes(), 0, "{} ended with bytes", consumer.name());
            // Release. Pairs with: the acquire of `claim`.
            slot.owner.store(0, Ordering::Release);
        }
    }

    /// Returns the consumers that have slots, those that use most first.
    pub(crate) fn uses(&self) -> Vec<ConsumerUse> {
        let mut uses: Vec<_> = self.slots().filter_map(Slot::its_use).collect();
        uses.sort_by_key(|it| (std::cmp::Reverse(it.bytes), it.id));
        uses
    }

    fn slots(&self) -> impl Iterator<Item = &Slot> {
        self.tables.iter().filter_map(OnceLock::get).flatten()
    }
}

/// Returns the places of a table where a consumer's slot may be.
#[inline]
fn places<'t>(table: &'t [Slot], consumer: &MemoryConsumer) -> impl Iterator<Item = &'t Slot> {
    debug_assert!(table.len().is_power_of_two(), "a mask selects a place");
    let (home, mask) = (consumer.id(), table.len() - 1);
    (0..PROBES).map(move |nth| &table[home.wrapping_add(nth) & mask])
}

// Relaxed: numbers by themselves.
impl Slot {
    /// Takes a free slot for a consumer; returns whether it was free.
    #[inline]
    fn claim(&self, consumer: &MemoryConsumer) -> bool {
        // A text that reads a slot just freed holds it for a moment: the consumer finds another.
        let Some(mut named) = self.named.try_lock() else {
            return false;
        };
        // Acquire. Pairs with: the release of `unregister`.
        if self.owner.load(Ordering::Acquire) != 0 {
            return false;
        }
        consumer.name().clone_into(&mut named.0);
        named.1 = consumer.can_spill();
        self.peak.store(0, Ordering::Relaxed);
        // Release. Pairs with: the acquire of `find`.
        self.owner.store(consumer.id() + 1, Ordering::Release);
        true
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Counts bytes more; returns whether there were none before.
    #[inline]
    pub(crate) fn add(&self, bytes: u64) -> bool {
        let before = self.bytes.fetch_add(bytes, Ordering::Relaxed);
        if before + bytes > self.peak.load(Ordering::Relaxed) {
            self.peak.fetch_max(before + bytes, Ordering::Relaxed);
        }
        before == 0
    }

    /// Counts bytes less; returns whether there are none now.
    #[inline]
    pub(crate) fn sub(&self, bytes: u64) -> bool {
        let before = self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        debug_assert!(before >= bytes, "{bytes} of {before} are returned");
        before == bytes
    }

    fn its_use(&self) -> Option<ConsumerUse> {
        // No other consumer claims the slot while it is locked.
        let named = self.named.lock();
        // Acquire. Pairs with: the release of `claim`.
        let id = self.owner.load(Ordering::Acquire).checked_sub(1)?;
        let (name, can_spill) = named.clone();
        let (bytes, peak) = (self.bytes(), self.peak.load(Ordering::Relaxed));
        drop(named);
        Some(ConsumerUse {
            name,
            id,
            can_spill,
            bytes: Bytes(bytes),
            peak: Bytes(peak),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Goal: slots are found by their consumers only, also beyond the first table, within a few
    // steps, and are used again.
    #[test]
    fn each_consumer_finds_its_own_slot() {
        const CONSUMERS: usize = 2_000;
        let consumers = Consumers::default();
        let all: Vec<_> = (0..CONSUMERS)
            .map(|nth| MemoryConsumer::new(format!("sort {nth}")).with_can_spill(true))
            .collect();
        let find = |nth: usize| consumers.find(&all[nth]).expect("registered");
        for nth in 0..CONSUMERS {
            assert!(consumers.find(&all[nth]).is_none());
            consumers.register(&all[nth]);
            find(nth).add(nth as u64);
        }
        let nr_slots = consumers.slots().count();
        assert_eq!(nr_slots, FIRST + 8 * FIRST + 64 * FIRST, "three tables");
        for nth in 0..CONSUMERS {
            assert_eq!(find(nth).bytes(), nth as u64);
        }
        let most = &consumers.uses()[0];
        assert_eq!(most.name, format!("sort {}", CONSUMERS - 1));
        assert_eq!(
            (most.bytes, most.can_spill),
            (Bytes(CONSUMERS as u64 - 1), true)
        );
        for (nth, consumer) in all.iter().enumerate() {
            find(nth).sub(nth as u64);
            consumers.unregister(consumer);
        }
        assert_eq!(consumers.uses(), []);
        all.iter().for_each(|consumer| consumers.register(consumer));
        assert_eq!(consumers.slots().count(), nr_slots, "slots are used again");
    }
}
