//! Helpers of the trace tests.

use std::io::Cursor;

use highwater_lab::trace::{Format, Lenient, Op, ReaderOptions, Request, Target, TraceReader};

pub(crate) fn pages(op: Op, first: u64, count: u64) -> Request {
    let target = Target::Pages { first, count };
    Request { op, target }
}

pub(crate) fn options(format: Option<Format>, lenient: Lenient) -> ReaderOptions {
    ReaderOptions {
        format,
        block_size: None,
        lenient,
        ..ReaderOptions::default()
    }
}

pub(crate) fn mutate(bytes: &mut Vec<u8>, random: &mut fastrand::Rng) {
    let at = random.usize(0..=bytes.len());
    match random.u8(0..5) {
        0 => bytes.truncate(at),
        1 => bytes.insert(at, random.u8(..)),
        2 => bytes.extend_from_within(..at),
        3 if at < bytes.len() => drop(bytes.remove(at)),
        _ if at < bytes.len() => bytes[at] ^= 1 << random.u8(0..8),
        _ => {}
    }
}

/// Reads a trace to its end: at most one request a byte (two thousand lines, when decompressed),
/// errors only under the strict rule, nothing after the end.
pub(crate) fn assert_ends(bytes: &[u8], options: &ReaderOptions) {
    let Ok(mut trace) = TraceReader::from_reader("mutant", Cursor::new(bytes.to_vec()), options)
    else {
        return;
    };
    let limit = 1_000_000;
    let mut answers = 0;
    let mut errors = 0;
    for answer in trace.by_ref().take(limit) {
        answers += 1;
        match answer {
            Ok(request) => assert!(request.target.page_count() > 0),
            Err(_) => errors += 1,
        }
    }
    assert!(answers < limit, "the reader runs on");
    assert!(trace.next().is_none() && trace.next().is_none());
    match options.lenient {
        Lenient::StopAtBad => assert!(errors <= 1 && trace.skipped().records == 0),
        Lenient::SkipBad => assert_eq!(errors, 0),
    }
}

/// The seed of a test: `SEED` from the environment, or a fixed one; printed, so that a failure can
/// be run again.
pub(crate) fn seed() -> u64 {
    let seed = std::env::var("SEED").map_or(20_261_121, |seed| seed.parse().unwrap());
    eprintln!("SEED={seed}");
    seed
}
