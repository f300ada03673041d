//! What each consumer of a pool uses: for [fairness](crate::Fairness), and for the text of a
//! refusal.
//!
//! A consumer has a slot from its registration to its end. Slots are in a few tables, each eight
//! times as large as the one before, that are never freed before the pool. A consumer's number
//! says where its slot is in each, to within [`PROBES`]; so a call finds it without a lock. The
//! largest table has a place for most, however many there are, and is tried first. `split` and
//! `take` move bytes between reservations of one consumer without a call to the pool, so bytes are
//! counted for a consumer and not for a reservation.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use datafusion_execution::memory_pool::MemoryConsumer;
use highwater::Bytes;

use crate::slot::{Reading, Registration, Slot};

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
    /// As it was registered; of a longer name the first 56 bytes, less any part of a character.
    pub name: String,
    /// Its number in this process.
    pub id: usize,
    /// Whether it can spill.
    pub can_spill: bool,
    /// What it has reserved now; off by what calls in progress change.
    pub bytes: Bytes,
    /// The most that it has had reserved; off, where threads reserved for it at the same time, by
    /// what they changed then.
    pub peak: Bytes,
}

impl From<Reading> for ConsumerUse {
    fn from(reading: Reading) -> Self {
        Self {
            name: String::from_utf8_lossy(&reading.name).into_owned(),
            id: reading.id,
            can_spill: reading.can_spill,
            bytes: Bytes(reading.bytes),
            peak: Bytes(reading.peak),
        }
    }
}

/// Two lines: calls use one of them.
const _: () = assert!(size_of::<Slot>() == 128);

/// The consumers of one pool.
#[derive(Debug, Default)]
pub(crate) struct Consumers {
    tables: [OnceLock<Box<[Slot]>>; TABLES],
    /// The number of the largest table.
    /// Written by: `register`. Read by: every call. Publishes: nothing.
    largest: AtomicUsize,
}

impl Consumers {
    /// Returns the slot of a consumer, if it has one.
    #[inline]
    pub(crate) fn find(&self, consumer: &MemoryConsumer) -> Option<&Slot> {
        let first = self.first(consumer)?;
        match first.is_of(consumer.id()) {
            true => Some(first),
            false => self.find_elsewhere(consumer),
        }
    }

    /// Returns the first place of the largest table where a consumer's slot may be.
    #[inline]
    fn first(&self, consumer: &MemoryConsumer) -> Option<&Slot> {
        let table = self.tables.get(self.largest())?.get()?;
        Some(&table[consumer.id() & (table.len() - 1)])
    }

    /// Returns the number of the largest table, or of one that was so a moment ago.
    #[inline]
    fn largest(&self) -> usize {
        // Relaxed: a table publishes itself.
        self.largest.load(Ordering::Relaxed)
    }

    #[cold]
    #[inline(never)]
    fn find_elsewhere(&self, consumer: &MemoryConsumer) -> Option<&Slot> {
        let tables = self.tables.iter().map_while(OnceLock::get);
        tables
            .flat_map(|table| places(table, consumer))
            .find(|slot| slot.is_of(consumer.id()))
    }

    /// Gives a consumer a slot: of a table that is there, or else of a larger one.
    #[inline]
    pub(crate) fn register(&self, consumer: &MemoryConsumer) {
        let registration = Registration {
            id: consumer.id(),
            name: consumer.name(),
            can_spill: consumer.can_spill(),
        };
        if let Some(first) = self.first(consumer)
            && first.claim(&registration)
        {
            return;
        }
        self.register_elsewhere(consumer, &registration);
    }

    #[cold]
    #[inline(never)]
    fn register_elsewhere(&self, consumer: &MemoryConsumer, registration: &Registration<'_>) {
        let make = |nth: usize| (0..FIRST << (3 * nth)).map(|_| Slot::default()).collect();
        let largest = self.largest();
        let is_counted = (0..=largest).rev().chain(largest + 1..TABLES).any(|nth| {
            let table = self.tables[nth].get_or_init(|| make(nth));
            if nth > largest {
                // Relaxed: see `largest`.
                self.largest.fetch_max(nth, Ordering::Relaxed);
            }
            places(table, consumer).any(|slot| slot.claim(registration))
        });
        debug_assert!(is_counted || self.largest() == TABLES - 1, "all were tried");
    }

    /// Frees the slot of a consumer whose last reservation has ended; returns the change of the
    /// number of active consumers.
    pub(crate) fn unregister(&self, consumer: &MemoryConsumer) -> i64 {
        self.find(consumer).map_or(0, Slot::unregister)
    }

    /// Returns how many consumers that can spill hold bytes, one by one.
    pub(crate) fn count_active(&self) -> u64 {
        self.slots().map(|slot| u64::from(slot.holds())).sum()
    }

    /// Returns the consumers that have slots, those that use most first.
    pub(crate) fn uses(&self) -> Vec<ConsumerUse> {
        let readings = self.slots().filter_map(Slot::reading);
        let mut uses: Vec<_> = readings.map(ConsumerUse::from).collect();
        uses.sort_by_key(|it| (std::cmp::Reverse(it.bytes), it.id));
        uses
    }

    pub(crate) fn slots(&self) -> impl Iterator<Item = &Slot> {
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

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::sync::Mutex;
    use std::sync::atomic::AtomicBool;

    use super::*;

    /// Tables of two slots each, so that every consumer may have any slot.
    fn cramped() -> Consumers {
        let table = |_| -> Box<[Slot]> { (0..PROBES).map(|_| Slot::default()).collect() };
        Consumers {
            tables: std::array::from_fn(|nth| OnceLock::from(table(nth))),
            largest: AtomicUsize::new(TABLES - 1),
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
        // A number is never used again, as in DataFusion: it is the version of what a list reads.
        let nth_of = Mutex::new(HashMap::new());
        let pass = |nth: u64, consumer: &MemoryConsumer| {
            let consumer = &consumer.clone_with_new_id();
            nth_of.lock().expect("no panic").insert(consumer.id(), nth);
            consumers.register(consumer);
            let slot = consumers.find(consumer).expect("twelve slots for two");
            let active = slot.add(nth + 1) + slot.sub(nth + 1);
            active + consumers.unregister(consumer)
        };
        let is_true = |it: &ConsumerUse| {
            let nth: u64 = nth_of.lock().expect("no panic")[&it.id];
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
                        let passes = (half..half + EACH).map(|nth| pass(nth as u64, &all[nth]));
                        assert_eq!(passes.sum::<i64>(), 0);
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
    // by its registration nor by its end. Method: twelve slots and thirteen consumers.
    #[test]
    fn a_consumer_without_a_slot_takes_none_from_others() {
        const SLOTS: usize = PROBES * TABLES;
        let (consumers, all) = (cramped(), numbered(SLOTS + 1));
        let names = |owners: &[MemoryConsumer]| {
            let uses = consumers.uses().into_iter().map(|it| (it.id, it.name));
            let owned = owners.iter().map(|it| (it.id(), it.name().to_owned()));
            (uses.collect::<Vec<_>>(), owned.collect::<Vec<_>>())
        };
        all.iter().for_each(|it| consumers.register(it));
        let (listed, owned) = names(&all[..SLOTS]);
        assert_eq!(listed, owned);
        assert!(consumers.find(&all[SLOTS]).is_none());
        assert_eq!(consumers.unregister(&all[SLOTS]), 0);
        assert_eq!(consumers.uses().len(), SLOTS);
        assert_eq!(consumers.unregister(&all[0]), 0);
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
        for (nth, consumer) in all.iter().enumerate() {
            assert!(consumers.find(consumer).is_none());
            consumers.register(consumer);
            assert_eq!(find(nth).add(nth as u64), i64::from(nth > 0));
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
            assert_eq!(find(nth).sub(nth as u64), -i64::from(nth > 0));
            assert_eq!(consumers.unregister(consumer), 0);
        }
        assert_eq!(consumers.uses(), []);
        all.iter().for_each(|consumer| consumers.register(consumer));
        assert_eq!(consumers.slots().count(), nr_slots, "slots are used again");
    }
}
