//! Interleaved rounds: every way to read, on one thread and right after that on two, repeatedly.
//!
//! Conditions on the machine, such as its clock and load on the sibling core, change from one tenth
//! of a second to the next. So promises are judged by ratios within each round, of which the median
//! counts. A round of two threads that did not both run nearly all the time is repeated, and if
//! that does not help, it is ignored.

use std::sync::Arc;

use crate::pages::Sequence;
use crate::places::Place;
use crate::readers::Reader;
use crate::timing::{Round, round};

/// Rounds of each measurement.
const ROUNDS: usize = 15;
/// Repetitions of a round whose threads did not run at once.
const REPEATS: u32 = 10;

/// Nanoseconds of CPU time for each read in each round, for one way to read and one number of
/// threads.
pub(crate) struct Times {
    ns: Vec<Option<f64>>,
}

/// On one thread and on two, in the order of the readers.
pub(crate) struct Table {
    pub(crate) alone: Vec<Times>,
    pub(crate) together: Vec<Times>,
}

impl Table {
    /// Reads the first `times` pages of every sequence in every way, in turn.
    pub(crate) fn measured(
        readers: &[(&'static str, Arc<dyn Reader>)],
        sequences: &[Sequence; 2],
        times: u32,
    ) -> Self {
        let empty = || readers.iter().map(|_| Times { ns: Vec::new() }).collect();
        let mut table = Self {
            alone: empty(),
            together: empty(),
        };
        for _ in 0..ROUNDS {
            for (at, (_, reader)) in readers.iter().enumerate() {
                for (threads, all) in [(1, &mut table.alone), (2, &mut table.together)] {
                    let timed = timed(&**reader, sequences, threads, times);
                    all[at].ns.push(timed);
                }
            }
        }
        table
    }
}

impl Times {
    /// Returns the median of the rounds that count; `NaN` if none does.
    pub(crate) fn median(&self) -> f64 {
        median(self.ns.iter().copied().flatten().collect())
    }

    /// Returns the time relative to `other`'s, as a median over the rounds that count for both.
    pub(crate) fn ratio_to(&self, other: &Self) -> f64 {
        let rounds = self.ns.iter().zip(&other.ns);
        median(rounds.filter_map(|(a, b)| Some((*a)? / (*b)?)).collect())
    }
}

/// Returns the fastest of some in each round.
pub(crate) fn fastest(of: &[&Times]) -> Times {
    let rounds = 0..of.iter().map(|times| times.ns.len()).min().unwrap_or(0);
    let fastest = |round: usize| {
        let times: Option<Vec<f64>> = of.iter().map(|times| times.ns[round]).collect();
        times?.into_iter().reduce(f64::min)
    };
    Times {
        ns: rounds.map(fastest).collect(),
    }
}

/// Times one round. Each thread reads the beginning of its own sequence twice; the first time does
/// not count: it restores the near caches after the other ways to read.
fn timed(reader: &dyn Reader, sequences: &[Sequence; 2], threads: u32, times: u32) -> Option<f64> {
    let prepare = |thread: u32| {
        let places = sequences[thread as usize].first(times);
        let want: u64 = places.iter().map(|place| u64::from(place.page)).sum();
        assert_eq!(reader.sum(places), want);
        (places, want)
    };
    let run = |(places, want): &mut (&[Place], u64), _| assert_eq!(reader.sum(places), *want);
    let once = || round(threads, times, &prepare, &run);
    let counts = |round: &Round| threads == 1 || round.is_at_once;
    let mut rounds = (0..=REPEATS).map(|_| once());
    rounds.find(counts).map(|round| round.ns)
}

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers.get(numbers.len() / 2).copied().unwrap_or(f64::NAN)
}
