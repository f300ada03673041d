//! What a child process does: it times rounds of one source of blocks for as long as its parent
//! asks.
//!
//! The parent writes a line, `WORK ACCESS THREADS TIMES`; the child times that round and answers
//! `NANOSECONDS IS_AT_ONCE RESIDENT_MIB`. `WORK` is a place in [`Work::ALL`], or [`BYSTANDER`]: the
//! threads are then those beside it, and `TIMES` is the part of the usual turns; the answer is `P50
//! P99 P99.9 RESIDENT_MIB`.

use std::process::ExitCode;
use std::{env, io, iter};

use crate::blocks::{Access, Latency, Source, Work, bystander, resident_mib};
use crate::timing::Round;

/// The argument before the name of the source that a child serves.
pub(crate) const SERVE: &str = "--serve";
/// The work of a bystander.
pub(crate) const BYSTANDER: &str = "bystander";

/// What times a source.
pub(crate) struct Timed {
    round: Box<dyn Fn(Work, Access, u32, u32) -> Round>,
    bystander: Box<dyn Fn(Access, u32, u32) -> Latency>,
}

impl Timed {
    pub(crate) fn new(source: impl Source + 'static) -> Self {
        let source: &'static _ = Box::leak(Box::new(source));
        Self {
            round: Box::new(|work, access, threads, times| {
                work.time(access, source, threads, times)
            }),
            bystander: Box::new(|access, others, part| bystander(access, source, others, part)),
        }
    }

    fn answer(&self, line: &str) -> Option<String> {
        let words: Vec<&str> = line.split(' ').collect();
        let [work, written, threads, times] = words[..] else {
            return None;
        };
        let access = match written {
            "0" => Access::Untouched,
            "1" => Access::Written,
            _ => return None,
        };
        let (threads, times) = (threads.parse().ok()?, times.parse().ok()?);
        if work == BYSTANDER {
            let Latency { p50, p99, p99_9 } = (self.bystander)(access, threads, times);
            return Some(format!("{p50} {p99} {p99_9} {}", resident_mib()));
        }
        let work = *Work::ALL.get(work.parse::<usize>().ok()?)?;
        let Round { ns, is_at_once } = (self.round)(work, access, threads, times);
        let is_at_once = u8::from(is_at_once);
        Some(format!("{ns} {is_at_once} {}", resident_mib()))
    }
}

/// Returns the source that this process was started for, if it is a child.
pub(crate) fn served() -> Option<String> {
    let mut arguments = env::args().skip_while(|argument| argument != SERVE);
    arguments.nth(1)
}

/// Times rounds until the input ends.
pub(crate) fn serve(timed: &Timed) -> ExitCode {
    let mut lines = io::stdin().lines();
    for line in iter::from_fn(|| lines.next()?.ok()) {
        match timed.answer(&line) {
            Some(answer) => println!("{answer}"),
            None => return ExitCode::FAILURE,
        }
    }
    ExitCode::SUCCESS
}
