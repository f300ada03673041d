//! Rounds that take turns: every way to read, on one thread and right after that on two, again and
//! again.
//!
//! What the machine does beside, such as its clock and who shares a core, changes from one tenth of
//! a second to the next. So what is promised is held against ratios within each round, of which the
//! median counts. A round of two threads in which they did not both run nearly all the time is
//! repeated, and where that does not help counts for nothing.

use std::sync::Arc;

use crate::pages::Sequence;
use crate::places::Place;
use crate::readers::Reader;
use crate::timing::{Round, round};

/// Rounds of each measurement.
const ROUNDS: usize = 15;
/// Times that a round is repeated when its threads did not run at once.
const REPEATS: u32 = 10;

/// What each round told of one way to read, on so many threads: nanoseconds of CPU time for each
/// read.
pub(crate) struct Times {
    ns: Vec<Option<f64>>,
}

/// On one thread and on two, in the order of the readers.
pub(crate) struct Table {
    pub(crate) alone: Vec<Times>,
    pub(crate) together: Vec<Times>,
}

impl Table {
    /// Reads every sequence in every way, in turn: the first so many of its pages.
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
    /// Of the rounds that count, not a number when none does.
    pub(crate) fn median(&self) -> f64 {
        median(self.ns.iter().copied().flatten().collect())
    }

    /// How many times as long it took as another, as a median over the rounds of which both count.
    pub(crate) fn ratio_to(&self, other: &Self) -> f64 {
        let rounds = self.ns.iter().zip(&other.ns);
        median(rounds.filter_map(|(a, b)| Some((*a)? / (*b)?)).collect())
    }
}

/// The fastest of some, in each round, as if it were one.
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

/// One round. Each thread reads the beginning of its own sequence twice, of which the first time
/// does not count: it brings back what the other ways to read have driven out of the caches that
/// are near.
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
