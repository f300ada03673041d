//! Table of a cache's spaces: totals and marks, found by number.
//!
//! A thread that takes a CPU from a space knows only the space's number, and may do so while the
//! space ends. So numbers lead to memory that lives as long as the cache, and a number is reused
//! only when no slot names it: see [`ActiveCache`](super::ActiveCache).

use std::iter;
use std::num::NonZeroU32;

use highwater::lab::sync::atomic::{AtomicI64, Ordering};
use highwater::lab::sync::{LockClass, Mutex, OnceLock, Rank};
use highwater::units::CpuId;

use super::marks::Marks;
use super::slots::{Owner, WORDS};

static NUMBERS: LockClass = LockClass::new("numbers of spaces", Rank::Leaf);

/// Totals and marks of one space.
#[repr(C, align(64))]
pub(super) struct Totals {
    /// Written by: settlers of a slot of the space, and additions that find none (atomic add).
    /// Read by: all threads. Publishes: only itself.
    ///
    /// All additions are read-modify-writes, so that a read of a later total is ordered after the
    /// fence of every earlier settler, as a read of that settler's own total would be.
    totals: [AtomicI64; WORDS],
    pub(super) marks: Marks,
}

impl Totals {
    fn new(nr_cpus: usize) -> Self {
        Self {
            totals: std::array::from_fn(|_| AtomicI64::new(0)),
            marks: Marks::none_of(nr_cpus),
        }
    }

    /// Adds `delta` to `member`; wraps.
    pub(super) fn add(&self, member: usize, delta: i64) {
        // Relaxed: see the field.
        self.totals[member].fetch_add(delta, Ordering::Relaxed);
    }

    /// Adds parked amounts, and returns the number of totals written.
    pub(super) fn absorb(&self, parked: [i64; WORDS]) -> u32 {
        let mut written = 0;
        for (member, amount) in parked.into_iter().enumerate() {
            if amount != 0 {
                self.add(member, amount);
                written += 1;
            }
        }
        written
    }

    /// Adds the amounts parked on `cpu`, whose slot the caller holds, and will give to another
    /// space. Returns the number of words written: 0 if nothing was parked, in which case the mark
    /// stays.
    pub(super) fn absorb_last(&self, cpu: CpuId, parked: [i64; WORDS]) -> u32 {
        let written = self.absorb(parked);
        if written == 0 {
            return 0;
        }
        self.marks.unmark(cpu);
        written + 1
    }

    /// Returns the totals.
    pub(super) fn sums(&self) -> [i64; WORDS] {
        // Relaxed: see the field.
        std::array::from_fn(|member| self.totals[member].load(Ordering::Relaxed))
    }
}

/// Spaces of one run of numbers.
type Run = Box<[OnceLock<Box<Totals>>]>;

/// Numbers of the first run; each later one has as many as all before it.
const FIRST_RUN: u32 = 64;
const RUNS: usize = 25;
const NUMBERS_MAX: u32 = FIRST_RUN << (RUNS - 1);

/// All spaces of a cache, including ended ones.
pub(super) struct Spaces {
    nr_cpus: usize,
    runs: [OnceLock<Run>; RUNS],
    numbers: Mutex<Numbers>,
}

struct Numbers {
    /// Number of numbers, from 1, that were ever used.
    given: u32,
    /// Numbers that may be reused.
    free: Vec<Owner>,
}

impl Spaces {
    pub(super) fn new(nr_cpus: usize) -> Self {
        let numbers = Numbers {
            given: 0,
            free: Vec::new(),
        };
        Self {
            nr_cpus,
            runs: std::array::from_fn(|_| OnceLock::new()),
            numbers: Mutex::new(&NUMBERS, numbers),
        }
    }

    /// Allocates a number with totals of zero and no marks.
    ///
    /// # Panics
    ///
    /// When [`NUMBERS_MAX`] spaces are live.
    pub(super) fn begin(&self) -> Owner {
        let mut numbers = self.numbers.lock();
        if let Some(owner) = numbers.free.pop() {
            return owner;
        }
        assert!(
            numbers.given < NUMBERS_MAX,
            "there are {NUMBERS_MAX} spaces"
        );
        numbers.given += 1;
        let number = NonZeroU32::new(numbers.given).expect("numbers begin at 1");
        let owner = Owner(number);
        let (run, at) = place(owner);
        let places = self.runs[run].get_or_init(|| empty_run(run));
        places[at].get_or_init(|| Box::new(Totals::new(self.nr_cpus)));
        owner
    }

    /// Frees a number that no slot names any more.
    pub(super) fn end(&self, owner: Owner) {
        let space = self.get(owner);
        // Relaxed: no other thread uses the space, and the lock publishes this to its next user.
        space
            .totals
            .iter()
            .for_each(|total| total.store(0, Ordering::Relaxed));
        space.marks.clear();
        self.numbers.lock().free.push(owner);
    }

    /// Returns the space of an allocated number.
    pub(super) fn get(&self, owner: Owner) -> &Totals {
        let (run, at) = place(owner);
        let places = self.runs[run].get();
        places
            .and_then(|places| places[at].get())
            .expect("the number was given")
    }

    /// Returns the number of live spaces.
    pub(super) fn nr_live(&self) -> u64 {
        let numbers = self.numbers.lock();
        u64::from(numbers.given) - numbers.free.len() as u64
    }
}

fn empty_run(run: usize) -> Run {
    let len = match run {
        0 => FIRST_RUN,
        run => FIRST_RUN << (run - 1),
    };
    iter::repeat_with(OnceLock::new)
        .take(len as usize)
        .collect()
}

/// Returns the run of a number, and its index in it.
fn place(owner: Owner) -> (usize, usize) {
    let at = owner.0.get() - 1;
    match (at / FIRST_RUN).checked_ilog2() {
        None => (0, at as usize),
        Some(run) => (run as usize + 1, (at - (FIRST_RUN << run)) as usize),
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn numbers_fill_the_runs() {
        // Goal: each number has a slot of its own, in order. Method: walk over the first runs.
        let (mut run, mut at) = (0, 0);
        for number in 1..=5_000 {
            let owner = Owner(NonZeroU32::new(number).unwrap());
            assert_eq!(place(owner), (run, at), "number {number}");
            at += 1;
            if at == empty_run(run).len() {
                (run, at) = (run + 1, 0);
            }
        }
        let last = Owner(NonZeroU32::new(NUMBERS_MAX).unwrap());
        assert_eq!(place(last).0, RUNS - 1);
    }

    #[test]
    fn numbers_are_given_again() {
        // Goal: memory is that of the most spaces at once, and a reused number starts empty.
        let spaces = Spaces::new(300);
        for _ in 0..3 {
            let owners: Vec<_> = (0..200).map(|_| spaces.begin()).collect();
            assert_eq!(spaces.nr_live(), 200);
            for (owner, amount) in owners.into_iter().zip(1..) {
                let space = spaces.get(owner);
                assert_eq!((space.sums(), space.marks.count()), ([0; WORDS], 0));
                space.add(2, amount);
                space.marks.mark(CpuId(299));
                spaces.end(owner);
            }
        }
        assert_eq!(spaces.numbers.lock().given, 200);
    }
}
