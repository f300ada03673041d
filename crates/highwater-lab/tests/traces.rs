//! Promise: traces are read as recorded, in any compression and of any length, and a stream that is
//! damaged or fails is never taken for a short trace.
//!
//! The recorded traces are not part of the project. The tests look for them in the folder that
//! `HIGHWATER_TRACES` names, then in `shared/traces` beside the workspace; without them the tests
//! that need them say so and pass.

#![expect(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
#![expect(
    clippy::print_stderr,
    reason = "a skipped test says why, a failed one prints its seed"
)]

mod shared_traces;
mod trace_support;

use std::collections::HashSet;
use std::io::{self, Cursor, Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use highwater_lab::models::Lru;
use highwater_lab::trace::{
    Compression, Format, Lenient, Op, ReaderOptions, Request, Target, TraceError, TraceReader,
};

use shared_traces::shared_traces;
use trace_support::{assert_ends, mutate, options, pages, seed};

/// A row of the published table: file, bytes of an `arc` block, format if it is not detected,
/// requests (with their sizes reduced to one page each, where the view is "key"), unique pages or
/// keys, and LRU miss ratios at 1 % and 10 % of these.
struct Row {
    file: &'static str,
    format: Option<Format>,
    block_size: Option<u32>,
    accesses: u64,
    unique: usize,
    miss_ratios: [f64; 2],
}

const fn row(file: &'static str, accesses: u64, unique: usize, miss_ratios: [f64; 2]) -> Row {
    Row {
        file,
        format: None,
        block_size: None,
        accesses,
        unique,
        miss_ratios,
    }
}

impl Row {
    const fn named(mut self, format: Format) -> Self {
        self.format = Some(format);
        self
    }

    const fn blocks(mut self, bytes: u32) -> Self {
        self.block_size = Some(bytes);
        self
    }
}

/// The checker results of the traces' own description, one row for each file in the reader's view.
const TABLE: [Row; 18] = [
    row("block-io/P3.lis.zst", 611_918, 102_348, [0.8853, 0.7350]),
    row("block-io/P6.lis.zst", 2_021_684, 101_903, [0.8736, 0.6488]),
    row(
        "block-io/cloudPhysicsIO-w92.vscsi.xz",
        1_141_869,
        269_210,
        [0.8969, 0.8741],
    ),
    row("classic/lirs-cpp.trace.gz", 9_047, 1_223, [0.9960, 0.2428]),
    row("classic/lirs-cs.trace.gz", 6_781, 1_409, [0.9819, 0.9817]),
    row("classic/lirs-loop.trace.gz", 505_500, 1_011, [1.0, 1.0]),
    row(
        "classic/lirs-multi1.trace.gz",
        15_858,
        2_606,
        [0.9897, 0.5658],
    ),
    row(
        "classic/lirs-multi3.trace.gz",
        30_241,
        7_454,
        [0.9486, 0.6451],
    ),
    row("classic/lirs-scan.trace.gz", 50_025, 2_001, [1.0, 1.0]),
    row(
        "classic/lirs-sprite.trace.gz",
        133_996,
        7_075,
        [0.8367, 0.1352],
    ),
    row(
        "kv-cdn/adaptsize-request.trace.xz",
        66_987,
        36_815,
        [0.7571, 0.6581],
    ),
    row(
        "kv-cdn/mooncake-synthetic_trace.jsonl.xz",
        121_877,
        43_924,
        [0.9657, 0.7402],
    ),
    row(
        "kv-cdn/scarab-recs.trace.xz",
        1_245_184,
        258_368,
        [0.6529, 0.3940],
    )
    .named(Format::U64Be),
    row("kv-cdn/web07.trace.xz", 76_118, 20_484, [0.6085, 0.4434]).named(Format::U32Be),
    row(
        "mem-ref/address-gcc.trace.gz",
        515_683,
        294,
        [0.2451, 0.0018],
    ),
    row(
        "mem-ref/address-twolf.trace.gz",
        482_824,
        89,
        [0.4184, 0.0211],
    ),
    row("oltp-db/OLTP.lis.zst", 914_145, 186_880, [0.5837, 0.3348]).blocks(4096),
    row(
        "oltp-db/orm-busy.trace.xz",
        5_000_000,
        76_349,
        [0.2297, 0.1199],
    )
    .named(Format::U32Be),
];

/// Returns every access of a trace, with a key as one page: the view of the table.
fn accesses(trace: TraceReader) -> Vec<u64> {
    let mut pages = Vec::new();
    for request in trace {
        match request.unwrap().target {
            Target::Pages { first, count } => pages.extend(first..first + count),
            Target::Key { key, .. } => pages.push(key),
        }
    }
    pages
}

fn miss_ratio(pages: &[u64], capacity: usize) -> f64 {
    let mut lru = Lru::new(capacity);
    let misses = pages.iter().filter(|&&page| !lru.access(page)).count();
    #[expect(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
    let ratio = misses as f64 / pages.len() as f64;
    ratio
}

fn open(path: &Path, format: Option<Format>, block_size: Option<u32>) -> TraceReader {
    let options = ReaderOptions {
        format,
        block_size,
        lenient: Lenient::StopAtBad,
        ..ReaderOptions::default()
    };
    TraceReader::open(path, &options).unwrap()
}

// Goal: parsers and the LRU model agree with an independent checker. Method: for every recorded
// trace compare the number of accesses, of unique pages and two miss ratios with the table that
// came with the traces, to its four digits.
#[test]
fn shared_traces_match_their_table() {
    let Some(folder) = shared_traces() else {
        return;
    };
    for row in &TABLE {
        let path = folder.join(row.file);
        if row.format.is_some() {
            let unnamed = TraceReader::open(&path, &ReaderOptions::default());
            assert!(matches!(unnamed, Err(TraceError::UnknownFormat { .. })));
        }
        let pages = accesses(open(&path, row.format, row.block_size));
        assert_eq!(pages.len() as u64, row.accesses, "{}: accesses", row.file);
        let unique = pages.iter().collect::<HashSet<_>>().len();
        assert_eq!(unique, row.unique, "{}: unique pages", row.file);
        for (share, expected) in [100, 10].into_iter().zip(row.miss_ratios) {
            let got = miss_ratio(&pages, (unique / share).max(1));
            assert!(
                (got - expected).abs() <= 0.000_05,
                "{}: LRU of 1/{share} of the pages misses {got}, expected {expected}",
                row.file
            );
        }
    }
}

// Goal: block counts, writes, progress and views of the recorded traces beyond the table. Method:
// the figures in the traces' description.
#[test]
fn shared_traces_have_the_stated_details() {
    let Some(folder) = shared_traces() else {
        return;
    };
    let count = |file: &str, is_counted: fn(&Request) -> bool| {
        let mut trace = open(&folder.join(file), None, None);
        let count = trace
            .by_ref()
            .filter(|request| is_counted(request.as_ref().unwrap()))
            .count();
        let progress = trace.progress();
        assert_eq!(
            Some(progress.compressed_bytes_read),
            progress.compressed_bytes_total
        );
        assert_eq!((trace.skipped().records, trace.empty_records()), (0, 0));
        count
    };
    let is_write = |request: &Request| request.op == Op::Write;
    assert_eq!(count("mem-ref/address-gcc.trace.gz", is_write), 197_486);
    assert_eq!(count("mem-ref/address-twolf.trace.gz", is_write), 131_421);
    assert_eq!(
        count("block-io/cloudPhysicsIO-w92.vscsi.xz", is_write),
        66_898
    );
    assert_eq!(count("block-io/P3.lis.zst", |_| true), 238_578);
    assert_eq!(count("kv-cdn/adaptsize-request.trace.xz", |_| true), 66_987);
    assert_eq!(
        count("oltp-db/OLTP.lis.zst", |request| request
            .target
            .page_count()
            == 1),
        914_145
    );
}

/// Compresses with the reference tool; `None` if it is not installed.
fn compress(tool: &str, bytes: &[u8]) -> Option<Vec<u8>> {
    let child = Command::new(tool)
        .arg("-c")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let Ok(mut child) = child else {
        eprintln!("skipped: `{tool}` is not installed");
        return None;
    };
    let mut input = child.stdin.take().unwrap();
    let bytes = bytes.to_vec();
    let feeder = std::thread::spawn(move || input.write_all(&bytes).unwrap());
    let output = child.wait_with_output().unwrap();
    feeder.join().unwrap();
    assert!(output.status.success(), "{tool} failed");
    Some(output.stdout)
}

fn lirs_lines(numbers: std::ops::Range<u64>) -> Vec<u8> {
    numbers
        .flat_map(|number| format!("{number}\n").into_bytes())
        .collect()
}

// Goal: each compression is detected, its pieces are joined, and a truncated or damaged stream is
// an error in its place, after every complete record before it. Method: compress with the reference
// tools, concatenate two results, truncate and damage them.
#[test]
fn compressed_streams_are_joined_and_their_damage_is_noticed() {
    let halves = [lirs_lines(0..60_000), lirs_lines(60_000..100_000)];
    let tools = [
        ("zstd", Compression::Zstd),
        ("gzip", Compression::Gzip),
        ("xz", Compression::Xz),
    ];
    let lirs = options(Some(Format::Lirs), Lenient::StopAtBad);
    for (tool, compression) in tools {
        let Some(first) = compress(tool, &halves[0]) else {
            continue;
        };
        let both = [first.clone(), compress(tool, &halves[1]).unwrap()].concat();
        let trace =
            TraceReader::from_reader("joined", Cursor::new(both), &ReaderOptions::default())
                .unwrap();
        assert_eq!(
            (trace.compression(), trace.format()),
            (compression, Format::Lirs)
        );
        let requests: Result<Vec<_>, _> = trace.collect();
        let expected: Vec<_> = (0..100_000).map(|page| pages(Op::Read, page, 1)).collect();
        assert_eq!(requests.unwrap(), expected, "{tool}");

        for cut in [first.len() - 1, first.len() / 2, 20] {
            let trace =
                TraceReader::from_reader("cut", Cursor::new(first[..cut].to_vec()), &lirs).unwrap();
            assert_broken(trace, compression);
        }
        let mut damaged = first.clone();
        let middle = damaged.len() / 2;
        damaged[middle] ^= 0x10;
        let trace = TraceReader::from_reader("damaged", Cursor::new(damaged), &lirs).unwrap();
        let last = trace.last().unwrap();
        assert!(last.is_err(), "{tool}: damage goes unnoticed");
    }
}

/// Checks that a truncated stream of the lines 0, 1, 2, ... yields a prefix of them, then one error
/// that names the compression and the next record, then nothing.
fn assert_broken(mut trace: TraceReader, compression: Compression) {
    let mut expected = 0;
    let error = loop {
        match trace.next().expect("a cut stream is not a short trace") {
            Ok(request) => assert_eq!(request, pages(Op::Read, expected, 1)),
            Err(error) => break error,
        }
        expected += 1;
    };
    match error {
        TraceError::Stream {
            compression: found,
            record,
            offset,
            ..
        } => {
            assert_eq!((found, record), (compression, expected + 1));
            assert!(offset >= lirs_lines(0..expected).len() as u64);
        }
        other => panic!("{other}"),
    }
    assert!(trace.next().is_none());
}

/// A stream that fails after its bytes, as a failing disk does.
struct Dying(Cursor<Vec<u8>>);

impl Read for Dying {
    fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
        match self.0.read(target)? {
            0 => Err(io::Error::other("the disk died")),
            read => Ok(read),
        }
    }
}

// Goal: a failing disk is never mistaken for a bad record or the end. Method: a stream that fails
// after whole records, read leniently, plain and compressed.
#[test]
fn lenient_readers_report_a_failing_disk() {
    let plain = lirs_lines(0..50_000);
    let streams = [
        Some(plain.clone()),
        compress("zstd", &plain),
        compress("xz", &plain),
    ];
    for mut bytes in streams.into_iter().flatten() {
        bytes.truncate(bytes.len() / 2);
        let trace = TraceReader::from_reader(
            "dying",
            Dying(Cursor::new(bytes)),
            &options(Some(Format::Lirs), Lenient::SkipBad),
        )
        .unwrap();
        match trace.last().unwrap() {
            Err(TraceError::Stream { source, .. }) => {
                assert!(source.to_string().contains("the disk died"), "{source}");
            }
            other => panic!("{other:?}"),
        }
    }
}

// Goal: no damage of a compressed stream makes a reader panic or run on. Method: flip, insert,
// repeat and remove bytes of a trace compressed with each reference tool, and truncate it.
#[test]
fn damaged_streams_never_panic_and_always_end() {
    let mut random = fastrand::Rng::with_seed(seed());
    for tool in ["zstd", "gzip", "xz"] {
        let numbers: Vec<u8> = (0..2_000)
            .flat_map(|_| format!("{}\n", random.u64(..) >> random.u32(20..64)).into_bytes())
            .collect();
        let Some(bytes) = compress(tool, &numbers) else {
            continue;
        };
        for _ in 0..400 {
            let mut mutant = bytes.clone();
            for _ in 0..random.usize(1..4) {
                mutate(&mut mutant, &mut random);
            }
            for lenient in [Lenient::StopAtBad, Lenient::SkipBad] {
                assert_ends(&mutant, &options(Some(Format::Lirs), lenient));
            }
        }
    }
}

/// An endless stream that counts the bytes read from it.
struct Endless {
    pattern: &'static [u8],
    taken: Arc<Mutex<usize>>,
}

impl Read for Endless {
    fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
        let mut taken = self.taken.lock().unwrap();
        for byte in target.iter_mut() {
            *byte = self.pattern[*taken % self.pattern.len()];
            *taken += 1;
        }
        Ok(target.len())
    }
}

// Goal: traces are streamed: read-ahead is bounded for any length. Method: endless traces, of
// records and of one line, and a count of the bytes that the reader has consumed.
#[test]
fn endless_traces_are_read_as_they_come() {
    let window = 512 << 10;
    let cases = [
        (Format::Arc, &b"8 8 0 0\n"[..]),
        (Format::U64Be, b"01234567"),
        (Format::Mooncake, b"{\"hash_ids\": [1, 2, 3]}\n"),
    ];
    for (format, pattern) in cases {
        let taken = Arc::new(Mutex::new(0));
        let stream = Endless {
            pattern,
            taken: Arc::clone(&taken),
        };
        let named = options(Some(format), Lenient::StopAtBad);
        let mut trace = TraceReader::from_reader("endless", stream, &named).unwrap();
        for nr_read in 1..=500_000 {
            assert!(trace.next().unwrap().is_ok());
            let ahead = *taken.lock().unwrap();
            assert!(ahead <= nr_read * pattern.len() + window, "{format}");
        }
    }
    let taken = Arc::new(Mutex::new(0));
    let stream = Endless {
        pattern: b"9",
        taken: Arc::clone(&taken),
    };
    let named = options(Some(Format::Lirs), Lenient::StopAtBad);
    let mut trace = TraceReader::from_reader("endless", stream, &named).unwrap();
    let error = trace.next().unwrap().unwrap_err().to_string();
    assert!(
        error.contains("expected a line of at most 256 KiB"),
        "{error}"
    );
    assert!(trace.next().is_none());
}
