//! Writes that fail, and rings that are too small or damaged: the program goes on, hears of it
//! once, and loses those records alone.

#![expect(clippy::unwrap_used, reason = "a test stops where it goes wrong")]

use std::cell::OnceCell;
use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber, subscriber};

use super::format::{FileHeader, RING_AT};
use super::{Everything, Recorder, Recording, RecordingError};
use crate::group::Limits;
use crate::manager::Manager;
use crate::sync::{Arc, StatCell};
use crate::units::Bytes;

/// Counts the recorder's warnings.
struct Warnings(Arc<StatCell>);

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == Level::WARN && metadata.target().contains("recorder")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {
        self.0.add(1);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

fn replace_file(recorder: &Recorder, file: File) -> File {
    let mut scribe = recorder.scribe.lock();
    scribe.as_mut().unwrap().replace_file(file)
}

/// Records marks and moments to a file whose writes fail, then to the recording again.
fn loses_only_what_fails(broken: &Path, errno: i32) {
    let faulty = || OpenOptions::new().write(true).open(broken).unwrap();
    let refused = faulty().write_all_at(&[0; 64], 4096).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(errno), "{refused}");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("flight.rec");
    let builder = Manager::builder().capacity(Bytes::mib(16));
    let hw = builder.recorder(&path, Bytes::mib(1)).build().unwrap();
    let recorder = hw.core().recorder.as_ref().unwrap();
    let nr_warnings = Arc::new(StatCell::default());
    subscriber::with_default(Warnings(Arc::clone(&nr_warnings)), || {
        hw.mark("before");
        hw.record_now(Everything::Yes);
        for outage in 1..=2 {
            let recording = replace_file(recorder, faulty());
            for _ in 0..3 {
                hw.mark("lost");
                hw.record_now(Everything::Yes);
                hw.record_now(Everything::No);
            }
            let charge = hw.root().charge(Bytes::mib(1)).unwrap();
            assert_eq!(nr_warnings.get(), outage, "one an outage");
            drop(replace_file(recorder, recording));
            hw.mark("after");
            hw.record_now(Everything::Yes);
            drop(charge);
        }
    });
    let recording = Recording::open(&path).unwrap();
    let marks: Vec<_> = recording.marks().iter().map(|mark| &*mark.text).collect();
    assert_eq!(marks, ["before", "after", "after"]);
    assert_eq!(recording.len(), 3, "each moment that was written");
    let last = recording.moment(recording.last().unwrap()).unwrap();
    assert!(last.is_whole);
    assert!(last.groups[0].usage.contains(Bytes::mib(1)));
}

// Symptom: a ring too small for a whole moment had none that could be read, and nothing said so.
#[test]
fn a_ring_too_small_for_two_moments_is_warned_of_once() {
    // A group takes its name and some 50 bytes; the ring has 1 MiB.
    for (nr_groups, expected) in [(1_000, 0), (2_500, 1)] {
        let dir = tempfile::tempdir().unwrap();
        let builder = Manager::builder().capacity(Bytes::mib(16));
        let builder = builder.recorder(dir.path().join("flight.rec"), Bytes::mib(1));
        let hw = builder.build().unwrap();
        for nr in 0..nr_groups {
            drop(hw.root().child(&format!("{nr:0>200}"), Limits::default()));
        }
        let nr_warnings = Arc::new(StatCell::default());
        subscriber::with_default(Warnings(Arc::clone(&nr_warnings)), || {
            for _ in 0..3 {
                hw.record_now(Everything::Yes);
            }
        });
        assert_eq!(nr_warnings.get(), expected, "{nr_groups} groups");
    }
}

#[test]
fn a_disk_without_room_costs_the_records_that_it_refuses() {
    const ENOSPC: i32 = 28;
    if !Path::new("/dev/full").exists() {
        println!("not tested: there is no /dev/full");
        return;
    }
    loses_only_what_fails(Path::new("/dev/full"), ENOSPC);
}

#[test]
fn a_broken_disk_costs_the_records_that_it_refuses() {
    // Method: the process's memory as a file. No page is mapped at the addresses of the ring's
    // first 60 KiB, so writes there are I/O errors, as of a broken disk.
    const EIO: i32 = 5;
    let memory = Path::new("/proc/self/mem");
    let probe = OpenOptions::new().write(true).open(memory);
    let refused = probe.and_then(|file| file.write_all_at(&[0; 64], 4096));
    if refused.as_ref().err().and_then(io::Error::raw_os_error) != Some(EIO) {
        println!("not tested: {} answers {refused:?}", memory.display());
        return;
    }
    loses_only_what_fails(memory, EIO);
}

/// Records marks of a kibibyte, named by numbers, until `is_enough` holds for the number and the
/// file's bytes; returns these bytes after each of the last eight, with the numbers.
fn marked(path: &Path, is_enough: impl Fn(usize, &[u8]) -> bool) -> Vec<(usize, Vec<u8>)> {
    let builder = Manager::builder().capacity(Bytes::mib(16));
    let hw = builder.recorder(path, Bytes::mib(1)).build().unwrap();
    let mut states = VecDeque::new();
    for number in 1.. {
        hw.mark(&format!("{number} {}", "x".repeat(1000)));
        states.push_back((number, fs::read(path).unwrap()));
        if states.len() > 8 {
            states.pop_front();
        }
        if is_enough(number, &states.back().unwrap().1) {
            break;
        }
    }
    states.into()
}

/// Returns where in the ring two states of a file differ, from the first to the last byte.
fn changed(before: &[u8], after: &[u8]) -> Range<usize> {
    let ring = usize::try_from(RING_AT).unwrap();
    let differs = |at: &usize| before[*at] != after[*at];
    let first = (ring..after.len()).find(differs).unwrap();
    first..(ring..after.len()).rfind(differs).unwrap() + 1
}

fn numbers(recording: &Recording) -> Vec<usize> {
    let marks = recording.marks().iter();
    let number = |text: &str| text.split(' ').next()?.parse().ok();
    marks.filter_map(|mark| number(&mark.text)).collect()
}

// Symptom: each refresh read the whole ring again, and counted a damaged record again, where it was
// the newest.
#[test]
fn a_damaged_record_is_counted_once() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("flight.rec");
    let mut states = marked(&path, |number, _| number == 3);
    let last = changed(&states[1].1, &states[2].1);
    states[2].1[last.end - 1] ^= 1;
    let copy = dir.path().join("copy.rec");
    fs::write(&copy, &states[2].1).unwrap();
    let mut recording = Recording::open(&copy).unwrap();
    for _ in 0..3 {
        assert_eq!((recording.nr_torn(), numbers(&recording)), (1, vec![1, 2]));
        recording.refresh().unwrap();
    }
}

// Symptom: a reader that came to a damaged record after the ring had wrapped lost those between
// that and the ring's end.
#[test]
fn records_behind_a_damaged_one_are_found_after_the_ring_wraps() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("flight.rec");
    let ring = usize::try_from(RING_AT).unwrap();
    let first = OnceCell::new();
    let mut states = marked(&path, |_, bytes| {
        let start = bytes[ring..ring + 64].to_vec();
        first.get_or_init(|| start.clone()) != &start
    });
    let copy = dir.path().join("copy.rec");
    let (before, known) = &states[2];
    fs::write(&copy, known).unwrap();
    let mut recording = Recording::open(&copy).unwrap();
    assert_eq!(numbers(&recording).last(), Some(before));
    // The next record is damaged, and four are behind it.
    let place = changed(known, &states[3].1);
    let (last, bytes) = states.last_mut().unwrap();
    bytes[place].fill(0);
    fs::write(&copy, bytes).unwrap();
    recording.refresh().unwrap();
    let found = numbers(&recording);
    assert!(
        found.ends_with(&[*last - 3, *last - 2, *last - 1, *last]),
        "{found:?}"
    );
}

// Symptom: a reader looked for records in the 2^62 bytes of a damaged header, and did not end.
#[test]
fn a_ring_that_no_recorder_makes_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("flight.rec");
    drop(marked(&path, |number, _| number == 1));
    let bytes = fs::read(&path).unwrap();
    let mut header = FileHeader::decode(&bytes).unwrap();
    for ring in [1 << 62, (1 << 30) + 8, 40] {
        header.ring = ring;
        fs::write(&path, header.encode()).unwrap();
        let refused = Recording::open(&path).unwrap_err();
        assert!(
            matches!(refused, RecordingError::Damaged { .. }),
            "{refused}"
        );
    }
}
