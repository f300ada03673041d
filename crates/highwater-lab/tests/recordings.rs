//! Promise: a recording (format 2 of `highwater`) reads back as it was written, with its files'
//! names, also when it was cut short, and no content makes the reader panic.
#![expect(clippy::unwrap_used, reason = "a failure fails the test")]

use std::collections::HashMap;
use std::fs;
use std::io::Cursor;

use highwater::frame::Tunables;
use highwater::lab::reclaim::policy::PolicyKind;
use highwater::units::{Bytes, Pages};
use highwater_lab::control::Control;
use highwater_lab::replay::{
    DataIo, Outcome, Replay, ReplayConfig, Table, TenantConfig, TraceInput,
};
use highwater_lab::trace::{
    CompactWriter, FileId, Lenient, Op, Packing, ReaderOptions, Recording, RecordingWriter,
    Request, Target, TraceError, TraceReader, WriteError,
};

const fn id(inode: u64) -> FileId {
    FileId {
        major: 254,
        minor: 3,
        inode,
    }
}

type Answer = Result<(Vec<Request>, Recording, u64), TraceError>;

fn read(bytes: &[u8], lenient: Lenient) -> Answer {
    let options = ReaderOptions {
        lenient,
        ..ReaderOptions::default()
    };
    let mut reader = TraceReader::from_reader("test", Cursor::new(bytes.to_vec()), &options)?;
    let mut requests = Vec::new();
    for request in reader.by_ref() {
        requests.push(request?);
    }
    let recording = reader.recording().unwrap().clone();
    Ok((requests, recording, reader.skipped().records))
}

fn pages(request: &Request) -> (u64, u64) {
    match request.target {
        Target::Pages { first, count } => (first, count),
        Target::Key { .. } => panic!("a recording has pages"),
    }
}

/// An access as the test wrote it: inode, op, page of the file.
type Access = (u64, Op, u64);

/// Returns the accesses of a recording, page by page.
fn accesses(requests: &[Request], recording: &Recording) -> Vec<Access> {
    let mut all = Vec::new();
    for request in requests {
        let (first, count) = pages(request);
        for page in first..first + count {
            let (file, page) = recording.file_of_page(page).unwrap();
            all.push((file.id.inode, request.op, page));
        }
    }
    all
}

/// Records accesses to files whose sizes are known, unknown, wrong and growing.
fn made(packing: Packing, count: u32) -> (Vec<u8>, Vec<Access>) {
    let mut random = fastrand::Rng::with_seed(7);
    let mut writer = RecordingWriter::new(Vec::new(), packing, "kernel: test\n").unwrap();
    let sizes = [1_000, 0, 3, 1 << 40, 64];
    let files: Vec<_> = sizes
        .iter()
        .zip(0..)
        .map(|(size, inode)| writer.file(id(inode), *size, "").unwrap())
        .collect();
    let mut written = Vec::new();
    for step in 0..count {
        let inode = random.u64(..5);
        let first = match random.u8(..4) {
            0 => u64::from(step),
            1 => random.u64(..1 << 35),
            _ => random.u64(..2_000),
        };
        let pages = random.u64(1..=70);
        let op = if random.bool() { Op::Read } else { Op::Write };
        let file = files[usize::try_from(inode).unwrap()];
        writer.push(file, op, first, pages).unwrap();
        written.extend((first..first + pages).map(|page| (inode, op, page)));
        if step % 997 == 0 {
            writer.lost(u64::from(step));
            writer.flush().unwrap();
        }
    }
    for (inode, file) in files.iter().enumerate() {
        writer.name(*file, &format!("/data/{inode}"));
    }
    let (bytes, totals) = writer.finish().unwrap();
    assert_eq!(totals.accesses, written.len() as u64);
    (bytes, written)
}

/// Goal: every access reads back with its file and page, in order, and two pages of the trace are
/// never the same. Method: random accesses, both packings.
#[test]
fn accesses_read_back_with_their_files() {
    for packing in [Packing::Plain, Packing::Zstd] {
        let (bytes, written) = made(packing, 5_000);
        let (requests, recording, bad) = read(&bytes, Lenient::StopAtBad).unwrap();
        assert_eq!(bad, 0);
        assert!(accesses(&requests, &recording) == written, "{packing:?}");
        assert!(recording.is_complete());
        assert_eq!(recording.about(), "kernel: test\n");
        assert_eq!(
            recording.lost_events(),
            (0..5_000).step_by(997).sum::<u64>()
        );
        let names = recording.files().iter().map(|file| file.name.as_str());
        assert!(names.eq(["/data/0", "/data/1", "/data/2", "/data/3", "/data/4"]));
        let mut places: HashMap<u64, (u64, u64)> = HashMap::new();
        for request in &requests {
            let (first, count) = pages(request);
            for page in first..first + count {
                let (file, in_file) = recording.file_of_page(page).unwrap();
                let place = (file.id.inode, in_file);
                assert_eq!(*places.entry(page).or_insert(place), place);
            }
        }
        assert_eq!(recording.file_of_page(1 << 50), None);
    }
}

/// Goal: a file of known size has its pages side by side in the trace, and one that grows has few
/// extents. Method: sequential accesses; count the steps between requests.
#[test]
fn sequential_accesses_stay_sequential() {
    let mut writer = RecordingWriter::new(Vec::new(), Packing::Plain, "").unwrap();
    let known = writer.file(id(1), 10_000, "known").unwrap();
    let growing = writer.file(id(2), 0, "growing").unwrap();
    for page in 0..10_000 {
        writer.push(known, Op::Read, page, 1).unwrap();
        writer.push(growing, Op::Write, page, 1).unwrap();
    }
    let (bytes, _) = writer.finish().unwrap();
    let (requests, ..) = read(&bytes, Lenient::StopAtBad).unwrap();
    let breaks = |op| {
        let of = requests.iter().filter(|request| request.op == op);
        let firsts: Vec<_> = of.map(|request| pages(request).0).collect();
        firsts.windows(2).filter(|two| two[1] != two[0] + 1).count()
    };
    assert_eq!(breaks(Op::Read), 0);
    assert!(breaks(Op::Write) <= 10, "{}", breaks(Op::Write));
}

/// Goal: a recording that was cut anywhere, as by SIGKILL, is an error that says so, and its whole
/// blocks can be read. Method: cut at many bytes; the lenient reader gives a prefix that grows up
/// to the last flush.
#[test]
fn a_prefix_is_readable() {
    for packing in [Packing::Plain, Packing::Zstd] {
        let (bytes, written) = made(packing, 3_000);
        let mut most = 0;
        let cuts = (20..bytes.len()).step_by(bytes.len() / 60);
        for cut in cuts.chain([bytes.len() - 1]) {
            let strict = read(&bytes[..cut], Lenient::StopAtBad).unwrap_err();
            let message = strict.to_string();
            if packing == Packing::Plain {
                assert!(
                    message.contains("cut short") && message.contains("--lenient"),
                    "{message}"
                );
            }
            let Ok((requests, recording, bad)) = read(&bytes[..cut], Lenient::SkipBad) else {
                assert!(most == 0, "{cut}");
                continue;
            };
            let found = accesses(&requests, &recording);
            assert_eq!(bad, 1);
            assert!(!recording.is_complete() && found.len() >= most);
            assert!(found == written[..found.len()], "cut at {cut}");
            most = found.len();
        }
        assert!(
            most * 10 >= written.len() * 9,
            "{most} of {}",
            written.len()
        );
    }
}

/// Goal: a lenient reader that loses the rest of a trace says after how many bytes. Method: damage
/// in the midst of a plain trace of version 1, in which each record has two bytes; both versions
/// cut at their ends; a recording cut between the frames of its flushes; one that is whole.
#[test]
fn a_lost_rest_is_no_single_bad_record() {
    let counts = CompactWriter::with_counts(Vec::new(), 500, 500);
    let mut writer = counts.unwrap();
    (0..500).for_each(|page| writer.push(Op::Read, page, 1).unwrap());
    let compact = writer.finish().unwrap();
    let mut damaged = compact.clone();
    damaged[524..544].fill(0xff);
    let (plain, _) = made(Packing::Plain, 200);
    let (packed, _) = made(Packing::Zstd, 3_000);
    let magic = [0x28, 0xb5, 0x2f, 0xfd];
    let last_frame = packed.windows(4).rposition(|four| four == magic).unwrap();
    let lost = |bytes: &[u8]| {
        let options = ReaderOptions {
            lenient: Lenient::SkipBad,
            ..ReaderOptions::default()
        };
        let bytes = Cursor::new(bytes.to_vec());
        let mut reader = TraceReader::from_reader("test", bytes, &options).unwrap();
        let requests = reader.by_ref().map(Result::unwrap).count();
        (
            requests,
            reader.skipped().records,
            reader.skipped().cut_after,
        )
    };
    assert_eq!(lost(&compact), (500, 0, None));
    assert_eq!(lost(&damaged), (250, 1, Some(524)));
    assert_eq!(lost(&compact[..1023]), (499, 1, Some(1022)));
    let (_, bad, cut_after) = lost(&plain[..plain.len() - 8]);
    assert_eq!((bad, cut_after.is_some()), (1, true));
    let (_, bad, cut_after) = lost(&packed[..last_frame]);
    assert_eq!((bad, cut_after), (1, Some(last_frame as u64)));
    let (_, bad, cut_after) = lost(&packed);
    assert_eq!((bad, cut_after), (0, None));
}

/// Goal: no content makes the reader panic or run on. Method: mutations of a small recording.
#[test]
fn mutated_recordings_never_panic() {
    let (bytes, _) = made(Packing::Plain, 60);
    let mut random = fastrand::Rng::with_seed(3);
    for _ in 0..5_000 {
        let mut mutated = bytes.clone();
        for _ in 0..random.usize(1..4) {
            let at = random.usize(8..mutated.len());
            mutated[at] = random.u8(..);
        }
        mutated.truncate(random.usize(9..=mutated.len()));
        for lenient in [Lenient::StopAtBad, Lenient::SkipBad] {
            if let Ok((requests, ..)) = read(&mutated, lenient) {
                assert!(requests.len() <= mutated.len());
            }
        }
    }
}

/// Goal: damage that a sum can show is an error. Method: a block of records that says other counts,
/// totals that differ, a block that is too long, bytes after the end.
#[test]
fn wrong_counts_are_errors() {
    let block = |kind: u8, content: &[u8]| {
        let length = u32::try_from(content.len()).unwrap();
        [&[kind][..], &length.to_le_bytes(), content].concat()
    };
    let trace = |blocks: &[Vec<u8>]| [b"HWTRACE2".to_vec(), blocks.concat()].concat();
    let file = block(2, &[0, 1, 1, 1]);
    let extent = block(3, &[0, 10, 0, 0]);
    let good = [file, extent, block(4, &[1, 1, 0, 0]), block(6, &[1, 1, 0])];
    assert_eq!(read(&trace(&good), Lenient::StopAtBad).unwrap().0.len(), 1);
    let bad: [(usize, Vec<u8>); 8] = [
        (2, block(4, &[2, 2, 0, 0])),
        (2, block(4, &[1, 2, 0, 0])),
        (2, block(4, &[1, 1, 0, 0, 0])),
        (2, block(4, &[1, 1, 0, 0x80])),
        (3, block(6, &[1, 1, 1])),
        (3, [block(6, &[1, 1, 0]), vec![0]].concat()),
        (1, block(3, &[0, 10, 1, 0])),
        (0, block(9, &[])),
    ];
    for (place, wrong) in bad {
        let mut blocks = good.clone();
        blocks[place].clone_from(&wrong);
        let error = read(&trace(&blocks), Lenient::StopAtBad);
        assert!(
            matches!(error, Err(TraceError::BadRecord { .. })),
            "{wrong:?}"
        );
    }
    let mut huge = trace(&[]);
    huge.extend([1, 0xff, 0xff, 0xff, 0xff]);
    assert!(read(&huge, Lenient::StopAtBad).is_err());
}

#[test]
fn requests_out_of_range_are_refused() {
    let mut writer = RecordingWriter::new(Vec::new(), Packing::Plain, "").unwrap();
    let file = writer.file(id(1), 0, "").unwrap();
    for (first, count) in [(0, 0), (0, (1 << 20) + 1), (u64::MAX, 1)] {
        let refused = writer.push(file, Op::Read, first, count);
        assert!(matches!(refused, Err(WriteError::Range { .. })), "{first}");
    }
    writer.push(file, Op::Read, u64::MAX - 1, 1).unwrap();
    assert_eq!(writer.finish().unwrap().1.accesses, 1);
}

/// Replays a recording of these bytes.
fn replayed(bytes: &[u8], lenient: Lenient, in_flight: usize) -> Outcome {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("app.hwt");
    fs::write(&path, bytes).unwrap();
    let options = ReaderOptions {
        lenient,
        ..ReaderOptions::default()
    };
    let config = ReplayConfig {
        tenants: vec![TenantConfig {
            name: "app".to_owned(),
            trace: TraceInput::File(path),
            options,
            max: None,
        }],
        capacity: Bytes::mib(8),
        threads: 1,
        in_flight,
        backend: None,
        policy: PolicyKind::default(),
        tunables: Tunables::default(),
        readahead: Pages(0),
        io: DataIo::Buffered,
        seed: 1,
        dir: dir.path().to_path_buf(),
    };
    let replay = Replay::prepare(&config).unwrap();
    replay.run(&Control::default()).unwrap()
}

#[test]
fn a_replay_names_the_files_of_a_recording() {
    // Goal: the report says which files miss, what the trace lacks, and whether it is whole.
    // Method: one file that is read three times, one that is read once, one without a name and one
    // that is never accessed; whole, cut short, and with reads in flight.
    let about = "kernel: 6.18.0\ntarget: command ./app\n";
    let mut writer = RecordingWriter::new(Vec::new(), Packing::Plain, about).unwrap();
    let hot = writer.file(id(1), 10, "/data/hot").unwrap();
    let cold = writer.file(id(2), 100, "/data/cold").unwrap();
    let unnamed = writer.file(id(3), 5, "").unwrap();
    _ = writer.file(id(4), 5, "/data/unused").unwrap();
    (0..3).for_each(|_| writer.push(hot, Op::Read, 0, 10).unwrap());
    writer.push(cold, Op::Read, 0, 100).unwrap();
    writer.push(unnamed, Op::Read, 2, 3).unwrap();
    writer.lost(7);
    writer.flush().unwrap();
    let (bytes, _) = writer.finish().unwrap();
    for in_flight in [1, 4] {
        let outcome = replayed(&bytes, Lenient::default(), in_flight);
        let recording = outcome.report.tenants[0].trace.recording.as_ref().unwrap();
        let files = recording.files.iter();
        let files = files.map(|file| (file.name.as_str(), file.page_accesses, file.hits));
        let expected = [
            ("/data/cold", 100, 0),
            ("/data/hot", 30, 20),
            ("254:3:3", 3, 0),
        ];
        assert_eq!(files.collect::<Vec<_>>(), expected);
        assert_eq!((recording.nr_files, recording.nr_named), (3, 2));
        assert_eq!((recording.lost_events, recording.is_complete), (7, true));
        assert_eq!(recording.said("kernel"), Some("6.18.0"));
        let text = Table::new(&outcome).to_string();
        let note = "`app` is a recording of command ./app on Linux 6.18.0: 3 files, 1 without a \
                    name; 7 events lost";
        let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words(&text).contains(note), "{text}");
        assert!(words(&text).contains("10 30 66.67 % /data/hot"), "{text}");
    }
    // Without the end block.
    let lenient = Lenient::SkipBad;
    let outcome = replayed(&bytes[..bytes.len() - 8], lenient, 1);
    let recording = outcome.report.tenants[0].trace.recording.as_ref().unwrap();
    assert!(!recording.is_complete);
}
