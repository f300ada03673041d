//! Promise: each trace format is read as documented, and an error in a trace is reported with its
//! place: the reader never guesses and never panics.

#![expect(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
#![expect(clippy::print_stderr, reason = "a failed test prints its seed")]

mod trace_support;

use std::io::{self, Cursor, Read};
use std::path::Path;

use highwater_lab::trace::{
    CompactWriter, Format, Lenient, Op, ReaderOptions, Request, Target, TraceError, TraceReader,
    WriteError,
};

use trace_support::{assert_ends, mutate, options, pages, seed};

/// A small trace of one format, and its expected requests.
struct Sample {
    format: Format,
    bytes: Vec<u8>,
    requests: Vec<Request>,
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
        sample(
            Format::Msr,
            "Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime\n128166372003061629,hm,1,Read,383496192,32768,413\n128166372016382155,hm,1,Write,4095,2,0\r\n",
            vec![pages(Op::Read, 93_627, 8), pages(Op::Write, 0, 2)],
        ),
        sample(
            Format::Twitter,
            "0,7,3,4093,1,get,0\n0,8,3,4094,1,set,60\n1,7,1,0,1,delete,0\n1,9,3,0,2,incr,0\n",
            vec![
                key(Op::Read, 7, 1),
                key(Op::Write, 8, 2),
                key(Op::Write, 9, 1),
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
        pages(Op::Write, 0, 1 << 20),
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

fn read(bytes: &[u8], options: &ReaderOptions) -> Result<Vec<Request>, TraceError> {
    TraceReader::from_reader("sample", Cursor::new(bytes.to_vec()), options)?.collect()
}

/// A stream that returns few bytes at a time, as a pipe may.
struct Drip(Cursor<Vec<u8>>);

impl Read for Drip {
    fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
        let few = target.len().min(7);
        self.0.read(&mut target[..few])
    }
}

// Goal: every format reads as documented, detected by content or named, at any pace of the stream.
// Method: one sample for each format, built by hand, with its edge cases.
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

// Goal: a byte order mark above a text changes nothing. Method: each text format, named and not.
#[test]
fn a_byte_order_mark_is_no_record() {
    for sample in text_samples() {
        let marked = [b"\xEF\xBB\xBF", sample.bytes.as_slice()].concat();
        for format in [Some(sample.format), None] {
            let read = read(&marked, &options(format, Lenient::StopAtBad));
            assert_eq!(read.unwrap(), sample.requests, "{}", sample.format);
        }
    }
}

// Goal: no array of keys is detected as a format. Method: arrays of every width and order whose
// keys are constant, sequential, small or random, beginnings of `oracle-general` look-alikes among
// them.
#[test]
fn arrays_of_keys_are_never_detected() {
    let mut random = fastrand::Rng::with_seed(seed());
    let mut arrays: Vec<Vec<u64>> = vec![vec![0; 3_000], vec![1; 3_000], vec![u64::MAX; 3_000]];
    arrays.push((0..3_000).collect());
    arrays.push((1_000_000..1_003_000).collect());
    for bits in [1, 4, 16, 32, 64] {
        for _ in 0..50 {
            arrays.push((0..3_000).map(|_| random.u64(..) >> (64 - bits)).collect());
        }
    }
    for keys in arrays {
        let narrow = |key: &u64| u32::try_from(key & u64::from(u32::MAX)).unwrap();
        let layouts: [Vec<u8>; 4] = [
            keys.iter().flat_map(|key| key.to_be_bytes()).collect(),
            keys.iter().flat_map(|key| key.to_le_bytes()).collect(),
            keys.iter()
                .flat_map(|key| narrow(key).to_be_bytes())
                .collect(),
            keys.iter()
                .flat_map(|key| narrow(key).to_le_bytes())
                .collect(),
        ];
        for bytes in layouts {
            let error = read(&bytes, &ReaderOptions::default()).unwrap_err();
            assert!(
                matches!(error, TraceError::UnknownFormat { .. }),
                "the keys {:?}: {error}",
                &keys[..8]
            );
        }
    }
}

// Goal: a request touches the pages that its bytes lie in, for any block size. Method: blocks that
// divide a page, are one, cross one, and hold several.
#[test]
fn arc_blocks_have_the_size_that_is_given() {
    let cases = [
        (None, pages(Op::Read, 0, 1)),
        (Some(512), pages(Op::Read, 0, 1)),
        (Some(4096), pages(Op::Read, 4, 2)),
        (Some(1000), pages(Op::Read, 0, 2)),
        (Some(65_536), pages(Op::Read, 64, 32)),
    ];
    for (block_size, expected) in cases {
        let options = ReaderOptions {
            block_size,
            ..ReaderOptions::default()
        };
        assert_eq!(
            read(b"4 2 0 0", &options).unwrap(),
            [expected],
            "{block_size:?}"
        );
    }
}

// Goal: an error names file, record, offset, the content found and the content expected. Method:
// one bad record for each format in a known place.
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

// Goal: input that cannot be read at all is refused with advice. Method: a missing file, an empty
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

// Goal: a lenient reader skips exactly the bad records and finds the next one. Method: good records
// around bad ones, among them a line longer than any window.
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
        assert_eq!(trace.skipped().records, bad, "{format}");
    }
}

// Goal: no content makes a reader panic or run on. Method: flip, insert, repeat and remove bytes of
// every format's sample, and truncate it; read it under every name and by content.
#[test]
fn mutations_never_panic_and_always_end() {
    let mut random = fastrand::Rng::with_seed(seed());
    for Sample { format, bytes, .. } in &samples() {
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

// Goal: the compact format holds any request, and its counts reveal every truncation. Method:
// random requests written with known and with patched counts, read back, truncated at every byte.
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
                1 + (random.u64(..) >> random.u32(45..64)).min((1 << 44) - first - 1),
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
        (0, (1 << 20) + 1),
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
