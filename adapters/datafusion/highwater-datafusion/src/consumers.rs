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

/// Tables: the last holds a million slots. A consumer that finds none in any is not counted.
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
    use std::collections::HashMap;
    use std::sync::atomic::AtomicBool;

    use super::*;

    /// Tables of two slots each, so that every consumer may have any slot.
    fn cramped() -> Consumers {
        let table = |_| -> Box<[Slot]> { (0..PROBES).map(|_| Slot::default()).collect() };
        Consumers {
            tables: std::array::from_fn(|nth| OnceLock::from(table(nth))),
        }
    }

    fn numbered(nr: usize) -> Vec<MemoryConsumer> {
        let named = |nth| MemoryConsumer::new(format!("sort {nth}"));
        let all = (0..nr).map(|nth| named(nth).with_can_spill(usize::is_multiple_of(nth, 3)));
        all.collect()
    }

    // Goal: a text names each consumer by its own name, and has neither bytes nor the peak of
    // another, while slots pass from one consumer to the next. Method: two threads register, count
    // and unregister sixteen consumers each, over twelve slots, while this one lists uses until it
    // has seen many; each consumer has other bytes.
    #[test]
    fn a_listed_name_is_that_of_the_consumer_with_this_id() {
        const EACH: usize = 16;
        const SEEN: usize = 60_000;
        let (consumers, all) = (cramped(), numbered(2 * EACH));
        let nth_of: HashMap<_, _> = (0..).zip(&all).map(|(nth, it)| (it.id(), nth)).collect();
        let pass = |nth: u64, consumer: &MemoryConsumer| {
            consumers.register(consumer);
            let slot = consumers.find(consumer).expect("twelve slots for two");
            slot.add(nth + 1);
            slot.sub(nth + 1);
            consumers.unregister(consumer);
        };
        let is_true = |it: &ConsumerUse| {
            let nth: u64 = nth_of[&it.id];
            let is_own = |bytes: Bytes| bytes == Bytes::ZERO || bytes == Bytes(nth + 1);
            let is_named =
                it.name == format!("sort {nth}") && it.can_spill == nth.is_multiple_of(3);
            is_named && is_own(it.bytes) && is_own(it.peak)
        };
        let is_over = AtomicBool::new(false);
        let lies: Vec<_> = std::thread::scope(|scope| {
            for half in [0, EACH] {
                let (is_over, all, pass) = (&is_over, &all, &pass);
                scope.spawn(move || {
                    while !is_over.load(Ordering::Relaxed) {
                        (half..half + EACH).for_each(|nth| pass(nth as u64, &all[nth]));
                    }
                });
            }
            let lists = std::iter::repeat_with(|| consumers.uses());
            let lies = lists.flatten().take(SEEN).filter(|it| !is_true(it));
            let lies = lies.take(3).collect();
            is_over.store(true, Ordering::Relaxed);
            lies
        });
        assert_eq!(lies, []);
        assert_eq!(consumers.uses(), []);
    }

    // Goal: a consumer for which no slot is left is not counted and takes none from others, neither
    // by its registration nor by its end; and no registration waits for a text. Method: twelve
    // slots, of which a text reads one, so that eleven of thirteen consumers have one.
    #[test]
    fn a_consumer_without_a_slot_takes_none_from_others() {
        const SLOTS: usize = PROBES * TABLES;
        let (consumers, all) = (cramped(), numbered(SLOTS + 1));
        let names = |owners: &[MemoryConsumer]| {
            let uses = consumers.uses().into_iter().map(|it| (it.id, it.name));
            let owned = owners.iter().map(|it| (it.id(), it.name().to_owned()));
            (uses.collect::<Vec<_>>(), owned.collect::<Vec<_>>())
        };
        let read = consumers.slots().next().map(|slot| slot.named.lock());
        all.iter().for_each(|it| consumers.register(it));
        drop(read);
        let (listed, owned) = names(&all[..SLOTS - 1]);
        assert_eq!(listed, owned);
        assert!(consumers.find(&all[SLOTS]).is_none());
        consumers.unregister(&all[SLOTS]);
        assert_eq!(consumers.uses().len(), SLOTS - 1);
        consumers.register(&all[SLOTS - 1]);
        consumers.register(&all[SLOTS]);
        let (listed, owned) = names(&all[..SLOTS]);
        assert_eq!(listed, owned);
        consumers.unregister(&all[0]);
        consumers.register(&all[SLOTS]);
        let (listed, owned) = names(&all[1..]);
        assert_eq!(listed, owned);
    }

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
