//! Promise: traces are read as they were recorded, whatever their format and compression, and what
//! is wrong with them is said, never guessed and never a panic.
//!
//! The recorded traces are not part of the project. They are looked for in the folder that
//! `HIGHWATER_TRACES` names, then in `shared/traces` beside the workspace; without them the tests
//! that need them say so and pass.

#![expect(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
#![expect(
    clippy::print_stderr,
    reason = "a skipped test says why, a failed one prints its seed"
)]

use std::collections::HashSet;
use std::io::{self, Cursor, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use highwater_lab::models::Lru;
use highwater_lab::trace::{
    CompactWriter, Compression, Format, Lenient, Op, ReaderOptions, Request, Target, TraceError,
    TraceReader, WriteError,
};

/// A row of the published table: file, bytes of an `arc` block, format where content does not tell
/// it, requests (with their sizes reduced to one page each, where the view is "key"), unique pages
/// or keys, and LRU miss ratios at 1 % and 10 % of these.
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

/// The checker results of the traces' own description, one row per file in the view that the
/// reader gives.
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

/// The folder of the recorded traces, or `None` with a line that says why.
fn shared_traces() -> Option<PathBuf> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut places: Vec<PathBuf> = std::env::var_os("HIGHWATER_TRACES")
        .map(PathBuf::from)
        .into_iter()
        .collect();
    places.push(workspace.join("../shared/traces"));
    places.push(workspace.join("../../../shared/traces"));
    let found = places.iter().find(|place| place.join("block-io").is_dir());
    if found.is_none() {
        eprintln!("skipped: no recorded traces; set HIGHWATER_TRACES to their folder");
    }
    found.cloned()
}

/// Every access of a trace, a key counted as one page of its own: the view of the table.
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
    };
    TraceReader::open(path, &options).unwrap()
}

// Goal: parsers and the LRU model agree with an independent checker. Method: for every recorded
// trace compare the number of accesses, of unique pages and two miss ratios with the table that
// came with the traces, to the four digits it gives.
#[test]
fn shared_traces_match_their_table() {
    let Some(folder) = shared_traces() else {
        return;
    };
    for row in &TABLE {
        let pages = accesses(open(&folder.join(row.file), row.format, row.block_size));
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
// the figures that the traces' description states.
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
        assert_eq!((trace.bad_records(), trace.empty_records()), (0, 0));
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

/// A small trace of one format and what it says.
struct Sample {
    format: Format,
    bytes: Vec<u8>,
    requests: Vec<Request>,
}

fn pages(op: Op, first: u64, count: u64) -> Request {
    let target = Target::Pages { first, count };
    Request { op, target }
}

fn key(op: Op, key: u64, pages: u64) -> Request {
    let target = Target::Key { key, pages };
    Request { op, target }
}

fn vscsi_record(opcode: u16, sector: u64, length: u32) -> Vec<u8> {
    let mut record = Vec::new();
    record.extend(9_u32.to_le_bytes());
    record.extend(length.to_le_bytes());
    record.extend(1_u32.to_le_bytes());
    record.extend(opcode.to_le_bytes());
    record.extend(0x0100_u16.to_le_bytes());
    record.extend(sector.to_le_bytes());
    record.extend(5_633_898_368_802_u64.to_le_bytes());
    record
}

fn oracle_record(time: u32, key: u64, size: u32, next: i64) -> Vec<u8> {
    let mut record = Vec::new();
    record.extend(time.to_le_bytes());
    record.extend(key.to_le_bytes());
    record.extend(size.to_le_bytes());
    record.extend(next.to_le_bytes());
    record
}

fn compact(requests: &[Request]) -> Vec<u8> {
    let mut writer = CompactWriter::seekable(Cursor::new(Vec::new())).unwrap();
    for request in requests {
        match request.target {
            Target::Pages { first, count } => writer.push(request.op, first, count).unwrap(),
            Target::Key { .. } => unreachable!("keys are not stored"),
        }
    }
    writer.finish().unwrap().into_inner()
}

fn text_samples() -> Vec<Sample> {
    let sample = |format, text: &str, requests| Sample {
        format,
        bytes: text.into(),
        requests,
    };
    vec![
        sample(
            Format::Arc,
            "110765 64 0 0\n7 2 0 1\n\n0 1 9 9\n3 0 0 4\n",
            vec![
                pages(Op::Read, 13_845, 9),
                pages(Op::Read, 0, 2),
                pages(Op::Read, 0, 1),
            ],
        ),
        sample(
            Format::Lirs,
            "0\r\n17\r\n*\r\n\n5",
            [0, 17, 5].map(|page| pages(Op::Read, page, 1)).to_vec(),
        ),
        sample(
            Format::Address,
            "s 0x1fffff50 1\nl 0x30031000 14\n",
            vec![pages(Op::Write, 0x1_ffff, 1), pages(Op::Read, 0x3_0031, 1)],
        ),
        sample(
            Format::AdaptSize,
            "1 0 68\n2 1 7454\n3 2 0\n4 3 4096\n",
            [(0, 1), (1, 2), (2, 1), (3, 1)]
                .map(|(id, count)| key(Op::Read, id, count))
                .to_vec(),
        ),
        sample(
            Format::Mooncake,
            "{\"timestamp\": 0, \"a\": [{\"hash_ids\": 1}], \"hash_ids\": [0, 14, 14]}\n{\"hash_ids\": []}\n{\"hash_ids\":[7]}\n",
            [0, 14, 14, 7].map(|id| key(Op::Read, id, 1)).to_vec(),
        ),
        sample(
            Format::Csv,
            "time,key,size,op\n0,7,,read\n0.5,8,4097,SET\n,9,0,w\n1,18446744073709551615,1,get\n",
            vec![
                key(Op::Read, 7, 1),
                key(Op::Write, 8, 2),
                key(Op::Write, 9, 1),
                key(Op::Read, u64::MAX, 1),
            ],
        ),
    ]
}

fn binary_samples() -> Vec<Sample> {
    let vscsi = [
        vscsi_record(0x2a, 42_932_745, 512),
        vscsi_record(0x28, 7, 1024),
        vscsi_record(0x88, 9, 0),
        vscsi_record(0x0a, 16, 8193),
    ];
    let oracle = [
        oracle_record(1, 700, 4096, 2),
        oracle_record(1, 701, 10_000, -1),
        oracle_record(2, 700, 4096, 3),
        oracle_record(3, 700, 4097, i64::MAX),
    ];
    let stored = vec![
        pages(Op::Read, 5, 1),
        pages(Op::Write, 6, 1000),
        pages(Op::Read, (1 << 44) - 1, 1),
        pages(Op::Write, 0, 1 << 32),
    ];
    let keys = [3, 0xf000_0001, 3];
    let read_keys = keys.map(|id| key(Op::Read, id, 1)).to_vec();
    let narrow = keys.map(|id| u32::try_from(id).unwrap());
    let sample = |format, bytes, requests| Sample {
        format,
        bytes,
        requests,
    };
    vec![
        sample(
            Format::U32Be,
            narrow.map(u32::to_be_bytes).concat(),
            read_keys.clone(),
        ),
        sample(
            Format::U32Le,
            narrow.map(u32::to_le_bytes).concat(),
            read_keys.clone(),
        ),
        sample(
            Format::U64Be,
            keys.map(u64::to_be_bytes).concat(),
            read_keys,
        ),
        sample(
            Format::Vscsi,
            vscsi.concat(),
            vec![
                pages(Op::Write, 5_366_593, 1),
                pages(Op::Read, 0, 2),
                pages(Op::Write, 2, 3),
            ],
        ),
        sample(
            Format::OracleGeneral,
            oracle.concat(),
            [(700, 1), (701, 3), (700, 1), (700, 2)]
                .map(|(id, count)| key(Op::Read, id, count))
                .to_vec(),
        ),
        sample(Format::Highwater, compact(&stored), stored),
    ]
}

fn samples() -> Vec<Sample> {
    let mut samples = text_samples();
    samples.extend(binary_samples());
    samples
}

fn options(format: Option<Format>, lenient: Lenient) -> ReaderOptions {
    ReaderOptions {
        format,
        block_size: None,
        lenient,
    }
}

fn read(bytes: &[u8], options: &ReaderOptions) -> Result<Vec<Request>, TraceError> {
    TraceReader::from_reader("sample", Cursor::new(bytes.to_vec()), options)?.collect()
}

/// A stream that gives few bytes at a time, as a pipe may.
struct Drip(Cursor<Vec<u8>>);

impl Read for Drip {
    fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
        let few = target.len().min(7);
        self.0.read(&mut target[..few])
    }
}

// Goal: every format reads as documented, found out by content or by name, at any pace of the
// stream. Method: one sample per format, built by hand, with its edge cases.
#[test]
fn every_format_reads_its_sample() {
    let samples = samples();
    for format in Format::ALL {
        let of_format = samples.iter().filter(|sample| sample.format == format);
        assert_eq!(of_format.count(), 1, "one sample of {format}");
    }
    for sample in samples {
        let named = options(Some(sample.format), Lenient::StopAtBad);
        assert_eq!(
            read(&sample.bytes, &named).unwrap(),
            sample.requests,
            "{}",
            sample.format
        );
        let drip = Drip(Cursor::new(sample.bytes.clone()));
        let trace = TraceReader::from_reader("drip", drip, &named).unwrap();
        let requests: Result<Vec<_>, _> = trace.collect();
        assert_eq!(
            requests.unwrap(),
            sample.requests,
            "{} drop by drop",
            sample.format
        );

        let detected = TraceReader::from_reader(
            "sample",
            Cursor::new(sample.bytes.clone()),
            &ReaderOptions::default(),
        );
        let is_bare = matches!(sample.format, Format::U32Be | Format::U64Be | Format::U32Le);
        if is_bare {
            let message = detected.unwrap_err().to_string();
            assert!(
                message.contains("--format") && message.contains("u32be"),
                "{message}"
            );
            continue;
        }
        let trace = detected.unwrap();
        assert_eq!(trace.format(), sample.format);
        let has_write = sample
            .requests
            .iter()
            .any(|request| request.op == Op::Write);
        assert_eq!(trace.may_write(), has_write, "{}", sample.format);
        let requests: Result<Vec<_>, _> = trace.collect();
        assert_eq!(
            requests.unwrap(),
            sample.requests,
            "{} by content",
            sample.format
        );
    }
}

/// Compresses with the reference tool; `None` where it is not installed.
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

// Goal: each compression is told by content, its pieces are joined, and a truncated or damaged
// stream is an error in its place, after every whole record before it. Method: compress with the
// reference tools, concatenate two results, cut and damage them.
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

/// Checks that a cut stream of the lines 0, 1, 2, ... yields a beginning of them, whole, then one
/// error that names the compression and the next record, then nothing.
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

// Goal: an error names file, record, offset, what was found and what was expected. Method: one bad
// record per format in a place that is known.
#[test]
fn errors_say_where_and_what() {
    let cases: [(Format, Vec<u8>, &str); 9] = [
        (
            Format::Arc,
            b"1 2 0 0\n\n1 two 0 0\n".to_vec(),
            "sample: record 3 at byte 9: found `1 two 0 0`, expected four numbers",
        ),
        (
            Format::Arc,
            b"18446744073709551615 1 0 0".to_vec(),
            "record 1 at byte 0: found start 18446744073709551615",
        ),
        (
            Format::Lirs,
            b"1\n99999999999999999999\n".to_vec(),
            "record 2 at byte 2: found `99999999999999999999`, expected one page number",
        ),
        (
            Format::Address,
            b"l 0xfffffffffffffff0 1\n".to_vec(),
            "found page 4503599627370495, expected pages below 2^44",
        ),
        (
            Format::Csv,
            b"time,key,size,op\n1,2,3,fetch\n".to_vec(),
            "record 2 at byte 17: found `1,2,3,fetch`",
        ),
        (
            Format::Mooncake,
            b"{\"hash_ids\": [1, -2]}\n".to_vec(),
            "expected a JSON object with `hash_ids`",
        ),
        (
            Format::Vscsi,
            vscsi_record(0x35, 1, 1),
            "record 1 at byte 0: found opcode 53, expected the opcode of a READ",
        ),
        (
            Format::U32Be,
            vec![0, 0, 0, 1, 0xab],
            "record 2 at byte 4: found the bytes ab, expected a whole record",
        ),
        (
            Format::Highwater,
            compact(&[pages(Op::Read, 1, 1)])[..25].to_vec(),
            "record 1 at byte 24: found the bytes 04, expected a whole record",
        ),
    ];
    for (format, bytes, expected) in cases {
        let mut trace = TraceReader::from_reader(
            "sample",
            Cursor::new(bytes),
            &options(Some(format), Lenient::StopAtBad),
        )
        .unwrap();
        let error = trace.find_map(Result::err).unwrap().to_string();
        assert!(
            error.contains(expected),
            "{format}: `{error}` lacks `{expected}`"
        );
        assert!(
            trace.next().is_none(),
            "{format}: an error is the last answer"
        );
    }
}

// Goal: what cannot be read at all is refused with what to do. Method: a missing file, an empty
// stream, foreign content, blocks of no bytes.
#[test]
fn unusable_input_is_refused_with_advice() {
    let missing = TraceReader::open(Path::new("/nonexistent/trace"), &ReaderOptions::default());
    assert!(matches!(missing, Err(TraceError::Open { .. })));
    for (bytes, found) in [
        (&b""[..], "found an empty stream"),
        (
            b"To be, or not to be\n",
            "found text with lines like `To be, or not to be`",
        ),
        (
            &[0x7f, b'E', b'L', b'F', 2],
            "found binary data that begins with the bytes 7f 45 4c 46 02",
        ),
    ] {
        let error = read(bytes, &ReaderOptions::default())
            .unwrap_err()
            .to_string();
        assert!(
            error.contains(found) && error.contains("--format"),
            "{error}"
        );
    }
    let no_bytes = ReaderOptions {
        block_size: Some(0),
        ..ReaderOptions::default()
    };
    assert!(matches!(
        read(b"1 1 0 0\n", &no_bytes),
        Err(TraceError::BlockSize { .. })
    ));
    assert_eq!(
        read(b"", &options(Some(Format::Arc), Lenient::StopAtBad)).unwrap(),
        []
    );
}

// Goal: a lenient reader passes over exactly the bad records and finds the next one. Method: good
// records around bad ones, among them a line longer than any window.
#[test]
fn lenient_readers_skip_count_and_resynchronise() {
    let lenient = |format| options(Some(format), Lenient::SkipBad);
    let long = "9".repeat(600_000);
    let text = format!("1\nx\n2\n{long}\n3\n99999999999999\n4");
    let vscsi = [
        vscsi_record(0x28, 0, 1),
        vscsi_record(0x35, 0, 1),
        vscsi_record(0x2a, 8, 1),
        vec![1; 31],
    ];
    let mut counted = compact(&[pages(Op::Read, 1, 1), pages(Op::Read, 2, 1)]);
    counted.push(0);
    let reads = |numbers: &[u64]| {
        numbers
            .iter()
            .map(|&page| pages(Op::Read, page, 1))
            .collect()
    };
    let cases: [(Format, Vec<u8>, Vec<Request>, u64); 5] = [
        (Format::Lirs, text.into_bytes(), reads(&[1, 2, 3, 4]), 3),
        (
            Format::Vscsi,
            vscsi.concat(),
            vec![pages(Op::Read, 0, 1), pages(Op::Write, 1, 1)],
            2,
        ),
        (
            Format::Csv,
            b"0,1,2,r\n0,7,1,r\n".to_vec(),
            vec![key(Op::Read, 7, 1)],
            1,
        ),
        (Format::Highwater, counted, reads(&[1, 2]), 1),
        (
            Format::Highwater,
            b"HWTRACE2aaaaaaaabbbbbbbb".to_vec(),
            vec![],
            1,
        ),
    ];
    for (format, bytes, expected, bad) in cases {
        let mut trace =
            TraceReader::from_reader("sample", Cursor::new(bytes), &lenient(format)).unwrap();
        let requests: Result<Vec<_>, _> = trace.by_ref().collect();
        assert_eq!(requests.unwrap(), expected, "{format}");
        assert_eq!(trace.bad_records(), bad, "{format}");
    }
}

/// A stream that fails after its bytes, as a dying disk does.
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

// Goal: no content makes a reader panic or run on. Method: flip, insert, repeat and remove bytes of
// every format's sample, plain and compressed, and cut it; read it under every name and by content.
#[test]
fn mutations_never_panic_and_always_end() {
    let seed = std::env::var("SEED").map_or(20_261_121, |seed| seed.parse().unwrap());
    eprintln!("SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let mut sources: Vec<(Format, Vec<u8>)> = samples()
        .into_iter()
        .map(|sample| (sample.format, sample.bytes))
        .collect();
    for tool in ["zstd", "gzip", "xz"] {
        let stored = compress(tool, &lirs_lines(0..2_000));
        sources.extend(stored.map(|bytes| (Format::Lirs, bytes)));
    }
    for (format, bytes) in &sources {
        for _ in 0..400 {
            let mut mutant = bytes.clone();
            for _ in 0..random.usize(1..4) {
                mutate(&mut mutant, &mut random);
            }
            let other = random.choice(Format::ALL).unwrap();
            let named = *random
                .choice([Some(*format), Some(other), None].iter())
                .unwrap();
            for lenient in [Lenient::StopAtBad, Lenient::SkipBad] {
                assert_ends(&mutant, &options(named, lenient));
            }
        }
    }
}

fn mutate(bytes: &mut Vec<u8>, random: &mut fastrand::Rng) {
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
fn assert_ends(bytes: &[u8], options: &ReaderOptions) {
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
        Lenient::StopAtBad => assert!(errors <= 1 && trace.bad_records() == 0),
        Lenient::SkipBad => assert_eq!(errors, 0),
    }
}

// Goal: the compact format holds any request, and its counts tell every truncation. Method: random
// requests written with known and with patched counts, read back, cut at every byte.
#[test]
fn compact_traces_read_back_and_every_cut_is_noticed() {
    let mut random = fastrand::Rng::with_seed(11);
    let requests: Vec<Request> = (0..2_000)
        .map(|_| {
            let op = if random.bool() { Op::Read } else { Op::Write };
            let first = random.u64(..) >> random.u32(20..64);
            pages(
                op,
                first,
                1 + (random.u64(..) >> random.u32(32..64)).min((1 << 44) - first - 1),
            )
        })
        .collect();
    let bytes = compact(&requests);
    assert_eq!(read(&bytes, &ReaderOptions::default()).unwrap(), requests);
    let accesses = requests
        .iter()
        .map(|request| request.target.page_count())
        .sum();
    let mut writer = CompactWriter::with_counts(Vec::new(), 2_000, accesses).unwrap();
    for request in &requests {
        if let Target::Pages { first, count } = request.target {
            writer.push(request.op, first, count).unwrap();
        }
    }
    assert_eq!(writer.finish().unwrap(), bytes);
    for cut in 8..bytes.len() {
        let error = read(&bytes[..cut], &ReaderOptions::default()).unwrap_err();
        assert!(
            matches!(error, TraceError::BadRecord { .. }),
            "cut at {cut}: {error}"
        );
    }
}

// Goal: the writer refuses what the reader would. Method: requests outside each limit, counts that
// were not kept, a trace that was never finished.
#[test]
fn compact_writer_refuses_what_cannot_be_read() {
    let mut writer = CompactWriter::with_counts(Vec::new(), 1, 1).unwrap();
    for (first, count) in [
        (0, 0),
        (1 << 44, 1),
        ((1 << 44) - 1, 2),
        (0, (1 << 32) + 1),
        (u64::MAX, 1),
    ] {
        let refused = writer.push(Op::Read, first, count);
        assert!(matches!(refused, Err(WriteError::Range { .. })));
    }
    assert!(matches!(
        writer.finish(),
        Err(WriteError::Counts { records: 0, .. })
    ));

    let mut torn = Cursor::new(Vec::new());
    CompactWriter::seekable(&mut torn)
        .unwrap()
        .push(Op::Read, 1, 1)
        .unwrap();
    assert!(read(torn.get_ref(), &ReaderOptions::default()).is_err());
}
